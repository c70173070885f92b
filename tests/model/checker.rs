//! Runs a scenario under one schedule after another.

use std::cell::{Cell, RefCell};
use std::env;
use std::io::{self, Write};
use std::panic;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, MaxSteps, Runner};

/// Enough to notice that time is up, and for PCT to make up for the first, which only counts steps.
const BATCH: usize = 50;

/// An execution takes some hundreds; what takes so many does not end.
const STEP_LIMIT: usize = 100_000;

/// How often the priorities of a PCT schedule change.
const DEPTHS: [usize; 4] = [2, 3, 5, 10];

thread_local! {
    /// Panics since the program began. All threads of a scenario are on one of the system's, so these are its own.
    static PANICS: Cell<usize> = const { Cell::new(0) };
    /// What was logged since the execution began.
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Keeps what is logged until somebody wants to know.
struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs a scenario under as many schedules as there is time for.
pub(crate) fn check(scenario: impl Fn() + Send + Sync + 'static) {
    watch();
    let scenario = Arc::new(scenario);
    if let Some(path) = env::var_os("WORKCREW_MODEL_SCHEDULE") {
        run(ReplayScheduler::new_from_file(path).expect("the file holds a schedule"), &scenario);
        return;
    }
    let began = Instant::now();
    let mut executions = 0;
    for depth in DEPTHS.into_iter().cycle() {
        executions += run(RandomScheduler::new(BATCH), &scenario);
        executions += run(PctScheduler::new(depth, BATCH), &scenario);
        if began.elapsed() > seconds() {
            break;
        }
    }
    println!("{executions} schedules in {:.1} s", began.elapsed().as_secs_f64());
}

/// Runs each of some schedules twice, and fails if the second run differs: then no failure could be seen again.
pub(crate) fn check_repeats(scenario: impl Fn() + Send + Sync + 'static) {
    watch();
    let schedules = RandomScheduler::new(BATCH);
    run(UncontrolledNondeterminismCheckScheduler::new(schedules), &Arc::new(scenario));
}

fn run<F: Fn() + Send + Sync + 'static>(scheduler: impl Scheduler + 'static, scenario: &Arc<F>) -> usize {
    let mut config = Config::new();
    config.stack_size = 512 * 1024;
    config.max_steps = MaxSteps::FailAfter(STEP_LIMIT);
    let scenario = Arc::clone(scenario);
    let executions = Runner::new(scheduler, config).run(move || {
        LOG.with_borrow_mut(Vec::clear);
        scenario();
        assert_nothing_panicked();
    });
    // Also not after the scenario had come to its end.
    assert_nothing_panicked();
    executions
}

/// The pool survives panics of its own, which must not happen all the same.
fn assert_nothing_panicked() {
    assert_eq!(PANICS.get(), 0, "a thread of the pool panicked, see above");
}

/// From now on panics are counted, and the first shows what was logged before it. Logging is never off: what is only done for
/// it takes locks too, and so belongs to the schedule.
fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        env_logger::builder()
            .filter_module("workcrew", log::LevelFilter::Trace)
            .format(|line, record| writeln!(line, "{:5} {}", record.level(), record.args()))
            .target(env_logger::Target::Pipe(Box::new(Log)))
            .init();
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            if PANICS.get() == 1 {
                LOG.with_borrow(|log| eprintln!("{}", String::from_utf8_lossy(log)));
            }
            hook(info);
        }));
    });
}

fn seconds() -> Duration {
    let seconds = env::var("WORKCREW_MODEL_SECONDS").map(|text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds.unwrap_or(3))
}
