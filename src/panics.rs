//! What a panic leaves: a payload of any type, which may panic again when it is dropped.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a panic said.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&'static str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (None, Some(text)) => text.clone(),
        (None, None) => "a panic without a message".to_owned(),
    }
}

/// What a panic said, and the safe end of its payload.
pub(crate) fn describe(payload: Box<dyn Any + Send>) -> String {
    let message = message(&*payload);
    // What the second panic carries could panic a third time: it is leaked.
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
    message
}

/// Calls something that may panic. A panic is logged with whose it was, and ends here.
pub(crate) fn contain<T>(whose: &str, call: impl FnOnce() -> T) -> Option<T> {
    let called = catch_unwind(AssertUnwindSafe(call));
    called
        .map_err(|payload| {
            // Not within the macro, which looks at nothing where nobody logs.
            let message = describe(payload);
            log::error!("{whose} panicked: {message}");
        })
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Bomb);
        }
    }

    #[test]
    fn any_payload_is_described_also_one_that_panics_when_dropped() {
        let caught = |panic: fn()| describe(catch_unwind(panic).unwrap_err());
        assert_eq!(caught(|| panic!("plain")), "plain");
        assert_eq!(caught(|| panic!("with {}", 1 + 1)), "with 2");
        assert_eq!(caught(|| std::panic::panic_any(7)), "a panic without a message");
        assert_eq!(caught(|| std::panic::panic_any(Bomb)), "a panic without a message");
    }
}
