//! What the database has that the index has not, and what a hit shows.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;

use crate::audit::search::{Kind, Piece, Place, of_message, of_value};
use crate::conversation::{Role, StoredMessage, from_json};
use crate::job::JobId;
use crate::repository::Result;
use crate::repository::sqlite::messages::read_content;
use crate::repository::sqlite::read::stored;
use crate::repository::sqlite::rows::{blob, named, time};
use crate::unit::{Change, UnitKey};

/// How many bytes of text a page has, unless one text alone has more.
const PAGE_BYTES: usize = 8 * 1024 * 1024;

/// How many rows of the database are looked at for a page.
const PAGE_ROWS: i64 = 10_000;

/// How far the index is: the last row of the journal and the last message that it knows, each with its link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) journal_seq: i64,
    pub(super) journal_link: Option<Vec<u8>>,
    pub(super) message: i64,
    pub(super) message_link: Option<Vec<u8>>,
}

impl Mark {
    /// How far the database is.
    pub(super) fn of_now(connection: &Connection) -> Result<Mark> {
        let last = |sql| stored(connection.query_row(sql, [], |row| row.get::<_, Option<i64>>(0)));
        let journal_seq = last("SELECT max(seq) FROM journal")?.unwrap_or(0);
        let message = last("SELECT max(rowid) FROM messages")?.unwrap_or(0);
        Ok(Mark { journal_seq, message, ..Mark::default() })
    }

    pub(super) fn rows(&self) -> u64 {
        u64::try_from(self.journal_seq.saturating_add(self.message)).unwrap_or_default()
    }

    pub(super) fn has_reached(&self, goal: &Mark) -> bool {
        self.journal_seq >= goal.journal_seq && self.message >= goal.message
    }

    /// Whether the database is the one that the index is of.
    pub(super) fn is_known_to(&self, connection: &Connection) -> Result<bool> {
        let has = |sql, row: i64, link: &Option<Vec<u8>>| -> Result<bool> {
            if row == 0 {
                return Ok(true);
            }
            let mut select = stored(connection.prepare_cached(sql))?;
            let found = stored(select.query_row([row], |row| row.get::<_, Vec<u8>>(0)).optional())?;
            Ok(found.is_some() && found == *link)
        };
        Ok(has("SELECT link FROM journal WHERE seq = ?1", self.journal_seq, &self.journal_link)?
            && has("SELECT link FROM messages WHERE rowid = ?1", self.message, &self.message_link)?)
    }
}

/// Something that can be found, by where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentKey {
    pub(super) job_id: JobId,
    pub(super) unit: UnitKey,
    /// 0 for what belongs to the unit.
    pub(super) attempt_number: u32,
    pub(super) place: Place,
    /// The number of the message, else 0.
    pub(super) number: u32,
}

/// What is to be done to the index.
#[derive(Debug)]
pub(super) enum Step {
    /// To be found, unless it is already.
    Add { key: DocumentKey, at_ms: i64, pieces: Vec<Piece> },
    /// The unit has not failed any more.
    ForgetError(UnitKey),
    /// The contents of the unit are gone.
    ForgetUnit(UnitKey),
}

/// What comes next.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) steps: Vec<Step>,
    /// How far the index is after them.
    pub(super) mark: Mark,
    pub(super) text_bytes: usize,
    pub(super) unreadable: u64,
}

impl Page {
    fn is_full(&self) -> bool {
        self.text_bytes >= PAGE_BYTES
    }

    fn add(&mut self, key: DocumentKey, at_ms: i64, pieces: Vec<Piece>) {
        self.text_bytes += pieces.iter().map(|piece| piece.text.len()).sum::<usize>();
        if !pieces.is_empty() {
            self.steps.push(Step::Add { key, at_ms, pieces });
        }
    }
}

/// What follows a mark; `None` if the database is another one.
pub(super) fn page(connection: &Connection, mark: Mark) -> Result<Option<Page>> {
    if !mark.is_known_to(connection)? {
        return Ok(None);
    }
    let mut page = Page { mark, ..Page::default() };
    if read_journal(connection, &mut page)? < PAGE_ROWS && !page.is_full() {
        read_messages(connection, &mut page)?;
    }
    Ok(Some(page))
}

/// The units that were purged since a mark.
pub(super) fn purged_since(connection: &Connection, mark: &Mark) -> Result<Vec<UnitKey>> {
    let mut select =
        stored(connection.prepare_cached("SELECT unit_key FROM journal WHERE seq > ?1 AND change = 'PURGE'"))?;
    let units = stored(select.query_map([mark.journal_seq], |row| row.get(0).map(UnitKey)))?;
    units.map(stored).collect()
}

/// A row of the journal, as far as it tells of something to be found.
struct Told {
    seq: i64,
    link: Vec<u8>,
    change: Option<Change>,
    at_ms: i64,
    job_id: Option<i64>,
    unit: UnitKey,
    attempt_number: Option<u32>,
}

fn told(row: &Row<'_>) -> rusqlite::Result<Told> {
    Ok(Told {
        seq: row.get(0)?,
        link: row.get(1)?,
        change: Change::from_name(row.get_ref(2)?.as_str()?),
        at_ms: row.get(3)?,
        unit: UnitKey(row.get(4)?),
        attempt_number: row.get(5)?,
        job_id: row.get(6)?,
    })
}

fn read_journal(connection: &Connection, page: &mut Page) -> Result<i64> {
    let mut select = stored(connection.prepare_cached(
        "SELECT j.seq, j.link, j.change, j.at, j.unit_key, j.attempt_number, u.job_id
         FROM journal j
         LEFT JOIN work_units u ON u.key = j.unit_key
         WHERE j.seq > ?1
         ORDER BY j.seq
         LIMIT ?2",
    ))?;
    let mut rows = stored(select.query([page.mark.journal_seq, PAGE_ROWS]))?;
    let mut count = 0;
    while !page.is_full() {
        let Some(row) = stored(rows.next())? else { break };
        count += 1;
        let Ok(told) = told(row) else {
            // Without its own number nobody could go on behind it.
            page.mark.journal_seq = stored(row.get(0))?;
            page.mark.journal_link = row.get(1).ok();
            page.unreadable += 1;
            continue;
        };
        let added = add_told(connection, &told, page);
        page.unreadable += u64::from(added.is_err());
        page.mark.journal_seq = told.seq;
        page.mark.journal_link = Some(told.link);
    }
    Ok(count)
}

/// What became so with a row of the journal, as it is now.
fn add_told(connection: &Connection, told: &Told, page: &mut Page) -> rusqlite::Result<()> {
    use Change as C;
    let (Some(change), Some(job_id)) = (told.change, told.job_id) else { return Ok(()) };
    let attempt_number = told.attempt_number.unwrap_or(0);
    let key = |attempt_number, place| DocumentKey {
        job_id: JobId(job_id),
        unit: told.unit,
        attempt_number,
        place,
        number: 0,
    };
    let mut add = |key: DocumentKey| -> rusqlite::Result<()> {
        let content = content(connection, &key)?;
        page.add(key, told.at_ms, content.map(|(_, pieces)| pieces).unwrap_or_default());
        Ok(())
    };
    match change {
        C::Insert | C::AddPrompt => add(key(0, Place::Prompt))?,
        C::Start => add(key(attempt_number, Place::RenderedPrompt))?,
        C::LateReport => add(key(attempt_number, Place::LateResult))?,
        C::Complete | C::Retry | C::Fail | C::Release | C::Expire | C::ExpireFinally | C::EndCancelled
            if attempt_number > 0 =>
        {
            add(key(attempt_number, Place::Output))?;
            add(key(attempt_number, Place::Error))?;
        }
        _ => {}
    }
    match change {
        C::Fail | C::ExpireFinally | C::QueueTimeout => add(key(0, Place::Error))?,
        C::Requeue => page.steps.push(Step::ForgetError(told.unit)),
        C::Purge => page.steps.push(Step::ForgetUnit(told.unit)),
        _ => {}
    }
    Ok(())
}

fn read_messages(connection: &Connection, page: &mut Page) -> Result<()> {
    let mut select = stored(connection.prepare_cached(
        "SELECT m.number, m.at, m.role, m.encoding, m.body, NULL, m.content_hash, m.link, m.rowid, m.unit_key,
                m.attempt_number, u.job_id
         FROM messages m
         LEFT JOIN work_units u ON u.key = m.unit_key
         WHERE m.rowid > ?1
         ORDER BY m.rowid
         LIMIT ?2",
    ))?;
    let mut rows = stored(select.query([page.mark.message, PAGE_ROWS]))?;
    while !page.is_full() {
        let Some(row) = stored(rows.next())? else { break };
        page.mark.message = stored(row.get(8))?;
        page.mark.message_link = row.get(7).ok();
        match message_of(row) {
            Ok(Some((key, at_ms, pieces))) => page.add(key, at_ms, pieces),
            Ok(None) => {}
            Err(_) => page.unreadable += 1,
        }
    }
    Ok(())
}

/// A message and where it is; `None` if its content is gone.
fn message_of(row: &Row<'_>) -> rusqlite::Result<Option<(DocumentKey, i64, Vec<Piece>)>> {
    let Some((_, pieces)) = message_content(row)? else { return Ok(None) };
    let key = DocumentKey {
        job_id: JobId(row.get(11)?),
        unit: UnitKey(row.get(9)?),
        attempt_number: row.get(10)?,
        place: Place::Message,
        number: row.get(0)?,
    };
    Ok(Some((key, row.get(1)?, pieces)))
}

/// What a message says, from a row that begins as the archive reads it.
fn message_content(row: &Row<'_>) -> rusqlite::Result<Option<(Option<Role>, Vec<Piece>)>> {
    let (content, role) = (read_content(row, 3, 4, 5)?, named(row, 2, Role::from_name)?);
    let message = StoredMessage::new(row.get(0)?, time(row, 1)?, role, content, blob(row, 6)?, blob(row, 7)?);
    let message = message.message().map_err(|error| not_ours(4, error))?;
    Ok(message.map(|message| (Some(role), of_message(message))))
}

fn not_ours(column: usize, error: serde_json::Error) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Blob, error.into())
}

/// What can be found at a place now, and who says it; `None` if there is nothing, or nothing any more.
pub(super) fn content(
    connection: &Connection,
    key: &DocumentKey,
) -> rusqlite::Result<Option<(Option<Role>, Vec<Piece>)>> {
    let (unit, attempt) = (key.unit.0, key.attempt_number);
    let piece = |kind, text: Option<String>| text.map(|text| Piece::new(kind, text));
    let pieces: Vec<Piece> = match (key.place, attempt) {
        (Place::Message, _) => {
            let mut select = connection.prepare_cached(
                "SELECT number, at, role, encoding, body, NULL, content_hash, link
                 FROM messages
                 WHERE unit_key = ?1 AND attempt_number = ?2 AND number = ?3",
            )?;
            return Ok(select.query_row(params![unit, attempt, key.number], message_content).optional()?.flatten());
        }
        (Place::Prompt, _) => {
            let mut select = connection.prepare_cached("SELECT prompt FROM unit_inputs WHERE unit_key = ?1")?;
            let prompt = select.query_row([unit], |row| row.get(0)).optional()?.flatten();
            piece(Kind::Prompt, prompt).into_iter().collect()
        }
        (Place::Error, 0) => unit_error(connection, key.unit)?.into_iter().collect(),
        (Place::Error, _) => {
            let mut select = connection.prepare_cached(
                "SELECT failure_kind, failure_message FROM attempts WHERE unit_key = ?1 AND number = ?2",
            )?;
            let failure = select.query_row(params![unit, attempt], |row| Ok(error_of(row.get(0)?, row.get(1)?)));
            piece(Kind::Error, failure.optional()?.flatten()).into_iter().collect()
        }
        (Place::RenderedPrompt | Place::Output | Place::LateResult, _) => {
            let mut select = connection.prepare_cached(
                "SELECT rendered_prompt, output, result, late_result
                 FROM attempt_results
                 WHERE unit_key = ?1 AND attempt_number = ?2",
            )?;
            let mut rows = select.query(params![unit, attempt])?;
            match rows.next()? {
                Some(row) if key.place == Place::RenderedPrompt => {
                    piece(Kind::Prompt, row.get(0)?).into_iter().collect()
                }
                Some(row) if key.place == Place::Output => {
                    let output = piece(Kind::Assistant, row.get(1)?);
                    let result = piece(Kind::Assistant, value_text(row, 2)?);
                    let is_same = |result: &Piece| output.as_ref().is_some_and(|output| output.text == result.text);
                    let result = result.filter(|result| !is_same(result));
                    output.into_iter().chain(result).collect()
                }
                Some(row) => piece(Kind::Assistant, value_text(row, 3)?).into_iter().collect(),
                None => Vec::new(),
            }
        }
    };
    Ok((!pieces.is_empty()).then_some((None, pieces)))
}

/// The strings and numbers of JSON in a column.
fn value_text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    let Some(bytes) = row.get_ref(column)?.as_blob_or_null()? else { return Ok(None) };
    let value: Value = from_json(bytes).map_err(|error| not_ours(column, error))?;
    Ok(Some(of_value(&value)))
}

fn error_of(kind: Option<String>, message: Option<String>) -> Option<String> {
    Some(format!("{}: {}", kind?, message.unwrap_or_default()))
}

/// Why a unit failed, unless that is what its last attempt says.
fn unit_error(connection: &Connection, unit: UnitKey) -> rusqlite::Result<Option<Piece>> {
    let mut select = connection.prepare_cached(
        "SELECT u.failure_kind, u.failure_message, a.failure_kind, a.failure_message
         FROM work_units u
         LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
         WHERE u.key = ?1",
    )?;
    let both = |row: &Row<'_>| Ok((error_of(row.get(0)?, row.get(1)?), error_of(row.get(2)?, row.get(3)?)));
    let Some((own, last)) = select.query_row([unit.0], both).optional()? else { return Ok(None) };
    Ok(own.filter(|own| Some(own) != last.as_ref()).map(|own| Piece::new(Kind::Error, own)))
}
