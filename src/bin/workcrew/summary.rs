//! How a batch ended: in lines for people, as one JSON event, and as the code of the command.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use workcrew::audit::visible::line;
use workcrew::limits::Account;
use workcrew::repository::{Costs, Counts};
use workcrew::source::Fed;
use workcrew::{Completion, Money};

use crate::batch::{NO_PROMPT, Stored};
use crate::print;
use crate::time::short;
use crate::trouble::code;

pub struct Summary {
    pub job: String,
    /// The database, as it is written on a command line.
    pub db: String,
    pub counts: Counts,
    pub costs: Costs,
    /// What is left of the budget, if there is one.
    pub account: Option<Account>,
    /// What was read, if anything was to be.
    pub stored: Option<Stored>,
    pub completion: Completion,
    /// A unit that waits and that nobody can execute.
    pub stuck: Option<String>,
    pub is_interrupted: bool,
    pub is_disk_full: bool,
    pub elapsed: Duration,
}

impl Summary {
    pub fn code(&self) -> ExitCode {
        let left = left(&self.counts);
        let is_all_completed = left + self.counts.failed + self.counts.cancelled == 0;
        let is_all_good = self.stored.is_none_or(|Stored { fed, .. }| fed.bad + fed.conflicts == 0);
        match self.is_interrupted && (left > 0 || !self.is_all_read()) {
            true => ExitCode::from(code::INTERRUPTED),
            false if self.is_disk_full => ExitCode::from(code::STORAGE),
            false if is_all_completed && is_all_good => code::DONE,
            false => ExitCode::from(code::NOT_ALL_COMPLETED),
        }
    }

    pub fn event(&self) -> Value {
        let held = if let Completion::Blocked(reason) = &self.completion { Some(reason) } else { None };
        let costs = &self.costs;
        json!({
            "event": "summary", "job": self.job, "counts": self.counts, "fed": self.stored.map(|stored| stored.fed),
            "cost": {
                "cost": costs.spent(), "tokens": costs.tokens(), "in_vain": costs.in_vain, "unbilled": costs.unbilled,
            },
            "budget": self.account, "is_all_read": self.is_all_read(), "held": held, "interrupted": self.is_interrupted,
            "is_disk_full": self.is_disk_full, "elapsed_ms": self.elapsed.as_millis() as u64,
        })
    }

    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        write_counts(&self.job, &self.counts, out)?;
        if let Some(stored) = self.stored {
            write_fed(&stored.fed, out)?;
        }
        self.write_costs(out)?;
        if let Completion::Blocked(reason) = &self.completion {
            writeln!(out, "  held: {}", workcrew::audit::visible(reason))?;
        }
        self.write_advice(out)
    }

    fn write_costs(&self, out: &mut dyn Write) -> io::Result<()> {
        let costs = &self.costs;
        let in_vain = if costs.in_vain.amount.nanos() > 0 {
            format!(", {} of it in vain", print::cost(costs.in_vain))
        } else {
            String::new()
        };
        let (tokens, time) = (print::number(costs.tokens().total()), short(self.elapsed));
        writeln!(out, "  {}{in_vain}, {tokens} tokens, {time}", print::spent(costs.spent()))?;
        if costs.unbilled > 0 {
            let attempts = print::count(costs.unbilled, "attempt");
            writeln!(out, "  {attempts} left no bill: nobody knows what that cost")?;
        }
        if let Some(account) = &self.account {
            writeln!(out, "  {}", budget(account))?;
        }
        Ok(())
    }

    /// What to do next.
    fn write_advice(&self, out: &mut dyn Write) -> io::Result<()> {
        let (db, job) = (&self.db, job_argument(&self.job));
        if self.counts.failed > 0 {
            writeln!(out, "why: workcrew failures{db}{job}   again: workcrew requeue --status failed{db}{job}")?;
        }
        if let Some(unit) = &self.stuck {
            writeln!(out, "  those that are left cannot be executed: unit `{}` {NO_PROMPT}", line(unit))?;
        } else if !self.is_all_read() {
            writeln!(out, "not all units were read; go on: run the same command again")?;
        } else if left(&self.counts) > 0 {
            let is_held = matches!(self.completion, Completion::Blocked(_));
            let more = if is_held && self.is_out_of_money() { " --budget …" } else { "" };
            writeln!(out, "go on: workcrew resume{db}{job}{more}")?;
        }
        Ok(())
    }

    /// Whether not even what one more attempt may cost is left.
    fn is_out_of_money(&self) -> bool {
        let may_cost = |account: &Account| account.largest.unwrap_or_default();
        self.account.is_some_and(|account| account.left() <= Money::ZERO || account.left() < may_cost(&account))
    }

    fn is_all_read(&self) -> bool {
        self.stored.is_none_or(|stored| stored.is_all)
    }
}

/// What is left of a budget.
pub fn budget(account: &Account) -> String {
    let Account { budget, spent, reserved, .. } = account;
    let reserved = if *reserved > Money::ZERO { format!(", {reserved:.4} reserved") } else { String::new() };
    format!("budget {budget:.2}: {spent:.4} spent{reserved}, {:.4} left", account.left())
}

/// How many units have not ended.
pub fn left(counts: &Counts) -> u64 {
    counts.total() - counts.completed - counts.failed - counts.cancelled
}

/// A job as it is written on a command line.
pub fn job_argument(name: &str) -> String {
    print::option("job", name)
}

/// How many units a job has, and what became of them.
pub fn write_counts(job: &str, counts: &Counts, out: &mut dyn Write) -> io::Result<()> {
    let words = [
        ("completed", counts.completed),
        ("failed", counts.failed),
        ("cancelled", counts.cancelled),
        ("left", left(counts)),
    ];
    let words = words.iter().filter(|(name, units)| *units > 0 || *name == "completed");
    let words: Vec<String> = words.map(|(name, units)| format!("{} {name}", print::number(*units))).collect();
    writeln!(out, "job {}: {}", line(job), print::count(counts.total(), "unit"))?;
    writeln!(out, "  {}", words.join(", "))
}

/// What became of what was read.
pub fn write_fed(fed: &Fed, out: &mut dyn Write) -> io::Result<()> {
    let number = print::number;
    let mut words = vec![format!("{} new", number(fed.added)), format!("{} known before", number(fed.known))];
    if fed.conflicts > 0 {
        words.push(match fed.conflicts {
            1 => "1 contradicts a known one".to_owned(),
            units => format!("{} contradict known ones", number(units)),
        });
    }
    if fed.bad > 0 {
        words.push(if fed.bad == 1 { "1 is no unit".to_owned() } else { format!("{} are no units", number(fed.bad)) });
    }
    writeln!(out, "  read: {}", words.join(", "))
}
