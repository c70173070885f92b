//! What every program can be told that is run for a call, and how its arguments are made and recorded.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::chain::Hash;
use crate::executor::Call;
use crate::executor::process::{ChildCommand, Environment, Input, Limits};

/// Longer arguments are recorded by their size and hash.
const RECORDED_ARGUMENT_LIMIT_BYTES: usize = 200;

/// What every program can be told, whatever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor) struct Setup {
    pub(in crate::executor) program: OsString,
    pub(in crate::executor) arguments: Vec<OsString>,
    pub(in crate::executor) environment: Environment,
    pub(in crate::executor) directory: Option<PathBuf>,
    pub(in crate::executor) limits: Limits,
}

impl Setup {
    pub(in crate::executor) fn of(program: impl Into<OsString>, environment: Environment) -> Setup {
        Setup {
            program: program.into(),
            arguments: Vec::new(),
            environment,
            directory: None,
            limits: Limits::default(),
        }
    }

    /// A child that gets these arguments and the prompt of a call on its input, for that call.
    pub(in crate::executor) fn child(&self, arguments: Vec<OsString>, call: &Call<'_>) -> ChildCommand {
        let workspace = call.unit().options.workspace_dir.as_ref().map(PathBuf::from);
        ChildCommand {
            program: self.program.clone(),
            arguments,
            environment: self.environment.clone(),
            directory: workspace.or_else(|| self.directory.clone()),
            input: Input::All(call.prompt().as_bytes().to_vec()),
            limits: self.limits,
        }
    }

    /// The names of the variables, and the caller's own arguments without what they say: either may be a secret.
    pub(in crate::executor) fn recorded(&self) -> Vec<String> {
        let mut recorded: Vec<String> = self.environment.named().map(|name| format!("env:{name}")).collect();
        recorded.extend(self.arguments.iter().map(|argument| hidden(argument)));
        recorded
    }
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
