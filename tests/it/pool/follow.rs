//! Following a conversation while it happens.

use std::thread;
use std::time::Duration;

use workcrew::repository::By;
use workcrew::{ExecuteError, Message, NewUnit, RetryPolicy, Stop, UnitHandle};

use super::{World, stage, until};
use crate::support::Up as _;

/// All that a unit says, as `1.2 text` for the second message of the first attempt.
fn all(handle: &UnitHandle) -> Vec<String> {
    handle.messages().map(|said| line(&said.unwrap())).collect()
}

fn line(said: &workcrew::pool::Said) -> String {
    format!("{}.{} {}", said.attempt_number, said.number, said.message.text())
}

#[test]
fn a_follower_hears_each_message_as_it_is_said_through_all_attempts() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    call.say("before");
    let mut messages = handle.messages();
    let mut hear = || line(&messages.next().unwrap().unwrap());
    assert_eq!(hear(), "1.1 before");
    call.say("while");
    assert_eq!(hear(), "1.2 while");
    call.act(|call| call.partial("unfini"));
    call.fail(ExecuteError::retry("again"));
    let call = stage.next();
    call.say("once more");
    assert_eq!(hear(), "1.3 unfini", "what was cut off is told too");
    assert_eq!(hear(), "2.1 once more");
    let late = handle.clone();
    call.say("last");
    call.succeed("done");
    assert_eq!(hear(), "2.2 last");
    assert!(messages.next().is_none());
    let everything = ["1.1 before", "1.2 while", "1.3 unfini", "2.1 once more", "2.2 last"];
    assert_eq!(all(&late), everything, "who comes late hears everything");
    assert_eq!(all(&late), everything);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(all(&late), everything);
    world.assert_clean();
}

#[test]
fn a_slow_follower_hears_everything_in_order_and_need_not_wait_for_the_end() {
    const COUNT: usize = 1_000;
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let mut messages = handle.messages();
    call.say("0");
    assert_eq!(line(&messages.next().unwrap().unwrap()), "1.1 0");
    call.act(|call| (1..COUNT).for_each(|number| call.message(Message::assistant(number.to_string()))));
    // The execution goes on and says nothing more for now.
    for number in 1..COUNT {
        assert_eq!(line(&messages.next().unwrap().unwrap()), format!("1.{} {number}", number + 1));
    }
    call.say("more");
    assert_eq!(line(&messages.next().unwrap().unwrap()), format!("1.{} more", COUNT + 1));
    call.succeed("done");
    assert!(messages.next().is_none());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn many_follow_at_their_own_pace_and_slow_nobody_down() {
    const COUNT: usize = 700;
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let never_read = handle.messages();
    thread::scope(|threads| {
        let followers: Vec<_> = (0..4).map(|_| threads.spawn(|| all(&handle))).collect();
        call.act(|call| (0..COUNT).for_each(|number| call.message(Message::assistant(number.to_string()))));
        call.succeed("done");
        for follower in followers {
            let heard = follower.join().unwrap();
            let expected: Vec<String> = (0..COUNT).map(|number| format!("1.{} {number}", number + 1)).collect();
            assert_eq!(heard, expected);
        }
    });
    assert_eq!(never_read.count(), COUNT);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn it_ends_when_the_unit_does_however_that_is() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).retry(RetryPolicy::fixed(Duration::from_secs(60))).up();
    let cancelled = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("again"));
    let left = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    let call = stage.next();
    call.say("hi");
    call.fail(ExecuteError::retry("again"));
    until(|| pool.stats().pending == 2);
    thread::scope(|threads| {
        let (cancelled_said, left_said) = (threads.spawn(|| all(&cancelled)), threads.spawn(|| all(&left)));
        cancelled.cancel(By::whom("ada")).unwrap();
        assert!(cancelled_said.join().unwrap().is_empty());
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(left_said.join().unwrap(), ["1.1 hi"]);
    });
    world.assert_clean();
}
