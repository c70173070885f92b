//! The part of a text that shows why it was found.

use std::collections::VecDeque;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::query::Term;
use super::text::Piece;
use super::words::{Form, Words};

/// How long a snippet is, unless what matched is longer.
const SNIPPET_BYTES: usize = 240;

/// How much of it comes before what matched.
const BEFORE_BYTES: usize = 60;

/// How many matches of one text are looked at.
const MARK_LIMIT: usize = 10_000;

/// A few words around what was found, on one line.
///
/// What could lead a terminal or a reader astray is replaced by spaces: line breaks, control characters, changes of direction.
///
/// ```
/// # use workcrew::audit::search::Snippet;
/// fn shown(snippet: &Snippet) -> String {
///     snippet.parts().map(|(part, is_match)| if is_match { format!("[{part}]") } else { part.to_owned() }).collect()
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snippet {
    /// The words.
    pub text: String,
    /// The bytes of the text that matched, in order, none overlapping.
    pub matches: Vec<Range<usize>>,
    /// Whether something comes before it.
    pub is_cut_before: bool,
    /// Whether something follows it.
    pub is_cut_after: bool,
}

impl Snippet {
    /// The text in parts, each with whether it matched.
    pub fn parts(&self) -> impl Iterator<Item = (&str, bool)> {
        let mut parts = Vec::with_capacity(2 * self.matches.len() + 1);
        let mut at = 0;
        for range in &self.matches {
            parts.push((&self.text[at..range.start], false));
            parts.push((&self.text[range.clone()], true));
            at = range.end;
        }
        parts.push((&self.text[at..], false));
        parts.into_iter().filter(|(part, _)| !part.is_empty())
    }
}

/// The best part of some pieces; `None` if there is no piece.
pub(crate) fn snippet(pieces: &[Piece], terms: &[Term]) -> Option<Snippet> {
    let found = best(pieces, terms).or_else(|| {
        // What is side by side in the index may stand in two pieces.
        let word = |word: &String| Term { words: vec![word.clone()], is_prefix: false };
        let words: Vec<Term> = terms.iter().flat_map(|term| &term.words).map(word).collect();
        best(pieces, &words)
    });
    match found {
        Some((piece, marks)) => Some(cut(&piece.text, &marks)),
        None => pieces.first().map(|piece| cut(&piece.text, &[])),
    }
}

/// A place in a text, and which term it matches.
#[derive(Clone, Debug)]
struct Mark {
    range: Range<usize>,
    term: usize,
}

/// The marks that say most in as little as fits into a snippet, with the piece that has them.
fn best<'p>(pieces: &'p [Piece], terms: &[Term]) -> Option<(&'p Piece, Vec<Mark>)> {
    let mut best: Option<((usize, usize), &Piece, Vec<Mark>)> = None;
    for piece in pieces {
        let marks = marks(&piece.text, terms);
        let Some((worth, window)) = best_window(&marks, terms.len()) else { continue };
        if best.as_ref().is_none_or(|(other, ..)| worth > *other) {
            best = Some((worth, piece, marks[window].to_vec()));
        }
    }
    best.map(|(_, piece, marks)| (piece, marks))
}

/// Where a text matches, in order.
fn marks(text: &str, terms: &[Term]) -> Vec<Mark> {
    let longest = terms.iter().map(|term| term.words.len()).max().unwrap_or(0);
    let mut before: VecDeque<(String, Range<usize>, Form)> = VecDeque::with_capacity(longest + 1);
    let (mut marks, mut words) = (Vec::new(), Words::of(text));
    while let Some(word) = words.next() {
        if before.len() == longest {
            before.pop_front();
        }
        before.push_back((word.folded.to_owned(), word.range, word.form));
        for (term, number) in terms.iter().zip(0..) {
            if let Some(range) = matched(term, &before) {
                marks.push(Mark { range, term: number });
            }
        }
        if marks.len() >= MARK_LIMIT {
            break;
        }
    }
    marks
}

/// The range of a term that ends with the last of these words.
fn matched(term: &Term, before: &VecDeque<(String, Range<usize>, Form)>) -> Option<Range<usize>> {
    let first = before.len().checked_sub(term.words.len())?;
    let (last_word, other_words) = term.words.split_last()?;
    let (last, range, form) = before.back()?;
    let is_last = if term.is_prefix { last.starts_with(last_word.as_str()) } else { last == last_word };
    let is_match = is_last && before.range(first..).zip(other_words).all(|((word, ..), wanted)| word == wanted);
    // Of a pair that begins as the query ends only the beginning was looked for.
    let is_part = term.is_prefix && *form == Form::Pair;
    let end = if is_part { range.start + last_word.len() } else { range.end };
    is_match.then(|| before[first].1.start..end)
}

/// The marks that fit into a snippet and match most terms, and what they are worth.
fn best_window(marks: &[Mark], terms: usize) -> Option<((usize, usize), Range<usize>)> {
    let (mut counts, mut distinct, mut first) = (vec![0_usize; terms], 0, 0);
    let mut best: Option<((usize, usize), Range<usize>)> = None;
    for (last, mark) in marks.iter().enumerate() {
        counts[mark.term] += 1;
        distinct += usize::from(counts[mark.term] == 1);
        while first < last && mark.range.end - marks[first].range.start > SNIPPET_BYTES - BEFORE_BYTES {
            counts[marks[first].term] -= 1;
            distinct -= usize::from(counts[marks[first].term] == 0);
            first += 1;
        }
        let worth = (distinct, last + 1 - first);
        if best.as_ref().is_none_or(|(other, _)| worth > *other) {
            best = Some((worth, first..last + 1));
        }
    }
    best
}

/// The part of a text around its marks.
fn cut(text: &str, marks: &[Mark]) -> Snippet {
    let first = marks.first().map_or(0, |mark| mark.range.start);
    let from = word_start(text, first.saturating_sub(BEFORE_BYTES), first);
    let last = marks.iter().map(|mark| mark.range.end).max().unwrap_or(0);
    // Of a match that is longer than any snippet the beginning is shown.
    let to = word_end(text, (from + SNIPPET_BYTES).max(last.min(from + 2 * SNIPPET_BYTES)));
    let mut snippet = Snippet { is_cut_before: from > 0, is_cut_after: to < text.len(), ..Snippet::default() };
    let mut marked = vec![false; to - from];
    for mark in marks {
        marked[mark.range.start - from..mark.range.end.min(to) - from].fill(true);
    }
    let mut was_marked = false;
    for (at, char) in text[from..to].char_indices() {
        let char = if is_shown(char) { char } else { ' ' };
        if char == ' ' && (snippet.text.is_empty() || snippet.text.ends_with(' ')) {
            continue;
        }
        match (was_marked, marked[at]) {
            (false, true) => snippet.matches.push(snippet.text.len()..snippet.text.len()),
            (true, false) => end_match(&mut snippet),
            _ => {}
        }
        was_marked = marked[at];
        snippet.text.push(char);
    }
    if was_marked {
        end_match(&mut snippet);
    }
    snippet
}

fn end_match(snippet: &mut Snippet) {
    if let Some(last) = snippet.matches.last_mut() {
        last.end = snippet.text.len();
    }
}

/// Whether a character is what it looks like, on one line.
fn is_shown(char: char) -> bool {
    let is_direction =
        matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !char.is_control() && !char.is_whitespace() && !is_direction && char != '\u{feff}'
}

/// Where a snippet that should begin at a place begins: behind a space if one comes before what matched.
fn word_start(text: &str, wished: usize, limit: usize) -> usize {
    let start = boundary(text, wished);
    if start == 0 {
        return 0;
    }
    let space = text[start..limit].char_indices().find(|(_, char)| char.is_whitespace());
    space.map_or(start, |(space, char)| start + space + char.len_utf8())
}

/// Where a snippet that should end at a place ends: before a space if one is near.
fn word_end(text: &str, wished: usize) -> usize {
    const NEAR_BYTES: usize = 24;
    if wished >= text.len() {
        return text.len();
    }
    let end = boundary(text, wished);
    let near = boundary(text, end + NEAR_BYTES);
    text[end..near].find(char::is_whitespace).map_or(end, |space| end + space)
}

/// The last place between two characters that is not behind another.
fn boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::search::{Kind, Query};

    fn shown_of(text: &str, query: &str) -> String {
        let terms = Query::parse(query).unwrap().terms;
        let snippet = snippet(&[Piece::new(Kind::Assistant, text)], &terms).unwrap();
        let part = |(part, is_match)| if is_match { format!("[{part}]") } else { String::from(part) };
        let shown: String = snippet.parts().map(part).collect();
        let mark = |is_cut| if is_cut { "…" } else { "" };
        format!("{}{shown}{}", mark(snippet.is_cut_before), mark(snippet.is_cut_after))
    }

    #[test]
    fn what_matched_is_marked_as_the_index_sees_it() {
        assert_eq!(shown_of("The Café in Zürich", "zurich cafe"), "The [Café] in [Zürich]");
        assert_eq!(shown_of("quick brown; brown quick", "\"brown quick\""), "quick brown; [brown quick]");
        assert_eq!(shown_of("He summarises summaries.", "summar*"), "He [summarises] [summaries].");
        assert_eq!(shown_of("東京都に住む", "京都"), "東[京都]に住む");
        assert_eq!(shown_of("東京都に住む", "東京都"), "[東京都]に住む");
        assert_eq!(shown_of("東京都に", "都"), "東京[都]に");
        assert_eq!(shown_of("foo_bar foo bar-baz", "foo_bar"), "[foo_bar] [foo bar]-baz");
    }

    #[test]
    fn a_snippet_is_one_line_that_harms_no_terminal() {
        assert_eq!(shown_of("a\r\n\tfox\u{1b}[31m\u{202e} runs\u{0}", "fox"), "a [fox] [31m runs ");
    }

    #[test]
    fn the_part_that_has_most_of_the_words_is_shown() {
        let far = "word ".repeat(1_000);
        let text = format!("fox {far} a fox and a hound {far} hound");
        let shown = shown_of(&text, "fox hound");
        assert!(shown.contains("a [fox] and a [hound] word") && shown.len() < 300, "{shown}");
        assert!(shown.starts_with('…') && shown.ends_with('…'), "{shown}");
    }

    #[test]
    fn odd_lengths_are_cut_between_characters() {
        for padding in 0..10 {
            let text = format!("{}fox{}", "é☃𝄞".repeat(100 + padding), "☃".repeat(300));
            assert!(shown_of(&text, "fox").contains("[fox]"));
            let text = format!("{}{}", "x".repeat(padding), "é".repeat(1_000_000));
            assert!(shown_of(&text, &format!("{}é*", "x".repeat(padding))).len() < 1_000);
        }
        assert_eq!(shown_of("", "fox"), "");
    }

    #[test]
    fn words_of_a_phrase_in_two_pieces_are_marked_alone() {
        let pieces = [Piece::new(Kind::Prompt, "quick"), Piece::new(Kind::Tool, "the fox")];
        let terms = Query::parse("\"quick fox\"").unwrap().terms;
        assert_eq!(snippet(&pieces, &terms).unwrap().matches, vec![0..5; 1]);
    }
}
