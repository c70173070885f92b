//! The examples, run as the processes that a reader of the README starts.
//!
//! `cargo test` builds them beside this binary. With `--test it` alone they are those of the last build.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use workcrew::audit::verify::Verify;
use workcrew::repository::UnitFilter;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::{Archive, Outcome, UnitStatus};

use crate::children::was_killed;
use crate::support::{Random, folder};

const UNITS: usize = 200;

/// An example, to be run in a folder.
pub(crate) fn example(name: &str, folder: &Path) -> Command {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: run `cargo test`, or `cargo build --examples` first", path.display());
    let mut command = Command::new(path);
    command.current_dir(folder).env_remove("RUST_LOG");
    command
}

/// What an example that comes to a good end prints.
pub(crate) fn printed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// How many units have ended; none as long as there is no database.
fn outcome_count(path: &Path) -> usize {
    let outcomes = |archive: SqliteArchive| archive.outcomes_since(0, 1_000).unwrap().items.len();
    SqliteArchive::open(path).map_or(0, outcomes)
}

#[test]
fn a_batch_that_is_killed_carries_on_and_ends_every_unit_once() {
    let folder = folder();
    let path = folder.path().join("batch.db");

    let mut batch = example("batch", folder.path()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let progress = BufReader::new(batch.stderr.take().unwrap()).lines();
    let seen = progress.map(Result::unwrap).find(|_| outcome_count(&path) > 20).expect("it ended before it was killed");
    batch.kill().unwrap();
    assert!(was_killed(batch.wait().unwrap()));
    assert!(seen.contains(" completed, ") || seen.contains("given up"), "{seen}");
    let done = outcome_count(&path);
    assert!((21..UNITS).contains(&done), "{done}");

    let carried_on = printed(&mut example("batch", folder.path()));
    assert!(carried_on.contains(&format!("batch.db: {done} of 200 units were done before")), "{carried_on}");
    let archive = SqliteArchive::open(&path).unwrap();
    let units = archive.units(&UnitFilter::default(), 0, 1_000).unwrap().items;
    assert_eq!((units.len(), outcome_count(&path)), (UNITS, UNITS), "every unit ended once");
    for unit in &units {
        let attempts = archive.attempts(unit.key).unwrap();
        let completed = attempts.iter().filter(|attempt| attempt.outcome == Some(Outcome::Completed)).count();
        assert_eq!(completed, usize::from(unit.status == UnitStatus::Completed), "{}", unit.id);
    }
    let verification = Verify::new().settled().run(&archive).unwrap();
    assert!(verification.is_clean(), "{verification}");

    let completed = units.iter().filter(|unit| unit.status == UnitStatus::Completed).count();
    let again = printed(&mut example("batch", folder.path()));
    assert!(again.starts_with("batch.db: all 200 units were done before"), "{again}");
    for summary in [&carried_on, &again] {
        for line in [format!("completed  {completed}\n"), format!("failed     {}\n", UNITS - completed)] {
            assert!(summary.contains(&line), "{summary}");
        }
    }
    assert_eq!(archive.units(&UnitFilter::default(), 0, 1_000).unwrap().items, units, "nothing was done twice");

    let audit = printed(example("audit", folder.path()).args(["batch.db", "page-017"]));
    for expected in ["\nunit `page-017` is ", "Summarise page 17 of", "nothing is missing, nothing was altered\n"] {
        assert!(audit.contains(expected), "{audit}");
    }
}

#[test]
fn an_audit_of_nothing_says_what_to_do_first() {
    let folder = folder();
    let output = example("audit", folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("cargo run --release --example batch"));
}

#[test]
fn a_custom_executor_decides_what_follows_an_error() {
    let folder = folder();
    let printed = printed(&mut example("custom_executor", folder.path()));
    for expected in ["RELEASED", "unreadable: ", "rate_limited: ", "empty: ", "HELLO WORLD"] {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn a_crash_does_no_harm() {
    let folder = folder();
    let printed = printed(&mut example("resume_after_crash", folder.path()));
    for expected in ["SIGKILL", " is LOST", "Now 24 of 24 units are finished", "no findings"] {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn a_rush_brings_more_workers_and_what_breaks_is_replaced() {
    let folder = folder();
    let printed = printed(&mut example("rush", folder.path()));
    for expected in ["w2 is up", " broke: executor: the connection was cut", "The rush is over: 120 units", "0 failed"]
    {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn two_pools_share_the_work_and_a_third_that_is_broken_harms_neither() {
    let folder = folder();
    let printed = printed(&mut example("two_pools", folder.path()));
    for expected in [
        "the pool `searching` is broken: init_hook: executor: the search engine is down.\n",
        "By hand: 6 words.\n",
        "Refused: unit `question-01` cannot be taken: there is no pool `translating`.\n",
        "checking: 31 completed, 0 failed",
        "drafting: 30 completed, 0 failed",
        "searching: 0 completed",
    ] {
        assert!(printed.contains(expected), "{printed}");
    }
}

#[test]
fn conversations_keep_to_their_workers_and_go_on_elsewhere_when_one_breaks() {
    // 001-F3, 001-F42, 001-F44
    let told = printed(&mut example("sessions", folder().path()));
    assert!(told.contains("edsger was with w") && told.contains(", then with w"), "{told}");
    assert!(told.contains("30 completed, 0 failed, 0 cancelled; 31 attempts (1 retried)"), "{told}");
}

#[test]
fn processes_that_stay_alive_remember_their_sessions_whatever_they_are_written_in() {
    let folder = folder();
    let by_python_if_there_is_one = printed(&mut example("warm_workers", folder.path()));
    let by_itself = printed(example("warm_workers", folder.path()).env("PATH", ""));
    assert!(by_itself.starts_with("there is no program `python3` on the path"), "{by_itself}");
    for told in [by_python_if_there_is_one, by_itself] {
        for expected in [
            "process 1 has had ",
            " has heard 3 of them, for $0.000045\n",
            "26 completed, 0 failed, 0 cancelled; 26 attempts (0 retried), $0.00117",
            "\n0 processes are left\n",
        ] {
            assert!(told.contains(expected), "{told}");
        }
        assert_eq!(told.matches("worker:starting ").count(), told.matches("worker:ended ").count(), "{told}");
        assert!(!told.contains("it had to be killed"), "{told}");
    }
}

#[test]
fn several_programs_share_a_job_and_take_over_what_one_that_is_killed_leaves() {
    // 003-F1, 003-F3, 003-F62
    let told = printed(&mut example("many_processes", folder().path()));
    assert!(told.contains("90 of 90 units are completed.") && told.contains("\"COMPLETED\": 90"), "{told}");
    assert!(told.contains("ended with signal: 9"), "{told}");
}

#[test]
fn processes_that_are_killed_and_frozen_all_the_time_bring_every_unit_to_its_end_once() {
    // 003-F1 to 003-F3, 003-F62
    let folder = folder();
    let seconds = std::env::var("WORKCREW_CHAOS_SECONDS").unwrap_or("4".to_owned());
    let seed = Random::seed().to_string();
    let mut chaos = example("chaos", folder.path());
    // Beside the folder: should it fail, its database is still there.
    chaos.env("TMPDIR", folder.path().parent().unwrap());
    let printed = printed(chaos.args(["--seconds", &seconds, "--seed", &seed, "--units", "300"]));
    println!("{printed}");
    for expected in
        [&format!("--seed {seed}\n"), " 0 failed, ", "stuck      0", "twice      0 completed, 0 called back"]
    {
        assert!(printed.contains(expected), "{printed}");
    }
    assert!(printed.ends_with(" 0 findings\n"), "{printed}");
}

#[test]
fn chaos_says_how_it_is_used_and_what_it_does_not_understand() {
    let folder = folder();
    assert!(printed(example("chaos", folder.path()).arg("--help")).contains("Usage: chaos [--seconds N"));
    for (arguments, expected) in [
        (&["--unit", "7"][..], "chaos: there is no `--unit`"),
        (&["pull"], "chaos: there is no `pull`"),
        (&["--units"], "chaos: `--units` needs a number"),
        (&["--seed", "-1"], "chaos: `-1` of `--seed` is not a whole number"),
        (&["--seconds", "0"], "chaos: `--seconds` must be at least 1"),
        (&["--processes", "101"], "chaos: `--processes` may be 100 at most"),
    ] {
        let Output { status, stderr, .. } = example("chaos", folder.path()).args(arguments).output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(expected) && stderr.contains("Usage: "), "{stderr}");
    }
}

#[test]
fn claude_batch_says_how_it_is_used_and_what_is_missing() {
    let folder = folder();
    let told = |command: &mut Command| {
        let Output { status, stderr, .. } = command.output().unwrap();
        (status.code(), String::from_utf8(stderr).unwrap())
    };
    for arguments in [&[][..], &["nowhere"]] {
        let (code, stderr) = told(example("claude_batch", folder.path()).args(arguments));
        assert!(code == Some(2) && stderr.starts_with("usage: claude_batch FOLDER"), "{stderr}");
    }
    let (code, stderr) = told(example("claude_batch", folder.path()).arg(".").env("PATH", ""));
    assert_eq!(code, Some(1));
    assert!(stderr.starts_with("there is no program `claude` on the path: install it with `npm install"), "{stderr}");
}
