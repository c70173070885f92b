//! Between the columns of a row and what they stand for.

use chrono::{DateTime, Utc};
use postgres::Row;
use postgres::types::FromSql;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::connection::{Failure, Read};
use crate::attempt::{Failure as AttemptFailure, FailureKind};
use crate::chain::Hash;
use crate::conversation::{from_json, to_json};
use crate::money::{Money, Tokens};
use crate::repository::rules::Pause;
use crate::unit::{UnitId, shortened};
use crate::worker::WorkerId;

/// A column that holds something that was never written.
pub(super) fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::Unreadable(error.into())
}

/// What the columns of a row hold, by their places.
pub(super) trait Columns {
    fn get_as<'a, T: FromSql<'a>>(&'a self, column: usize) -> Read<T>;

    fn number(&self, column: usize) -> Read<i64> {
        self.get_as(column)
    }

    /// A number that fits what it counts.
    fn count<T: TryFrom<i64>>(&self, column: usize) -> Read<T> {
        let number = self.number(column)?;
        T::try_from(number).map_err(|_| unreadable(format!("{number} is out of range")))
    }

    fn optional_number(&self, column: usize) -> Read<Option<i64>> {
        self.get_as(column)
    }

    fn flag(&self, column: usize) -> Read<bool> {
        self.get_as(column)
    }

    fn bytes(&self, column: usize) -> Read<Vec<u8>> {
        self.get_as(column)
    }

    fn optional_bytes(&self, column: usize) -> Read<Option<Vec<u8>>> {
        self.get_as(column)
    }

    /// A text of any characters, which is kept as its bytes.
    fn text(&self, column: usize) -> Read<String> {
        String::from_utf8(self.bytes(column)?).map_err(unreadable)
    }

    fn optional_text(&self, column: usize) -> Read<Option<String>> {
        self.optional_bytes(column)?.map(|bytes| String::from_utf8(bytes).map_err(unreadable)).transpose()
    }

    fn hash(&self, column: usize) -> Read<Hash> {
        self.optional_hash(column)?.ok_or_else(|| unreadable("a hash is missing"))
    }

    fn optional_hash(&self, column: usize) -> Read<Option<Hash>> {
        let Some(bytes) = self.get_as::<Option<&[u8]>>(column)? else { return Ok(None) };
        let bytes: [u8; Hash::LEN_BYTES] = bytes.try_into().map_err(unreadable)?;
        Ok(Some(Hash::from_bytes(bytes)))
    }

    fn time(&self, column: usize) -> Read<DateTime<Utc>> {
        self.optional_time(column)?.ok_or_else(|| unreadable("a time is missing"))
    }

    fn optional_time(&self, column: usize) -> Read<Option<DateTime<Utc>>> {
        let Some(milliseconds) = self.optional_number(column)? else { return Ok(None) };
        let time = DateTime::from_timestamp_millis(milliseconds);
        time.map(Some).ok_or_else(|| unreadable(format!("{milliseconds} is no time")))
    }

    /// A value that is kept under its name.
    fn named<T>(&self, column: usize, from_name: fn(&str) -> Option<T>) -> Read<T> {
        let name: &str = self.get_as(column)?;
        from_name(name).ok_or_else(|| unreadable(format!("`{}` is no such name", shortened(name))))
    }

    fn optional_named<T>(&self, column: usize, from_name: fn(&str) -> Option<T>) -> Read<Option<T>> {
        match self.get_as::<Option<&str>>(column)? {
            Some(_) => self.named(column, from_name).map(Some),
            None => Ok(None),
        }
    }

    /// A name that was checked when it was written.
    fn unit_id(&self, column: usize) -> Read<UnitId> {
        UnitId::new(self.get_as::<&str>(column)?).map_err(unreadable)
    }

    fn worker_id(&self, column: usize) -> Read<WorkerId> {
        self.unit_id(column).map(WorkerId::from)
    }

    fn json<T: DeserializeOwned>(&self, column: usize) -> Read<T> {
        from_json(self.get_as(column)?).map_err(unreadable)
    }

    fn optional_json<T: DeserializeOwned>(&self, column: usize) -> Read<Option<T>> {
        let bytes: Option<&[u8]> = self.get_as(column)?;
        bytes.map(|bytes| from_json(bytes).map_err(unreadable)).transpose()
    }

    /// JSON whose value is hashed, not its bytes: only the very bytes that we would write have one hash.
    fn exact_json<T: DeserializeOwned + Serialize>(&self, column: usize) -> Read<Option<T>> {
        let Some(value) = self.optional_json(column)? else { return Ok(None) };
        match to_json(&value) {
            Ok(written) if written == self.get_as::<&[u8]>(column)? => Ok(Some(value)),
            _ => Err(unreadable("it is not as it was written")),
        }
    }

    fn money(&self, column: usize) -> Read<Money> {
        self.number(column).map(Money::from_nanos)
    }

    fn optional_money(&self, column: usize) -> Read<Option<Money>> {
        Ok(self.optional_number(column)?.map(Money::from_nanos))
    }

    /// Token counts in five columns.
    fn tokens(&self, first: usize) -> Read<Tokens> {
        Ok(Tokens {
            input: self.count(first)?,
            output: self.count(first + 1)?,
            cache_read: self.count(first + 2)?,
            cache_write: self.count(first + 3)?,
            reasoning: self.count(first + 4)?,
        })
    }

    /// How long a unit may not be claimed.
    fn pause(&self, not_before: usize, delay_ms: usize) -> Read<Option<Pause>> {
        let Some(not_before) = self.optional_time(not_before)? else { return Ok(None) };
        Ok(Some(Pause { not_before, delay_ms: self.number(delay_ms)? }))
    }

    fn failure(&self, kind: usize, message: usize) -> Read<Option<AttemptFailure>> {
        let Some(kind) = self.optional_text(kind)? else { return Ok(None) };
        Ok(Some(AttemptFailure::new(FailureKind::new(kind), self.text(message)?)))
    }

    /// How long the content of a column is, without copying it.
    fn len_bytes(&self, column: usize) -> Read<usize> {
        Ok(self.get_as::<Option<&[u8]>>(column)?.map_or(0, <[u8]>::len))
    }
}

impl Columns for Row {
    fn get_as<'a, T: FromSql<'a>>(&'a self, column: usize) -> Read<T> {
        self.try_get(column).map_err(unreadable)
    }
}

/// A number as a column has it: what is more than that can be is as good as the most.
pub(super) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A limit as a column has it.
pub(super) fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A name to look for; `None` if none that is kept can be like it, which PostgreSQL would not even be asked about.
pub(super) fn findable(name: &str) -> Option<&str> {
    (!name.contains('\0')).then_some(name)
}
