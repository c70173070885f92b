//! Those in this process who want to hear that units wait for anybody.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Insertion;
use crate::job::JobId;

type Told = Arc<dyn Fn() -> bool + Send + Sync>;

/// See the [module](self). Its lock is held only to copy, add or remove; whoever is told is called without it.
#[derive(Default)]
pub(super) struct Listeners(Mutex<Vec<(JobId, Told)>>);

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, Vec<(JobId, Told)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells this one too, until it says `false`.
    pub(super) fn add(&self, job_id: JobId, told: Box<dyn Fn() -> bool + Send + Sync>) {
        self.lock().push((job_id, told.into()));
    }

    /// Tells those who listen to a job if units of it are new.
    pub(super) fn tell_of_new(&self, job_id: JobId, inserted: &[Insertion]) {
        if inserted.iter().any(|insertion| matches!(insertion, Insertion::Inserted(_))) {
            self.tell(|listened| listened == job_id);
        }
    }

    /// Tells those who listen to one of the jobs that are meant.
    pub(super) fn tell(&self, is_meant: impl Fn(JobId) -> bool) {
        let listeners: Vec<Told> =
            self.lock().iter().filter(|(job_id, _)| is_meant(*job_id)).map(|(_, told)| Arc::clone(told)).collect();
        for told in listeners {
            if !told() {
                self.lock().retain(|(_, other)| !Arc::ptr_eq(other, &told));
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
            listeners.add(job_id, Box::new(move || heard.fetch_add(1, Ordering::SeqCst) < 2));
        }
        listeners.tell_of_new(JobId(1), &[Insertion::AlreadyExists(crate::unit::UnitKey(1))]);
        assert_eq!(heard.load(Ordering::SeqCst), 0, "nothing came");
        listeners.tell_of_new(JobId(1), &[Insertion::Inserted(crate::unit::UnitKey(1))]);
        assert_eq!(heard.load(Ordering::SeqCst), 1);
        listeners.tell(|_| true);
        assert_eq!((heard.load(Ordering::SeqCst), listeners.lock().len()), (3, 1));
    }

    #[test]
    fn who_is_told_may_listen_once_more() {
        let listeners = Arc::new(Listeners::default());
        let again = Arc::clone(&listeners);
        listeners.add(
            JobId(1),
            Box::new(move || {
                again.add(JobId(1), Box::new(|| true));
                false
            }),
        );
        listeners.tell(|_| true);
        assert_eq!(listeners.lock().len(), 1);
    }
}
