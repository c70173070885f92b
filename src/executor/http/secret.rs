//! What must be found nowhere: keys, and what else an address or a header may hold.
//!
//! A key is read for each request and kept no longer. Whatever comes from outside and is about to be recorded, an error's text above all, goes
//! through [`Secrets::hide`] first: providers repeat keys in their errors.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::failure::Failure;
use crate::executor::trouble::Trouble;

/// What is shorter is no secret, but the dummy that a server of one's own wants to see.
const SECRET_MIN_BYTES: usize = 16;

/// What stands where a secret was.
const HIDDEN: &str = "[hidden]";

/// Where the key comes from.
#[derive(Clone)]
pub(super) enum Key {
    Variable(String),
    Asked(Arc<dyn Fn() -> Option<String> + Send + Sync>),
    Needless,
}

impl Key {
    /// The key, if one is needed.
    pub(super) fn read(&self) -> Result<Option<String>, Failure> {
        let (found, missing) = match self {
            Key::Needless => return Ok(None),
            Key::Variable(name) => (std::env::var(name).ok(), format!("the variable `{name}` has no key")),
            Key::Asked(ask) => (ask(), "no key was given".to_owned()),
        };
        let found = found.map(|key| key.trim().to_owned()).filter(|key| !key.is_empty());
        let key = found.ok_or_else(|| Failure::new(Trouble::Authentication, missing))?;
        if key.bytes().any(|byte| byte.is_ascii_control() || !byte.is_ascii()) {
            let message = "the key has characters that cannot be sent, so it is no key";
            return Err(Failure::new(Trouble::Authentication, message));
        }
        Ok(Some(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Variable(name) => write!(f, "Variable({name})"),
            Key::Asked(_) => f.write_str("Asked"),
            Key::Needless => f.write_str("Needless"),
        }
    }
}

/// Everything that must not be recorded of one request.
#[derive(Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    pub(super) fn of(secrets: impl IntoIterator<Item = String>) -> Secrets {
        let mut secrets: Vec<String> = secrets.into_iter().filter(|secret| secret.len() >= SECRET_MIN_BYTES).collect();
        // One that holds another is looked for first, so that nothing of it stays.
        secrets.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        Secrets(secrets)
    }

    /// A text without any of them.
    pub(super) fn hide(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), HIDDEN))
    }

    /// Bytes without any of them, also where JSON writes one in another way: as `\u0073k`, or a slash as `\/`.
    pub(super) fn hide_in(&self, bytes: &mut Vec<u8>) {
        for secret in self.0.iter().map(String::as_bytes) {
            let (mut without, mut rest) = (Vec::new(), bytes.as_slice());
            while let Some(at) = rest.windows(secret.len()).position(|part| part == secret) {
                without.extend_from_slice(&rest[..at]);
                without.extend_from_slice(HIDDEN.as_bytes());
                rest = &rest[at + secret.len()..];
            }
            if !without.is_empty() {
                without.extend_from_slice(rest);
                *bytes = without;
            }
        }
        if !self.0.is_empty() && bytes.contains(&b'\\') {
            self.hide_in_escapes(bytes);
        }
    }

    fn hide_in_escapes(&self, bytes: &mut Vec<u8>) {
        let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return };
        let hidden = self.hidden(&value);
        if hidden != value {
            *bytes = hidden.to_string().into_bytes();
        }
    }

    fn hidden(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.hide(text)),
            Value::Array(values) => values.iter().map(|value| self.hidden(value)).collect(),
            Value::Object(fields) => fields.iter().map(|(name, value)| (self.hide(name), self.hidden(value))).collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// Where requests go.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Address {
    /// All of it.
    pub(super) url: String,
    /// As it may be shown: without a user, a password and what stands behind a question mark.
    pub(super) shown: String,
    /// What may not.
    pub(super) secrets: Vec<String>,
}

impl Address {
    /// The path behind a base URL, which may already end in it and have a query behind it.
    pub(super) fn of(base_url: &str, path: &str) -> Result<Address, Failure> {
        let wrong = |what: &str| Failure::new(Trouble::WrongUrl, format!("the base URL {what}"));
        let without_fragment = base_url.split('#').next().unwrap_or_default();
        let (base, query) = without_fragment.split_once('?').unwrap_or((without_fragment, ""));
        let (scheme, rest) = base.split_once("://").ok_or_else(|| wrong("has no scheme, such as https://"))?;
        if !["http", "https"].contains(&scheme) {
            return Err(wrong("is neither of http nor of https"));
        }
        let (authority, folder) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
        let folder = folder.trim_end_matches('/');
        let folder = folder.strip_suffix(path).unwrap_or(folder);
        let shown = format!("{scheme}://{host}{folder}");
        let at = if user.is_empty() { "" } else { "@" };
        let behind = if query.is_empty() { String::new() } else { format!("?{query}") };
        let url = format!("{scheme}://{user}{at}{host}{folder}{path}{behind}");
        if host.is_empty() || url.parse::<ureq::http::Uri>().is_err() {
            return Err(wrong("is none"));
        }
        let values = query.split('&').filter_map(|pair| pair.split_once('=')).map(|(_, value)| value);
        let secrets = [user].into_iter().chain(user.split_once(':').map(|(_, password)| password)).chain(values);
        // Whoever repeats one may write it as it is meant.
        let secrets = secrets.flat_map(|secret| [secret.to_owned(), percent_decoded(secret)]).collect();
        Ok(Address { url, shown, secrets })
    }
}

/// What a part of an address means: `%2F` is a slash.
fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let hex = behind.get(..2).filter(|_| first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
        decoded.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &behind[2..] } else { behind };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "sk-ant-0123456789abcdef";

    #[test]
    fn a_secret_is_hidden_wherever_it_stands_and_a_dummy_is_not() {
        let secrets = Secrets::of([KEY.to_owned(), format!("{KEY}-longer"), "ollama".to_owned()]);
        let said = format!("bad key {KEY}, {KEY}-longer and {KEY}{KEY}; ask ollama");
        let hidden = "bad key [hidden], [hidden] and [hidden][hidden]; ask ollama";
        assert_eq!(secrets.hide(&said), hidden);
        let mut bytes = said.into_bytes();
        secrets.hide_in(&mut bytes);
        assert_eq!(bytes, hidden.as_bytes());
        assert!(!format!("{secrets:?}").contains(KEY));
    }

    #[test]
    fn a_secret_is_hidden_however_json_writes_it() {
        let secrets = Secrets::of(["sk/ant+0123456789abcdef".to_owned()]);
        for (said, hidden) in [
            (r#"{"a":"is sk\/ant+0123456789abcdef"}"#, r#"{"a":"is [hidden]"}"#),
            (
                r#"[{"\u0073k/ant\u002b0123456789abcdef":["sk\/ant+0123456789abcdef"]}]"#,
                r#"[{"[hidden]":["[hidden]"]}]"#,
            ),
            (r#"{ "a": "another\n" }"#, r#"{ "a": "another\n" }"#),
            (r"no JSON \", r"no JSON \"),
        ] {
            let mut bytes = said.as_bytes().to_vec();
            secrets.hide_in(&mut bytes);
            assert_eq!(String::from_utf8(bytes).unwrap(), hidden);
        }
    }

    #[test]
    fn a_secret_that_is_repeated_very_often_holds_nobody_up() {
        let mut bytes = KEY.repeat(100_000).into_bytes();
        Secrets::of([KEY.to_owned()]).hide_in(&mut bytes);
        assert_eq!(bytes, HIDDEN.repeat(100_000).into_bytes());
    }

    #[test]
    fn a_secret_of_an_address_is_hidden_as_it_is_written_and_as_it_is_meant() {
        let address = Address::of("https://me:p%40ssword-0123456789@x/?key=a%2Fb%2Bc-0123456789%", "/y").unwrap();
        let secrets = Secrets::of(address.secrets);
        for secret in ["p%40ssword-0123456789", "p@ssword-0123456789", "a%2Fb%2Bc-0123456789%", "a/b+c-0123456789%"] {
            assert_eq!(secrets.hide(secret), HIDDEN, "{secret}");
        }
    }

    #[test]
    fn an_address_is_shown_without_what_may_be_a_secret() {
        let base = format!("https://me:{KEY}@example.org:8443/v1/?api-key={KEY}&v=2#top");
        let address = Address::of(&base, "/chat/completions").unwrap();
        assert_eq!(address.shown, "https://example.org:8443/v1");
        assert_eq!(address.url, format!("https://me:{KEY}@example.org:8443/v1/chat/completions?api-key={KEY}&v=2"));
        assert_eq!(Secrets::of(address.secrets.clone()).hide(&address.url).matches(KEY).count(), 0);
        assert!(!format!("{address:?}").contains(KEY));
    }

    #[test]
    fn an_address_may_name_the_whole_path() {
        for base in
            ["http://localhost:11434/v1", "http://localhost:11434/v1/", "http://localhost:11434/v1/chat/completions"]
        {
            assert_eq!(
                Address::of(base, "/chat/completions").unwrap().url,
                "http://localhost:11434/v1/chat/completions"
            );
        }
    }

    #[test]
    fn what_is_no_address_is_told_without_repeating_it() {
        for base in ["", "localhost:11434", "ftp://x/", "http://", "http://a b/", "http://user:secret@"] {
            let failure = Address::of(base, "/v1/messages").unwrap_err();
            assert!(failure.message.starts_with("the base URL "), "{base}: {}", failure.message);
            assert!(!failure.message.contains("secret"));
        }
    }
}
