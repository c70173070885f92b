//! The README's tour: what it shows is what the command prints.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::folder;

/// A command of the tour and what it is said to print.
struct Step {
    command: String,
    output: Vec<String>,
}

/// The commands of the README, in order.
fn steps() -> Vec<Step> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    let mut steps: Vec<Step> = Vec::new();
    for block in readme.split("```console\n").skip(1) {
        for line in block.split("```").next().unwrap().lines() {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step { command: command.to_owned(), output: Vec::new() }),
                None => steps.last_mut().unwrap().output.push(line.to_owned()),
            }
        }
    }
    steps
}

/// A line without what differs between two runs: times, and the room that they take.
fn steady(line: &str) -> String {
    let is_time = |word: &str| {
        let is_stamp =
            word.len() >= 8 && word.contains([':', '-']) && word.starts_with(|sign: char| sign.is_ascii_digit());
        is_stamp || matches!(word, "ms" | "s" | "UTC")
    };
    let mut kept: Vec<&str> = Vec::new();
    for word in line.split_whitespace() {
        if is_time(word) {
            if matches!(word, "ms" | "s") || word.starts_with("s,") {
                kept.pop();
            }
            continue;
        }
        kept.push(word);
    }
    kept.retain(|word| !word.ends_with("ms") && *word != "s,");
    kept.join(" ")
}

#[test]
fn what_the_readme_shows_is_what_the_command_prints() {
    let place = folder();
    let steps = steps();
    assert!(steps.len() >= 10, "only {} were found", steps.len());
    for Step { command, output } in steps {
        if let Some(file) = command.strip_prefix("cat ") {
            fs::write(place.path().join(file), output.join("\n") + "\n").unwrap();
            continue;
        }
        let program = command.replacen("workcrew", env!("CARGO_BIN_EXE_workcrew"), 1);
        let ran =
            Command::new("sh").args(["-c", &program]).current_dir(&place).env_remove("WORKCREW_DB").output().unwrap();
        let printed = String::from_utf8(ran.stdout).unwrap();
        let mut printed: Vec<String> = printed.lines().map(steady).collect();
        let mut shown: Vec<String> = output.iter().map(|line| steady(line)).collect();
        if let Some(cut) = shown.iter().position(|line| line == "[...]") {
            shown.truncate(cut);
            printed.truncate(cut);
        }
        assert_eq!(printed, shown, "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}
