//! Which session an attempt carries on, and what becomes of one that is not there.
//!
//! A session that the unit names is part of what was asked: without it the answer would be about something else, so the unit is given
//! up. One that an earlier attempt of the unit began is only a head start, and it may not be there: an agent that was killed before its first
//! request has said which session it begins, but has not stored it. That attempt leaves a note, and the next one begins anew.

use serde_json::{Value, json};

use super::Trouble;
use crate::executor::Call;

/// Where the note is in a checkpoint.
const MISSING: &str = "missing_session";

/// The session to carry on: the call's, unless it was found not to be there; then the one that the unit names.
pub(in crate::executor) fn session_to_resume<'a>(call: &Call<'a>) -> Option<&'a str> {
    let missing = call.last_checkpoint().and_then(|checkpoint| checkpoint.get(MISSING)).and_then(Value::as_str);
    let named = call.unit().options.resume_session.as_deref();
    [call.resume_session(), named].into_iter().flatten().find(|id| !id.is_empty() && Some(*id) != missing)
}

/// The session of this attempt is not there. Leaves a note for the next one if that can begin without it.
pub(in crate::executor) fn session_not_found(call: &Call<'_>) -> Trouble {
    let tried = session_to_resume(call);
    if tried.is_none() || tried == call.unit().options.resume_session.as_deref() {
        return Trouble::NamedSessionNotFound;
    }
    call.checkpoint(json!({ MISSING: tried }));
    Trouble::OwnSessionNotFound
}
