//! Ranked hits, shown from the database's own content.

use std::collections::HashMap;

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::SearchError;
use super::catch_up::{kind_of, place_of};
use super::source::{self, DocumentKey};
use crate::audit::search::{Hit, Kind, Query, snippet};
use crate::job::JobId;
use crate::repository::RepositoryError;
use crate::repository::sqlite::read::understood;
use crate::repository::sqlite::rows::{named, unit_id};
use crate::unit::{UnitId, UnitKey, UnitStatus};

/// A text that has the words.
struct Candidate {
    key: DocumentKey,
    kind: Kind,
    at_ms: i64,
    score: f64,
}

fn candidate(row: &Row<'_>) -> rusqlite::Result<Candidate> {
    let key = DocumentKey {
        job_id: JobId(row.get(0)?),
        unit: UnitKey(row.get(1)?),
        attempt_number: row.get(2)?,
        place: place_of(row.get(3)?).ok_or(FromSqlError::InvalidType)?,
        number: row.get(4)?,
    };
    let kind = kind_of(row.get(7)?).ok_or(FromSqlError::InvalidType)?;
    Ok(Candidate { key, kind, at_ms: row.get(5)?, score: -row.get::<_, f64>(6)? })
}

/// The hits of a query, best first.
pub(super) fn find(index: &Connection, archive: &Connection, query: &Query) -> Result<Vec<Hit>, SearchError> {
    let mut select = index.prepare_cached(
        "SELECT d.job_id, d.unit_key, d.attempt_number, d.place, d.number, d.at, w.rank, d.kind
         FROM words w
         CROSS JOIN documents d ON d.id = w.rowid
         WHERE words MATCH ?1 AND (?2 IS NULL OR d.job_id = ?2) AND (?3 IS NULL OR d.at >= ?3)
         ORDER BY w.rank",
    )?;
    let job_id = query.job_id.map(|job_id| job_id.0);
    let since_ms = query.since.map(|since| since.timestamp_millis());
    let mut rows = select.query(params![query.expression(), job_id, since_ms])?;
    let mut finding = Finding::new(archive, query);
    while let Some(row) = rows.next()? {
        let candidate = candidate(row)?;
        if !query.kinds.is_empty() && !query.kinds.contains(&candidate.kind) {
            continue;
        }
        if !finding.take(candidate)? {
            break;
        }
    }
    Ok(finding.hits)
}

/// Takes hits until there are enough.
struct Finding<'f> {
    archive: &'f Connection,
    query: &'f Query,
    to_skip: usize,
    hits: Vec<Hit>,
    /// Which hit is the best of a unit; `None` if it is one of those left out. Only by unit.
    best: HashMap<UnitKey, Option<usize>>,
}

impl<'f> Finding<'f> {
    fn new(archive: &'f Connection, query: &'f Query) -> Finding<'f> {
        Finding { archive, query, to_skip: query.offset, hits: Vec::new(), best: HashMap::new() }
    }

    /// Takes a candidate, and says whether others matter.
    fn take(&mut self, candidate: Candidate) -> Result<bool, RepositoryError> {
        let unit = candidate.key.unit;
        let is_full = self.hits.len() >= self.query.limit;
        if let Some(best) = self.best.get(&unit) {
            if let Some(hit) = best.and_then(|best| self.hits.get_mut(best)) {
                hit.others += 1;
            }
            return Ok(true);
        }
        if is_full {
            // By unit, those that follow still count as others.
            return Ok(self.query.is_by_unit && self.query.limit > 0);
        }
        let Some((unit_id, status)) = self.unit(unit)? else { return Ok(true) };
        let is_skipped = self.to_skip > 0;
        if is_skipped {
            self.to_skip -= 1;
        } else if let Some(hit) = self.hit(candidate, unit_id, status)? {
            self.hits.push(hit);
        } else {
            return Ok(true);
        }
        if self.query.is_by_unit {
            let best = if is_skipped { None } else { self.hits.len().checked_sub(1) };
            self.best.insert(unit, best);
        }
        Ok(self.hits.len() < self.query.limit || self.query.is_by_unit)
    }

    /// A unit, if it is one of those that are meant and has its contents.
    fn unit(&self, unit: UnitKey) -> Result<Option<(UnitId, UnitStatus)>, RepositoryError> {
        let what = || (format!("unit key {}", unit.0), unit.0);
        let select = self.archive.prepare_cached("SELECT id, status, purged_at IS NULL FROM work_units WHERE key = ?1");
        let mut select = understood(select, what)?;
        let row = |row: &Row<'_>| Ok((unit_id(row, 0)?, named(row, 1, UnitStatus::from_name)?, row.get(2)?));
        let found: Option<(UnitId, UnitStatus, bool)> = understood(select.query_row([unit.0], row).optional(), what)?;
        let statuses = &self.query.statuses;
        let is_meant = |status: &UnitStatus| statuses.is_empty() || statuses.contains(status);
        Ok(found
            .filter(|(_, status, has_contents)| is_meant(status) && *has_contents)
            .map(|(id, status, _)| (id, status)))
    }

    /// A hit with its words; `None` if what was found is not there any more.
    fn hit(&self, candidate: Candidate, unit_id: UnitId, status: UnitStatus) -> Result<Option<Hit>, RepositoryError> {
        let Candidate { key, kind, at_ms, score } = candidate;
        let what = || (format!("the {} of unit `{unit_id}`", key.place), key.unit.0);
        let Some((role, mut pieces)) = understood(source::content(self.archive, &key), what)? else { return Ok(None) };
        pieces.retain(|piece| piece.kind == kind);
        let Some(snippet) = snippet(&pieces, &self.query.terms) else { return Ok(None) };
        Ok(Some(Hit {
            job_id: key.job_id,
            unit: key.unit,
            unit_id,
            status,
            attempt_number: (key.attempt_number > 0).then_some(key.attempt_number),
            message_number: (key.number > 0).then_some(key.number),
            place: key.place,
            kind,
            role,
            at: chrono::DateTime::from_timestamp_millis(at_ms).unwrap_or_default(),
            snippet,
            score,
            others: 0,
        }))
    }
}
