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
    use super::*;

    fn nothing() -> Result<Response<Body>, ureq::Error> {
        Err(ureq::Error::HostNotFound)
    }

    #[test]
    fn who_is_cancelled_goes_at_once_and_is_one_of_a_few() {
        let (left_behind, (go, gate)) = (LeftBehind::default(), mpsc::channel::<()>());
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let (begun, begins) = mpsc::channel();
        let stuck = || {
            let (gate, begun) = (Arc::clone(&gate), begun.clone());
            move || {
                begun.send(()).unwrap();
                let _ = gate.lock().unwrap().recv();
                nothing()
            }
        };
        let cancelled = |left_behind: LeftBehind, stuck| {
            let cancel = CancelToken::new();
            let token = cancel.clone();
            let waiter = std::thread::spawn(move || run(stuck, &token, &left_behind).unwrap());
            begins.recv().unwrap();
            cancel.cancel(CancelReason::Requested);
            waiter
        };
        for _ in 0..LEFT_BEHIND_LIMIT {
            let ended = cancelled(left_behind.clone(), stuck()).join().unwrap();
            assert!(matches!(ended, Ended::Cancelled(CancelReason::Requested)));
        }
        // One more waits for its own.
        let waiter = cancelled(left_behind.clone(), stuck());
        assert!(!waiter.is_finished());
        drop(go);
        assert!(matches!(waiter.join().unwrap(), Ended::Answered(Err(ureq::Error::HostNotFound))));
        // The others end too, and make room.
        while left_behind.0.lock().unwrap().iter().any(|thread| thread.strong_count() > 0) {
            std::thread::yield_now();
        }
        assert!(left_behind.takes(Weak::new()));
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
