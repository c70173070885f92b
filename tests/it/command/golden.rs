//! What each command prints, word for word; only times are left out. `WORKCREW_GOLDEN=write` writes what it is now.

use std::fs;
use std::path::Path;

use super::{Ran, Scene, noting, settled};

#[track_caller]
fn is_golden(name: &str, ran: &Ran) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/command/golden").join(format!("{name}.txt"));
    let actual = format!("{}--\n{}", settled(&ran.out), settled(&ran.err));
    if std::env::var_os("WORKCREW_GOLDEN").is_some() {
        fs::write(&path, &actual).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), actual, "{}", path.display());
}

/// A batch with all that there is to see: a unit that completed, one that failed, one that was cancelled, one that waits, and a job with a price.
fn batch() -> Scene {
    let scene = Scene::new();
    scene.write(
        "pages.jsonl",
        "{\"id\":\"good\",\"prompt\":\"Say yes.\"}\n{\"id\":\"bad\",\"prompt\":\"fail\",\"max_retries\":0}\n",
    );
    let then = "if [ $unit = fail ]; then echo no such page >&2; exit 3; fi; echo yes";
    is_golden("run", &scene.run_all(&noting("run pages.jsonl --workers 1", then)).code(1));
    scene.write(
        "more.jsonl",
        "{\"id\":\"unwanted\",\"prompt\":\"x\"}\n{\"id\":\"waiting\",\"prompt\":\"y\",\"type\":\"page\"}\n",
    );
    is_golden("queue", &scene.run("queue more.jsonl --job pages").well());
    is_golden("cancel", &scene.run("cancel unwanted").well());
    scene.write("priced.csv", "id,thing\np1,tea\np2,sea\n");
    scene.write("ask.txt", "Write about {{ thing }}.");
    is_golden("run_priced", &scene.run("run priced.csv --template ask.txt --workers 1 --seed 7 --latency 1ms").well());
    scene
}

#[test]
fn every_command_prints_what_it_always_printed() {
    let scene = batch();
    for (name, line) in [
        ("jobs", "jobs"),
        ("status", "status"),
        ("status_job", "status --job pages"),
        ("list", "list"),
        ("list_failed", "list --status failed --status cancelled"),
        ("list_page", "list --sort id --reverse -n 2 --offset 1"),
        ("list_type", "list --type page"),
        ("list_model", "list --model simulated-1 --worker w1 --since 1h"),
        ("show", "show good"),
        ("show_failed", "show bad --job pages"),
        ("show_conversation", "show p1"),
        ("show_unfolded", "show p1 --unfold"),
        ("cost", "cost"),
        ("cost_model", "cost --by model"),
        ("cost_status", "cost --by status --job pages"),
        ("failures", "failures"),
        ("slow", "slow --id waiting"),
        ("verify", "verify"),
        ("search", "search yes"),
        ("search_all", "search tea --in prompt --in tool --all -n 3"),
        ("search_nothing", "search nosuchword"),
        ("export", "export good --format markdown"),
        ("report", "report -o report.html"),
        ("backup", "backup copy.db"),
        ("requeue", "requeue bad"),
        ("requeue_status", "requeue --status cancelled --job pages"),
        ("purge", "purge --older-than 0s"),
        ("show_purged", "show good"),
    ] {
        is_golden(name, &scene.run(line).well());
    }
    is_golden("resume", &scene.run("resume --job pages --workers 1").code(1));
    is_golden("demo", &scene.run("demo --units 3 --db d.db").well());
    scene.run("list --db copy.db").well().says("waiting");
}

#[test]
fn what_is_printed_as_json_parses_line_by_line_and_has_its_fields() {
    let scene = batch();
    let all = |line: &str, lines: usize, fields: &[&str]| {
        let parsed = scene.run(line).well().json();
        assert_eq!(parsed.len(), lines, "{line}");
        for value in &parsed {
            for field in fields {
                assert!(value.get(field).is_some(), "{line}: no {field} in {value}");
            }
        }
        parsed
    };
    all("jobs --json", 2, &["job", "created_at", "counts", "cost", "has_template", "budget"]);
    all("status --json", 2, &["job", "counts", "cost", "running"]);
    all("list --json", 6, &["id", "status", "attempts", "failure", "created_at", "completed_at"]);
    all("slow --json -n 2", 2, &["id", "status"]);
    all("failures --json", 1, &["kind", "shape", "units", "attempts", "cost", "latest", "examples"]);
    let bill = all("cost --json", 1, &["groups", "total", "unpriced_models"]);
    assert_eq!(bill[0]["groups"].as_array().unwrap().len(), 2);
    all("search yes --json", 1, &["unit_id", "place", "kind", "snippet", "score"]);
    all("export", 6, &["format", "id", "status", "attempts"]);
    all("verify --json", 1, &["units", "findings"]);
    let diagnosis = scene.run("doctor --json").code(1).json();
    assert_eq!(diagnosis[0]["findings"][0]["concern"], "NOBODY_WORKS");
    let shown = scene.run("show good --json").well().json();
    assert_eq!(shown[0]["unit"]["output"], "yes");
    assert_eq!(shown[1]["attempt"]["outcome"], "COMPLETED");
    assert_eq!(shown[2]["role"], "assistant");
    let queued = scene.run("queue more.jsonl --job pages --json").well().json();
    assert_eq!(queued[0]["fed"]["known"], 2);

    let events = scene.run_all(&noting("resume --job pages --json", "echo ok")).code(1).json();
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert_eq!((named("attempt_started"), named("unit_ended"), named("summary")), (1, 1, 1));
    assert!(events.iter().all(|event| event["event"] == "summary" || event["at"].is_string()));
    let summary = events.last().unwrap();
    assert_eq!((&summary["counts"]["completed"], &summary["interrupted"]), (&2.into(), &false.into()));
}

#[test]
fn what_a_provider_sent_is_printed_byte_for_byte() {
    let scene = Scene::new();
    scene.write("a.jsonl", "{\"id\":\"a\",\"prompt\":\"x\"}\n");
    scene.run_all(&["run", "a.jsonl", "-q", "--", "printf", "one\\ttwo"]).well();
    assert_eq!(scene.run("show a --raw").well().out, "one\ttwo\n");
}

/// `1,200 units`, as it is told.
pub(super) fn thousands(units: usize) -> String {
    if units < 1_000 { format!("{units} units") } else { format!("{},{:03} units", units / 1_000, units % 1_000) }
}
