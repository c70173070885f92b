//! Searching everything that is stored for what must not be (I12).

use std::fmt;

use serde::Serialize;

/// What must not be stored, in the forms in which it could be.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<Vec<Vec<u8>>>);

impl Secrets {
    /// How often a text may have been put into JSON, one within the other.
    const NESTING_LIMIT: usize = 2;

    /// An empty secret is nowhere.
    pub(super) fn add(&mut self, secret: Vec<u8>) {
        if secret.is_empty() {
            return;
        }
        let mut forms = vec![secret];
        for _ in 0..Secrets::NESTING_LIMIT {
            let escaped = forms.last().and_then(|form| escaped(form));
            forms.extend(escaped.filter(|escaped| !forms.contains(escaped)));
        }
        self.0.push(forms);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which one these bytes hold, counted from 1.
    pub(super) fn find_in(&self, bytes: &[u8]) -> Option<usize> {
        let is_held = |forms: &Vec<Vec<u8>>| forms.iter().any(|form| contains(bytes, form));
        self.0.iter().position(is_held).map(|index| index + 1)
    }

    /// Which one a record holds.
    pub(super) fn find_in_record(&self, record: &impl Serialize) -> Option<usize> {
        let json = serde_json::to_vec(record).expect("records have string keys and no failing serialiser");
        self.find_in(&json)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({})", self.0.len())
    }
}

/// A text as it stands between the quotes of JSON.
fn escaped(text: &[u8]) -> Option<Vec<u8>> {
    let quoted = serde_json::to_vec(std::str::from_utf8(text).ok()?).ok()?;
    quoted.get(1..quoted.len() - 1).map(<[u8]>::to_vec)
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_secret_is_found_as_it_is_and_inside_json() {
        let mut secrets = Secrets::default();
        secrets.add(b"other".to_vec());
        secrets.add(b"pass\"word\n".to_vec());
        let once = json!({ "key": "my pass\"word\n!" });
        let twice = json!({ "arguments": once.to_string() });
        assert_eq!(secrets.find_in(b"my pass\"word\n!"), Some(2));
        assert_eq!(secrets.find_in_record(&once), Some(2));
        assert_eq!(secrets.find_in_record(&twice), Some(2));
        assert_eq!(secrets.find_in(b"password"), None);
    }

    #[test]
    fn bytes_that_are_no_text_are_found_too() {
        let mut secrets = Secrets::default();
        secrets.add(vec![0xff, 0x00]);
        assert_eq!(secrets.find_in(&[1, 0xff, 0x00]), Some(1));
    }

    #[test]
    fn an_empty_secret_is_nowhere_and_none_is_printed() {
        let mut secrets = Secrets::default();
        secrets.add(Vec::new());
        assert!(secrets.is_empty());
        secrets.add(b"hidden".to_vec());
        assert_eq!(format!("{secrets:?}"), "Secrets(1)");
    }
}
