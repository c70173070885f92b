//! Turns to ask a provider, and until when one is not to be asked. Both go by the clock of leases, which no restart of a host begins
//! anew.

use std::collections::HashMap;

use postgres::Row;

use super::book::{Answer, Book};
use super::columns::{Columns, column};
use super::connection::{Connection, Read};
use super::read::found;
use super::rows::read_charges;
use crate::attempt::AttemptKey;
use crate::clock::Moment;
use crate::lease::Lease;
use crate::limits::{self, Ask, NewHold, ProviderHold, RateLimits, StoredHold, TakenTurn, Turn};
use crate::unit::UnitKey;

/// There is one clock, so all is of the same boot.
const ANY_BOOT: &str = "";

/// The holds that are not over, by provider.
pub(super) fn read_holds(connection: &mut Connection, now: Moment) -> Read<Vec<ProviderHold>> {
    let rows = connection.rows("SELECT until, until_lease_ms, reason, provider FROM holds ORDER BY provider", &[])?;
    let told = |row: &Row| Ok(hold(row)?.told(&row.text(3)?, now, ANY_BOOT));
    rows.iter().filter_map(|row| told(row).transpose()).collect()
}

fn hold(row: &Row) -> Read<StoredHold> {
    Ok(StoredHold {
        until: row.time(0)?,
        until_boot_ms: row.number(1)?,
        boot_id: ANY_BOOT.to_owned(),
        reason: row.text(2)?,
    })
}

impl Book<'_> {
    pub(super) fn take_turn(&mut self, lease: &Lease, provider: &str, limits: &RateLimits, ask: &Ask) -> Answer<Turn> {
        self.check_held(lease)?;
        let now = self.now;
        if let Some(hold) = self.hold_of(provider)?.and_then(|hold| hold.told(provider, now, ANY_BOOT)) {
            return Ok(Turn::Held(hold));
        }
        let turns = self.turns(provider, limits)?;
        if let Some((after, limit)) = limits::wait(limits, ask, lease.attempt(), &turns, now.boot_ms) {
            return Ok(Turn::Later { after, limit });
        }
        self.forget_turns(provider)?;
        self.execute(
            "INSERT INTO turns (provider, unit_key, attempt_number, free_lease_ms, input, output)
             VALUES ($1, $2, $3, $4, $5, $6)",
            &[
                &provider.as_bytes(),
                &lease.unit.0,
                &i64::from(lease.attempt_number),
                &now.boot_ms.saturating_add(limits.counted_ms()),
                &column(ask.input_tokens),
                &column(ask.output_tokens),
            ],
        )?;
        Ok(Turn::Taken)
    }

    /// The turns of a provider that count, or whose attempts have not ended.
    fn turns(&mut self, provider: &str, limits: &RateLimits) -> Answer<Vec<TakenTurn>> {
        let rows = self.rows(
            "SELECT t.unit_key, t.attempt_number, t.free_lease_ms, t.input, t.output, a.outcome IS NULL
             FROM turns t
             JOIN attempts a ON a.unit_key = t.unit_key AND a.number = t.attempt_number
             WHERE t.provider = $1 AND (t.free_lease_ms > $2 OR a.outcome IS NULL)",
            &[&provider.as_bytes(), &{ self.now.boot_ms }],
        )?;
        let turn = |row: &Row| {
            Ok(TakenTurn {
                attempt: AttemptKey { unit: UnitKey(row.number(0)?), number: row.count(1)? },
                free_at_ms: row.number(2)?,
                ask: Ask::new(row.count(3)?, row.count(4)?),
                is_open: row.flag(5)?,
                used: None,
            })
        };
        let mut turns = rows.iter().map(turn).collect::<Read<Vec<_>>>()?;
        // Who counts no tokens need not know what was used.
        if limits.input_tokens.is_some() || limits.output_tokens.is_some() {
            let mut known = HashMap::new();
            for turn in turns.iter_mut().filter(|turn| !turn.is_open) {
                turn.used = match known.get(&turn.attempt) {
                    Some(used) => *used,
                    None => {
                        let used = limits::used(&read_charges(self.connection(), turn.attempt)?);
                        *known.entry(turn.attempt).or_insert(used)
                    }
                };
            }
        }
        Ok(turns)
    }

    /// What no longer counts goes.
    fn forget_turns(&mut self, provider: &str) -> Read<()> {
        self.execute(
            "DELETE FROM turns t
             USING attempts a
             WHERE t.provider = $1 AND t.free_lease_ms <= $2
               AND a.unit_key = t.unit_key AND a.number = t.attempt_number AND a.outcome IS NOT NULL",
            &[&provider.as_bytes(), &{ self.now.boot_ms }],
        )?;
        Ok(())
    }

    fn hold_of(&mut self, provider: &str) -> Read<Option<StoredHold>> {
        let row =
            self.row("SELECT until, until_lease_ms, reason FROM holds WHERE provider = $1", &[&provider.as_bytes()])?;
        found(row, hold)
    }

    pub(super) fn hold(&mut self, new: &NewHold) -> Answer<()> {
        let now = self.now;
        let before = self.hold_of(&new.provider)?.and_then(|before| before.left(now, ANY_BOOT));
        if before.is_some_and(|before| before >= new.pause) {
            return Ok(());
        }
        let StoredHold { until, until_boot_ms, reason, .. } = StoredHold::new(new, now, ANY_BOOT);
        self.execute(
            "INSERT INTO holds (provider, until, until_lease_ms, reason)
             VALUES ($1, $2, $3, $4)
             ON CONFLICT (provider) DO UPDATE SET until = $2, until_lease_ms = $3, reason = $4",
            &[&new.provider.as_bytes(), &until.timestamp_millis(), &until_boot_ms, &reason.as_bytes()],
        )?;
        Ok(())
    }

    pub(super) fn lift(&mut self, provider: &str) -> Answer<bool> {
        let now = self.now;
        let was_held = self.hold_of(provider)?.is_some_and(|hold| hold.left(now, ANY_BOOT).is_some());
        self.execute("DELETE FROM holds WHERE provider = $1", &[&provider.as_bytes()])?;
        Ok(was_held)
    }
}
