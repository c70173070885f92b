//! Turns to ask a provider, and until when one is not to be asked.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::book::{Answer, Book};
use super::migrate;
use super::rows::{read_charges, time, unsigned};
use crate::attempt::AttemptKey;
use crate::clock::Moment;
use crate::lease::Lease;
use crate::limits::{self, Ask, Counted, NewHold, ProviderHold, RateLimits, StoredHold, Turn};
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

fn counted(row: &Row<'_>) -> rusqlite::Result<Counted> {
    let tokens = Ask::new(unsigned(row, 2)?, unsigned(row, 3)?);
    Ok(Counted { free_at_ms: row.get(0)?, requests: unsigned(row, 1)?, tokens })
}

/// A turn whose attempt has ended, or that was taken in another boot.
struct OverTurn {
    id: i64,
    boot_id: String,
    free_at_ms: i64,
    ask: Ask,
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
        self.settle_turns(boot_id, provider)?;
        let under_way = if limits.concurrency.is_some() { self.under_way(provider, lease.attempt())? } else { 0 };
        let counted = self.counted(now, boot_id, provider)?;
        if let Some((after, limit)) = limits::wait(limits, ask, under_way, &counted, now.boot_ms) {
            return Ok(Turn::Later { after, limit });
        }
        self.forget_windows(now, boot_id, provider)?;
        let free_at_ms = limits.free_at_ms(now.boot_ms);
        let window = counted.into_iter().find(|window| window.free_at_ms == free_at_ms);
        let mut window = window.unwrap_or(Counted { free_at_ms, ..Counted::default() });
        window.add(ask);
        self.keep_window(boot_id, provider, &window)?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO turns (provider, unit_key, attempt_number, boot_id, free_at_boot_ms, input, output)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?;
        let (input, output) = (column(ask.input_tokens), column(ask.output_tokens));
        insert.execute(params![provider, lease.unit.0, lease.attempt_number, boot_id, free_at_ms, input, output])?;
        Ok(Turn::Taken)
    }

    /// How many other attempts have taken a turn and not ended.
    fn under_way(&self, provider: &str, but: AttemptKey) -> rusqlite::Result<u64> {
        let mut count = self.connection.prepare_cached(
            "SELECT count(DISTINCT unit_key) FROM turns WHERE provider = ?1 AND NOT (unit_key = ?2 AND attempt_number = ?3)",
        )?;
        count.query_row(params![provider, but.unit.0, but.number], |row| unsigned(row, 0))
    }

    /// What counts now, in the order in which it no longer will.
    fn counted(&self, now: Moment, boot_id: &str, provider: &str) -> rusqlite::Result<Vec<Counted>> {
        let mut select = self.connection.prepare_cached(
            "SELECT free_at_boot_ms, requests, input, output
             FROM rate_windows
             WHERE provider = ?1 AND boot_id = ?2 AND free_at_boot_ms > ?3
             ORDER BY free_at_boot_ms",
        )?;
        let counted = select.query_map(params![provider, boot_id, now.boot_ms], counted)?;
        counted.collect()
    }

    /// The turns of attempts that have ended are counted as what they were used for, and are turns no more. Those of another boot count no
    /// more at all.
    fn settle_turns(&self, boot_id: &str, provider: &str) -> rusqlite::Result<()> {
        let mut select = self.connection.prepare_cached(
            "SELECT t.id, t.unit_key, t.attempt_number, t.boot_id, t.free_at_boot_ms, t.input, t.output
             FROM turns t
             JOIN attempts a ON a.unit_key = t.unit_key AND a.number = t.attempt_number
             WHERE t.provider = ?1 AND (a.outcome IS NOT NULL OR t.boot_id <> ?2)
             ORDER BY t.id",
        )?;
        let mut over: BTreeMap<AttemptKey, Vec<OverTurn>> = BTreeMap::new();
        let mut rows = select.query(params![provider, boot_id])?;
        while let Some(row) = rows.next()? {
            let attempt = AttemptKey { unit: UnitKey(row.get(1)?), number: row.get(2)? };
            let ask = Ask::new(unsigned(row, 5)?, unsigned(row, 6)?);
            let turn = OverTurn { id: row.get(0)?, boot_id: row.get(3)?, free_at_ms: row.get(4)?, ask };
            over.entry(attempt).or_default().push(turn);
        }
        for (attempt, turns) in over {
            let asks: Vec<Ask> = turns.iter().map(|turn| turn.ask).collect();
            let used = limits::used(&read_charges(self.connection, attempt)?);
            for (turn, used) in turns.iter().zip(limits::settled_turns(&asks, used)) {
                self.settle_turn(provider, turn, &used)?;
            }
        }
        Ok(())
    }

    fn settle_turn(&self, provider: &str, turn: &OverTurn, used: &Ask) -> rusqlite::Result<()> {
        let mut select = self.connection.prepare_cached(
            "SELECT free_at_boot_ms, requests, input, output
             FROM rate_windows
             WHERE provider = ?1 AND boot_id = ?2 AND free_at_boot_ms = ?3",
        )?;
        let window = select.query_row(params![provider, turn.boot_id, turn.free_at_ms], counted).optional()?;
        if let Some(mut window) = window {
            window.settle(&turn.ask, used);
            self.keep_window(&turn.boot_id, provider, &window)?;
        }
        self.connection.prepare_cached("DELETE FROM turns WHERE id = ?1")?.execute([turn.id])?;
        Ok(())
    }

    fn keep_window(&self, boot_id: &str, provider: &str, window: &Counted) -> rusqlite::Result<()> {
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO rate_windows (provider, boot_id, free_at_boot_ms, requests, input, output)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)
             ON CONFLICT (provider, boot_id, free_at_boot_ms) DO UPDATE SET requests = ?4, input = ?5, output = ?6",
        )?;
        let Counted { free_at_ms, requests, tokens } = window;
        let (input, output) = (column(tokens.input_tokens), column(tokens.output_tokens));
        upsert.execute(params![provider, boot_id, free_at_ms, column(*requests), input, output])?;
        Ok(())
    }

    /// What no longer counts goes.
    fn forget_windows(&self, now: Moment, boot_id: &str, provider: &str) -> rusqlite::Result<()> {
        let mut delete = self.connection.prepare_cached(
            "DELETE FROM rate_windows WHERE provider = ?1 AND (boot_id <> ?2 OR free_at_boot_ms <= ?3)",
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
