//! The README's tour: what it shows is what the command prints.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::command::settled;
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
        let (printed, shown) = (settled(&printed), settled(&output.join("\n")));
        let (mut printed, mut shown): (Vec<&str>, Vec<&str>) = (printed.lines().collect(), shown.lines().collect());
        if let Some(cut) = shown.iter().position(|line| *line == "[...]") {
            shown.truncate(cut);
            printed.truncate(cut);
        }
        assert_eq!(printed, shown, "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}
