//! The page itself: its markup, its style and its script, and the policy that allows nothing else.

use std::io::{self, Write};

use sha2::{Digest, Sha256};

const MARKUP: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");

/// One script in the order of its files: what they have in common, the pictures, the table, a conversation, and what begins.
const SCRIPT: &str = concat!(
    // Nothing of it is to be seen from outside.
    "(() => {\n'use strict';\n",
    include_str!("common.js"),
    include_str!("pictures.js"),
    include_str!("table.js"),
    include_str!("conversation.js"),
    include_str!("page.js"),
    "})();\n",
);

/// Where in the markup the data goes.
const DATA: &str = "<!-- data -->";

/// Everything up to the data.
pub(super) fn write_top(out: &mut dyn Write) -> io::Result<()> {
    let (top, _) = halves();
    let policy = format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
        source_hash(SCRIPT),
        source_hash(STYLE)
    );
    out.write_all(top.replace("{policy}", &policy).replace("{style}", STYLE).as_bytes())
}

/// Everything behind it. The script comes last, when all that it looks for is there.
pub(super) fn write_bottom(out: &mut dyn Write) -> io::Result<()> {
    let (_, bottom) = halves();
    out.write_all(bottom.replace("{script}", SCRIPT).as_bytes())
}

fn halves() -> (&'static str, &'static str) {
    MARKUP.split_once(DATA).expect("the markup says where the data goes")
}

/// How a policy names a script or a style that stands in the page.
fn source_hash(source: &str) -> String {
    format!("sha256-{}", base64(&Sha256::digest(source.as_bytes())))
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_to_the_base_of_64() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
        assert_eq!(source_hash("abc"), "sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
    }

    #[test]
    fn script_and_style_cannot_end_their_own_elements() {
        assert!(!SCRIPT.contains("</script") && !SCRIPT.contains("<!--") && !STYLE.contains("</style"));
        // Whoever checks the policy reads the text as the browser does, which knows no other end of a line.
        assert!(!SCRIPT.contains('\r') && !STYLE.contains('\r') && !MARKUP.contains('\r'));
    }

    #[test]
    fn the_script_never_makes_markup_or_code_of_a_text() {
        let forbidden =
            ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "DOMParser", "eval(", "Function("];
        for word in
            forbidden.into_iter().chain(["srcdoc", "setAttribute('style", "setAttribute('on", ".href =", "import("])
        {
            assert!(!SCRIPT.contains(word), "{word}");
        }
    }

    #[test]
    fn the_markup_has_one_script_and_one_style_and_nothing_that_a_policy_would_have_to_allow() {
        assert_eq!((MARKUP.matches("<script").count(), MARKUP.matches("<style").count()), (1, 1));
        for word in [" style=", " onclick", " onload", "javascript:", "http:", "https:", "<img", "<link", "<iframe"] {
            assert!(!MARKUP.contains(word), "{word}");
        }
    }
}
