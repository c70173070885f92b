//! What the real programs have printed, played again line by line.

use std::path::PathBuf;

use serde_json::Value;

use crate::conversation::{Message, Part, Role};
use crate::executor::process::{Exit, Heard, How, Line, Reader};
use crate::executor::scene::{Scene, Told};
use crate::executor::{ExecuteError, Then, WorkResult};
use crate::money::{Charge, Cost, Tokens};

/// The output of one run of a program.
#[derive(Debug)]
pub(in crate::executor) struct Capture {
    pub(in crate::executor) lines: Vec<String>,
    pub(in crate::executor) exit: Exit,
}

impl Capture {
    /// The capture of this name.
    pub(in crate::executor) fn of(name: &str) -> Capture {
        let file = |ending: &str| {
            let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
            std::fs::read_to_string(folder.join(format!("{name}.{ending}")))
        };
        let meta: Value = serde_json::from_str(&file("meta.json").unwrap()).unwrap();
        let code = i32::try_from(meta["exit_code"].as_i64().unwrap()).unwrap();
        let how = if code < 0 { How::Signalled(-code) } else { How::Exited(code) };
        let lines = file("stdout.ndjson").unwrap().lines().map(str::to_owned).collect();
        Capture { lines, exit: exit(how, &file("stderr.txt").unwrap_or_default()) }
    }

    /// Every capture of a program, by name.
    pub(in crate::executor) fn names(program: &str) -> Vec<String> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures");
        let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> =
            names.filter_map(|name| Some(name.strip_suffix(".meta.json")?.to_owned())).collect();
        names.retain(|name| name.starts_with(program));
        names.sort();
        names
    }
}

/// An exit with what was written to the other output.
pub(in crate::executor) fn exit(how: How, stderr: &str) -> Exit {
    Exit { how, stderr_tail: stderr.as_bytes().to_vec(), stderr_bytes: stderr.len() as u64 }
}

/// What came of it.
#[derive(Debug)]
pub(in crate::executor) struct Played {
    pub(in crate::executor) result: Result<WorkResult, ExecuteError>,
    pub(in crate::executor) heard: Vec<Heard>,
}

impl Played {
    /// Plays lines and then an exit.
    pub(in crate::executor) fn of<R: Reader>(
        mut reader: R,
        scene: &Scene,
        lines: impl IntoIterator<Item = impl AsRef<[u8]>>,
        exit: &Exit,
    ) -> Played {
        let call = scene.call();
        let heard =
            lines.into_iter().map(|line| reader.read(Line { bytes: line.as_ref(), truncation: None }, &call)).collect();
        Played { result: reader.conclude(exit, &call), heard }
    }

    /// The answer.
    pub(in crate::executor) fn output(&self) -> &str {
        self.result.as_ref().unwrap().output.as_deref().unwrap()
    }

    /// The kind of failure, and what follows.
    pub(in crate::executor) fn failure(self) -> (String, Then) {
        let (failure, then, _) = self.result.unwrap_err().into_parts();
        (failure.kind.as_str().to_owned(), then)
    }

    /// What was used, whatever came of it.
    pub(in crate::executor) fn charges(self) -> Vec<Charge> {
        self.result.unwrap_or_else(|error| error.into_parts().2).charges
    }
}

/// The tokens of charges.
pub(in crate::executor) fn tokens(charges: &[Charge]) -> Tokens {
    charges.iter().fold(Tokens::default(), |sum, charge| sum + charge.tokens)
}

/// What charges come to.
pub(in crate::executor) fn cost(charges: &[Charge]) -> String {
    charges.iter().map(Charge::cost).sum::<Cost>().to_string()
}

/// A conversation in a few letters: who speaks, and what kind of parts.
pub(in crate::executor) fn shape(messages: &[Message]) -> String {
    let part = |part: &Part| match part {
        Part::Text { .. } => "text".to_owned(),
        Part::Thinking { .. } => "thinking".to_owned(),
        Part::ToolUse { name, .. } => format!("use {name}"),
        Part::ToolResult { is_error: false, .. } => "answers".to_owned(),
        Part::ToolResult { .. } => "fails".to_owned(),
        Part::Image { .. } => "image".to_owned(),
        Part::Other { kind, .. } => format!("({kind})"),
        #[expect(unreachable_patterns, reason = "the enum may grow")]
        _ => "?".to_owned(),
    };
    let one = |message: &Message| {
        let parts: Vec<String> = message.parts.iter().map(part).collect();
        let role = match message.role {
            Role::System => "s",
            Role::User => "u",
            Role::Assistant => "a",
            Role::Tool => "t",
            #[expect(unreachable_patterns, reason = "the enum may grow")]
            _ => "?",
        };
        format!("{role}:{}", parts.join("+"))
    };
    messages.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The sessions that were told.
pub(in crate::executor) fn sessions(scene: &Scene) -> Vec<String> {
    let session = |told| if let Told::Session(session) = told { Some(session) } else { None };
    scene.told().into_iter().filter_map(session).collect()
}

/// What was told of each model last.
pub(in crate::executor) fn told_charges(scene: &Scene) -> Vec<Charge> {
    let mut last = std::collections::BTreeMap::new();
    for told in scene.told() {
        if let Told::Usage(charge) = told {
            last.insert(charge.model.clone(), charge);
        }
    }
    last.into_values().collect()
}

/// The checkpoint that was saved last.
pub(in crate::executor) fn checkpoint(scene: &Scene) -> Option<Value> {
    let value = |told| if let Told::Checkpoint(value) = told { Some(value) } else { None };
    scene.told().into_iter().filter_map(value).next_back()
}
