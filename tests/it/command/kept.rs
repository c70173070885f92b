//! What is kept with a job: what executes its units, how long that may take, and who said so.

use serde_json::{Value, json};
use workcrew::{Archive, JobChange, NewJob, NewUnit, Repository, SqliteRepository};

use super::{Ran, Scene, Started, noting, until};

fn queued(count: usize) -> Scene {
    let scene = Scene::new();
    scene.write_units("u.jsonl", count);
    scene.run("queue u.jsonl").well();
    scene
}

/// What the job has kept, and each change of it.
fn job(scene: &Scene) -> Value {
    scene.run("jobs --json").well().json().remove(0)
}

fn kind(scene: &Scene) -> Value {
    job(scene)["settings"]["executor"]["executor"].clone()
}

fn output(scene: &Scene, id: &str) -> String {
    scene.run(&format!("show {id} --json")).well().json()[0]["unit"]["output"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn units_that_nobody_said_how_to_execute_are_executed_by_nobody() {
    let scene = queued(2);
    for line in
        ["resume", "resume -q", "worker --job u", "run u.jsonl -q", "resume --model opus", "worker -q --job u --seed 3"]
    {
        let ran = scene.run(line).code(2);
        assert_eq!((ran.err.lines().count(), &*ran.out), (1, ""), "{line}: {ran:?}");
        let told = "workcrew: nobody has said what executes job `u`: add --executor claude, codex, anthropic, openai or simulated, or a program behind --";
        assert!(ran.err.starts_with(told), "{line}: {ran:?}");
        assert_eq!(scene.count("PENDING"), 2, "{line}");
    }
    assert_eq!(scene.run("list --json").json()[0]["attempts"], json!([]));
}

#[test]
fn queue_says_what_is_missing_to_execute_what_it_stored() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    scene.run("queue u.jsonl").well().says("execute them: workcrew resume --job u --executor …, or workcrew worker");
    scene.run("queue u.jsonl --executor simulated").well().says("execute them: workcrew resume --job u, or");
}

#[test]
fn a_new_job_is_simulated_if_nobody_says_otherwise_which_is_told_also_quietly_and_kept() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    let told = "simulated, since nobody said what executes the units: the answers are made up";
    scene.run("run u.jsonl -q --latency 1ms").well().tells(told);
    assert_eq!(kind(&scene), "simulated");
    scene.write_units("u.jsonl", 2);
    scene.run("queue u.jsonl").well();
    scene.run("resume -q").well().tells("simulated, as it is kept with the job: the answers are made up");
    scene.write_units("u.jsonl", 3);
    let ran = scene.run("run u.jsonl --json").well();
    assert!(ran.err.contains("simulated, as it is kept with the job"), "{ran:?}");
    // Who asks for it need not be told.
    scene.write_units("u.jsonl", 4);
    let ran = scene.run("run u.jsonl -q --executor simulated").well();
    assert_eq!(ran.err, "");
}

#[test]
fn what_executed_last_is_kept_whoever_said_so_with_their_name_and_the_command() {
    let scene = queued(1);
    assert_eq!(kind(&scene), Value::Null);
    scene.run("queue u.jsonl --executor simulated --latency 1ms").well();
    assert_eq!(kind(&scene), "simulated");
    scene.run_all(&noting("resume", "echo by resume")).well();
    assert_eq!(kind(&scene), "command");
    scene.write_units("u.jsonl", 2);
    scene.run_all(&noting("run u.jsonl", "echo by run")).well();
    assert_eq!(output(&scene, "u0002"), "by run");
    scene.write_units("u.jsonl", 3);
    scene.run("queue u.jsonl").well();
    scene.run("resume").well();
    assert_eq!(output(&scene, "u0003"), "by run");
    let job = job(&scene);
    let changes: Vec<[&Value; 2]> =
        job["changes"].as_array().unwrap().iter().map(|change| [&change["actor"], &change["reason"]]).collect();
    assert_eq!(changes.len(), 4, "{job:#}");
    assert_eq!(changes[0], [&json!("caller"), &Value::Null]);
    assert_eq!(changes[1], [&json!("ada"), &json!("workcrew queue u.jsonl --executor simulated --latency 1ms")]);
    scene.run("verify").well();
}

#[test]
fn a_worker_keeps_what_it_was_told_too() {
    let scene = queued(1);
    let worker = scene.start(&noting("worker", "echo by the worker"));
    until("the unit is done", || scene.count("COMPLETED") == 1);
    worker.signal(rustix::process::Signal::INT);
    worker.end().well();
    scene.write_units("u.jsonl", 2);
    scene.run("queue u.jsonl").well();
    scene.run("resume").well();
    assert_eq!(output(&scene, "u0002"), "by the worker");
}

#[test]
fn a_worker_of_all_jobs_executes_each_as_it_is_kept_and_waits_for_somebody_to_say_it() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    scene.write_units("v.jsonl", 1);
    scene.run_all(&noting("queue u.jsonl", "echo as it is kept")).well();
    scene.run("queue v.jsonl").well();
    let worker = scene.start(&["worker"]);
    until("the first job is done", || scene.count("COMPLETED") == 1);
    assert_eq!(scene.units("--job v")[0].1, "PENDING", "nobody has said what executes it");
    scene.run_all(&noting("queue v.jsonl", "echo as it was said later")).well();
    until("the other is done", || scene.count("COMPLETED") == 2);
    worker.signal(rustix::process::Signal::INT);
    worker.end().well().tells("job `v` is left alone: nobody has said what executes job `v`");

    // What a worker is told is for those of which nobody has said anything.
    scene.write_units("u.jsonl", 2);
    scene.write_units("w.jsonl", 1);
    scene.run("queue u.jsonl").well();
    scene.run("queue w.jsonl").well();
    let worker = scene.start(&noting("worker", "echo by the worker"));
    until("all is done", || scene.count("COMPLETED") == 4);
    worker.signal(rustix::process::Signal::INT);
    worker.end().well();
    let said = |job: &str, id: &str| {
        scene.run(&format!("show {id} --job {job} --json")).well().json()[0]["unit"]["output"].clone()
    };
    assert_eq!([said("u", "u0002"), said("w", "u0001")], ["as it is kept", "by the worker"]);
}

#[test]
fn how_long_an_execution_may_take_is_kept_with_the_job_whatever_executes_it() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    scene.run("queue u.jsonl --retries 0 --timeout 300ms -- sleep 1000").well();
    assert_eq!(job(&scene)["settings"]["timeout"], json!({ "secs": 0, "nanos": 300_000_000 }));
    scene.run("resume").code(1);
    assert_eq!(scene.run("failures --json").well().json()[0]["kind"], "timed_out");
    scene.run("requeue --status failed").well();
    scene.run("resume --timeout 1h -- cat").well();
    let kept = || job(&scene)["settings"]["timeout"]["secs"].clone();
    assert_eq!(kept(), 3_600);
    scene.run("queue u.jsonl --executor simulated").well();
    assert_eq!(kept(), 3_600, "it is the units that need it, not what executes them");
}

#[test]
fn a_program_that_is_kept_is_told_before_it_is_started_also_quietly() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    let ran = scene.run_all(&["run", "u.jsonl", "-q", "--", "sh", "-c", "tr a-z A-Z"]).well();
    assert_eq!(ran.err, "", "who has just written it knows");
    let told = "executed by: command -- sh -c 'tr a-z A-Z', as it is kept with the job";
    for line in ["resume -q", "run u.jsonl -q", "resume --json"] {
        let ran = scene.run(line).well();
        assert_eq!(ran.err.lines().next(), Some(told), "{line}: {ran:?}");
    }
    scene.write("agent", "#!/bin/sh\nexit 7\n");
    std::fs::set_permissions(scene.path("agent"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let agent = scene.path("agent").display().to_string();
    scene.run_all(&["queue", "u.jsonl", "--executor", "claude", "--program", &agent, "--agent-arg=--all"]).well();
    scene
        .run("resume -q")
        .well()
        .tells(&format!("executed by: claude --program={agent} --agent-arg=--all, as it is kept with the job"));
}

/// Alters the file, as somebody can who cannot use the command.
fn alter(scene: &Scene, sql: &str) {
    let connection = rusqlite::Connection::open(scene.path("batch.db")).unwrap();
    connection.execute_batch(sql).unwrap();
}

#[track_caller]
fn is_not_executed(scene: &Scene, ran: Ran, finding: &str) {
    let ran = ran.code(3);
    assert_eq!((ran.err.lines().count(), &*ran.out), (1, ""), "{ran:?}");
    assert!(ran.err.starts_with("workcrew: nothing is executed: ") && ran.err.contains(finding), "{ran:?}");
    assert!(ran.err.contains("workcrew verify"), "{ran:?}");
    assert_eq!(scene.read("log"), "");
    assert_eq!(scene.count("PENDING"), 1);
}

#[test]
fn a_program_that_somebody_has_put_into_the_file_is_not_started() {
    for (sql, finding) in [
        (
            "UPDATE jobs SET settings = CAST(replace(CAST(settings AS TEXT), 'echo', 'rm -rf') AS BLOB)",
            "job 1: its budget or its settings are not what the journal of jobs says",
        ),
        ("UPDATE jobs SET template = 'x'", "job 1: its name, its template"),
        ("DELETE FROM job_journal", "job 1: the journal of jobs says nothing about it"),
        ("UPDATE job_journal SET actor = 'grace' WHERE seq = 1", "row 1 was altered"),
    ] {
        let scene = Scene::new();
        scene.write_units("u.jsonl", 1);
        scene.run_all(&noting("queue u.jsonl", "echo done")).well();
        alter(&scene, sql);
        for line in
            ["resume", "resume -q", "worker --job u", "run u.jsonl", "resume --executor simulated", "resume -- cat"]
        {
            is_not_executed(&scene, scene.run(line), finding);
        }
        // A change would vouch for what was altered; where only who did it was, it stays to be found.
        let is_altered = !sql.contains("grace");
        scene.run("queue u.jsonl --executor simulated").code(if is_altered { 3 } else { 0 });
        scene.run("verify").code(1).says(finding);
    }
}

#[test]
fn heads_that_were_kept_elsewhere_hold_after_a_change_and_not_after_a_forgery() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    scene.run("queue u.jsonl --executor simulated").well();
    let heads = scene.run("verify --head").well().out;
    scene.write("heads", &heads);
    assert!(heads.contains("\"job_journal\""), "{heads}");
    scene.run("queue u.jsonl -- cat").well();
    scene.run("verify --expect heads").well();
    // As if it had never been anything else, with every link computed anew: made again under the same name.
    std::fs::remove_file(scene.path("batch.db")).unwrap();
    scene.run("queue u.jsonl -- rm").well();
    scene.run("verify").well();
    scene.run("verify --expect heads").code(1).says("I13 the journal of jobs: is another from its first row on");
}

#[test]
fn what_a_program_keeps_with_its_job_stays_beside_what_the_command_keeps() {
    let scene = Scene::new();
    let repository = SqliteRepository::open(scene.path("batch.db")).unwrap();
    let job = repository.create_job(&NewJob::named("own").settings(json!({ "mine": 1 }))).unwrap().id;
    repository.queue_unit(job, &NewUnit::new("a").prompt("a")).unwrap();
    drop(repository);
    scene.run("resume").code(2).tells("nobody has said what executes job `own`");
    scene.run("resume -- cat").well();
    let kept = self::job(&scene)["settings"].clone();
    assert_eq!(kept, json!({ "mine": 1, "executor": { "executor": "command", "command": ["cat"] } }));

    // What is no place to keep anything in is left as it is.
    for settings in [json!("a text"), json!({ "executor": "of another kind" })] {
        let repository = SqliteRepository::open(scene.path("batch.db")).unwrap();
        let change = JobChange::default().settings(settings.clone());
        repository.change_job(job, &change, &workcrew::repository::By::whom("grace")).unwrap();
        drop(repository);
        scene
            .run("resume -- cat")
            .well()
            .tells("job `own` keeps something else: what executes it must be said each time");
        assert_eq!(self::job(&scene)["settings"], settings);
        scene.run("resume").code(2).tells("nobody has said what executes job `own`");
    }
    let repository = SqliteRepository::open(scene.path("batch.db")).unwrap();
    assert_eq!(repository.counts(job).unwrap().completed, 1);
}

#[test]
fn options_that_come_later_are_those_of_the_same_executor_or_replace_it() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    let executor = || job(&scene)["settings"]["executor"].clone();
    for (line, kept) in [
        ("--cwd . -- cat", json!({ "executor": "command", "cwd": ".", "command": ["cat"] })),
        ("--executor command", json!({ "executor": "command", "cwd": ".", "command": ["cat"] })),
        (
            "--silence 5s",
            json!({ "executor": "command", "cwd": ".", "silence": { "secs": 5, "nanos": 0 }, "command": ["cat"] }),
        ),
        ("--executor simulated --seed 4", json!({ "executor": "simulated", "seed": 4 })),
        ("--latency 1ms", json!({ "executor": "simulated", "seed": 4, "latency": { "secs": 0, "nanos": 1_000_000 } })),
        ("-- true", json!({ "executor": "command", "command": ["true"] })),
    ] {
        scene.run(&format!("queue u.jsonl {line}")).well();
        assert_eq!(executor(), kept, "{line}");
    }
    scene.run("queue u.jsonl --executor claude").well();
    scene.run("queue u.jsonl --executor command").code(2).tells("--executor command needs a program behind --");
    scene.run("queue u.jsonl --executor claude -- cat").code(2).tells("a program behind -- is for --executor command");
    assert_eq!(executor(), json!({ "executor": "claude" }));
    let mut command = scene.command(&["resume", "--model", "m"]);
    Started::of(command.env("PATH", scene.path(""))).end().code(2).tells("there is no program `claude` on the path");
    assert_eq!(executor(), json!({ "executor": "claude" }), "what cannot work is not kept");
}
