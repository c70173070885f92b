//! Workers that do as they are told.

use workcrew::{Stop, UnitStatus};

use super::*;

#[test]
fn a_worker_is_asked_one_unit_after_the_other_and_ends_with_its_pool() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(1));
    let first = ask(&pool, "a", "pid");
    let second = ask(&pool, "b", "pid");
    assert_eq!(first.status, UnitStatus::Completed);
    assert_eq!(first.output, second.output, "by the same process");
    assert_eq!(processes.list().len(), 1);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(processes.list(), []);
    eprintln!("{:#?}", world.events());
    world.assert_clean();
}
