//! Databases that are not there, not ours, too new, damaged, or may not be written; and names that nothing has.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::{Ran, Scene, Started};

/// Commands that only look.
const READERS: [&str; 12] = [
    "jobs",
    "status",
    "list",
    "show haiku-001",
    "search haiku",
    "cost",
    "slow",
    "failures",
    "export",
    "report -o -",
    "verify",
    "doctor",
];

/// Commands that change what is there.
const WRITERS: [&str; 6] = [
    "cancel haiku-001",
    "requeue --status failed",
    "purge --older-than 1d",
    "backup copy.db",
    "resume",
    "worker --job demo",
];

/// Commands that bring units, and make a database if there is none.
const BRINGERS: [&str; 3] = ["queue units.jsonl", "run units.jsonl", "demo --units 1"];

fn all() -> impl Iterator<Item = &'static str> {
    READERS.into_iter().chain(WRITERS).chain(BRINGERS)
}

fn scene() -> Scene {
    let scene = Scene::new();
    scene.write("units.jsonl", "{\"id\":\"a\",\"prompt\":\"p\"}\n");
    scene
}

/// Everything in a folder, so that it can be seen that nothing has changed.
fn contents(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let mut contents: Vec<_> = entries
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap_or_default()))
        .collect();
    contents.sort();
    contents
}

#[track_caller]
fn is_refused(ran: Ran, told: &str) {
    let ran = ran.code(3);
    assert_eq!(ran.err.lines().count(), 1, "one line: {ran:?}");
    assert!(ran.err.starts_with("workcrew: ") && ran.err.contains(told), "{ran:?}");
}

#[test]
fn a_database_that_is_not_there_is_made_only_by_who_brings_units() {
    let scene = scene();
    for line in READERS.into_iter().chain(WRITERS) {
        is_refused(scene.run(&format!("{line} --db none.db")), "there is no database at `");
        assert!(!scene.path("none.db").exists(), "{line}");
    }
    for (number, line) in BRINGERS.into_iter().enumerate() {
        scene.run(&format!("{line} --db new{number}.db")).well();
        is_refused(
            scene.run(&format!("{line} --db none/new.db")),
            "`none/new.db` cannot be made: there is no folder `none`",
        );
    }
}

#[test]
fn a_file_that_is_no_database_of_ours_is_left_alone() {
    let scene = scene();
    scene.write("text.db", "not a database, but a text that is long enough to be taken for one\n".repeat(100));
    scene.write("empty.db", "");
    fs::create_dir(scene.path("folder.db")).unwrap();
    let other = rusqlite::Connection::open(scene.path("other.db")).unwrap();
    other.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1)").unwrap();
    drop(other);
    let before = contents(&scene.path(""));
    for (name, told) in [
        ("text.db", "is no database of workcrew and was left alone: it is not a SQLite database"),
        ("empty.db", "is no database of workcrew and was left alone: it is empty"),
        ("folder.db", "is no database of workcrew and was left alone: it is not a file"),
        ("other.db", "is no database of workcrew and was left alone: it is the SQLite database of another program"),
    ] {
        for line in all() {
            is_refused(scene.run(&format!("{line} --db {name}")), told);
        }
    }
    assert!(contents(&scene.path("")) == before, "something has changed");
}

#[test]
fn a_database_of_a_newer_version_is_left_alone() {
    let scene = scene();
    scene.run("demo --units 1 --db batch.db").well();
    let database = rusqlite::Connection::open(scene.path("batch.db")).unwrap();
    database.pragma_update(None, "user_version", 999).unwrap();
    drop(database);
    let before = contents(&scene.path(""));
    for line in all() {
        is_refused(scene.run(&format!("{line} --db batch.db")), "has schema version 999");
    }
    assert!(contents(&scene.path("")) == before, "something has changed");
}

#[test]
fn a_damaged_database_is_told_in_a_line_and_verify_says_what_is_damaged() {
    let scene = scene();
    scene.run("demo --units 5 --db batch.db").well();
    let mut bytes = fs::read(scene.path("batch.db")).unwrap();
    // All but the schema: without that it would be no database.
    let kept = pages_of_the_schema(&scene.path("batch.db"));
    for (page, number) in bytes.chunks_mut(16 * 1024).zip(1..).filter(|(_, number)| !kept.contains(number)) {
        assert!(number > 1, "the first page has the header");
        page.fill(0x5a);
    }
    fs::write(scene.path("batch.db"), &bytes).unwrap();
    // Those that look for damage go on in spite of it, and say what they found.
    let in_spite_of_it = |line: &str| ["verify", "doctor", "report"].iter().any(|name| line.starts_with(name));
    for line in all().filter(|line| !in_spite_of_it(line) && !line.starts_with("backup")) {
        let ran = scene.run(&format!("{line} --db batch.db"));
        let told = ran.err.matches("malformed").count();
        is_refused(ran, "database disk image is malformed");
        assert_eq!(told, 1, "it is told once: {line}");
    }
    scene.run("verify").code(1).says("I13 the storage");
    assert!(fs::read(scene.path("batch.db")).unwrap() == bytes, "it was changed");
}

fn pages_of_the_schema(path: &Path) -> Vec<u32> {
    let database = rusqlite::Connection::open(path).unwrap();
    let mut select = database.prepare("SELECT pageno FROM dbstat WHERE name = 'sqlite_schema'").unwrap();
    let pages = select.query_map([], |row| row.get(0)).unwrap();
    pages.collect::<rusqlite::Result<_>>().unwrap()
}

#[test]
fn who_may_only_read_can_look_and_is_told_so_if_more_is_wanted() {
    if !rustix::process::getuid().is_root() {
        return;
    }
    let scene = scene();
    fs::create_dir(scene.path("kept")).unwrap();
    scene.run("demo --units 3 --db kept/batch.db").well();
    let allow = |name: &str, mode| fs::set_permissions(scene.path(name), PermissionsExt::from_mode(mode)).unwrap();
    allow("", 0o777);
    allow("kept/batch.db", 0o444);
    let as_nobody = |line: &str| scene.run_as_nobody(line);
    for folder in [0o777, 0o555] {
        allow("kept", folder);
        let before = fs::read(scene.path("kept/batch.db")).unwrap();
        for line in READERS.into_iter().filter(|line| *line != "doctor") {
            as_nobody(&format!("{line} --db kept/batch.db")).well();
        }
        // That anybody can read it is something to be told.
        as_nobody("doctor --db kept/batch.db").code(1).says("kept/batch.db");
        // A copy is made elsewhere.
        for line in WRITERS.into_iter().chain(BRINGERS).filter(|line| !line.starts_with("backup")) {
            is_refused(
                as_nobody(&format!("{line} --db kept/batch.db")),
                "cannot be written; it can be opened for reading",
            );
        }
        assert!(fs::read(scene.path("kept/batch.db")).unwrap() == before, "it was changed");
    }
    for line in BRINGERS {
        is_refused(as_nobody(&format!("{line} --db kept/new.db")), "Permission denied");
    }
}

#[test]
fn a_name_that_nothing_has_is_told() {
    let scene = scene();
    scene.run("run units.jsonl").well();
    for line in ["show nobody", "cancel nobody", "requeue nobody"] {
        scene.run(line).code(2).tells_only("workcrew: there is no unit `nobody`");
    }
    for line in [
        "list",
        "slow",
        "show a",
        "cost",
        "failures",
        "status",
        "cancel a",
        "requeue a",
        "cancel --status pending",
        "requeue --status failed",
        "resume",
        "worker",
    ] {
        scene.run(&format!("{line} --job nobody")).code(2).tells_only("workcrew: there is no job `nobody`");
    }
    scene.run("man nothing").code(2).tells_only("workcrew: there is no command `nothing`");
}

#[test]
fn a_name_that_two_jobs_have_must_be_said_of_which() {
    let scene = scene();
    scene.run("queue units.jsonl --job one").well();
    scene.run("queue units.jsonl --job two").well();
    for line in ["show a", "cancel a", "requeue a"] {
        let told = "workcrew: there is a unit `a` in several jobs: one, two; say which with --job";
        scene.run(line).code(2).tells_only(told);
    }
    scene.run("resume").code(2).tells_only("workcrew: there are several jobs, say which with --job: one, two");
    scene.run("show a --job two").well().says("unit a of job two");
    scene.run("cancel a --job two").well();
    assert_eq!(scene.units("--job one")[0].1, "PENDING");
}

#[test]
fn what_makes_no_sense_is_told_and_makes_no_database() {
    let scene = scene();
    for line in [
        "",
        "nothing",
        "run",
        "list --sort weight",
        "list -n 0",
        "failures -n 0",
        "demo --units 0",
        "run units.jsonl --retries -1",
        "show",
        "cancel",
        "cancel --status pending",
        "requeue",
        "requeue a --status failed",
        "run units.jsonl --workers 0",
        "run units.jsonl --timeout 0s",
        "run units.jsonl --timeout soon",
        "purge",
        "run units.jsonl --canary 0",
        "run units.jsonl --failures 2",
        "list --since yesterday",
        "status --every 1s",
        "show a --json --raw",
        "completions cobol",
        "run units.jsonl --executor command",
        "run units.jsonl --executor simulated -- cat",
    ] {
        let ran = scene.run(line).code(2);
        assert!(!ran.err.is_empty() && ran.out.is_empty(), "{line}: {ran:?}");
    }
    assert!(!scene.path("batch.db").exists());
    scene.run("run units.jsonl").well();
    scene.run("requeue a").code(2).tells("a");
}

#[test]
fn the_database_may_be_named_by_the_environment() {
    let scene = scene();
    let ran = Started::of(scene.command(&["run", "units.jsonl"]).env("WORKCREW_DB", "there.db")).end().well();
    assert!(scene.path("there.db").exists() && !scene.path("batch.db").exists(), "{ran:?}");
}

#[test]
fn nothing_else_is_written_where_the_database_is_and_nothing_emptied_for_a_unit_that_is_not_there() {
    let scene = Scene::new();
    scene.run("demo --db batch.db --units 2").well();
    scene.run("search haiku").well();
    std::os::unix::fs::symlink("batch.db", scene.path("link")).unwrap();
    fs::hard_link(scene.path("batch.db.search"), scene.path("index")).unwrap();
    let before = fs::read(scene.path("batch.db")).unwrap();
    for (line, own) in [
        ("report -o batch.db", "batch.db"),
        ("export -o batch.db", "batch.db"),
        ("export --format markdown -o link", "batch.db"),
        ("report -o ./link", "batch.db"),
        ("report -o index", "batch.db.search"),
    ] {
        scene.run(line).code(2).tells(&format!("it is the database's own `{own}`"));
    }
    assert_eq!(fs::read(scene.path("batch.db")).unwrap(), before);
    scene.write("kept.jsonl", "kept");
    scene.run("export nobody -o kept.jsonl").code(2);
    assert_eq!(scene.read("kept.jsonl"), "kept");
    scene.run("export haiku-001 -o kept.jsonl").well();
    assert!(scene.read("kept.jsonl").contains("haiku-001"));
}

#[test]
fn a_search_index_whose_damage_shows_only_when_it_is_asked_is_made_anew_by_the_same_command() {
    let scene = scene();
    scene.run("run units.jsonl -q").well();
    scene.run("search p").well().says("a COMPLETED");
    let index = rusqlite::Connection::open(scene.path("batch.db.search")).unwrap();
    assert!(index.execute("UPDATE words_data SET block = x'ffffffffffff' WHERE id > 10", []).unwrap() > 0);
    drop(index);
    scene.run("search p").well().says("a COMPLETED").tells("made anew");
    assert_eq!(scene.run("search p").well().says("a COMPLETED").err, "");
}
