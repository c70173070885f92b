//! Tools: closures that a model may call.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::conversation::Part;
use crate::executor::Call;

type Act = dyn Fn(&Value, &Call<'_>) -> Result<String, Box<dyn Error + Send + Sync>> + Send + Sync;

/// Something that a model may call while it works on a unit.
///
/// It gets what the model gives it, which need not fit the schema, and the call, to see whether it is to stop. What it returns is told to
/// the model, an error too: the model may then try something else. It is called again for the same request if the attempt ends
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

/// What a model gets for a call, whatever it called.
pub(super) fn result_of(tools: &[Tool], id: &str, name: &str, input: &Value, call: &Call<'_>) -> Part {
    if let Value::String(unread) = input {
        return Part::tool_error(id, format!("these arguments are no JSON object: {unread}"));
    }
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
        return Part::tool_error(id, format!("there is no tool `{name}`"));
    };
    match (tool.act)(input, call) {
        Ok(text) => Part::tool_result(id, text),
        Err(error) => Part::tool_error(id, error.to_string()),
    }
}
