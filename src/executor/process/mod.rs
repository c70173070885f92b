//! Runs a child so that it can always be ended.

mod reader;

pub(crate) use self::reader::{Exit, Heard, How, Line, Reader, Reason};
