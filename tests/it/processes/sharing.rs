//! Nobody dies, or somebody always does: the work is shared, and a unit that kills whoever touches it harms only itself.

use std::sync::atomic::{AtomicUsize, Ordering};

use workcrew::{Archive as _, FailureKind, Outcome, UnitStatus};

use super::{Act, Shared};
use crate::children::was_killed;

const UNITS: usize = 2_000;
const NAMES: [&str; 3] = ["a", "b", "c"];

#[test]
fn three_processes_share_two_thousand_units_and_each_is_executed_once() {
    // 003-F1, 003-F2, 003-F38
    let shared = Shared::new(Act::Gate.units(UNITS));
    let mut processes = NAMES.map(|name| shared.start(name));
    // Nobody goes on before everybody has something.
    for process in &mut processes {
        process.wait_for("executing");
    }
    for process in &mut processes {
        process.tell("go on");
    }
    for process in processes {
        let lines = process.end_well();
        assert!(lines.last().unwrap().starts_with("Done: "), "{lines:?}");
    }
    let counts = shared.repository.counts(shared.job).unwrap();
    assert_eq!((counts.completed, counts.total()), (UNITS as u64, UNITS as u64));
    let executed = NAMES.map(|name| shared.executed_by(name));
    assert!(executed.iter().all(|units| !units.is_empty()));
    assert_eq!(executed.iter().map(|units| units.len()).sum::<usize>(), UNITS, "none of them twice");
    assert_eq!(shared.notes("callback").len(), UNITS);
    for id in &shared.ids {
        assert_eq!(shared.unit(id).attempt_count, 1, "{id}");
    }
    shared.assert_in_order(0);
}

#[test]
fn a_unit_that_kills_every_process_ends_failed_and_all_others_complete() {
    // 003-F62; that a crash counts as an attempt
    const EXECUTIONS: u32 = 3;
    let poison = Act::Die.unit("die").max_retries(EXECUTIONS - 1);
    // Each of the others may be lost with it that often, and once more is enough.
    let others = Act::Work.units(100);
    let shared = Shared::new(others[..40].iter().cloned().chain([poison]).chain(others[40..].iter().cloned()));
    let kills = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for place in ["a", "b"] {
            let (shared, kills) = (&shared, &kills);
            threads.spawn(move || {
                for generation in 0.. {
                    assert!(generation <= EXECUTIONS, "it goes on killing");
                    let (status, lines) = shared.start(&format!("{place}{generation}")).end();
                    if status.success() {
                        assert!(lines.last().unwrap().starts_with("Done: "), "{lines:?}");
                        break;
                    }
                    assert!(was_killed(status), "{status}: {lines:?}");
                    kills.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(kills.load(Ordering::SeqCst), EXECUTIONS as usize);
    let poison = shared.unit("die");
    assert_eq!((poison.status, poison.attempts_used), (UnitStatus::Failed, EXECUTIONS));
    assert_eq!(poison.failure.unwrap().kind, FailureKind::LOST);
    assert!(shared.attempts("die").iter().all(|attempt| attempt.outcome == Some(Outcome::Lost)));
    let counts = shared.repository.counts(shared.job).unwrap();
    assert_eq!((counts.completed, counts.failed, counts.total()), (100, 1, 101));
    shared.assert_in_order(EXECUTIONS as usize);
}
