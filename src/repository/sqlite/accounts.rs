//! Budgets: what is left of them, brought up to date as attempts begin and end.
//!
//! An account has a row as long as its job or owner has a budget. Where there is none at all in the file, nobody looks for one.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::book::{Answer, Book};
use super::migrate;
use super::rows::{read_attempts, read_charges};
use crate::attempt::Attempt;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::limits::{self, Account, AccountHolder, Bill, OverBudget};
use crate::money::{Charge, Money};
use crate::repository::prepared::{HotUnit, Terms};
use crate::unit::UnitKey;

/// The first version of the schema that has budgets.
const SINCE_VERSION: u32 = 4;

/// Whether the file is of a version that has budgets.
pub(super) fn are_known(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(migrate::version(connection)? >= SINCE_VERSION)
}

/// What is left of a budget, if there is one.
pub(super) fn read(connection: &Connection, holder: AccountHolder) -> rusqlite::Result<Option<Account>> {
    let (kind, id) = key(holder);
    let mut select = connection.prepare_cached(match holder {
        AccountHolder::Job(_) => {
            "SELECT j.budget, a.spent, a.reserved, a.largest
             FROM accounts a
             JOIN jobs j ON j.id = a.id
             WHERE a.holder = ?1 AND a.id = ?2"
        }
        AccountHolder::Owner(_) => {
            "SELECT o.budget, a.spent, a.reserved, a.largest
             FROM accounts a
             JOIN owners o ON o.id = a.id
             WHERE a.holder = ?1 AND a.id = ?2"
        }
    })?;
    let money = |row: &Row<'_>, column| row.get(column).map(Money::from_nanos);
    let account = select.query_row(params![kind, id], |row| {
        Ok(Account {
            holder,
            budget: money(row, 0)?,
            spent: money(row, 1)?,
            reserved: money(row, 2)?,
            largest: row.get::<_, Option<i64>>(3)?.map(Money::from_nanos),
        })
    });
    account.optional()
}

/// What would be left of a budget in a file from before anybody counted, once it is brought up to date.
pub(super) fn before_any(connection: &Connection, holder: AccountHolder) -> rusqlite::Result<Option<Account>> {
    let AccountHolder::Job(id) = holder else { return Ok(None) };
    let mut select = connection.prepare_cached("SELECT budget FROM jobs WHERE id = ?1")?;
    let budget: Option<Option<i64>> = select.query_row([id.0], |row| row.get(0)).optional()?;
    let budget = budget.flatten().map(Money::from_nanos);
    budget.map(|budget| of_job(connection, id, budget)).transpose()
}

/// Opens the accounts of a file whose jobs had budgets before anybody counted.
pub(super) fn open_all(connection: &Connection) -> rusqlite::Result<()> {
    let mut select = connection.prepare("SELECT id, budget FROM jobs WHERE budget IS NOT NULL")?;
    let jobs = select.query_map([], |row| Ok((JobId(row.get(0)?), Money::from_nanos(row.get(1)?))))?;
    for job in jobs {
        let (id, budget) = job?;
        insert(connection, &of_job(connection, id, budget)?)?;
    }
    Ok(())
}

/// The account of a job as it follows from what its attempts have left.
fn of_job(connection: &Connection, id: JobId, budget: Money) -> rusqlite::Result<Account> {
    let mut select = connection.prepare_cached("SELECT key FROM work_units WHERE job_id = ?1")?;
    let mut units = select.query([id.0])?;
    let mut account = Account::new(AccountHolder::Job(id), budget);
    while let Some(unit) = units.next()? {
        for attempt in read_attempts(connection, UnitKey(unit.get(0)?))? {
            let charges = read_charges(connection, attempt.key)?;
            account.count(attempt.expected, attempt.outcome.is_some(), &charges);
        }
    }
    Ok(account)
}

fn insert(connection: &Connection, account: &Account) -> rusqlite::Result<()> {
    let (kind, id) = key(account.holder);
    let mut insert = connection
        .prepare_cached("INSERT INTO accounts (holder, id, spent, reserved, largest) VALUES (?1, ?2, ?3, ?4, ?5)")?;
    let [spent, reserved] = [account.spent, account.reserved].map(Money::nanos);
    insert.execute(params![kind, id, spent, reserved, account.largest.map(Money::nanos)])?;
    Ok(())
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
        let mut select = self.connection.prepare_cached("SELECT 1 FROM accounts WHERE holder = ?1 AND id = ?2")?;
        let is_there = select.exists(params![kind, id])?;
        match (budget, holder) {
            // How much may be spent stands with its holder.
            (Some(_), _) if is_there => {}
            (Some(budget), AccountHolder::Job(id)) => insert(self.connection, &of_job(self.connection, id, budget)?)?,
            (Some(budget), AccountHolder::Owner(_)) => insert(self.connection, &Account::new(holder, budget))?,
            (None, _) => {
                let mut delete =
                    self.connection.prepare_cached("DELETE FROM accounts WHERE holder = ?1 AND id = ?2")?;
                delete.execute(params![kind, id])?;
            }
        }
        self.memory.has_accounts = None;
        Ok(())
    }

    /// The accounts that what an owner does for a job counts for.
    pub(super) fn accounts(&mut self, job_id: JobId, owner: OwnerId) -> Answer<Vec<Account>> {
        let has_accounts = match self.memory.has_accounts {
            Some(has_accounts) => has_accounts,
            None => {
                let any = self.connection.prepare_cached("SELECT 1 FROM accounts LIMIT 1")?.exists([])?;
                *self.memory.has_accounts.insert(any)
            }
        };
        if !has_accounts {
            return Ok(Vec::new());
        }
        let mut accounts = Vec::new();
        for holder in [AccountHolder::Job(job_id), AccountHolder::Owner(owner)] {
            accounts.extend(read(self.connection, holder)?);
        }
        Ok(accounts)
    }

    /// What an attempt at a unit is expected to cost, if a budget counts and has as much left.
    pub(super) fn expect(
        &self,
        accounts: &[Account],
        terms: &Terms,
        prompt_bytes: impl FnOnce() -> rusqlite::Result<u64>,
    ) -> Answer<Result<Option<Money>, OverBudget>> {
        if accounts.is_empty() {
            return Ok(Ok(None));
        }
        let expected = limits::expected(accounts, &terms.expectation, prompt_bytes()?);
        Ok(match expected.and_then(|expected| limits::refusing(accounts, expected)) {
            None => Ok(expected),
            Some(over) => Err(over),
        })
    }

    /// About how long the prompt is that will be sent for a unit.
    pub(super) fn prompt_bytes(&self, unit: UnitKey) -> rusqlite::Result<u64> {
        let mut select = self.connection.prepare_cached(
            "SELECT coalesce(
                 octet_length(i.prompt),
                 octet_length(coalesce(i.template, j.template)) + coalesce(octet_length(i.payload), 0),
                 0)
             FROM unit_inputs i
             JOIN work_units u ON u.key = i.unit_key
             JOIN jobs j ON j.id = u.job_id
             WHERE i.unit_key = ?1",
        )?;
        select.query_row([unit.0], |row| super::rows::unsigned(row, 0))
    }

    /// An attempt begins of which so much is expected.
    pub(super) fn reserve(&self, accounts: &mut [Account], expected: Option<Money>) -> rusqlite::Result<()> {
        let Some(expected) = expected else { return Ok(()) };
        for account in accounts {
            account.reserve(expected);
            self.write(account)?;
        }
        Ok(())
    }

    /// An attempt has ended, with these charges.
    pub(super) fn settle(&mut self, unit: &HotUnit, attempt: &Attempt, charges: &[Charge]) -> Answer<()> {
        let (expected, bill) = (attempt.expected.unwrap_or_default(), Bill::of(charges));
        for mut account in self.accounts(unit.job_id, attempt.owner)? {
            account.settle(expected, &bill);
            self.write(&account)?;
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
            self.write(&account)?;
        }
        Ok(())
    }

    fn write(&self, account: &Account) -> rusqlite::Result<()> {
        let (kind, id) = key(account.holder);
        let mut update = self.connection.prepare_cached(
            "UPDATE accounts SET spent = ?3, reserved = ?4, largest = ?5 WHERE holder = ?1 AND id = ?2",
        )?;
        let [spent, reserved] = [account.spent, account.reserved].map(Money::nanos);
        update.execute(params![kind, id, spent, reserved, account.largest.map(Money::nanos)])?;
        Ok(())
    }
}
