//! News from other hosts: what they have written that somebody here waits for.
//!
//! Who writes notifies the channel of the schema in the same transaction. A thread waits for that, once somebody listens, and
//! tells those who do. It is a help and no more: what is missed while the connection is lost, or behind a proxy that lends
//! sessions out for a transaction at a time, is found by whoever looks every few seconds.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use postgres::fallible_iterator::FallibleIterator;

use super::connection::Read;
use super::server::{Purpose, Server};
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::repository::News;
use crate::repository::listeners::Listeners;
use crate::unit::UnitKey;

/// How long the thread waits before it looks whether it is still wanted. The writer wakes it when it closes.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The longest name of a unit that is told: what is longer is only told to wait again.
const NAME_LIMIT_BYTES: usize = 1_000;

/// What is said on the channel, behind the number of the writer that says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Announcement {
    /// Units of a job may have come to wait for anybody.
    Queued(JobId),
    /// The same for all jobs.
    AllQueued,
    /// A unit of a job ended with an attempt of an owner.
    Ended(JobId, OwnerId),
    /// A unit of a job was cancelled, or is to be.
    Cancelled(JobId, UnitKey, String),
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Announcement::Queued(job) => write!(f, "queued {}", job.0),
            Announcement::AllQueued => f.write_str("queued"),
            Announcement::Ended(job, owner) => write!(f, "ended {} {}", job.0, owner.0),
            Announcement::Cancelled(job, unit, id) if id.len() <= NAME_LIMIT_BYTES => {
                write!(f, "cancelled {} {} {id}", job.0, unit.0)
            }
            Announcement::Cancelled(job, ..) => write!(f, "queued {}", job.0),
        }
    }
}

impl Announcement {
    /// Reads what somebody said; `None` for what a later version may say.
    fn parse(text: &str) -> Option<Announcement> {
        let mut words = text.splitn(4, ' ');
        let kind = words.next()?;
        let mut number = || words.next().map(|word| word.parse::<i64>().ok());
        match (kind, number()) {
            ("queued", None) => Some(Announcement::AllQueued),
            ("queued", Some(job)) => Some(Announcement::Queued(JobId(job?))),
            ("ended", Some(job)) => Some(Announcement::Ended(JobId(job?), OwnerId(number()??))),
            ("cancelled", Some(job)) => {
                let unit = UnitKey(number()??);
                Some(Announcement::Cancelled(JobId(job?), unit, words.next()?.to_owned()))
            }
            _ => None,
        }
    }

    fn tell(self, listeners: &Listeners) {
        match self {
            Announcement::Queued(job) => listeners.tell_of_queued(job),
            Announcement::AllQueued => listeners.tell(&News::Queued, |_| true),
            Announcement::Ended(job, owner) => listeners.tell(&News::Ended(owner), |listened| listened == job),
            Announcement::Cancelled(job, unit, id) => {
                listeners.tell(&News::Cancelled { unit, id }, |listened| listened == job);
            }
        }
    }
}

/// The thread that hears what other hosts say.
#[derive(Debug)]
pub(super) struct Ear {
    thread: JoinHandle<()>,
    is_over: Arc<AtomicBool>,
}

impl Ear {
    /// Begins to listen for everybody but the writer of this process.
    pub(super) fn open(server: Server, writer: i64, listeners: Arc<Listeners>) -> std::io::Result<Ear> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::Builder::new().name("workcrew-listener".to_owned()).spawn(move || {
            while !over.load(Ordering::Acquire) {
                if let Err(failure) = hear(&server, writer, &listeners, &over) {
                    log::debug!("news from other hosts are missed for now: {}", failure.meaning());
                    // Whatever was said meanwhile was not heard.
                    Announcement::AllQueued.tell(&listeners);
                    std::thread::park_timeout(LOOK_AGAIN);
                }
            }
        })?;
        Ok(Ear { thread, is_over })
    }

    /// Says that nobody wants to hear more. Something has to be said on the channel for the thread to notice at once.
    pub(super) fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.thread.thread().unpark();
    }

    pub(super) fn join(self) {
        let _ = self.thread.join();
    }
}

/// Listens until the connection is lost, or nobody wants to hear more.
fn hear(server: &Server, writer: i64, listeners: &Listeners, is_over: &AtomicBool) -> Read<()> {
    let mut connection = server.connect(Purpose::Listening)?;
    connection.batch(&format!("LISTEN \"{}\"", server.schema))?;
    while !is_over.load(Ordering::Acquire) {
        if connection.is_closed() {
            connection.batch("")?;
        }
        let client = connection.client();
        let mut notifications = client.notifications();
        let mut heard = notifications.timeout_iter(LOOK_AGAIN);
        while let Some(notification) = heard.next()? {
            if is_over.load(Ordering::Acquire) {
                return Ok(());
            }
            let Some((said_by, text)) = notification.payload().split_once(' ') else { continue };
            if said_by.parse() == Ok(writer) {
                continue;
            }
            if let Some(announcement) = Announcement::parse(text) {
                announcement.tell(listeners);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_understood_as_it_was_meant() {
        for announcement in [
            Announcement::Queued(JobId(7)),
            Announcement::AllQueued,
            Announcement::Ended(JobId(7), OwnerId(3)),
            Announcement::Cancelled(JobId(7), UnitKey(9), "a name  with spaces".to_owned()),
        ] {
            assert_eq!(Announcement::parse(&announcement.to_string()), Some(announcement));
        }
        for text in ["", "sang 7", "queued x", "ended 7", "cancelled 7 9"] {
            assert_eq!(Announcement::parse(text), None, "{text}");
        }
    }
}
