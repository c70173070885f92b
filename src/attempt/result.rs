//! What an attempt left behind, and what proves it once it is gone.

use serde::{Deserialize, Serialize};

use super::{Attempt, Failure, OutputFile};
use crate::chain::Hash;
use crate::conversation::{Raw, to_json};
use crate::money::Charge;

/// What an attempt left behind, apart from its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptResult {
    /// What was really sent, if it was rendered.
    pub rendered_prompt: Option<String>,
    /// What came out of it, as JSON.
    pub result: Option<Raw>,
    /// The answer as text.
    pub output: Option<String>,
    /// What the executor reported after the attempt was given up, as JSON.
    pub late_result: Option<Raw>,
    /// Files that it made.
    pub output_files: Vec<OutputFile>,
    /// The hashes of the four contents, and of why the attempt failed, kept in their place once they were purged.
    pub purged: Option<ResultHashes>,
}

/// The hashes of the contents that an attempt left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResultHashes {
    /// Of what was really sent.
    pub rendered_prompt: Option<Hash>,
    /// Of what came out of it.
    pub result: Option<Hash>,
    /// Of the answer.
    pub output: Option<Hash>,
    /// Of what was reported too late.
    pub late_result: Option<Hash>,
    /// Of what the attempt's failure says for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<Hash>,
}

impl AttemptResult {
    /// What stands for contents of which only the hashes are at hand.
    pub(crate) fn of_hashes(hashes: ResultHashes, output_files: Vec<OutputFile>) -> AttemptResult {
        AttemptResult { output_files, purged: Some(hashes), ..AttemptResult::default() }
    }

    /// The hashes of what an attempt left, and of why it failed, whether that is still there or not.
    pub fn hashes(&self, attempt: &Attempt) -> ResultHashes {
        let text = |text: &Option<String>| text.as_deref().map(|text| Hash::of(text.as_bytes()));
        let json = |json: &Option<Raw>| json.as_ref().map(|json| Hash::of(json.as_bytes()));
        let mut hashes = self.purged.clone().unwrap_or_else(|| ResultHashes {
            rendered_prompt: text(&self.rendered_prompt),
            result: json(&self.result),
            output: text(&self.output),
            late_result: json(&self.late_result),
            failure_message: None,
        });
        let message = attempt.failure.as_ref().map(Failure::message_hash);
        hashes.failure_message = hashes.failure_message.or(message);
        hashes
    }

    /// The hash over the record of the attempt, what it left behind and what it cost, which the journal keeps.
    ///
    /// Its conversation is not in it: the journal keeps the last link beside this. It is made of the
    /// hashes of the contents, so that it can be checked after a purge too.
    pub fn digest(&self, attempt: &Attempt, charges: &[Charge]) -> Hash {
        let hashes = self.hashes(attempt);
        let mut digest = attempt
            .hashed(hashes.failure_message.as_ref())
            .optional_hash(hashes.rendered_prompt.as_ref())
            .optional_hash(hashes.result.as_ref())
            .optional_hash(hashes.output.as_ref())
            .optional_hash(hashes.late_result.as_ref());
        for file in &self.output_files {
            let size_bytes = i64::try_from(file.size_bytes).unwrap_or(i64::MAX);
            digest = digest.text("file").text(&file.path).number(size_bytes).hash(&file.hash);
        }
        for charge in charges {
            let charge = to_json(charge).expect("a charge is flat");
            digest = digest.text("charge").bytes(&charge);
        }
        digest.finish()
    }
}
