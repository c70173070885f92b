//! `--canary`: a few units first.

use std::process::Command;

use super::screen::Terminal;
use super::{Scene, WORKCREW, noting, tally};

fn scene() -> Scene {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 6);
    scene
}

fn executed(scene: &Scene) -> Vec<usize> {
    tally(&scene.read("log")).into_values().collect()
}

#[test]
fn without_a_terminal_it_stops_after_the_canary() {
    let scene = scene();
    let ran = scene.run_all(&noting("run u.jsonl --canary 2", "echo answer to $unit")).code(1);
    let ran = ran
        .says("u0001 COMPLETED, $0.0000\n  answer to u0001\nu0002 COMPLETED")
        .says("2 units cost $0.0000; with the other 4: about ");
    ran.says("stopped after the canary; with --yes it goes on\n");
    assert_eq!(executed(&scene), [1; 2]);
    assert_eq!(scene.units("").len(), 2, "the rest is not even stored");
    scene.run_all(&noting("run u.jsonl --canary 2 --yes", "echo answer")).well().says("6 completed");
    assert_eq!(executed(&scene), [1; 6], "those of the canary are not executed again");
}

#[test]
fn with_yes_it_goes_on_and_the_canary_is_not_executed_again() {
    let scene = scene();
    scene
        .run_all(&noting("run u.jsonl --canary 2 --yes", "echo ok"))
        .well()
        .says("with the other 4")
        .says("read: 4 new, 2 known before");
    assert_eq!(executed(&scene), [1; 6]);
    let other = Scene::new();
    let lines =
        "nonsense\n{\"id\":\"a\",\"prompt\":\"a\"}\n{\"id\":\"b\",\"prompt\":\"b\"}\n{\"id\":\"c\",\"prompt\":\"c\"}\n";
    let ran = other.pipe("run - --canary 1 --yes -- cat", lines.as_bytes()).code(1);
    ran.tells("workcrew: line 1: it is no JSON").says("3 completed").says("1 is no unit");
}

#[test]
fn a_canary_that_fails_says_why_and_foretells_with_prices() {
    let scene = scene();
    scene
        .run("run u.jsonl --canary 2 --failures 1 --retries 0 --latency 1ms")
        .code(1)
        .says("u0001 FAILED, ")
        .says("2 failed");
    let ran = scene.run("run u.jsonl --canary 3 --json --latency 1ms --db j.db").code(1);
    let events = ran.json();
    let canary = events.iter().find(|event| event["event"] == "canary").unwrap();
    assert_eq!((canary["units"].as_array().unwrap().len(), &canary["left"]), (3, &3.into()));
    let cost = |value: &serde_json::Value| value["amount"].as_i64().unwrap();
    assert_eq!(cost(&canary["forecast"]["cost"]), cost(&canary["cost"]) * 2);
}

#[test]
fn on_a_terminal_it_asks() {
    for (answer, code, units) in [("y\n", 0, 6), ("n\n", 1, 2), ("\n", 1, 2)] {
        let scene = scene();
        let mut terminal = Terminal::start(scene.command(&noting("run u.jsonl --canary 2", "echo ok")), 100, 30);
        terminal.wait_for("go on with the rest? [y/N]");
        terminal.write(answer);
        assert_eq!(terminal.end().code(), Some(code), "{answer:?}");
        assert_eq!(executed(&scene), vec![1; units], "{answer:?}");
    }
}

#[test]
fn whoever_interrupts_instead_of_answering_does_not_go_on() {
    let scene = scene();
    let mut terminal = Terminal::start(scene.command(&noting("run u.jsonl --canary 2", "echo ok")), 100, 30);
    terminal.wait_for("go on with the rest? [y/N]");
    terminal.signal(rustix::process::Signal::INT);
    assert_eq!(terminal.end().code(), Some(130));
    assert_eq!(executed(&scene), [1; 2]);
}

#[test]
fn a_pipe_that_has_a_path_is_read_once_and_nothing_of_it_is_lost() {
    let scene = scene();
    let ran = Command::new("bash")
        .args(["-c", "\"$0\" run <(cat u.jsonl) --format jsonl --canary 2 --yes --job piped -- cat", WORKCREW])
        .current_dir(scene.path(""))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(scene.count("COMPLETED"), 6, "{ran:?}");
}

#[test]
fn that_nobody_reads_what_it_gave_is_no_reason_to_stop_after_it() {
    for line in ["run u.jsonl --canary 2 --yes", "run u.jsonl --canary 2 --yes --json"] {
        let scene = scene();
        let mut child = scene
            .command(&noting(line, "echo ok"))
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        assert_eq!(super::wait(&mut child).code(), Some(0), "{line}");
        assert_eq!(executed(&scene), [1; 6], "{line}");
    }
}

#[test]
fn a_canary_that_was_all_there_is_is_the_whole_batch() {
    let scene = scene();
    let ran = scene.run_all(&noting("run u.jsonl --canary 9", "echo ok")).well().says("6 units cost $0.0000\n");
    assert!(!ran.out.contains("stopped"), "{ran:?}");
}
