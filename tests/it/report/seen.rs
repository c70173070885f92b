//! The page as a whole: its numbers, its colours, what it says of what is not in it.

use chrono::{TimeDelta, Utc};
use serde_json::json;
use workcrew::audit::report::Report;
use workcrew::repository::By;
use workcrew::{Archive, AttemptReport, NewUnit, Next, Outcome, Repository, UnitStatus};

use super::browser::Browser;
use super::scene::{self, Scene};

#[test]
fn the_numbers_at_the_top_are_those_of_the_archive() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::batch(60);
    let (path, written) = scene.write(&Report::new());
    assert!(written.is_complete(), "{written:?}");
    browser.open(&path, "");

    let counts = scene.repository.counts(scene.job).unwrap();
    assert!(counts.failed > 0 && counts.completed > 40, "{counts:?}: there is something to see");
    let lead = browser.text("#lead");
    let expected = format!("{} of 60 units completed, {} failed.", counts.completed, counts.failed);
    assert!(lead.starts_with(&expected), "{lead}");
    assert_eq!(browser.text("#statuses [data-count=COMPLETED]"), counts.completed.to_string());
    assert_eq!(browser.text("#statuses [data-count=FAILED]"), counts.failed.to_string());

    let costs = scene.repository.costs(Some(scene.job)).unwrap();
    let cost = format!("{:.4}", costs.total().amount);
    assert!(costs.total().is_known() && lead.contains(&format!("cost {cost}.")), "{lead}, {cost}");
    assert_eq!(browser.text("#tile-cost .value"), cost);
    let tokens = browser.eval("document.querySelector('#tile-tokens .value').title.replaceAll(',', '')");
    assert_eq!(tokens, costs.tokens().total().to_string());

    let units = scene.repository.summaries(&Default::default(), 0, 1_000).unwrap().items;
    let attempts: Vec<_> = units.iter().flat_map(|unit| &unit.attempts).collect();
    assert_eq!(browser.text("#tile-attempts .value"), attempts.len().to_string());
    let failed = attempts.iter().filter(|attempt| attempt.attempt.outcome == Some(Outcome::Failed)).count();
    assert_eq!(browser.text("#outcomes [data-count=FAILED]"), failed.to_string());
    assert_eq!(browser.count("#timeline rect.bar"), attempts.len() as u64, "a bar for each attempt");
    assert_eq!(browser.count("#timeline text.lane"), 4, "a lane for each worker");
    let by_kind = browser.eval(
        "[...document.querySelectorAll('#failures .bar-value')].reduce((sum, bar) => sum + Number(bar.textContent), 0)",
    );
    assert_eq!(by_kind, failed as u64);
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn an_unknown_price_is_never_nothing() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = scene::story();
    let (path, _) = scene.write(&Report::new());
    browser.open(&path, "");
    let lead = browser.text("#lead");
    assert!(lead.contains("cost at least $0.0700, and 1 attempt whose price is unknown."), "{lead}");
    assert_eq!(browser.text("#tile-cost .value"), "at least $0.0700");
    assert_eq!(
        browser.eval("[...document.querySelectorAll('#models .bar-value')].map((bar) => bar.textContent)"),
        json!(["$0.0700", "unknown price"])
    );
    let cell = "[...document.querySelectorAll('tr.unit')].find((row) => row.textContent.includes('given-up')).querySelector('.col-cost').textContent";
    assert_eq!(browser.eval(cell), "unknown");
    assert!(!browser.eval("document.querySelector('main').textContent.includes('$0.00 ')").as_bool().unwrap());
}

#[test]
fn where_nobody_told_a_price_there_is_none_and_the_pictures_that_are_left_fill_their_row() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("silent");
    let finish = |id: &str, report: &AttemptReport| {
        let lease = scene.claim(&NewUnit::new(id).prompt("Go."), "w1");
        scene.repository.finish(&lease, report).unwrap();
    };
    finish("good", &AttemptReport::completed());
    finish("bad", &scene::failed("refused", "the model refuses", Next::GiveUp));
    let (path, _) = scene.write(&Report::new());
    browser.open(&path, "");
    let lead = browser.text("#lead");
    assert!(lead.ends_with("; what it cost is not known."), "{lead}");
    let tile = ["#tile-cost .value", "#tile-cost .note", "#tile-tokens .value"].map(|part| browser.text(part));
    assert_eq!(tile, ["unknown", "2 attempts whose price is unknown", "–"]);
    assert!(!browser.text("main").contains("$0"));
    let left = "[...document.querySelectorAll('.card:not(.wide)')].filter((card) => card.offsetParent)";
    let edges = browser.eval(&format!(
        "[{left}.length, {left}.at(-1).getBoundingClientRect().right === document.querySelector('.wide').getBoundingClientRect().right]"
    ));
    assert_eq!(edges, json!([2, true]));
    scene.repository.purge(Utc::now() + TimeDelta::days(1), &By::whom("ada")).unwrap();
    let (path, _) = scene.write(&Report::new());
    browser.open(&path, "");
    assert_eq!(
        browser.eval("[...document.querySelectorAll('.unit-note')].map((note) => note.textContent)"),
        json!(["contents were purged", "contents were purged"])
    );
    browser.open(&path, "#unit=silent/bad");
    assert_eq!(browser.text("#reader-body .failure"), "refused");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn light_and_dark_follow_the_system_until_the_button_says_otherwise() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = scene::story();
    let (path, _) = scene.write(&Report::new());
    let paper = "getComputedStyle(document.body).backgroundColor";
    let (light, dark) = (json!("rgb(246, 246, 243)"), json!("rgb(19, 22, 25)"));
    browser.scheme("dark");
    browser.open(&path, "");
    assert_eq!(browser.eval(paper), dark);
    browser.scheme("light");
    assert_eq!(browser.eval(paper), light);
    browser.click("#theme");
    assert_eq!(browser.eval(paper), dark);
    browser.click("#theme");
    assert_eq!(browser.eval(paper), light);
    browser.scheme("dark");
    assert_eq!(browser.eval(paper), light, "somebody has chosen");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

/// Every text against what is behind it, by the formula of the Web Content Accessibility Guidelines: the smallest contrast.
const CONTRAST: &str = "(() => {
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => { const [r, g, b] = parts(colour).map((part) => { const share = part / 255; return share <= .04045 ? share / 12.92 : ((share + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
    const behind = (element) => { for (; element; element = element.parentElement) { const colour = getComputedStyle(element).backgroundColor; if (parts(colour)[3] !== 0) return colour; } return 'rgb(255, 255, 255)'; };
    let worst = [21, ''];
    for (const element of document.querySelectorAll('main *, dialog[open] *')) {
        const isText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        if (!isText || element.closest('svg, noscript, option, :disabled') || !element.checkVisibility()) continue;
        const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
        const contrast = (one + .05) / (other + .05);
        if (contrast < worst[0]) worst = [contrast, element.outerHTML.slice(0, 150)];
    }
    return worst; })()";

#[test]
fn every_text_stands_out_enough_in_light_and_in_dark() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = scene::story();
    let (path, _) = scene.write(&Report::new());
    for scheme in ["light", "dark"] {
        browser.scheme(scheme);
        for fragment in ["", "#unit=stories/tried%2Ftwice", "#unit=stories/given-up"] {
            browser.open(&path, fragment);
            browser.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
            let worst = browser.eval(CONTRAST);
            assert!(worst[0].as_f64().unwrap() >= 4.5, "{scheme} {fragment}: {worst}");
        }
    }
}

#[test]
fn on_a_phone_nothing_is_wider_than_the_screen() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = scene::story();
    let (path, _) = scene.write(&Report::new());
    browser.size(360, 740);
    for fragment in ["", "#unit=stories/tried%2Ftwice"] {
        browser.open(&path, fragment);
        browser.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
        let widths =
            browser.eval("[document.documentElement.scrollWidth, document.querySelector('#reader-body').scrollWidth]");
        assert!(widths[0].as_u64().unwrap() <= 360 && widths[1].as_u64().unwrap() <= 360, "{fragment}: {widths}");
    }
}

#[test]
fn what_was_left_out_is_said_and_how_to_see_it() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::batch(60);
    let (path, written) = scene.write(&Report::new().limit_units(30).limit_bytes(40_000).limit_text_bytes(40));
    assert!(!written.is_complete());
    browser.open(&path, "");
    let notices = browser.text("#notices");
    for expected in [
        "The table has 30 of 60 units",
        "This page holds 39.1 KiB of contents",
        "are longer than 40 bytes",
        "workcrew show UNIT",
    ] {
        assert!(notices.contains(expected), "{notices}");
    }
    assert!(browser.text("#lead").contains(" of 60 units completed"), "the numbers are those of all");
    assert_eq!(browser.text("#count"), "30 units");

    // The last row of all has no contents.
    let last = scene.repository.summaries(&Default::default(), 0, 1_000).unwrap().items;
    let is_in = |status: UnitStatus| move |unit: &&workcrew::repository::UnitSummary| unit.status == status;
    let failed = last.iter().filter(is_in(UnitStatus::Failed)).count();
    let unit = last.iter().filter(is_in(UnitStatus::Completed)).nth(29 - failed).unwrap();
    browser.open(&path, &format!("#unit=batch/{}", unit.id));
    let shown = browser.text("#reader-body");
    assert!(
        shown.contains(&format!(
            "no room for the contents of this unit in this page. To see them: workcrew show {}",
            unit.id
        )),
        "{shown}"
    );
    browser.open(&path, "#unit=batch/page-999");
    assert!(browser.text("#notices").contains("not in this page. To see it: workcrew show page-999"));
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn an_empty_archive_has_a_page_too() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("nothing yet");
    let (path, written) = scene.write(&Report::new());
    assert!(written.is_complete());
    browser.open(&path, "");
    assert_eq!(browser.text("#lead"), "There are no units.");
    assert_eq!(browser.count("figure"), 0, "nothing is drawn of nothing");
    browser.size(700, 700);
    browser.until("innerWidth === 700");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}
