//! Telling callers what became of their changes: one by one, or those of a group together.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

use super::{Engine, Waiting};
use crate::repository::{RepositoryError, Result};

/// An answer that a caller waits for.
///
/// A channel would do, but those spin before they sleep: sixty callers that do so leave the writer no processor.
#[derive(Debug)]
pub(in crate::repository) struct Pending<T>(Arc<Place<T>>);

/// The duty to answer a caller. Dropped without an answer, it says that there will be none.
#[derive(Debug)]
pub(in crate::repository) struct Promise<T>(Option<Arc<Place<T>>>);

#[derive(Debug)]
struct Place<T> {
    answer: Mutex<Option<Result<T>>>,
    was_answered: Condvar,
}

/// Both ends of one answer.
pub(in crate::repository) fn promise<T>() -> (Promise<T>, Pending<T>) {
    let place = Arc::new(Place { answer: Mutex::new(None), was_answered: Condvar::new() });
    (Promise(Some(Arc::clone(&place))), Pending(place))
}

impl<T> Pending<T> {
    /// Sleeps until the answer is there.
    pub(in crate::repository) fn wait(self) -> Result<T> {
        let mut answer = self.0.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            answer = self.0.was_answered.wait(answer).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Promise<T> {
    /// Answers the caller.
    pub(in crate::repository) fn keep(mut self, answer: Result<T>) {
        self.answer(answer);
    }

    fn answer(&mut self, answer: Result<T>) {
        let Some(place) = self.0.take() else { return };
        *place.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
        place.was_answered.notify_one();
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        self.answer(Err(RepositoryError::Closed));
    }
}

/// The thread that wakes the callers of a large group, while the writer goes on with the next.
///
/// Waking a caller and freeing what it brought takes a good part of the time that its change took.
pub(in crate::repository) struct Answers<E: Engine> {
    groups: Option<Sender<Vec<Waiting<E>>>>,
    thread: Option<JoinHandle<()>>,
}

/// Groups up to this size are told at once: handing them over would make their callers wait longer.
const TOLD_AT_ONCE: usize = 8;

/// How many groups may wait to be told before the writer tells them itself.
const GROUPS_TO_TELL: usize = 4;

impl<E: Engine> Answers<E> {
    pub(in crate::repository) fn start() -> std::io::Result<Answers<E>> {
        let (groups, told) = bounded::<Vec<Waiting<E>>>(GROUPS_TO_TELL);
        let tell = move || told.iter().for_each(tell_made);
        let thread = std::thread::Builder::new().name("workcrew-answers".to_owned()).spawn(tell)?;
        Ok(Answers { groups: Some(groups), thread: Some(thread) })
    }

    /// Tells that changes were made.
    pub(in crate::repository) fn tell(&self, group: Vec<Waiting<E>>) {
        match &self.groups {
            Some(groups) if group.len() > TOLD_AT_ONCE => {
                if let Err(refused) = groups.try_send(group) {
                    tell_made(refused.into_inner());
                }
            }
            _ => tell_made(group),
        }
    }
}

impl<E: Engine> Drop for Answers<E> {
    fn drop(&mut self) {
        self.groups = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tell_made<E: Engine>(group: Vec<Waiting<E>>) {
    group.into_iter().for_each(Waiting::tell_made);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_is_answered_and_a_promise_that_is_not_kept_says_so() {
        let (kept, answer) = promise();
        let waiting = std::thread::spawn(move || answer.wait());
        kept.keep(Ok(1));
        assert_eq!(waiting.join().unwrap().unwrap(), 1);

        let (broken, answer) = promise::<i32>();
        let waiting = std::thread::spawn(move || answer.wait());
        drop(broken);
        assert!(matches!(waiting.join().unwrap(), Err(RepositoryError::Closed)));
    }

    #[test]
    fn a_caller_that_no_longer_waits_is_nobody_s_loss() {
        let (promise, pending) = promise();
        drop(pending);
        promise.keep(Ok(1));
    }
}
