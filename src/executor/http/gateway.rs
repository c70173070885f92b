//! A gateway: elsewhere if there is a URL, else in this process.

use super::OpenAiApi;
use crate::executor::Executor;

/// What executes units that go through a gateway: an external one that speaks as OpenAI does if there is a URL, else an executor in this
/// process.
///
/// ```
/// use workcrew::{Executor, Simulated};
/// use workcrew::executor::http::gateway;
///
/// let url = std::env::var("GATEWAY_URL").ok();
/// let executor = gateway(url.as_deref(), |url| workcrew::OpenAiApi::new("any-model").base_url(url), Simulated::new());
/// # assert_eq!(executor.name(), "simulated");
/// # let executor = gateway(Some("http://localhost:4000/v1"), |url| workcrew::OpenAiApi::new("any-model").base_url(url), Simulated::new());
/// # assert_eq!(executor.name(), "openai_api");
/// ```
pub fn gateway(
    url: Option<&str>,
    external: impl FnOnce(&str) -> OpenAiApi,
    in_process: impl Executor,
) -> Box<dyn Executor> {
    match url.filter(|url| !url.is_empty()) {
        Some(url) => Box::new(external(url)),
        None => Box::new(in_process),
    }
}
