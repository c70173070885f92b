//! Runs LLM work units: thousands of prompts or agent runs, each one durable, each one
//! accounted for in money, each one readable weeks later. No async.
//!
//! What travels is a [unit](mod@unit) of a [job]; each execution of it is an
//! [attempt], done under a [lease] by a [worker], which leaves a [conversation]
//! and a bill in [money]. All of it is kept in a [repository], and
//! [`audit::verify()`] shows that it was kept.
//!
//! ```text
//!            insert / submit           claim            start, append, progress        finish
//!   caller ──────────────────▶ PENDING ─────▶ ASSIGNED ───────────────────────▶ PROCESSING ─────▶ COMPLETED
//!                                 ▲                                                  │             FAILED
//!                                 └──────────── retry, release, expiry ──────────────┘             CANCELLED
//! ```

pub mod attempt;
pub mod audit;
pub mod chain;
pub mod clock;
pub mod conversation;
pub mod error;
pub mod executor;
mod fault;
pub mod job;
pub mod lease;
pub mod limits;
pub mod money;
mod nudge;
mod panics;
pub mod pool;
pub mod process;
pub mod prompt;
pub mod repository;
pub mod source;
mod sync;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unit;
pub mod worker;

pub use attempt::{
    Attempt, AttemptKey, AttemptReport, Beginning, Ending, Failure, FailureKind, Next, Outcome, Progress,
};
pub use conversation::{Message, Part, Raw, Role};
pub use executor::claude_cli::{ClaudeCli, ClaudeSession};
pub use executor::codex_cli::CodexCli;
#[cfg(feature = "http")]
pub use executor::http::{AnthropicApi, OpenAiApi};
pub use executor::ipc;
pub use executor::replay::Replay;
pub use executor::simulated::Simulated;
pub use executor::{Call, CancelReason, CancelToken, ExecuteError, Executor, Then, WorkResult};
pub use job::{Job, JobChange, JobId, NewJob};
pub use lease::{Claim, Lease, NewOwner, Owner, OwnerId, OwnerState};
pub use money::{Charge, Cost, Money, Price, PriceTable, Tokens};
pub use pool::{
    Activity, AfterCrash, Available, CapacityStrategy, Completion, Event, InitHook, LeastLoaded, NoInit, Observer,
    PoolHandle, PoolPhase, PoolSet, PoolSetBuilder, PoolSetError, PoolStats, QueueState, Refusal, RetryPolicy, Scaling,
    Scheduler, SlotPermit, StartError, Stop, StopError, SubmitError, Summary, Threads, UnitHandle, WaitError, WorkPool,
    WorkPoolBuilder, WorkerRuntime, WorkerView,
};
pub use process::Process;
pub use prompt::{Prompt, PromptError};
pub use repository::memory::MemoryRepository;
#[cfg(feature = "postgres")]
pub use repository::postgres::PostgresRepository;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub use repository::sqlite::SqliteRepository;
pub use repository::{Archive, Repository, RepositoryError};
pub use unit::{Affinity, NewUnit, UnitId, UnitKey, UnitStatus, WorkUnit};
pub use worker::{Worker, WorkerId, WorkerStatus};

/// The README's example, compiled and run.
#[cfg(all(doctest, any(feature = "sqlite", feature = "sqlite-system")))]
#[doc = include_str!("../README.md")]
struct Readme;
