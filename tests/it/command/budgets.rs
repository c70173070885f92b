//! Budgets on the command line: what is not left is not spent, and saying more goes on.

use serde_json::json;

use super::Scene;

/// So many units of about a cent each, one after the other.
fn scene(count: usize) -> Scene {
    let scene = Scene::new();
    scene.write_units("u.jsonl", count);
    scene
}

const SIMULATED: &str = "--executor simulated --latency 1ms --workers 1 --expected-cost 0.01";

#[test]
fn a_batch_stops_when_its_budget_is_used_up_and_goes_on_when_it_is_raised() {
    let scene = scene(40);
    let ran = scene.run(&format!("run u.jsonl {SIMULATED} --budget 0.05usd")).code(1);
    let ran = ran.says("  budget $0.05: $0.0").says("  held: job 1 may cost $0.05: $0.0");
    ran.says("go on: workcrew resume --job u --budget …");
    let (done, left) = (scene.count("COMPLETED"), scene.count("PENDING"));
    assert!(done > 0 && left > 0 && done + left == 40, "{done} done, {left} left");
    let status = scene.run("status --json").well().json().remove(0);
    let (spent, budget) = (status["budget"]["spent"].as_i64().unwrap(), status["budget"]["budget"].as_i64().unwrap());
    assert_eq!((budget, &status["budget"]["reserved"]), (50_000_000, &json!(0)));
    assert!(spent > 0 && spent <= budget + 20_000_000, "{spent}");
    scene.run("status").well().says("  budget $0.05: $0.0");

    // Without more of it nothing more is done.
    scene.run("resume").code(1).says("held: job 1 may cost $0.05");
    assert_eq!(scene.count("COMPLETED"), done);
    scene.run("resume --budget $5").well().says("  budget $5.00: $");
    assert_eq!(scene.count("COMPLETED"), 40);
    scene.run("verify").well();
    let changes = scene.run("jobs --json").well().json().remove(0)["changes"].clone();
    let budgets: Vec<_> = changes.as_array().unwrap().iter().map(|change| change["budget"].clone()).collect();
    assert_eq!((&budgets[0], budgets.last().unwrap()), (&json!(50_000_000), &json!(5_000_000_000_u64)), "{changes}");
}

#[test]
fn a_budget_can_be_taken_away() {
    let scene = scene(10);
    scene.run(&format!("run u.jsonl {SIMULATED} --budget 0.001")).code(1);
    let ran = scene.run("resume --budget none").well();
    assert!(!ran.out.contains("budget"), "{ran:?}");
    assert_eq!(scene.count("COMPLETED"), 10);
}

#[test]
fn what_is_no_amount_and_no_table_is_refused_before_anything_is_made() {
    let scene = scene(1);
    for amount in ["0", "-1", "x", "5eur", "usd", ""] {
        let budget = format!("--budget={amount}");
        let ran = scene.run_all(&["run", "u.jsonl", "--executor", "simulated", &budget]).code(2);
        ran.tells("is no amount of dollars above 0");
    }
    scene.write("bad.json", "{\"m\": {\"input_cost_per_token\": \"three\"}}");
    for (file, told) in [("bad.json", "`input_cost_per_token` is no price"), ("none.json", "No such file")] {
        let line = format!("run u.jsonl --executor openai --model m --base-url http://127.0.0.1:9 --prices {file}");
        scene.run(&line).code(2).tells(told);
    }
    assert!(!scene.path("workcrew.db").exists());
}
