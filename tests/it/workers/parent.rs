//! A parent of the tests' own, which says what ours says only by accident.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use workcrew::ipc::{ParentMessage, SOCKET_VARIABLE, WorkerMessage};

use super::*;

pub(super) struct Parent {
    worker: Child,
    lines: std::io::Lines<BufReader<UnixStream>>,
    stream: UnixStream,
}

impl Parent {
    /// Starts a worker, and hears that it is ready.
    pub(super) fn of(mut command: Command, world: &World) -> Parent {
        let socket = world.folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        command.env(SOCKET_VARIABLE, &socket).env(MARK, &world.mark).stdin(Stdio::null());
        let worker = command.spawn().unwrap();
        let (stream, _) = listener.accept().unwrap();
        std::fs::remove_file(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut parent = Parent { worker, lines: BufReader::new(stream.try_clone().unwrap()).lines(), stream };
        assert_eq!(parent.hear(), Some(WorkerMessage::Ready));
        parent
    }

    pub(super) fn tell(&mut self, message: &Value) {
        self.stream.write_all(format!("{message}\n").as_bytes()).unwrap();
    }

    pub(super) fn ask(&mut self, request_id: &str, prompt: &str) {
        let payload = json!({
            "unit_id": "a", "job_id": 1, "attempt": 1, "prompt": prompt, "payload": null, "options": {},
            "timeout_ms": 600_000, "grace_ms": 1_500,
        });
        let query = json!({ "type": "query", "requestId": request_id, "payload": payload });
        assert!(ParentMessage::from_line(query.to_string().as_bytes()).unwrap().is_some());
        self.tell(&query);
    }

    /// The next message; `None` if the worker has hung up.
    pub(super) fn hear(&mut self) -> Option<WorkerMessage> {
        let line = self.lines.next()?.unwrap();
        Some(WorkerMessage::from_line(line.as_bytes()).unwrap().unwrap())
    }

    /// The next message that is not part of the conversation.
    pub(super) fn hear_end(&mut self) -> Option<WorkerMessage> {
        loop {
            match self.hear() {
                Some(WorkerMessage::Session { .. } | WorkerMessage::Message { .. }) => {}
                heard => return heard,
            }
        }
    }

    /// The query that has failed, if that is what a message says.
    pub(super) fn error_of(message: &WorkerMessage) -> Option<&str> {
        match message {
            WorkerMessage::Error { request_id, .. } => Some(request_id),
            _ => None,
        }
    }

    /// Says nothing any more.
    pub(super) fn hang_up(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }

    /// The worker hangs up, and ends by itself and in order.
    pub(super) fn see_it_end(mut self) {
        assert_eq!(self.hear(), None);
        assert!(self.worker.wait().unwrap().success());
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // What a test that failed has left would live on.
        let _ = (self.worker.kill(), self.worker.wait());
    }
}
