//! Where sessions live: which pool of a set, and which of its workers, has what a session or an affinity key stands for.
//!
//! | a key | is there | goes when |
//! |---|---|---|
//! | has open strict units ([`Stay`]) | for as long as they are open | their pool has stopped |
//! | was with a worker ([`Residences::settle`], [`Residences::stayed`]) | until its time is over | its time is over; its worker takes nothing any more, or its pool has stopped; or too many are remembered: then the one used longest ago |
//! | neither | not at all | – |
//!
//! A strict unit may live only where its key does. So of two pools that want the same key at the same time exactly one gets
//! it, in the critical section that looks it up.
//!
//! The lock is a leaf: nothing else is held with it, and nothing is called under it. What is kept is plain data.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError};

use super::lock::assert_none_held;
use crate::sync::{Mutex, MutexGuard};
use crate::worker::WorkerId;

/// How many keys are remembered that no open unit uses.
pub(super) const REMEMBERED_LIMIT: usize = 100_000;

/// How many keys whose time is over are forgotten in one call: more than one call adds, and never so many that it takes long.
const FORGOTTEN_PER_CALL: usize = 8;

/// A pool, as it is known here.
#[derive(Clone, Debug)]
pub(super) struct Resident {
    /// Names the pool in this process.
    pub(super) number: u64,
    /// Names it in its set.
    pub(super) name: Arc<str>,
}

/// The key lives in another pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elsewhere {
    pub(super) pool: Arc<str>,
    /// Which worker has it, if that is known yet.
    pub(super) worker: Option<WorkerId>,
}

/// Where the keys of all pools of a set live.
#[derive(Debug)]
pub(super) struct Residences {
    limit: usize,
    state: Mutex<State>,
}

impl Residences {
    /// Nobody lives anywhere. At most so many keys are remembered that no open unit uses.
    pub(super) fn new(limit: usize) -> Residences {
        Residences { limit, state: Mutex::default() }
    }

    /// A strict unit wants to live in this pool. It may if nobody lives there, if the same pool does, or if whoever did has no open
    /// units and its time is over. It lives there until what is returned is dropped.
    pub(super) fn enter(self: &Arc<Self>, key: &Arc<str>, pool: &Resident, now_ms: i64) -> Result<Stay, Elsewhere> {
        let mut state = self.lock();
        state.pass_time(now_ms);
        let is_lived_in = |residence: &&Residence| residence.is_lived_in(now_ms);
        match state.keys.get(key).filter(is_lived_in) {
            Some(other) if other.pool.number != pool.number => return Err(other.elsewhere()),
            Some(_) => {}
            // What is left of whoever did is not for the next.
            None => drop(state.take(key)),
        }
        let mut residence = state.take_or_new(key, pool);
        residence.open_units += 1;
        let number = residence.number;
        state.put(key, residence);
        Ok(Stay { residences: Arc::clone(self), key: Arc::clone(key), number })
    }

    /// A unit with this key was given to a worker, and is to be found there until then. Where open strict units of another pool
    /// live, that changes nothing.
    pub(super) fn settle(&self, key: &Arc<str>, pool: &Resident, worker_id: &WorkerId, until_ms: i64) {
        let mut state = self.lock();
        match state.keys.get(key) {
            Some(other) if other.pool.number != pool.number && other.open_units > 0 => return,
            Some(other) if other.pool.number != pool.number => drop(state.take(key)),
            _ => {}
        }
        let mut residence = state.take_or_new(key, pool);
        residence.worker = Some(worker_id.clone());
        residence.until_ms = until_ms;
        state.put(key, residence);
        state.keep_to(self.limit);
    }

    /// A unit with this key was with a worker until now. If that is still where it is to be found, it is until then.
    pub(super) fn stayed(&self, key: &Arc<str>, pool: &Resident, worker_id: &WorkerId, until_ms: i64) {
        let mut state = self.lock();
        let is_there = |residence: &&Residence| {
            residence.pool.number == pool.number && residence.worker.as_ref() == Some(worker_id)
        };
        if state.keys.get(key).filter(is_there).is_none() {
            return;
        }
        let Some(residence) = state.take(key) else { return };
        state.put(key, Residence { until_ms, ..residence });
    }

    /// In which pool a key lives, and with which worker, if that is known.
    pub(super) fn at(&self, key: &str, now_ms: i64) -> Option<(String, WorkerId)> {
        let mut state = self.lock();
        state.pass_time(now_ms);
        let residence = state.keys.get(key).filter(|residence| residence.is_lived_in(now_ms))?;
        Some((residence.pool.name.to_string(), residence.worker.clone()?))
    }

    /// A worker takes nothing any more: what no open unit uses lives nowhere, the rest with a worker that is yet to be found.
    pub(super) fn worker_goes(&self, pool_number: u64, worker_id: &WorkerId) {
        let mut state = self.lock();
        for key in state.by_worker.remove(&(pool_number, worker_id.clone())).unwrap_or_default() {
            let Some(mut residence) = state.take(&key) else { continue };
            if residence.open_units > 0 {
                (residence.worker, residence.until_ms) = (None, i64::MIN);
                state.put(&key, residence);
            }
        }
    }

    /// The pool has stopped: nobody lives there any more. That is the one call that looks at every key.
    pub(super) fn leave_all(&self, pool_number: u64) {
        let mut state = self.lock();
        let left = state.keys.iter().filter(|(_, residence)| residence.pool.number == pool_number);
        let left: Vec<Arc<str>> = left.map(|(key, _)| Arc::clone(key)).collect();
        for key in left {
            state.take(&key);
        }
    }

    /// A strict unit has left.
    fn end_stay(&self, key: &Arc<str>, number: u64) {
        let mut state = self.lock();
        // Its pool may have stopped since, and somebody else live there.
        if state.keys.get(key).is_none_or(|residence| residence.number != number) {
            return;
        }
        let Some(mut residence) = state.take(key) else { return };
        residence.open_units -= 1;
        // What no worker has is not worth remembering.
        if residence.open_units > 0 || residence.worker.is_some() {
            state.put(key, residence);
            state.keep_to(self.limit);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        assert_none_held();
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A strict unit lives where it wanted to. Dropped, it has left.
#[derive(Debug)]
#[must_use = "the unit leaves when this is dropped"]
pub(super) struct Stay {
    residences: Arc<Residences>,
    key: Arc<str>,
    /// Of the residence.
    number: u64,
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.residences.end_stay(&self.key, self.number);
    }
}

/// Where one key lives.
#[derive(Debug)]
struct Residence {
    /// Never the same again, so that whoever leaves does not leave for another.
    number: u64,
    pool: Resident,
    worker: Option<WorkerId>,
    /// Strict units that live here.
    open_units: usize,
    /// Until when it is remembered without any.
    until_ms: i64,
    /// The how-manieth use of any key the last of this one was.
    used: u64,
}

impl Residence {
    fn is_lived_in(&self, now_ms: i64) -> bool {
        self.open_units > 0 || now_ms < self.until_ms
    }

    /// The worker it is with, and whose that is.
    fn with(&self) -> Option<(u64, WorkerId)> {
        Some((self.pool.number, self.worker.clone()?))
    }

    fn elsewhere(&self) -> Elsewhere {
        Elsewhere { pool: Arc::clone(&self.pool.name), worker: self.worker.clone() }
    }
}

#[derive(Debug, Default)]
struct State {
    keys: HashMap<Arc<str>, Residence>,
    /// Those without open units, by when they were used last.
    by_use: BTreeMap<u64, Arc<str>>,
    /// The same by when their time is over; the second is when they were used last.
    by_end: BTreeSet<(i64, u64)>,
    /// The keys that live with a worker of a pool.
    by_worker: HashMap<(u64, WorkerId), HashSet<Arc<str>>>,
    /// The latest time that anybody told.
    now_ms: Option<i64>,
    uses: u64,
    residences_ever: u64,
}

impl State {
    /// Takes a key out, to change where it lives and [put](State::put) it back.
    fn take(&mut self, key: &str) -> Option<Residence> {
        let residence = self.keys.remove(key)?;
        if let Some(with) = residence.with()
            && let Some(keys) = self.by_worker.get_mut(&with)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_worker.remove(&with);
            }
        }
        if residence.open_units == 0 {
            self.by_use.remove(&residence.used);
            self.by_end.remove(&(residence.until_ms, residence.used));
        }
        Some(residence)
    }

    fn take_or_new(&mut self, key: &str, pool: &Resident) -> Residence {
        self.take(key).unwrap_or_else(|| {
            self.residences_ever += 1;
            let number = self.residences_ever;
            Residence { number, pool: pool.clone(), worker: None, open_units: 0, until_ms: i64::MIN, used: 0 }
        })
    }

    /// Puts a key back, which is used thereby.
    fn put(&mut self, key: &Arc<str>, mut residence: Residence) {
        self.uses += 1;
        residence.used = self.uses;
        if residence.open_units == 0 {
            self.by_use.insert(residence.used, Arc::clone(key));
            self.by_end.insert((residence.until_ms, residence.used));
        }
        if let Some(with) = residence.with() {
            self.by_worker.entry(with).or_default().insert(Arc::clone(key));
        }
        self.keys.insert(Arc::clone(key), residence);
    }

    /// Forgets some of those whose time is over.
    fn pass_time(&mut self, now_ms: i64) {
        self.now_ms = self.now_ms.max(Some(now_ms));
        for _ in 0..FORGOTTEN_PER_CALL {
            if !self.forget_over() {
                break;
            }
        }
    }

    /// Forgets one whose time is over; `false` if there is none.
    fn forget_over(&mut self) -> bool {
        let is_over = |&&(until_ms, _): &&(i64, u64)| self.now_ms.is_some_and(|now_ms| until_ms <= now_ms);
        let Some(&(_, used)) = self.by_end.first().filter(is_over) else { return false };
        self.forget(used)
    }

    /// Forgets what is too much: first those whose time is over, then those used longest ago.
    fn keep_to(&mut self, limit: usize) {
        while self.by_use.len() > limit {
            let Some(&oldest) = self.by_use.keys().next() else { return };
            if !self.forget_over() {
                self.forget(oldest);
            }
        }
    }

    /// Forgets the one that was used then.
    fn forget(&mut self, used: u64) -> bool {
        let Some(key) = self.by_use.get(&used).cloned() else { return false };
        self.take(&key).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    const NOW_MS: i64 = 1_000;

    fn residences(limit: usize) -> Arc<Residences> {
        Arc::new(Residences::new(limit))
    }

    fn pool(number: u64) -> Resident {
        Resident { number, name: format!("pool {number}").into() }
    }

    fn worker(id: &str) -> WorkerId {
        WorkerId::new(id).unwrap()
    }

    fn key(key: &str) -> Arc<str> {
        key.into()
    }

    fn home(pool: u64, worker_id: &str) -> Option<(String, WorkerId)> {
        Some((format!("pool {pool}"), worker(worker_id)))
    }

    /// How many keys are known, and how many of them no open unit uses.
    fn counts(residences: &Residences) -> (usize, usize) {
        let state = residences.lock();
        assert_eq!(state.by_use.len(), state.by_end.len());
        for (used, key) in &state.by_use {
            let residence = &state.keys[key];
            assert_eq!((residence.used, residence.open_units), (*used, 0));
            assert!(state.by_end.contains(&(residence.until_ms, *used)));
        }
        (state.keys.len(), state.by_use.len())
    }

    #[test]
    fn what_was_with_a_worker_that_has_gone_may_go_anywhere_unless_it_is_in_use() {
        let residences = residences(10);
        let in_use = residences.enter(&key("in use"), &pool(1), NOW_MS).unwrap();
        for name in ["in use", "remembered", "elsewhere"] {
            let worker = if name == "elsewhere" { worker("w2") } else { worker("w1") };
            residences.settle(&key(name), &pool(1), &worker, NOW_MS + 1_000);
        }
        residences.worker_goes(2, &worker("w1"));
        assert_eq!(residences.at("remembered", NOW_MS), home(1, "w1"), "another pool's worker was meant");
        residences.worker_goes(1, &worker("w1"));
        assert_eq!((residences.at("remembered", NOW_MS), residences.at("elsewhere", NOW_MS)), (None, home(1, "w2")));
        let _moved = residences.enter(&key("remembered"), &pool(2), NOW_MS).unwrap();
        assert!(residences.enter(&key("in use"), &pool(2), NOW_MS).is_err());
        drop(in_use);
        let _moved = residences.enter(&key("in use"), &pool(2), NOW_MS).unwrap();
        residences.leave_all(2);
        assert_eq!(counts(&residences), (1, 1));
        assert_eq!(residences.lock().by_worker.len(), 1);
    }

    #[test]
    fn where_strict_units_are_open_no_other_pool_gets_in() {
        let residences = residences(10);
        let first = residences.enter(&key("s"), &pool(1), NOW_MS).unwrap();
        let second = residences.enter(&key("s"), &pool(1), NOW_MS).unwrap();
        let elsewhere = Elsewhere { pool: "pool 1".into(), worker: None };
        assert_eq!(residences.enter(&key("s"), &pool(2), NOW_MS).unwrap_err(), elsewhere);
        let _other_key = residences.enter(&key("t"), &pool(2), NOW_MS).unwrap();
        drop(first);
        // Its time is over, but not all have left.
        assert!(residences.enter(&key("s"), &pool(2), i64::MAX).is_err());
        drop(second);
        let _now_there = residences.enter(&key("s"), &pool(2), NOW_MS).unwrap();
        assert!(residences.enter(&key("s"), &pool(1), NOW_MS).is_err());
        assert_eq!(counts(&residences), (2, 0));
    }

    #[test]
    fn whoever_is_turned_away_hears_which_worker_of_which_pool_has_it() {
        let residences = residences(10);
        let _stay = residences.enter(&key("s"), &pool(1), NOW_MS).unwrap();
        assert_eq!(residences.at("s", NOW_MS), None, "no worker has it yet");
        residences.settle(&key("s"), &pool(1), &worker("w3"), NOW_MS);
        let elsewhere = residences.enter(&key("s"), &pool(2), NOW_MS).unwrap_err();
        assert_eq!(elsewhere, Elsewhere { pool: "pool 1".into(), worker: Some(worker("w3")) });
        assert_eq!(residences.at("s", NOW_MS), home(1, "w3"));
    }

    #[test]
    fn it_is_remembered_until_its_time_is_over_and_then_is_anybodys() {
        let residences = residences(10);
        let stay = residences.enter(&key("s"), &pool(1), NOW_MS).unwrap();
        residences.settle(&key("s"), &pool(1), &worker("w1"), NOW_MS + 10);
        drop(stay);
        assert_eq!(residences.at("s", NOW_MS + 9), home(1, "w1"));
        assert!(residences.enter(&key("s"), &pool(2), NOW_MS + 9).is_err());
        assert_eq!(residences.at("s", NOW_MS + 10), None);
        assert_eq!(counts(&residences), (0, 0));
        let _stay = residences.enter(&key("s"), &pool(2), NOW_MS + 10).unwrap();
        assert_eq!(residences.at("s", NOW_MS + 10), None, "the worker of before is not where it lives now");
    }

    #[test]
    fn it_is_remembered_from_when_its_worker_had_it_last_if_it_still_is_there() {
        let residences = residences(10);
        residences.stayed(&key("s"), &pool(1), &worker("w1"), NOW_MS + 10);
        assert_eq!(counts(&residences), (0, 0), "it never was");
        residences.settle(&key("s"), &pool(1), &worker("w1"), NOW_MS + 10);
        residences.stayed(&key("s"), &pool(1), &worker("w1"), NOW_MS + 20);
        residences.stayed(&key("s"), &pool(1), &worker("w2"), NOW_MS + 30);
        residences.stayed(&key("s"), &pool(2), &worker("w1"), NOW_MS + 30);
        assert_eq!(residences.at("s", NOW_MS + 19), home(1, "w1"));
        assert_eq!(residences.at("s", NOW_MS + 20), None);
    }

    #[test]
    fn a_pool_that_comes_back_after_its_time_finds_nothing_of_its_own_either() {
        let residences = residences(FORGOTTEN_PER_CALL * 3);
        // So many that one call does not forget them all.
        for number in 0..FORGOTTEN_PER_CALL * 2 {
            residences.settle(&key(&format!("s{number}")), &pool(1), &worker("w1"), NOW_MS + number as i64);
        }
        let last = format!("s{}", FORGOTTEN_PER_CALL * 2 - 1);
        let _stay = residences.enter(&key(&last), &pool(1), NOW_MS + 100).unwrap();
        assert_eq!(residences.at(&last, NOW_MS + 100), None);
    }

    #[test]
    fn a_hint_goes_where_it_was_given_to_but_not_over_open_strict_units() {
        let residences = residences(10);
        residences.settle(&key("s"), &pool(1), &worker("w1"), NOW_MS + 10);
        residences.settle(&key("s"), &pool(2), &worker("w2"), NOW_MS + 5);
        assert_eq!(residences.at("s", NOW_MS), home(2, "w2"));
        let stay = residences.enter(&key("s"), &pool(2), NOW_MS).unwrap();
        residences.settle(&key("s"), &pool(1), &worker("w1"), NOW_MS + 10);
        assert_eq!(residences.at("s", NOW_MS), home(2, "w2"));
        residences.settle(&key("s"), &pool(2), &worker("w4"), NOW_MS + 5);
        assert_eq!(residences.at("s", NOW_MS), home(2, "w4"), "its own pool may move it");
        drop(stay);
        residences.settle(&key("s"), &pool(1), &worker("w1"), NOW_MS + 10);
        assert_eq!(residences.at("s", NOW_MS), home(1, "w1"));
        assert_eq!(counts(&residences), (1, 1));
    }

    #[test]
    fn a_pool_that_has_stopped_lives_nowhere_and_whoever_leaves_it_late_disturbs_nobody() {
        let residences = residences(10);
        let late = residences.enter(&key("s"), &pool(1), NOW_MS).unwrap();
        residences.settle(&key("t"), &pool(1), &worker("w1"), NOW_MS + 10);
        residences.settle(&key("u"), &pool(2), &worker("w2"), NOW_MS + 10);
        residences.leave_all(1);
        assert_eq!(counts(&residences), (1, 1));
        assert_eq!((residences.at("t", NOW_MS), residences.at("u", NOW_MS)), (None, home(2, "w2")));
        let _stay = residences.enter(&key("s"), &pool(2), NOW_MS).unwrap();
        drop(late);
        assert!(residences.enter(&key("s"), &pool(3), NOW_MS).is_err());
        residences.leave_all(2);
        assert_eq!(counts(&residences), (0, 0));
    }

    #[test]
    fn of_too_many_the_one_used_longest_ago_is_forgotten_and_none_that_is_in_use() {
        let residences = residences(3);
        let settle = |id: &str| residences.settle(&key(id), &pool(1), &worker("w1"), NOW_MS + 10);
        let in_use = residences.enter(&key("in use"), &pool(1), NOW_MS).unwrap();
        settle("in use");
        for id in ["a", "b", "c", "a", "d"] {
            settle(id);
        }
        let is_known = |id: &str| residences.at(id, NOW_MS).is_some();
        assert_eq!(["in use", "a", "b", "c", "d"].map(is_known), [true, true, false, true, true]);
        assert_eq!(counts(&residences), (4, 3));
        // It was used until now.
        drop(in_use);
        assert_eq!(["in use", "a", "c", "d"].map(is_known), [true, true, false, true]);
        let again = residences.enter(&key("a"), &pool(1), NOW_MS).unwrap();
        settle("e");
        drop(again);
        assert_eq!(["in use", "a", "d", "e"].map(is_known), [true, true, false, true]);
    }

    #[test]
    fn of_too_many_one_whose_time_is_over_is_forgotten_first_of_all() {
        let residences = residences(3);
        let settle = |id: &str, until_ms| residences.settle(&key(id), &pool(1), &worker("w1"), until_ms);
        settle("long", NOW_MS + 100);
        settle("short", NOW_MS + 10);
        settle("medium", NOW_MS + 50);
        // Somebody tells the time, and is too early to have anything forgotten.
        assert!(residences.at("short", NOW_MS + 9).is_some());
        settle("short", NOW_MS + 9);
        settle("new", NOW_MS + 100);
        let is_known = |id: &str| residences.at(id, NOW_MS + 9).is_some();
        assert_eq!(["long", "short", "medium", "new"].map(is_known), [true, false, true, true]);
    }

    #[test]
    fn what_is_over_is_forgotten_bit_by_bit() {
        let residences = residences(REMEMBERED_LIMIT);
        for number in 0..1_000 {
            residences.settle(&key(&number.to_string()), &pool(1), &worker("w1"), NOW_MS);
        }
        let mut calls = 0;
        while counts(&residences).0 > 0 {
            let before = counts(&residences).0;
            assert_eq!(residences.at("nobody", NOW_MS), None);
            assert_eq!(counts(&residences).0, before - before.min(FORGOTTEN_PER_CALL));
            calls += 1;
        }
        assert_eq!(calls, 1_000 / FORGOTTEN_PER_CALL);
    }

    #[test]
    fn of_two_pools_that_enter_at_the_same_time_exactly_one_gets_in() {
        let (residences, both) = (residences(10), Barrier::new(2));
        for round in 0..2_000 {
            // Every other time it was somebody's before, whose time is over.
            if round % 2 == 0 {
                residences.settle(&key("s"), &pool(3), &worker("w1"), NOW_MS);
            }
            let enter = |number| {
                both.wait();
                let entered = residences.enter(&key("s"), &pool(number), NOW_MS);
                both.wait();
                entered
            };
            let entered = thread::scope(|threads| {
                let other = threads.spawn(|| enter(1));
                [enter(2), other.join().unwrap()]
            });
            assert_eq!(entered.iter().filter(|entered| entered.is_ok()).count(), 1, "round {round}");
            drop(entered);
            assert_eq!(counts(&residences), (0, 0));
        }
    }

    #[test]
    fn pools_that_come_and_go_at_random_never_share_a_key() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let (residences, inside) = (residences(2), [const { AtomicU64::new(0) }; 4]);
        thread::scope(|threads| {
            for number in 1..=4 {
                let (residences, inside) = (&residences, &inside);
                threads.spawn(move || {
                    for round in 0..2_000 {
                        let which = (round * number as usize) % inside.len();
                        let name = key(&which.to_string());
                        let Ok(stay) = residences.enter(&name, &pool(number), round as i64) else { continue };
                        assert_eq!(inside[which].swap(number, Ordering::AcqRel), 0);
                        residences.settle(&name, &pool(number), &worker("w1"), round as i64);
                        inside[which].store(0, Ordering::Release);
                        drop(stay);
                    }
                });
            }
        });
        let (known, idle) = counts(&residences);
        assert!(known == idle && idle <= 2);
    }
}
