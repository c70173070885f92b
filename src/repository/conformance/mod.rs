//! The contract of a [`Repository`] as a suite that every implementation runs, ours and yours.
//!
//! Each case gets a fresh repository, says in its name what holds, and panics where it does not. After
//! every case what is stored is checked as a whole: each unit's path through the journal is legal, all links
//! can be computed again, every worker's load is what it holds. No case sleeps or starts a thread;
//! time passes when the suite says so.
//!
//! ```
//! use workcrew::MemoryRepository;
//! use workcrew::clock::ManualClock;
//! use workcrew::repository::conformance::{self, OnManualClock};
//!
//! conformance::run(|| {
//!     let clock = ManualClock::new();
//!     Box::new(OnManualClock::new(MemoryRepository::with_clock(clock.clone()), clock))
//! });
//! ```
//!
//! A repository that needs more than a clock (a directory, a server) is brought along by a [`Subject`] of your
//! own. To have each case as a test of its own, go through [`cases`]:
//!
//! ```
//! # use workcrew::MemoryRepository;
//! # use workcrew::clock::ManualClock;
//! # use workcrew::repository::conformance::{self, OnManualClock};
//! for case in conformance::cases().filter(|case| case.name().contains("partial")) {
//!     let clock = ManualClock::new();
//!     case.run(&OnManualClock::new(MemoryRepository::with_clock(clock.clone()), clock));
//! }
//! ```
//!
//! What it cannot show, an implementation shows itself: that what was acknowledged survives a
//! crash, that threads and processes do not disturb each other, and that damage is found.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::Repository;
use crate::clock::{Clock, ManualClock, SystemClock};
use scene::Scene;

/// Panics unless a call was refused in a certain way.
macro_rules! assert_refused {
    ($result:expr, $refusal:pat) => {
        match $result {
            Err($refusal) => {}
            other => panic!("{} should be {}, not {other:?}", stringify!($result), stringify!($refusal)),
        }
    };
}

/// Lists cases under their own names.
macro_rules! cases {
    ($($case:ident),+ $(,)?) => {
        pub(super) const CASES: &[super::Case] = &[$(super::Case { name: stringify!($case), body: $case }),+];
    };
}

mod accepting;
mod attempts;
mod budgets;
mod claims;
mod endings;
mod intake;
mod jobs;
mod leases;
mod owners_and_workers;
mod providers;
mod pulling;
mod questions;
mod reading;
mod requeueing;
mod scene;
mod soundness;
mod starting;
mod targeted;

/// A repository under test, and the hands of its clock.
pub trait Subject {
    /// The repository.
    fn repository(&self) -> &dyn Repository;

    /// What its calendar says.
    fn now(&self) -> DateTime<Utc>;

    /// Lets time pass, for leases and for the calendar.
    fn advance(&self, by: Duration);

    /// Sets the calendar forward or back while no time passes. `false` if that cannot be done:
    /// cases that need it are then left out.
    fn set_calendar(&self, _by: TimeDelta) -> bool {
        false
    }

    /// The boot in which its clock says that we are.
    fn boot_id(&self) -> Arc<str> {
        SystemClock.boot_id()
    }

    /// Whether its owners may be on other machines, so that another boot says nothing of whether they live. Then only their leases do.
    fn spans_machines(&self) -> bool {
        false
    }
}

/// A repository that was opened with a [`ManualClock`].
#[derive(Debug)]
pub struct OnManualClock<R> {
    repository: R,
    clock: ManualClock,
}

impl<R: Repository> OnManualClock<R> {
    /// A repository, and the clock that it was opened with.
    pub fn new(repository: R, clock: ManualClock) -> OnManualClock<R> {
        OnManualClock { repository, clock }
    }
}

impl<R: Repository> Subject for OnManualClock<R> {
    fn repository(&self) -> &dyn Repository {
        &self.repository
    }

    fn now(&self) -> DateTime<Utc> {
        self.clock.now().wall
    }

    fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    fn set_calendar(&self, by: TimeDelta) -> bool {
        self.clock.jump_wall(by);
        true
    }

    fn boot_id(&self) -> Arc<str> {
        self.clock.boot_id()
    }
}

/// One thing that holds for every repository.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    body: fn(&Scene<'_>),
}

impl Case {
    /// What holds, as a sentence with underscores.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Shows that it holds for a fresh repository.
    ///
    /// # Panics
    ///
    /// If it does not hold.
    pub fn run(&self, subject: &dyn Subject) {
        let scene = Scene::open(subject);
        (self.body)(&scene);
        soundness::check(&scene);
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Case").field(&self.name).finish()
    }
}

/// All cases, so that each can be a test of its own.
pub fn cases() -> impl Iterator<Item = Case> {
    let by_concern = [
        intake::CASES,
        jobs::CASES,
        accepting::CASES,
        claims::CASES,
        targeted::CASES,
        pulling::CASES,
        starting::CASES,
        leases::CASES,
        attempts::CASES,
        endings::CASES,
        budgets::CASES,
        providers::CASES,
        owners_and_workers::CASES,
        reading::CASES,
        questions::CASES,
        requeueing::CASES,
    ];
    by_concern.into_iter().flatten().copied()
}

/// Runs every case on a fresh subject.
///
/// # Panics
///
/// If cases failed, with their names and what each says.
pub fn run(fresh: impl Fn() -> Box<dyn Subject>) {
    let failures: Vec<String> = cases().filter_map(|case| failure_of(case, &fresh)).collect();
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

fn failure_of(case: Case, fresh: &impl Fn() -> Box<dyn Subject>) -> Option<String> {
    let payload = catch_unwind(AssertUnwindSafe(|| case.run(&*fresh()))).err()?;
    Some(format!("{}: {}", case.name(), said_by(&*payload)))
}

fn said_by(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRepository;
    use crate::testing::{Fault, FaultyRepository, Verb};
    use std::collections::BTreeSet;

    #[test]
    fn no_two_cases_have_the_same_name() {
        let names: BTreeSet<&str> = cases().map(|case| case.name()).collect();
        assert_eq!(names.len(), cases().count());
    }

    #[test]
    fn a_repository_that_breaks_the_contract_is_told_how() {
        let clock = ManualClock::new();
        let memory = MemoryRepository::with_clock(clock.clone());
        let faulty = FaultyRepository::new(Arc::new(memory));
        faulty.on(Verb::Cancel, Fault::ErrorAlways);
        let subject = OnManualClock::new(faulty, clock);
        let case = cases().find(|case| case.name() == "a_cancel_says_what_it_found").unwrap();
        let panic = catch_unwind(AssertUnwindSafe(|| case.run(&subject))).unwrap_err();
        assert!(said_by(&*panic).contains("a fault that the test planned"));
    }

    #[test]
    fn the_memory_repository_conforms() {
        run(|| {
            let clock = ManualClock::new();
            Box::new(OnManualClock::new(MemoryRepository::with_clock(clock.clone()), clock))
        });
    }
}
