//! A look at the tags of a template before the engine sees them.
//!
//! The engine bounds how deep brackets and blocks are nested, but follows chains with its stack: an expression of ten thousand
//! terms, a thousand `elif`, a list that is put into itself again and again would end the process. So tags are
//! counted here first, in the engine's own way of finding where they begin and end. It also has tags that prompts do
//! without, or that it only has if another crate asks for them; whatever is not listed is refused.

use super::PromptError;

/// How many words and signs a tag may have. The engine's parser takes up to 2 KiB of stack for each.
const TAG_LIMIT: usize = 250;

/// How many words and signs there may be in all tags whose effects add up.
const CHAIN_LIMIT: usize = 500;

/// The tags of a prompt, and whether their effects add up from one to the next.
const TAGS: [(&str, bool); 13] = [
    ("if", false),
    ("elif", true),
    ("else", false),
    ("endif", false),
    ("for", true),
    ("endfor", false),
    ("set", true),
    ("endset", false),
    ("with", true),
    ("endwith", false),
    ("filter", false),
    ("endfilter", false),
    ("raw", false),
];

/// Refuses what the engine could not take.
pub(super) fn check(template: &str) -> Result<(), PromptError> {
    let (mut rest, mut line, mut chained) = (template, 1, 0);
    while let Some(begin) = tag_begin(rest) {
        line += line_ends(&rest[..begin]);
        rest = &rest[begin..];
        let length = if rest.starts_with("{#") {
            length_to(rest, "#}")
        } else {
            let tag = Tag::read(rest).ok_or(PromptError::TooNested { line })?;
            chained += tag.chained(line)?;
            if chained > CHAIN_LIMIT {
                return Err(PromptError::TooNested { line });
            }
            if tag.name() == Some("raw") { raw_length(rest, tag.length_bytes) } else { tag.length_bytes }
        };
        line += line_ends(&rest[..length]);
        rest = &rest[length..];
    }
    Ok(())
}

/// A tag, from its first brace to behind its last.
struct Tag<'t> {
    words: Vec<&'t str>,
    is_statement: bool,
    length_bytes: usize,
}

impl<'t> Tag<'t> {
    /// The tag that a text begins with, which may lack its end; `None` if it is too long.
    fn read(text: &'t str) -> Option<Tag<'t>> {
        let is_statement = text.starts_with("{%");
        let end = if is_statement { "%}" } else { "}}" };
        let (mut words, mut balance) = (Vec::new(), 0_isize);
        let mut rest = text[2..].strip_prefix(['-', '+']).unwrap_or(&text[2..]);
        loop {
            rest = rest.trim_ascii_start();
            let trimmed = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            // Within brackets, two braces are the ends of two objects.
            if balance == 0
                && let Some(behind) = rest.strip_prefix(end).or_else(|| trimmed.strip_prefix(end))
            {
                rest = behind;
                break;
            }
            let Some(first) = rest.chars().next() else { break };
            balance += match first {
                '(' | '[' | '{' => 1,
                ')' | ']' | '}' => -1,
                _ => 0,
            };
            let (word, behind) = rest.split_at(word_length(rest, first));
            words.push(word);
            rest = behind;
            if words.len() > TAG_LIMIT {
                return None;
            }
        }
        Some(Tag { words, is_statement, length_bytes: text.len() - rest.len() })
    }

    /// What kind of statement it is.
    fn name(&self) -> Option<&'t str> {
        self.words.first().copied().filter(|_| self.is_statement)
    }

    /// How many words it adds to the chain.
    fn chained(&self, line: usize) -> Result<usize, PromptError> {
        let Some(name) = self.name() else { return Ok(0) };
        let is_recursive = name == "for" && self.words.contains(&"recursive");
        match TAGS.iter().find(|(known, _)| *known == name) {
            Some((_, adds_up)) if !is_recursive => Ok(if *adds_up { self.words.len() } else { 0 }),
            Some(_) => Err(refused(line, "for … recursive")),
            None => Err(refused(line, name)),
        }
    }
}

fn refused(line: usize, name: &str) -> PromptError {
    PromptError::Syntax { line, problem: format!("prompts have no tag `{name}` here") }
}

/// Where the next tag or comment begins.
fn tag_begin(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

/// How long the word, string or sign is that a text begins with.
fn word_length(text: &str, first: char) -> usize {
    let is_of_word = |sign: char| sign.is_ascii_alphanumeric() || sign == '_' || !sign.is_ascii();
    match first {
        '"' | '\'' => string_length(text, first),
        _ if is_of_word(first) => text.find(|sign| !is_of_word(sign)).unwrap_or(text.len()),
        _ => 1,
    }
}

fn string_length(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (place, sign) in text.char_indices().skip(1) {
        match sign {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if sign == quote => return place + 1,
            _ => {}
        }
    }
    text.len()
}

/// How long a text is up to and including a mark.
fn length_to(text: &str, mark: &str) -> usize {
    text.find(mark).map_or(text.len(), |place| place + mark.len())
}

/// How long the text is from a `raw` tag up to the tag that ends it.
fn raw_length(text: &str, tag_length: usize) -> usize {
    let mut length = tag_length;
    while length < text.len() {
        length += length_to(&text[length..], "{%");
        let inner = text[length..].trim_start_matches(['-', '+']).trim_ascii_start();
        if inner.starts_with("endraw") {
            return length + length_to(&text[length..], "%}");
        }
    }
    text.len()
}

fn line_ends(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b'\n').count()
}
