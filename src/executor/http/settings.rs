//! What is asked, of whom and how: everything that a caller can set.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::address::Address;
use super::secret::Key;
use super::tool::{self, Tool};
use super::wire::Wire;
use crate::attempt::Provenance;
use crate::executor::agent_cli::{option, recorded};
use crate::limits::Estimate;
use crate::money::{Price, PriceTable};
use crate::repository::Archive;
use crate::same_work::Parameters;

/// How many requests an attempt may make, if nobody says so.
const MAX_TURNS: u32 = 25;

/// How long a connection may take, if nobody says so.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// See the methods of [`HttpApi`](super::HttpApi) that set them.
pub struct Settings {
    pub(super) base_url: String,
    pub(super) key: Key,
    pub(super) model: String,
    pub(super) system_prompt: Option<String>,
    pub(super) max_tokens: Option<u32>,
    pub(super) temperature: Option<f64>,
    pub(super) json_schema: Option<Value>,
    pub(super) tools: Vec<Tool>,
    pub(super) max_turns: u32,
    pub(super) tool_result_limit_bytes: usize,
    /// What the provider's own methods set.
    pub(super) fields: Map<String, Value>,
    /// What the caller sets as he likes; what is null is left out.
    pub(super) extra: Map<String, Value>,
    pub(super) headers: Vec<(String, String)>,
    pub(super) connect_limit: Duration,
    pub(super) first_byte_limit: Option<Duration>,
    pub(super) silence_limit: Option<Duration>,
    pub(super) uses_proxy: bool,
    /// A file of those who vouch for servers.
    pub(super) authorities: Option<PathBuf>,
    pub(super) prices: PriceTable,
    pub(super) history: Option<Arc<dyn Archive>>,
}

impl Settings {
    pub(super) fn of<W: Wire>(model: String) -> Settings {
        Settings {
            base_url: W::BASE_URL.to_owned(),
            key: Key::Variable(W::KEY_VARIABLE.to_owned()),
            model,
            system_prompt: None,
            max_tokens: None,
            temperature: None,
            json_schema: None,
            tools: Vec::new(),
            max_turns: MAX_TURNS,
            tool_result_limit_bytes: tool::RESULT_LIMIT_BYTES,
            fields: Map::new(),
            extra: Map::new(),
            headers: Vec::new(),
            connect_limit: CONNECT_LIMIT,
            first_byte_limit: None,
            silence_limit: None,
            uses_proxy: false,
            authorities: None,
            prices: PriceTable::new(),
            history: None,
        }
    }

    /// What a model costs, by the name that the provider gives it, or else by the one that was asked for.
    pub(super) fn price(&self, model: &str) -> Option<&Price> {
        self.prices.price(model).or_else(|| self.prices.price(&self.model))
    }

    /// What an attempt may cost, if it is known how long an answer may be. With tools there is no telling: each call of one is a request more.
    pub(super) fn estimate<W: Wire>(&self) -> Option<Estimate> {
        if !self.tools.is_empty() {
            return None;
        }
        Estimate::of(self.prices.price(&self.model)?, self.answer_tokens::<W>()?)
    }

    /// How many tokens an answer may have, if there is a limit.
    pub(super) fn answer_tokens<W: Wire>(&self) -> Option<u64> {
        let body = self.body::<W>(&[]);
        ["max_tokens", "max_completion_tokens"].iter().find_map(|&name| body.get(name)?.as_u64())
    }

    /// What is sent.
    pub(super) fn body<W: Wire>(&self, conversation: &[Value]) -> Value {
        let mut body = W::body(self, conversation);
        for (name, value) in self.fields.iter().chain(&self.extra) {
            match &mut body {
                Value::Object(body) if value.is_null() => _ = body.remove(name),
                body => body[name] = value.clone(),
            }
        }
        body
    }

    /// All that an answer depends on besides the prompt: who is asked, and everything that is sent. With whose key does not count.
    pub(super) fn parameters<W: Wire>(&self) -> Parameters {
        let address = Address::of(&self.base_url, W::PATH).map(|address| address.shown);
        let query = self.base_url.split_once('?').map(|(_, query)| query);
        Parameters::of(&json!({
            "address": address.unwrap_or_else(|_| self.base_url.clone()),
            "query": query,
            "headers": self.headers,
            "body": self.body::<W>(&[]),
        }))
    }

    /// What is recorded of every attempt: all that has a name of its own, and of what else was set only the names.
    pub(super) fn recorded<W: Wire>(&self) -> Provenance {
        let address = Address::of(&self.base_url, W::PATH).map(|address| address.shown);
        let tools = self.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>().join(",");
        let named = [
            ("base_url", address.ok()),
            ("certificate_authority", self.authorities.as_ref().map(|file| file.display().to_string())),
            ("system_prompt", self.system_prompt.clone()),
            ("max_tokens", self.max_tokens.map(|tokens| tokens.to_string())),
            ("temperature", self.temperature.map(|temperature| temperature.to_string())),
            ("json_schema", self.json_schema.as_ref().map(Value::to_string)),
            ("tools", Some(tools).filter(|tools| !tools.is_empty())),
            ("max_turns", Some(self.max_turns.to_string())),
        ];
        let named = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        let fields = self.fields.iter().map(|(name, value)| (name.clone(), value.to_string()));
        let mut arguments: Vec<String> =
            named.chain(fields).map(|(name, value)| recorded(&option(&name, value))).collect();
        arguments.extend(self.extra.keys().map(|name| format!("extra:{name}")));
        arguments.extend(self.headers.iter().map(|(name, _)| format!("header:{name}")));
        Provenance { model: Some(self.model.clone()), arguments, ..Provenance::of(W::NAME) }
    }
}

/// Without secrets: values that the caller sets as he likes may be some.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("base_url", &Address::of(&self.base_url, "").map(|address| address.shown).ok())
            .field("key", &self.key)
            .field("model", &self.model)
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}
