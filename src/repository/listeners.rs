//! Those in this process who want to hear what becomes of a job's units.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{CancelAnswer, Closed, Insertion, News};
use crate::job::JobId;
use crate::lease::Lease;
use crate::unit::UnitKey;
use crate::worker::WorkerChange;

type Hear = Arc<dyn Fn(&News) -> bool + Send + Sync>;

/// See the [module](self). Its lock is held only to copy, add or remove; whoever is told is called without it.
#[derive(Default)]
pub(super) struct Listeners(Mutex<Vec<(JobId, Hear)>>);

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, Vec<(JobId, Hear)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells this one too, until it says `false`.
    pub(super) fn add(&self, job_id: JobId, hear: Box<dyn Fn(&News) -> bool + Send + Sync>) {
        self.lock().push((job_id, hear.into()));
    }

    /// Tells those who listen to a job if units of it are new.
    pub(super) fn tell_of_new(&self, job_id: JobId, inserted: &[Insertion]) {
        if inserted.iter().any(|insertion| matches!(insertion, Insertion::Inserted(_))) {
            self.tell_of_queued(job_id);
        }
    }

    /// Tells those who listen to a job that units of it may have come to wait for anybody.
    pub(super) fn tell_of_queued(&self, job_id: JobId) {
        self.tell(&News::Queued, |listened| listened == job_id);
    }

    /// The same if a worker ends: what it had may wait again.
    pub(super) fn tell_of_worker(&self, job_id: JobId, change: WorkerChange) {
        if matches!(change, WorkerChange::Terminate | WorkerChange::Die) {
            self.tell_of_queued(job_id);
        }
    }

    /// Tells those who listen to its job if a unit has ended with its attempt.
    pub(super) fn tell_of_end(&self, lease: &Lease, closed: &Closed) {
        if closed.status.is_terminal() {
            self.tell(&News::Ended(lease.owner), |listened| listened == lease.job_id);
        }
    }

    /// Tells those who listen to its job if a unit was cancelled, or is to be.
    pub(super) fn tell_of_cancel(&self, job_id: JobId, unit: UnitKey, id: &str, answer: CancelAnswer) {
        if matches!(answer, CancelAnswer::Cancelled | CancelAnswer::Requested) {
            self.tell(&News::Cancelled { unit, id: id.to_owned() }, |listened| listened == job_id);
        }
    }

    /// Tells those who listen to one of the jobs that are meant.
    pub(super) fn tell(&self, news: &News, is_meant: impl Fn(JobId) -> bool) {
        let listeners: Vec<Hear> =
            self.lock().iter().filter(|(job_id, _)| is_meant(*job_id)).map(|(_, hear)| Arc::clone(hear)).collect();
        for hear in listeners {
            if !hear(news) {
                self.lock().retain(|(_, other)| !Arc::ptr_eq(other, &hear));
            }
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").field("count", &self.lock().len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn who_listens_is_told_of_its_own_job_until_it_has_heard_enough() {
        let (listeners, heard) = (Listeners::default(), Arc::new(AtomicUsize::new(0)));
        for job_id in [JobId(1), JobId(2)] {
            let heard = Arc::clone(&heard);
            listeners.add(job_id, Box::new(move |_| heard.fetch_add(1, Ordering::SeqCst) < 2));
        }
        listeners.tell_of_new(JobId(1), &[Insertion::AlreadyExists(crate::unit::UnitKey(1))]);
        assert_eq!(heard.load(Ordering::SeqCst), 0, "nothing came");
        listeners.tell_of_new(JobId(1), &[Insertion::Inserted(crate::unit::UnitKey(1))]);
        assert_eq!(heard.load(Ordering::SeqCst), 1);
        listeners.tell(&News::Queued, |_| true);
        assert_eq!((heard.load(Ordering::SeqCst), listeners.lock().len()), (3, 1));
    }

    #[test]
    fn who_is_told_may_listen_once_more() {
        let listeners = Arc::new(Listeners::default());
        let again = Arc::clone(&listeners);
        listeners.add(
            JobId(1),
            Box::new(move |_| {
                again.add(JobId(1), Box::new(|_| true));
                false
            }),
        );
        listeners.tell(&News::Queued, |_| true);
        assert_eq!(listeners.lock().len(), 1);
    }
}
