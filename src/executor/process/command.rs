//! What is to be run: a program, what it gets and what it may take.

use std::borrow::Cow;
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChildCommand {
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Environment,
    /// Where it runs; where the host does if there is none.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) input: Input,
    pub(crate) limits: Limits,
}

/// What a program reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// This, to the end.
    All(Vec<u8>),
    /// Whatever it is told while it lives.
    Open,
}

#[cfg(test)]
impl ChildCommand {
    pub(crate) fn new(program: impl Into<OsString>) -> ChildCommand {
        ChildCommand {
            program: program.into(),
            arguments: Vec::new(),
            environment: Environment::default(),
            directory: None,
            input: Input::All(Vec::new()),
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
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { start: None, silence: None, after_answer: Duration::from_secs(5) }
    }
}

/// Which variables of the host's environment a program gets, and which of its own.
///
/// Names may end in `*`. What the caller names and sets comes first, then what is kept back, then what the program needs by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    needed: &'static [&'static str],
    kept_back: &'static [&'static str],
    passed: Vec<String>,
    set: BTreeMap<OsString, OsString>,
}

impl Environment {
    /// What this program needs besides what everybody gets, and what it must not get unless the caller names it.
    pub(crate) fn of(needed: &'static [&'static str], kept_back: &'static [&'static str]) -> Environment {
        Environment { needed, kept_back, ..Environment::default() }
    }

    /// Passes these on.
    pub(crate) fn pass(&mut self, name: impl Into<String>) {
        self.passed.push(name.into());
    }

    /// Sets a variable, whatever the host has.
    pub(crate) fn set(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.set.insert(name.into(), value.into());
    }

    /// Sets a variable that nobody has set or named yet.
    pub(crate) fn set_if_unset(&mut self, name: &str, value: &str) {
        if !self.passed.iter().any(|pattern| matches(pattern, OsStr::new(name))) {
            self.set.entry(name.into()).or_insert_with(|| value.into());
        }
    }

    /// The names of what the caller has named or set.
    pub(crate) fn named(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let set = self.set.keys().map(|name| name.to_string_lossy());
        set.chain(self.passed.iter().map(|name| Cow::Borrowed(name.as_str())))
    }

    /// All that the program gets, out of what the host has.
    pub(crate) fn out_of(&self, host: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<OsString, OsString> {
        let is_one_of = |patterns: &[&str], name: &OsStr| patterns.iter().any(|pattern| matches(pattern, name));
        let is_passed = |name: &OsStr| {
            self.passed.iter().any(|pattern| matches(pattern, name))
                || !is_one_of(self.kept_back, name) && (is_one_of(EVERYBODYS, name) || is_one_of(self.needed, name))
        };
        let mut all: BTreeMap<_, _> = host.into_iter().filter(|(name, _)| is_passed(name)).collect();
        all.extend(self.set.clone());
        all
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
    fn a_program_gets_what_everybody_gets_what_it_needs_and_what_was_named_or_set_and_nothing_else() {
        let mut environment = Environment::of(&["AGENT_*"], &["AGENT_INSIDE*"]);
        environment.pass("AGENT_INSIDE_2");
        environment.pass("MINE");
        environment.set("TZ", "UTC");
        let host = [
            "PATH",
            "LC_ALL",
            "TZ",
            "SECRET",
            "PATHS",
            "AGENT_KEY",
            "AGENT_INSIDE_1",
            "AGENT_INSIDE_2",
            "MINE",
            "XDG_RUNTIME_DIR",
        ];
        let host = host.map(|name| (OsString::from(name), OsString::from("host")));
        let expected = [
            ("AGENT_INSIDE_2", "host"),
            ("AGENT_KEY", "host"),
            ("LC_ALL", "host"),
            ("MINE", "host"),
            ("PATH", "host"),
            ("TZ", "UTC"),
            ("XDG_RUNTIME_DIR", "host"),
        ];
        assert_eq!(environment.out_of(host), expected.map(|(name, value)| (name.into(), value.into())).into());
        assert_eq!(environment.named().collect::<Vec<_>>(), ["TZ", "AGENT_INSIDE_2", "MINE"]);
    }
}
