//! Turns to ask a provider, and until when one is not to be asked.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::book::{Answer, Book};
use super::migrate;
use super::rows::{read_charges, time, unsigned};
use crate::attempt::AttemptKey;
use crate::clock::Moment;
use crate::lease::Lease;
use crate::limits::{self, Ask, NewHold, ProviderHold, RateLimits, StoredHold, TakenTurn, Turn};
use crate::unit::UnitKey;

/// The first version of the schema that has holds.
const SINCE_VERSION: u32 = 5;

/// The holds that are not over, by provider. A file from before there were any has none.
pub(super) fn read_holds(connection: &Connection, now: Moment, boot_id: &str) -> rusqlite::Result<Vec<ProviderHold>> {
    if migrate::version(connection)? < SINCE_VERSION {
        return Ok(Vec::new());
    }
    let mut select = connection
        .prepare_cached("SELECT until, until_boot_ms, boot_id, reason, provider FROM holds ORDER BY provider")?;
    let holds = select.query_map([], |row| {
        let provider: String = row.get(4)?;
        Ok(hold(row)?.told(&provider, now, boot_id))
    })?;
    holds.filter_map(Result::transpose).collect()
}

fn hold(row: &Row<'_>) -> rusqlite::Result<StoredHold> {
    Ok(StoredHold { until: time(row, 0)?, until_boot_ms: row.get(1)?, boot_id: row.get(2)?, reason: row.get(3)? })
}

/// As a column has it: what is more than a number can be is as good as that.
fn column(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

impl Book<'_> {
    pub(super) fn take_turn(
        &mut self,
        now: Moment,
        boot_id: &str,
        lease: &Lease,
        provider: &str,
        limits: &RateLimits,
        ask: &Ask,
    ) -> Answer<Turn> {
        self.check_held(lease)?;
        if let Some(hold) = self.hold_of(provider)?.and_then(|hold| hold.told(provider, now, boot_id)) {
            return Ok(Turn::Held(hold));
        }
        let turns = self.turns(now, boot_id, provider, limits)?;
        if let Some((after, limit)) = limits::wait(limits, ask, lease.attempt(), &turns, now.boot_ms) {
            return Ok(Turn::Later { after, limit });
        }
        self.forget_turns(now, boot_id, provider)?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO turns (provider, unit_key, attempt_number, boot_id, free_at_boot_ms, input, output)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        insert.execute(params![
            provider,
            lease.unit.0,
            lease.attempt_number,
            boot_id,
            now.boot_ms.saturating_add(limits.counted_ms()),
            column(ask.input_tokens),
            column(ask.output_tokens),
        ])?;
        Ok(Turn::Taken)
    }

    /// The turns of a provider that count, or whose attempts have not ended.
    fn turns(&self, now: Moment, boot_id: &str, provider: &str, limits: &RateLimits) -> Answer<Vec<TakenTurn>> {
        let mut select = self.connection.prepare_cached(
            "SELECT t.unit_key, t.attempt_number, t.free_at_boot_ms, t.input, t.output, a.outcome IS NULL
             FROM turns t
             JOIN attempts a ON a.unit_key = t.unit_key AND a.number = t.attempt_number
             WHERE t.provider = ?1 AND t.boot_id = ?2 AND (t.free_at_boot_ms > ?3 OR a.outcome IS NULL)",
        )?;
        let turns = select.query_map(params![provider, boot_id, now.boot_ms], |row| {
            Ok(TakenTurn {
                attempt: AttemptKey { unit: UnitKey(row.get(0)?), number: row.get(1)? },
                free_at_ms: row.get(2)?,
                ask: Ask::new(unsigned(row, 3)?, unsigned(row, 4)?),
                is_open: row.get(5)?,
                used: None,
            })
        })?;
        let mut turns = turns.collect::<rusqlite::Result<Vec<_>>>()?;
        // Who counts no tokens need not know what was used.
        if limits.input_tokens.is_some() || limits.output_tokens.is_some() {
            let mut known = HashMap::new();
            for turn in turns.iter_mut().filter(|turn| !turn.is_open) {
                turn.used = match known.get(&turn.attempt) {
                    Some(used) => *used,
                    None => {
                        let used = limits::used(&read_charges(self.connection, turn.attempt)?);
                        *known.entry(turn.attempt).or_insert(used)
                    }
                };
            }
        }
        Ok(turns)
    }

    /// What no longer counts goes, and what was taken in another boot.
    fn forget_turns(&self, now: Moment, boot_id: &str, provider: &str) -> rusqlite::Result<()> {
        let mut delete = self.connection.prepare_cached(
            "DELETE FROM turns
             WHERE provider = ?1
               AND (boot_id <> ?2
                    OR (free_at_boot_ms <= ?3
                        AND EXISTS (SELECT 1 FROM attempts a
                                    WHERE a.unit_key = turns.unit_key AND a.number = turns.attempt_number
                                      AND a.outcome IS NOT NULL)))",
        )?;
        delete.execute(params![provider, boot_id, now.boot_ms])?;
        Ok(())
    }

    fn hold_of(&self, provider: &str) -> rusqlite::Result<Option<StoredHold>> {
        let mut select = self
            .connection
            .prepare_cached("SELECT until, until_boot_ms, boot_id, reason FROM holds WHERE provider = ?1")?;
        select.query_row([provider], hold).optional()
    }

    pub(super) fn hold(&mut self, now: Moment, boot_id: &str, new: &NewHold) -> Answer<()> {
        let before = self.hold_of(&new.provider)?.and_then(|before| before.left(now, boot_id));
        if before.is_some_and(|before| before >= new.pause) {
            return Ok(());
        }
        let StoredHold { until, until_boot_ms, reason, .. } = StoredHold::new(new, now, boot_id);
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO holds (provider, until, until_boot_ms, boot_id, reason)
             VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (provider) DO UPDATE SET until = ?2, until_boot_ms = ?3, boot_id = ?4, reason = ?5",
        )?;
        upsert.execute(params![new.provider, until.timestamp_millis(), until_boot_ms, boot_id, reason])?;
        Ok(())
    }

    pub(super) fn lift(&mut self, now: Moment, boot_id: &str, provider: &str) -> Answer<bool> {
        let was_held = self.hold_of(provider)?.is_some_and(|hold| hold.left(now, boot_id).is_some());
        self.connection.prepare_cached("DELETE FROM holds WHERE provider = ?1")?.execute([provider])?;
        Ok(was_held)
    }
}
