//! What workers do: as they should, served by the library, or as they should not, by hand.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use workcrew::ipc::{self, SOCKET_VARIABLE};
use workcrew::{Call, Charge, ExecuteError, Message, Money, Part, Role, Tokens, WorkResult};

/// What this binary is started with to be a worker.
pub(super) const ARGUMENTS: [&str; 5] =
    ["workers::worker::worker", "--exact", "--ignored", "--nocapture", "--test-threads=1"];

/// The variable that says which role a worker plays.
pub(super) const ROLE: &str = "WORKCREW_TEST_WORKER";

/// The variable that says what is to be there before a worker connects.
pub(super) const MAY_CONNECT: &str = "WORKCREW_TEST_MAY_CONNECT";

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn worker() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match role.as_str() {
        "good" => ipc::serve(good).unwrap(),
        role => by_hand(role),
    }
    exit(0);
}

/// Does what the prompt says.
pub(super) fn good(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let (what, rest) = call.prompt().split_once(' ').unwrap_or((call.prompt(), ""));
    match what {
        "echo" => Ok(WorkResult::text(rest)),
        "pid" => Ok(WorkResult::text(std::process::id().to_string())),
        "where" => Ok(WorkResult::text(std::env::current_dir()?.to_str().unwrap())),
        "talk" => {
            call.session("s-1");
            call.message(Message::user(call.prompt()));
            call.message(Message::new(Role::Assistant).part(Part::thinking("hm")).raw(vec![0xff]));
            call.partial("so f");
            call.checkpoint(json!({ "page": call.attempt_number() }));
            let tokens = Tokens { input: 12, output: 4, ..Tokens::default() };
            let charge = Charge::reported("a-model", tokens, Money::from_nanos(96_000));
            call.usage(charge.clone());
            Ok(WorkResult::text("done")
                .json(json!({ "resumed": call.resume_session(), "had": call.last_checkpoint() })))
        }
        // So much the first time; then until it is told to stop.
        "spend" => {
            let (first, second) = rest.split_once(' ').unwrap();
            let charge = |amount: &str| Charge::reported("a-model", Tokens::default(), amount.parse().unwrap());
            if call.attempt_number() == 1 {
                call.usage(charge(first));
                return Err(ExecuteError::retry("not yet"));
            }
            call.message(Message::assistant(call.cost_left().unwrap().to_string()));
            call.usage(charge(second));
            call.cancel_token().wait_timeout(Duration::MAX);
            Err(ExecuteError::retry("stopped in time"))
        }
        "fail" => Err(ExecuteError::give_up(rest).kind("told_to").result(WorkResult::text("half"))),
        "complain" => {
            call.message(Message::assistant("it does not work"));
            Err(ExecuteError::give_up(rest))
        }
        "retry" if call.attempt_number() < 3 => {
            call.session("s-2");
            call.checkpoint(json!(call.attempt_number()));
            Err(ExecuteError::retry("not yet"))
        }
        "retry" => Ok(WorkResult::text(format!("{:?} {:?}", call.resume_session(), call.last_checkpoint()))),
        "panic" => panic!("as told"),
        "exit" if call.attempt_number() == 1 => exit(rest.parse().unwrap()),
        "exit" => Ok(WorkResult::text("the second time")),
        // For so many milliseconds, unless it is told to stop.
        "nap" => match call.cancel_token().wait_timeout(Duration::from_millis(rest.parse().unwrap())) {
            Some(_) => Err(ExecuteError::retry("woken")),
            None => Ok(WorkResult::text("awake")),
        },
        // Until it is told to stop, without a word.
        "brood" => {
            call.cancel_token().wait_timeout(Duration::MAX);
            Err(ExecuteError::retry("stopped in time"))
        }
        // Until it is told to stop.
        "wait" => {
            call.message(Message::assistant("waiting"));
            call.cancel_token().wait_timeout(Duration::MAX);
            Err(ExecuteError::retry("stopped in time"))
        }
        // Whatever it is told.
        "hang" => {
            call.message(Message::assistant("hanging"));
            loop {
                std::thread::park();
            }
        }
        "shout" => {
            call.message(Message::assistant("x".repeat(rest.parse().unwrap())));
            Ok(WorkResult::text("said"))
        }
        "flood" => {
            let line = "x".repeat(1_000);
            (0..rest.parse().unwrap()).for_each(|_| call.message(Message::assistant(line.as_str())));
            Ok(WorkResult::text("all said"))
        }
        other => panic!("no such task: {other}"),
    }
}

/// A connection that says what no library would.
struct Hand {
    lines: std::io::Lines<BufReader<UnixStream>>,
    stream: UnixStream,
}

impl Hand {
    fn connect() -> Hand {
        let stream = UnixStream::connect(std::env::var_os(SOCKET_VARIABLE).unwrap()).unwrap();
        Hand { lines: BufReader::new(stream.try_clone().unwrap()).lines(), stream }
    }

    fn say(&mut self, words: &str) {
        self.stream.write_all(words.as_bytes()).unwrap();
    }

    fn tell(&mut self, message: &Value) {
        self.say(&format!("{message}\n"));
    }

    /// The next message, which must be of this type; waits for as long as it takes.
    fn hear(&mut self, message_type: &str) -> Value {
        let line = self.lines.next().unwrap_or_else(|| exit(0)).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(message["type"], message_type);
        message
    }

    /// Is ready, and gets a query; its id.
    fn query(&mut self) -> String {
        self.tell(&json!({ "type": "ready" }));
        self.next_query()
    }

    /// Whether it was told something, which must be of this type.
    fn has_heard(&mut self, message_type: &str) -> bool {
        let now = Timespec::default();
        let is_there = poll(&mut [PollFd::new(&self.stream, PollFlags::IN)], Some(&now)).unwrap() > 0;
        is_there && !self.hear(message_type).is_null()
    }

    fn next_query(&mut self) -> String {
        self.hear("query")["requestId"].as_str().unwrap().to_owned()
    }

    /// Waits until something is said to it, which it does not read.
    fn is_asked(&self) {
        let mut asked = [PollFd::new(&self.stream, PollFlags::IN)];
        poll(&mut asked, None).unwrap();
    }

    /// The next line, and nothing of what is behind it.
    fn line_and_no_more(&mut self) -> String {
        let mut line = vec![0];
        while line.last() != Some(&b'\n') {
            line.push(0);
            let last = line.len() - 1;
            self.stream.read_exact(&mut line[last..]).unwrap();
        }
        String::from_utf8(line).unwrap()
    }

    fn message(&mut self, id: &str, text: &str) {
        self.tell(&json!({ "type": "message", "requestId": id, "content": { "type": "text", "text": text } }));
    }

    fn is_well(&mut self) {
        self.tell(&json!({ "type": "health_ok", "uptime": 3, "queriesProcessed": 1 }));
    }

    fn complete(&mut self, id: &str) {
        self.tell(&json!({ "type": "complete", "requestId": id, "result": { "output": "done" } }));
    }

    /// Does nothing but end when it is told to.
    fn hear_out(mut self) -> ! {
        while let Some(Ok(line)) = self.lines.next() {
            if line.contains("shutdown") {
                self.tell(&json!({ "type": "shutdown_ack" }));
                break;
            }
        }
        exit(0);
    }
}

fn for_ever() -> ! {
    loop {
        std::thread::park();
    }
}

fn by_hand(role: &str) {
    match role {
        "never connects" => for_ever(),
        "ends at once" => {
            eprintln!("there is no model");
            exit(3);
        }
        "connects when it may" => {
            let path = std::env::var_os(MAY_CONNECT).map(std::path::PathBuf::from).unwrap();
            while !path.exists() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        _ => {}
    }
    let mut hand = Hand::connect();
    match role {
        "never ready" => for_ever(),
        "ready and gone" => hand.tell(&json!({ "type": "ready" })),
        "garbage before it is ready" => {
            hand.say("this is no message\n{\"type\":\"ready\"}\n");
            for_ever();
        }
        "hangs up before it is ready" => {
            drop(hand);
            for_ever();
        }
        "ends in order when idle" => {
            let id = hand.query();
            hand.complete(&id);
        }
        "ends badly when idle" => {
            let id = hand.query();
            hand.complete(&id);
            exit(7);
        }
        "hangs up when idle" => {
            let id = hand.query();
            hand.complete(&id);
            drop(hand);
            for_ever();
        }
        "hangs up in the middle" => {
            let id = hand.query();
            hand.message(&id, "whole");
            hand.say(&format!("{{\"type\":\"message\",\"requestId\":\"{id}\",\"content\":{{\"type\":\"te"));
            drop(hand);
            for_ever();
        }
        "garbage" => {
            let id = hand.query();
            hand.say("this is no message\n\n\u{fffd}\n{\"type\":\"session\"}\n{\"type\":\"tomorrow\"}\n");
            hand.complete(&id);
            hand.hear_out();
        }
        "an answer that makes no sense" => {
            let id = hand.query();
            hand.tell(&json!({ "type": "complete", "requestId": id }));
            hand.hear_out();
        }
        "half a character in its answer" => {
            let id = hand.query();
            hand.say(&format!(
                "{{\"type\":\"complete\",\"requestId\":\"{id}\",\"result\":{{\"output\":\"\\ud83d\"}}}}\n"
            ));
            hand.hear_out();
        }
        "ends in the middle of its answer" => {
            let id = hand.query();
            hand.say(&format!("{{\"type\":\"complete\",\"requestId\":\"{id}\",\"result\":{{\"outp"));
            exit(9);
        }
        "nothing but garbage" => {
            hand.query();
            loop {
                hand.say("this is no message\n");
            }
        }
        "another request" => {
            hand.query();
            hand.complete("another");
            hand.hear_out();
        }
        "speaks of another request" => {
            let id = hand.query();
            let content = json!({ "type": "text", "text": "whose?" });
            hand.tell(&json!({ "type": "message", "requestId": "another", "content": content }));
            hand.complete(&id);
            hand.hear_out();
        }
        "speaks of another request when idle" | "says that it ends when idle" => {
            let id = hand.query();
            hand.complete(&id);
            // The second time it is asked by whoever has heard its answer.
            hand.hear("health_check");
            hand.is_well();
            hand.hear("health_check");
            match role {
                "says that it ends when idle" => hand.tell(&json!({ "type": "shutdown_ack" })),
                _ => hand.message("another", "whose?"),
            }
            for_ever();
        }
        "too long" => {
            let id = hand.query();
            hand.say(&format!("{}\n", "x".repeat(ipc::MESSAGE_LIMIT_BYTES + 1)));
            hand.complete(&id);
            hand.hear_out();
        }
        "too long an answer" => {
            let id = hand.query();
            // Such as any JSON may be, and nothing like its own beginning.
            let result = format!("{{\"type\":\"message\",\"text\":\"{}\"}}", "x".repeat(ipc::MESSAGE_LIMIT_BYTES));
            hand.say(&format!("{{\"result\":{result},\"requestId\":\"{id}\",\"type\":\"complete\"}}\n"));
            hand.hear_out();
        }
        "too long a message" => {
            let id = hand.query();
            let content = format!("{{\"type\":\"complete\",\"text\":\"{}\"}}", "x".repeat(ipc::MESSAGE_LIMIT_BYTES));
            hand.say(&format!("{{\"type\":\"message\",\"requestId\":\"{id}\",\"content\":{content}}}\n"));
            hand.complete(&id);
            hand.hear_out();
        }
        "floods while it works" => {
            let id = hand.query();
            loop {
                hand.message(&id, "and so on");
            }
        }
        "chatters while it works" => {
            hand.query();
            loop {
                hand.say("{\"type\":\"tomorrow\"}\n\n");
            }
        }
        "never ends its line" => {
            hand.query();
            loop {
                hand.say("{\"type\":\"complete\",");
            }
        }
        "floods when idle" => {
            let id = hand.query();
            hand.complete(&id);
            loop {
                hand.say("{\"type\":\"message\",\"requestId\":\"whose\",\"content\":{}}\n");
            }
        }
        "chatters when idle" => {
            let id = hand.query();
            hand.complete(&id);
            loop {
                hand.say("{\"type\":\"tomorrow\"}\n\n");
            }
        }
        "says without end that it is well" => {
            let id = hand.query();
            hand.complete(&id);
            loop {
                hand.is_well();
            }
        }
        "ignores shutdown" => {
            let id = hand.query();
            hand.complete(&id);
            hand.hear("shutdown");
            for_ever();
        }
        "acknowledges and stays" => {
            let id = hand.query();
            hand.complete(&id);
            hand.hear("shutdown");
            hand.tell(&json!({ "type": "shutdown_ack" }));
            for_ever();
        }
        "ignores cancel" => {
            let id = hand.query();
            hand.message(&id, "at work");
            hand.hear("cancel");
            for_ever();
        }
        "stops and does not say whether it can go on" => {
            let id = hand.query();
            hand.message(&id, "at work");
            hand.hear("cancel");
            hand.tell(&json!({ "type": "error", "requestId": id, "error": "stopped" }));
            hand.hear("shutdown");
            hand.tell(&json!({ "type": "shutdown_ack" }));
        }
        "takes its query when it is to stop" => {
            let id = hand.query();
            hand.hear("cancel");
            hand.tell(&json!({ "type": "session", "requestId": id }));
            hand.tell(&json!({ "type": "error", "requestId": id, "error": "stopped" }));
            hand.tell(&json!({ "type": "ready" }));
            hand.hear_out();
        }
        "stops and ends in order" => {
            let id = hand.query();
            hand.message(&id, "at work");
            hand.hear("cancel");
            hand.tell(&json!({ "type": "error", "requestId": id, "error": "stopped" }));
        }
        "says late what it was asked before" => {
            let first = hand.query();
            hand.message(&first, "at work");
            hand.hear("cancel");
            hand.tell(&json!({ "type": "error", "requestId": first, "error": "stopped" }));
            let second = hand.query();
            hand.complete(&first);
            hand.complete(&second);
            hand.hear_out();
        }
        "does not say that it is well" => {
            hand.query();
            hand.hear("health_check");
            for_ever();
        }
        "is not well when idle" => {
            let id = hand.query();
            hand.complete(&id);
            hand.hear("health_check");
            for_ever();
        }
        "is well" => {
            let id = hand.query();
            hand.hear("health_check");
            hand.tell(&json!({ "type": "health_ok", "uptime": 3, "queriesProcessed": 1 }));
            hand.complete(&id);
            hand.hear("health_check");
            hand.tell(&json!({ "type": "health_ok", "uptime": 4.5, "queriesProcessed": 1 }));
            hand.hear_out();
        }
        "is well at length" => {
            hand.tell(&json!({ "type": "ready" }));
            let length = "x".repeat(100_000);
            while let Some(Ok(line)) = hand.lines.next() {
                let heard: Value = serde_json::from_str(&line).unwrap();
                match heard["type"].as_str().unwrap() {
                    "query" => hand.complete(heard["requestId"].as_str().unwrap()),
                    "health_check" => hand
                        .tell(&json!({ "type": "health_ok", "uptime": 3, "queriesProcessed": 1, "at length": length })),
                    _ => break,
                }
            }
        }
        "talks until it is asked whether it is well" => {
            let id = hand.query();
            loop {
                hand.message(&id, "and so on");
                std::thread::park_timeout(Duration::from_millis(5));
                if hand.has_heard("health_check") {
                    break;
                }
            }
            hand.is_well();
            hand.complete(&id);
            hand.hear_out();
        }
        "talks instead of saying that it is well" => {
            let id = hand.query();
            // Whoever asks again has taken what it said for an answer.
            let mut asked = 0;
            while asked < 3 {
                hand.message(&id, "and so on");
                std::thread::park_timeout(Duration::from_millis(5));
                asked += u32::from(hand.has_heard("health_check"));
            }
            hand.complete(&id);
            hand.hear_out();
        }
        "only speaks of what it was asked before" => {
            let first = hand.query();
            hand.complete(&first);
            hand.next_query();
            loop {
                hand.message(&first, "and so on");
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        "refuses" => {
            let id = hand.query();
            hand.tell(&json!({ "type": "error", "requestId": id, "error": "not in the mood", "then": "give_up" }));
            hand.hear_out();
        }
        "answers only" | "connects when it may" => {
            let mut id = hand.query();
            loop {
                hand.complete(&id);
                id = hand.next_query();
            }
        }
        "ends badly with its second query" => {
            let id = hand.query();
            hand.complete(&id);
            hand.next_query();
            exit(9);
        }
        "ends in order with its second query" => {
            let id = hand.query();
            hand.complete(&id);
            hand.next_query();
        }
        "ends in order before its second query" => {
            let id = hand.query();
            hand.complete(&id);
            hand.is_asked();
        }
        "ends in order with a question that it has not read" => {
            let id = hand.query();
            hand.complete(&id);
            while !hand.line_and_no_more().contains("\"type\":\"query\"") {
                hand.is_well();
            }
            hand.is_asked();
        }
        "ends badly before its second query" => {
            let id = hand.query();
            hand.complete(&id);
            hand.is_asked();
            exit(9);
        }
        "dies of its second query after a while" => {
            let id = hand.query();
            hand.complete(&id);
            hand.next_query();
            let began = std::time::Instant::now();
            while began.elapsed() < Duration::from_millis(1_500) {
                std::thread::park_timeout(Duration::from_millis(100));
            }
            exit(9);
        }
        "stops whoever ends it" => {
            let id = hand.query();
            rustix::process::kill_process(rustix::process::getppid().unwrap(), rustix::process::Signal::STOP).unwrap();
            hand.complete(&id);
            hand.hear_out();
        }
        "never reads" => {
            hand.tell(&json!({ "type": "ready" }));
            for_ever();
        }
        "leaves its connection to another" => {
            hand.query();
            // It has the connection as its input, and would live for ever.
            let stream = std::os::fd::OwnedFd::from(hand.stream.try_clone().unwrap());
            std::process::Command::new("sleep").arg("999").stdin(stream).spawn().unwrap();
            exit(0);
        }
        "hears nothing any more" => {
            let id = hand.query();
            hand.stream.shutdown(std::net::Shutdown::Read).unwrap();
            hand.complete(&id);
            for_ever();
        }
        other => panic!("no such role: {other}"),
    }
}
