//! The worker's side of the library, as a parent sees it that is none of ours.

use std::process::{Command, Stdio};

use serde_json::json;
use workcrew::ipc::WorkerMessage;

use super::parent::Parent;
use super::*;

fn parent(world: &World) -> Parent {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(worker::ARGUMENTS).env(worker::ROLE, "good").stdout(Stdio::null());
    Parent::of(command, world)
}

fn taken(request_id: &str) -> Option<WorkerMessage> {
    Some(WorkerMessage::Session { request_id: request_id.to_owned(), session_id: None })
}

/// 002-F20, F37, F40 to F42, F44, F47.
#[test]
fn a_query_is_taken_before_anything_else_is_said_of_it_and_health_is_told_at_any_time() {
    let world = World::new();
    let mut parent = parent(&world);
    parent.ask("1.1", "echo hello");
    assert_eq!(parent.hear(), taken("1.1"));
    let Some(WorkerMessage::Complete { request_id, result }) = parent.hear() else { panic!("it was completed") };
    assert_eq!((request_id.as_str(), &result["output"]), ("1.1", &json!("hello")));
    parent.ask("1.2", "hang");
    assert_eq!(parent.hear(), taken("1.2"));
    assert!(matches!(parent.hear(), Some(WorkerMessage::Message { .. })));
    parent.tell(&json!({ "type": "health_check" }));
    assert!(matches!(parent.hear(), Some(WorkerMessage::HealthOk { queries_processed: 2, uptime }) if uptime > 0.0));
    parent.hang_up();
    parent.see_it_end();
    world.assert_gone();
}

/// 002-F17, F38.
#[test]
fn no_query_is_taken_while_another_is_in_hand() {
    let world = World::new();
    let mut parent = parent(&world);
    parent.ask("1.1", "wait");
    assert_eq!(parent.hear(), taken("1.1"));
    parent.ask("1.2", "echo hello");
    // One that is refused was never taken.
    let refused = loop {
        match parent.hear() {
            Some(WorkerMessage::Message { request_id, .. }) => assert_eq!(request_id, "1.1"),
            other => break other,
        }
    };
    assert_eq!(refused.as_ref().and_then(Parent::error_of), Some("1.2"), "{refused:?}");
    parent.tell(&json!({ "type": "cancel", "requestId": "1.1" }));
    assert_eq!(parent.hear_end().as_ref().and_then(Parent::error_of), Some("1.1"), "it had gone on");
    assert_eq!(parent.hear(), Some(WorkerMessage::Ready));
    parent.ask("1.3", "echo hello");
    assert!(matches!(parent.hear_end(), Some(WorkerMessage::Complete { .. })));
    parent.hang_up();
    parent.see_it_end();
}

#[test]
fn a_cancel_that_comes_too_late_is_answered_too() {
    let world = World::new();
    let mut parent = parent(&world);
    parent.ask("1.1", "echo hello");
    assert!(matches!(parent.hear_end(), Some(WorkerMessage::Complete { .. })));
    parent.tell(&json!({ "type": "cancel", "requestId": "1.1" }));
    assert_eq!(parent.hear(), Some(WorkerMessage::Ready));
    parent.hang_up();
    parent.see_it_end();
}

/// 002-F15, F39, F46.
#[test]
fn a_graceful_shutdown_waits_for_the_query_in_hand_and_another_does_not() {
    let world = World::new();
    let mut graceful = parent(&world);
    graceful.ask("1.1", "wait");
    assert_eq!(graceful.hear(), taken("1.1"));
    graceful.tell(&json!({ "type": "shutdown", "graceful": true }));
    graceful.tell(&json!({ "type": "health_check" }));
    assert!(matches!(graceful.hear_end(), Some(WorkerMessage::HealthOk { .. })), "it has heard that, and goes on");
    graceful.ask("1.2", "echo hello");
    assert_eq!(graceful.hear_end().as_ref().and_then(Parent::error_of), Some("1.2"), "but begins nothing");
    graceful.tell(&json!({ "type": "cancel", "requestId": "1.1" }));
    assert_eq!(graceful.hear_end().as_ref().and_then(Parent::error_of), Some("1.1"));
    assert_eq!(graceful.hear(), Some(WorkerMessage::Ready));
    assert_eq!(graceful.hear(), Some(WorkerMessage::ShutdownAck));
    graceful.see_it_end();
    let mut at_once = parent(&world);
    at_once.ask("1.1", "hang");
    assert_eq!(at_once.hear(), taken("1.1"));
    assert!(matches!(at_once.hear(), Some(WorkerMessage::Message { .. })), "it says nothing more");
    at_once.tell(&json!({ "type": "shutdown", "graceful": false }));
    assert_eq!(at_once.hear_end(), Some(WorkerMessage::ShutdownAck));
    at_once.see_it_end();
    world.assert_gone();
}
