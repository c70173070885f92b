//! What an executor gives back when it succeeded.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attempt::OutputFile;
use crate::money::Charge;

/// What came out of an attempt.
///
/// ```
/// use workcrew::WorkResult;
///
/// let result = WorkResult::text("Paris").json(serde_json::json!({ "capital": "Paris" })).session("s-17");
/// assert_eq!(result.output.as_deref(), Some("Paris"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct WorkResult {
    /// The answer as text.
    pub output: Option<String>,
    /// What came out of it, for programs.
    pub json: Option<Value>,
    /// Files that it made.
    pub output_files: Vec<OutputFile>,
    /// The provider's session, if it was not told during the call.
    pub session_id: Option<String>,
    /// What was used in all, one line per model; it replaces what was told during the call.
    pub charges: Vec<Charge>,
}

impl WorkResult {
    /// A result with nothing to show.
    pub fn empty() -> WorkResult {
        WorkResult::default()
    }

    /// An answer.
    pub fn text(output: impl Into<String>) -> WorkResult {
        WorkResult { output: Some(output.into()), ..WorkResult::default() }
    }

    /// What came out of it, for programs.
    pub fn json(mut self, json: impl Into<Value>) -> WorkResult {
        self.json = Some(json.into());
        self
    }

    /// A file that it made.
    pub fn output_file(mut self, file: OutputFile) -> WorkResult {
        self.output_files.push(file);
        self
    }

    /// The provider's session.
    pub fn session(mut self, session_id: impl Into<String>) -> WorkResult {
        self.session_id = Some(session_id.into());
        self
    }

    /// What was used of a model.
    pub fn charge(mut self, charge: Charge) -> WorkResult {
        self.charges.push(charge);
        self
    }
}

impl From<&str> for WorkResult {
    fn from(output: &str) -> WorkResult {
        WorkResult::text(output)
    }
}

impl From<String> for WorkResult {
    fn from(output: String) -> WorkResult {
        WorkResult::text(output)
    }
}
