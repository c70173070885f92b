//! A price that nobody told is unknown, wherever one looks, and never nothing.

use serde_json::{Value, json};

use super::Scene;

/// Four units, one of which fails, by a program that tells no price.
fn without_a_bill() -> Scene {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 4);
    let mut words: Vec<&str> = "run units.jsonl -q --job pages --retries 0 -- sh -c".split(' ').collect();
    words.push("read unit; case $unit in *3) exit 1;; esac; echo $unit");
    scene.run_all(&words).code(1).says("unknown").says("4 attempts left no bill");
    scene
}

/// What the page says of costs at its top.
fn bill(scene: &Scene) -> Value {
    scene.run("report -o report.html").well();
    let page = scene.read("report.html");
    let (_, from) = page.split_once("\"bill\":").unwrap();
    serde_json::Deserializer::from_str(from).into_iter().next().unwrap().unwrap()
}

#[test]
fn what_left_no_bill_costs_nobody_knows_what() {
    let scene = without_a_bill();
    for line in ["cost", "cost --by model", "failures", "jobs", "status", "list", "slow", "show u0001"] {
        let out = scene.run(line).well().out;
        assert!(!out.contains("$0"), "{line}: {out}");
        assert!(out.contains("unknown") || out.contains("no bill"), "{line}: {out}");
    }
    let unknown = |unpriced: u64| json!({ "amount": null, "unpriced": unpriced });
    let bills = scene.run("cost --json").well().json();
    assert_eq!((&bills[0]["total"]["cost"], &bills[0]["total"]["in_vain"]), (&unknown(4), &unknown(1)));
    assert_eq!(scene.run("failures --json").well().json()[0]["cost"], unknown(1));
    assert_eq!(scene.run("jobs --json").well().json()[0]["cost"], unknown(4));
    assert_eq!(scene.run("status --json").well().json()[0]["cost"], unknown(4));
    assert_eq!(scene.run("export u0001").well().json()[0]["cost"], unknown(1));
    let trace = scene.run("export u0001 --format otel").well().out;
    assert!(trace.contains("workcrew.cost.unpriced") && !trace.contains("workcrew.cost.dollars"), "{trace}");
    let bill = bill(&scene);
    assert_eq!((&bill["nanos"], &bill["unpriced_attempts"]), (&json!(0), &json!(4)));
}

#[test]
fn what_is_known_is_told_with_how_many_are_not() {
    let scene = without_a_bill();
    scene.write("more.jsonl", "{\"id\":\"priced\",\"prompt\":\"p\"}\n");
    scene.run("run more.jsonl -q --job pages --executor simulated --failures 0").code(1).says("and 4 unpriced");
    for line in ["cost", "jobs", "status"] {
        scene.run(line).well().says(" and 4 unpriced");
    }
    let known = &scene.run("cost --json").well().json()[0]["total"]["cost"];
    assert!(known["amount"].as_i64().unwrap() > 0 && known["unpriced"] == 4, "{known}");
    let bill = bill(&scene);
    assert!(bill["nanos"].as_i64().unwrap() > 0 && bill["unpriced_attempts"] == 4, "{bill}");
    // A unit that was never executed has cost nothing, which is known.
    scene.write("later.jsonl", "{\"id\":\"later\",\"prompt\":\"p\"}\n");
    scene.run("queue later.jsonl --job later").well();
    scene.run("status --job later").well().says("$0.0000");
}
