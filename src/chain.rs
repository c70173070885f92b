//! Hashes and links: how a repository shows that nothing was altered.
//!
//! Each message of an attempt carries `link = blake3(previous link, content hash, metadata)`;
//! the first follows a genesis made of unit, attempt and fence. The journal is chained
//! the same way, and the row that closes an attempt repeats the number of its messages and
//! the last link. So a changed byte, a missing row and a swapped row all show. The journal of jobs is
//! a chain of its own, whose rows have the hash of all that a job is and the journal's last link at that time.
//!
//! Whoever can rewrite the whole database can also compute new links. Against that
//! only a head that was exported elsewhere helps.
//!
//! Every hash starts with a name of what it is over, and every field is written with
//! its length, so that no two different records have the same bytes.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::attempt::AttemptKey;
use crate::conversation::Role;
use crate::repository::{JobEntry, JournalEntry};

/// A blake3 hash, which prints as hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hash([u8; 32]);

impl Hash {
    /// The length of a hash.
    pub const LEN_BYTES: usize = 32;

    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> Hash {
        Hash(*blake3::hash(bytes).as_bytes())
    }

    /// A hash given by its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Hash {
        Hash(bytes)
    }

    /// The bytes of the hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Starts a hash over named fields.
    pub(crate) fn builder(what: &str) -> HashBuilder {
        HashBuilder(Vec::with_capacity(256)).text(what)
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hash({:.12})", blake3::Hash::from_bytes(self.0).to_hex().as_str())
    }
}

impl From<Hash> for String {
    fn from(hash: Hash) -> String {
        hash.to_string()
    }
}

impl TryFrom<String> for Hash {
    type Error = String;

    fn try_from(text: String) -> Result<Hash, String> {
        let hash = blake3::Hash::from_hex(&text).map_err(|error| format!("`{text}` is not a hash: {error}"))?;
        Ok(Hash(*hash.as_bytes()))
    }
}

/// Collects the fields of a record, each with its length.
///
/// They are gathered first and hashed at once, which is faster for the few hundred
/// bytes of a record; a long content goes in as its own hash.
pub(crate) struct HashBuilder(Vec<u8>);

impl HashBuilder {
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> HashBuilder {
        self.0.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn text(self, text: &str) -> HashBuilder {
        self.bytes(text.as_bytes())
    }

    pub(crate) fn number(self, number: i64) -> HashBuilder {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn hash(self, hash: &Hash) -> HashBuilder {
        self.bytes(&hash.0)
    }

    /// A field that may be missing, which is not the same as empty.
    pub(crate) fn optional(self, bytes: Option<&[u8]>) -> HashBuilder {
        match bytes {
            Some(bytes) => self.number(1).bytes(bytes),
            None => self.number(0),
        }
    }

    pub(crate) fn optional_hash(self, hash: Option<&Hash>) -> HashBuilder {
        self.optional(hash.map(|hash| hash.0.as_slice()))
    }

    pub(crate) fn optional_text(self, text: Option<&str>) -> HashBuilder {
        self.optional(text.map(str::as_bytes))
    }

    pub(crate) fn optional_number(self, number: Option<i64>) -> HashBuilder {
        self.optional(number.map(i64::to_le_bytes).as_ref().map(<[u8; 8]>::as_slice))
    }

    pub(crate) fn finish(self) -> Hash {
        Hash::of(&self.0)
    }
}

/// What the first message of an attempt follows.
pub fn conversation_genesis(attempt: AttemptKey, fence: i64) -> Hash {
    Hash::builder("workcrew conversation")
        .number(attempt.unit.0)
        .number(i64::from(attempt.number))
        .number(fence)
        .finish()
}

/// The link of a message that follows `previous`.
pub fn message_link(previous: &Hash, number: u32, at: DateTime<Utc>, role: Role, content_hash: &Hash) -> Hash {
    Hash::builder("message")
        .hash(previous)
        .hash(content_hash)
        .number(i64::from(number))
        .number(at.timestamp_millis())
        .text(role.name())
        .finish()
}

/// What the first row of a journal follows.
pub fn journal_genesis() -> Hash {
    Hash::builder("workcrew journal").finish()
}

/// The link of a journal row that follows `previous`; its own `link` field is not looked at.
pub fn journal_link(previous: &Hash, entry: &JournalEntry) -> Hash {
    Hash::builder("journal")
        .hash(previous)
        .number(entry.seq)
        .number(entry.at.timestamp_millis())
        .number(entry.unit.0)
        .optional_number(entry.attempt_number.map(i64::from))
        .number(entry.fence)
        .text(entry.change.name())
        .optional_text(entry.from.map(|status| status.name()))
        .text(entry.to.name())
        .text(&entry.actor)
        .optional_text(entry.reason.as_deref())
        .optional_number(entry.message_count.map(i64::from))
        .optional_hash(entry.head.as_ref())
        .optional_hash(entry.digest.as_ref())
        .finish()
}

/// What the first row of a journal of jobs follows.
pub fn job_journal_genesis() -> Hash {
    Hash::builder("workcrew job journal").finish()
}

/// The link of a row of the journal of jobs that follows `previous`; its own `link` field is not looked at.
///
/// What the row keeps of the job is in its digest.
pub fn job_journal_link(previous: &Hash, entry: &JobEntry) -> Hash {
    Hash::builder("job journal")
        .hash(previous)
        .number(entry.seq)
        .number(entry.at.timestamp_millis())
        .number(entry.job_id.0)
        .text(&entry.actor)
        .optional_text(entry.reason.as_deref())
        .number(entry.journal_seq)
        .optional_hash(entry.journal_link.as_ref())
        .hash(&entry.digest)
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cannot_run_into_each_other() {
        let one = Hash::builder("x").text("ab").text("c").finish();
        let other = Hash::builder("x").text("a").text("bc").finish();
        assert_ne!(one, other);
        assert_ne!(Hash::builder("x").optional(None).finish(), Hash::builder("x").optional(Some(b"")).finish());
    }

    #[test]
    fn a_hash_prints_and_reads_back() {
        let hash = Hash::of(b"workcrew");
        let json = serde_json::to_string(&hash).unwrap();
        assert_eq!(serde_json::from_str::<Hash>(&json).unwrap(), hash);
        assert!(serde_json::from_str::<Hash>("\"abc\"").is_err());
        assert_eq!(format!("{hash:?}").len(), "Hash()".len() + 12);
    }
}
