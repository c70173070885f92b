//! The executors: one for every provider, the same but for how they speak.

use std::fmt;
use std::marker::PhantomData;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::address::Address;
use super::errand::LeftBehind;
use super::secret::Key;
use super::settings::Settings;
use super::talk;
use super::tool::Tool;
use super::trust;
use super::wire::Wire;
use crate::attempt::Provenance;
use crate::executor::{Call, ExecuteError, Executor, Unavailable, WorkResult};
use crate::limits::Estimate;
use crate::money::{Price, PriceTable};
use crate::repository::Archive;

/// Asks a model over HTTP: an [`AnthropicApi`](super::AnthropicApi) or an [`OpenAiApi`](super::OpenAiApi).
pub struct HttpApi<W: Wire> {
    pub(super) settings: Settings,
    pub(super) left_behind: LeftBehind,
    wire: PhantomData<fn() -> W>,
}

impl<W: Wire> HttpApi<W> {
    /// Asks this model.
    pub fn new(model: impl Into<String>) -> HttpApi<W> {
        HttpApi { settings: Settings::of::<W>(model.into()), left_behind: LeftBehind::default(), wire: PhantomData }
    }

    /// Where it is asked (the provider itself), such as `http://localhost:11434/v1`. What stands behind a question mark is sent with every
    /// request; neither that nor a user and a password are recorded.
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.settings.base_url = url.into();
        self
    }

    /// The variable that has the key (`ANTHROPIC_API_KEY` or `OPENAI_API_KEY`). It is read for every request and kept nowhere.
    pub fn key_variable(mut self, name: impl Into<String>) -> Self {
        self.settings.key = Key::Variable(name.into());
        self
    }

    /// Asks for the key before every request, such as of a keyring (it is in a variable), and when a tool has returned, which may have told it. It is kept
    /// nowhere.
    pub fn key_from(mut self, ask: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.key = Key::Asked(Arc::new(ask));
        self
    }

    /// Sends no key (it does), for a server of one's own.
    pub fn without_key(mut self) -> Self {
        self.settings.key = Key::Needless;
        self
    }

    /// What the model is told before the prompt (nothing).
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.settings.system_prompt = Some(prompt.into());
        self
    }

    /// How many tokens an answer may have (4,096 for Anthropic, else as the provider does by itself). An answer that would be longer is a
    /// failure.
    pub fn max_tokens(mut self, tokens: u32) -> Self {
        self.settings.max_tokens = Some(tokens);
        self
    }

    /// How much chance there is in an answer (as the provider does by itself).
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.settings.temperature = Some(temperature);
        self
    }

    /// The form in which it is to answer, as a JSON schema (text). An answer in another form is a failure. Providers take only some schemas: most
    /// want `additionalProperties` to be `false` in every object.
    pub fn json_schema(mut self, schema: impl Into<Value>) -> Self {
        self.settings.json_schema = Some(schema.into());
        self
    }

    /// One more tool that the model may call (none).
    pub fn tool(mut self, tool: Tool) -> Self {
        self.settings.tools.push(tool);
        self
    }

    /// How many requests may be made for a unit that does not say so itself (25); none counts as one. There is one more each time that the
    /// model calls tools.
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.settings.max_turns = turns;
        self
    }

    /// How much of what a tool returns the model is told, in bytes (100,000, some 25,000 tokens). What is longer is cut, and the model is told so.
    pub fn tool_result_limit(mut self, bytes: usize) -> Self {
        self.settings.tool_result_limit_bytes = bytes;
        self
    }

    /// Sets a field of the request, in place of what would be sent (nothing else is sent); null leaves it out. Only its name is recorded.
    pub fn extra(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.settings.extra.insert(name.into(), value.into());
        self
    }

    /// Sends one more header (none), such as `anthropic-beta`. Only its name is recorded.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.headers.push((name.into(), value.into()));
        self
    }

    /// How long looking its name up may take, and how long connecting (10 seconds each). A cancel does not wait for either.
    pub fn connect_limit(mut self, limit: Duration) -> Self {
        self.settings.connect_limit = limit;
        self
    }

    /// How long it may take until an answer begins (as long as the attempt may take).
    pub fn first_byte_limit(mut self, limit: Duration) -> Self {
        self.settings.first_byte_limit = Some(limit);
        self
    }

    /// How long nothing at all may come, from the request on (as long as the attempt may take). Some models send nothing while they think.
    pub fn silence_limit(mut self, limit: Duration) -> Self {
        self.settings.silence_limit = Some(limit);
        self
    }

    /// Goes through the proxy that the environment names, in `HTTPS_PROXY` and the like (it does not).
    pub fn proxy_from_env(mut self) -> Self {
        self.settings.uses_proxy = true;
        self
    }

    /// The file of the authorities that vouch for the server, in the form of PEM (those that browsers believe, as Mozilla lists them), such as
    /// that of a company which has a gateway of its own. It takes their place: who is to be believed beside it goes into the same file. It is read for every attempt.
    pub fn certificate_authority(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.authorities = Some(file.into());
        self
    }

    /// What the model costs (unknown).
    pub fn price(self, price: Price) -> Self {
        let model = self.settings.model.clone();
        self.prices(PriceTable::new().with(model, price))
    }

    /// What each model costs (unknown), by the name that the provider gives it in its answers; if that is unknown, by the one that was
    /// asked for.
    pub fn prices(mut self, prices: PriceTable) -> Self {
        self.settings.prices = prices;
        self
    }

    /// Where the conversations are that units [carry on](crate::NewUnit::resume_session): the repository of the pool (nowhere, and a unit
    /// that names a session fails).
    pub fn history(mut self, archive: impl Into<Arc<dyn Archive>>) -> Self {
        self.settings.history = Some(archive.into());
        self
    }

    /// Sets a field that has a name of its own here.
    pub(super) fn field(mut self, name: &str, value: Value) -> Self {
        self.settings.fields.insert(name.to_owned(), value);
        self
    }
}

impl<W: Wire> Executor for HttpApi<W> {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        talk::talk(self, call)
    }

    fn name(&self) -> &str {
        W::NAME
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        let address = Address::of(&self.settings.base_url, W::PATH);
        address.map_err(|wrong| Unavailable::new(wrong.message, "give one such as `https://example.org/v1`"))?;
        let key = self.settings.key.read();
        key.map_err(|missing| Unavailable::new(missing.message, "set it, or say where the key is"))?;
        let trust = trust::config(self.settings.authorities.as_deref());
        trust.map_err(|wrong| Unavailable::new(wrong.message, "give the file of whoever vouches for the server"))?;
        Ok(())
    }

    fn estimate(&self) -> Option<Estimate> {
        self.settings.estimate::<W>()
    }

    fn provider(&self) -> Option<String> {
        let address = Address::of(&self.settings.base_url, W::PATH).ok()?;
        Some(format!("{} {}", W::NAME, address.shown))
    }

    fn answer_tokens(&self) -> Option<u64> {
        self.settings.answer_tokens::<W>()
    }

    fn provenance(&self) -> Provenance {
        self.settings.recorded::<W>()
    }
}

impl<W: Wire> fmt::Debug for HttpApi<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpApi").field("name", &W::NAME).field("settings", &self.settings).finish_non_exhaustive()
    }
}
