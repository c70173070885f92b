//! How processes are kept: how many, for how long, and how they are treated. Every setter states its default.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Eviction, ProcessEvent};

/// No limit is longer than that.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// How much longer than it should a process may live if the host cannot end it.
const BEYOND: Duration = Duration::from_secs(5);

/// Hears what becomes of processes.
type Observer = Arc<dyn Fn(&ProcessEvent<'_>) + Send + Sync>;

/// How processes are kept alive between units.
///
/// ```
/// use std::time::Duration;
/// use workcrew::executor::warm::Keep;
///
/// let keep = Keep::up_to(8).inactivity_limit(Duration::from_secs(60)).observer(|event| println!("{event}"));
/// ```
#[derive(Clone)]
pub struct Keep {
    pub(super) max_workers: usize,
    pub(super) eviction: Eviction,
    pub(super) ready_timeout: Duration,
    pub(super) cancel_grace: Duration,
    pub(super) shutdown_grace: Duration,
    pub(super) kill_grace: Duration,
    pub(super) health_interval: Duration,
    pub(super) health_timeout: Duration,
    pub(super) inactivity_limit: Duration,
    pub(super) max_age: Duration,
    pub(super) socket_directory: Option<PathBuf>,
    pub(super) observer: Option<Observer>,
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepError {
    /// Which.
    pub name: &'static str,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for KeepError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the setting `{}` {}", self.name, self.problem)
    }
}

impl Error for KeepError {}

impl Keep {
    /// No more than so many processes at a time, those that start and end included. A pool needs as many as it has workers: one that
    /// finds no process waits for one.
    pub fn up_to(max_workers: usize) -> Keep {
        Keep {
            max_workers,
            eviction: Eviction::default(),
            ready_timeout: Duration::from_secs(30),
            cancel_grace: Duration::from_millis(500),
            shutdown_grace: Duration::from_secs(10),
            kill_grace: Duration::from_secs(1),
            health_interval: Duration::from_secs(30),
            health_timeout: Duration::from_secs(10),
            inactivity_limit: Duration::from_secs(15 * 60),
            max_age: Duration::from_secs(3_600),
            socket_directory: None,
            observer: None,
        }
    }

    /// Which idle process makes room for one of another key (the one that was used longest ago).
    pub fn eviction(mut self, eviction: Eviction) -> Keep {
        self.eviction = eviction;
        self
    }

    /// How long a process may take to connect and to say that it is ready (30 seconds).
    pub fn ready_timeout(mut self, timeout: Duration) -> Keep {
        self.ready_timeout = timeout;
        self
    }

    /// How long a process has to stop a query that is cancelled before it is ended itself (half a second; never more than a third of
    /// the pool's `kill_grace`).
    pub fn cancel_grace(mut self, grace: Duration) -> Keep {
        self.cancel_grace = grace;
        self
    }

    /// How long a process has to end once it was told to, before it is killed (10 seconds).
    pub fn shutdown_grace(mut self, grace: Duration) -> Keep {
        self.shutdown_grace = grace;
        self
    }

    /// How long a process has between TERM and KILL where it has to go for another reason, such as a host that is frozen (1 second).
    pub fn kill_grace(mut self, grace: Duration) -> Keep {
        self.kill_grace = grace;
        self
    }

    /// How often a process is asked whether it is well, while it waits and while it works, whether it has just spoken or is silent
    /// (30 seconds).
    pub fn health_interval(mut self, interval: Duration) -> Keep {
        self.health_interval = interval;
        self
    }

    /// How long it has to say so; after that it is taken for dead (10 seconds).
    pub fn health_timeout(mut self, timeout: Duration) -> Keep {
        self.health_timeout = timeout;
        self
    }

    /// How long a process may wait for something to do before it ends (15 minutes).
    pub fn inactivity_limit(mut self, limit: Duration) -> Keep {
        self.inactivity_limit = limit;
        self
    }

    /// How old a process may become; it ends when it is done with what it has in hand (an hour).
    pub fn max_age(mut self, age: Duration) -> Keep {
        self.max_age = age;
        self
    }

    /// Where the sockets are to which workers connect: a directory that only this user may enter, which is made if it is not there
    /// (`workcrew` in `XDG_RUNTIME_DIR`, else `workcrew-<uid>` among temporary files).
    pub fn socket_directory(mut self, directory: impl Into<PathBuf>) -> Keep {
        self.socket_directory = Some(directory.into());
        self
    }

    /// Hears what becomes of the processes (nobody). It is called on the threads that look after them, and should return soon.
    pub fn observer(mut self, observer: impl Fn(&ProcessEvent<'_>) + Send + Sync + 'static) -> Keep {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// How long a process may live that waits for something to do, if the host cannot end it.
    pub(super) fn idle_limit(&self) -> Duration {
        self.inactivity_limit + self.shutdown_grace + BEYOND
    }

    /// Refuses what makes no sense.
    pub(super) fn check(&self) -> Result<(), KeepError> {
        if self.max_workers == 0 {
            return Err(KeepError { name: "max_workers", problem: "is 0, which lets nothing be done".to_owned() });
        }
        for (name, time) in [
            ("ready_timeout", self.ready_timeout),
            ("shutdown_grace", self.shutdown_grace),
            ("health_interval", self.health_interval),
            ("health_timeout", self.health_timeout),
            ("inactivity_limit", self.inactivity_limit),
            ("max_age", self.max_age),
        ] {
            if time.is_zero() {
                return Err(KeepError { name, problem: "is 0, which leaves no time at all".to_owned() });
            }
        }
        for (name, time) in [
            ("ready_timeout", self.ready_timeout),
            ("cancel_grace", self.cancel_grace),
            ("shutdown_grace", self.shutdown_grace),
            ("kill_grace", self.kill_grace),
            ("health_interval", self.health_interval),
            ("health_timeout", self.health_timeout),
            ("inactivity_limit", self.inactivity_limit),
            ("max_age", self.max_age),
        ] {
            if time > YEAR {
                return Err(KeepError { name, problem: format!("is {time:?}, which is longer than a year") });
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keep")
            .field("max_workers", &self.max_workers)
            .field("eviction", &self.eviction)
            .field("inactivity_limit", &self.inactivity_limit)
            .field("max_age", &self.max_age)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_what_is_said_and_what_makes_no_sense_is_refused() {
        let keep = Keep::up_to(2);
        assert_eq!(keep.check(), Ok(()));
        assert_eq!((keep.ready_timeout.as_secs(), keep.cancel_grace.as_millis()), (30, 500));
        assert_eq!((keep.shutdown_grace.as_secs(), keep.eviction), (10, Eviction::Lru));
        assert_eq!((keep.inactivity_limit.as_secs(), keep.max_age.as_secs()), (900, 3_600));
        let refused = |keep: Keep| keep.check().unwrap_err().to_string();
        assert_eq!(refused(Keep::up_to(0)), "the setting `max_workers` is 0, which lets nothing be done");
        assert_eq!(
            refused(Keep::up_to(1).max_age(Duration::ZERO)),
            "the setting `max_age` is 0, which leaves no time at all"
        );
        assert!(refused(Keep::up_to(1).cancel_grace(Duration::MAX)).ends_with("longer than a year"));
    }
}
