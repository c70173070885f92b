//! What goes wrong, and with which code the command ends then.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use workcrew::audit::questions::FindError;
use workcrew::audit::transcript::TranscriptError;
use workcrew::audit::visible;
use workcrew::repository::sqlite::OpenError;
use workcrew::source::{FeedError, SourceError};
use workcrew::{RepositoryError, StartError, StopError};

/// How the command ends. The help says what they mean.
pub mod code {
    use std::process::ExitCode;

    pub const DONE: ExitCode = ExitCode::SUCCESS;
    pub const NOT_ALL_COMPLETED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const STORAGE: u8 = 3;
    pub const INTERRUPTED: u8 = 130;
}

/// Why a command did not do what it was asked for.
#[derive(Debug)]
pub enum Trouble {
    /// It makes no sense.
    Usage(String),
    /// The database, or a file, cannot be read or written.
    Storage(String),
    /// It makes sense, and could not be done.
    Failed(String),
    /// Nobody reads what is printed.
    NobodyReads,
}

impl Trouble {
    pub fn usage(what: impl Into<String>) -> Trouble {
        Trouble::Usage(what.into())
    }

    pub fn code(&self) -> ExitCode {
        match self {
            Trouble::Usage(_) => ExitCode::from(code::USAGE),
            Trouble::Storage(_) => ExitCode::from(code::STORAGE),
            Trouble::Failed(_) => ExitCode::from(code::NOT_ALL_COMPLETED),
            Trouble::NobodyReads => code::DONE,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Usage(what) | Trouble::Storage(what) | Trouble::Failed(what) => visible(what).fmt(f),
            Trouble::NobodyReads => f.write_str("nobody reads any more"),
        }
    }
}

/// An error with all its causes. Other people's errors tell their causes themselves, which need not be told twice.
pub fn told(error: &dyn Error) -> String {
    let mut last = error.to_string();
    let mut text = last.clone();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !last.contains(&next) && !next.contains(&last) {
            text.push_str(": ");
            text.push_str(&next);
        }
        (last, cause) = (next, error.source());
    }
    text
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Trouble::NobodyReads,
            _ => Trouble::Storage(format!("standard output cannot be written: {}", told(&error))),
        }
    }
}

impl From<OpenError> for Trouble {
    fn from(error: OpenError) -> Trouble {
        Trouble::Storage(told(&error))
    }
}

impl From<RepositoryError> for Trouble {
    fn from(error: RepositoryError) -> Trouble {
        use RepositoryError as E;
        match error {
            E::UnknownJob(_) | E::UnknownUnit { .. } | E::Invalid(_) | E::Conflict { .. } | E::Illegal { .. } => {
                Trouble::Usage(told(&error))
            }
            error => Trouble::Storage(told(&error)),
        }
    }
}

impl From<FindError> for Trouble {
    fn from(error: FindError) -> Trouble {
        match error {
            FindError::Repository(error) => error.into(),
            FindError::Several { .. } => Trouble::Usage(format!("{error}; say which with --job")),
            error => Trouble::Usage(told(&error)),
        }
    }
}

impl From<SourceError> for Trouble {
    fn from(error: SourceError) -> Trouble {
        if let SourceError::UnknownFormat { .. } = error {
            return Trouble::Usage(format!("{error} with --format"));
        }
        Trouble::Usage(told(&error))
    }
}

impl From<FeedError> for Trouble {
    fn from(error: FeedError) -> Trouble {
        match error {
            FeedError::Repository(error) => error.into(),
            error => Trouble::Failed(told(&error)),
        }
    }
}

impl From<StartError> for Trouble {
    fn from(error: StartError) -> Trouble {
        match error {
            StartError::Setting { .. } => Trouble::Usage(told(&error)),
            error => Trouble::Storage(told(&error)),
        }
    }
}

impl From<StopError> for Trouble {
    fn from(error: StopError) -> Trouble {
        Trouble::Storage(told(&error))
    }
}

impl From<TranscriptError> for Trouble {
    fn from(error: TranscriptError) -> Trouble {
        match error {
            TranscriptError::Repository(error) => error.into(),
            TranscriptError::Write(error) => error.into(),
            error => Trouble::Failed(told(&error)),
        }
    }
}

impl From<serde_json::Error> for Trouble {
    fn from(error: serde_json::Error) -> Trouble {
        match error.io_error_kind() {
            Some(kind) => io::Error::from(kind).into(),
            None => Trouble::Failed(told(&error)),
        }
    }
}
