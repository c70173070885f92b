//! What a unit may cost, over all its attempts ([`NewUnit::max_cost`](crate::NewUnit::max_cost)).
//!
//! | looked at | if its unit has cost | |
//! |---|---|---|
//! | before an attempt begins (`run`) | as much as it may | it is not executed, and the unit failed |
//! | when it tells what it used (`execution`) | more than it may | it is asked to stop |
//! | when it failed and would be tried again (`judge`) | as much as it may | the unit failed |
//!
//! What nobody can price counts for nothing.

use crate::attempt::{Failure, FailureKind};
use crate::money::Money;
use crate::unit::WorkUnit;

/// Whether a unit that has cost this much has cost as much as it may.
pub(super) fn is_reached(unit: &WorkUnit, cost: Money) -> bool {
    unit.options.max_cost.is_some_and(|limit| cost >= limit)
}

/// Whether it has cost more than that.
pub(super) fn is_exceeded(unit: &WorkUnit, cost: Money) -> bool {
    unit.options.max_cost.is_some_and(|limit| cost > limit)
}

/// Why it failed then, and what its last attempt has to say to that, if it has something to say.
pub(super) fn failure(unit: &WorkUnit, cost: Money, said: Option<String>) -> Failure {
    let limit = unit.options.max_cost.unwrap_or_default();
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    Failure::new(FailureKind::COST_LIMIT, format!("it has cost {cost} of at most {limit}{said}"))
}
