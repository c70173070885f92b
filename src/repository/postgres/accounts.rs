//! Budgets: what is left of them, brought up to date as attempts begin and end.
//!
//! An account has a row as long as its job or owner has a budget. Where there is none at all, nobody looks for one.

use super::book::{Answer, Book};
use super::columns::Columns;
use super::connection::{Connection, Read};
use super::read::found;
use super::rows::{read_attempts, read_charges_of};
use crate::attempt::Attempt;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::limits::{self, Account, AccountHolder, Bill, OverBudget};
use crate::money::{Charge, Money};
use crate::repository::prepared::{HotUnit, Terms};
use crate::unit::UnitKey;

/// How many units are looked at together to see what a job has cost.
const COUNTED_UNITS: i64 = 1_000;

/// What is left of a budget, if there is one.
pub(super) fn read(connection: &mut Connection, holder: AccountHolder) -> Read<Option<Account>> {
    let (kind, id) = key(holder);
    let row = connection.row(
        "SELECT coalesce(j.budget, o.budget), a.spent, a.reserved, a.largest
         FROM accounts a
         LEFT JOIN jobs j ON a.holder = 'job' AND j.id = a.id
         LEFT JOIN owners o ON a.holder = 'owner' AND o.id = a.id
         WHERE a.holder = $1 AND a.id = $2",
        &[&kind, &id],
    )?;
    found(row, |row| {
        Ok(Account {
            holder,
            budget: row.money(0)?,
            spent: row.money(1)?,
            reserved: row.money(2)?,
            largest: row.optional_money(3)?,
        })
    })
}

/// The account of a job as it follows from what its attempts have left.
fn of_job(connection: &mut Connection, id: JobId, budget: Money) -> Read<Account> {
    let mut account = Account::new(AccountHolder::Job(id), budget);
    let mut after = 0;
    loop {
        let rows = connection.rows(
            "SELECT key FROM work_units WHERE job_id = $1 AND key > $2 ORDER BY key LIMIT $3",
            &[&id.0, &after, &COUNTED_UNITS],
        )?;
        let units = rows.iter().map(|row| row.number(0)).collect::<Read<Vec<i64>>>()?;
        let Some(&last) = units.last() else { return Ok(account) };
        after = last;
        let mut charges = read_charges_of(connection, &units)?;
        for attempt in read_attempts(connection, &units)? {
            let charges = charges.remove(&attempt.key).unwrap_or_default();
            account.count(attempt.expected, attempt.outcome.is_some(), &charges);
        }
    }
}

fn key(holder: AccountHolder) -> (&'static str, i64) {
    match holder {
        AccountHolder::Job(id) => ("job", id.0),
        AccountHolder::Owner(id) => ("owner", id.0),
    }
}

impl Book<'_> {
    /// A job, or an owner that is new, has this budget from now on, or none.
    pub(super) fn set_budget(&mut self, holder: AccountHolder, budget: Option<Money>) -> Answer<()> {
        let (kind, id) = key(holder);
        let is_there = self.exists("SELECT 1 FROM accounts WHERE holder = $1 AND id = $2", &[&kind, &id])?;
        match (budget, holder) {
            // How much may be spent stands with its holder.
            (Some(_), _) if is_there => {}
            (Some(budget), AccountHolder::Job(id)) => {
                let account = of_job(self.settled()?, id, budget)?;
                self.insert_account(&account)?;
            }
            (Some(budget), AccountHolder::Owner(_)) => self.insert_account(&Account::new(holder, budget))?,
            (None, _) if is_there => {
                self.execute("DELETE FROM accounts WHERE holder = $1 AND id = $2", &[&kind, &id])?;
            }
            (None, _) => {}
        }
        self.memory.has_accounts = None;
        Ok(())
    }

    fn insert_account(&mut self, account: &Account) -> Read<()> {
        let (kind, id) = key(account.holder);
        let [spent, reserved] = [account.spent, account.reserved].map(Money::nanos);
        self.execute(
            "INSERT INTO accounts (holder, id, spent, reserved, largest) VALUES ($1, $2, $3, $4, $5)",
            &[&kind, &id, &spent, &reserved, &account.largest.map(Money::nanos)],
        )?;
        Ok(())
    }

    /// The accounts that what an owner does for a job counts for.
    pub(super) fn accounts(&mut self, job_id: JobId, owner: OwnerId) -> Answer<Vec<Account>> {
        let has_accounts = match self.memory.has_accounts {
            Some(has_accounts) => has_accounts,
            None => {
                let any = self.exists("SELECT 1 FROM accounts LIMIT 1", &[])?;
                *self.memory.has_accounts.insert(any)
            }
        };
        if !has_accounts {
            return Ok(Vec::new());
        }
        let mut accounts = Vec::new();
        for holder in [AccountHolder::Job(job_id), AccountHolder::Owner(owner)] {
            accounts.extend(read(self.connection(), holder)?);
        }
        Ok(accounts)
    }

    /// What an attempt at a unit is expected to cost, if a budget counts and has as much left.
    pub(super) fn expect(
        &mut self,
        accounts: &[Account],
        terms: &Terms,
        prompt_bytes: impl FnOnce(&mut Self) -> Read<u64>,
    ) -> Answer<Result<Option<Money>, OverBudget>> {
        if accounts.is_empty() {
            return Ok(Ok(None));
        }
        let expected = limits::expected(accounts, &terms.expectation, prompt_bytes(self)?);
        Ok(match expected.and_then(|expected| limits::refusing(accounts, expected)) {
            None => Ok(expected),
            Some(over) => Err(over),
        })
    }

    /// About how long the prompt is that will be sent for a unit.
    pub(super) fn prompt_bytes(&mut self, unit: UnitKey) -> Read<u64> {
        let row = self.row(
            "SELECT coalesce(
                 octet_length(i.prompt),
                 octet_length(coalesce(i.template, j.template)) + coalesce(octet_length(i.payload), 0),
                 0)::bigint
             FROM unit_inputs i
             JOIN work_units u ON u.key = i.unit_key
             JOIN jobs j ON j.id = u.job_id
             WHERE i.unit_key = $1",
            &[&unit.0],
        )?;
        row.map_or(Ok(0), |row| row.count(0))
    }

    /// An attempt begins of which so much is expected.
    pub(super) fn reserve(&mut self, accounts: &mut [Account], expected: Option<Money>) -> Read<()> {
        let Some(expected) = expected else { return Ok(()) };
        for account in accounts {
            account.reserve(expected);
            self.write_account(account)?;
        }
        Ok(())
    }

    /// An attempt has ended, with these charges.
    pub(super) fn settle(&mut self, unit: &HotUnit, attempt: &Attempt, charges: &[Charge]) -> Answer<()> {
        let (expected, bill) = (attempt.expected.unwrap_or_default(), Bill::of(charges));
        for mut account in self.accounts(unit.job_id, attempt.owner)? {
            account.settle(expected, &bill);
            self.write_account(&account)?;
        }
        Ok(())
    }

    /// An attempt that has ended has other charges than were known.
    pub(super) fn correct(
        &mut self,
        unit: &HotUnit,
        attempt: &Attempt,
        before: &[Charge],
        after: &[Charge],
    ) -> Answer<()> {
        let expected = attempt.expected.unwrap_or_default();
        for mut account in self.accounts(unit.job_id, attempt.owner)? {
            account.correct(expected, &Bill::of(before), &Bill::of(after));
            self.write_account(&account)?;
        }
        Ok(())
    }

    fn write_account(&mut self, account: &Account) -> Read<()> {
        let (kind, id) = key(account.holder);
        let [spent, reserved] = [account.spent, account.reserved].map(Money::nanos);
        self.execute(
            "UPDATE accounts SET spent = $3, reserved = $4, largest = $5 WHERE holder = $1 AND id = $2",
            &[&kind, &id, &spent, &reserved, &account.largest.map(Money::nanos)],
        )?;
        Ok(())
    }
}
