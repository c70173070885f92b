//! Whether an executor can work here, and what it lacks.

use std::error::Error;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Why an executor cannot work here, and what helps.
///
/// ```
/// use workcrew::Executor;
/// use workcrew::executor::CommandExecutor;
///
/// let missing = CommandExecutor::new("no-such-program").is_available().unwrap_err();
/// assert_eq!(missing.to_string(), "there is no program `no-such-program` on the path: install it, or name it with its folder");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unavailable {
    /// What is missing.
    pub missing: String,
    /// How to get it.
    pub advice: String,
}

impl Unavailable {
    /// Something is missing, and this helps.
    pub fn new(missing: impl Into<String>, advice: impl Into<String>) -> Unavailable {
        Unavailable { missing: missing.into(), advice: advice.into() }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.missing, self.advice)
    }
}

impl Error for Unavailable {}

/// Whether there is such a program; with this advice if there is not.
pub(super) fn program(name: &OsStr, advice: &str) -> Result<(), Unavailable> {
    let shown = name.to_string_lossy();
    if name.as_encoded_bytes().contains(&b'/') {
        let problem = match Path::new(name) {
            path if is_executable(path) => return Ok(()),
            path if path.exists() => "is not a program that may be run",
            _ => "is not there",
        };
        return Err(Unavailable::new(format!("`{shown}` {problem}"), advice));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|folder: PathBuf| is_executable(&folder.join(name)));
    if found { Ok(()) } else { Err(Unavailable::new(format!("there is no program `{shown}` on the path"), advice)) }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
