//! What all threads of a pool share.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::capacity::Taken;
use super::cell::{Birth, WorkerCell};
use super::close::patiently;
use super::execution::Execution;
use super::homes::Homes;
use super::line::{Claimable, Tie};
use super::lock::assert_none_held;
use super::mailbox::Mailbox;
use super::observe::Callbacks;
use super::open_unit::OpenUnit;
use super::ready::{Coming, HoldEnd, Ready};
use super::registry::Registry;
use super::reporter::Report;
use super::runtime::WorkerRuntime;
use super::same_work::SameWork;
use super::scheduler::{self, Scheduler};
use super::settings::Settings;
use super::stats::Summary;
use super::timers::due_ms;
use super::turn_line::TurnLine;
use super::{claimer, homes, inside, provider, slot};
use crate::attempt::{AttemptReport, Provenance};
use crate::clock::{Clock, milliseconds};
use crate::error::RepositoryError;
use crate::executor::{CancelToken, Executor};
use crate::job::Job;
use crate::lease::{Claim, OwnerId};
use crate::limits::Expectation;
use crate::nudge::Nudge;
use crate::panics;
use crate::repository::{Claimant, Repository, Slot};
use crate::same_work::Parameters;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::unit::{NewUnit, UnitKey, UnitStatus, WorkUnit};

/// How many units are kept that could not be given back.
const UNSTORED_LIMIT: usize = 1_000;

/// What all threads of a pool share. Everything in it is behind a lock of its own or never changes.
pub(super) struct Core {
    /// Names the pool in this process.
    pub(super) number: u64,
    pub(super) settings: Settings,
    pub(super) job: Job,
    pub(super) executor: Box<dyn Executor>,
    pub(super) runtime: Box<dyn WorkerRuntime>,
    pub(super) scheduler: Option<Box<dyn Scheduler>>,
    /// Where sessions live, if the pool is one of several.
    pub(super) homes: Option<Homes>,
    pub(super) provenance: Provenance,
    /// Whom it asks, if that is known.
    pub(super) provider: Option<String>,
    /// How many tokens an answer has at most.
    pub(super) answer_tokens: Option<u64>,
    /// Who waits for its turn to ask it.
    pub(super) turns: TurnLine,
    expectation: Expectation,
    /// What it knows to do the same work once, if it does.
    pub(super) same_work: Option<SameWork>,
    repository: Arc<dyn Repository>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) callbacks: Callbacks,
    pub(super) registry: Registry,
    pub(super) ready: Ready,
    pub(super) heartbeat: Nudge,
    /// When the last renewal that succeeded was asked for. Every lease of the pool lasts from then on at least: it was renewed then, or
    /// granted later.
    renewed_at_ms: AtomicI64,
    /// Outcomes for the reporter. At most as many wait as the pool has open units, and a few for each worker.
    pub(super) reports: Mailbox<Report>,
    owner: OnceLock<OwnerId>,
    runs: AtomicU64,
    /// Tokens of claims whose answer was lost for good.
    pub(super) doubts: Mutex<Vec<i64>>,
    /// Ends of attempts that could not be stored, to be tried again: of each place one, and some of units that no worker took. Of those
    /// what does not fit is executed again.
    unstored: Mutex<Vec<(Arc<Execution>, AttemptReport)>>,
    /// Whether a thread does what could not be done before.
    is_catching_up: AtomicBool,
    is_ending: AtomicBool,
    /// Units of this pool of which it has heard that somebody cancelled them, until the heartbeat has seen to it.
    pub(super) cancelled: Mutex<BTreeMap<UnitKey, String>>,
    started: OnceLock<Instant>,
    initialized: OnceLock<Duration>,
    /// What asks the init hook to give up.
    pub(super) init_cancel: CancelToken,
    elapsed: OnceLock<Duration>,
    pub(super) stop_error: Mutex<Option<RepositoryError>>,
}

/// Why there is no worker after all for a place that was taken.
#[derive(Debug)]
pub(super) enum NoWorker {
    /// The system gave no thread.
    Thread(io::Error),
    /// The one that was taken is gone, and its place with it.
    NoPlace,
}

/// What a pool is made from.
pub(super) struct Parts {
    pub(super) settings: Settings,
    pub(super) job: Job,
    pub(super) executor: Box<dyn Executor>,
    pub(super) runtime: Box<dyn WorkerRuntime>,
    pub(super) scheduler: Option<Box<dyn Scheduler>>,
    pub(super) homes: Option<Homes>,
    pub(super) repository: Arc<dyn Repository>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) callbacks: Callbacks,
    /// By what the same work is told, if it is done once.
    pub(super) parameters: Option<Parameters>,
}

impl Core {
    pub(super) fn new(parts: Parts) -> Core {
        Core {
            number: inside::next_pool(),
            provenance: parts.executor.provenance(),
            provider: parts.settings.provider_of(&*parts.executor),
            answer_tokens: parts.executor.answer_tokens(),
            turns: TurnLine::default(),
            expectation: parts.settings.expectation.estimate(parts.executor.estimate()),
            same_work: parts.parameters.map(|parameters| SameWork::new(parts.executor.name(), parameters)),
            registry: Registry::new(),
            ready: Ready::new(
                parts.settings.crew(),
                parts.settings.max_queue_size,
                milliseconds(parts.settings.affinity_ttl),
            ),
            heartbeat: Nudge::new(),
            renewed_at_ms: AtomicI64::new(i64::MIN),
            reports: Mailbox::new(),
            owner: OnceLock::new(),
            runs: AtomicU64::new(0),
            doubts: Mutex::default(),
            unstored: Mutex::default(),
            is_catching_up: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            cancelled: Mutex::default(),
            started: OnceLock::new(),
            initialized: OnceLock::new(),
            init_cancel: CancelToken::new(),
            elapsed: OnceLock::new(),
            stop_error: Mutex::new(None),
            settings: parts.settings,
            job: parts.job,
            executor: parts.executor,
            runtime: parts.runtime,
            scheduler: parts.scheduler,
            homes: parts.homes,
            repository: parts.repository,
            clock: parts.clock,
            callbacks: parts.callbacks,
        }
    }

    /// The repository, to call which no lock may be held.
    pub(super) fn repository(&self) -> &dyn Repository {
        assert_none_held();
        &*self.repository
    }

    pub(super) fn shared_repository(&self) -> Arc<dyn Repository> {
        Arc::clone(&self.repository)
    }

    /// Milliseconds of the pool's clock, which never jumps.
    pub(super) fn now_ms(&self) -> i64 {
        self.clock.now().boot_ms
    }

    /// So much later than now.
    pub(super) fn in_ms(&self, time: Duration) -> i64 {
        self.now_ms().saturating_add(milliseconds(time))
    }

    pub(super) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn start_as(&self, owner: OwnerId) {
        self.owner.get_or_init(|| owner);
        self.started.get_or_init(Instant::now);
    }

    /// Whether the repository knows the pool.
    pub(super) fn is_registered(&self) -> bool {
        self.owner.get().is_some()
    }

    /// Who the pool is to the repository.
    pub(super) fn owner(&self) -> OwnerId {
        *self.owner.get().expect("a pool that works has registered")
    }

    /// Whether a unit waits for this pool, or did when it ended.
    pub(super) fn has_accepted(&self, unit: &WorkUnit) -> bool {
        unit.accepted_by.is_some() && unit.accepted_by == self.owner.get().copied()
    }

    /// All leases were renewed, which was asked for at this time.
    pub(super) fn note_renewed(&self, asked_at_ms: i64) {
        self.renewed_at_ms.store(asked_at_ms, Ordering::Release);
    }

    /// When the last renewal that succeeded was asked for.
    pub(super) fn renewed_at_ms(&self) -> i64 {
        self.renewed_at_ms.load(Ordering::Acquire)
    }

    /// A fresh claimant, whose units begin as they are claimed.
    pub(super) fn claimant(&self) -> Claimant {
        let claimant = Claimant::new(self.owner(), self.settings.lease).starting(self.provenance.clone());
        claimant.expecting(self.expectation)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// The last threads are to end.
    pub(super) fn end_helpers(&self) {
        self.is_ending.store(true, Ordering::Release);
        self.ready.claimer.wake();
        self.heartbeat.wake();
        self.reports.put(Report::Quit);
    }

    /// Starts nothing until then. If that is news, and no other hold says more, others hear of it.
    pub(super) fn hold(&self, reason: &str, end: HoldEnd) -> bool {
        let is_news = self.ready.hold(reason, end);
        if is_news {
            self.heartbeat.wake();
            self.turns.wake_all();
        }
        is_news
    }

    /// Ends a hold; with a time, only one that ends by itself by then.
    pub(super) fn resume(&self, now_ms: Option<i64>) {
        self.ready.resume(now_ms);
        self.heartbeat.wake();
    }

    /// Ends whatever holds the pool, also what others were told of its provider.
    pub(super) fn resume_all(&self) {
        if self.ready.waits_for_provider() {
            provider::lift(self);
        }
        self.resume(None);
    }

    /// Nobody says any more that the provider is not to be asked.
    pub(super) fn provider_may_be_asked(&self) {
        if self.ready.end_hold_of_provider() {
            log::info!("{}: its provider may be asked again", self.job.id);
            self.heartbeat.wake();
        }
    }

    /// Lets the reporter tell something.
    pub(super) fn report(&self, report: Report) {
        self.ready.report_sent();
        self.reports.put(report);
    }

    /// How long it took to come up is known.
    pub(super) fn note_initialized(&self) {
        self.initialized.get_or_init(|| self.started.get().map(Instant::elapsed).unwrap_or_default());
    }

    /// How long it took to come up, if it has.
    pub(super) fn init_time(&self) -> Option<Duration> {
        self.initialized.get().copied()
    }

    pub(super) fn stop_clock(&self) {
        self.elapsed.get_or_init(|| self.started.get().map(Instant::elapsed).unwrap_or_default());
    }

    pub(super) fn summary(&self, is_final: bool) -> Summary {
        let running = || self.started.get().map(Instant::elapsed).unwrap_or_default();
        let elapsed = self.elapsed.get().copied().unwrap_or_else(running);
        Summary { stats: self.ready.stats(), elapsed, is_final }
    }

    /// The worker that goes with a place, which takes the unit upon itself: one that is up, or is started for it.
    pub(super) fn worker_for(
        self: &Arc<Core>,
        mut taken: Taken,
        strict_key: Option<&Arc<str>>,
    ) -> Result<Arc<WorkerCell>, NoWorker> {
        loop {
            let number = match taken {
                Taken::New(number) => return slot::start(self, number, Birth::ForUnit).map_err(NoWorker::Thread),
                Taken::Up(number) => number,
            };
            if let Some(cell) = self.registry.get(number)
                && slot::reserve(self, &cell).map_err(NoWorker::Thread)?
            {
                return Ok(cell);
            }
            // It crashed or ended in between: another one takes its place.
            taken = self.ready.replace(number, strict_key, self.now_ms()).ok_or(NoWorker::NoPlace)?;
        }
    }

    /// What decides when and where a unit gets its turn.
    pub(super) fn claimable(&self, unit: &NewUnit) -> Claimable {
        Claimable { priority: unit.priority, tie: Tie::of(&unit.options, self.settings.affinity) }
    }

    /// A unit that somebody brings now.
    pub(super) fn coming<'a>(&self, unit: &'a NewUnit, claimable: &'a Claimable) -> Coming<'a> {
        let is_due = unit.not_before.is_none_or(|time| time <= self.clock.now().wall);
        // Only sessions are forgotten.
        let now_ms = if claimable.tie.is_some() { self.now_ms() } else { 0 };
        let has_choice = || claimable.tie.as_ref().is_none_or(|tie| self.ready.has_choice(tie, now_ms));
        let wish = if self.scheduler.is_some() && is_due && has_choice() { scheduler::wish(self) } else { None };
        Coming { id: &unit.id, claimable, is_due, wish, now_ms }
    }

    /// A worker, as its records name it. What is known of how many units it can have is said from the beginning: of two claims, the one
    /// that was prepared before it came up may be the later.
    pub(super) fn slot_of(&self, cell: &WorkerCell) -> Slot {
        let capacity = self.settings.known_capacity().unwrap_or_else(|| cell.capacity());
        Slot::with_capacity(cell.id.clone(), capacity)
    }

    /// What a worker is to do with a unit that was claimed for it.
    pub(super) fn execution(&self, cell: &WorkerCell, claim: Claim, unit: &Arc<OpenUnit>) -> Arc<Execution> {
        Arc::new(Execution::new(self, cell.number, claim, Arc::clone(unit)))
    }

    /// Hands a claimed unit to a worker; if that is gone, the unit goes back and is claimed again.
    pub(super) fn hand_over(&self, cell: &WorkerCell, claim: Claim, unit: &Arc<OpenUnit>) {
        let execution = self.execution(cell, claim, unit);
        if let Some(tie) = &execution.tie {
            homes::settle_in(self, &tie.key, cell.number);
        }
        if let Err(execution) = cell.hand_over(execution) {
            self.put_back(cell, &execution, Duration::ZERO, "its worker was gone");
        }
    }

    /// Gives a unit back that the worker which it was claimed for does not execute. It is claimed again after a while.
    pub(super) fn put_back(&self, cell: &WorkerCell, execution: &Arc<Execution>, after: Duration, reason: &str) {
        // The claim has recorded it, though it may never have heard of the unit.
        cell.note_row();
        let lease = &execution.claim.lease;
        let pause = Some(after).filter(|after| !after.is_zero());
        let release = || self.repository().release(lease, pause, reason);
        let released = patiently(self, &lease.unit_id, release).inspect_err(|error| {
            if !error.is_rejection() {
                // To end an attempt as cancelled that nobody cancelled is to give it back.
                self.give_back_later(execution);
            }
        });
        // The claim has recorded the worker once more.
        if cell.has_ended() && released.is_ok() {
            slot::end_row(self, cell);
        }
        slot::give_back(self, cell, Some(&execution.unit));
        match released {
            // Somebody had asked for that.
            Ok(closed) if closed.status.is_terminal() => {
                claimer::ended(self, lease.attempt(), closed.status, None);
                return;
            }
            Ok(_) => {}
            Err(error) => log::warn!("unit {}: could not be given back: {error}", lease.unit_id),
        }
        self.wait_until(execution, self.in_ms(after));
    }

    /// The unit of an execution waits for its next attempt, here or, if the pool stops, for anybody.
    pub(super) fn wait_until(&self, execution: &Execution, until_ms: i64) {
        if !self.ready.wait_until(execution.claim.lease.attempt(), until_ms, self.now_ms()) {
            execution.unit.leave(super::ledger::Left::Pending);
        }
    }

    /// Keeps an end that could not be stored. While the pool lives its lease is renewed, so there is time. Its place stays taken until
    /// then (`WorkerCell::settle`): the repository has its worker down as busy, and would refuse whatever names that. The worker is not
    /// ended instead, for that would give the unit back, and an answer that was paid for would be lost.
    pub(super) fn keep_for_later(&self, execution: &Arc<Execution>, report: AttemptReport) {
        self.unstored.lock().unwrap_or_else(PoisonError::into_inner).push((Arc::clone(execution), report));
    }

    /// Keeps a unit that no worker took and that could not be given back.
    fn give_back_later(&self, execution: &Arc<Execution>) {
        let mut unstored = self.unstored.lock().unwrap_or_else(PoisonError::into_inner);
        if unstored.len() < UNSTORED_LIMIT {
            unstored.push((Arc::clone(execution), AttemptReport::cancelled()));
        }
    }

    /// Whether there is something to [catch up](Core::catch_up) with that nobody is at; whoever is told so is to do it.
    pub(super) fn begin_catching_up(&self) -> bool {
        let has_doubts = !self.doubts.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        let has_unstored = !self.unstored.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        (has_doubts || has_unstored) && !self.is_catching_up.swap(true, Ordering::AcqRel)
    }

    /// Does what could not be done before because the storage failed.
    pub(super) fn catch_up(&self) {
        panics::contain("catching up", || {
            self.resolve_doubts();
            self.store_unstored();
        });
        self.is_catching_up.store(false, Ordering::Release);
    }

    /// Tries again to store what could not be stored, and keeps what still cannot.
    pub(super) fn store_unstored(&self) {
        let unstored = std::mem::take(&mut *self.unstored.lock().unwrap_or_else(PoisonError::into_inner));
        for (execution, report) in unstored {
            let Claim { lease, unit, .. } = &execution.claim;
            match self.repository().finish(lease, &report) {
                Ok(closed) => {
                    log::info!("unit {}: its end is stored after all: {}", lease.unit_id, closed.status);
                    if closed.status == UnitStatus::Pending {
                        let until_ms = due_ms(closed.not_before, self.clock.now());
                        let claimable = Claimable::of(unit, self.settings.affinity);
                        self.ready.take_back(lease.attempt(), lease.unit_id.as_str(), &claimable, until_ms);
                    }
                }
                Err(error) if error.is_rejection() => {
                    log::warn!("unit {}: its end came too late: {error}", lease.unit_id);
                }
                Err(_) => {
                    self.keep_for_later(&execution, report);
                    continue;
                }
            }
            if let Some(cell) = self.registry.get(execution.worker) {
                slot::free_stored(self, &cell, &execution);
            }
        }
    }

    /// Gives back what was claimed by calls whose answers were lost.
    pub(super) fn resolve_doubts(&self) {
        let tokens: Vec<i64> = self.doubts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for token in tokens {
            let Ok(claims) = self.repository().claimed(self.owner(), token) else { continue };
            let release =
                |claim: &Claim| self.repository().release(&claim.lease, None, "the answer to its claim was lost");
            let is_resolved =
                |answer: Result<_, RepositoryError>| answer.is_ok() || answer.is_err_and(|error| error.is_rejection());
            if claims.iter().all(|claim| is_resolved(release(claim))) {
                self.doubts.lock().unwrap_or_else(PoisonError::into_inner).retain(|&other| other != token);
            }
        }
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("job", &self.job.id).field("phase", &self.ready.phase()).finish_non_exhaustive()
    }
}
