//! Adaptive concurrency: a pool that finds out how many workers its provider bears ([`Scaling::Adaptive`](super::Scaling::Adaptive)).
//!
//! Each attempt that ends gives a [sign](Sign). What follows from it is for the [`level`] to say, under the ready lock; that it changed is told here, with
//! no lock held. To change it is what [`set_max_workers`](WorkPool::set_max_workers) does: workers that are too many finish what they have.

mod level;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub(super) use self::level::Level;
use super::WorkPool;
use super::core::Core;
use super::execution::Execution;
use super::observe::Event;
use super::slot;
use crate::attempt::{Failure, FailureKind};
use crate::clock::Moment;
use crate::executor::{Then, kinds};

/// That a pool which finds out how many workers its provider bears may have more or fewer of them from then on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Adaptation {
    /// When, by the calendar.
    pub at: DateTime<Utc>,
    /// How many there could be before.
    pub from: usize,
    /// How many there may be since.
    pub to: usize,
    /// Why.
    pub reason: AdaptationReason,
}

/// Why a pool may have more or fewer workers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AdaptationReason {
    /// As many as there could be had something to do, and the provider refused none of it.
    Grown,
    /// The provider refused an attempt as one of too many, with this kind of failure.
    Refused(FailureKind),
    /// Somebody changed [how many there may ever be](WorkPool::set_max_workers).
    Bounded,
}

impl fmt::Display for AdaptationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdaptationReason::Grown => f.write_str("nothing was refused"),
            AdaptationReason::Refused(kind) => write!(f, "the provider asked for fewer ({kind})"),
            AdaptationReason::Bounded => f.write_str("`max_workers` was changed"),
        }
    }
}

impl WorkPool {
    /// When and why this pool could have more or fewer workers, the oldest first: the last 1,000 changes. Empty unless it finds out how many its
    /// provider bears ([`Scaling::Adaptive`](super::Scaling::Adaptive)).
    ///
    /// ```
    /// use workcrew::executor::kinds;
    /// use workcrew::{AdaptationReason, Call, ExecuteError, FailureKind, NewUnit, RetryPolicy, Scaling, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let executor = |call: &Call<'_>| match (call.unit().id.as_str(), call.attempt_number()) {
    ///     ("second", 1) => Err(ExecuteError::retry("too many at a time").kind(kinds::RATE_LIMITED)),
    ///     _ => Ok(WorkResult::empty()),
    /// };
    /// let builder = WorkPool::builder(job.id, executor, repository).retry(RetryPolicy::immediate());
    /// let pool = builder.scaling(Scaling::ADAPTIVE).max_workers(16).start()?;
    /// for id in ["first", "second"] {
    ///     pool.enqueue(NewUnit::new(id), "go")?.wait()?;
    /// }
    /// let changes: Vec<_> = pool.adaptations().into_iter().map(|change| (change.from, change.to, change.reason)).collect();
    /// let refused = AdaptationReason::Refused(FailureKind::new(kinds::RATE_LIMITED));
    /// assert_eq!(changes, [(1, 2, AdaptationReason::Grown), (2, 1, refused)]);
    /// assert_eq!(pool.stats().allowed_workers, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adaptations(&self) -> Vec<Adaptation> {
        self.core.ready.adaptations()
    }
}

/// What the end of an attempt says of how many at a time its provider bears. Most failures say nothing of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It was answered.
    Well,
    /// It was one of too many.
    Refused {
        kind: FailureKind,
        /// How long nobody is to ask again.
        pause: Duration,
    },
}

impl Sign {
    /// What follows from how the executor came back. That a quota is used up says nothing: it would be with one at a time too.
    pub(super) fn of(failure: Option<&Failure>, then: Then, now: Moment) -> Option<Sign> {
        let Some(failure) = failure else { return Some(Sign::Well) };
        let pause = match then {
            Then::RetryAfter(pause) => pause,
            Then::Hold { until: Some(until) } => (until - now.wall).to_std().unwrap_or_default(),
            Then::Hold { until: None } | Then::Retry | Then::GiveUp | Then::Replace => Duration::ZERO,
        };
        let is_refusal = [kinds::RATE_LIMITED, kinds::OVERLOADED].contains(&failure.kind.as_str());
        is_refusal.then(|| Sign::Refused { kind: failure.kind.clone(), pause })
    }
}

/// An attempt has ended with this sign. Done before its end is stored: nothing is to begin meanwhile that would be refused too.
pub(super) fn learn(core: &Core, execution: &Execution, sign: Option<&Sign>) {
    if !core.settings.scaling.is_adaptive() {
        return;
    }
    if let Some((adaptation, idle)) = core.ready.learn(execution.run, sign, core.clock.now()) {
        slot::retire(core, idle);
        tell(core, &adaptation);
    }
}

/// Tells that there may be more or fewer workers. That there may be fewer is news for others.
pub(super) fn tell(core: &Core, adaptation: &Adaptation) {
    let Adaptation { from, to, reason, .. } = adaptation;
    let is_cut = matches!(reason, AdaptationReason::Refused(_));
    let level = if is_cut { log::Level::Info } else { log::Level::Debug };
    let (label, workers) = (&core.settings.label, if *to == 1 { "worker" } else { "workers" });
    log::log!(level, "{}: the pool `{label}` may have {to} {workers}, not {from}: {reason}", core.job.id);
    core.callbacks.tell_of(|| Event::Adapted { from: *from, to: *to, reason });
    if is_cut {
        core.heartbeat.wake();
    }
}
