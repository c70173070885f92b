//! Time, from one place, so that tests can set it.
//!
//! Two clocks tell two different things. **Wall time** is for people: it may jump,
//! so nothing is ordered by it and no lease depends on it. **Boot time** counts
//! milliseconds since this machine started, sleep included: it never jumps, is the
//! same for every process on the machine, and measures leases and deadlines.

use std::fmt::Debug;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// A reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What the calendar says, in whole milliseconds.
    pub wall: DateTime<Utc>,
    /// Milliseconds since the machine started.
    pub boot_ms: i64,
}

/// Where time comes from.
pub trait Clock: Send + Sync + Debug + 'static {
    /// Reads both clocks.
    fn now(&self) -> Moment;

    /// Names the time between two starts of the machine: boot times of different boots cannot be compared.
    fn boot_id(&self) -> Arc<str> {
        system_boot_id()
    }

    /// Asks to be told whenever time does not just pass but is set, until `told` says `false`. The machine's clock is never set
    /// in that sense: whoever sleeps until a time wakes by itself.
    fn on_jump(&self, _told: Box<dyn Fn() -> bool + Send + Sync>) {}
}

/// The kernel's name for this boot, empty where there is none.
fn system_boot_id() -> Arc<str> {
    static BOOT_ID: LazyLock<Arc<str>> = LazyLock::new(|| {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        id.trim().into()
    });
    Arc::clone(&BOOT_ID)
}

/// The machine's own clocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[cfg(target_os = "linux")]
        const SINCE_BOOT: rustix::time::ClockId = rustix::time::ClockId::Boottime;
        // Elsewhere the monotonic clock is the nearest thing; on macOS it too counts sleep.
        #[cfg(not(target_os = "linux"))]
        const SINCE_BOOT: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

        let since_boot = rustix::time::clock_gettime(SINCE_BOOT);
        Moment {
            wall: whole_milliseconds(Utc::now()),
            boot_ms: since_boot.tv_sec * 1_000 + since_boot.tv_nsec / 1_000_000,
        }
    }
}

/// A duration in whole milliseconds; what is too long for that is as long as can be.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// What is left of a time once it was stored.
pub(crate) fn whole_milliseconds(time: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(time.timestamp_millis()).expect("a time in milliseconds is a time")
}

/// A clock that stands still until it is told otherwise. Its clones are the same clock.
///
/// ```
/// use std::time::Duration;
/// use workcrew::clock::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now().boot_ms - before.boot_ms, 60_000);
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Hands>>);

struct Hands {
    now: Moment,
    boot_id: Arc<str>,
    listeners: Vec<Listener>,
}

type Listener = Arc<dyn Fn() -> bool + Send + Sync>;

impl std::fmt::Debug for Hands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hands").field("now", &self.now).field("boot_id", &self.boot_id).finish_non_exhaustive()
    }
}

impl ManualClock {
    /// A clock that shows a fixed moment of the running boot.
    pub fn new() -> ManualClock {
        let wall = DateTime::from_timestamp_millis(1_767_225_600_000).expect("the first day of 2026");
        let now = Moment { wall, boot_ms: 1_000_000 };
        ManualClock(Arc::new(Mutex::new(Hands { now, boot_id: system_boot_id(), listeners: Vec::new() })))
    }

    /// Both clocks go forward, as they do when time passes.
    pub fn advance(&self, by: Duration) {
        let delta = TimeDelta::from_std(by).expect("a test advances by less than an age");
        let mut hands = self.hands();
        hands.now.wall += delta;
        hands.now.boot_ms += delta.num_milliseconds();
        drop(hands);
        self.tell();
    }

    /// Only the calendar jumps, as it does when someone sets it.
    pub fn jump_wall(&self, by: TimeDelta) {
        self.hands().now.wall += by;
        self.tell();
    }

    /// The machine starts again: boot time begins anew under a new name.
    pub fn reboot(&self) {
        let mut hands = self.hands();
        hands.now.boot_ms = 0;
        hands.boot_id = format!("{}+", hands.boot_id).into();
    }

    /// Tells whoever asked for it, with the clock readable.
    fn tell(&self) {
        let listeners = self.hands().listeners.clone();
        let deaf: Vec<Listener> = listeners.into_iter().filter(|listener| !listener()).collect();
        let is_deaf = |listener: &Listener| deaf.iter().any(|other| Arc::ptr_eq(listener, other));
        self.hands().listeners.retain(|listener| !is_deaf(listener));
    }

    fn hands(&self) -> MutexGuard<'_, Hands> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> ManualClock {
        ManualClock::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.hands().now
    }

    fn boot_id(&self) -> Arc<str> {
        Arc::clone(&self.hands().boot_id)
    }

    fn on_jump(&self, told: Box<dyn Fn() -> bool + Send + Sync>) {
        self.hands().listeners.push(told.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_has_whole_milliseconds_and_boot_time_does_not_go_back() {
        let (first, second) = (SystemClock.now(), SystemClock.now());
        assert_eq!(first.wall, whole_milliseconds(first.wall));
        assert!(second.boot_ms >= first.boot_ms);
        assert!(first.boot_ms > 0);
    }

    #[test]
    fn a_jump_of_the_calendar_does_not_touch_boot_time() {
        let clock = ManualClock::new();
        let before = clock.now();
        clock.jump_wall(TimeDelta::days(-3_650));
        assert_eq!(clock.now().boot_ms, before.boot_ms);
        assert_eq!(clock.now().wall, before.wall - TimeDelta::days(3_650));
    }
}
