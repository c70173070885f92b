//! Who has to go when a new key needs a place and there is none.

use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Which idle process makes room for another. Among equals it is the one that was started first.
///
/// ```
/// use workcrew::executor::warm::{Eviction, Keep};
///
/// let keep = Keep::up_to(8).eviction(Eviction::LeastUsed);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Eviction {
    /// The one that was used longest ago.
    #[default]
    Lru,
    /// The one that was started longest ago.
    Oldest,
    /// The one that was asked least often.
    LeastUsed,
}

/// What is known of a process that might have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) number: u64,
    pub(super) created_at: Instant,
    pub(super) last_activity: Instant,
    pub(super) queries_processed: u64,
}

impl Eviction {
    /// Who has to go; `None` if there is nobody.
    pub(super) fn choose(self, candidates: impl Iterator<Item = Candidate>) -> Option<u64> {
        let chosen = match self {
            Eviction::Lru => candidates.min_by_key(|one| (one.last_activity, one.number)),
            Eviction::Oldest => candidates.min_by_key(|one| (one.created_at, one.number)),
            Eviction::LeastUsed => candidates.min_by_key(|one| (one.queries_processed, one.number)),
        };
        chosen.map(|chosen| chosen.number)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// 002-F57 to F59.
    #[test]
    fn each_policy_has_its_own_victim_and_ties_go_by_sequence() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let one = |number, created, active, queries_processed| Candidate {
            number,
            created_at: at(created),
            last_activity: at(active),
            queries_processed,
        };
        let idle = [one(4, 3, 9, 1), one(2, 1, 8, 5), one(3, 2, 5, 3)];
        let victims =
            [Eviction::Lru, Eviction::Oldest, Eviction::LeastUsed].map(|policy| policy.choose(idle.into_iter()));
        assert_eq!(victims, [Some(3), Some(2), Some(4)]);
        let equal = [one(7, 1, 1, 1), one(5, 1, 1, 1), one(6, 1, 1, 1)];
        for policy in [Eviction::Lru, Eviction::Oldest, Eviction::LeastUsed] {
            assert_eq!(policy.choose(equal.into_iter()), Some(5));
            assert_eq!(policy.choose([].into_iter()), None);
        }
    }
}
