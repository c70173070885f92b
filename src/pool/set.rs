//! Several pools in one program: by name, with one of them for calls that name none.
//!
//! | a pool that | is | the others |
//! |---|---|---|
//! | cannot be built: a bad setting, no such job, a repository that fails | broken from the beginning | are built |
//! | cannot be started: the repository or the system fails | broken from then on | are started |
//! | does not come up: its init hook fails, or all its first workers do | broken from then on | come up |
//!
//! Whoever asks for a broken pool is told why it is. What is wrong with the set itself, such as a name that is there twice, is
//! an error of [`PoolSetBuilder::build`], which then builds nothing.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::builder::WorkPoolBuilder;
use super::error::{Refusal, StartError, StopError, SubmitError, WaitError};
use super::handle::UnitHandle;
use super::ready::{Completion, Ready, Stop};
use super::residence::{REMEMBERED_LIMIT, Residences};
use super::stats::{PoolPhase, PoolStats, Summary};
use super::{DROPPED, WorkPool, deadline, inside, stopping};
use crate::clock::Clock;
use crate::panics;
use crate::prompt::Prompt;
use crate::sync::atomic::Ordering;
use crate::unit::{NewUnit, check_name, shortened};
use crate::worker::WorkerId;

/// The longest name of a pool.
const NAME_LIMIT_BYTES: usize = 200;

/// How many names an error shows.
const SHOWN_NAMES: usize = 5;

/// Several pools, each with a name. They may have different executors, jobs and repositories, or the same.
///
/// The first is the default, which serves the calls that name none.
///
/// ```
/// use std::sync::Arc;
/// use workcrew::{Call, MemoryRepository, NewJob, NewUnit, PoolSet, Repository, Stop, WorkPool, WorkResult};
///
/// let repository: Arc<dyn Repository> = MemoryRepository::new().into();
/// let drafts = repository.create_job(&NewJob::named("drafts"))?;
/// let checks = repository.create_job(&NewJob::named("checks"))?;
///
/// let check = |call: &Call<'_>| Ok(WorkResult::text(format!("{} is fine", call.prompt())));
/// let checking = WorkPool::builder(checks.id, check, Arc::clone(&repository)).max_workers(1);
/// // That is how the callbacks of one pool reach another.
/// let to_check = checking.handle();
///
/// let write = |call: &Call<'_>| Ok(WorkResult::text(call.prompt().to_uppercase()));
/// let writing = WorkPool::builder(drafts.id, write, repository).on_unit_complete(move |unit, result| {
///     let draft = result.output.as_deref().unwrap_or_default();
///     to_check.enqueue(NewUnit::new(unit.id.as_str()), draft).expect("there is room");
/// });
///
/// let pools = PoolSet::builder().pool("writing", writing).pool("checking", checking).start()?;
/// assert!(pools.await_init_complete().values().all(Result::is_ok));
/// pools.enqueue(NewUnit::new("a"), "hello")?;
/// let other = pools.enqueue_to("checking", NewUnit::new("b"), "goodbye")?;
/// assert_eq!(other.wait()?.output.as_deref(), Some("goodbye is fine"));
///
/// pools.wait_for_completion();
/// assert_eq!(pools.stats()["checking"].completed, 2);
/// for (name, summary) in pools.stop(Stop::Drain) {
///     println!("{name}: {}", summary?);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropped without being stopped, all its pools end as one that is [dropped](WorkPool) does, at the same time.
pub struct PoolSet {
    /// In the order in which they were named.
    members: Vec<Member>,
    /// Which of them is the default.
    default: usize,
    residences: Arc<Residences>,
    /// The default pool's. All should have the same.
    clock: Arc<dyn Clock>,
}

impl PoolSet {
    /// A builder of a set without pools.
    pub fn builder() -> PoolSetBuilder {
        PoolSetBuilder::default()
    }

    /// Starts all pools that have not been started, one after the other, and does not wait for them to come up: see
    /// [`WorkPool::start`]. One that cannot be started is logged, and stops no other.
    ///
    /// Returns what is [broken](PoolSet::broken) by then. Whether the others come up is what
    /// [`await_init_complete`](PoolSet::await_init_complete) tells.
    pub fn start(&self) -> Vec<PoolSetError> {
        for member in &self.members {
            member.start();
        }
        self.broken()
    }

    /// The pool of a name.
    ///
    /// # Errors
    ///
    /// [`PoolNotFound`](PoolSetError::PoolNotFound) if there is none, [`PoolBroken`](PoolSetError::PoolBroken) if it cannot be used.
    pub fn pool(&self, name: &str) -> Result<&WorkPool, PoolSetError> {
        let member = self.members.iter().find(|member| member.name == name);
        member.ok_or_else(|| PoolSetError::not_found(name, self.names()))?.pool()
    }

    /// The pool for calls that name none. It stays the default also if it is broken.
    ///
    /// # Errors
    ///
    /// [`PoolBroken`](PoolSetError::PoolBroken) if it cannot be used.
    pub fn default_pool(&self) -> Result<&WorkPool, PoolSetError> {
        self.members[self.default].pool()
    }

    /// What the default is called.
    pub fn default_name(&self) -> &str {
        &self.members[self.default].name
    }

    /// The names of all pools, broken ones included, in the order in which they were given.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    /// The pools that cannot be used, each as a [`PoolBroken`](PoolSetError::PoolBroken).
    pub fn broken(&self) -> Vec<PoolSetError> {
        self.members.iter().filter_map(|member| member.pool().err()).collect()
    }

    /// As [`WorkPool::submit_work_unit`] of the default pool.
    ///
    /// # Errors
    ///
    /// As there, and [`PoolBroken`](Refusal::PoolBroken) if that pool is broken.
    pub fn submit_work_unit(
        &self,
        unit: impl Into<NewUnit>,
        prompt: impl Into<Prompt>,
    ) -> Result<UnitHandle, SubmitError> {
        give(self.default_pool(), unit.into(), prompt.into(), WorkPool::submit_work_unit)
    }

    /// As [`WorkPool::submit_work_unit`] of the pool of this name.
    ///
    /// # Errors
    ///
    /// As there, and [`PoolNotFound`](Refusal::PoolNotFound) if there is no such pool, [`PoolBroken`](Refusal::PoolBroken) if it is
    /// broken. The unit comes back with the error.
    pub fn submit_to(
        &self,
        name: &str,
        unit: impl Into<NewUnit>,
        prompt: impl Into<Prompt>,
    ) -> Result<UnitHandle, SubmitError> {
        give(self.pool(name), unit.into(), prompt.into(), WorkPool::submit_work_unit)
    }

    /// As [`WorkPool::enqueue`] of the default pool.
    ///
    /// # Errors
    ///
    /// As there, and [`PoolBroken`](Refusal::PoolBroken) if that pool is broken.
    pub fn enqueue(&self, unit: impl Into<NewUnit>, prompt: impl Into<Prompt>) -> Result<UnitHandle, SubmitError> {
        give(self.default_pool(), unit.into(), prompt.into(), WorkPool::enqueue)
    }

    /// As [`WorkPool::enqueue`] of the pool of this name.
    ///
    /// # Errors
    ///
    /// As there, and [`PoolNotFound`](Refusal::PoolNotFound) if there is no such pool, [`PoolBroken`](Refusal::PoolBroken) if it is
    /// broken. The unit comes back with the error.
    pub fn enqueue_to(
        &self,
        name: &str,
        unit: impl Into<NewUnit>,
        prompt: impl Into<Prompt>,
    ) -> Result<UnitHandle, SubmitError> {
        give(self.pool(name), unit.into(), prompt.into(), WorkPool::enqueue)
    }

    /// As [`WorkPool::wait_for_available_slot`] of the default pool; `false` at once if that is broken, and on a thread of any of
    /// the pools.
    pub fn wait_for_available_slot(&self) -> bool {
        !self.is_inside() && self.default_pool().is_ok_and(WorkPool::wait_for_available_slot)
    }

    /// The same, but for no longer than that.
    pub fn wait_for_available_slot_timeout(&self, timeout: Duration) -> bool {
        !self.is_inside() && self.default_pool().is_ok_and(|pool| pool.wait_for_available_slot_timeout(timeout))
    }

    /// Where what a session or an affinity key stands for is kept: the name of the pool, and the worker that has it.
    /// `None` if nobody has it, or not any more.
    pub fn home_of(&self, key: &str) -> Option<(String, WorkerId)> {
        self.residences.at(key, self.clock.now().boot_ms)
    }

    /// Waits for the first worker of each pool, as [`WorkPool::await_ready`] does, and tells how that went for each.
    ///
    /// On a thread of any of the pools nothing is waited for: [`WouldDeadlock`](WaitError::WouldDeadlock).
    pub fn await_ready(&self) -> BTreeMap<String, Result<(), WaitError>> {
        self.await_each(|ready| ready.await_ready(None))
    }

    /// The same, but for no longer than that in all.
    pub fn await_ready_timeout(&self, timeout: Duration) -> BTreeMap<String, Result<(), WaitError>> {
        let until = deadline(Some(timeout));
        self.await_each(|ready| ready.await_ready(until))
    }

    /// Waits until each pool has come up, as [`WorkPool::await_init_complete`] does, and tells how that went for each.
    ///
    /// On a thread of any of the pools nothing is waited for: [`WouldDeadlock`](WaitError::WouldDeadlock).
    pub fn await_init_complete(&self) -> BTreeMap<String, Result<(), WaitError>> {
        self.await_each(|ready| ready.await_init_complete(None))
    }

    /// The same, but for no longer than that in all.
    pub fn await_init_complete_timeout(&self, timeout: Duration) -> BTreeMap<String, Result<(), WaitError>> {
        let until = deadline(Some(timeout));
        self.await_each(|ready| ready.await_init_complete(until))
    }

    fn await_each(&self, wait: impl Fn(&Ready) -> Result<(), WaitError>) -> BTreeMap<String, Result<(), WaitError>> {
        let is_inside = self.is_inside();
        let await_one = |member: &Member| match &member.built {
            Err(why) => Err(WaitError::InitFailed(why.reason.clone())),
            Ok(_) if is_inside => Err(WaitError::WouldDeadlock),
            Ok(pool) => wait(&pool.core.ready),
        };
        self.members.iter().map(|member| (member.name.clone(), await_one(member))).collect()
    }

    /// Waits until everything that the pools accepted has ended and been reported, in all of them at the same time: what the
    /// callbacks of one give to another is waited for too. Tells how that went for each; a broken one is
    /// [`Stopped`](Completion::Stopped).
    ///
    /// On a thread of any of the pools nothing is waited for: [`WouldDeadlock`](Completion::WouldDeadlock).
    pub fn wait_for_completion(&self) -> BTreeMap<String, Completion> {
        self.wait_for_completion_until(None)
    }

    /// The same, but for no longer than that in all.
    pub fn wait_for_completion_timeout(&self, timeout: Duration) -> BTreeMap<String, Completion> {
        self.wait_for_completion_until(deadline(Some(timeout)))
    }

    fn wait_for_completion_until(&self, until: Option<Instant>) -> BTreeMap<String, Completion> {
        let is_inside = self.is_inside();
        let wait = |member: &Member| match &member.built {
            Err(_) => Completion::Stopped,
            Ok(_) if is_inside => Completion::WouldDeadlock,
            Ok(pool) => pool.core.ready.wait_for_completion(until),
        };
        loop {
            // Each is empty at some time from here on. If none takes anything until all have been, they were so all at once.
            let accepted = self.accepted();
            let ends: BTreeMap<_, _> = self.members.iter().map(|member| (member.name.clone(), wait(member))).collect();
            let is_time_up = ends.values().any(|end| *end == Completion::TimedOut);
            if is_inside || is_time_up || self.accepted() == accepted {
                return ends;
            }
        }
    }

    /// How many units each pool has taken upon itself.
    fn accepted(&self) -> Vec<u64> {
        self.built().map(|(_, pool)| pool.stats().accepted).collect()
    }

    /// What the pools are doing and have done, each at one moment. One that could not be built does nothing, and is not there.
    pub fn stats(&self) -> BTreeMap<String, PoolStats> {
        self.built().map(|(name, pool)| (name.to_owned(), pool.stats())).collect()
    }

    /// Stops all pools at the same time, and waits until all their threads have ended: see [`WorkPool::stop`]. Tells how that went for
    /// each that was built. On a thread of any of the pools it only asks for it and returns.
    pub fn stop(&self, stop: Stop) -> BTreeMap<String, Result<Summary, StopError>> {
        self.stop_until(stop, None)
    }

    /// The same, but waits for no longer than that in all; the pools go on stopping.
    pub fn stop_timeout(&self, stop: Stop, timeout: Duration) -> BTreeMap<String, Result<Summary, StopError>> {
        self.stop_until(stop, deadline(Some(timeout)))
    }

    fn stop_until(&self, stop: Stop, until: Option<Instant>) -> BTreeMap<String, Result<Summary, StopError>> {
        let why = stop.to_string();
        self.begin_stop(|_| stop, &why);
        let until = if self.is_inside() { Some(Instant::now()) } else { until };
        let left = || until.map(|until| until.saturating_duration_since(Instant::now()));
        self.built().map(|(name, pool)| (name.to_owned(), pool.stop_until(stop, left(), &why))).collect()
    }

    /// All begin to stop before any has to wait for its repository, which may not answer.
    fn begin_stop(&self, stop: impl Fn(&WorkPool) -> Stop, why: &str) {
        let pools = || self.built().map(|(_, pool)| pool);
        let marked: Vec<_> = pools().map(|pool| stopping::mark_stop(&pool.core, stop(pool), why)).collect();
        for (pool, waiting) in pools().zip(marked) {
            stopping::leave_waiting(&pool.core, waiting);
        }
    }

    /// The pools that were built, whatever became of them.
    fn built(&self) -> impl Iterator<Item = (&str, &WorkPool)> {
        self.members.iter().filter_map(|member| Some((member.name.as_str(), member.built.as_ref().ok()?)))
    }

    /// Whether this thread belongs to one of the pools. Two such threads, of two pools, could wait for each other for ever.
    fn is_inside(&self) -> bool {
        self.built().any(|(_, pool)| inside::is_inside(pool.core.number))
    }
}

impl Drop for PoolSet {
    fn drop(&mut self) {
        // Each is waited for when it is dropped itself, and by then all have begun.
        self.begin_stop(WorkPool::stop_when_dropped, DROPPED);
        // On a thread of one of them none is: two such threads could wait for each other.
        if self.is_inside() {
            self.built().for_each(|(_, pool)| pool.is_left.store(true, Ordering::Relaxed));
        }
    }
}

impl fmt::Debug for PoolSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolSet").field("default", &self.default_name()).field("members", &self.members).finish()
    }
}

/// Gives a unit to a pool, or back.
fn give(
    pool: Result<&WorkPool, PoolSetError>,
    unit: NewUnit,
    prompt: Prompt,
    give: impl FnOnce(&WorkPool, NewUnit, Prompt) -> Result<UnitHandle, SubmitError>,
) -> Result<UnitHandle, SubmitError> {
    let reason = match pool {
        Ok(pool) => return give(pool, unit, prompt),
        Err(PoolSetError::PoolNotFound { name, .. }) => Refusal::PoolNotFound(name),
        Err(PoolSetError::PoolBroken { name, reason, .. }) => Refusal::PoolBroken { name, reason },
        Err(other) => unreachable!("a set that was built has no other errors: {other}"),
    };
    Err(SubmitError::unseen(unit, prompt, reason))
}

/// Builds a [`PoolSet`]; made by [`PoolSet::builder`].
#[derive(Debug, Default)]
#[must_use = "a builder does nothing until it builds"]
pub struct PoolSetBuilder {
    pools: Vec<(String, WorkPoolBuilder)>,
    default: Option<String>,
}

impl PoolSetBuilder {
    /// Adds a pool. Its name is also its [`label`](WorkPoolBuilder::label), unless it has one.
    pub fn pool(mut self, name: impl Into<String>, builder: WorkPoolBuilder) -> Self {
        self.pools.push((name.into(), builder));
        self
    }

    /// Which pool serves the calls that name none (the first).
    pub fn default_pool(mut self, name: impl Into<String>) -> Self {
        self.default = Some(name.into());
        self
    }

    /// Pools that wait to be started. One that cannot be built is logged, and is [broken](PoolSet::broken).
    ///
    /// # Errors
    ///
    /// If there is no pool, if a name is there twice or cannot be one, or if the default is none of them.
    pub fn build(self) -> Result<PoolSet, PoolSetError> {
        let default = self.check()?;
        let residences = Arc::new(Residences::new(REMEMBERED_LIMIT));
        let clock = self.pools[default].1.shared_clock();
        let build = |(name, builder): (String, WorkPoolBuilder)| Member::build(builder.named(&name, &residences), name);
        let members = self.pools.into_iter().map(build).collect();
        Ok(PoolSet { members, default, residences, clock })
    }

    /// Pools that are on their way up: see [`PoolSet::start`].
    ///
    /// # Errors
    ///
    /// As [`build`](PoolSetBuilder::build).
    pub fn start(self) -> Result<PoolSet, PoolSetError> {
        let set = self.build()?;
        set.start();
        Ok(set)
    }

    /// Looks at the names, and says which pool is the default.
    fn check(&self) -> Result<usize, PoolSetError> {
        let names = || self.pools.iter().map(|(name, _)| name.as_str());
        let mut seen = BTreeSet::new();
        for name in names() {
            if let Some(problem) = check_name(name, NAME_LIMIT_BYTES) {
                return Err(PoolSetError::InvalidName { name: name.to_owned(), problem });
            }
            if !seen.insert(name) {
                return Err(PoolSetError::DuplicateName(name.to_owned()));
            }
        }
        match &self.default {
            _ if self.pools.is_empty() => Err(PoolSetError::NoPools),
            None => Ok(0),
            Some(default) => {
                names().position(|name| name == default).ok_or_else(|| PoolSetError::not_found(default, names()))
            }
        }
    }
}

/// One pool of a set.
#[derive(Debug)]
struct Member {
    name: String,
    built: Result<WorkPool, Why>,
    /// Why it could not be started.
    start_failure: OnceLock<Why>,
}

/// Why a pool is broken.
#[derive(Clone, Debug)]
struct Why {
    reason: String,
    error: Option<Arc<StartError>>,
}

impl Member {
    fn build(builder: WorkPoolBuilder, name: String) -> Member {
        let handle = builder.handle();
        let built = Why::of(|| builder.build()).inspect_err(|why| {
            log::warn!("the pool `{name}` could not be built: {}", why.reason);
            handle.fail(&why.reason);
        });
        Member { name, built, start_failure: OnceLock::new() }
    }

    fn start(&self) {
        let Ok(pool) = &self.built else { return };
        if let Err(why) = Why::of(|| pool.start()) {
            // Whoever started it before has it started.
            if !matches!(why.error.as_deref(), Some(StartError::Phase(_))) {
                log::warn!("the pool `{}` could not be started: {}", self.name, why.reason);
                self.start_failure.get_or_init(|| why);
            }
        }
    }

    /// The pool, if it can be used.
    fn pool(&self) -> Result<&WorkPool, PoolSetError> {
        let why = match (&self.built, self.start_failure.get()) {
            (Err(why), _) | (_, Some(why)) => why.clone(),
            (Ok(pool), None) if pool.core.ready.phase() == PoolPhase::InitFailed => {
                Why { reason: pool.stats().init_failure.unwrap_or_default(), error: None }
            }
            (Ok(pool), None) => return Ok(pool),
        };
        Err(PoolSetError::PoolBroken { name: self.name.clone(), reason: why.reason, error: why.error })
    }
}

impl Why {
    /// What comes of building or starting a pool, be it a panic of what it was given.
    fn of<T>(bring: impl FnOnce() -> Result<T, StartError>) -> Result<T, Why> {
        let panicked = |payload: Box<dyn Any + Send>| {
            let reason = format!("it panicked: {}", panics::describe(payload));
            Err(Why { reason, error: None })
        };
        let failed = |error: StartError| Why { reason: error.with_cause(), error: Some(Arc::new(error)) };
        catch_unwind(AssertUnwindSafe(bring)).map_or_else(panicked, |brought| brought.map_err(failed))
    }
}

/// Why there is no set, or not the pool that was asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PoolSetError {
    /// There is no pool of this name.
    PoolNotFound {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// The pool could not be built or started, or did not come up.
    PoolBroken {
        /// Which.
        name: String,
        /// Why, with what is behind it, in one line.
        reason: String,
        /// The error, if it could not be built or started. Its text is part of this one's, so that [`source`](Error::source) is what
        /// is behind it.
        error: Option<Arc<StartError>>,
    },
    /// A set needs a pool.
    NoPools,
    /// Two pools have this name.
    DuplicateName(String),
    /// A pool cannot have this name.
    InvalidName {
        /// Which.
        name: String,
        /// Why not.
        problem: &'static str,
    },
}

impl PoolSetError {
    fn not_found<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> PoolSetError {
        PoolSetError::PoolNotFound { name: name.to_owned(), known: known.map(str::to_owned).collect() }
    }

    /// The name that this is about.
    pub fn name(&self) -> Option<&str> {
        match self {
            PoolSetError::PoolNotFound { name, .. }
            | PoolSetError::PoolBroken { name, .. }
            | PoolSetError::DuplicateName(name)
            | PoolSetError::InvalidName { name, .. } => Some(name),
            PoolSetError::NoPools => None,
        }
    }
}

impl fmt::Display for PoolSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = shortened(self.name().unwrap_or_default());
        match self {
            PoolSetError::PoolNotFound { known, .. } => write!(f, "there is no pool `{name}`: there {}", Listed(known)),
            PoolSetError::PoolBroken { error: Some(error), .. } => write!(f, "the pool `{name}` is broken: {error}"),
            PoolSetError::PoolBroken { reason, .. } => write!(f, "the pool `{name}` is broken: {reason}"),
            PoolSetError::NoPools => f.write_str("there is no pool in the set"),
            PoolSetError::DuplicateName(_) => write!(f, "two pools have the name `{name}`"),
            PoolSetError::InvalidName { problem, .. } => write!(f, "the name `{name}` of a pool {problem}"),
        }
    }
}

impl Error for PoolSetError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PoolSetError::PoolBroken { error: Some(error), .. } => error.source(),
            _ => None,
        }
    }
}

/// The names that there are, the first ones of many.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown: Vec<String> =
            self.0.iter().take(SHOWN_NAMES).map(|name| format!("`{}`", shortened(name))).collect();
        if let more @ 1.. = self.0.len().saturating_sub(SHOWN_NAMES) {
            shown.push(format!("{more} more"));
        }
        match shown.pop() {
            None => f.write_str("is none"),
            Some(only) if shown.is_empty() => write!(f, "is {only}"),
            Some(last) => write!(f, "are {} and {last}", shown.join(", ")),
        }
    }
}
