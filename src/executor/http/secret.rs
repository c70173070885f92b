//! What must be found nowhere: keys, and what else an address or a header may hold.
//!
//! A key is read for each request and kept no longer. Whatever comes from outside and is about to be recorded, an error's text above all, is
//! blotted first: providers repeat keys in their errors, in several [forms](super::forms).
//!
//! | what comes | where it is blotted |
//! |---|---|
//! | an answer that is an error, a page, an event of a stream | whole, before anything else looks at it |
//! | an answer that was put together of several events | all of its texts, by its [`Veil`]: a secret may have come in pieces |
//! | a text that is still being written | up to where a secret may be about to begin |
//! | what a tool has returned | whole, before the model is told |
//!
//! What comes otherwise is found by nobody: in another encoding, letter by letter, in two parts of a message.

use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::failure::Failure;
use super::forms::forms;
use crate::executor::trouble::Trouble;

/// What is shorter is no secret, but the dummy that a server of one's own wants to see.
const SECRET_MIN_BYTES: usize = 16;

/// What stands where a secret was.
pub(super) const HIDDEN: &str = "[hidden]";

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

/// Everything that must not be recorded of one request, in all its forms.
#[derive(Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// These secrets, and the words of those that have several: of `Bearer …` a provider may repeat the one that counts.
    pub(super) fn of(secrets: impl IntoIterator<Item = String>) -> Secrets {
        let with_words = |secret: String| {
            let words = secret.split([' ', '\t', ',', ';', '=', '"']).map(str::to_owned).collect::<Vec<_>>();
            words.into_iter().chain([secret])
        };
        let secrets = secrets.into_iter().flat_map(with_words).filter(|secret| secret.len() >= SECRET_MIN_BYTES);
        let mut forms: Vec<String> = secrets.flat_map(|secret| forms(&secret).collect::<Vec<_>>()).collect();
        // One that holds another is looked for first, so that nothing of it stays.
        forms.sort_unstable_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        forms.dedup();
        Secrets(forms)
    }

    /// A text without any of them.
    pub(super) fn hide(&self, text: &str) -> String {
        let hide = |text: String, secret: &String| match text.contains(secret.as_str()) {
            true => text.replace(secret.as_str(), HIDDEN),
            false => text,
        };
        self.0.iter().fold(text.to_owned(), hide)
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

    /// The beginning of a text that goes on, without any of them and without what may be the beginning of one.
    pub(super) fn hide_so_far(&self, text: &str) -> String {
        let mut hidden = self.hide(text);
        hidden.truncate(self.begun(&hidden).unwrap_or(hidden.len()));
        hidden
    }

    /// What hides them in an answer that came in pieces, of which nothing is missing or which was cut off.
    pub(super) fn veil(&self, end: End) -> Veil<'_> {
        Veil { secrets: self, end }
    }

    /// Where the longest beginning of one stands with which a text ends.
    fn begun(&self, text: &str) -> Option<usize> {
        let begun = |secret: &String| {
            let lengths = (1..secret.len().min(text.len() + 1)).rev();
            lengths
                .map(|length| &secret.as_bytes()[..length])
                .find(|part| text.as_bytes().ends_with(part))
                .map(<[u8]>::len)
        };
        self.0.iter().filter_map(begun).max().map(|length| text.len() - length)
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

/// Whether a text that came in pieces has its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Whole,
    /// It may end in the middle of a secret.
    CutOff,
}

/// Hides secrets in an answer that came in pieces.
#[derive(Debug)]
pub struct Veil<'a> {
    secrets: &'a Secrets,
    end: End,
}

impl Veil<'_> {
    pub(super) fn text(&self, text: &mut String) {
        *text = self.secrets.hide(text);
        if self.end == End::CutOff
            && let Some(at) = self.secrets.begun(text).filter(|at| text.len() - at >= SECRET_MIN_BYTES)
        {
            text.replace_range(at.., HIDDEN);
        }
    }

    /// The text of some JSON, which may not be all of it.
    pub(super) fn json(&self, json: &mut String) {
        let mut bytes = std::mem::take(json).into_bytes();
        self.secrets.hide_in(&mut bytes);
        *json = String::from_utf8_lossy(&bytes).into_owned();
        self.text(json);
    }

    pub(super) fn fields(&self, fields: &mut Map<String, Value>) {
        fields.values_mut().for_each(|value| self.value(value));
    }

    pub(super) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.text(text),
            Value::Array(values) => values.iter_mut().for_each(|value| self.value(value)),
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
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
    fn a_secret_is_hidden_in_every_form_and_so_are_its_words() {
        let secrets = Secrets::of(["Bearer sk/ant+0123456789abcdef, for=nobody".to_owned()]);
        for said in [
            r#"{"a":"{\"key\":\"sk\\/ant+0123456789abcdef\"}"}"#,
            "sk/ant+0123456789abcdef",
            "?key=sk%2Fant%2B0123456789abcdef",
            // `user:sk/ant+0123456789abcdef!`, and with one letter more before it and then two.
            "Basic dXNlcjpzay9hbnQrMDEyMzQ1Njc4OWFiY2RlZiE=",
            "Basic dXNlcnM6c2svYW50KzAxMjM0NTY3ODlhYmNkZWYh",
            "Basic dXNlcnMxOnNrL2FudCswMTIzNDU2Nzg5YWJjZGVmIQ==",
        ] {
            let mut bytes = said.as_bytes().to_vec();
            secrets.hide_in(&mut bytes);
            let hidden = String::from_utf8(bytes).unwrap();
            assert!(hidden.contains(HIDDEN), "{said}: {hidden}");
            let left = said.len() - (hidden.len() - HIDDEN.len());
            assert!(left >= 22, "{said}: {hidden}");
        }
    }

    #[test]
    fn a_text_that_goes_on_ends_before_what_may_become_a_secret() {
        let secrets = Secrets::of([KEY.to_owned()]);
        for length in 0..KEY.len() {
            assert_eq!(secrets.hide_so_far(&format!("It is {}", &KEY[..length])), "It is ");
            assert_eq!(secrets.hide_so_far(&KEY[..length]), "");
        }
        assert_eq!(secrets.hide_so_far(&format!("It is {KEY}")), "It is [hidden]");
        assert_eq!(secrets.hide_so_far("skis"), "ski", "what it is will be seen");
        assert_eq!(secrets.hide_so_far("ski"), "ski");
    }

    #[test]
    fn what_came_in_pieces_is_hidden_and_at_an_end_that_is_missing_a_part_of_it_too() {
        let secrets = Secrets::of([KEY.to_owned()]);
        let veiled = |end: End, text: &str| {
            let mut text = text.to_owned();
            secrets.veil(end).text(&mut text);
            text
        };
        let cut = &KEY[..SECRET_MIN_BYTES];
        assert_eq!(veiled(End::Whole, &format!("{KEY} {cut}")), format!("[hidden] {cut}"));
        assert_eq!(veiled(End::CutOff, &format!("{KEY} {cut}")), "[hidden] [hidden]");
        assert_eq!(veiled(End::CutOff, &cut[1..]), cut[1..]);
        assert_eq!(veiled(End::CutOff, &cut[..15]), cut[..15], "what is shorter is no secret");
        let mut value = serde_json::json!({ "a": [{ "b": KEY }, 1], "c": null });
        secrets.veil(End::Whole).value(&mut value);
        assert_eq!(value, serde_json::json!({ "a": [{ "b": HIDDEN }, 1], "c": null }));
        let mut json = format!(r#"{{"a":"\u0073{}"#, &KEY[1..]) + r#""}"#;
        secrets.veil(End::Whole).json(&mut json);
        assert_eq!(json, r#"{"a":"[hidden]"}"#);
    }

    #[test]
    fn a_secret_that_is_repeated_very_often_holds_nobody_up() {
        let mut bytes = KEY.repeat(100_000).into_bytes();
        Secrets::of([KEY.to_owned()]).hide_in(&mut bytes);
        assert_eq!(bytes, HIDDEN.repeat(100_000).into_bytes());
    }
}
