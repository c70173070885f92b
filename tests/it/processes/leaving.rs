//! One of the processes is told to stop: what it has it finishes or gives back, as it was told, and others do the rest.

use workcrew::{Outcome, UnitStatus, WorkerStatus};

use super::{Act, Shared, WORKERS};
use crate::children::Child;
use crate::pool::until;

/// More than a process executes at a time.
const OTHERS: usize = 20;

/// A process that has as many units of this kind in hand as it can, while others wait.
fn busy(act: Act) -> (Shared, Child) {
    let shared = Shared::new([act.units(WORKERS), Act::Work.units(OTHERS)].concat());
    let mut leaving = shared.start("leaving");
    for _ in 0..WORKERS {
        leaving.wait_for("executing");
    }
    (shared, leaving)
}

impl Shared {
    fn assert_workers_of_leaving(&self, status: WorkerStatus, load: u32) {
        let workers = self.workers("leaving");
        assert_eq!(workers.len(), WORKERS);
        assert!(workers.iter().all(|worker| (worker.status, worker.load) == (status, load)), "{workers:?}");
    }

    /// Another process does what is left.
    fn carry_on(&self, left: usize) {
        let lines = self.start("other").end_well();
        assert_eq!(lines, [format!("Done: {left} completed, 0 left, 0 lost")]);
        assert_eq!(self.executed_by("other").len(), left);
        assert_eq!(self.notes("callback").len(), self.ids.len());
        self.assert_in_order(0);
    }

    /// The units that were in hand wait as if they had never been tried.
    fn assert_given_back(&self, act: Act) {
        for id in self.ids_of(act) {
            let unit = self.unit(id);
            assert_eq!((unit.status, unit.accepted_by, unit.attempts_used), (UnitStatus::Pending, None, 0), "{id}");
            let [attempt] = &self.attempts(id)[..] else { panic!("{id} was tried again") };
            assert_eq!((attempt.outcome, attempt.is_counted), (Some(Outcome::Released), false), "{id}");
        }
    }
}

#[test]
fn a_process_that_drains_finishes_what_it_has_and_leaves_the_rest() {
    // 003-F17, 003-F19, 003-F24, 003-F25, 003-F26
    let (shared, mut leaving) = busy(Act::Gate);
    leaving.tell("drain");
    leaving.wait_for("heard drain");
    let are_told = || shared.workers("leaving").iter().all(|worker| worker.status == WorkerStatus::ShuttingDown);
    until(are_told);
    shared.assert_workers_of_leaving(WorkerStatus::ShuttingDown, 1);
    leaving.tell("go on");
    let lines = leaving.end_well();
    assert_eq!(lines, ["heard go on".to_owned(), format!("Stopped: {WORKERS} completed, 0 left, 0 lost")]);
    shared.assert_workers_of_leaving(WorkerStatus::Terminated, 0);
    for id in shared.ids_of(Act::Work) {
        assert_eq!((shared.unit(id).status, shared.unit(id).attempt_count), (UnitStatus::Pending, 0), "{id}");
    }
    shared.carry_on(OTHERS);
}

#[test]
fn a_process_that_cancels_gives_back_what_it_has_and_that_uses_up_no_attempt() {
    // 003-F19, 003-F27, 003-F33, 003-F37
    let (shared, mut leaving) = busy(Act::Stay);
    leaving.tell("cancel");
    let lines = leaving.end_well();
    assert_eq!(lines, ["heard cancel".to_owned(), format!("Stopped: 0 completed, {WORKERS} left, 0 lost")]);
    shared.assert_workers_of_leaving(WorkerStatus::Terminated, 0);
    shared.assert_given_back(Act::Stay);
    shared.carry_on(WORKERS + OTHERS);
    for id in shared.ids_of(Act::Stay) {
        assert_eq!(shared.unit(id).attempts_used, 1, "{id}");
        shared.assert_resumed(id);
    }
}

#[test]
fn a_process_that_stops_now_waits_for_nobody_and_gives_back_what_it_has() {
    // 003-F19, 003-F27
    let (shared, mut leaving) = busy(Act::Deaf);
    leaving.tell("now");
    let lines = leaving.end_well();
    assert_eq!(lines.last().unwrap(), &format!("Stopped: 0 completed, {WORKERS} left, 0 lost"));
    shared.assert_workers_of_leaving(WorkerStatus::Terminated, 0);
    shared.assert_given_back(Act::Deaf);
    shared.carry_on(WORKERS + OTHERS);
    for id in shared.ids_of(Act::Deaf) {
        shared.assert_resumed(id);
    }
}
