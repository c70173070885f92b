//! How often a provider may be asked, said on the command line.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Scene, Started, noting, until};

fn scene(count: usize) -> Scene {
    let scene = Scene::new();
    scene.write_units("u.jsonl", count);
    scene
}

fn kept(scene: &Scene) -> Value {
    scene.run("jobs --json").well().json().remove(0)["settings"]["rates"].clone()
}

#[test]
fn no_more_is_asked_in_a_minute_than_was_said_and_who_waits_for_it_can_be_stopped() {
    let scene = scene(5);
    scene.run_all(&noting("queue u.jsonl --rpm 2", "true")).well();
    let run = scene.start(&["resume", "--workers", "4"]);
    until("as many as may be to complete", || scene.count("COMPLETED") == 2);
    // Who would ask now is told to wait by another process too.
    let worker = scene.start(&["worker", "--workers", "4"]);
    until("the other to wait", || scene.run("status --json").well().json()[0]["running"].as_array().unwrap().len() > 2);
    for process in [run, worker] {
        process.signal(Signal::INT);
        process.end();
    }
    assert_eq!(scene.read("log").lines().count(), 2);
    assert_eq!(scene.count("PENDING"), 3, "nothing was used up");
    assert_eq!(kept(&scene), json!({ "rpm": 2 }));

    scene.run("resume --rpm none").well();
    assert_eq!(scene.count("COMPLETED"), 5);
    assert_eq!(kept(&scene), Value::Null);
    scene.run("verify").well();
}

#[test]
fn no_more_are_executed_at_a_time_than_was_said_however_many_workers_there_are() {
    let scene = scene(6);
    let work = "echo begin >> log; sleep 0.02; echo end >> log";
    let mut words: Vec<&str> = "queue u.jsonl --concurrency 1 --executor command -- sh -c".split(' ').collect();
    words.push(work);
    scene.run_all(&words).well();
    let workers: Vec<Started> = (0..2).map(|_| scene.start(&["resume", "--workers", "3"])).collect();
    for worker in workers {
        worker.end().well();
    }
    assert_eq!(scene.count("COMPLETED"), 6);
    assert_eq!(scene.read("log"), "begin\nend\n".repeat(6));
    assert_eq!(kept(&scene), json!({ "concurrency": 1 }));
}

#[test]
fn what_is_no_rate_is_refused_before_anything_is_made() {
    let scene = scene(1);
    for option in ["--rpm", "--input-tpm", "--output-tpm", "--concurrency"] {
        for number in ["0", "-1", "x", "", "1.5", "99999999999999999999"] {
            let ran =
                scene.run_all(&["run", "u.jsonl", "--executor", "simulated", &format!("{option}={number}")]).code(2);
            ran.tells("is no number from 1, and not `none`");
        }
    }
    assert!(!scene.path("batch.db").exists());
    // Limits that are above what is done change nothing.
    let line = "run u.jsonl --executor simulated --rpm 1000 --input-tpm 1000000 --output-tpm 1000000 --concurrency 9";
    scene.run(line).well();
    let limits = json!({ "rpm": 1000, "input_tpm": 1_000_000, "output_tpm": 1_000_000, "concurrency": 9 });
    assert_eq!(kept(&scene), limits);
}
