//! Content that would take over a terminal: whatever it would obey is shown instead.

use super::{Ran, Scene};

/// Clears the screen, sets the title, goes back, turns the direction of writing, hides.
const HOSTILE: &str = "\\u001b[2J\\u001b]0;title\\u0007\\r\\b\\u009b31m\\u202egnp\\u2066\\u200b\\u007f\\u0085";

/// With which codes the commands below end.
const CODES: [i32; 50] = [
    1, 1, 1, 1, 1, 2, 1, 0, 0, 0, 2, 0, 0, 0, 0, 2, 2, 2, 2, 3, 2, 2, 2, 2, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 2, 2, 0, 0, 0,
];

/// What of it a name may have.
const NAME: &str = "\\u202egnp\\u2066\\u200b";

#[track_caller]
fn is_harmless(line: &str, ran: &Ran) {
    for sign in ran.out.chars().chain(ran.err.chars()) {
        let turns = matches!(sign, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        assert!(sign == '\n' || !(sign.is_control() || turns), "{line}: {sign:?} in {ran:#?}");
    }
}

#[test]
fn nothing_that_a_terminal_obeys_reaches_it_from_any_command() {
    let scene = Scene::new();
    let job: String = serde_json::from_str(&format!("\"job{NAME}\"")).unwrap();
    let id: String = serde_json::from_str(&format!("\"id{NAME}\"")).unwrap();
    scene.write(
        "u.jsonl",
        format!(
            "{{\"id\":\"id{NAME}\",\"prompt\":\"p{HOSTILE}\",\"type\":\"t{NAME}\",\"max_retries\":0}}\n\
             {{\"id\":\"other{NAME}\",\"prompt\":\"x\\n{HOSTILE}\"}}\n{{\"{HOSTILE}\":1}}\n{HOSTILE}\n{{\"id\":\"w{NAME}\"}}\n{{\"id\":\"x{HOSTILE}\",\"prompt\":\"p\"}}\n"
        ),
    );
    let script = "cat; printf '\\033[2J\\033]0;x\\007\\302\\233\\342\\200\\256\\000' | tee /dev/stderr; exit 7";
    let mut lines: Vec<Vec<&str>> = vec![
        vec!["run", "u.jsonl", "--job", &job, "--retries", "0", "--", "sh", "-c", script],
        vec!["run", "u.jsonl", "--job", &job, "--canary", "1"],
        vec!["run", "u.jsonl", "--job", &job, "--json"],
        vec!["run", "u.jsonl", "--job", "ok", "--", "cat"],
        vec!["run", "u.jsonl", "--job", "ok2", "--canary", "1", "--yes", "--", "cat"],
        vec!["queue", "u.jsonl", "--job", &job, "--strict"],
        vec!["queue", "u.jsonl", "--job", &job, "--json"],
        vec!["show", &id, "--job", &job],
        vec!["show", &id, "--job", "ok", "--unfold"],
        vec!["show", &id, "--json", "--job", "ok"],
        vec!["show", &id],
        vec!["requeue", &id, "--job", &job, "--by", &id, "--reason", &id],
        vec!["show", &id, "--job", &job],
        vec!["status", "--json"],
        vec!["cancel", &id, "--job", &job, "--reason", &id],
        vec!["cancel", &id],
        vec!["cancel", "none\u{1b}[2J"],
        vec!["list", "--job", "none\u{1b}[2J"],
        vec!["list", "--sort", "none\u{1b}[2J"],
        vec!["list", "--db", "none\u{1b}[2J"],
        vec!["run", "none\u{1b}[2J.jsonl"],
        vec!["run", "none\u{202e}.jsonl"],
        vec!["run", "u.jsonl", "--template", "none\u{1b}[2J"],
        vec!["run", "u.jsonl", "--", "none\u{1b}[2J"],
        vec!["man", "none\u{1b}[2J"],
        vec!["backup", "copy\u{1b}[2J.db"],
        vec!["resume", "--job", &job],
    ];
    for line in [
        "jobs",
        "jobs --json",
        "status",
        "list",
        "list --json",
        "slow",
        "slow --json",
        "cost",
        "cost --json",
        "cost --by model",
        "failures",
        "failures --json",
        "search x",
        "search x --json --all",
        "doctor",
        "doctor --json",
        "verify --head --conversations",
        "verify",
        "resume",
        "worker --job none\u{1b}[2J",
        "purge --older-than 0s",
        "list",
        "verify",
    ] {
        lines.push(line.split_whitespace().collect());
    }
    let mut codes = Vec::new();
    for line in lines {
        let ran = scene.run_all(&line);
        is_harmless(&format!("{line:?}"), &ran);
        codes.push(ran.status.code().unwrap());
    }
    // It has been through all of it, and not been refused at the door.
    assert_eq!(codes, CODES);
}
