//! Pools that start nothing, because of a program that vanished or a quota that is used up: what those hear who look at them.

use rustix::process::Signal;

use super::{Scene, Started, until};

/// A worker that has come upon what keeps it from going on.
fn held(scene: &Scene, line: &str, why: &str) -> Started {
    scene.write_units("units.jsonl", 3);
    scene.run("queue units.jsonl").well();
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = scene.command(&line.split(' ').collect::<Vec<_>>());
    let started = Started::of(command.env("PATH", path));
    until("it is held", || {
        let told = scene.run("status").out;
        told.lines().any(|line| line.contains("is held") && line.contains(why))
    });
    started
}

fn program(scene: &Scene, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir_all(scene.path("bin")).unwrap();
    scene.write(name, format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(scene.path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_program_that_vanished_holds_the_pool_until_somebody_does_what_the_doctor_says() {
    let scene = Scene::new();
    program(&scene, "bin/answers", "cat; rm \"$0\"");
    let worker = held(&scene, "worker --workers 1 -- answers", "no_program");
    let told = scene.run("doctor").code(1).says("starts nothing: no_program: `").says("answers` could not be started");
    let pid = worker.pid().as_raw_nonzero();
    assert!(told.out.contains("NOW") && told.out.contains(&format!("kill -INT {pid}")), "{told:?}");
    let held = scene.units("").into_iter().filter(|(_, status)| status == "PENDING").count();
    assert_eq!(held, 2, "nothing was used up");
    // What it said is with the attempt, where a purge can remove it.
    scene.run("show u0002").well().says("RELEASED").says("no_program: `");
    program(&scene, "bin/answers", "cat");
    worker.signal(Signal::INT);
    worker.end();
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap());
    Started::of(scene.command(&["resume", "-q", "--", "answers"]).env("PATH", path)).end().well();
    assert_eq!(scene.count("COMPLETED"), 3);
    scene.run("doctor").well().says("nothing is wrong");
}

#[test]
fn a_used_up_quota_is_told_with_the_time_when_it_goes_on_by_itself() {
    let scene = Scene::new();
    let limit = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":4102444830}}"#;
    let result = r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"You have hit your limit","session_id":"s"}"#;
    program(&scene, "bin/claude", &format!("cat > /dev/null; echo '{limit}'; echo '{result}'; exit 1"));
    let worker = held(&scene, "worker --workers 1 --executor claude", "quota: ");
    scene
        .run("doctor")
        .says("`claude` is not asked until 2100-01-01 00:00:30 UTC: quota: You have hit your limit")
        .says("`workcrew lift`")
        .says("NOTE")
        .says("starts nothing until 2100-01-01 00:00")
        .says("UTC: quota: You have hit your limit");
    scene.run("doctor").says("goes on by itself");
    assert_eq!(scene.count("PENDING"), 3, "nothing was used up");
    worker.signal(Signal::INT);
    worker.end();
}

#[test]
fn a_provider_that_one_process_was_told_to_leave_alone_is_left_alone_by_the_next_until_that_is_lifted() {
    let scene = Scene::new();
    scene.run("lift").code(3).tells("there is no database");
    let limit = r#"{"type":"rate_limit_event","rate_limit_info":{"status":"rejected","resetsAt":4102444830}}"#;
    let result = r#"{"type":"result","subtype":"success","is_error":true,"api_error_status":429,"result":"Come later","session_id":"s"}"#;
    let asked = format!("echo asked >> {}", scene.path("log").display());
    program(&scene, "bin/claude", &format!("cat > /dev/null; {asked}; echo '{limit}'; echo '{result}'; exit 1"));
    let worker = held(&scene, "worker --workers 1 --executor claude", "quota: ");
    worker.signal(Signal::INT);
    worker.end();

    let result =
        r#"{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"s","total_cost_usd":0.1}"#;
    program(&scene, "bin/claude", &format!("cat > /dev/null; {asked}; echo '{result}'"));
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap());
    let resume = || Started::of(scene.command(&["resume", "--executor", "claude"]).env("PATH", &path));
    let second = resume();
    until("it is held too", || {
        scene.run("status").out.contains(" is held until 2100-01-01 00:00:30 UTC: quota: Come later")
    });
    assert_eq!(scene.read("log"), "asked\n", "by the first process, once");
    second.signal(Signal::INT);
    second.end().code(130);

    let told = "claude is not asked until 2100-01-01 00:00:30 UTC: quota: Come later (end that with `workcrew lift`)";
    scene.run("status").well().says(told);
    let json = scene.run("status --json").well().json();
    assert_eq!(json[0]["providers"][0]["until"], "2100-01-01T00:00:30Z");
    scene.run("lift codex").code(2).tells("provider `codex` is not held");
    scene.run("lift").well().says("claude was not to be asked until 2100-01-01 00:00:30 UTC, and may be from now on");
    scene.run("lift").well().says("no provider is held");
    resume().end().well();
    assert_eq!(scene.count("COMPLETED"), 3);
    scene.run("verify").well();
}
