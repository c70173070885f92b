//! Conversations that are carried on.
//!
//! These APIs remember nothing: whoever carries a conversation on sends all of it again. A session is therefore the name of a stored
//! conversation, `job/unit/attempt`, under which it is found in the repository. A conversation that carries another on begins with a note of
//! which one, and of how much of it.

use serde_json::{Value, json};

use super::failure::Failure;
use crate::attempt::AttemptKey;
use crate::conversation::{Message, Part, Role};
use crate::error::RepositoryError;
use crate::executor::Call;
use crate::executor::trouble::Trouble;
use crate::job::JobId;
use crate::repository::{Archive, PAGE_LIMIT};

/// The note that a conversation carries another on.
const CARRIES_ON: &str = "carries_on";

/// How many conversations may be carried on, one after the other.
const CHAIN_LIMIT: usize = 1_000;

/// How many messages a conversation that is carried on may have.
const MESSAGES_LIMIT: usize = 100_000;

/// The session of an attempt.
pub(super) fn session_of(call: &Call<'_>) -> String {
    format!("{}/{}/{}", call.unit().job_id.0, call.unit().id, call.attempt_number())
}

/// A message that says which conversation is carried on, all of it or so many messages.
pub(super) fn note(session: &str, messages: Option<usize>) -> Message {
    let value = json!({ "session": session, "messages": messages });
    Message::new(Role::System).part(Part::Other { kind: CARRIES_ON.to_owned(), value })
}

/// What was said in a session, by both sides and by tools, without what was cut off and calls of tools that nobody has answered.
pub(super) fn read(archive: &dyn Archive, session: &str) -> Result<Vec<Message>, Failure> {
    let (mut parts, mut next) = (Vec::new(), Some((session.to_owned(), None)));
    let (mut chain, mut total) = (0, 0);
    while let Some((session, limit)) = next {
        chain += 1;
        let (said, before) = read_one(archive, &session, limit)?;
        total += said.len();
        if chain > CHAIN_LIMIT || total > MESSAGES_LIMIT {
            let message = format!("session `{session}` is too long to be carried on");
            return Err(Failure::new(Trouble::NamedSessionNotFound, message));
        }
        parts.push(said);
        next = before;
    }
    let mut messages: Vec<Message> = parts.into_iter().rev().flatten().collect();
    while messages.last().is_some_and(calls_a_tool) {
        messages.pop();
    }
    Ok(messages)
}

fn calls_a_tool(message: &Message) -> bool {
    message.role == Role::Assistant && message.parts.iter().any(|part| matches!(part, Part::ToolUse { .. }))
}

type Before = Option<(String, Option<usize>)>;

/// The messages of one stored conversation, and which one it carries on.
fn read_one(archive: &dyn Archive, session: &str, limit: Option<usize>) -> Result<(Vec<Message>, Before), Failure> {
    let key = find(archive, session)?;
    let (mut messages, mut before) = (Vec::new(), None);
    let (mut next, mut left) = (Some(0), limit.unwrap_or(MESSAGES_LIMIT));
    while let Some(after) = next.filter(|_| left > 0) {
        let page = archive.messages(key, after, PAGE_LIMIT).map_err(|error| unreadable(session, error))?;
        for stored in page.items.iter().take(left) {
            let read = stored.message().ok().flatten();
            let message = read.ok_or_else(|| missing(session, "was removed, or is damaged"))?;
            match carried_on(&message) {
                Some(earlier) => before = Some(earlier),
                None if message.role != Role::System && !message.is_partial && message.truncated.is_none() => {
                    messages.push(message);
                }
                None => {}
            }
        }
        left = left.saturating_sub(page.items.len());
        next = page.next.and_then(|next| u32::try_from(next).ok()).filter(|&next| next > after);
    }
    Ok((messages, before))
}

fn carried_on(message: &Message) -> Before {
    let [Part::Other { kind, value }] = message.parts.as_slice() else { return None };
    let session = value.get("session").and_then(Value::as_str).filter(|_| kind == CARRIES_ON)?;
    let messages = value.get("messages").and_then(Value::as_u64).and_then(|count| usize::try_from(count).ok());
    Some((session.to_owned(), messages))
}

fn find(archive: &dyn Archive, session: &str) -> Result<AttemptKey, Failure> {
    let named = || {
        let (job, rest) = session.split_once('/')?;
        let (unit, attempt) = rest.rsplit_once('/')?;
        Some((JobId(job.parse().ok()?), unit, attempt.parse().ok()?))
    };
    let (job, unit, number) = named().ok_or_else(|| missing(session, "is no name of a stored conversation"))?;
    match archive.unit(job, unit) {
        Ok(unit) if (1..=unit.attempt_count).contains(&number) => Ok(AttemptKey { unit: unit.key, number }),
        Ok(_) | Err(RepositoryError::UnknownUnit { .. } | RepositoryError::UnknownJob { .. }) => {
            Err(missing(session, "is not stored here"))
        }
        Err(error) => Err(unreadable(session, error)),
    }
}

fn missing(session: &str, why: &str) -> Failure {
    Failure::new(Trouble::NamedSessionNotFound, format!("session `{session}` {why}"))
}

/// It may be read another time.
fn unreadable(session: &str, error: RepositoryError) -> Failure {
    Failure::new(Trouble::OwnSessionNotFound, format!("session `{session}` could not be read: {error}"))
}
