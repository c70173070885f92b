//! The protocol as it is written down: every message in `docs/worker-protocol.md` is one, and none is missing.
//!
//! A block of the page says what its lines are: ```` ```json parent ````, ```` ```json worker ````, ```` ```json content ````,
//! ```` ```json then ````. In blocks of plain text, lines that begin with an arrow are messages, too.

use std::collections::BTreeSet;

use serde_json::Value;
use workcrew::ipc::{Content, Follow, ParentMessage, WorkerMessage, parent_types, worker_types};
use workcrew::{Part, WorkResult};

const PAGE: &str = include_str!("../../../docs/worker-protocol.md");

/// The lines of all blocks, each with what its block says that it is.
fn lines() -> Vec<(&'static str, &'static str)> {
    let mut lines = Vec::new();
    let mut block = None;
    for line in PAGE.lines() {
        match (line.strip_prefix("```"), block) {
            (Some(_), Some(_)) => block = None,
            (Some(what), None) => block = Some(what),
            (None, Some(what)) => lines.push((what, line)),
            (None, None) => {}
        }
    }
    lines
}

/// The messages of one side, in blocks and behind arrows.
fn messages(block: &str, arrow: &str) -> Vec<&'static str> {
    let of_side = |&(what, line): &(&'static str, &'static str)| match what {
        "text" => line.strip_prefix(arrow),
        what => (what == block).then_some(line),
    };
    lines().iter().filter_map(of_side).collect()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// That a content, or a message of several parts, is of a form that has a meaning.
fn assert_is_understood(content: &Value) {
    if let Content::Message(message) = Content::read(content.clone()) {
        let is_other = message.parts.iter().any(|part| matches!(part, Part::Other { .. }));
        assert!(!is_other || content["type"] == "other", "it is only kept: {content}");
    }
}

#[test]
fn all_that_is_written_down_of_what_a_parent_says_is_what_it_says() {
    let mut types = BTreeSet::new();
    for line in messages("json parent", "→ ") {
        let message = ParentMessage::from_line(line.as_bytes()).unwrap().unwrap_or_else(|| panic!("unknown: {line}"));
        assert_eq!(json(line), json(std::str::from_utf8(&message.to_line()).unwrap()), "no field is made up");
        types.insert(json(line)["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(types, parent_types::ALL.map(str::to_owned).into());
}

#[test]
fn all_that_is_written_down_of_what_a_worker_says_is_understood() {
    let mut types = BTreeSet::new();
    for line in messages("json worker", "← ") {
        let message = WorkerMessage::from_line(line.as_bytes()).unwrap().unwrap_or_else(|| panic!("unknown: {line}"));
        assert_eq!(json(line), json(std::str::from_utf8(&message.to_line()).unwrap()), "no field is made up");
        if let WorkerMessage::Message { content, .. } = &message {
            assert_is_understood(content);
        }
        if let WorkerMessage::Complete { result, .. } | WorkerMessage::Error { result: Some(result), .. } = message {
            assert!(result.is_null() || serde_json::from_value::<WorkResult>(result).is_ok(), "{line}");
        }
        types.insert(json(line)["type"].as_str().unwrap().to_owned());
    }
    assert_eq!(types, worker_types::ALL.map(str::to_owned).into());
}

#[test]
fn all_contents_and_all_that_may_follow_an_error_are_written_down() {
    let of = |block: &str| lines().into_iter().filter(|(what, _)| *what == block).map(|(_, line)| json(line)).collect();
    let contents: Vec<Value> = of("json content");
    contents.iter().for_each(assert_is_understood);
    let read: Vec<_> = contents.iter().cloned().map(Content::read).collect();
    assert!(read.iter().any(|content| matches!(content, Content::Partial(_))));
    assert!(read.iter().any(|content| matches!(content, Content::Usage(_))));
    assert!(read.iter().any(|content| matches!(content, Content::Checkpoint(_))));
    let follows: Vec<Value> = of("json then");
    for follow in &follows {
        let read: Follow = serde_json::from_value(follow.clone()).unwrap();
        assert_eq!(&serde_json::to_value(read).unwrap(), follow);
    }
    assert_eq!(follows.len(), 6);
}

#[test]
fn messages_are_nested_as_deep_as_is_said_and_no_deeper() {
    assert!(PAGE.contains("nested more than 127 levels deep"));
    // The message itself is a level.
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
        WorkerMessage::from_line(format!(r#"{{"type":"ready","x":{open}{close}}}"#).as_bytes())
    };
    assert!(nested(127).is_ok());
    assert!(nested(128).is_err());
}

#[test]
fn blocks_say_what_they_are() {
    let known = ["text", "json parent", "json worker", "json content", "json then"];
    for (what, line) in lines() {
        assert!(known.contains(&what), "```{what}: {line}");
        assert!(what != "text" || !line.starts_with('{'), "a message without an arrow: {line}");
    }
}
