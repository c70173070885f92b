//! By which clock leases are counted: the database's own, so that hosts need not agree.
//!
//! Its calendar stands for both clocks of a [`Moment`]. Should somebody set it, leases run out sooner or later than they were to,
//! which costs time and never safety: that is the fence's.

use std::sync::Arc;

use chrono::DateTime;

use super::columns::unreadable;
use super::connection::{Connection, Read};
use crate::clock::{Clock, Moment, SystemClock};

/// What the database's clock shows, in milliseconds since 1970.
pub(super) const NOW_MS: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint::text";

/// Where time comes from.
#[derive(Clone, Debug)]
pub(super) enum Time {
    /// The database.
    Database,
    /// A clock that somebody else reads too.
    Given(Arc<dyn Clock>),
}

impl Time {
    /// The boot of this host, by which it is told whether a process here lives.
    pub(super) fn boot_id(&self) -> Arc<str> {
        match self {
            Time::Given(clock) => clock.boot_id(),
            Time::Database => SystemClock.boot_id(),
        }
    }

    pub(super) fn now(&self, connection: &mut Connection) -> Read<Moment> {
        match self {
            Time::Given(clock) => Ok(clock.now()),
            Time::Database => {
                let rows = connection.batch_rows(NOW_MS)?;
                moment(rows.first().and_then(|row| row.get(0)))
            }
        }
    }

    /// The same, where the database was asked already.
    pub(super) fn read(&self, database_ms: Option<&str>) -> Read<Moment> {
        match self {
            Time::Given(clock) => Ok(clock.now()),
            Time::Database => moment(database_ms),
        }
    }
}

fn moment(database_ms: Option<&str>) -> Read<Moment> {
    let milliseconds = database_ms.and_then(|text| text.parse().ok());
    let moment =
        milliseconds.and_then(|boot_ms| Some(Moment { wall: DateTime::from_timestamp_millis(boot_ms)?, boot_ms }));
    moment.ok_or_else(|| unreadable("the database does not know what time it is"))
}
