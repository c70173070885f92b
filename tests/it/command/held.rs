//! Pools that start nothing, because of a program that vanished or a quota that is used up: what those hear who look at them.

use rustix::process::Signal;

use super::{Scene, Started, until};

/// A worker that has come upon what keeps it from going on.
fn held(scene: &Scene, line: &str) -> Started {
    scene.write_units("units.jsonl", 3);
    scene.run("queue units.jsonl").well();
    let path = format!("{}:{}", scene.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = scene.command(&line.split(' ').collect::<Vec<_>>());
    let started = Started::of(command.env("PATH", path));
    until("it is held", || scene.run("status").out.contains("is held"));
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
    let worker = held(&scene, "worker --workers 1 -- answers");
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
    let worker = held(&scene, "worker --workers 1 --executor claude");
    scene
        .run("doctor")
        .says("NOTE")
        .says("starts nothing until 2100-01-01 00:00")
        .says("UTC: quota: You have hit your limit");
    scene.run("doctor").says("goes on by itself");
    assert_eq!(scene.count("PENDING"), 3, "nothing was used up");
    worker.signal(Signal::INT);
    worker.end();
}
