//! Much of everything: many units, long texts, little memory.

use std::io;

use serde_json::json;
use workcrew::audit::report::{self, Report};
use workcrew::repository::Intake;
use workcrew::{AttemptReport, Message, NewUnit, Repository};

use super::browser::Browser;
use super::scene::Scene;
use crate::memory;

/// A job of units that have all completed, each with so many messages of so many bytes.
fn large(units: usize, messages: usize, message_bytes: usize) -> Scene {
    let scene = Scene::new("large");
    let words = "lorem ipsum dolor sit amet consetetur ".repeat(message_bytes / 38 + 1);
    let said: Vec<Message> = (0..messages)
        .map(|number| {
            let text = format!("{number}: {}", &words[..message_bytes]);
            if number.is_multiple_of(2) { Message::user(text) } else { Message::assistant(text) }
        })
        .collect();
    for number in 0..units {
        let lease =
            scene.claim(&NewUnit::new(format!("unit-{number:05}")).prompt("Say much."), &format!("w{}", number % 8));
        scene.repository.append(&lease, 0, &said).unwrap();
        scene.repository.finish(&lease, &AttemptReport::completed().output("Much.")).unwrap();
    }
    scene
}

#[test]
fn of_a_thousand_units_with_twenty_messages_only_what_is_in_sight_is_made() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = large(1_000, 20, 500);
    let (path, written) = scene.write(&Report::new());
    assert_eq!((written.rows, written.messages, written.is_complete()), (1_000, 20_000, true));
    browser.open(&path, "");
    let rows = browser.count("tr.unit");
    assert!((10..80).contains(&rows), "{rows} rows are elements");
    assert_eq!(browser.count(".turn"), 0);
    assert_eq!(browser.eval("document.querySelector('#table').getAttribute('aria-rowcount')"), "1001");

    browser.eval("scrollTo(0, document.documentElement.scrollHeight)");
    browser.until("[...document.querySelectorAll('.unit-id')].some((id) => id.textContent === 'unit-00999')");
    let rows = browser.count("tr.unit");
    assert!(rows < 80, "{rows} rows are elements");
    browser.click("tr.unit:nth-last-child(2) .unit-id");
    browser.until("document.querySelector('#reader').open");
    assert_eq!((browser.text("#reader-title").as_str(), browser.count(".turn")), ("unit-00999", 20));
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn a_token_of_ten_megabytes_is_shown_bit_by_bit() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("long");
    let token = "x".repeat(10_000_000);
    let lease = scene
        .claim(&NewUnit::new("long").prompt(&token[..500_000]).payload(json!({ "token": &token[..100_000] })), "w1");
    scene.repository.append(&lease, 0, &[Message::user("Say it."), Message::assistant(&token)]).unwrap();
    scene.repository.finish(&lease, &AttemptReport::completed()).unwrap();

    let (path, written) = scene.write(&Report::new().limit_text_bytes(16 * 1024 * 1024));
    assert!(written.is_complete() && written.bytes > 10_000_000, "{written:?}");
    browser.open(&path, "#unit=long/long");
    let shown = "document.querySelector('.role-assistant .text').textContent.length";
    assert_eq!(browser.eval(shown), 4_000);
    assert_eq!(browser.text(".role-assistant .more"), "Show more (9,996,000 characters left)");
    browser.click(".role-assistant .more");
    browser.until(&format!("{shown} === 54_000"));
    let fits = "[document.documentElement.scrollWidth <= innerWidth, document.querySelector('#reader-body').scrollWidth <= 900]";
    assert_eq!(browser.eval(fits), json!([true, true]));

    let (path, written) = scene.write(&Report::new());
    assert!(written.texts_cut >= 3 && written.bytes < 1_000_000, "{written:?}");
    browser.open(&path, "#unit=long/long");
    assert_eq!(browser.text(".role-assistant .cut"), "This page has 64 KiB of 9.5 MiB. All of it: workcrew show long");
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn names_that_strangers_gave_to_models_take_no_more_room_than_names() {
    let Some(mut browser) = Browser::start() else { return };
    let scene = Scene::new("names");
    for number in 0..20 {
        let lease = scene.claim(&NewUnit::new(format!("u{number}")).prompt("Go."), "w1");
        let model = format!("<img src=x onerror=alert(1)>\u{1b}[2J{number}{}", "m".repeat(100_000));
        let report = AttemptReport::completed().charge(super::scene::charge(&model, Some(1)));
        scene.repository.finish(&lease, &report).unwrap();
    }
    let (path, written) = scene.write(&Report::new());
    assert!(written.bytes < 300_000, "{written:?}");
    browser.open(&path, "");
    assert_eq!(browser.count("#models .bar-row"), 8, "and the others are counted");
    browser.click("#models button.bar-row");
    assert_eq!(browser.text("#count"), "1 of 20 units");
    let fits = "document.documentElement.scrollWidth <= innerWidth";
    assert_eq!((browser.eval(fits), browser.count("img")), (json!(true), 0));
    assert_eq!(browser.troubles(), Vec::<String>::new());
}

#[test]
fn memory_does_not_grow_with_the_archive() {
    let name = "report::large::memory_does_not_grow_with_the_archive";
    let write = || {
        // 96 MB in 24 conversations, and 20,000 units beside them.
        let scene = large(24, 20, 200_000);
        for thousand in 0..20 {
            let unit = |number: usize| NewUnit::new(format!("{thousand}-{number}")).prompt("Wait.");
            scene.repository.insert(scene.job, &(0..1_000).map(unit).collect::<Vec<_>>(), Intake::Open).unwrap();
        }
        let limits = Report::new().limit_bytes(u64::MAX).limit_text_bytes(usize::MAX).limit_units(u64::MAX);
        let written = report::write(&scene.repository, &limits, &mut io::sink()).unwrap();
        assert!(written.is_complete() && written.bytes > 96_000_000 && written.rows == 20_024, "{written:?}");
    };
    if let Some(peak_mib) = memory::peak_growth_mib(name, write) {
        assert!(peak_mib < 100, "{peak_mib} MiB");
    }
}
