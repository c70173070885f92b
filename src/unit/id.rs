//! The names of units, and what can be a name at all.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A unit's name, unique in its job: the caller's, or a generated one that sorts by time.
///
/// ```
/// use workcrew::UnitId;
///
/// assert_eq!(UnitId::new("page-17").unwrap().as_str(), "page-17");
/// assert!(UnitId::new("").is_err());
/// assert!(UnitId::new("line\nbreak").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitId(String);

impl UnitId {
    /// The longest id.
    pub const LIMIT_BYTES: usize = 512;

    /// Checks an id: not empty, not too long, no control characters.
    ///
    /// # Errors
    ///
    /// [`InvalidId`] says which of these it is.
    pub fn new(id: impl Into<String>) -> Result<UnitId, InvalidId> {
        let id = id.into();
        match check_name(&id, UnitId::LIMIT_BYTES) {
            Some(problem) => Err(InvalidId { problem, shown: shortened(&id) }),
            None => Ok(UnitId(id)),
        }
    }

    /// A fresh id that sorts behind those generated before.
    pub fn generate() -> UnitId {
        UnitId(uuid::Uuid::now_v7().to_string())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is wrong with a name, if anything.
pub(crate) fn check_name(name: &str, limit_bytes: usize) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > limit_bytes {
        Some("is too long")
    } else if name.chars().any(char::is_control) {
        Some("has a control character")
    } else {
        None
    }
}

/// As much of a name as an error message can bear.
pub(crate) fn shortened(name: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let shown: String = name.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_CHARS).is_some() { format!("{shown}…") } else { shown }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for UnitId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<UnitId> for String {
    fn from(id: UnitId) -> String {
        id.0
    }
}

impl TryFrom<String> for UnitId {
    type Error = InvalidId;

    fn try_from(id: String) -> Result<UnitId, InvalidId> {
        UnitId::new(id)
    }
}

/// A text that cannot be an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidId {
    problem: &'static str,
    shown: String,
}

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the id `{}` {}", self.shown, self.problem)
    }
}

impl std::error::Error for InvalidId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_sort_by_time() {
        let ids: Vec<UnitId> = (0..100).map(|_| UnitId::generate()).collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn odd_ids_are_taken_or_refused_with_a_short_reason() {
        for id in ["../x", "'; DROP TABLE work_units; --", "\"", "ü", " "] {
            assert!(UnitId::new(id).is_ok(), "{id}");
        }
        let long = "x".repeat(1_000_000);
        for (id, reason) in
            [("", "the id `` is empty"), ("a\0b", "the id `a\\0b` has a control character"), (&*long, "is too long")]
        {
            let message = UnitId::new(id).unwrap_err().to_string();
            assert!(message.ends_with(reason), "{message}");
            assert!(message.len() < 300);
        }
    }
}
