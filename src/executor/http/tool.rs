//! Tools: closures that a model may call.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::conversation::Part;
use crate::executor::Call;

/// How much of what a tool returns the model is told, if nobody says so: some 25,000 tokens.
pub(super) const RESULT_LIMIT_BYTES: usize = 100_000;

type Act = dyn Fn(&Value, &Call<'_>) -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Something that a model may call while it works on a unit.
///
/// It gets what the model gives it, which need not fit the schema, and the call, to see whether it is to stop. What it returns is told to
/// the model, an error too: the model may then try something else. What is too [long](super::HttpApi::tool_result_limit) is cut, and the model is told so.
/// It is called again for the same request if the attempt ends
/// before its results are stored, so it should be one that may be called twice.
///
/// ```
/// use serde_json::json;
/// use workcrew::AnthropicApi;
/// use workcrew::executor::http::Tool;
///
/// let schema = json!({
///     "type": "object",
///     "properties": { "city": { "type": "string" } },
///     "required": ["city"],
/// });
/// let weather = Tool::new("weather", "What the weather is like in a city.", schema, |input, _call| {
///     let city = input["city"].as_str().ok_or("which city?")?;
///     Ok(format!("It rains in {city}."))
/// });
/// let executor = AnthropicApi::new("claude-sonnet-4-5").tool(weather).max_turns(5);
/// ```
#[derive(Clone)]
pub struct Tool {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) schema: Value,
    act: Arc<Act>,
}

impl Tool {
    /// A tool of this name, what it is for, what it takes as a JSON schema, and what it does.
    pub fn new(
        name: impl Into<String>,
        description: impl Into<String>,
        schema: impl Into<Value>,
        act: impl Fn(&Value, &Call<'_>) -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync + 'static,
    ) -> Tool {
        Tool { name: name.into(), description: description.into(), schema: schema.into(), act: Arc::new(act) }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a tool has said, or what else a model gets for a call of one.
pub(super) fn called(tools: &[Tool], name: &str, input: &Value, call: &Call<'_>) -> Result<String, String> {
    if let Value::String(unread) = input {
        return Err(format!("these arguments are no JSON object: {unread}"));
    }
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
        return Err(format!("there is no tool `{name}`"));
    };
    (tool.act)(input, call).map_err(|error| error.to_string())
}

/// The same as a part of a message, of no more than so many bytes and a word on what is missing.
pub(super) fn result_of(id: &str, said: Result<String, String>, limit_bytes: usize) -> Part {
    match said {
        Ok(text) => Part::tool_result(id, cut(text, limit_bytes)),
        Err(error) => Part::tool_error(id, cut(error, limit_bytes)),
    }
}

fn cut(mut text: String, limit_bytes: usize) -> String {
    let whole_bytes = text.len();
    if whole_bytes > limit_bytes {
        let end = (0..=limit_bytes).rev().find(|&at| text.is_char_boundary(at)).unwrap_or_default();
        text.truncate(end);
        text.push_str(&format!("\n[cut off: these are the first {end} of {whole_bytes} bytes]"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_is_cut_between_letters_and_says_so() {
        assert_eq!(cut("grün".to_owned(), 5), "grün");
        assert_eq!(cut("grün".to_owned(), 4), "grü\n[cut off: these are the first 4 of 5 bytes]");
        assert_eq!(cut("grün".to_owned(), 3), "gr\n[cut off: these are the first 2 of 5 bytes]");
        assert_eq!(cut("ü".to_owned(), 0), "\n[cut off: these are the first 0 of 2 bytes]");
        assert_eq!(cut(String::new(), 0), "");
    }
}
