//! How strictly units keep to the worker that their session lives on.

use serde::{Deserialize, Serialize};

/// How strictly units with the same [key](crate::NewUnit::affinity_key) keep to the same worker.
///
/// | the worker that had the last unit with this key | `Hint` | `StrictQueue` | `StrictFailFast` |
/// |---|---|---|---|
/// | has room | gets it | gets it | gets it |
/// | is busy | another gets it | it waits for that worker, even if others are free | [`WorkerBusy`](crate::Refusal::WorkerBusy), at once |
/// | has ended, or is forgotten | another gets it | another gets it | another gets it |
///
/// A unit that names no key but a [session to resume](crate::NewUnit::resume_session) has that for one, and what an execution
/// [tells](crate::Call::session) of its session counts too: a unit that carries it on goes where it is.
///
/// Strict units with the same key are never on two workers at once, and one goes after the other: of those that wait the larger priority
/// first, then the one that was stored first; one that is to be tried again goes before those that came later. What is in this order are their
/// claims and [`AttemptStarted`](crate::Event::AttemptStarted). On a worker that executes several units at a time the next begins while the one
/// before is executed, so that the calls of the executor overlap, and may come in another order; for one at a time give workers a
/// capacity of one. What waits for its worker keeps no other unit waiting, and when that worker ends, or takes nothing any more, it goes to
/// another as soon as the last of its key has left the old one.
///
/// ```
/// use workcrew::{Affinity, Call, NewUnit, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let pool = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.worker_id().as_str())), repository)
///     .affinity(Affinity::StrictQueue)
///     .start()?;
/// let turns: Vec<_> = (1..=3)
///     .map(|turn| pool.enqueue(NewUnit::new(format!("turn {turn}")).affinity_key("the chat with ada"), "go"))
///     .collect::<Result<_, _>>()?;
/// let workers: Vec<_> = turns.iter().map(|turn| turn.wait().map(|unit| unit.output)).collect::<Result<_, _>>()?;
/// assert!(workers.iter().all(|worker| *worker == workers[0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Affinity {
    /// The same worker if it has room, otherwise any.
    #[default]
    Hint,
    /// The same worker, waited for if it is busy.
    StrictQueue,
    /// The same worker, or none: if it is busy the unit is refused. Once it was taken it is treated as by
    /// [`StrictQueue`](Affinity::StrictQueue), also when it is to be tried again.
    StrictFailFast,
}
