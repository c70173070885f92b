//! That nothing which may be printed makes it panic, or is lost.

use proptest::prelude::*;

use super::*;
use crate::chain::Hash;
use crate::conversation::{Part, Truncation};
use crate::executor::agent_cli::replay::exit;
use crate::executor::process::{How, Line, Reader};

/// The lines of all captures.
fn lines() -> Vec<String> {
    let names = Capture::names("claude");
    names.iter().step_by(3).flat_map(|name| Capture::of(name).lines).collect()
}

fn survives(lines: &[Vec<u8>]) {
    let scene = scene();
    let played = Played::of(ClaudeCli::new().reader(&scene.call()), &scene, lines, &exit(How::Exited(1), "no"));
    drop(played);
    let kept = scene.messages().len();
    assert!(kept <= lines.len() + 1, "{kept} messages of {} lines", lines.len());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn arbitrary_bytes_are_kept(bytes in prop::collection::vec(any::<u8>(), 1..200)) {
        let scene = scene();
        let mut reader = ClaudeCli::new().reader(&scene.call());
        reader.read(Line { bytes: &bytes, truncation: None }, &scene.call());
        if !bytes.trim_ascii().is_empty() {
            let messages = scene.messages();
            let raw = messages[1].raw.as_ref().unwrap();
            prop_assert_eq!(raw.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn captured_lines_cut_anywhere_and_in_any_order_do_no_harm(
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 1..12),
    ) {
        let all = lines();
        let pick = |(line, cut, is_cut): &(prop::sample::Index, prop::sample::Index, bool)| {
            let line = line.get(&all[..]).as_bytes();
            if *is_cut { line[..cut.index(line.len())].to_vec() } else { line.to_vec() }
        };
        survives(&picks.iter().map(pick).collect::<Vec<_>>());
    }

    #[test]
    fn any_value_in_any_place_does_no_harm(
        line in any::<prop::sample::Index>(), place in any::<prop::sample::Index>(), value in 0..9_usize,
    ) {
        let values = [
            json!(null), json!(true), json!(-1), json!(u64::MAX), json!(1e300), json!(""), json!([]), json!({}),
            json!([{ "type": [] }]),
        ];
        let all = lines();
        let mut event: Value = serde_json::from_str(all[line.index(all.len())].as_str()).unwrap();
        let mut places = Vec::new();
        pointers(&event, String::new(), &mut places);
        *event.pointer_mut(&places[place.index(places.len())]).unwrap() = values[value].clone();
        survives(&[event.to_string().into_bytes(), event.to_string().into_bytes()]);
    }
}

/// Where there are values.
fn pointers(value: &Value, here: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| {
            pointers(value, format!("{here}/{}", name.replace('~', "~0").replace('/', "~1")), found);
        }),
        Value::Array(items) => {
            (0..).zip(items).for_each(|(number, value): (usize, _)| pointers(value, format!("{here}/{number}"), found));
        }
        _ => {}
    }
    found.push(here);
}

#[test]
fn the_order_of_keys_makes_no_difference() {
    // Parsed into a map that sorts them, and printed again.
    for name in Capture::names("claude") {
        let mut capture = Capture::of(&name);
        let before = played_as(&capture);
        for line in &mut capture.lines {
            *line = serde_json::from_str::<Value>(line).unwrap().to_string();
        }
        assert_eq!(played_as(&capture), before, "{name}");
    }
}

fn played_as(capture: &Capture) -> String {
    let scene = scene();
    let played = play(&ClaudeCli::new(), &scene, capture);
    let parts: Vec<Vec<Part>> = scene.messages().into_iter().map(|message| message.parts).collect();
    format!("{:?} {parts:?}", played.result)
}

#[test]
fn what_is_nested_too_deep_is_kept_as_text() {
    let deep = format!("{{\"type\":\"assistant\",\"message\":{}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let scene = scene();
    let mut reader = ClaudeCli::new().reader(&scene.call());
    reader.read(Line { bytes: deep.as_bytes(), truncation: None }, &scene.call());
    let messages = scene.messages();
    assert_eq!(messages[1].text(), deep);
    assert_eq!(messages[1].raw.as_ref().unwrap().as_bytes(), deep.as_bytes());
}

#[test]
fn a_line_that_was_too_long_is_kept_with_what_it_really_was() {
    let truncation = Truncation { total_bytes: 1 << 30, hash: Hash::of(b"all of it") };
    let scene = scene();
    let mut reader = ClaudeCli::new().reader(&scene.call());
    let line = Line { bytes: b"{\"type\":\"result\",\"is_error\":false}", truncation: Some(truncation) };
    reader.read(line, &scene.call());
    assert_eq!(scene.messages()[1].truncated, Some(truncation));
    let result = reader.conclude(&exit(How::Exited(0), ""), &scene.call());
    assert!(result.unwrap_err().to_string().starts_with("no_result: "));
}

#[test]
fn blank_lines_and_a_byte_order_mark_say_nothing() {
    let scene = scene();
    let mut lines: Vec<Vec<u8>> = Capture::of("claude-text").lines.into_iter().map(String::into_bytes).collect();
    lines[0].splice(0..0, [0xef, 0xbb, 0xbf]);
    lines.insert(1, b" \r".to_vec());
    lines.insert(1, Vec::new());
    let played = Played::of(ClaudeCli::new().reader(&scene.call()), &scene, &lines, &exit(How::Exited(0), ""));
    assert!(played.result.is_ok());
    assert_eq!(scene.messages().len(), 4);
}
