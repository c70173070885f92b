//! A page of what is new into the index, in one transaction with how far it is then.

use std::ops::ControlFlow;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::source::{self, DocumentKey, Mark, Page, Step};
use super::{CaughtUp, IndexProgress, SearchError};
use crate::audit::search::{Kind, Piece, Place, spell};
use crate::fault::{Stage, point};
use crate::repository::sqlite::archive::SqliteArchive;
use crate::unit::UnitKey;

/// How many pages of the index are rewritten at a time when what was purged is taken out.
const MERGE_PAGES: i64 = 1_024;

/// The file is shortened when more than this part of it is empty.
const EMPTY_PART: i64 = 8;

/// How many empty pages are given back at a time.
const ROOM_PAGES: u32 = 2_048;

/// What was taken out of the index, but only marked as gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holes {
    None = 0,
    /// Some since the index was last rewritten.
    New = 1,
    /// The index is being rewritten without them.
    Begun = 2,
}

impl Holes {
    fn of(number: i64) -> Holes {
        match number {
            0 => Holes::None,
            2 => Holes::Begun,
            _ => Holes::New,
        }
    }
}

/// Takes the index one page further; `Break` once it has reached the goal.
pub(super) fn step(
    connection: &Connection,
    archive: &SqliteArchive,
    goal: &Mark,
    done: &mut CaughtUp,
) -> Result<ControlFlow<(), IndexProgress>, SearchError> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let (mark, holes) = read_mark(connection)?;
    done.is_new |= mark == Mark::default();
    if mark.has_reached(goal) {
        // Also where there is nothing to do the database may be another one, of which the index must not tell.
        let mark = match archive.look(|archive| mark.is_known_to(archive))? {
            true if holes != Holes::None => {
                take_out_holes(connection, holes)?;
                mark
            }
            true if !give_back_room(connection)? => return Ok(ControlFlow::Break(())),
            true => mark,
            false => {
                forget_all(connection)?;
                Mark::default()
            }
        };
        transaction.commit()?;
        return Ok(ControlFlow::Continue(progress(&mark, goal)));
    }
    let page = archive.look(|archive| source::page(archive, mark))?;
    let mark = match page {
        Some(page) => apply(connection, page, holes, done)?,
        None => {
            forget_all(connection)?;
            Mark::default()
        }
    };
    point("index", Stage::Inside);
    transaction.commit()?;
    point("index", Stage::Committed);
    Ok(ControlFlow::Continue(progress(&mark, goal)))
}

/// Takes out what was purged since the mark, which stays where it is. Until the index is rewritten the words are only marked as gone.
pub(super) fn forget_purged(connection: &Connection, archive: &SqliteArchive) -> Result<(), SearchError> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let (mark, holes) = read_mark(connection)?;
    let mut has_new_holes = false;
    for UnitKey(unit) in archive.look(|archive| source::purged_since(archive, &mark))? {
        has_new_holes |= forget(connection, "TRUE", params![unit])?;
    }
    write_mark(connection, &mark, if has_new_holes { Holes::New } else { holes })?;
    Ok(transaction.commit()?)
}

fn progress(mark: &Mark, goal: &Mark) -> IndexProgress {
    IndexProgress { rows: mark.rows(), rows_total: goal.rows() }
}

fn read_mark(connection: &Connection) -> rusqlite::Result<(Mark, Holes)> {
    let mut select = connection
        .prepare_cached("SELECT journal_seq, journal_link, message, message_link, holes FROM mark WHERE id = 1")?;
    select.query_row([], |row| {
        let mark = Mark {
            journal_seq: row.get(0)?,
            journal_link: row.get(1)?,
            message: row.get(2)?,
            message_link: row.get(3)?,
        };
        Ok((mark, Holes::of(row.get(4)?)))
    })
}

fn write_mark(connection: &Connection, mark: &Mark, holes: Holes) -> rusqlite::Result<()> {
    let mut update = connection.prepare_cached(
        "UPDATE mark
         SET journal_seq = ?1, journal_link = ?2, message = ?3, message_link = ?4, holes = ?5
         WHERE id = 1",
    )?;
    update.execute(params![mark.journal_seq, mark.journal_link, mark.message, mark.message_link, holes as i64])?;
    Ok(())
}

fn apply(connection: &Connection, page: Page, holes: Holes, done: &mut CaughtUp) -> rusqlite::Result<Mark> {
    let mut has_new_holes = false;
    for step in page.steps {
        match step {
            Step::Add { key, at_ms, pieces } => {
                if add(connection, &key, at_ms, &pieces)? {
                    done.texts += 1;
                    done.text_bytes += pieces.iter().map(|piece| piece.text.len() as u64).sum::<u64>();
                }
            }
            Step::ForgetError(unit) => {
                let error = place_number(Place::Error);
                has_new_holes |= forget(connection, "attempt_number = 0 AND place = ?2", params![unit.0, error])?;
            }
            Step::ForgetUnit(UnitKey(unit)) => {
                has_new_holes |= forget(connection, "TRUE", params![unit])?;
            }
        }
    }
    done.unreadable += page.unreadable;
    write_mark(connection, &page.mark, if has_new_holes { Holes::New } else { holes })?;
    Ok(page.mark)
}

/// Makes a text searchable, unless it is: nothing that can be found is ever changed.
fn add(connection: &Connection, key: &DocumentKey, at_ms: i64, pieces: &[Piece]) -> rusqlite::Result<bool> {
    let place = place_number(key.place);
    // Of messages there are too many to ask for each, and no row of theirs is read twice.
    if key.place != Place::Message {
        let mut select = connection
            .prepare_cached("SELECT 1 FROM documents WHERE unit_key = ?1 AND attempt_number = ?2 AND place = ?3")?;
        if select.exists(params![key.unit.0, key.attempt_number, place])? {
            return Ok(false);
        }
    }
    let mut is_new = false;
    for &kind in Kind::ALL {
        let mut text = String::new();
        pieces.iter().filter(|piece| piece.kind == kind).for_each(|piece| spell(&piece.text, &mut text));
        if text.is_empty() {
            continue;
        }
        let mut insert = connection.prepare_cached(
            "INSERT INTO documents (job_id, unit_key, attempt_number, place, kind, number, at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        let DocumentKey { job_id, unit, attempt_number, number, .. } = key;
        insert.execute(params![job_id.0, unit.0, attempt_number, place, kind as i64, number, at_ms])?;
        let mut insert = connection.prepare_cached("INSERT INTO words (rowid, text) VALUES (?1, ?2)")?;
        insert.execute(params![connection.last_insert_rowid(), text])?;
        is_new = true;
    }
    Ok(is_new)
}

/// Takes texts of a unit out of what can be found, and says whether there were any.
fn forget(connection: &Connection, which: &str, parameters: impl rusqlite::Params + Copy) -> rusqlite::Result<bool> {
    let meant = format!("SELECT id FROM documents WHERE unit_key = ?1 AND {which}");
    let sql = format!("DELETE FROM words WHERE rowid IN ({meant})");
    connection.prepare_cached(&sql)?.execute(parameters)?;
    let sql = format!("DELETE FROM documents WHERE unit_key = ?1 AND {which}");
    Ok(connection.prepare_cached(&sql)?.execute(parameters)? > 0)
}

/// Begins from the start: the index is of another database.
fn forget_all(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute("INSERT INTO words (words) VALUES ('delete-all')", [])?;
    connection.execute("DELETE FROM documents", [])?;
    write_mark(connection, &Mark::default(), Holes::None)
}

/// Rewrites a part of the index without what was taken out, which until then is only marked as gone.
fn take_out_holes(connection: &Connection, holes: Holes) -> rusqlite::Result<()> {
    // A negative number begins to make one piece of all, others go on with it.
    let pages = if holes == Holes::Begun { MERGE_PAGES } else { -MERGE_PAGES };
    let before = connection.total_changes();
    connection.execute("INSERT INTO words (words, rank) VALUES ('merge', ?1)", [pages])?;
    let is_done = connection.total_changes() - before < 2;
    let holes = if is_done { Holes::None } else { Holes::Begun };
    connection.execute("UPDATE mark SET holes = ?1 WHERE id = 1", [holes as i64])?;
    Ok(())
}

/// Shortens the file if much of it is empty, which pieces of the index leave behind when they become one; says whether it was.
fn give_back_room(connection: &Connection) -> rusqlite::Result<bool> {
    let pages = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    if pages("freelist_count")? * EMPTY_PART <= pages("page_count")? {
        return Ok(false);
    }
    let mut vacuum = connection.prepare(&format!("PRAGMA incremental_vacuum({ROOM_PAGES})"))?;
    let mut rows = vacuum.query([])?;
    while rows.next()?.is_some() {}
    Ok(true)
}

/// How a place is stored.
pub(super) fn place_number(place: Place) -> i64 {
    place as i64
}

pub(super) fn kind_of(number: i64) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|&kind| kind as i64 == number)
}

pub(super) fn place_of(number: i64) -> Option<Place> {
    Place::ALL.iter().copied().find(|&place| place_number(place) == number)
}
