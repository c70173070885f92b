//! The table and the conversations, by clicks and keys.

use serde_json::{Value, json};
use workcrew::audit::report::Report;
use workcrew::repository::{By, UnitFilter};
use workcrew::{Archive, NewJob, NewUnit, Repository, UnitStatus};

use super::browser::Browser;
use super::scene::{Scene, story};

/// The ids of the rows that are elements, from the top.
fn ids(browser: &mut Browser) -> Vec<String> {
    let ids = browser.eval("[...document.querySelectorAll('.unit-id')].map((id) => id.textContent)");
    serde_json::from_value(ids).unwrap()
}

#[test]
fn units_are_filtered_by_what_they_are() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::batch(60);
    let other = scene.repository.create_job(&NewJob::named("another job")).unwrap().id;
    scene.repository.queue_unit(other, &NewUnit::new("elsewhere").prompt("Later.")).unwrap();
    browser.open(&scene.write(&Report::new()).0, "");
    assert_eq!(browser.text("#count"), "61 units");

    let failed = scene.repository.units(&UnitFilter::default().status(UnitStatus::Failed), 0, 100).unwrap().items;
    let failed: Vec<String> = failed.iter().map(|unit| unit.id.to_string()).collect();
    browser.choose("#filter-status", "failed");
    assert_eq!(ids(&mut browser), failed);
    assert_eq!(browser.text("#count"), format!("{} of 61 units", failed.len()));
    browser.click("#clear");
    assert_eq!(browser.text("#count"), "61 units");

    browser.choose("#filter-job", "another job");
    assert_eq!(ids(&mut browser), ["elsewhere"]);
    browser.choose("#filter-job", "any");
    browser.choose("#filter-model", "simulated-1");
    assert_eq!(browser.text("#count"), "60 of 61 units");
    browser.click("#clear");

    // A kind of failure by its bar in the picture: also of units that succeeded in the end.
    let units = scene.repository.summaries(&UnitFilter::default(), 0, 100).unwrap().items;
    let kind = browser.text("#failures button .bar-name");
    let met = |unit: &&workcrew::repository::UnitSummary| {
        unit.attempts
            .iter()
            .any(|attempt| attempt.attempt.failure.as_ref().is_some_and(|failure| failure.kind.as_str() == kind))
    };
    let expected: Vec<String> = units.iter().filter(met).map(|unit| unit.id.to_string()).collect();
    browser.click("#failures button");
    assert_eq!(browser.text("#count"), format!("{} of 61 units", expected.len()));
    assert_eq!(ids(&mut browser), expected);
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn units_are_sorted_by_a_click_on_a_column() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::batch(60);
    browser.open(&scene.write(&Report::new()).0, "");
    let units = scene.repository.summaries(&UnitFilter::default(), 0, 100).unwrap().items;
    let sorted = |compare: &dyn Fn(&workcrew::repository::UnitSummary) -> i64| {
        let mut units: Vec<_> = units.iter().collect();
        units.sort_by_key(|unit| (compare(unit), unit.key));
        units.iter().map(|unit| unit.id.to_string()).collect::<Vec<_>>()
    };
    let starts = |ids: Vec<String>, expected: &[String]| assert_eq!(ids, expected[..ids.len()]);

    browser.click("th.col-cost button");
    assert_eq!(browser.eval("document.querySelector('th.col-cost').getAttribute('aria-sort')"), "descending");
    starts(ids(&mut browser), &sorted(&|unit| -unit.cost().amount.nanos()));
    browser.click("th.col-cost button");
    starts(ids(&mut browser), &sorted(&|unit| unit.cost().amount.nanos()));
    browser.click("th.col-cost button");
    starts(ids(&mut browser), &sorted(&|unit| unit.key.0));
    browser.click("th.col-attempts button");
    starts(ids(&mut browser), &sorted(&|unit| -(unit.attempts.len() as i64)));
    browser.click("th.col-unit button");
    browser.click("th.col-unit button");
    starts(ids(&mut browser), &sorted(&|unit| -unit.key.0));
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn a_search_finds_ids_prompts_outputs_and_errors() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = story();
    browser.open(&scene.write(&Report::new()).0, "");
    let mut search = |text: &str| {
        browser.click("#search");
        browser.eval("document.querySelector('#search').select()");
        browser.write(text);
        browser.until(&format!("document.querySelector('#search').value === {} && !document.querySelector('#clear').hidden && /of 4 units|^4 units/.test(document.querySelector('#count').textContent)", json!(text)));
        // The search waits a little for more to be typed.
        browser.eval("new Promise((done) => setTimeout(done, 120))");
        ids(&mut browser)
    };
    assert_eq!(search("GIVEN"), ["given-up"], "by its id, whatever the case");
    assert_eq!(search("impossible"), ["given-up"], "by its prompt");
    assert_eq!(search("say alpha"), ["tried/twice"], "by its output");
    assert_eq!(search("is overloaded"), ["tried/twice"], "by the error of an attempt");
    assert_eq!(search("nowhere to be found"), [""; 0]);
    assert!(
        browser.text("#nothing").contains("No unit")
            && !browser.eval("document.querySelector('#nothing').hidden").as_bool().unwrap()
    );
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn a_conversation_shows_who_spoke_and_every_attempt() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = story();
    browser.open(&scene.write(&Report::new()).0, "");
    browser.click("tr.unit[data-key='1'] .col-status");
    browser.until("document.querySelector('#reader').open");
    assert_eq!(browser.text("#reader-title"), "tried/twice");
    let attempts = browser.eval("[...document.querySelectorAll('.attempt > summary')].map((line) => line.textContent)");
    let attempts: Vec<String> = serde_json::from_value(attempts).unwrap();
    assert!(
        attempts.len() == 2 && attempts[0].contains("failed") && attempts[0].contains("overloaded"),
        "{attempts:?}"
    );
    assert!(attempts[1].contains("completed") && attempts[1].contains("w2"), "{attempts:?}");
    let speakers = browser.eval("[...document.querySelectorAll('.attempt:nth-of-type(2) .speaker, .attempt .speaker')].map((who) => who.textContent)");
    assert_eq!(
        speakers,
        json!(["User", "Assistant", "System", "User", "Assistant", "User", "Assistant"]),
        "tools stand with their calls"
    );

    assert_eq!(browser.text(".turn.partial .text"), "The notes begin with");
    assert!(browser.text(".partial-note").contains("ended before"));
    assert!(browser.text(".attempt .failure").contains("the provider is overloaded"));
    assert!(browser.text("#reader-body").contains("A picture, image/png, 25 bytes: pictures are not shown."));
    assert!(!browser.text("#reader-body").contains("example.org"));

    // Tools and thoughts are folded, a call with its answer.
    assert!(!browser.text("#reader-body").contains("# Notes"));
    browser.click(".tool summary");
    browser.until("document.querySelector('.tool').open && document.querySelector('.tool .answer')");
    let tool = browser.text(".tool");
    assert!(tool.contains("read_file") && tool.contains("notes/a.md") && tool.contains("# Notes\nalpha"), "{tool}");
    browser.click(".tool + .tool summary");
    browser.until("document.querySelector('.tool + .tool .answer.bad')");
    assert!(
        browser.text(".tool + .tool").contains("failed")
            && browser.text(".tool + .tool .answer.bad").contains("exit status 1")
    );
    browser.click(".thinking summary");
    browser.until("document.querySelector('.thinking .text')");
    assert_eq!(browser.text(".thinking .text"), "I had better look.");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn what_runs_and_what_waits_is_shown_as_that() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = story();
    let (path, _) = scene.write(&Report::new());
    browser.open(&path, "#unit=stories/running");
    let shown = browser.text("#reader-body");
    assert!(
        shown.contains("open") && shown.contains("still being written") && shown.contains("So far I have"),
        "{shown}"
    );
    browser.open(&path, "#unit=stories/waiting");
    let shown = browser.text("#reader-body");
    assert!(
        shown.contains("pending") && shown.contains("Later.") && shown.contains("Nobody has tried it yet."),
        "{shown}"
    );
}

#[test]
fn purged_contents_are_said_to_be_purged() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = story();
    let later = chrono::Utc::now() + chrono::TimeDelta::days(1);
    scene.repository.purge(later, &By::new("somebody", "it was asked for")).unwrap();
    browser.open(&scene.write(&Report::new()).0, "#unit=stories/tried%2Ftwice");
    let shown = browser.text("#reader-body");
    assert!(shown.contains("The contents were purged at "), "{shown}");
    assert!(shown.contains("The content of this message was purged.") && !shown.contains("alpha"), "{shown}");
    browser.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
    browser.until("document.querySelector('.journal')");
    let journal = browser.text(".journal");
    assert!(journal.contains("purge") && journal.contains("somebody: it was asked for"), "{journal}");
}

#[test]
fn a_link_to_a_unit_opens_it_and_keys_are_enough_to_come_and_go() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::batch(60);
    let (path, _) = scene.write(&Report::new());
    let is_open = "document.querySelector('#reader').open";
    let unit = |browser: &mut Browser| browser.text("#reader-title");
    browser.open(&path, "#unit=batch/page-050");
    assert_eq!((browser.eval(is_open), unit(&mut browser).as_str()), (Value::Bool(true), "page-050"));
    let is_in_sight = "(() => { const box = document.querySelector('tr.current').getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight; })()";
    assert_eq!(browser.eval(is_in_sight), true, "its row was scrolled to");
    assert!(browser.text("tr.current").contains("page-050"));
    browser.click("#later");
    browser.until("document.querySelector('#reader-title').textContent === 'page-051'");
    assert_eq!(browser.eval("location.hash"), "#unit=batch/page-051");
    browser.call("Page.enable", json!({}));
    browser.eval("history.back()");
    browser.until("document.querySelector('#reader-title').textContent === 'page-050'");

    browser.press("Escape");
    browser.until("!document.querySelector('#reader').open && location.hash === ''");
    assert_eq!(browser.eval("document.activeElement.textContent"), "page-050", "one is where one was");
    browser.press("Tab");
    assert_eq!(browser.eval("document.activeElement.textContent"), "page-051");
    browser.press("Enter");
    browser.until("document.querySelector('#reader').open");
    assert_eq!(unit(&mut browser), "page-051");

    // The link that is copied is the one that opens it; where nothing can be copied it says so.
    let grant = json!({ "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"] });
    browser.call("Browser.grantPermissions", grant);
    browser.click("#copy");
    browser.until("document.querySelector('#copy').textContent === 'Copied'");
    let copied = browser.eval("navigator.clipboard.readText()");
    assert_eq!(copied.as_str().unwrap(), format!("file://{}#unit=batch/page-051", path.display()));
    // A job by its number, for those who only have that.
    browser.open(&path, &format!("#unit={}/page-007", scene.job.0));
    assert_eq!(unit(&mut browser), "page-007");
    browser.open(&path, "#unit=batch/%E0%A4%A");
    assert_eq!(browser.eval(is_open), false, "what is no link opens nothing");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}
