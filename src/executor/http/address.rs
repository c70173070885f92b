//! Where requests go, and what of that may be shown.

use std::fmt;

use super::failure::Failure;
use super::forms::percent_decoded;
use crate::executor::trouble::Trouble;

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

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({})", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::super::secret::{HIDDEN, Secrets};
    use super::*;

    const KEY: &str = "sk-ant-0123456789abcdef";

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
