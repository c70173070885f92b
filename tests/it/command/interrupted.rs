//! Ctrl-C, signals and `kill -9` in the middle of a batch: nothing is lost, and nothing that was completed is done again.

use std::io::Write;

use rustix::process::Signal;

use super::{Scene, Started, is_anybody_in, noting, tally, until};

/// A shell that goes on once there is a file `gate`, and notes that it came to its end.
const WAIT: &str = "until [ -e gate ]; do sleep 0.01; done; echo $unit >> ended; echo done";

/// A batch of units of which as many are being executed as there are workers.
fn in_the_middle(scene: &Scene, units: usize, workers: usize) -> Started {
    scene.write_units("u.jsonl", units);
    let started = scene.start(&noting(&format!("run u.jsonl --workers {workers}"), WAIT));
    until("the workers are busy", || scene.read("log").lines().count() == workers);
    started
}

fn open_gate(scene: &Scene) {
    scene.write("gate", "");
}

#[test]
fn one_ctrl_c_lets_what_runs_come_to_its_end_and_leaves_the_rest() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let scene = Scene::new();
        let started = in_the_middle(&scene, 9, 2);
        started.signal(signal);
        until("it is heard before anything can end", || started.told().contains("stopping"));
        open_gate(&scene);
        let ran = started.end().code(130).tells("stopping: what runs may come to its end; once more ends it at once\n");
        let ran = ran.says("2 completed, 7 left").says("go on: workcrew resume --job u\n");
        assert_eq!(ran.err.matches("stopping").count(), 1);
        assert_eq!((scene.count("COMPLETED"), scene.count("PENDING")), (2, 7));
        scene.run("resume").well().says("9 completed");
        let log = scene.read("log");
        assert!(log.lines().count() == 9 && tally(&log).len() == 9, "each once: {log}");
        scene.run("verify").well();
    }
}

#[test]
fn a_second_ctrl_c_ends_it_at_once_and_uses_up_no_attempt() {
    let scene = Scene::new();
    let started = in_the_middle(&scene, 5, 2);
    started.signal(Signal::INT);
    started.signal(Signal::TERM);
    let ran = started.end().code(130).says("0 completed, 5 left");
    until("its children are gone", || !is_anybody_in(&scene.path("")));
    assert_eq!(scene.count("PENDING"), 5, "{ran:?}");
    let units = scene.run("list --json").well().json();
    assert!(units.iter().all(|unit| unit["attempts_used"] == 0), "{units:?}");
    open_gate(&scene);
    scene.run_all(&noting("run u.jsonl", WAIT)).well().says("5 completed");
    assert_eq!(tally(&scene.read("ended")).into_values().collect::<Vec<_>>(), [1; 5]);
    scene.run("verify").well();
}

#[test]
fn whoever_reads_from_a_pipe_that_gives_nothing_hears_ctrl_c_and_has_executed_what_came() {
    let scene = Scene::new();
    let mut started = scene.start(&noting("run -", "echo done"));
    writeln!(started.stdin(), "{{\"id\":\"a\",\"prompt\":\"a\"}}").unwrap();
    until("what came is executed, though more may come", || scene.read("log") == "a\n");
    until("it is stored", || scene.count("COMPLETED") == 1);
    writeln!(started.stdin(), "{{\"id\":\"b\",\"prompt\":\"b\"}}").unwrap();
    until("so is the next", || scene.count("COMPLETED") == 2);
    // Whoever waits for a child closes what it still holds of it.
    let _stays_open = started.child.stdin.take();
    started.signal(Signal::INT);
    let status = super::wait(&mut started.child);
    assert_eq!(status.code(), Some(130), "nobody knows what was still to come");
    assert!(started.out.end().ends_with("not all units were read; go on: run the same command again\n"));
}

#[test]
fn whoever_interrupts_when_all_was_read_and_executed_has_interrupted_nothing() {
    let scene = Scene::new();
    let started = in_the_middle(&scene, 2, 2);
    started.signal(Signal::INT);
    until("it is heard", || started.told().contains("stopping"));
    open_gate(&scene);
    started.end().well().says("2 completed");
}

#[test]
fn a_canary_that_waits_for_a_slow_pipe_hears_ctrl_c() {
    let scene = Scene::new();
    let mut started = scene.start(&noting("run - --canary 3 --yes", "echo done"));
    writeln!(started.stdin(), "{{\"id\":\"a\",\"prompt\":\"a\"}}").unwrap();
    until("what came is executed", || scene.read("log") == "a\n");
    let _stays_open = started.child.stdin.take();
    started.signal(Signal::INT);
    assert_eq!(super::wait(&mut started.child).code(), Some(130));
    assert_eq!(scene.count("COMPLETED"), 1);
}

#[test]
fn after_kill_9_all_are_completed_and_none_that_was_is_done_again() {
    const UNITS: usize = 500;
    let scene = Scene::new();
    scene.write_units("u.jsonl", UNITS);
    let arguments = noting("run u.jsonl --workers 8 -q", "echo done");
    for part in [UNITS / 10, UNITS / 2] {
        let started = scene.start(&arguments);
        until("a part is done", || scene.read("log").lines().count() > part);
        started.signal(Signal::KILL);
        let ran = started.end();
        assert_eq!(ran.status.code(), None, "{ran:?}");
        until("its children are gone", || !is_anybody_in(&scene.path("")));
    }
    let done_before = scene.count("COMPLETED");
    assert!(done_before > 0 && done_before < UNITS);
    scene.run_all(&arguments).well().says("500 completed");
    scene.run("verify").well();
    let units = scene.run("list --json -n 1000").well().json();
    for unit in &units {
        let attempts = unit["attempts"].as_array().unwrap();
        let completed: Vec<_> = attempts.iter().filter(|attempt| attempt["outcome"] == "COMPLETED").collect();
        assert_eq!(completed.len(), 1, "{unit}");
        assert_eq!(attempts.last().unwrap()["outcome"], "COMPLETED", "nothing comes after it: {unit}");
    }
    let log = scene.read("log");
    let twice = tally(&log).values().map(|times| times - 1).sum::<usize>();
    assert!(twice <= 16, "only what was being executed runs again: {twice}");
    assert!(!is_anybody_in(&scene.path("")));
}

#[test]
fn after_kill_9_while_units_are_read_the_same_file_adds_the_rest() {
    const UNITS: usize = 20_000;
    let scene = Scene::new();
    scene.write_units("u.jsonl", UNITS);
    let started = scene.start(&["queue", "u.jsonl"]);
    until("some are stored", || {
        scene.path("batch.db").exists() && scene.run("status").out.contains("waiting") && scene.count("PENDING") > 0
    });
    started.signal(Signal::KILL);
    drop(started);
    let known = scene.count("PENDING");
    scene.run("verify").well();
    let fed = &scene.run("queue u.jsonl --json").well().json()[0]["fed"];
    assert_eq!((&fed["known"], &fed["added"]), (&known.into(), &(UNITS - known).into()));
}
