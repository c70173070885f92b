//! Rows that a transaction has decided on and not sent yet: those of a whole group go in one statement for each table.
//!
//! Only rows that are new and that no verb reads back in passing wait here. Whoever reads their tables sends them first.

use super::connection::{Connection, Read};
use crate::attempt::AttemptKey;
use crate::chain::Hash;
use crate::repository::JournalEntry;
use crate::repository::prepared::NewMessage;
use crate::unit::UnitStatus;

/// How many bytes of messages wait at most, so that a group is never twice in memory.
const MESSAGES_LIMIT_BYTES: usize = 8 * 1024 * 1024;

/// What is to be sent.
#[derive(Debug, Default)]
pub(super) struct Pending {
    journal: Vec<JournalEntry>,
    messages: Messages,
}

/// Messages, column by column.
#[derive(Debug, Default)]
struct Messages {
    units: Vec<i64>,
    attempts: Vec<i64>,
    numbers: Vec<i64>,
    at: Vec<i64>,
    roles: Vec<&'static str>,
    encodings: Vec<&'static str>,
    bodies: Vec<Vec<u8>>,
    raws: Vec<Option<Vec<u8>>>,
    hashes: Vec<Vec<u8>>,
    links: Vec<Vec<u8>>,
    bytes: usize,
}

impl Pending {
    pub(super) fn journal_row(&mut self, row: JournalEntry) {
        self.journal.push(row);
    }

    /// A message behind the last one of its attempt; says whether it is time to send what waits.
    pub(super) fn message(
        &mut self,
        attempt: AttemptKey,
        (number, link): (u32, &Hash),
        at_ms: i64,
        message: &NewMessage,
    ) -> bool {
        let messages = &mut self.messages;
        messages.units.push(attempt.unit.0);
        messages.attempts.push(attempt.number.into());
        messages.numbers.push(number.into());
        messages.at.push(at_ms);
        messages.roles.push(message.role.name());
        messages.encodings.push(message.encoding.name());
        messages.bodies.push(message.body.clone());
        messages.raws.push(message.raw.clone());
        messages.hashes.push(bytes(&message.content_hash));
        messages.links.push(bytes(link));
        messages.bytes += message.len_bytes();
        messages.bytes >= MESSAGES_LIMIT_BYTES
    }

    pub(super) fn send_all(&mut self, connection: &mut Connection) -> Read<()> {
        self.send_messages(connection)?;
        self.send_journal(connection)
    }

    pub(super) fn send_messages(&mut self, connection: &mut Connection) -> Read<()> {
        if self.messages.numbers.is_empty() {
            return Ok(());
        }
        let Messages { units, attempts, numbers, at, roles, encodings, bodies, raws, hashes, links, bytes: _ } =
            std::mem::take(&mut self.messages);
        connection.execute(
            "INSERT INTO messages (unit_key, attempt_number, number, at, role, encoding, body, raw, content_hash, link)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[],
                                  $7::bytea[], $8::bytea[], $9::bytea[], $10::bytea[])",
            &[&units, &attempts, &numbers, &at, &roles, &encodings, &bodies, &raws, &hashes, &links],
        )?;
        Ok(())
    }

    pub(super) fn send_journal(&mut self, connection: &mut Connection) -> Read<()> {
        if self.journal.is_empty() {
            return Ok(());
        }
        let rows = std::mem::take(&mut self.journal);
        let numbers = |of: fn(&JournalEntry) -> i64| rows.iter().map(of).collect::<Vec<i64>>();
        let optional_numbers = |of: fn(&JournalEntry) -> Option<u32>| {
            rows.iter().map(|row| of(row).map(i64::from)).collect::<Vec<Option<i64>>>()
        };
        let optional_hashes = |of: fn(&JournalEntry) -> Option<&Hash>| {
            rows.iter().map(|row| of(row).map(|hash| hash.as_bytes().as_slice())).collect::<Vec<Option<&[u8]>>>()
        };
        connection.execute(
            "INSERT INTO journal (seq, at, unit_key, attempt_number, fence, change, from_status, to_status, actor, reason,
                                  message_count, head, digest, link)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[],
                                  $7::text[], $8::text[], $9::bytea[], $10::bytea[], $11::bigint[], $12::bytea[],
                                  $13::bytea[], $14::bytea[])",
            &[
                &numbers(|row| row.seq),
                &numbers(|row| row.at.timestamp_millis()),
                &numbers(|row| row.unit.0),
                &optional_numbers(|row| row.attempt_number),
                &numbers(|row| row.fence),
                &rows.iter().map(|row| row.change.name()).collect::<Vec<_>>(),
                &rows.iter().map(|row| row.from.map(UnitStatus::name)).collect::<Vec<_>>(),
                &rows.iter().map(|row| row.to.name()).collect::<Vec<_>>(),
                &rows.iter().map(|row| row.actor.as_bytes()).collect::<Vec<_>>(),
                &rows.iter().map(|row| row.reason.as_deref().map(str::as_bytes)).collect::<Vec<_>>(),
                &optional_numbers(|row| row.message_count),
                &optional_hashes(|row| row.head.as_ref()),
                &optional_hashes(|row| row.digest.as_ref()),
                &optional_hashes(|row| Some(&row.link)),
            ],
        )?;
        Ok(())
    }
}

fn bytes(hash: &Hash) -> Vec<u8> {
    hash.as_bytes().to_vec()
}
