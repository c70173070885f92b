//! Chance that can be repeated.

/// A small generator of numbers that look random (SplitMix64).
///
/// Our own, because what it gives for a seed must stay the same from one version of a library to the next.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// The numbers for one purpose in one attempt, which tell nothing of those for another.
    pub(super) fn of(seed: u64, unit_id: &str, attempt_number: u32, purpose: &str) -> Dice {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(&attempt_number.to_le_bytes());
        // The length first, so that no letter can move from one text to the other.
        hasher.update(&unit_id.len().to_le_bytes()).update(unit_id.as_bytes()).update(purpose.as_bytes());
        let mut state = [0; 8];
        state.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Dice(u64::from_le_bytes(state))
    }

    /// Any number.
    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0.0 up to, but never, 1.0.
    pub(super) fn fraction(&mut self) -> f64 {
        const STEPS: f64 = (1_u64 << 53) as f64;
        (self.number() >> 11) as f64 / STEPS
    }

    /// A whole number from the first to the second, both included.
    pub(super) fn between(&mut self, min: u32, max: u32) -> u32 {
        let numbers = u64::from(max.saturating_sub(min)) + 1;
        min.saturating_add(u32::try_from(self.number() % numbers).unwrap_or_default())
    }

    /// Whether it happens, if it happens so many times out of a hundred.
    pub(super) fn happens(&mut self, percent: u32) -> bool {
        self.between(1, 100) <= percent
    }

    /// One of them. There must be one.
    pub(super) fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let last = u32::try_from(choices.len() - 1).unwrap_or(u32::MAX);
        &choices[self.between(0, last) as usize]
    }

    /// Sixteen hexadecimal digits.
    pub(super) fn digits(&mut self) -> String {
        format!("{:016x}", self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_the_same_for_ever() {
        let mut dice = Dice::of(7, "a", 1, "fate");
        let numbers = [dice.number(), dice.number(), dice.number()];
        let mut again = Dice::of(7, "a", 1, "fate");
        assert_eq!(numbers, [again.number(), again.number(), again.number()]);
        // The published numbers of SplitMix64 for the seed 1234567.
        let mut dice = Dice(1_234_567);
        assert_eq!([dice.number(), dice.number()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn everything_that_names_an_attempt_changes_its_numbers() {
        let first = |seed, id, number, purpose| Dice::of(seed, id, number, purpose).number();
        let all = [
            first(1, "a", 1, "fate"),
            first(2, "a", 1, "fate"),
            first(1, "b", 1, "fate"),
            first(1, "a", 2, "fate"),
            first(1, "a", 1, "attempt"),
            first(1, "af", 1, "ate"),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn numbers_stay_within_their_bounds_and_reach_them() {
        let mut dice = Dice::of(1, "a", 1, "test");
        let rolls: Vec<u32> = (0..1_000).map(|_| dice.between(1, 6)).collect();
        assert_eq!((rolls.iter().min(), rolls.iter().max()), (Some(&1), Some(&6)));
        assert_eq!(dice.between(5, 5), 5);
        assert!((0..1_000).map(|_| dice.fraction()).all(|fraction| (0.0..1.0).contains(&fraction)));
    }
}
