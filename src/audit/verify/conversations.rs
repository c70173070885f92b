//! The conversation of an attempt: recomputed from its bytes (I9).

use super::Audit;
use super::finding::{Invariant, Notes};
use super::history::History;
use super::sequence::Sequence;
use crate::attempt::Attempt;
use crate::chain::{self, Hash};
use crate::conversation::StoredMessage;
use crate::repository::Result;

/// A conversation as far as it was read.
struct Conversation {
    /// The number of the last message.
    count: u32,
    /// The link of the last message; `None` behind one that cannot be read.
    link: Option<Hash>,
    /// Whether the last message was cut off by the end of the attempt.
    is_cut_off: bool,
}

impl Audit<'_> {
    pub(super) fn conversation(&mut self, subject: &str, attempt: &Attempt, history: &History) -> Result<()> {
        let archive = self.archive;
        let genesis = chain::conversation_genesis(attempt.key, attempt.fence);
        let mut conversation = Conversation { count: 0, link: Some(genesis), is_cut_off: false };
        let read = |after, limit| archive.messages(attempt.key, u32::try_from(after).unwrap_or(u32::MAX), limit);
        for message in Sequence::new(read) {
            match message? {
                Ok(message) => {
                    self.totals.messages += 1;
                    self.search_message(subject, &message);
                    conversation.check(&message, history, &mut self.findings.about(subject));
                }
                Err(damage) => {
                    self.findings.add(Invariant::I13, subject, damage.problem);
                    conversation.skip(damage.position);
                }
            }
        }
        let notes = &mut self.findings.about(subject);
        conversation.check_end(attempt, notes);
        check_journal(attempt, history, notes);
        self.unfinished_message(subject, attempt)
    }

    fn unfinished_message(&mut self, subject: &str, attempt: &Attempt) -> Result<()> {
        let text = self.archive.partial_text(attempt.key);
        let Some(Some(text)) = self.readable(subject, text)? else { return Ok(()) };
        self.search(subject, text.as_bytes());
        if attempt.outcome.is_some() {
            self.findings.add(Invariant::I9, subject, "has ended, but a message of it is still being written");
        }
        Ok(())
    }

    fn search_message(&mut self, subject: &str, message: &StoredMessage) {
        let Some(content) = &message.content else { return };
        for bytes in [Some(&content.body), content.raw.as_ref()].into_iter().flatten() {
            self.search(&format!("message {} of {subject}", message.number), bytes);
        }
    }
}

impl Conversation {
    fn check(&mut self, message: &StoredMessage, history: &History, notes: &mut Notes<'_>) {
        let number = message.number;
        if self.is_cut_off {
            notes.add(Invariant::I9, format!("message {} is partial, but is not the last", self.count));
        }
        if number != self.count.saturating_add(1) {
            notes.add(Invariant::I9, format!("message {number} follows message {}", self.count));
        }
        if let Some(previous) = self.link {
            let link = chain::message_link(&previous, number, message.at, message.role, &message.content_hash);
            if link != message.link {
                notes.add(Invariant::I9, format!("message {number} does not link to the one before"));
            }
        }
        // What is stored goes on, so that one altered message is one finding.
        *self = Conversation { count: number, link: Some(message.link), is_cut_off: false };
        self.check_content(message, history, notes);
    }

    fn check_content(&mut self, message: &StoredMessage, history: &History, notes: &mut Notes<'_>) {
        let number = message.number;
        let Some(content) = &message.content else {
            if !history.is_purged && history.is_whole() {
                notes.add(Invariant::I13, format!("message {number} has no content, but was never purged"));
            }
            return;
        };
        if history.is_purged {
            notes.add(Invariant::I13, format!("message {number} has its content after a purge"));
        }
        if content.hash() != message.content_hash {
            notes.add(Invariant::I9, format!("message {number} is not what was stored: its hash differs"));
        }
        match message.message() {
            Ok(Some(read)) => {
                self.is_cut_off = read.is_partial;
                let kept = read.text().len().max(content.raw.as_ref().map_or(0, Vec::len));
                if read.truncated.is_some_and(|whole| whole.total_bytes < kept as u64) {
                    notes.add(Invariant::I9, format!("message {number} was cut, but is longer than the whole was"));
                }
            }
            Ok(None) => {}
            Err(error) => notes.add(Invariant::I9, format!("message {number} cannot be read: {error}")),
        }
    }

    fn skip(&mut self, position: Option<i64>) {
        if let Some(number) = position.and_then(|position| u32::try_from(position).ok()) {
            self.count = number;
        }
        *self = Conversation { count: self.count, link: None, is_cut_off: false };
    }

    fn check_end(&self, attempt: &Attempt, notes: &mut Notes<'_>) {
        if attempt.outcome.is_none() {
            if self.is_cut_off {
                notes.add(Invariant::I9, format!("message {} is partial, but the attempt is open", self.count));
            }
            return;
        }
        if attempt.message_count != Some(self.count) {
            let told = attempt.message_count.map_or_else(|| "no number".to_owned(), |count| count.to_string());
            notes.add(Invariant::I9, format!("has {} messages, but ended with {told}", self.count));
        }
        if self.link.is_some() && attempt.head != self.link {
            notes.add(Invariant::I9, "its last link is not the one with which it ended");
        }
    }
}

/// The row that closed the attempt repeats how its conversation ended.
fn check_journal(attempt: &Attempt, history: &History, notes: &mut Notes<'_>) {
    let Some(end) = history.attempts.get(&attempt.key.number).and_then(|told| told.end.as_ref()) else { return };
    if (end.message_count, end.head) != (attempt.message_count, attempt.head) {
        notes.add(Invariant::I9, format!("its conversation ended otherwise than journal row {} says", end.seq));
    }
}
