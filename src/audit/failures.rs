//! Why units and attempts failed: grouped by kind, and by what their messages have in common.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::list;
use crate::attempt::Failure;
use crate::money::Cost;
use crate::repository::{Archive, Result, UnitFilter};
use crate::unit::{UnitId, UnitStatus};

/// How many units are named as examples.
const EXAMPLES: usize = 3;

/// How much of a message its shape keeps. What differs further behind is seldom another failure.
const SHAPE_LIMIT_CHARS: usize = 160;

/// Failures that look alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FailureGroup {
    /// Their kind, such as `timed_out`.
    pub kind: String,
    /// Their message without what differs between them: see [`shape`].
    pub shape: String,
    /// The message of the latest.
    pub latest: String,
    /// When that was.
    pub latest_at: DateTime<Utc>,
    /// How many attempts failed like that.
    pub attempts: u64,
    /// How many units are FAILED because of it.
    pub units: u64,
    /// What these attempts cost.
    pub cost: Cost,
    /// The names of some of the units.
    pub examples: Vec<UnitId>,
}

/// Groups the failures of the units that a filter means: those that ended units first, then those of most attempts.
///
/// Attempts that were tried again with success are among them. A unit that FAILED without an attempt, such as one that waited for too long,
/// counts as a unit only.
///
/// # Errors
///
/// [`UnknownJob`](crate::RepositoryError::UnknownJob), and what the storage says.
pub fn failures(archive: &dyn Archive, filter: &UnitFilter) -> Result<Vec<FailureGroup>> {
    if let Some(job_id) = filter.job_id {
        archive.job(job_id)?;
    }
    let mut groups: BTreeMap<(String, String), FailureGroup> = BTreeMap::new();
    list::for_each(archive, filter, |unit| {
        for summary in &unit.attempts {
            let attempt = &summary.attempt;
            let Some(failure) = &attempt.failure else { continue };
            let group = group(&mut groups, failure, attempt.ended_at.unwrap_or(attempt.assigned_at));
            group.attempts += 1;
            group.cost = group.cost + attempt.cost(&summary.charges);
            if group.examples.len() < EXAMPLES && !group.examples.contains(&unit.id) {
                group.examples.push(unit.id.clone());
            }
        }
        if let Some(failure) = unit.failure.as_ref().filter(|_| unit.status == UnitStatus::Failed) {
            let group = group(&mut groups, failure, unit.completed_at.unwrap_or(unit.created_at));
            group.units += 1;
            if group.examples.len() < EXAMPLES && !group.examples.contains(&unit.id) {
                group.examples.push(unit.id);
            }
        }
        true
    })?;
    let mut groups: Vec<FailureGroup> = groups.into_values().collect();
    groups.sort_by_key(|group| Reverse((group.units, group.attempts)));
    Ok(groups)
}

fn group<'a>(
    groups: &'a mut BTreeMap<(String, String), FailureGroup>,
    failure: &Failure,
    at: DateTime<Utc>,
) -> &'a mut FailureGroup {
    let (kind, shape) = (failure.kind.to_string(), shape(&failure.message));
    let group = groups.entry((kind.clone(), shape.clone())).or_insert_with(|| FailureGroup {
        kind,
        shape,
        latest: failure.message.clone(),
        latest_at: at,
        attempts: 0,
        units: 0,
        cost: Cost::default(),
        examples: Vec::new(),
    });
    if at >= group.latest_at {
        failure.message.clone_into(&mut group.latest);
        group.latest_at = at;
    }
    group
}

/// What messages of the same failure have in common: their first line, in which numbers, ids and what is quoted are replaced by `…`.
///
/// ```
/// use workcrew::audit::failures::shape;
///
/// let one = shape("request 7f3a9c00-11 timed out after 30.5 s on `page-17`");
/// assert_eq!(one, "request … timed out after … s on `…`");
/// assert_eq!(one, shape("request 01beef22-09 timed out after 7 s on `page-2`"));
/// ```
pub fn shape(message: &str) -> String {
    let line = message.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let mut shape = String::new();
    let mut rest = line;
    while let Some(sign) = rest.chars().next() {
        let quoted = match sign {
            '`' | '"' | '\'' => rest[1..].find(sign).map(|end| &rest[..end + 2]),
            _ => None,
        };
        if let Some(quoted) = quoted.filter(|_| !shape.ends_with(char::is_alphanumeric)) {
            shape.extend([sign, '…', sign]);
            rest = &rest[quoted.len()..];
            continue;
        }
        let word_end = rest.find(|sign: char| !is_of_word(sign)).unwrap_or(rest.len());
        if word_end == 0 {
            shape.push(sign);
            rest = &rest[sign.len_utf8()..];
            continue;
        }
        let word = &rest[..word_end];
        shape.push_str(if word.contains(|sign: char| sign.is_ascii_digit()) { "…" } else { word });
        rest = &rest[word_end..];
    }
    super::visible::line(&shape).cut(SHAPE_LIMIT_CHARS)
}

/// Whether a sign is part of a word, of a number or of an id.
fn is_of_word(sign: char) -> bool {
    sign.is_alphanumeric() || matches!(sign, '-' | '_' | '.' | '/' | '…')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_one_failure_have_one_shape() {
        for (message, expected) in [
            ("exit code 137", "exit code …"),
            ("\n  don't panic at 10:04:55Z\nmore", "don't panic at …:…:…"),
            ("no such file: /tmp/a7/b", "no such file: …"),
            ("no such file: /tmp/a/b", "no such file: /tmp/a/b"),
            ("said \"a \u{1b}[2J\" and 'b'", "said \"…\" and '…'"),
            ("unclosed `quote", "unclosed `quote"),
            ("größe 5µ", "größe …"),
            ("", ""),
        ] {
            assert_eq!(shape(message), expected);
        }
        assert_eq!(shape(&"ab ".repeat(100)).chars().count(), SHAPE_LIMIT_CHARS);
        assert_eq!(shape("bell\u{7}"), "bell\\u{7}");
    }
}
