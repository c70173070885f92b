//! The pools of a worker that serves all jobs of a database: one for each job that has something to do, with what executes that job.
//!
//! The workers are for all of them together. It is looked twice a second which jobs have units that wait or that are executed here: each of them has the
//! same share of the workers, the older jobs one more if they cannot be divided, and the oldest alone if there are more jobs than workers. A share is taken away
//! as units end, and given only when it is free, so that never more units are executed at a time than there are workers. The pool of
//! a job that has nothing to do stays, and finds what is queued when it next polls, until another job needs its workers.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use serde_json::{Value, json};
use workcrew::audit::questions::all_jobs;
use workcrew::audit::visible::line;
use workcrew::{
    Archive, Completion, Job, JobId, PoolHandle, PoolPhase, Repository, RepositoryError, SqliteRepository, Stop,
    WorkPool,
};

use crate::batch::{self, Batch, Events, NOBODY, PoolOptions};
use crate::board::Board;
use crate::database::Database;
use crate::interrupt::Interrupt;
use crate::notes;
use crate::print;
use crate::progress::Telling;
use crate::storage::Storage;
use crate::summary::write_counts;
use crate::terms::Terms;
use crate::trouble::{Trouble, told};

/// How often it is looked what there is to do.
const LOOK: Duration = Duration::from_millis(500);

pub struct Crew {
    pub database: Database,
    pub repository: SqliteRepository,
    pub options: PoolOptions,
    pub terms: Terms,
}

impl Crew {
    /// Serves until it is asked to stop; says whether it ended because the disk was full for too long.
    pub fn serve(self, out: &mut dyn Write) -> Result<bool, Trouble> {
        batch::check_jobs(&self.repository, &self.database)?;
        let (handles, events) = (Handles::default(), Events::if_wanted(&self.options));
        let (wake, woken) = bounded(1);
        let stop_all = |handles: &Handles| {
            let (handles, wake) = (handles.clone(), wake.clone());
            move |stop| {
                handles.stop(stop);
                let _ = wake.try_send(());
            }
        };
        let cannot = |error: std::io::Error| Trouble::Failed(told(&error));
        let interrupt = Interrupt::watch(stop_all(&handles)).map_err(cannot)?;
        let tell = batch::tell_of_disk(Board::default(), events.clone());
        let storage = Storage::watch(self.repository.clone(), interrupt.clone(), stop_all(&handles), tell);
        let storage = storage.map_err(cannot)?;
        let mut pools = Pools {
            crew: &self,
            handles,
            events,
            members: Vec::new(),
            left_alone: BTreeMap::new(),
            served: BTreeMap::new(),
        };
        let looked = pools.look_while(&woken, || !interrupt.is_asked() && !storage.is_given_up());
        pools.end();
        looked?;
        if storage.is_full() {
            // Nobody waits for what a full disk cannot take.
            std::mem::forget(self.repository.clone());
        }
        let served = pools.served;
        self.write(&served, out)?;
        Ok(storage.is_given_up())
    }

    /// What became of the jobs that were served.
    fn write(&self, served: &BTreeMap<JobId, String>, out: &mut dyn Write) -> Result<(), Trouble> {
        let mut told = Vec::new();
        for (&job_id, name) in served {
            let counts = self.repository.counts(job_id)?;
            if self.options.json {
                print::json(&mut told, &json!({ "event": "summary", "job": name, "counts": counts }))?;
            } else {
                write_counts(name, &counts, &mut told)?;
            }
        }
        print::if_read(out, &told)
    }
}

/// Who is to hear of a stop. Its clones are the same.
#[derive(Clone, Default)]
struct Handles(Arc<Mutex<Vec<(JobId, PoolHandle)>>>);

impl Handles {
    fn stop(&self, stop: Stop) {
        self.all().iter().for_each(|(_, pool)| pool.stop(stop));
    }

    fn all(&self) -> MutexGuard<'_, Vec<(JobId, PoolHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pool at work on a job.
struct Member {
    job_id: JobId,
    pool: Arc<WorkPool>,
    follows: JoinHandle<Completion>,
    /// How many workers it may have.
    share: usize,
    is_ending: bool,
}

impl Member {
    /// Whether it has units, in hand or to be tried again.
    fn has_units(&self) -> bool {
        let stats = self.pool.stats();
        stats.running + stats.pending > 0
    }

    /// How many workers it may take, or has not given back yet.
    fn takes(&self) -> usize {
        let load = self.pool.stats().load;
        if self.is_ending { load } else { load.max(self.share) }
    }

    fn set_share(&mut self, share: usize) {
        match self.pool.set_max_workers(share) {
            Ok(()) => self.share = share,
            Err(error) => log::error!("{}: its share is not {share}: {error}", self.job_id),
        }
    }

    fn end(&mut self) {
        self.is_ending = true;
        self.pool.handle().stop(Stop::Drain);
    }

    fn has_ended(&self) -> bool {
        matches!(self.pool.stats().phase, PoolPhase::Stopped | PoolPhase::InitFailed)
    }
}

struct Pools<'a> {
    crew: &'a Crew,
    handles: Handles,
    events: Option<Arc<Events>>,
    members: Vec<Member>,
    /// Jobs that cannot be executed here, with what was kept with them then: if that is changed they may.
    left_alone: BTreeMap<JobId, Value>,
    served: BTreeMap<JobId, String>,
}

impl Pools<'_> {
    fn look_while(&mut self, woken: &Receiver<()>, goes_on: impl Fn() -> bool) -> Result<(), RepositoryError> {
        let mut told = String::new();
        self.tell_if_idle();
        while goes_on() {
            let trouble = match self.look() {
                Ok(()) => String::new(),
                Err(error @ RepositoryError::Gone { .. }) => return Err(error),
                // It may pass. It is told once.
                Err(error) => error.to_string(),
            };
            if !trouble.is_empty() && trouble != told {
                notes::tell(&format!("workcrew: {trouble}"));
            }
            told = trouble;
            let _ = woken.recv_timeout(LOOK);
        }
        Ok(())
    }

    fn tell_if_idle(&self) {
        let is_idle = self.with_work().is_ok_and(|jobs| jobs.is_empty());
        if is_idle && self.crew.options.telling() == Telling::People {
            let db = self.crew.database.as_argument();
            notes::tell(&format!("nothing to do yet; bring units with: workcrew queue UNITS{db}"));
        }
    }

    /// Jobs with units that wait, or that are executed here, the oldest first.
    fn with_work(&self) -> Result<Vec<Job>, RepositoryError> {
        let mut jobs = Vec::new();
        for job in all_jobs(&self.crew.repository)? {
            let has_units = self.members.iter().any(|member| member.job_id == job.id && member.has_units());
            let has_work = has_units || self.crew.repository.backlog(job.id, NOBODY, 1)?.due > 0;
            if has_work && self.left_alone.get(&job.id) != Some(&job.settings) {
                jobs.push(job);
            }
        }
        Ok(jobs)
    }

    fn look(&mut self) -> Result<(), RepositoryError> {
        self.forget_ended();
        let path = &self.crew.database.db;
        // What is open can be read also when nobody else can find it any more.
        if !path.exists() {
            return Err(RepositoryError::Gone { path: path.display().to_string() });
        }
        let jobs = self.with_work()?;
        let workers = self.crew.options.workers;
        let shares = shares(workers, jobs.len());
        let shares: Vec<(Job, usize)> = jobs.into_iter().zip(shares).collect();
        if shares.is_empty() {
            return Ok(());
        }
        self.take(&shares);
        let mut free = workers.saturating_sub(self.members.iter().map(Member::takes).sum());
        for (job, share) in shares {
            free -= self.give(job, share, free);
        }
        Ok(())
    }

    /// Takes away what is more than a share; what has none ends.
    fn take(&mut self, shares: &[(Job, usize)]) {
        for member in self.members.iter_mut().filter(|member| !member.is_ending) {
            match shares.iter().find(|(job, _)| job.id == member.job_id) {
                None => member.end(),
                Some((_, share)) if *share < member.share => member.set_share(*share),
                Some(_) => {}
            }
        }
    }

    /// Gives a job what it lacks of its share, as far as there is some; says how much.
    fn give(&mut self, job: Job, share: usize, free: usize) -> usize {
        let member = self.members.iter_mut().find(|member| member.job_id == job.id);
        let given = share.saturating_sub(member.as_ref().map_or(0, |member| member.share)).min(free);
        match member {
            _ if given == 0 => 0,
            // It comes back when that is over.
            Some(member) if member.is_ending => 0,
            Some(member) => {
                member.set_share(member.share + given);
                given
            }
            None => {
                if self.begin(job, given) {
                    given
                } else {
                    0
                }
            }
        }
    }

    /// Starts a pool for a job; says whether that can be executed here.
    fn begin(&mut self, job: Job, share: usize) -> bool {
        let (job_id, name, settings) = (job.id, job.name.clone(), job.settings.clone());
        match self.start(job, share) {
            Ok(member) => {
                self.handles.all().push((job_id, member.pool.handle()));
                self.members.push(member);
                self.served.insert(job_id, name);
                true
            }
            Err(trouble) => {
                self.left_alone.insert(job_id, settings);
                notes::tell(&format!("workcrew: job `{}` is left alone: {trouble}", line(&name)));
                false
            }
        }
    }

    fn start(&self, job: Job, share: usize) -> Result<Member, Trouble> {
        let Crew { database, repository, options, terms } = self.crew;
        let (job_id, name) = (job.id, job.name.clone());
        // Of several jobs each has its own: what is said here is for those of which nobody has said anything.
        let terms = terms.unless_kept(&job);
        let batch = Batch::of_job(database.clone(), repository.clone(), job, options.clone(), &terms)?;
        if options.telling() == Telling::People {
            notes::tell(&format!("job {}: its units are executed", line(&name)));
        }
        let pool = Arc::new(batch.pool(share, &Board::default(), self.events.clone())?);
        let follow = Arc::clone(&pool);
        let thread = std::thread::Builder::new().name("follows".to_owned()).spawn(move || follow.follow());
        let follows = thread.map_err(|error| Trouble::Failed(told(&error)))?;
        Ok(Member { job_id, pool, follows, share, is_ending: false })
    }

    fn forget_ended(&mut self) {
        let ended: Vec<Member> = self.members.extract_if(.., |member| member.has_ended()).collect();
        for member in ended {
            self.handles.all().retain(|(job_id, _)| *job_id != member.job_id);
            join(member);
        }
    }

    /// Waits until all have ended.
    fn end(&mut self) {
        self.members.iter_mut().for_each(Member::end);
        self.members.drain(..).for_each(join);
    }
}

fn join(member: Member) {
    if let Err(error) = member.pool.stop(Stop::Drain) {
        notes::tell(&format!("workcrew: {}", told(&error)));
    }
    let _ = member.follows.join();
}

/// The shares of as many jobs as there are workers: `workers` for one, equal ones for several.
fn shares(workers: usize, jobs: usize) -> Vec<usize> {
    let jobs = jobs.min(workers);
    (0..jobs).map(|place| workers / jobs + usize::from(place < workers % jobs)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_shared_and_none_is_given_twice() {
        assert_eq!(shares(4, 0), [0; 0]);
        assert_eq!(shares(4, 1), [4]);
        assert_eq!(shares(4, 3), [2, 1, 1]);
        assert_eq!(shares(2, 5), [1, 1], "the oldest");
    }
}
