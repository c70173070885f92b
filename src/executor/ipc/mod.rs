//! Worker processes: long-lived, spoken to over a Unix socket in lines of JSON.
//!
//! A process that takes a second to start is started once and asked a thousand times. [`WorkerProcesses`] is an executor that keeps such
//! processes, as many as it may; a worker is any program that speaks the protocol, in any language. In Rust it is [`serve`] and an
//! [`Executor`](crate::Executor), the same that would work inside of the pool:
//!
//! ```text
//!   WorkPool ── execute ──▶ WorkerProcesses ── query ───▶ a process: serve(executor)
//!                              │   keeps, evicts,    ◀─── session, message, complete, error
//!                              │   replaces          ────▶ cancel, health_check, shutdown
//!                              └──▶ other processes, each for its key
//! ```
//!
//! | | |
//! |---|---|
//! | `message`, `content` | what is said, as types |
//! | `frames` | bytes become messages, each with a bound |
//! | `state` | the machines of processes, queries and connections |
//! | `socket` | where a worker connects, and who may |
//! | `processes`, `query` | the parent's side: what is asked, and what the answers mean |
//! | `serve` | the worker's side |
//!
//! What keeps the processes, whatever they speak, is [`warm`](super::warm). The protocol is written down in `docs/worker-protocol.md`.

mod content;
mod frames;
mod message;
mod processes;
mod query;
mod serve;
pub(super) mod socket;
mod state;

pub use self::content::Content;
pub use self::frames::{Frame, FrameReader, MESSAGE_LIMIT_BYTES, QUERY_LIMIT_BYTES};
pub use self::message::{BadMessage, Follow, ParentMessage, Query, WorkerMessage, parent_types, worker_types};
pub use self::processes::{WorkerCommand, WorkerProcesses};
pub use self::serve::{ServeError, serve, serve_at};
pub use self::socket::SocketError;
pub use self::state::{ConnectionState, ProcessChange, ProcessState, QueryChange, QueryState};

/// The variable that tells a worker where to connect.
pub const SOCKET_VARIABLE: &str = "WORKCREW_SOCKET";
