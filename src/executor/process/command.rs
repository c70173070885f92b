//! What is to be run: a program, what it gets and what it may take.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

/// What every program gets of the host's environment: where things are, who and where one is, and how to reach others.
const EVERYBODYS: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "LC_*",
    "TZ",
    "TMPDIR",
    "TMP",
    "TEMP",
    "XDG_*",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
];

/// A program and all that it gets.
#[derive(Clone, Debug)]
pub(crate) struct ChildCommand {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Environment,
    /// Where it runs; where the host does if there is none.
    pub(crate) directory: Option<PathBuf>,
    /// What it reads, to the end.
    pub(crate) input: Vec<u8>,
    pub(crate) limits: Limits,
}

impl ChildCommand {
    pub(crate) fn new(program: impl Into<OsString>) -> ChildCommand {
        ChildCommand {
            program: program.into(),
            arguments: Vec::new(),
            environment: Environment::default(),
            directory: None,
            input: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// What a program may take, besides the time of its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    /// How long it may say nothing at all at first.
    pub(crate) start: Option<Duration>,
    /// How long it may say nothing later.
    pub(crate) silence: Option<Duration>,
    /// How long it may go on after its answer, and without its output.
    pub(crate) after_answer: Duration,
    /// How much of a line is kept.
    pub(crate) line_bytes: usize,
    /// How much of the end of its other output is kept.
    pub(crate) tail_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            start: None,
            silence: None,
            after_answer: Duration::from_secs(5),
            line_bytes: 10 * 1024 * 1024,
            tail_bytes: 64 * 1024,
        }
    }
}

/// Which variables of the host's environment a program gets, and which of its own.
///
/// Names may end in `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    passed: Vec<String>,
    kept_back: Vec<String>,
    set: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// Passes these on, besides what everybody gets.
    pub(crate) fn pass(&mut self, name: impl Into<String>) {
        self.passed.push(name.into());
    }

    /// Never passes these on, whoever asks for it; they can be set.
    pub(crate) fn keep_back(&mut self, name: impl Into<String>) {
        self.kept_back.push(name.into());
    }

    /// Sets a variable, whatever the host has.
    pub(crate) fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.set.insert(name.into(), value.into());
    }

    /// All that the program gets, out of what the host has.
    pub(super) fn of(
        &self,
        host: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> impl Iterator<Item = (OsString, OsString)> {
        let passed = |(name, _): &(OsString, OsString)| {
            let is_one_of = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
            let is_everybodys = EVERYBODYS.iter().any(|pattern| matches(pattern, name));
            (is_everybodys || is_one_of(&self.passed)) && !is_one_of(&self.kept_back)
        };
        let set = self.set.iter().map(|(name, value)| (name.clone(), value.clone()));
        host.into_iter().filter(passed).collect::<Vec<_>>().into_iter().chain(set)
    }
}

fn matches(pattern: &str, name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning.as_bytes()),
        None => name == pattern.as_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gets_what_everybody_gets_what_was_named_and_what_was_set_and_nothing_else() {
        let mut environment = Environment::default();
        environment.pass("AGENT_*");
        environment.keep_back("AGENT_INSIDE*");
        environment.set("TZ", "UTC");
        let host = ["PATH", "LC_ALL", "TZ", "SECRET", "PATHS", "AGENT_KEY", "AGENT_INSIDE_1", "XDG_RUNTIME_DIR"];
        let host = host.map(|name| (OsString::from(name), OsString::from("host")));
        let passed: BTreeMap<_, _> = environment.of(host).collect();
        let expected =
            [("AGENT_KEY", "host"), ("LC_ALL", "host"), ("PATH", "host"), ("TZ", "UTC"), ("XDG_RUNTIME_DIR", "host")];
        assert_eq!(passed, expected.map(|(name, value)| (name.into(), value.into())).into());
    }
}
