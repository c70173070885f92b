//! What a pool tells while it works: callbacks for outcomes, and an observer for everything else.
//!
//! User code is called with no lock held, on the thread on which it happened, and its panics end here.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Serialize, Serializer};

use super::adaptive::AdaptationReason;
use super::lock::assert_none_held;
use crate::attempt::{Failure, Outcome};
use crate::clock::milliseconds;
use crate::conversation::Message;
use crate::executor::WorkResult;
use crate::money::Charge;
use crate::panics;
use crate::unit::{UnitId, UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// Something that happened in a pool.
///
/// ```
/// use std::sync::mpsc;
/// use workcrew::{Call, Event, MemoryRepository, NewJob, NewUnit, Repository, WorkPool, WorkResult};
///
/// let (send, events) = mpsc::channel();
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("greetings"))?;
/// let pool = WorkPool::builder(job.id, |_: &Call<'_>| Ok(WorkResult::text("hello")), repository)
///     .observer(move |event: &Event<'_>| {
///         if let Event::AttemptEnded { unit_id, status, .. } = event {
///             send.send(format!("{unit_id}: {status}")).unwrap();
///         }
///     })
///     .start()?;
/// pool.enqueue(NewUnit::new("ada"), "Greet Ada.")?;
/// assert_eq!(events.recv()?, "ada: COMPLETED");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// As JSON it is an object whose `event` names it, such as `{"event":"unit_ended","unit_id":"ada","status":"COMPLETED"}`.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event<'a> {
    /// An execution begins. An attempt that takes [the answer of another](super::WorkPoolBuilder::same_work_once) is not executed.
    AttemptStarted {
        /// Of which unit.
        unit_id: &'a UnitId,
        /// The how-manieth.
        attempt_number: u32,
        /// On which worker.
        worker_id: &'a WorkerId,
    },
    /// Something was said.
    Said {
        /// Of which unit.
        unit_id: &'a UnitId,
        /// In which attempt.
        attempt_number: u32,
        /// What.
        message: &'a Message,
    },
    /// An execution ended, and that is stored.
    AttemptEnded {
        /// Of which unit.
        unit_id: &'a UnitId,
        /// The how-manieth.
        attempt_number: u32,
        /// On which worker.
        worker_id: &'a WorkerId,
        /// How.
        outcome: Outcome,
        /// Why it failed.
        failure: Option<&'a Failure>,
        /// What it used.
        charges: &'a [Charge],
        /// What the unit is now: PENDING if another attempt follows.
        status: UnitStatus,
        /// The pause before that attempt.
        #[serde(rename = "retry_after_ms", serialize_with = "as_milliseconds")]
        retry_after: Option<Duration>,
    },
    /// An execution did not stop when its time was up. Its thread was left behind.
    ThreadAbandoned {
        /// Of which unit.
        unit_id: &'a UnitId,
        /// The worker, which goes on with another thread unless there are too many left behind already.
        worker_id: &'a WorkerId,
        /// Whether it goes on.
        is_replaced: bool,
    },
    /// A unit waits in line, because no worker is free.
    UnitQueued {
        /// Which.
        unit_id: &'a UnitId,
    },
    /// A unit has ended, also one that was never executed, and that is stored. Its callback follows.
    UnitEnded {
        /// Which.
        unit_id: &'a UnitId,
        /// How.
        status: UnitStatus,
    },
    /// A worker is up, and takes units.
    WorkerReady {
        /// Which.
        worker_id: &'a WorkerId,
    },
    /// A worker did not come up.
    WorkerStartFailed {
        /// Which.
        worker_id: &'a WorkerId,
        /// Why.
        reason: &'a str,
    },
    /// A worker crashed with a unit in hand, and takes nothing more for now.
    WorkerTainted {
        /// Which.
        worker_id: &'a WorkerId,
        /// How.
        reason: &'a str,
    },
    /// A worker has ended: the pool stops, or it was idle for too long, worn out, one too many, or crashed.
    WorkerEnded {
        /// Which.
        worker_id: &'a WorkerId,
        /// Whether it ended because it crashed or did not come up.
        has_crashed: bool,
    },
    /// An executor has held the pool: it starts nothing for a while.
    Held {
        /// Why.
        reason: &'a str,
        /// Until when; `None` means until `resume`.
        until: Option<DateTime<Utc>>,
    },
    /// The pool may have more or fewer workers ([`Scaling::Adaptive`](super::Scaling::Adaptive)). If that changes several times at once, these may be told in
    /// another order; [`adaptations`](super::WorkPool::adaptations) has them in theirs.
    Adapted {
        /// How many there could be before.
        from: usize,
        /// How many there may be now.
        to: usize,
        /// Why.
        reason: &'a AdaptationReason,
    },
}

fn as_milliseconds<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(milliseconds).serialize(serializer)
}

/// Sees what happens in a pool, event by event, on the thread on which it happens. A closure is an observer.
///
/// It should return soon: whoever tells it waits, which is the worker, for [`UnitQueued`](Event::UnitQueued) the caller, and for what
/// happened without a worker the one thread of the pool that tells of such.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use workcrew::{Event, Observer, Outcome};
///
/// #[derive(Default)]
/// struct Failures(AtomicU32);
///
/// impl Observer for Failures {
///     fn on_event(&self, event: &Event<'_>) {
///         if let Event::AttemptEnded { outcome: Outcome::Failed, .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Called for each event.
    fn on_event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

pub(super) type OnComplete = Box<dyn Fn(&WorkUnit, &WorkResult) + Send + Sync>;
pub(super) type OnFailed = Box<dyn Fn(&WorkUnit, &Failure) + Send + Sync>;
pub(super) type OnCancelled = Box<dyn Fn(&WorkUnit) + Send + Sync>;

/// The user's code that a pool calls, apart from the executor.
#[derive(Default)]
pub(super) struct Callbacks {
    pub(super) complete: Option<OnComplete>,
    pub(super) failed: Option<OnFailed>,
    pub(super) cancelled: Option<OnCancelled>,
    pub(super) observer: Option<Box<dyn Observer>>,
}

impl Callbacks {
    /// Tells the observer, if there is one.
    pub(super) fn tell_of<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(observer) = &self.observer {
            guarded("observer", || observer.on_event(&event()));
        }
    }

    /// Whether somebody wants to know of a unit that ended like this.
    pub(super) fn wants(&self, status: UnitStatus) -> bool {
        match status {
            UnitStatus::Completed => self.complete.is_some(),
            UnitStatus::Failed => self.failed.is_some(),
            UnitStatus::Cancelled => self.cancelled.is_some(),
            _ => false,
        }
    }

    /// Calls the one callback for how a unit ended.
    pub(super) fn unit_ended(&self, unit: &WorkUnit, result: &WorkResult) {
        match unit.status {
            UnitStatus::Completed => {
                if let Some(callback) = &self.complete {
                    guarded("on_unit_complete", || callback(unit, result));
                }
            }
            UnitStatus::Failed => {
                if let (Some(callback), Some(failure)) = (&self.failed, &unit.failure) {
                    guarded("on_unit_failed", || callback(unit, failure));
                }
            }
            UnitStatus::Cancelled => {
                if let Some(callback) = &self.cancelled {
                    guarded("on_unit_cancelled", || callback(unit));
                }
            }
            _ => {}
        }
    }
}

impl std::fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}

/// Calls user code. A panic in it is logged, and harms nothing.
fn guarded(whose: &str, call: impl FnOnce()) {
    assert_none_held();
    panics::contain(whose, call);
}
