//! In which forms a secret may come back.
//!
//! | form | who writes it so |
//! |---|---|
//! | as it is | most |
//! | with `\/` for a slash | JSON inside of JSON |
//! | with `%2F` for a slash | whoever repeats an address |
//! | as base64 of either alphabet | whoever repeats a header such as `Authorization: Basic …`, where something else stands before it |
//!
//! Of three bytes base64 makes four letters, so how a secret looks depends on how many bytes stand before it: there are three ways. The first and the last
//! letter may be made of a neighbour too. They are left, and tell no more than four bits.

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const OF_ADDRESSES: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// All forms of a secret.
pub(super) fn forms(secret: &str) -> impl Iterator<Item = String> {
    let written = [secret.to_owned(), secret.replace('/', r"\/"), percent_encoded(secret)];
    let base64 = [STANDARD, OF_ADDRESSES]
        .into_iter()
        .flat_map(|alphabet| (0..3).map(|before| base64(secret.as_bytes(), before, alphabet)));
    written.into_iter().chain(base64.collect::<Vec<_>>())
}

/// The letters that are made of a secret alone, where so many bytes stand before it.
fn base64(secret: &[u8], before: usize, alphabet: &[u8; 64]) -> String {
    let bits_before = 8 * before;
    let bit = |at: usize| usize::from(secret[(at - bits_before) / 8] >> (7 - at % 8) & 1);
    let letter = |number: usize| (6 * number..6 * number + 6).fold(0, |value, at| value << 1 | bit(at));
    let letters = bits_before.div_ceil(6)..(bits_before + 8 * secret.len()) / 6;
    letters.map(|number| char::from(alphabet[letter(number)])).collect()
}

/// As an address has it: all but letters, digits and four signs by their number.
fn percent_encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let written = |byte: u8| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(written).collect()
}

/// What a part of an address means: `%2F` is a slash.
pub(super) fn percent_decoded(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_letters_of_a_secret_in_base64_are_the_same_whatever_stands_around_it() {
        // As `base64` writes it, with so many bytes before it.
        let secret = "sk-secret?>";
        for (before, whole, own) in [
            (0, "c2stc2VjcmV0Pz4/", "c2stc2VjcmV0Pz"),
            (1, "eHNrLXNlY3JldD8+", "NrLXNlY3JldD8+"),
            (2, "eHhzay1zZWNyZXQ/Pnk=", "zay1zZWNyZXQ/P"),
        ] {
            assert!(whole.contains(own));
            assert_eq!(base64(secret.as_bytes(), before, STANDARD), own);
            let of_addresses = own.replace('/', "_").replace('+', "-");
            assert_eq!(base64(secret.as_bytes(), before, OF_ADDRESSES), of_addresses);
            assert!(forms(secret).any(|form| form == own) && forms(secret).any(|form| form == of_addresses));
        }
    }

    #[test]
    fn what_is_encoded_for_an_address_means_the_same() {
        let secret = "a/b+c= ü%";
        assert_eq!(percent_encoded(secret), "a%2Fb%2Bc%3D%20%C3%BC%25");
        assert_eq!(percent_decoded(&percent_encoded(secret)), secret);
    }
}
