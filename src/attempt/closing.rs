//! What the end of an attempt does to its unit: decided here, once, for every repository.

use std::time::Duration;

use super::{Attempt, Ending, Failure, FailureKind, Next, Outcome};
use crate::unit::{Change, UnitStatus};

/// How often an attempt may be given back without being counted.
pub const RELEASE_LIMIT: u32 = 100;

/// What the end of an attempt does to its unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Closing {
    pub(crate) change: Change,
    pub(crate) outcome: Outcome,
    /// Whether it counts against the unit's limit.
    pub(crate) is_counted: bool,
    /// When the next attempt may begin, counted from now.
    pub(crate) delay: Option<Duration>,
    /// Why the attempt ended as it did.
    pub(crate) failure: Option<Failure>,
}

impl Closing {
    /// Says why an attempt ended. One that is given back keeps what it said of that itself.
    pub(crate) fn explain(&self, attempt: &mut Attempt) {
        if self.failure.is_some() || self.outcome != Outcome::Released {
            attempt.failure.clone_from(&self.failure);
        }
    }
}

/// The numbers of a unit on which the end of its attempt depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    pub(crate) status: UnitStatus,
    pub(crate) attempts_used: u32,
    pub(crate) max_retries: u32,
    pub(crate) releases: u32,
}

impl Standing {
    /// The executor reported.
    pub(crate) fn finished(self, ending: &Ending) -> Closing {
        let failure = ending.failure().cloned();
        let (change, is_counted, delay) = match ending {
            _ if self.status == UnitStatus::CancelRequested => (Change::EndCancelled, true, None),
            Ending::Completed => (Change::Complete, true, None),
            // Nobody asked for it, so the work is still wanted.
            Ending::Cancelled => return self.given_back(Outcome::Cancelled, None),
            Ending::Failed { next, .. } | Ending::TimedOut { next, .. } => match next {
                Next::Retry { after } if self.has_attempt_left() => (Change::Retry, true, Some(*after)),
                Next::Retry { .. } | Next::GiveUp => (Change::Fail, true, None),
            },
        };
        Closing { change, outcome: ending.outcome(), is_counted, delay, failure }
    }

    /// The worker gave it back.
    pub(crate) fn released(self, after: Option<Duration>) -> Closing {
        self.given_back(Outcome::Released, after)
    }

    fn given_back(self, outcome: Outcome, delay: Option<Duration>) -> Closing {
        let is_counted = self.releases >= RELEASE_LIMIT;
        let given_back = Closing { change: Change::Release, outcome, is_counted, delay, failure: None };
        if self.status == UnitStatus::CancelRequested {
            Closing { change: Change::EndCancelled, is_counted: false, delay: None, ..given_back }
        } else if is_counted && !self.has_attempt_left() {
            let message = format!("given back more than {RELEASE_LIMIT} times");
            let failure = Some(Failure::new(FailureKind::RELEASED, message));
            Closing { change: Change::Fail, delay: None, failure, ..given_back }
        } else {
            given_back
        }
    }

    /// The worker vanished.
    pub(crate) fn lost(self) -> Closing {
        let change = match self.status {
            UnitStatus::CancelRequested => Change::EndCancelled,
            _ if self.has_attempt_left() => Change::Expire,
            _ => Change::ExpireFinally,
        };
        let failure = Some(Failure::new(FailureKind::LOST, "the worker vanished"));
        Closing { change, outcome: Outcome::Lost, is_counted: true, delay: None, failure }
    }

    /// Whether another attempt may follow the one that ends now.
    fn has_attempt_left(self) -> bool {
        self.attempts_used < self.max_retries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(status: UnitStatus, attempts_used: u32) -> Standing {
        Standing { status, attempts_used, max_retries: 3, releases: 0 }
    }

    fn retry() -> Ending {
        let failure = Failure::new(FailureKind::EXECUTOR, "no");
        Ending::Failed { failure, next: Next::Retry { after: Duration::from_secs(1) } }
    }

    #[test]
    fn three_retries_make_four_executions() {
        for used in 0..3 {
            assert_eq!(standing(UnitStatus::Processing, used).finished(&retry()).change, Change::Retry);
            assert_eq!(standing(UnitStatus::Processing, used).lost().change, Change::Expire);
        }
        assert_eq!(standing(UnitStatus::Processing, 3).finished(&retry()).change, Change::Fail);
        assert_eq!(standing(UnitStatus::Processing, 3).lost().change, Change::ExpireFinally);
    }

    #[test]
    fn whatever_ends_after_a_cancel_request_ends_cancelled() {
        let standing = standing(UnitStatus::CancelRequested, 0);
        let endings = [Ending::Completed, Ending::Cancelled, retry()];
        assert!(endings.iter().all(|ending| standing.finished(ending).change == Change::EndCancelled));
        assert_eq!(standing.released(None).change, Change::EndCancelled);
        assert_eq!(standing.lost().change, Change::EndCancelled);
        // A success that comes too late for the unit stays on the attempt.
        assert_eq!(standing.finished(&Ending::Completed).outcome, Outcome::Completed);
    }

    #[test]
    fn giving_back_is_free_a_hundred_times_and_then_it_counts() {
        let mut standing = standing(UnitStatus::Processing, 3);
        standing.releases = RELEASE_LIMIT - 1;
        assert!(!standing.released(None).is_counted);
        assert_eq!(standing.released(None).change, Change::Release);
        standing.releases = RELEASE_LIMIT;
        assert!(standing.released(None).is_counted);
        assert_eq!(standing.released(None).change, Change::Fail);
        standing.attempts_used = 2;
        assert_eq!(standing.released(None).change, Change::Release);
    }

    #[test]
    fn every_closing_is_a_change_that_the_unit_can_make() {
        for status in [UnitStatus::Assigned, UnitStatus::Processing, UnitStatus::CancelRequested] {
            let standing = standing(status, 0);
            let mut closings = vec![standing.released(None), standing.lost()];
            closings.extend([Ending::Cancelled, retry()].iter().map(|ending| standing.finished(ending)));
            for closing in closings {
                assert!(status.after(closing.change).is_some(), "{status} {closing:?}");
            }
        }
    }
}
