//! The same work once on the command line: what is asked twice is paid once, and it is seen whose answer it is.

use serde_json::{Value, json};

use super::Scene;

const SIMULATED: &str = "--executor simulated --latency 1ms";

/// So many units, each second of which has the same prompt.
fn scene(count: usize) -> Scene {
    let scene = Scene::new();
    let line = |number| format!("{{\"id\":\"u{number}\",\"prompt\":\"question {}\"}}\n", number % 2);
    scene.write("u.jsonl", (0..count).map(line).collect::<String>());
    scene
}

/// How many attempts were paid for, and how many took the answer of another.
fn paid_and_taken(scene: &Scene) -> (usize, usize) {
    let bill = scene.run("cost --by model --json").well().json().remove(0);
    let count = |is_taken: bool| {
        let models = bill["groups"].as_array().unwrap().iter();
        models
            .filter(|model| (model["name"] == "(shared)") == is_taken)
            .map(|model| model["attempts"].as_u64().unwrap())
            .sum::<u64>()
    };
    (count(false) as usize, count(true) as usize)
}

#[test]
fn units_with_the_same_prompt_are_paid_for_once_and_show_tells_whose_answer_they_have() {
    let scene = scene(20);
    scene.run(&format!("run u.jsonl {SIMULATED} --same-work-once")).well();
    assert_eq!((scene.count("COMPLETED"), paid_and_taken(&scene)), (20, (2, 18)));
    let units = scene.run("export").well().json();
    let taken: Vec<&Value> = units.iter().filter(|unit| !unit["attempts"][0]["answer_of"].is_null()).collect();
    assert_eq!(taken.len(), 18);
    let (id, of) = (taken[0]["id"].as_str().unwrap(), &taken[0]["attempts"][0]["answer_of"]);
    let giver = units.iter().find(|unit| unit["key"] == of["unit"]).unwrap();
    assert_eq!((&giver["output"], &of["number"]), (&taken[0]["output"], &json!(1)));
    let giver = giver["id"].as_str().unwrap();
    let shown = scene.run(&format!("show {id}")).well();
    let shown = shown.says(&format!("  answer    that of unit {giver} of job u, attempt 1\n")).says("COMPLETED after");
    shown
        .says(&format!("Not executed: this is the answer of unit {giver} of job u, attempt 1, which needed the same."));
    assert!(!scene.run(&format!("show {giver}")).well().out.contains("  answer  "));
    scene.run("verify").well();
}

#[test]
fn it_is_kept_with_the_job_and_taken_back_by_saying_no() {
    let scene = scene(4);
    scene.run(&format!("queue u.jsonl {SIMULATED} --same-work-once")).well();
    scene.run("resume").well();
    assert_eq!(paid_and_taken(&scene), (2, 2));
    let job = scene.run("jobs --json").well().json().remove(0);
    assert_eq!(job["settings"]["same_work_once"], true, "{job}");
    let more = |from: usize| {
        let line = |number| format!("{{\"id\":\"u{number}\",\"prompt\":\"question 0\"}}\n");
        scene.write("more.jsonl", (from..from + 3).map(line).collect::<String>());
    };
    more(10);
    scene.run("run more.jsonl --job u").well();
    assert_eq!(paid_and_taken(&scene), (2, 5));
    more(20);
    scene.run("run more.jsonl --job u --same-work-once=no").well();
    assert_eq!(paid_and_taken(&scene), (5, 5));
    more(30);
    scene.run("run more.jsonl --job u").well();
    assert_eq!(paid_and_taken(&scene), (8, 5));
    // Another job is not asked for it, and has it only if it asks.
    scene.run(&format!("run u.jsonl --job v {SIMULATED}")).well();
    assert_eq!(paid_and_taken(&scene), (12, 5));
    scene.run(&format!("run u.jsonl --job w {SIMULATED} --same-work-once=yes")).well();
    assert_eq!(paid_and_taken(&scene), (12, 9));
}

#[test]
fn what_may_do_more_than_answer_is_refused_before_anything_is_stored() {
    let scene = scene(2);
    let told = "--same-work-once is for what does nothing but answer, and `cat` may do more";
    for line in ["run u.jsonl --same-work-once -- cat", "queue u.jsonl --same-work-once -- cat"] {
        scene.run(line).code(2).tells(told);
        scene.run("jobs --json").code(3);
    }
    scene.run("queue u.jsonl --same-work-once").well();
    for line in ["resume -- cat", "worker --job u -- cat", "run u.jsonl -- cat"] {
        scene.run(line).code(2).tells(told);
        assert_eq!(scene.count("PENDING"), 2, "{line}");
    }
    scene.run("resume --same-work-once=no -- cat").well();
    assert_eq!(scene.count("COMPLETED"), 2);
    scene.run("resume --same-work-once=perhaps").code(2).tells("invalid value 'perhaps'");
}
