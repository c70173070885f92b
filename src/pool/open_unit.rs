//! An open unit, as those who wait for it or follow it see it.

use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use super::ledger::Left;
use super::residence::Stay;
use crate::conversation::Message;
use crate::executor::{CancelReason, CancelToken};
use crate::lease::Lease;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::unit::UnitKey;

/// How many messages a follower may lag behind before it has to read them from the repository.
const FOLLOWER_LAG_LIMIT: usize = 256;

/// A message, as it was said.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Said {
    /// In which attempt, counted from 1.
    pub attempt_number: u32,
    /// Its place in the conversation, from 1.
    pub number: u32,
    /// What was said.
    pub message: Message,
}

/// One unit that a pool has to do with. Its lock is its own, and nothing else is taken under it.
#[derive(Debug)]
pub(super) struct OpenUnit {
    id: String,
    key: OnceLock<UnitKey>,
    face: Mutex<Face>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Face {
    left: Option<Left>,
    /// Of the execution that runs now.
    cancel: Option<CancelToken>,
    lease: Option<Lease>,
    is_cancel_requested: bool,
    followers: Vec<Follower>,
    followers_ever: u64,
    /// That it lives in this pool, where its session does.
    stay: Option<Stay>,
    /// The same for the session that its execution has told of.
    told_stay: Option<Stay>,
}

#[derive(Debug)]
struct Follower {
    number: u64,
    sender: Sender<Arc<Said>>,
    /// Whether something did not fit.
    has_missed: bool,
}

impl OpenUnit {
    pub(super) fn new(id: &str) -> OpenUnit {
        OpenUnit { id: id.to_owned(), key: OnceLock::new(), face: Mutex::default(), changed: Condvar::new() }
    }

    /// A unit that has left already.
    pub(super) fn with_left(id: &str, key: UnitKey, left: Left) -> OpenUnit {
        let unit = OpenUnit::new(id);
        unit.set_key(key);
        unit.leave(left);
        unit
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn key(&self) -> Option<UnitKey> {
        self.key.get().copied()
    }

    pub(super) fn set_key(&self, key: UnitKey) {
        self.key.get_or_init(|| key);
    }

    /// How it left, if it has.
    pub(super) fn left(&self) -> Option<Left> {
        self.face().left
    }

    /// It has left: all who wait for it or follow it are told.
    pub(super) fn leave(&self, left: Left) {
        // Whoever hears that it has left finds its session free.
        let stays = {
            let mut face = self.face();
            [face.stay.take(), face.told_stay.take()]
        };
        drop(stays);
        let mut face = self.face();
        face.left.get_or_insert(left);
        face.cancel = None;
        face.followers.clear();
        drop(face);
        self.changed.notify_all();
    }

    /// It lives in this pool until it has left.
    pub(super) fn stay(&self, stay: Option<Stay>) {
        let mut face = self.face();
        // One is enough, and what has left does not stay.
        let superfluous =
            if face.left.is_none() && face.stay.is_none() { std::mem::replace(&mut face.stay, stay) } else { stay };
        drop(face);
        drop(superfluous);
    }

    /// Whether it is known that it lives in this pool.
    pub(super) fn has_stay(&self) -> bool {
        self.face().stay.is_some()
    }

    /// The session that its execution has told of lives in this pool for as long as that lasts; `None` if it is over.
    pub(super) fn stay_told(&self, stay: Option<Stay>) {
        let mut face = self.face();
        let superfluous = if face.left.is_none() { std::mem::replace(&mut face.told_stay, stay) } else { stay };
        drop(face);
        drop(superfluous);
    }

    /// Waits until it has left; `None` if the time was up before.
    pub(super) fn wait(&self, until: Option<Instant>) -> Option<Left> {
        let mut face = self.face();
        loop {
            if face.left.is_some() {
                return face.left;
            }
            face = match until {
                None => self.changed.wait(face).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return None;
                    }
                    self.changed.wait_timeout(face, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// An execution begins, with what cancels it. It is cancelled at once if somebody asked for that before.
    pub(super) fn begin(&self, cancel: &CancelToken, lease: &Lease) {
        self.set_key(lease.unit);
        let mut face = self.face();
        face.cancel = Some(cancel.clone());
        face.lease = Some(lease.clone());
        let is_cancel_requested = face.is_cancel_requested;
        drop(face);
        if is_cancel_requested {
            cancel.cancel(CancelReason::Requested);
        }
    }

    /// Somebody asked to cancel it, and the repository knows. Returns what cancels the execution that runs.
    pub(super) fn request_cancel(&self) -> Option<CancelToken> {
        let mut face = self.face();
        face.is_cancel_requested = true;
        face.cancel.clone()
    }

    /// The lease of the execution that runs, or ran last.
    pub(super) fn lease(&self) -> Option<Lease> {
        self.face().lease.clone()
    }

    /// Whether anybody follows it.
    pub(super) fn is_followed(&self) -> bool {
        !self.face().followers.is_empty()
    }

    /// What is said from now on, and the follower's number. It ends when the unit has left; what did not fit is left out.
    pub(super) fn follow(&self) -> (Receiver<Arc<Said>>, u64) {
        let (sender, receiver) = bounded(FOLLOWER_LAG_LIMIT);
        let mut face = self.face();
        face.followers_ever += 1;
        let number = face.followers_ever;
        if face.left.is_none() {
            face.followers.push(Follower { number, sender, has_missed: false });
        }
        (receiver, number)
    }

    /// Whether something was said that a follower had no room for, since it last asked.
    pub(super) fn has_missed(&self, follower: u64) -> bool {
        let mut face = self.face();
        let follower = face.followers.iter_mut().find(|other| other.number == follower);
        follower.is_some_and(|follower| std::mem::take(&mut follower.has_missed))
    }

    /// Passes on what was said to all who follow and have room.
    pub(super) fn said(&self, said: Said) {
        let said = Arc::new(said);
        self.face().followers.retain_mut(|follower| match follower.sender.try_send(Arc::clone(&said)) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                follower.has_missed = true;
                true
            }
            Err(TrySendError::Disconnected(_)) => false,
        });
    }

    fn face(&self) -> MutexGuard<'_, Face> {
        self.face.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
