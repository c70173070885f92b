//! What differs between processes that are kept: how they are started, spoken to and understood.

use std::path::PathBuf;
use std::time::Duration;

use crate::executor::ipc::QueryState;
use crate::executor::process::{ChildCommand, Exit, Limits, Line};
use crate::executor::{Call, ExecuteError, WorkResult};

/// Which calls a process can serve: those that want the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ProcessKey {
    /// The affinity key or the session that the process is for: there is one process for it, and whoever finds it busy waits. Without
    /// one there may be many, each as good as the other.
    pub session: Option<String>,
    /// Where it runs.
    pub workspace: Option<PathBuf>,
    /// What else it was started with that not all have.
    pub(in crate::executor) setting: String,
}

impl ProcessKey {
    /// The key of a call: its affinity key, else the session that it carries on; and its workspace.
    pub(in crate::executor) fn of(call: &Call<'_>) -> ProcessKey {
        let options = &call.unit().options;
        let session = options.affinity_key.as_deref().or(call.resume_session());
        let workspace = options.workspace_dir.as_ref().map(PathBuf::from);
        ProcessKey { session: session.map(str::to_owned), workspace, setting: String::new() }
    }
}

/// How a process is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor) enum Reach {
    /// It connects to a socket, and says when it is ready.
    Socket,
    /// By its input and output, and it is ready from the start.
    Pipes,
}

/// How processes of a kind are spoken to.
pub(in crate::executor) trait Dialect: Send + Sync + Sized + 'static {
    /// What is remembered of a process from one query to the next.
    type Memory: Default + Send + 'static;
    /// One query, and what is said for it.
    type Query: Query<Self::Memory>;

    const REACH: Reach;

    /// Which process a call wants.
    fn key(&self, call: &Call<'_>) -> ProcessKey;

    /// The session that a call carries on.
    fn resumed<'a>(&self, call: &Call<'a>) -> Option<&'a str> {
        call.resume_session()
    }

    /// The session that a process is in.
    fn session<'a>(&self, memory: &'a Self::Memory) -> Option<&'a str>;

    /// Whether a process that has the key will do for a call that carries on this session.
    fn fits(&self, memory: &Self::Memory, resumed: Option<&str>) -> bool;

    /// What is started for a call.
    fn child(&self, call: &Call<'_>) -> ChildCommand;

    /// A process was started for a call.
    fn remember_start(&self, memory: &mut Self::Memory, call: &Call<'_>);

    /// Asks: what is to be said, and what makes sense of the answers. If it is to stop it has so long.
    ///
    /// # Errors
    ///
    /// When it cannot be asked.
    fn ask(
        &self,
        memory: &mut Self::Memory,
        request_id: &str,
        grace: Duration,
        call: &Call<'_>,
    ) -> Result<(Vec<u8>, Self::Query), ExecuteError>;

    /// A query for a call is over, and the process may go on.
    fn answered(&self, memory: &Self::Memory, call: &Call<'_>) {
        let _ = (memory, call);
    }

    /// How long it may say nothing, at first and later, and how long it may go on when it is heard out.
    fn limits(&self) -> Limits {
        Limits::default()
    }

    /// What a line means that is said while there is no query.
    fn control(&self, line: Line<'_>) -> Control;

    /// What is said to stop a query.
    fn cancel(&self, request_id: &str) -> Vec<u8>;

    /// Whether one that stopped a query when it was told to takes the next without having said so.
    fn goes_on_after_cancel(&self) -> bool {
        false
    }

    /// What is asked of a process that should say that it is well; `None` if it cannot.
    fn health_check(&self) -> Option<Vec<u8>>;

    /// What is said to end it; `None` if it ends with its input.
    fn shutdown(&self) -> Option<Vec<u8>>;
}

/// What is said that is not about a query.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::executor) enum Control {
    /// Nothing of importance.
    Nothing,
    /// It takes queries.
    Ready,
    /// It ends.
    ShutdownAck,
    /// It is well.
    Health(Health),
    /// Something that should not be said: it is not to be trusted any more.
    Fault(String),
}

/// What a worker says of itself when it is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// For how many seconds it has been up.
    pub uptime: f64,
    /// How many queries it has had.
    pub queries_processed: u64,
}

/// What a line means for a query.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::executor) enum Heard {
    /// Nothing, or that it goes on.
    More,
    /// It is not about the query.
    Control(Control),
    /// Something is to be said.
    Say(Vec<u8>),
    /// The query is over.
    Over(Afterwards),
    /// The query will never be over, for this reason.
    Broken(String),
    /// The query has not even begun, and will not in this process, for this reason: another is to be asked.
    NotTaken(String),
}

/// What becomes of a process whose query is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor) enum Afterwards {
    /// It takes the next.
    GoesOn,
    /// Nobody knows whether all was said: its input is closed, and it is heard to its end.
    HeardOut,
    /// It is not to be trusted any more.
    Replaced(String),
}

/// How a query came to its end.
#[derive(Clone, Copy, Debug)]
pub(in crate::executor) enum End<'a> {
    /// It was answered.
    Over,
    /// The process has ended, or was ended.
    Exit(&'a Exit),
    /// The process is no use any more, for this reason.
    Broken(&'a str),
}

/// One query.
pub(in crate::executor) trait Query<Memory> {
    /// Takes a line as it arrives. What it says is told to the call at once.
    fn hear(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard;

    /// The files that it says to have written.
    fn written_files(&self) -> Vec<String> {
        Vec::new()
    }

    /// It was told to stop.
    fn cancel(&mut self) {}

    /// How long it may say nothing now, whatever it may otherwise.
    fn patience(&self) -> Option<Duration> {
        None
    }

    /// Where it is in its life, where that is known.
    fn state(&self) -> Option<QueryState> {
        None
    }

    /// What came of it all.
    fn conclude(self, end: End<'_>, memory: &mut Memory, call: &Call<'_>) -> Result<WorkResult, ExecuteError>;
}
