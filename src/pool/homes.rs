//! What a pool that is one of several has to do with where sessions live: a strict unit moves in before it gets a place, and
//! out when it has left.

use std::sync::Arc;

use super::core::Core;
use super::error::Refusal;
use super::line::{Claimable, Tie};
use super::residence::{Elsewhere, Residences, Resident, Stay};
use crate::lease::Claim;
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

/// A unit is given to a worker, where others of its session find it from now on.
pub(super) fn settle_in(core: &Core, claim: &Claim, worker_id: &WorkerId) {
    let Some(homes) = &core.homes else { return };
    if let Some(tie) = Tie::of(&claim.unit.options, core.settings.affinity) {
        let until_ms = core.in_ms(core.settings.affinity_ttl);
        homes.residences.settle(&tie.key, &homes.resident(core), worker_id, until_ms);
    }
}

/// The pool has stopped: no session lives here any more.
pub(super) fn move_out(core: &Core) {
    if let Some(homes) = &core.homes {
        homes.residences.leave_all(core.number);
    }
}
