//! What makes two pieces of work the same: who does it, what the answer depends on, and the prompt.
//!
//! [`Parameters`] are what an executor says of itself, a [`WorkKey`] is what the repository is asked with. Both are hashes, so nothing secret can
//! be read from them, and both are made from an encoding of their own, which does not depend on the order of fields: the same today, in another
//! process and after an update. Should the encoding ever change, its name changes too, and nothing from before is the same.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chain::{Hash, HashBuilder};
use crate::unit::UnitOptions;

/// All that the answers of an executor depend on besides the prompt, such as the model and how it is asked. Only its hash is kept.
///
/// ```
/// use serde_json::json;
/// use workcrew::same_work::Parameters;
///
/// let parameters = Parameters::of(&json!({ "model": "large", "temperature": 0.5 }));
/// assert_eq!(parameters, Parameters::of(&json!({ "temperature": 0.5, "model": "large" })));
/// assert_ne!(parameters, Parameters::of(&json!({ "temperature": 1.0, "model": "large" })));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Parameters(Hash);

impl Parameters {
    /// These parameters.
    pub fn of(value: &Value) -> Parameters {
        Parameters(encoded(Hash::builder("workcrew parameters 1"), value).finish())
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Parameters({})", self.0)
    }
}

/// Names a piece of work: units that have the same need the same answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkKey(Hash);

impl WorkKey {
    /// What an executor of this name, with these parameters, is to do with a prompt. Of how a unit wants to be executed only where counts, and in
    /// how many turns.
    pub fn of(executor: &str, parameters: &Parameters, options: &UnitOptions, prompt: &str) -> WorkKey {
        let key = Hash::builder("workcrew work 1")
            .text(executor)
            .hash(&parameters.0)
            .optional_text(options.workspace_dir.as_deref())
            .optional_number(options.max_iterations.map(i64::from))
            .hash(&Hash::of(prompt.as_bytes()));
        WorkKey(key.finish())
    }

    /// The key as a hash, under which it is stored.
    pub fn hash(&self) -> &Hash {
        &self.0
    }
}

impl fmt::Debug for WorkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WorkKey({})", self.0)
    }
}

/// Each value with what it is and how much there is of it, so that no two different ones have the same bytes. Fields go in the order of their names.
fn encoded(builder: HashBuilder, value: &Value) -> HashBuilder {
    match value {
        Value::Null => builder.text("null"),
        Value::Bool(truth) => builder.text("truth").number(i64::from(*truth)),
        // As it is written: 1 and 1.0 may mean something else to a provider.
        Value::Number(number) => builder.text("number").text(&number.to_string()),
        Value::String(text) => builder.text("text").text(text),
        Value::Array(values) => values.iter().fold(counted(builder.text("list"), values.len()), encoded),
        Value::Object(fields) => {
            // With a feature that another crate may switch on a map keeps the order in which it was filled.
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_unstable_by_key(|&(name, _)| name);
            let builder = counted(builder.text("fields"), fields.len());
            fields.into_iter().fold(builder, |builder, (name, value)| encoded(builder.text(name), value))
        }
    }
}

fn counted(builder: HashBuilder, count: usize) -> HashBuilder {
    builder.number(i64::try_from(count).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn different_parameters_are_different_however_they_are_nested() {
        let all = [
            json!(null),
            json!(false),
            json!(0),
            json!(0.0),
            json!(""),
            json!("0"),
            json!("null"),
            json!([]),
            json!({}),
            json!([[]]),
            json!([null]),
            json!([[], []]),
            json!([["a"], "b"]),
            json!(["a", "b"]),
            json!(["ab"]),
            json!({ "a": "b" }),
            json!({ "a": ["b"] }),
            json!({ "a": { "b": 1 } }),
            json!({ "a": {}, "b": 1 }),
        ];
        let keys: BTreeSet<String> = all.iter().map(|value| format!("{:?}", Parameters::of(value))).collect();
        assert_eq!(keys.len(), all.len());
    }

    #[test]
    fn the_order_of_fields_is_nobodys_parameter() {
        let read = |text: &str| Parameters::of(&serde_json::from_str(text).unwrap());
        assert_eq!(
            read(r#"{"a":{"x":1,"y":[{"p":1,"q":2}]},"b":2}"#),
            read(r#"{"b":2,"a":{"y":[{"q":2,"p":1}],"x":1}}"#)
        );
        assert_ne!(read(r#"{"a":[1,2]}"#), read(r#"{"a":[2,1]}"#));
    }

    #[test]
    fn every_part_of_a_key_counts_and_none_runs_into_another() {
        let (one, other) = (Parameters::of(&json!(1)), Parameters::of(&json!(2)));
        let mut there = UnitOptions { workspace_dir: Some("/there".to_owned()), ..UnitOptions::default() };
        let few = UnitOptions { max_iterations: Some(1), ..UnitOptions::default() };
        let anywhere = UnitOptions::default();
        let keys = BTreeSet::from([
            WorkKey::of("api", &one, &anywhere, "why"),
            WorkKey::of("other", &one, &anywhere, "why"),
            WorkKey::of("api", &other, &anywhere, "why"),
            WorkKey::of("api", &one, &there, "why"),
            WorkKey::of("api", &one, &few, "why"),
            WorkKey::of("api", &one, &anywhere, "why?"),
            WorkKey::of("apiw", &one, &anywhere, "hy"),
        ]);
        assert_eq!(keys.len(), 7);
        // How long it may take and what it may cost changes no answer, nor does with whom it keeps together.
        there.workspace_dir = None;
        there.timeout = Some(std::time::Duration::from_secs(1));
        there.affinity_key = Some("a".to_owned());
        there.is_idempotent = true;
        assert_eq!(WorkKey::of("api", &one, &there, "why"), WorkKey::of("api", &one, &anywhere, "why"));
    }

    /// What is stored must be found again after an update.
    #[test]
    fn a_key_stays_what_it_is() {
        let parameters = Parameters::of(&json!({ "model": "large", "stop": ["a", null, true, 0.5] }));
        let key = WorkKey::of("api", &parameters, &UnitOptions::default(), "What is the capital of France?");
        assert_eq!(key.hash().to_string(), "f313cdf63d3eef2f59f0e945a21667ce9968f0b949fee0b0886c3987afd73303");
    }
}
