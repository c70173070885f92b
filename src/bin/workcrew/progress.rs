//! How far it is: a bar and a line for each worker on a terminal, else a plain line every few seconds.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use workcrew::audit::forecast::SoFar;
use workcrew::audit::visible::line;
use workcrew::repository::Counts;
use workcrew::{PoolHandle, PoolStats};

use crate::board::Board;
use crate::notes;
use crate::print;
use crate::time::{self, short};

/// How often the screen is brought up to date.
const REDRAW: Duration = Duration::from_millis(150);

/// How often a line is printed where there is no screen.
const PLAIN_LINE: Duration = Duration::from_secs(5);

/// How many workers have a line of their own. More would not fit.
const WORKER_LINES: usize = 16;

/// Not in the help: so that scripts, and tests, need not wait for it.
fn plain_line() -> Duration {
    let set = std::env::var("WORKCREW_PROGRESS").ok().and_then(|text| time::positive(&text).ok());
    set.unwrap_or(PLAIN_LINE)
}

/// What is told while a batch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// As it suits where standard error goes to.
    People,
    /// Nothing: events are printed elsewhere.
    Nothing,
}

/// What there was to do before the pool began, and what has come since.
#[derive(Clone, Debug, Default)]
pub struct Work {
    before: Counts,
    added: Arc<AtomicU64>,
}

impl Work {
    pub fn of(before: Counts) -> Work {
        Work { before, added: Arc::default() }
    }

    pub fn set_added(&self, units: u64) {
        self.added.store(units, Ordering::Relaxed);
    }

    fn total(&self) -> u64 {
        self.before.total() + self.added.load(Ordering::Relaxed)
    }
}

/// Tells how far it is until it is dropped.
pub struct Progress {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Locked while something is told.
    turn: Arc<Mutex<()>>,
}

/// Nothing is told until it is dropped.
pub struct Pause<'a> {
    screen: Option<MultiProgress>,
    _turn: MutexGuard<'a, ()>,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        notes::set_screen(self.screen.take());
    }
}

impl Progress {
    pub fn start(telling: Telling, pool: PoolHandle, board: Board, work: Work) -> Progress {
        if telling == Telling::Nothing {
            return Progress { ends: None, thread: None, turn: Arc::default() };
        }
        let turn = Arc::<Mutex<()>>::default();
        let of_thread = Arc::clone(&turn);
        let (ends, over) = bounded(0);
        let tell = move || {
            let began = Instant::now();
            let mut screen = std::io::stderr().is_terminal().then(|| Screen::new(&work));
            let every = if screen.is_some() { REDRAW } else { plain_line() };
            while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(stats) = pool.stats() else { break };
                let _turn = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                let state = State::of(&stats, &work, began.elapsed(), board.hold());
                match &mut screen {
                    Some(screen) => screen.show(&state, &board),
                    None => notes::tell(&state.in_a_line()),
                }
            }
            if let Some(screen) = screen {
                screen.clear();
            }
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(tell).ok();
        Progress { ends: Some(ends), thread, turn }
    }

    /// Clears the screen for whatever else is to be told.
    pub fn pause(&self) -> Pause<'_> {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let screen = notes::set_screen(None);
        if let Some(screen) = &screen {
            let _ = screen.clear();
        }
        Pause { screen, _turn: turn }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How far it is at a moment.
struct State {
    total: u64,
    completed: u64,
    failed: u64,
    ended: u64,
    words: String,
    /// Why nothing is started.
    hold: Option<String>,
}

impl State {
    fn of(stats: &PoolStats, work: &Work, elapsed: Duration, hold: Option<String>) -> State {
        let total = work.total();
        let completed = work.before.completed + stats.completed;
        let failed = work.before.failed + stats.failed;
        let ended = completed + failed + work.before.cancelled + stats.cancelled;
        let ended_here = stats.completed + stats.failed + stats.cancelled;
        let left = total.saturating_sub(ended);
        let forecast = SoFar { ended: ended_here, left, elapsed, spent: stats.cost }.forecast();
        let mut words = vec![format!("{} running", stats.running)];
        if stats.retried > 0 {
            words.push(format!("{} retried", print::number(stats.retried)));
        }
        if let Some(rate) = forecast.units_per_minute {
            words.push(format!("{rate:.0}/min"));
        }
        if let Some(time) = forecast.time_left.filter(|_| left > 0) {
            words.push(format!("{} left", short(time)));
        }
        words.push(format!("{:.4}", stats.cost));
        if let Some(cost) = forecast.cost.filter(|cost| left > 0 && cost.amount.nanos() > 0) {
            words.push(format!("{cost:.2} in the end"));
        }
        let hold = hold.or_else(|| stats.hold.as_ref().map(|reason| format!("held: {}", line(reason))));
        State { total, completed, failed, ended, words: words.join(", "), hold }
    }

    fn in_a_line(&self) -> String {
        let number = print::number;
        let (completed, total) = (number(self.completed), number(self.total));
        let hold = self.hold.as_ref().map(|hold| format!(", {hold}")).unwrap_or_default();
        format!("{completed} of {total} completed, {} failed, {}{hold}", number(self.failed), self.words)
    }
}

/// A bar, and a line for each worker.
struct Screen {
    all: MultiProgress,
    bar: ProgressBar,
    workers: Vec<ProgressBar>,
}

impl Screen {
    fn new(work: &Work) -> Screen {
        let all = MultiProgress::new();
        let bar = all.add(ProgressBar::new(work.total()));
        let style = ProgressStyle::with_template("{prefix} {wide_bar}\n{wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"));
        notes::set_screen(Some(all.clone()));
        Screen { all, bar, workers: Vec::new() }
    }

    fn show(&mut self, state: &State, board: &Board) {
        let number = print::number;
        self.bar.set_length(state.total);
        self.bar.set_position(state.ended);
        let (completed, total) = (number(state.completed), number(state.total));
        self.bar.set_prefix(format!("{completed} of {total} completed, {} failed", number(state.failed)));
        self.bar.set_message(state.words.clone());
        let workers = board.workers();
        let lines = workers.iter().take(WORKER_LINES).map(|(worker, in_hand)| match in_hand {
            None => format!("  {} idle", line(worker)),
            Some(in_hand) => {
                let attempt = if in_hand.attempt_number > 1 {
                    format!(" (attempt {})", in_hand.attempt_number)
                } else {
                    String::new()
                };
                let (unit, since) = (line(&in_hand.unit_id).cut(40), short(in_hand.since.elapsed()));
                let said = if in_hand.said.is_empty() { String::new() } else { format!(": {}", in_hand.said) };
                format!("  {} {unit}{attempt}, {since}{said}", line(worker))
            }
        });
        let mut lines: Vec<String> = state.hold.iter().map(|hold| format!("  {hold}")).chain(lines).collect();
        if workers.len() > WORKER_LINES {
            lines.push(format!("  and {} more workers", workers.len() - WORKER_LINES));
        }
        self.set_lines(lines);
        self.bar.tick();
    }

    fn set_lines(&mut self, lines: Vec<String>) {
        while self.workers.len() < lines.len() {
            let row = self.all.add(ProgressBar::new_spinner());
            row.set_style(
                ProgressStyle::with_template("{wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            self.workers.push(row);
        }
        for row in self.workers.drain(lines.len()..) {
            self.all.remove(&row);
        }
        for (row, line) in self.workers.iter().zip(lines) {
            row.set_message(line);
            row.tick();
        }
    }

    fn clear(self) {
        // What follows is the summary, which says all this in the past tense.
        notes::set_screen(None);
        let _ = self.all.clear();
    }
}
