//! Several processes on one database: those that queue, those that execute, and those that change their minds.

use rustix::process::Signal;

use super::{Scene, noting, tally, until};

#[test]
fn workers_share_what_another_process_queues_and_end_well_when_they_are_told() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    scene.run("queue u.jsonl --job shared").well();
    let workers = [(); 2].map(|()| scene.start(&noting("worker --workers 1 -q", "echo done")));
    until("the first is done", || scene.count("COMPLETED") == 1);
    scene.write_units("u.jsonl", 60);
    scene.run("queue u.jsonl --job shared").well().says("read: 59 new, 1 known before");
    until("all are done", || scene.count("COMPLETED") == 60);
    for worker in workers {
        worker.signal(Signal::TERM);
        worker.end().well();
    }
    assert_eq!(tally(&scene.read("log")).into_values().collect::<Vec<_>>(), [1; 60]);
    let owners: std::collections::BTreeSet<_> =
        scene.run("list --json -n 100").json().iter().map(|unit| unit["attempts"][0]["owner"].as_i64()).collect();
    assert_eq!(owners.len(), 2, "both have worked");
    scene.run("verify").well();
}

#[test]
fn a_worker_serves_all_jobs_also_those_that_come_later_each_as_it_was_made() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 3);
    let worker = scene.start(&["worker", "--workers", "2"]);
    until("it waits", || worker.told().contains("nothing to do yet; bring units with: workcrew queue UNITS\n"));
    for job in ["one", "two"] {
        let made = noting(&format!("run u.jsonl --job {job} --canary 1 -q"), &format!("echo {job}"));
        scene.run_all(&made).code(1).says("stopped after the canary");
        scene.run(&format!("queue u.jsonl --job {job}")).well();
        until("its units are executed", || scene.units(&format!("--job {job} --status completed")).len() == 3);
        let output = scene.run(&format!("show u0003 --job {job} --json")).well().json()[0]["unit"]["output"].clone();
        assert_eq!(output, job);
    }
    scene.run("queue u.jsonl --job three").well();
    let left_alone = "workcrew: job `three` is left alone: nobody has said what executes job `three`";
    until("nobody has said what executes it", || worker.told().contains(left_alone));
    scene.run("queue u.jsonl --job three --executor simulated").well();
    until("somebody has", || scene.units("--job three --status completed").len() == 3);
    worker.signal(Signal::TERM);
    let ran = worker.end().well().says("job one: 3 units\n  3 completed\njob two: 3 units\n  3 completed\njob three: ");
    assert!(ran.err.contains("job one: its units are executed\n"), "{ran:?}");
    scene.run("verify").well();
}

#[test]
fn the_workers_are_shared_by_all_jobs_and_there_are_never_more() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 6);
    scene.run("queue u.jsonl --job one").well();
    let script = "read unit; echo begin >> log; until [ -e gate ]; do sleep 0.01; done; echo end >> log";
    let worker = scene.start(&["worker", "--workers", "2", "--", "sh", "-c", script]);
    until("the first job has both", || scene.read("log") == "begin\nbegin\n");
    scene.run("queue u.jsonl --job two").well();
    scene.write("gate", "");
    until("all are done", || scene.count("COMPLETED") == 12);
    worker.signal(Signal::TERM);
    worker.end().well();
    let at_a_time = scene.read("log").lines().fold((0, 0), |(most, now), line| {
        let now = if line == "begin" { now + 1 } else { now - 1 };
        (now.max(most), now)
    });
    assert_eq!(at_a_time, (2, 0));
}

#[test]
fn a_worker_whose_database_is_taken_away_ends() {
    let scene = Scene::new();
    let worker = scene.start(&["worker"]);
    until("it waits", || worker.told().contains("nothing to do yet"));
    std::fs::rename(scene.path("batch.db"), scene.path("elsewhere.db")).unwrap();
    worker.end().code(3).tells("workcrew: the database is no longer at `");
}

#[test]
fn a_job_that_cannot_be_executed_here_is_told_and_the_others_are() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 2);
    scene.write("tool", "#!/bin/sh\ncat\n");
    std::fs::set_permissions(scene.path("tool"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    scene.run("run u.jsonl --job one --canary 1 -- ./tool").code(1);
    scene.run("queue u.jsonl --job one").well();
    std::fs::remove_file(scene.path("tool")).unwrap();
    scene.run("queue u.jsonl --job two --executor simulated").well();
    let worker = scene.start(&["worker"]);
    until("the other is executed", || scene.units("--job two --status completed").len() == 2);
    worker.signal(Signal::TERM);
    worker.end().well().tells("workcrew: job `one` is left alone: ");
    assert_eq!(scene.units("--job one --status pending").len(), 1);
}

#[test]
fn what_runs_is_seen_and_cancelled_from_another_process() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 2);
    let started = scene.start(&noting("run u.jsonl --workers 1", "[ $unit = u0002 ] || while :; do sleep 0.01; done"));
    until("the first runs", || scene.read("log") == "u0001\n");
    let pid = started.pid().as_raw_nonzero();
    let status = scene.run("status").well().says("1 running, 1 waiting");
    assert!(status.out.contains(&format!("pid {pid}")) && status.out.contains("u0001"), "{status:?}");
    scene
        .run("cancel u0001 --by eve --reason enough")
        .well()
        .says("u0001: is being executed: its worker is asked to stop");
    let ran = started.end();
    assert_eq!(
        scene.units("").into_iter().map(|(_, status)| status).collect::<Vec<_>>(),
        ["CANCELLED", "COMPLETED"],
        "{ran:?}"
    );
    scene.run("show u0001").well().says("by eve: enough");
    scene.run("cancel u0001").well().says("u0001: had ended: CANCELLED");
    assert_eq!(ran.status.code(), Some(1), "what was cancelled is not completed");
}

#[test]
fn units_come_back_by_name_by_status_and_by_the_way_they_failed() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 4);
    let script = "case $unit in u0001) while :; do sleep 0.01; done;; u0002) exit 3;; u0003) echo ok;; esac; exit 4";
    let arguments = noting("run u.jsonl --workers 4 --retries 0 --timeout 400ms", script);
    scene.run_all(&arguments).code(1);
    let kinds: Vec<_> = scene.run("list --json").json().iter().map(|unit| unit["failure"]["kind"].clone()).collect();
    assert_eq!(kinds[0], "timed_out");
    scene.run("requeue --error timed_out --reason slow").well().says("1 unit brought back");
    scene.run("show u0001").well().says("by ada: slow");
    scene.run("requeue u0002").well().says("u0002: PENDING");
    scene.run("show u0002").well().says("by ada: workcrew requeue u0002");
    scene.run("cancel u0001 u0002").well();
    scene.run("requeue --status cancelled --job u").well().says("2 units brought back");
    scene.run("requeue --status failed --by bob").well().says("2 units brought back");
    assert_eq!(scene.count("PENDING"), 4);
    scene.run("cancel --status pending --job u").well().says("u0004: CANCELLED");
    assert_eq!(scene.count("CANCELLED"), 4);
    scene.run("cancel --status pending --job u").well().says("no unit of job u is PENDING");
    scene.run("requeue u0001 --error x").code(2);
    scene.run("verify").well();
}

#[test]
fn what_is_brought_back_from_several_jobs_must_be_said() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 2);
    for job in ["one", "two"] {
        scene.run(&format!("run u.jsonl --job {job} --retries 0 -- false")).code(1);
    }
    for line in ["requeue --status failed", "requeue --error exit_code"] {
        let told = "workcrew: there are several jobs, say which with --job, or --all-jobs: one, two";
        scene.run(line).code(2).tells_only(told);
    }
    assert_eq!(scene.count("FAILED"), 4);
    scene.run("requeue --status failed --job two").well().says("2 units brought back");
    scene.run("requeue --status failed --all-jobs").well().says("2 units brought back");
    scene.run("requeue --status failed --all-jobs --job one").code(2);
    scene.run("requeue --all-jobs").code(2).tells("--status <STATUS>");
    scene.run("requeue --status failed --error exit_code --all-jobs").well().says("0 units brought back");
}

#[test]
fn what_cannot_be_done_for_one_unit_is_done_for_the_others() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 3);
    let then = "[ $unit = u0002 ] || exit 3; echo ok";
    scene.run_all(&noting("run u.jsonl --retries 0", then)).code(1);
    let ran = scene.run("requeue u0001 u0002 nobody u0003").code(1);
    let ran = ran.says("u0001: PENDING\nu0003: PENDING\n").tells("workcrew: there is no unit `nobody`\n");
    assert!(ran.err.starts_with("workcrew: unit `u0002` is COMPLETED: only what is FAILED or CANCELLED "), "{ran:?}");
    let ran = scene.run("cancel u0001 nobody u0003").code(1).says("u0001: CANCELLED\nu0003: CANCELLED\n");
    ran.tells("workcrew: there is no unit `nobody`\n");
}
