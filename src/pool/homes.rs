//! What a pool that is one of several has to do with where sessions live: a strict unit moves in before it gets a place, and
//! out when it has left.

use std::sync::Arc;

use super::capacity::WorkerNumber;
use super::core::Core;
use super::error::Refusal;
use super::line::Claimable;
use super::open_unit::OpenUnit;
use super::residence::{Elsewhere, Residences, Resident, Stay};
use crate::worker::WorkerId;

/// Where the sessions of all pools of a set live, and what this one is called among them.
#[derive(Clone, Debug)]
pub(super) struct Homes {
    pub(super) residences: Arc<Residences>,
    pub(super) name: Arc<str>,
}

impl Homes {
    fn resident(&self, core: &Core) -> Resident {
        Resident { number: core.number, name: Arc::clone(&self.name) }
    }
}

/// A strict unit moves in where its session lives, which has to be this pool. It stays until what is returned is dropped.
pub(super) fn move_in(core: &Core, claimable: &Claimable) -> Result<Option<Stay>, Refusal> {
    let (Some(homes), Some(key)) = (&core.homes, claimable.strict_key()) else { return Ok(None) };
    let entered = homes.residences.enter(key, &homes.resident(core), core.now_ms());
    entered.map(Some).map_err(|Elsewhere { pool, worker }| Refusal::SessionElsewhere {
        key: key.to_string(),
        pool: pool.to_string(),
        worker,
    })
}

/// Whether a unit that was claimed here may be executed here: no pool but this one has its session.
pub(super) fn lives_here(core: &Core, unit: &OpenUnit, claimable: &Claimable) -> bool {
    if core.homes.is_none() || unit.has_stay() {
        return true;
    }
    move_in(core, claimable).map(|stay| unit.stay(stay)).is_ok()
}

/// A unit of a session is given to a worker, or the worker has told that it is in it: others find it there from now on, if it is, and unless
/// the worker takes nothing any more. A hint does not take a session with it that is in use elsewhere.
pub(super) fn settle_in(core: &Core, key: &Arc<str>, worker: WorkerNumber) {
    let Some(homes) = core.homes.as_ref().filter(|_| core.ready.is_session_on(key, worker)) else { return };
    let worker_id = worker.id();
    homes.residences.settle(key, &homes.resident(core), &worker_id, core.in_ms(core.settings.affinity_ttl));
    // Looked at only now: if it departs later, this is there to be found by whoever sees it off.
    if !core.ready.takes_units(worker) {
        homes.residences.worker_goes(core.number, &worker_id);
    }
}

/// A unit of this pool has told that it is in a session which is with its worker: that lives here until what is returned is dropped.
pub(super) fn stay_told(core: &Core, key: &Arc<str>, worker: WorkerNumber) -> Option<Stay> {
    let homes = core.homes.as_ref().filter(|_| core.ready.is_session_on(key, worker))?;
    homes.residences.enter(key, &homes.resident(core), core.now_ms()).ok()
}

/// A unit of a session was with a worker until now, from when on that is remembered.
pub(super) fn stayed(core: &Core, key: &Arc<str>, worker_id: &WorkerId) {
    if let Some(homes) = &core.homes {
        homes.residences.stayed(key, &homes.resident(core), worker_id, core.in_ms(core.settings.affinity_ttl));
    }
}

/// Sessions that were with workers which take nothing any more may go anywhere.
pub(super) fn see_off(core: &Core) {
    for worker in core.ready.take_departed() {
        if let Some(homes) = &core.homes {
            homes.residences.worker_goes(core.number, &worker.id());
        }
    }
}

/// The pool has stopped: no session lives here any more.
pub(super) fn move_out(core: &Core) {
    if let Some(homes) = &core.homes {
        homes.residences.leave_all(core.number);
    }
}
