//! Agents through a pool: a program that prints what the real one has printed, and then ends as the real ones do.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use workcrew::repository::By;
use workcrew::{
    Archive, ClaudeCli, CodexCli, Executor, Money, NewUnit, Outcome, Price, Repository, RetryPolicy, Stop, UnitStatus,
    WorkPool,
};

use super::{LONG, World};
use crate::support::Up as _;

/// What the real program printed in a run.
pub(super) fn captured(name: &str, stream: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(format!("{name}.{stream}"))
}

/// A script that prints what was captured.
pub(super) fn prints(name: &str) -> String {
    let stderr = captured(name, "stderr.txt");
    let complaint = if stderr.exists() { format!("cat '{}' >&2; ", stderr.display()) } else { String::new() };
    format!("{complaint}cat '{}'; ", captured(name, "stdout.ndjson").display())
}

/// A script that does what the real program did: it prints the same and ends the same.
pub(super) fn replays(name: &str) -> String {
    let meta = std::fs::read_to_string(captured(name, "meta.json")).unwrap();
    let meta: serde_json::Value = serde_json::from_str(&meta).unwrap();
    let end = match meta["exit_code"].as_i64().unwrap() {
        code @ 0.. => format!("exit {code}"),
        signal => format!("kill {signal} $$"),
    };
    prints(name) + &end
}

impl World {
    /// A program that notes how it was called and what it read, and then does this.
    fn program(&self, name: &str, script: &str) -> PathBuf {
        let (path, notes) = (self.folder.path().join(name), self.folder.path().join("notes"));
        let notes = format!("echo \"$*\" >> '{0}'; cat >> '{0}'; echo >> '{0}'", notes.display());
        std::fs::write(&path, format!("#!/bin/sh\n{notes}\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    pub(super) fn claude(&self, script: &str) -> ClaudeCli {
        ClaudeCli::new().program(self.program("claude", script)).env(super::MARK, &self.mark)
    }

    pub(super) fn codex(&self, script: &str) -> CodexCli {
        CodexCli::new().program(self.program("codex", script)).env(super::MARK, &self.mark)
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let notes = std::fs::read_to_string(self.folder.path().join("notes")).unwrap();
        notes.lines().map(str::to_owned).collect()
    }

    /// Executes one unit with an agent; tells how it ended, its failure and what it cost, and whether the pool is held.
    fn execute(&self, agent: impl Executor, unit: NewUnit) -> (UnitStatus, String, String, bool) {
        let builder = WorkPool::builder(self.job, agent, self.repository.clone());
        let pool = builder.retry(RetryPolicy::immediate()).up();
        let id = unit.id.clone();
        let handle = pool.enqueue(unit, "the prompt").unwrap();
        super::until("it ends, or holds the pool", || handle.is_done() || pool.stats().hold.is_some());
        let is_held = pool.stats().hold.is_some();
        pool.stop(Stop::Cancel { grace: LONG }).unwrap();
        let unit = self.repository.unit(self.job, &id).unwrap();
        let kind = unit.failure.map(|failure| failure.kind.to_string()).unwrap_or_default();
        assert_eq!(super::marked(&self.mark), Vec::<u32>::new(), "nothing is left");
        (unit.status, kind, unit.cost.to_string(), is_held)
    }
}

#[test]
fn what_the_real_programs_print_means_the_same_through_a_pool() {
    use UnitStatus::{Completed, Failed, Pending};
    for (name, status, kind, cost, is_held) in [
        ("claude-text", Completed, "", "$0.010672", false),
        ("claude-tool-two", Completed, "", "$0.022716", false),
        ("claude-agent", Completed, "", "$0.057452", false),
        ("claude-e400", Failed, "invalid_request", "$0.00", false),
        ("claude-maxturns1", Failed, "max_turns", "$0.011012", false),
        ("claude-budget", Failed, "cost_limit", "$2.010216", false),
        ("claude-r429-inf-maxretries0", Failed, "rate_limited", "$0.00", false),
        ("claude-sigTERM-tool", Failed, "killed", "unknown", false),
        ("claude-noverbose", Failed, "invalid_arguments", "$0.00", false),
        ("claude-e401-maxretries0", Pending, "", "$0.00", true),
        ("claude197-tool-bash", Completed, "", "$0.01897", false),
        ("codex-text", Completed, "", "unknown", false),
        ("codex-e401", Pending, "", "unknown", true),
        ("codex-sigTERM", Failed, "killed", "unknown", false),
    ] {
        let world = World::new();
        let unit = NewUnit::new("a").max_retries(0);
        let ended = match name.starts_with("codex") {
            true => world.execute(world.codex(&replays(name)), unit),
            false => world.execute(world.claude(&replays(name)), unit),
        };
        assert_eq!(ended, (status, kind.to_owned(), cost.to_owned(), is_held), "{name}");
        assert_eq!(world.notes()[1], "the prompt", "{name}");
        let key = world.attempts("a")[0].key;
        let stored = world.repository.messages(key, 0, 1_000).unwrap().items;
        let printed = std::fs::read_to_string(captured(name, "stdout.ndjson")).unwrap();
        let raw: Vec<_> = stored.iter().filter_map(|message| message.message().unwrap().unwrap().raw).collect();
        let raw: Vec<_> = raw.iter().map(|raw| std::str::from_utf8(raw.as_bytes()).unwrap()).collect();
        assert_eq!(raw, printed.lines().collect::<Vec<_>>(), "{name}: every line is kept as it came");
        if is_held {
            world.repository.cancel(world.job, "a", &By::new("a test", "")).unwrap();
        }
        world.assert_clean();
    }
}

#[test]
fn of_every_captured_run_every_line_is_kept_as_it_came_and_nothing_is_left() {
    let entries = std::fs::read_dir(captured("any", "").parent().unwrap()).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let names: Vec<_> = files.iter().filter_map(|file| file.strip_suffix(".meta.json")).collect();
    assert!(names.len() >= 70, "{names:?}");
    for name in names {
        let world = World::new();
        let unit = NewUnit::new("a").max_retries(0);
        let (.., is_held) = match name.starts_with("codex") {
            true => world.execute(world.codex(&replays(name)), unit),
            false => world.execute(world.claude(&replays(name)), unit),
        };
        let stored = world.repository.messages(world.attempts("a")[0].key, 0, 1_000).unwrap().items;
        let raw: Vec<_> = stored.iter().filter_map(|message| message.message().unwrap().unwrap().raw).collect();
        let raw: Vec<_> = raw.iter().map(|raw| std::str::from_utf8(raw.as_bytes()).unwrap()).collect();
        let printed = std::fs::read_to_string(captured(name, "stdout.ndjson")).unwrap();
        // A message that is being written is kept as it stands; its steps are not.
        let lines: Vec<_> = printed.lines().filter(|line| !line.contains(r#""type":"stream_event""#)).collect();
        assert_eq!(raw, lines, "{name}");
        if is_held {
            world.repository.cancel(world.job, "a", &By::new("a test", "")).unwrap();
        }
        world.assert_clean();
    }
}

#[test]
fn an_answer_counts_however_its_program_ends_after_it() {
    for end in [
        "sleep 999",
        "setsid sh -c 'trap \"\" TERM HUP; sleep 999' &",
        "exit 1",
        "kill -9 $$",
        "trap '' TERM; sleep 999",
    ] {
        let world = World::new();
        let agent = world.claude(&(prints("claude-text") + end)).after_result_limit(Duration::from_millis(300));
        let ended = world.execute(agent, NewUnit::new("a").max_retries(0));
        assert_eq!(ended, (UnitStatus::Completed, String::new(), "$0.010672".to_owned(), false), "{end}");
        world.assert_clean();
    }
}

#[test]
fn an_agent_that_dies_in_the_middle_is_resumed_and_both_attempts_are_paid_for() {
    let world = World::new();
    // The first run is cut off after its session is known, the second one carries it on.
    let first = format!("head -n 1 '{}'; kill -9 $$", captured("claude-resume-1", "stdout.ndjson").display());
    let script = format!("case \"$*\" in *--resume=*) {};; *) {first};; esac", replays("claude-resume-2"));
    let (status, kind, ..) = world.execute(world.claude(&script), NewUnit::new("a").max_retries(1));
    assert_eq!((status, kind.as_str()), (UnitStatus::Completed, ""));
    let attempts = world.attempts("a");
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Failed, Outcome::Completed]);
    let session = attempts[0].session_id.as_deref().unwrap();
    assert!(world.notes()[2].contains(&format!("--resume={session}")), "{:?}", world.notes());
    assert_eq!(
        world.repository.messages(attempts[0].key, 0, 10).unwrap().items.len(),
        2,
        "the prompt and the beginning"
    );
    world.assert_clean();
}

#[test]
fn a_program_is_told_what_its_unit_may_cost_and_an_answer_that_costs_more_counts() {
    let world = World::new();
    let max_cost = |cents: i64| Money::from_nanos(cents * 10_000_000);
    let dear = NewUnit::new("dear").max_cost(max_cost(1));
    let ended = world.execute(world.claude(&replays("claude-text")), dear);
    assert_eq!(ended, (UnitStatus::Completed, String::new(), "$0.010672".to_owned(), false));
    let stopped = NewUnit::new("stopped").max_cost(max_cost(201));
    let ended = world.execute(world.claude(&replays("claude-budget")), stopped);
    assert_eq!(ended, (UnitStatus::Failed, "cost_limit".to_owned(), "$2.010216".to_owned(), false));
    let notes = world.notes();
    assert!(notes[0].contains("--max-budget-usd=0.01") && notes[2].contains("--max-budget-usd=2.01"), "{notes:?}");
    world.assert_clean();
}

#[test]
fn tokens_that_a_program_counts_over_a_session_are_charged_once() {
    let price = Price::new("2026-01-01T00:00:00Z".parse().unwrap())
        .input("1".parse().unwrap())
        .cache_read("1".parse().unwrap())
        .output("1".parse().unwrap());
    let world = World::new();
    let script = format!(
        "case \"$*\" in *resume*) {};; *) {};; esac",
        replays("codex-resume-2"),
        prints("codex-resume-1") + "kill -9 $$"
    );
    // The first answer counts, whatever came after it.
    let (status, _, cost, _) = world.execute(world.codex(&script).price(price), NewUnit::new("a").max_retries(1));
    assert_eq!((status, cost.as_str()), (UnitStatus::Completed, "$0.010057"));
    world.assert_clean();
}
