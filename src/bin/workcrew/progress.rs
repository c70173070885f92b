//! How far it is: a bar and a line for each worker on a terminal, else a plain line every few seconds.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use workcrew::audit::forecast::SoFar;
use workcrew::audit::visible::line;
use workcrew::repository::Counts;
use workcrew::{Archive, Cost, JobId, PoolHandle, PoolStats, SqliteRepository};

use crate::board::Board;
use crate::notes;
use crate::print;
use crate::time::{self, short};

/// How often the screen is brought up to date.
const REDRAW: Duration = Duration::from_millis(150);

/// How often a line is printed where there is no screen.
const PLAIN_LINE: Duration = Duration::from_secs(5);

/// How much more time passes between two looks than one takes: what is looked at grows with the job.
const LOOK_SHARE: u32 = 20;

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

/// How far a job is, as its repository says: whoever works on it, and whatever was there before.
struct Look {
    repository: SqliteRepository,
    job_id: JobId,
    /// When the first look was taken, and what it found.
    began: Instant,
    before: Option<Counts>,
    counts: Counts,
    cost: Cost,
    next: Instant,
}

impl Look {
    fn new(repository: SqliteRepository, job_id: JobId) -> Look {
        let now = Instant::now();
        let (counts, cost) = (Counts::default(), Cost::default());
        Look { repository, job_id, began: now, before: None, counts, cost, next: now }
    }

    /// Looks again, if that is due. What cannot be read stays as it was.
    fn refresh(&mut self) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        if let Ok(counts) = self.repository.counts(self.job_id) {
            self.counts = counts;
            self.before.get_or_insert(counts);
        }
        if let Ok(costs) = self.repository.costs(Some(self.job_id)) {
            self.cost = costs.spent();
        }
        self.next = Instant::now() + now.elapsed() * LOOK_SHARE;
    }

    /// How many have ended since the first look.
    fn ended_meanwhile(&self) -> u64 {
        ended(&self.counts).saturating_sub(self.before.as_ref().map_or(0, ended))
    }
}

fn ended(counts: &Counts) -> u64 {
    counts.completed + counts.failed + counts.cancelled
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
    pub fn start(
        telling: Telling,
        pool: PoolHandle,
        board: Board,
        repository: SqliteRepository,
        job_id: JobId,
    ) -> Progress {
        if telling == Telling::Nothing {
            return Progress { ends: None, thread: None, turn: Arc::default() };
        }
        let turn = Arc::<Mutex<()>>::default();
        let of_thread = Arc::clone(&turn);
        let (ends, over) = bounded(0);
        let tell = move || {
            let mut look = Look::new(repository, job_id);
            look.refresh();
            let mut screen = std::io::stderr().is_terminal().then(Screen::new);
            let every = if screen.is_some() { REDRAW } else { plain_line() };
            while over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                let Some(stats) = pool.stats() else { break };
                look.refresh();
                let _turn = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                let state = State::of(&look, &stats, board.hold());
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
    fn of(look: &Look, stats: &PoolStats, hold: Option<String>) -> State {
        let counts = &look.counts;
        let (total, ended) = (counts.total(), ended(counts));
        let left = total.saturating_sub(ended);
        let pace = SoFar { ended: look.ended_meanwhile(), left, elapsed: look.began.elapsed(), spent: Cost::default() };
        let pace = pace.forecast();
        let price = SoFar { ended, left, elapsed: Duration::ZERO, spent: look.cost }.forecast();
        let mut words = vec![format!("{} running", counts.assigned + counts.processing + counts.cancel_requested)];
        if stats.allowed_workers < stats.max_workers {
            words.push(format!("{} of {} workers", stats.allowed_workers, stats.max_workers));
        }
        if stats.retried > 0 {
            words.push(format!("{} retried", print::number(stats.retried)));
        }
        if let Some(rate) = pace.units_per_minute {
            words.push(format!("{rate:.0}/min"));
        }
        if let Some(time) = pace.time_left.filter(|_| left > 0) {
            words.push(format!("{} left", short(time)));
        }
        words.push(print::spent(look.cost));
        if let Some(cost) = price.cost.filter(|cost| left > 0 && cost.amount.nanos() > 0) {
            words.push(format!("{cost:.2} in the end"));
        }
        let hold = hold.or_else(|| stats.hold.as_ref().map(|reason| format!("held: {}", line(reason))));
        let (completed, failed) = (counts.completed, counts.failed);
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
    fn new() -> Screen {
        let all = MultiProgress::new();
        let bar = all.add(ProgressBar::new(0));
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
