//! Everything at once: panics, hangs, slow and panicking callbacks, cancels, pauses and changing numbers of workers, at random.
//!
//! It runs in a process of its own, which counts its threads, for two seconds or as many as `WORKCREW_CHAOS_SECONDS` says. The
//! seed is printed; `WORKCREW_SEED` repeats the choices, though not their interleaving.

use std::collections::BTreeMap;
use std::panic::panic_any;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{TimeDelta, Utc};
use workcrew::audit::verify::Verify;
use workcrew::executor::CancelToken;
use workcrew::repository::By;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::testing::Gate;
use workcrew::{
    Archive, Call, Charge, Event, ExecuteError, JobId, Message, Money, NewJob, NewUnit, PoolStats, Repository,
    RetryPolicy, SqliteRepository, Stop, Tokens, UnitHandle, WaitError, WorkPool, WorkResult,
};

use crate::children::{self, Role, say};
use crate::pool_stress::{thread_count, wait_for_thread_count};
use crate::support::Up as _;
use crate::support::{self, Random};

const SECONDS: &str = "WORKCREW_CHAOS_SECONDS";
const SEED: &str = "WORKCREW_SEED";

/// How many threads submit.
const CALLERS: usize = 4;

/// How many executions never return by themselves, and how many of them are replaced.
const DEAF_LIMIT: usize = 7;
const ABANDONED_LIMIT: usize = 6;

/// Far longer than anything takes that is not meant to hang.
const LONG: Duration = Duration::from_secs(30);

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn child() {
    if let Some(role) = children::role() {
        let stop = match role.as_str() {
            "drain" => Stop::Drain,
            "cancel" => Stop::Cancel { grace: Duration::from_millis(100) },
            "now" => Stop::Now,
            _ => panic!("`{role}` is no role"),
        };
        Chaos::begin(&children::path()).run(stop);
    }
}

#[test]
fn chaos_leaves_everything_in_order() {
    let seed = Random::seed();
    std::thread::scope(|threads| {
        for (number, role) in ["drain", "cancel", "now"].into_iter().enumerate() {
            threads.spawn(move || {
                let folder = support::folder();
                let path = folder.path().join("chaos.db");
                let child = Role::new("pool_chaos::child", role, &path).env(SEED, seed.wrapping_add(number as u64));
                let lines = child.start().end_well();
                println!("{role}: {lines:?}");
                assert_eq!(lines.last().map(String::as_str), Some("in order"));
            });
        }
    });
}

/// A payload that panics once more when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Bomb);
    }
}

/// What an execution or a callback does, by chance.
#[derive(Clone, Copy, Debug)]
enum Whim {
    Work,
    Retry,
    GiveUp,
    Panic,
    Explode,
    Break,
    Hang,
    IgnoreAll,
    Hold,
}

impl Whim {
    fn by(random: &mut Random) -> Whim {
        match random.below(40) {
            0..=3 => Whim::Retry,
            4 | 5 => Whim::GiveUp,
            6 | 7 => Whim::Panic,
            8 => Whim::Explode,
            9 => Whim::Break,
            10 => Whim::Hang,
            11 => Whim::IgnoreAll,
            12 => Whim::Hold,
            _ => Whim::Work,
        }
    }
}

/// What all threads of the chaos share.
struct Shared {
    repository: SqliteRepository,
    job: JobId,
    random: Mutex<Random>,
    deaf: AtomicUsize,
    /// Opened at the end, for those that are deaf.
    gate: Gate,
    callbacks: Mutex<BTreeMap<String, usize>>,
    executing: Mutex<BTreeMap<String, u32>>,
}

impl Shared {
    fn below(&self, limit: usize) -> usize {
        self.random.lock().unwrap().below(limit)
    }

    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let whim = Whim::by(&mut self.random.lock().unwrap());
        let id = call.unit().id.as_str();
        // A later attempt may begin while a deaf one is still there, never the other way round.
        let before = self.executing.lock().unwrap().insert(id.to_owned(), call.attempt_number());
        assert!(before.is_none_or(|before| before < call.attempt_number()), "{id}: attempt {before:?} came before");
        call.message(Message::assistant("hm"));
        call.partial("h");
        call.usage(Charge::reported("large", Tokens::default(), Money::from_nanos(1)));
        let done = || Ok(WorkResult::text("done"));
        match whim {
            Whim::Work => done(),
            Whim::Retry => Err(ExecuteError::retry_after(Duration::from_millis(self.below(5) as u64), "again")),
            Whim::GiveUp => Err(ExecuteError::give_up("no")),
            Whim::Panic => panic!("chaos"),
            Whim::Explode => panic_any(Bomb),
            Whim::Break => Err(ExecuteError::broken("broken")),
            Whim::Hang => Err(ExecuteError::retry(format!("{:?}", call.cancel_token().wait_timeout(LONG)))),
            Whim::IgnoreAll => {
                if self.deaf.fetch_add(1, Ordering::SeqCst) < DEAF_LIMIT {
                    self.gate.pass();
                    call.message(Message::assistant("too late"));
                }
                done()
            }
            Whim::Hold => {
                Err(ExecuteError::hold_until(Utc::now() + TimeDelta::milliseconds(5), "not for five milliseconds"))
            }
        }
    }

    fn called_back(&self, id: &str) {
        *self.callbacks.lock().unwrap().entry(id.to_owned()).or_default() += 1;
        match self.below(20) {
            0 => panic!("chaos"),
            1 => panic_any(Bomb),
            2 => drop(CancelToken::new().wait_timeout(Duration::from_millis(5))),
            _ => {}
        }
    }
}

struct Chaos {
    shared: Arc<Shared>,
    pool: WorkPool,
    threads_before: usize,
    ends_at: Instant,
}

impl Chaos {
    fn begin(path: &Path) -> Chaos {
        let told = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_meant = panic.payload().is::<Bomb>() || panic.payload().downcast_ref() == Some(&"chaos");
            if !is_meant {
                told(panic);
            }
        }));
        let repository = SqliteOptions::new().open(path).unwrap();
        let job = repository.create_job(&NewJob::named("chaos")).unwrap().id;
        let shared = Arc::new(Shared {
            repository: repository.clone(),
            job,
            random: Mutex::new(Random::new(Random::seed())),
            deaf: AtomicUsize::new(0),
            gate: Gate::closed(),
            callbacks: Mutex::default(),
            executing: Mutex::default(),
        });
        let threads_before = thread_count();
        let (executing, completing, failing, cancelling, observing) =
            (shared.clone(), shared.clone(), shared.clone(), shared.clone(), shared.clone());
        let pool = WorkPool::builder(job, move |call: &Call<'_>| executing.execute(call), repository)
            .max_workers(6)
            .timeout(Duration::from_millis(60))
            .kill_grace(Duration::from_millis(30))
            .max_abandoned(ABANDONED_LIMIT)
            .retry(RetryPolicy::immediate())
            .heartbeat(Duration::from_millis(50))
            .reservation(Duration::from_millis(20))
            .on_unit_complete(move |unit, _| completing.called_back(unit.id.as_str()))
            .on_unit_failed(move |unit, _| failing.called_back(unit.id.as_str()))
            .on_unit_cancelled(move |unit| cancelling.called_back(unit.id.as_str()))
            .observer(move |_: &Event<'_>| assert!(observing.below(50) > 0, "chaos"))
            .up();
        let seconds = std::env::var(SECONDS).map_or(2, |seconds| seconds.parse().unwrap());
        Chaos { shared, pool, threads_before, ends_at: Instant::now() + Duration::from_secs(seconds) }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at
    }

    fn run(self, stop: Stop) {
        let mut handles = Vec::new();
        std::thread::scope(|threads| {
            let chaos = &self;
            let submitting: Vec<_> = (0..CALLERS).map(|caller| threads.spawn(move || chaos.submit(caller))).collect();
            threads.spawn(|| self.meddle());
            threads.spawn(|| {
                while !self.is_over() {
                    assert_balanced(&self.pool.stats());
                    CancelToken::new().wait_timeout(Duration::from_micros(200));
                }
            });
            for thread in submitting {
                handles.extend(thread.join().unwrap());
            }
        });
        self.pool.resume();
        if stop == Stop::Drain {
            self.shared.gate.open();
        }
        let summary = self.pool.stop_timeout(stop, LONG).unwrap();
        assert!(summary.is_final, "{:?}, {:?}", self.pool, self.pool.workers());
        wait_for_thread_count(self.threads_before + summary.stats.abandoned_threads);
        self.shared.gate.open();
        wait_for_thread_count(self.threads_before);
        assert_eq!(self.pool.stats().abandoned_threads, 0, "{} threads before", self.threads_before);
        say(format_args!("{} submitted, {summary}", handles.len()));
        self.check(&handles, &summary.stats, stop);
        say("in order");
    }

    /// Submits whatever it can, and cancels some of it.
    fn submit(&self, caller: usize) -> Vec<UnitHandle> {
        let mut handles: Vec<UnitHandle> = Vec::new();
        while !self.is_over() {
            let unit = NewUnit::new(format!("{caller}-{}", handles.len())).max_retries(2);
            let patience = Duration::from_millis(50);
            let submitted = match self.shared.below(4) {
                0 => self.pool.submit_work_unit(unit, "go").ok(),
                1 => match self.pool.acquire_slot_timeout(patience) {
                    Ok(permit) if self.shared.below(4) > 0 => permit.submit(unit, "go").ok(),
                    _ => None,
                },
                _ if !self.pool.wait_for_available_slot_timeout(patience) => None,
                // It lapses, or is renewed.
                _ if self.shared.below(10) == 0 => None,
                _ => self.pool.submit_work_unit(unit, "go").ok(),
            };
            handles.extend(submitted);
            if self.shared.below(4) == 0 && !handles.is_empty() {
                let back = self.shared.below(handles.len().min(8));
                handles[handles.len() - 1 - back].cancel(By::whom("ada")).unwrap();
            }
            if self.shared.below(50) == 0 {
                drop(handles.last().map(|handle| handle.wait_timeout(patience)));
            }
        }
        handles
    }

    /// Changes the number of workers, pauses, resumes.
    fn meddle(&self) {
        while !self.is_over() {
            match self.shared.below(3) {
                0 => self.pool.set_max_workers(self.shared.below(6) + 3).unwrap(),
                1 => self.pool.pause(),
                _ => {}
            }
            CancelToken::new().wait_timeout(Duration::from_millis(self.shared.below(10) as u64));
            self.pool.resume();
        }
    }

    fn check(&self, handles: &[UnitHandle], stats: &PoolStats, stop: Stop) {
        let Shared { repository, job, callbacks, .. } = &*self.shared;
        assert_balanced(stats);
        assert_eq!((stats.pending, stats.running), (0, 0), "{stats:?}");
        let mut left = 0;
        for handle in handles {
            assert!(handle.is_done(), "{} never ended", handle.id());
            match handle.wait() {
                Ok(unit) => assert!(unit.status.is_terminal(), "{}", handle.id()),
                Err(WaitError::LeftPending | WaitError::Lost) => left += 1,
                Err(error) => panic!("{}: {error}", handle.id()),
            }
        }
        let counts = repository.counts(*job).unwrap();
        assert_eq!(counts.completed + counts.failed + counts.cancelled + counts.pending, counts.total());
        assert_eq!(counts.total(), handles.len() as u64, "what was taken is there, and nothing else");
        if stop == Stop::Drain {
            assert_eq!(stats.accepted, handles.len() as u64);
            assert_eq!(
                (stats.completed, stats.failed, stats.cancelled),
                (counts.completed, counts.failed, counts.cancelled)
            );
            assert_eq!((stats.left_pending, stats.lost, left), (counts.pending, 0, counts.pending));
        }
        let callbacks = callbacks.lock().unwrap();
        assert!(callbacks.values().all(|&count| count == 1), "{callbacks:?}");
        assert!(callbacks.len() as u64 <= counts.total() - counts.pending);
        if stop == Stop::Drain {
            assert_eq!(callbacks.len() as u64, counts.total() - counts.pending);
        }
        let verification = Verify::new()
            .acknowledged(handles.iter().map(|handle| (*job, handle.id())))
            .submitted(handles.iter().map(|handle| (*job, handle.id())))
            .run(repository)
            .unwrap();
        assert!(verification.is_clean(), "{verification}");
    }
}

fn assert_balanced(stats: &PoolStats) {
    let PoolStats { pending, running, completed, failed, cancelled, left_pending, lost, .. } = *stats;
    assert_eq!(stats.accepted, pending + running + completed + failed + cancelled + left_pending + lost, "{stats:?}");
}
