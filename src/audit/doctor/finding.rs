//! What can be wrong with a batch, how urgent that is, and what to do about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::audit::visible::short;
use crate::unit::names;

/// How soon somebody should do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Urgency {
    /// Work stands still, or is about to.
    Now,
    /// Work goes on, but not as it should.
    Soon,
    /// Worth knowing; nothing has to be done.
    Note,
}

names!(Urgency {
    Now => "NOW",
    Soon => "SOON",
    Note => "NOTE",
});

/// What a finding is about, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Concern {
    /// Part of what is stored cannot be read.
    Unreadable,
    /// There is little room left on the disk.
    Disk,
    /// Units wait, and no process that lives works on their job.
    NobodyWorks,
    /// Units wait for anybody, and no process that lives takes such units.
    NobodyPulls,
    /// A process starts nothing, for a reason that does not go away by itself.
    Held,
    /// A process was paused by a person.
    Paused,
    /// A process is stopped, or does not come to renew its leases.
    Stopped,
    /// A process has died.
    Died,
    /// Nothing was heard for too long of a process that cannot be seen from here.
    Silent,
    /// Leases that nobody looks after.
    StaleLeases,
    /// Threads that do not return.
    AbandonedThreads,
    /// A process has fewer workers than it wants.
    WorkersMissing,
    /// Workers that crashed.
    WorkersBroken,
    /// Most attempts end in being tried again.
    RetryStorm,
    /// A unit that is tried again and again.
    TriedAgain,
    /// A unit that was to be cancelled and still runs.
    CancelUnheard,
    /// Units that nobody can execute, since there is nothing to send.
    PromptMissing,
    /// Units that FAILED.
    Failed,
    /// A process whose queue is full.
    QueueFull,
    /// A process that has fewer workers than it could, because its provider asked for fewer.
    FewerWorkers,
    /// A process that cannot write as fast as it should.
    WritingSlow,
    /// A log that grew because its content could not be moved into the file.
    LogLarge,
    /// Others can read what was said.
    Permissions,
    /// Times that lie in the future.
    Clock,
    /// A file that is larger than what is in it.
    FreePages,
    /// A file that is not written as ours are, or by an earlier version.
    Format,
}

names!(Concern {
    Unreadable => "UNREADABLE",
    Disk => "DISK",
    NobodyWorks => "NOBODY_WORKS",
    NobodyPulls => "NOBODY_PULLS",
    Held => "HELD",
    Paused => "PAUSED",
    Stopped => "STOPPED",
    Died => "DIED",
    Silent => "SILENT",
    StaleLeases => "STALE_LEASES",
    AbandonedThreads => "ABANDONED_THREADS",
    WorkersMissing => "WORKERS_MISSING",
    WorkersBroken => "WORKERS_BROKEN",
    RetryStorm => "RETRY_STORM",
    TriedAgain => "TRIED_AGAIN",
    CancelUnheard => "CANCEL_UNHEARD",
    PromptMissing => "PROMPT_MISSING",
    Failed => "FAILED",
    QueueFull => "QUEUE_FULL",
    FewerWorkers => "FEWER_WORKERS",
    WritingSlow => "WRITING_SLOW",
    LogLarge => "LOG_LARGE",
    Permissions => "PERMISSIONS",
    Clock => "CLOCK",
    FreePages => "FREE_PAGES",
    Format => "FORMAT",
});

/// Something that somebody should know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Symptom {
    /// How soon something should be done.
    pub urgency: Urgency,
    /// What it is about.
    pub concern: Concern,
    /// What is so, in one line that names the thing.
    pub what: String,
    /// What to do about it, in one line.
    pub advice: String,
}

impl Symptom {
    /// Something that somebody should know. What is stored may be in it: a terminal obeys nothing of it.
    pub(super) fn new(urgency: Urgency, concern: Concern, what: impl AsRef<str>, advice: impl AsRef<str>) -> Symptom {
        // Names in it were cut already; this is for whatever else came along.
        let line =
            |text: &str| text.lines().map(|line| line.replace(char::is_control, "?")).collect::<Vec<_>>().join(" ");
        Symptom { urgency, concern, what: line(what.as_ref()), advice: line(advice.as_ref()) }
    }
}

impl fmt::Display for Symptom {
    /// Two lines: what is so, and what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<4}  {}\n      → {}", self.urgency, self.what, self.advice)
    }
}

/// How long something takes, as people say it.
pub(super) fn span(milliseconds: i64) -> String {
    match milliseconds.max(0) / 1_000 {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// How much that is, as people say it.
pub(super) fn size(bytes: u64) -> String {
    const STEPS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match STEPS.into_iter().find(|(_, step)| bytes >= *step) {
        Some((unit, step)) => {
            let tenths = u128::from(bytes) * 10 / u128::from(step);
            format!("{}.{} {unit}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} B"),
    }
}

/// So many of something, as people say it.
pub(super) fn many(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

/// A name between quotes, harmless.
pub(super) fn named(name: &str) -> String {
    format!("`{}`", short(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_sizes_are_told_as_people_say_them() {
        let spans = [-5, 0, 119_999, 120_000, 7_200_000, 172_800_000].map(span);
        assert_eq!(spans, ["0 s", "0 s", "119 s", "2 min", "2 h", "2 d"]);
        let sizes = [0, 1_023, 1_024, 1_536, 64 << 20, u64::MAX].map(size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "64.0 MiB", "16777215.9 TiB"]);
        assert_eq!((many(1, "unit"), many(2, "unit")), ("1 unit".to_owned(), "2 units".to_owned()));
    }

    #[test]
    fn a_symptom_is_two_lines_whatever_is_in_it() {
        let symptom = Symptom::new(Urgency::Soon, Concern::Held, "a\n\u{1b}[2Jb", "c\rd");
        assert_eq!(symptom.to_string(), "SOON  a ?[2Jb\n      → c?d");
    }
}
