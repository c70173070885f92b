//! What a word is: one reading of a text for the index, for a query and for the marks in a snippet.
//!
//! A word is a run of letters, digits and the marks on them, folded: in lower case, without accents, in the compatible form
//! (`Ｆｕｌｌ` is `full`). Everything else separates. So `foo_bar` is two words, and so is `don't`.
//!
//! Chinese, Japanese, Thai, Lao, Khmer and Burmese do not separate words. There each pair of neighbouring characters is a word, and the
//! last character of a run once more alone: whatever stands in such a text is found, also from the middle of a word.

use std::ops::Range;

use unicode_normalization::char::{decompose_compatible, is_combining_mark};

/// What is kept of a longer word, which is none that a person would look for: a hash, a picture as base64.
const WORD_LIMIT_BYTES: usize = 64;

/// Which part of a text a word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A word between separators.
    Whole,
    /// Two neighbouring characters of a script without separators.
    Pair,
    /// The last character of a run in such a script.
    Last,
}

/// A word and where it stands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word<'w> {
    /// Its bytes in the text.
    pub(crate) range: Range<usize>,
    /// The word as it is compared.
    pub(crate) folded: &'w str,
    pub(crate) form: Form,
}

/// Goes through the words of a text.
#[derive(Debug)]
pub(crate) struct Words<'t> {
    text: &'t str,
    at: usize,
    folded: String,
}

impl<'t> Words<'t> {
    pub(crate) fn of(text: &'t str) -> Words<'t> {
        Words { text, at: 0, folded: String::new() }
    }

    /// The next word, which is overwritten by the one after it.
    pub(crate) fn next(&mut self) -> Option<Word<'_>> {
        loop {
            self.skip_separators();
            let start = self.at;
            let first = self.text[start..].chars().next()?;
            self.folded.clear();
            if is_unspaced(first) {
                return Some(self.gram(first));
            }
            self.read_word();
            // A lone mark or joiner is nothing to look for.
            if !self.folded.is_empty() {
                return Some(Word { range: start..self.at, folded: &self.folded, form: Form::Whole });
            }
        }
    }

    fn skip_separators(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.find(is_in_word).unwrap_or(rest.len());
    }

    /// A character of a script without separators, with the one behind it if that is another.
    fn gram(&mut self, first: char) -> Word<'_> {
        let start = self.at;
        self.at += first.len_utf8();
        self.folded.push(first);
        let second = self.text[self.at..].chars().next().filter(|&char| is_unspaced(char));
        self.folded.extend(second);
        let form = if second.is_some() { Form::Pair } else { Form::Last };
        Word { range: start..start + self.folded.len(), folded: &self.folded, form }
    }

    fn read_word(&mut self) {
        let rest = &self.text[self.at..];
        let end = rest.find(|char| !is_in_word(char) || is_unspaced(char)).unwrap_or(rest.len());
        for char in rest[..end].chars() {
            if self.folded.len() >= WORD_LIMIT_BYTES {
                break;
            }
            fold(char, &mut self.folded);
        }
        self.at += end;
    }
}

/// Adds the words of a text to a line of words with spaces between them.
pub(crate) fn spell(text: &str, line: &mut String) {
    let mut words = Words::of(text);
    while let Some(word) = words.next() {
        line.push_str(word.folded);
        line.push(' ');
    }
}

fn is_in_word(char: char) -> bool {
    if char.is_ascii() { char.is_ascii_alphanumeric() } else { is_other_letter(char) }
}

fn is_other_letter(char: char) -> bool {
    char.is_alphanumeric() || is_combining_mark(char) || is_joiner(char) || is_unspaced(char)
}

/// Stands in the middle of a word and changes only how it is shown.
fn is_joiner(char: char) -> bool {
    matches!(char, '\u{ad}' | '\u{200c}' | '\u{200d}')
}

/// Whether it is of a script that does not separate words.
fn is_unspaced(char: char) -> bool {
    matches!(
        char,
        '\u{e01}'..='\u{edf}' // Thai, Lao
            | '\u{1000}'..='\u{109f}' // Burmese
            | '\u{1780}'..='\u{17dd}' // Khmer
            | '\u{2e80}'..='\u{2fdf}' // radicals
            | '\u{3005}'..='\u{3007}'
            | '\u{3041}'..='\u{30fa}' // kana
            | '\u{30fc}'..='\u{312f}'
            | '\u{31f0}'..='\u{31ff}'
            | '\u{3400}'..='\u{4dbf}' // Han
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{ff66}'..='\u{ff9f}'
            | '\u{20000}'..='\u{3ffff}'
    )
}

fn fold(char: char, folded: &mut String) {
    if char.is_ascii() {
        folded.push(char.to_ascii_lowercase());
    } else if is_joiner(char) {
    } else if matches!(char, '\u{ac00}'..='\u{d7a3}') {
        // A Korean syllable is one letter to whoever reads it.
        folded.push(char);
    } else {
        decompose_compatible(char, |part| {
            if is_accent(part) || !is_in_word(part) {
                return;
            }
            for lower in part.to_lowercase() {
                folded.push(if lower == 'ς' { 'σ' } else { lower });
            }
        });
    }
}

/// A mark that people leave out when they look for a word; in other scripts marks are vowels.
fn is_accent(char: char) -> bool {
    matches!(
        char,
        '\u{300}'..='\u{36f}'
            | '\u{591}'..='\u{5c7}' // Hebrew points
            | '\u{64b}'..='\u{65f}' | '\u{670}' // Arabic points
            | '\u{1ab0}'..='\u{1aff}'
            | '\u{1dc0}'..='\u{1dff}'
            | '\u{20d0}'..='\u{20ff}'
            | '\u{fe20}'..='\u{fe2f}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled(text: &str) -> String {
        let mut line = String::new();
        spell(text, &mut line);
        line.trim_end().to_owned()
    }

    #[test]
    fn words_are_folded_and_everything_else_separates() {
        assert_eq!(spelled("Zürich's CAFÉ_17, naïve—ÅNGSTRÖM!"), "zurich s cafe 17 naive angstrom");
        assert_eq!(spelled("Cafe\u{301} ΣΊΣΥΦΟΣ ＦＵＬＬ ﬁne İstanbul Ёлка"), "cafe σισυφοσ full fine istanbul елка");
        assert_eq!(spelled("soft\u{ad}ly हिन्दी 한국어"), "softly हिन्दी 한국어");
        assert_eq!(spelled(" \u{301} \u{200d} --- ☃ 🦀 \0"), "");
        assert_eq!(spelled("½ ⑴"), "1⁄2 1".replace('⁄', ""));
    }

    #[test]
    fn scripts_without_spaces_are_read_in_pairs() {
        assert_eq!(spelled("東京都に住む。AI技術"), "東京 京都 都に に住 住む む ai 技術 術");
        assert_eq!(spelled("字"), "字");
        assert_eq!(spelled("ไทย"), "ไท ทย ย");
    }

    #[test]
    fn each_word_knows_where_it_stands() {
        let text = "  Über-東京x ";
        let (mut words, mut found) = (Words::of(text), Vec::new());
        while let Some(word) = words.next() {
            found.push((text[word.range.clone()].to_owned(), word.folded.to_owned(), word.form));
        }
        let expected = [
            ("Über", "uber", Form::Whole),
            ("東京", "東京", Form::Pair),
            ("京", "京", Form::Last),
            ("x", "x", Form::Whole),
        ];
        assert_eq!(found, expected.map(|(shown, folded, form)| (shown.to_owned(), folded.to_owned(), form)));
    }

    #[test]
    fn of_a_word_without_end_only_the_beginning_counts() {
        let long = "é".repeat(1_000_000);
        let mut words = Words::of(&long);
        let word = words.next().unwrap();
        assert_eq!((word.range, word.folded), (0..2_000_000, &*"e".repeat(WORD_LIMIT_BYTES)));
        assert!(words.next().is_none());
    }

    #[test]
    fn nothing_that_is_spelled_could_mean_something_to_the_index() {
        for char in ('\0'..=char::MAX).step_by(1) {
            let line = spelled(&char.to_string());
            assert!(line.chars().all(|char| !char.is_ascii() || char.is_ascii_alphanumeric()), "{char:?}: {line:?}");
        }
    }
}
