//! A request up to the beginning of its answer, on a thread of its own.
//!
//! Looking a name up and connecting cannot be interrupted. Who waits for them on a thread of its own hears of a cancel at once, and goes. What is left
//! behind is shut down: it sends nothing any more, and ends when the name is looked up or the connection is there or given up, at the latest after twice the
//! [limit](super::HttpApi::connect_limit).

use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, PoisonError, Weak};

use ureq::Body;
use ureq::http::Response;

use crate::executor::{CancelReason, CancelToken};
use crate::panics;
use crate::sync::Mutex;

/// How many threads an executor leaves behind at a time. Who would be one more waits for its own.
const LEFT_BEHIND_LIMIT: usize = 64;

/// The threads that nobody waits for any more, each known by what it alone has.
#[derive(Clone, Debug, Default)]
pub(super) struct LeftBehind(Arc<Mutex<Vec<Weak<()>>>>);

impl LeftBehind {
    /// Whether one more may be left behind.
    fn takes(&self, thread: Weak<()>) -> bool {
        let mut threads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.strong_count() > 0);
        let has_room = threads.len() < LEFT_BEHIND_LIMIT;
        if has_room {
            threads.push(thread);
        }
        has_room
    }
}

/// What is heard of a request.
enum Heard {
    Answered(Result<Response<Body>, ureq::Error>),
    Cancelled,
}

/// How a request came to its end.
pub(super) enum Ended {
    Answered(Result<Response<Body>, ureq::Error>),
    /// Nobody waits for it any more.
    Cancelled(CancelReason),
}

/// Sends a request, and waits for the beginning of its answer or for a cancel.
pub(super) fn run(
    send: impl FnOnce() -> Result<Response<Body>, ureq::Error> + Send + 'static,
    cancel: &CancelToken,
    left_behind: &LeftBehind,
) -> io::Result<Ended> {
    let (tell, told) = mpsc::channel();
    let (alive, thread) = {
        let alive = Arc::new(());
        (Arc::downgrade(&alive), alive)
    };
    spawn(send, tell.clone(), thread)?;
    let _on_cancel = cancel.on_cancel(move || {
        let _ = tell.send(Heard::Cancelled);
    });
    loop {
        match told.recv() {
            Ok(Heard::Answered(answered)) => return Ok(Ended::Answered(answered)),
            Ok(Heard::Cancelled) => {
                if let Some(reason) = cancel.reason().filter(|_| left_behind.takes(alive.clone())) {
                    return Ok(Ended::Cancelled(reason));
                }
            }
            Err(gone) => return Err(io::Error::other(gone)),
        }
    }
}

fn spawn(
    send: impl FnOnce() -> Result<Response<Body>, ureq::Error> + Send + 'static,
    tell: Sender<Heard>,
    alive: Arc<()>,
) -> io::Result<()> {
    let request = move || {
        let answered = panics::contain("a request", send).unwrap_or(Err(ureq::Error::ConnectionFailed));
        // Nobody listens who has gone.
        let _ = tell.send(Heard::Answered(answered));
        drop(alive);
    };
    std::thread::Builder::new().name("workcrew-request".to_owned()).spawn(request).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;
    use std::thread::JoinHandle;

    use super::*;

    fn nothing() -> Result<Response<Body>, ureq::Error> {
        Err(ureq::Error::HostNotFound)
    }

    /// A request that waits until somebody lets it go, and is cancelled once it has begun. Returns who waits for it.
    fn cancelled(left_behind: &LeftBehind, gate: Receiver<()>) -> JoinHandle<Ended> {
        let (cancel, left_behind, (begun, begins)) = (CancelToken::new(), left_behind.clone(), mpsc::channel());
        let token = cancel.clone();
        let stuck = move || {
            begun.send(()).unwrap();
            let _ = gate.recv();
            nothing()
        };
        let waiter = std::thread::spawn(move || run(stuck, &token, &left_behind).unwrap());
        begins.recv().unwrap();
        cancel.cancel(CancelReason::Requested);
        waiter
    }

    #[test]
    fn who_is_cancelled_goes_at_once_and_is_one_of_a_few() {
        let left_behind = LeftBehind::default();
        let mut gates = Vec::new();
        for _ in 0..LEFT_BEHIND_LIMIT {
            let (go, gate) = mpsc::channel();
            gates.push(go);
            let ended = cancelled(&left_behind, gate).join().unwrap();
            assert!(matches!(ended, Ended::Cancelled(CancelReason::Requested)));
        }
        // One more waits for its own.
        let (go, gate) = mpsc::channel();
        let waiter = cancelled(&left_behind, gate);
        drop(go);
        assert!(matches!(waiter.join().unwrap(), Ended::Answered(Err(ureq::Error::HostNotFound))));
        // As soon as another has ended there is room again.
        gates.pop();
        let (_go, gate) = mpsc::channel();
        while left_behind.0.lock().unwrap().iter().all(|thread| thread.strong_count() > 0) {
            std::thread::yield_now();
        }
        assert!(matches!(cancelled(&left_behind, gate).join().unwrap(), Ended::Cancelled(_)));
    }

    #[test]
    fn a_panic_is_an_answer_and_who_was_cancelled_before_sends_nothing_in_vain() {
        let left_behind = LeftBehind::default();
        let ended = run(|| panic!("in a request"), &CancelToken::new(), &left_behind).unwrap();
        assert!(matches!(ended, Ended::Answered(Err(ureq::Error::ConnectionFailed))));
        let cancel = CancelToken::new();
        cancel.cancel(CancelReason::Shutdown);
        // Whichever is heard first.
        match run(nothing, &cancel, &left_behind).unwrap() {
            Ended::Answered(Err(ureq::Error::HostNotFound)) | Ended::Cancelled(CancelReason::Shutdown) => {}
            _ => panic!("something else"),
        }
    }
}
