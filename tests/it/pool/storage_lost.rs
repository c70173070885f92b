//! The database is lost while a pool works, and comes back.

use std::time::Duration;

use crossbeam_channel::unbounded;
use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, FaultyRepository, Verb};
use workcrew::{Completion, Event, ExecuteError, NewUnit, Stop, UnitStatus};

use super::{World, next, stage, until};
use crate::support::Up as _;

const SECOND: Duration = Duration::from_secs(1);

/// All that a pool calls while it has something to do.
const VERBS: [Verb; 9] = [
    Verb::Renew,
    Verb::Claim,
    Verb::Claimed,
    Verb::Finish,
    Verb::Release,
    Verb::Progress,
    Verb::Expire,
    Verb::ChangeWorker,
    Verb::Read,
];

fn lose(repository: &FaultyRepository) {
    for verb in VERBS {
        repository.on(verb, Fault::ErrorAlways);
    }
}

fn find_again(repository: &FaultyRepository) {
    for verb in VERBS {
        repository.heal(verb);
    }
}

#[test]
fn a_worker_that_has_lost_the_database_for_good_ends_and_another_goes_on_when_it_is_back() {
    // 003-F63, 003-F64, 003-F65
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (tell, ended) = unbounded();
    let builder =
        builder.max_workers(1).lease(60 * SECOND).heartbeat(15 * SECOND).observer(move |event: &Event<'_>| {
            if let Event::WorkerEnded { worker_id, .. } = event {
                tell.send(worker_id.to_string()).unwrap();
            }
        });
    let pool = builder.up();
    let handle = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    // Time passes no faster than the heart beats.
    let beat = || {
        let renewals = faulty.calls(Verb::Renew);
        world.clock.advance(15 * SECOND);
        until(|| faulty.calls(Verb::Renew) > renewals);
    };
    lose(&faulty);
    beat();
    beat();
    assert!(!call.cancel.is_cancelled(), "it is tried again, and there is time");
    beat();
    // Before anybody else may begin it.
    assert_eq!(call.asked(), CancelReason::LeaseLost);
    let first = call.worker.clone();
    find_again(&faulty);
    call.fail(ExecuteError::retry("asked to stop"));
    assert_eq!(next(&ended), first, "it ends in order");
    let again = stage.next();
    assert_eq!((again.id.as_str(), again.attempt_number), ("a", 2));
    assert_ne!(again.worker, first);
    drop(again);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!((world.status("a"), world.unit("a").attempts_used), (UnitStatus::Completed, 1));
    drop(handle);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
