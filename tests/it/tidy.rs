//! What no compiler checks: habits that the source keeps.

use std::fs;
use std::path::{Path, PathBuf};

/// A file that is longer holds more than one idea.
const FILE_LIMIT_LINES: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files below a folder, with their text.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let mut folders = vec![root().join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push((path.strip_prefix(root()).unwrap().to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    assert!(!files.is_empty());
    files
}

/// The lines of a file that are neither comments nor below the first test, with their numbers.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let before_tests = text.split("#[cfg(test)]").next().unwrap_or_default();
    (1..).zip(before_tests.lines()).filter(|(_, line)| !line.trim_start().starts_with("//"))
}

fn assert_none(folder: &str, is_exempt: impl Fn(&Path) -> bool, forbidden: &[&str], why: &str) {
    for (path, text) in sources(folder) {
        if is_exempt(&path) {
            continue;
        }
        for (number, line) in code(&text) {
            let found = forbidden.iter().find(|&&word| line.contains(word));
            assert!(found.is_none(), "{}:{number}: {why}: {}", path.display(), line.trim());
        }
    }
}

#[test]
fn every_file_begins_by_saying_what_it_is() {
    for folder in ["src", "tests", "benches", "examples"] {
        for (path, text) in sources(folder) {
            assert!(text.starts_with("//! "), "{} has no module docs", path.display());
        }
    }
}

#[test]
fn no_file_holds_more_than_one_idea() {
    for (path, text) in sources("src") {
        let lines = text.lines().count();
        assert!(lines <= FILE_LIMIT_LINES, "{} has {lines} lines", path.display());
    }
}

#[test]
fn the_library_does_not_print() {
    let forbidden = ["println!(", "print!(", "eprintln!(", "eprint!("];
    assert_none("src", |path| path.starts_with("src/bin"), &forbidden, "the library does not print");
}

#[test]
fn sql_lives_in_the_repository_only() {
    let forbidden = ["SELECT ", "INSERT INTO", "UPDATE work_units", "DELETE FROM"];
    assert_none("src", |path| path.starts_with("src/repository"), &forbidden, "SQL belongs into the repository");
}

#[test]
fn tests_do_not_sleep_and_hope() {
    // A watchdog sleeps, and fails the test when it wakes.
    let is_exempt = |path: &Path| ["tidy.rs", "children.rs"].iter().any(|name| path.ends_with(name));
    assert_none("tests", is_exempt, &["thread::sleep"], "wait for something, do not sleep");
}

#[test]
fn every_table_and_index_says_what_it_is_for() {
    for path in ["schema.sql", "src/repository/postgres/schema.sql"] {
        let schema = fs::read_to_string(root().join(path)).unwrap();
        let lines: Vec<&str> = schema.lines().collect();
        for (number, line) in lines.iter().enumerate().filter(|(_, line)| line.starts_with("CREATE ")) {
            let above = number.checked_sub(1).map_or("", |above| lines[above]);
            assert!(above.starts_with("-- "), "{path}:{}: nothing says what it is for: {line}", number + 1);
            if line.contains(" INDEX ") {
                assert!(above.starts_with("-- Serves: "), "{path}:{}: which query does it serve?", number + 1);
            }
        }
    }
}

#[test]
fn every_dependency_has_a_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut above = "";
    let mut is_dependency = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_dependency = line.ends_with("dependencies]");
        } else if is_dependency && line.contains(" = ") {
            assert!(above.starts_with("# "), "Cargo.toml: nothing says why: {line}");
        }
        above = line;
    }
}
