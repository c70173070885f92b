//! What becomes of jobs.

use serde_json::Value;

use crate::conversation::{from_json, to_json};
use crate::job::{Job, JobChange, NewJob};
use crate::repository::{JobEntry, RepositoryError, Result};
use crate::unit::{check_name, shortened};

/// Checks a job, and gives it as it will read once it was stored.
///
/// A number that the JSON parser reads a little differently must not make the same job another one.
pub(crate) fn check_new_job(job: &NewJob) -> Result<NewJob> {
    if let Some(problem) = check_name(&job.name, NewJob::NAME_LIMIT_BYTES) {
        return Err(RepositoryError::Invalid(format!("the job name `{}` {problem}", shortened(&job.name))));
    }
    Ok(NewJob { settings: as_it_will_read(&job.settings)?, ..job.clone() })
}

fn as_it_will_read(settings: &Value) -> Result<Value> {
    Ok(from_json(&to_json(settings)?).expect("what was just written as JSON is JSON"))
}

/// A job that was found under the name of a new one, if it is the same, or was when it was made.
pub(crate) fn same_job(found: Job, made: Option<&JobEntry>, checked: &NewJob) -> Result<Job> {
    if found.matches(checked) || made.is_some_and(|made| made.job(&found).matches(checked)) {
        return Ok(found);
    }
    Err(RepositoryError::Conflict { what: format!("job `{}`", found.name), difference: "another content" })
}

/// Checks a change of a job, and gives it as it will read once it was stored.
pub(crate) fn check_job_change(change: &JobChange) -> Result<JobChange> {
    let settings = change.settings.as_ref().map(as_it_will_read).transpose()?;
    Ok(JobChange { settings, ..change.clone() })
}

/// What a job becomes by a change; `None` if it is so already.
pub(crate) fn changed_job(job: &Job, checked: &JobChange) -> Option<Job> {
    let mut changed = job.clone();
    changed.budget = checked.budget.unwrap_or(changed.budget);
    changed.settings = checked.settings.clone().unwrap_or(changed.settings);
    (changed != *job).then_some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use serde_json::json;

    #[test]
    fn the_same_job_twice_is_the_same_whatever_its_numbers() {
        let new = NewJob::named("j").settings(json!({ "rate": 0.1 + 0.2, "small": 5e-324, "odd": 6.930_612_4e-310 }));
        let checked = check_new_job(&new).unwrap();
        let NewJob { name, template, budget, settings } = checked.clone();
        let job = Job { id: crate::job::JobId(1), name, template, budget, settings, created_at: DateTime::UNIX_EPOCH };
        assert!(same_job(job, None, &check_new_job(&new).unwrap()).is_ok());
    }
}
