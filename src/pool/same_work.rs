//! The same work once: before an attempt is executed, it is asked whether another does the same, or has done it.
//!
//! Whoever has to wait for another does so in its slot, with no lock held. It would otherwise execute the same at the same time, and pay for it:
//! so the slot is taken for no longer. It is woken when that attempt ends in this pool, and looks by itself for what others do, less and less
//! often. A stop, a cancel or a hold ends the wait, and the attempt is given back, uncounted. Its time has not begun by then.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::json;

use super::close::patiently;
use super::core::Core;
use super::execution::{Execution, Recording};
use super::judge::{End, How, judge, release};
use super::run::end_while_waiting;
use crate::attempt::AttemptKey;
use crate::conversation::{Message, Part, Role, from_json};
use crate::error::RepositoryError;
use crate::executor::{CancelToken, OnCancel, Recorder, WorkResult};
use crate::lease::Claim;
use crate::limits;
use crate::nudge::Nudge;
use crate::repository::{Result, Shared, SharedBy};
use crate::same_work::{Parameters, WorkKey};
use crate::sync::Mutex;
use crate::unit::UnitOptions;

/// How soon who waits looks again by itself, at first. Each time it waits twice as long.
const LOOK_FIRST: Duration = Duration::from_millis(10);

/// How long it waits at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What stands in the conversation of an attempt whose answer is another's.
const SAME_WORK: &str = "same_work";

/// By what the same work is told, for a pool that does it once.
#[derive(Clone, Debug)]
pub(super) enum ToldBy {
    Executor,
    Caller(Parameters),
}

/// What a pool that does the same work once knows for it.
pub(super) struct SameWork {
    executor: String,
    parameters: Parameters,
    /// For which attempts somebody waits here, in no order.
    waiting: Mutex<Vec<(AttemptKey, Arc<Nudge>)>>,
}

impl SameWork {
    pub(super) fn new(executor: &str, parameters: Parameters) -> SameWork {
        SameWork { executor: executor.to_owned(), parameters, waiting: Mutex::default() }
    }

    /// What is to be done for a unit; `None` if that depends on more than can be told: on a session that it carries on, on what an
    /// earlier attempt has saved, on files.
    fn key(&self, claim: &Claim, prompt: &str) -> Option<WorkKey> {
        let UnitOptions { resume_session, output_files, .. } = &claim.unit.options;
        let is_told = resume_session.is_none() && output_files.is_empty() && claim.checkpoint.is_none();
        is_told.then(|| WorkKey::of(&self.executor, &self.parameters, &claim.unit.options, prompt))
    }

    /// An attempt of this pool has ended: who waits for it looks again.
    pub(super) fn ended(&self, ended: AttemptKey) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let meant = waiting.iter().filter(|&&(attempt, _)| attempt == ended).map(|(_, nudge)| Arc::clone(nudge));
        let meant: Vec<Arc<Nudge>> = meant.collect();
        drop(waiting);
        for nudge in meant {
            nudge.wake();
        }
    }
}

/// A place among those that wait for an attempt, until it is dropped.
struct Waiting<'a> {
    same_work: &'a SameWork,
    attempt: AttemptKey,
    nudge: Arc<Nudge>,
    pause: Duration,
    _on_cancel: OnCancel,
}

impl<'a> Waiting<'a> {
    fn new(same_work: &'a SameWork, cancel: &CancelToken, attempt: AttemptKey) -> Waiting<'a> {
        let nudge = Arc::new(Nudge::new());
        let cancelled = Arc::clone(&nudge);
        let _on_cancel = cancel.on_cancel(move || cancelled.wake());
        let mut waiting = same_work.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push((attempt, Arc::clone(&nudge)));
        drop(waiting);
        Waiting { same_work, attempt, nudge, pause: LOOK_FIRST, _on_cancel }
    }

    fn wait(&mut self) {
        self.nudge.wait(Some(self.pause));
        self.pause = (self.pause * 2).min(LOOK_EVERY);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waiting = self.same_work.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(_, nudge)| !Arc::ptr_eq(nudge, &self.nudge));
    }
}

/// The end of an attempt that takes the answer of another, or need not wait for it any longer. `None` if it is to be executed.
pub(super) fn end_with_answer(core: &Core, execution: &Execution, prompt: &str) -> Option<End> {
    let same_work = core.same_work.as_ref()?;
    let key = same_work.key(&execution.claim, prompt)?;
    let unit_id = &execution.claim.unit.id;
    let (mut waiting, mut was_gone) = (None::<Waiting<'_>>, false);
    loop {
        let by = match patiently(core, unit_id, || core.repository().share(&execution.claim.lease, &key)) {
            Ok(Shared::Yours) => return None,
            Ok(Shared::InFlight(by)) => by,
            Ok(Shared::Answered(by)) => match patiently(core, unit_id, || answer_of(core, &by, prompt)) {
                Ok(Some(result)) => return Some(take(core, execution, prompt, &by, result)),
                // It was purged a moment ago. Whose the work is then says another look.
                Ok(None) if !was_gone => {
                    was_gone = true;
                    continue;
                }
                Ok(None) => return None,
                Err(error @ RepositoryError::Corrupt { .. }) => {
                    log::warn!(
                        "unit {unit_id}: is executed, for the answer of unit {} is damaged: {error}",
                        by.unit_id
                    );
                    return None;
                }
                Err(error) => return Some(release(&format!("an answer could not be read: {error}"))),
            },
            Err(RepositoryError::Stale { .. }) => return Some(End::new(How::Lost)),
            Err(error) => return Some(release(&format!("whose work it is could not be stored: {error}"))),
        };
        match &mut waiting {
            Some(waiting) if waiting.attempt == by.attempt => waiting.wait(),
            // It may have ended before anybody listened for that, so there is another look before the first wait.
            _ => {
                log::debug!("unit {unit_id}: waits for unit {}, which needs the same", by.unit_id);
                waiting = Some(Waiting::new(same_work, &execution.cancel, by.attempt));
            }
        }
        if let Some(end) = end_while_waiting(core, execution) {
            return Some(end);
        }
    }
}

/// The answer of an attempt to this prompt, which costs whoever takes it nothing; `None` if it was purged.
fn answer_of(core: &Core, by: &SharedBy, prompt: &str) -> Result<Option<WorkResult>> {
    let left = core.repository().attempt_result(by.attempt)?;
    if left.purged.is_some() {
        return Ok(None);
    }
    // Nothing vouches for whose the work is said to be: a bit that was turned over there must not bring the answer to something else.
    let sent = left.rendered_prompt.map_or_else(|| prompt_of(core, by), |rendered| Ok(Some(rendered)))?;
    let Some(sent) = sent else { return Ok(None) };
    let key = by.attempt.unit.0;
    if sent != prompt {
        return Err(RepositoryError::corrupt("whose a piece of work is", key, "it was asked something else"));
    }
    let damaged = |error| RepositoryError::corrupt("the result of an attempt", key, error);
    let mut attempts = core.repository().attempts(by.attempt.unit)?.into_iter();
    let mut result = WorkResult::empty().charge(limits::nothing());
    result.output = left.output;
    result.json = left.result.map(|json| from_json(json.as_bytes())).transpose().map_err(damaged)?;
    result.session_id = attempts.find(|attempt| attempt.key == by.attempt).and_then(|attempt| attempt.session_id);
    Ok(Some(result))
}

/// What the unit of an attempt has to be sent as it is.
fn prompt_of(core: &Core, by: &SharedBy) -> Result<Option<String>> {
    core.repository().inputs(by.attempt.unit).map(|inputs| inputs.prompt)
}

/// Ends an attempt with the answer of another. Its conversation says whose that is.
fn take(core: &Core, execution: &Execution, prompt: &str, by: &SharedBy, result: WorkResult) -> End {
    log::debug!("unit {}: takes the answer of unit {}", execution.claim.unit.id, by.unit_id);
    let told = result.output.clone().or_else(|| result.json.as_ref().map(ToString::to_string));
    let messages = [note(core, by), Message::user(prompt), Message::assistant(told.unwrap_or_default())];
    Recording { core, execution }.messages(messages.to_vec());
    End { answer_of: Some(by.attempt), ..judge(core, execution, Ok(result)) }
}

/// Whose answer it is, for programs and for people.
fn note(core: &Core, by: &SharedBy) -> Message {
    let SharedBy { job_id, unit_id, attempt } = by;
    let job = core.repository().job(*job_id).map_or_else(|_| job_id.to_string(), |job| job.name);
    let number = attempt.number;
    let text = format!(
        "Not executed: this is the answer of unit {unit_id} of job {job}, attempt {number}, which needed the same."
    );
    let value = json!({ "job": job, "job_id": job_id, "unit": unit_id, "unit_key": attempt.unit, "attempt": number });
    Message::new(Role::System).part(Part::text(text)).part(Part::Other { kind: SAME_WORK.to_owned(), value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::CancelReason;
    use crate::unit::UnitKey;

    #[test]
    fn who_waits_is_woken_by_the_end_that_it_waits_for_and_by_a_cancel() {
        let same_work = SameWork::new("a test", Parameters::of(&json!(1)));
        let (cancel, attempt) = (CancelToken::new(), AttemptKey { unit: UnitKey(1), number: 1 });
        let wakes: [&dyn Fn(); 2] = [&|| same_work.ended(attempt), &|| _ = cancel.cancel(CancelReason::Requested)];
        for wake in wakes {
            let mut waiting = Waiting::new(&same_work, &cancel, attempt);
            // Nobody looks by himself within the time of a test.
            waiting.pause = Duration::from_secs(3_600);
            std::thread::scope(|threads| {
                threads.spawn(move || waiting.wait());
                same_work.ended(AttemptKey { number: 2, ..attempt });
                wake();
            });
            assert!(same_work.waiting.lock().unwrap().is_empty(), "it has left");
        }
    }

    #[test]
    fn who_waits_looks_less_and_less_often_and_never_less_than_once_a_second() {
        let same_work = SameWork::new("a test", Parameters::of(&json!(1)));
        let mut waiting = Waiting::new(&same_work, &CancelToken::new(), AttemptKey { unit: UnitKey(1), number: 1 });
        let pauses: Vec<u128> = std::iter::repeat_with(|| {
            let pause = waiting.pause.as_millis();
            waiting.nudge.wake();
            waiting.wait();
            pause
        })
        .take(9)
        .collect();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }
}
