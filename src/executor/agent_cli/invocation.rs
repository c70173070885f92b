//! What is needed to start an agent's program, as data: starting it is not done here.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use crate::chain::Hash;
use crate::executor::Call;

/// How long a child may linger once its answer has come.
const AFTER_ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Longer arguments are recorded by their size and hash.
const RECORDED_ARGUMENT_LIMIT_BYTES: usize = 200;

/// How long a child may do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor) struct Limits {
    /// How long it may say nothing.
    pub(in crate::executor) silence: Option<Duration>,
    /// How long it may take until it says something.
    pub(in crate::executor) start: Option<Duration>,
    /// How long it may live on once its answer has come.
    pub(in crate::executor) after_answer: Duration,
}

/// Which variables of the host's environment an agent gets, besides those that every child gets and those that are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor) struct VariableRules {
    /// Passed on if they begin so.
    pub(in crate::executor) kept_prefixes: &'static [&'static str],
    /// Never passed on if they begin so, whatever else says they are, unless they are named.
    pub(in crate::executor) removed_prefixes: &'static [&'static str],
}

/// What every agent's program can be told, whatever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor) struct Setup {
    pub(in crate::executor) program: OsString,
    pub(in crate::executor) arguments: Vec<OsString>,
    pub(in crate::executor) variables: Vec<(OsString, OsString)>,
    pub(in crate::executor) passed_on: Vec<OsString>,
    pub(in crate::executor) directory: Option<PathBuf>,
    pub(in crate::executor) limits: Limits,
}

impl Setup {
    pub(in crate::executor) fn of(program: &str) -> Setup {
        Setup {
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            passed_on: Vec::new(),
            directory: None,
            limits: Limits { silence: None, start: None, after_answer: AFTER_ANSWER_LIMIT },
        }
    }

    /// A child that gets these arguments, for one call.
    pub(in crate::executor) fn invocation(
        &self,
        arguments: Vec<OsString>,
        rules: VariableRules,
        call: &Call<'_>,
    ) -> Invocation {
        let workspace = call.unit().options.workspace_dir.as_ref().map(PathBuf::from);
        Invocation {
            program: self.program.clone(),
            arguments,
            directory: workspace.or_else(|| self.directory.clone()),
            variables: self.variables.clone(),
            passed_on: self.passed_on.clone(),
            rules,
            limits: self.limits,
        }
    }

    /// The names of the variables, and the caller's own arguments without what they say: either may be a secret.
    pub(in crate::executor) fn recorded(&self) -> Vec<String> {
        let names = self.variables.iter().map(|(name, _)| name).chain(&self.passed_on);
        let mut recorded: Vec<String> = names.map(|name| format!("env:{}", name.to_string_lossy())).collect();
        recorded.extend(self.arguments.iter().map(|argument| hidden(argument)));
        recorded
    }
}

/// A child that is to be started. It gets the call's prompt on its input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor) struct Invocation {
    pub(in crate::executor) program: OsString,
    pub(in crate::executor) arguments: Vec<OsString>,
    /// Where it runs; where the host does if not set.
    pub(in crate::executor) directory: Option<PathBuf>,
    /// Variables with their values.
    pub(in crate::executor) variables: Vec<(OsString, OsString)>,
    /// Variables that it gets as the host has them.
    pub(in crate::executor) passed_on: Vec<OsString>,
    pub(in crate::executor) rules: VariableRules,
    pub(in crate::executor) limits: Limits,
}

/// An argument as it is recorded: a long one by its size and hash.
pub(in crate::executor) fn recorded(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    if text.len() <= RECORDED_ARGUMENT_LIMIT_BYTES {
        return text.into_owned();
    }
    let (name, value) = text.split_once('=').unwrap_or(("", &text));
    let named = if name.is_empty() { String::new() } else { format!("{name}=") };
    format!("{named}({} bytes, blake3 {})", value.len(), Hash::of(value.as_bytes()))
}

/// An argument of the caller's as it is recorded: the name of an option, and nothing of what it is set to.
pub(in crate::executor) fn hidden(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    match text.split_once('=') {
        Some((name, _)) if name.starts_with('-') => format!("{name}=…"),
        None if text.starts_with("--") => text.into_owned(),
        // What follows a short option without a space may be its value.
        None if text.starts_with('-') => text.chars().take(2).collect(),
        _ => "…".to_owned(),
    }
}

/// An option with its value in one argument.
pub(in crate::executor) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut argument = OsString::from(name);
    argument.push("=");
    argument.push(value);
    argument
}
