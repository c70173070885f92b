//! What is looked for.

use std::fmt;

use chrono::{DateTime, Utc};

use super::Kind;
use super::words::{Form, Words};
use crate::job::JobId;
use crate::unit::UnitStatus;

/// How many words and phrases a query may have.
pub const TERM_LIMIT: usize = 64;

/// How many hits a query gives unless it says otherwise.
const DEFAULT_LIMIT: usize = 20;

/// What is looked for, where, and how much of it.
///
/// | in the text of a query | finds what has |
/// |---|---|
/// | `quick fox` | both words, in any order |
/// | `"quick fox"`, `quick-fox` | the words side by side |
/// | `summar*` | a word that begins so |
/// | `fox -hound`, `-"red fox"` | the one, but not the other |
///
/// Everything else is plain text: a quote that is not closed, brackets, `AND`, `NEAR`. Capitals and accents do not
/// matter. All that a query asks for must be in one text: in what one message says, in the tool calls of one message, in one
/// prompt, one answer, one error.
///
/// ```
/// use workcrew::UnitStatus;
/// use workcrew::audit::search::{Kind, Query};
///
/// let query = Query::parse("overload* -retry")?.kind(Kind::Error).status(UnitStatus::Failed).limit(50);
/// assert_eq!(Query::parse("  ").unwrap_err().to_string(), "the query is empty");
/// # Ok::<(), workcrew::audit::search::QueryError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    pub(crate) terms: Vec<Term>,
    pub(crate) without: Vec<Term>,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) job_id: Option<JobId>,
    pub(crate) statuses: Vec<UnitStatus>,
    pub(crate) since: Option<DateTime<Utc>>,
    pub(crate) limit: usize,
    pub(crate) offset: usize,
    pub(crate) is_by_unit: bool,
}

/// Words that stand side by side, often only one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) words: Vec<String>,
    /// Whether the last one need only begin so.
    pub(crate) is_prefix: bool,
}

/// Why something cannot be looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryError {
    /// It is empty.
    Empty,
    /// It has neither a letter nor a digit.
    NoWord {
        /// What it is.
        text: String,
    },
    /// It says only what is not wanted.
    OnlyWithout,
    /// It has too many words.
    TooLong {
        /// How many.
        terms: usize,
    },
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueryError::Empty => f.write_str("the query is empty"),
            QueryError::NoWord { text } => write!(f, "`{text}` has no letter or digit to look for"),
            QueryError::OnlyWithout => f.write_str("the query only says what is not wanted: add a word to look for"),
            QueryError::TooLong { terms } => write!(f, "the query has {terms} words, {TERM_LIMIT} are possible"),
        }
    }
}

impl std::error::Error for QueryError {}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    ///
    /// [`QueryError`] if there is nothing to look for in it, or too much.
    pub fn parse(text: &str) -> Result<Query, QueryError> {
        let (mut terms, mut without) = (Vec::new(), Vec::new());
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(QueryError::Empty);
        }
        while !rest.is_empty() {
            let (item, behind) = next_item(rest);
            let side = if item.is_unwanted { &mut without } else { &mut terms };
            side.extend(Term::of(item.text, item.is_prefix));
            rest = behind.trim_start();
        }
        match (terms.len(), without.len()) {
            (0, 0) => Err(QueryError::NoWord { text: crate::unit::shortened(text.trim()) }),
            (0, _) => Err(QueryError::OnlyWithout),
            (some, unwanted) if some + unwanted > TERM_LIMIT => Err(QueryError::TooLong { terms: some + unwanted }),
            _ => Ok(Query {
                terms,
                without,
                kinds: Vec::new(),
                job_id: None,
                statuses: Vec::new(),
                since: None,
                limit: DEFAULT_LIMIT,
                offset: 0,
                is_by_unit: false,
            }),
        }
    }

    /// Only in what is of this kind, or of another that was asked for (any).
    pub fn kind(mut self, kind: Kind) -> Query {
        self.kinds.push(kind);
        self
    }

    /// Only in units of this job (all).
    pub fn job(mut self, job_id: JobId) -> Query {
        self.job_id = Some(job_id);
        self
    }

    /// Only in units that are in this status now, or in another that was asked for (any).
    pub fn status(mut self, status: UnitStatus) -> Query {
        self.statuses.push(status);
        self
    }

    /// Only what was stored then or later (ever).
    pub fn since(mut self, time: DateTime<Utc>) -> Query {
        self.since = Some(time);
        self
    }

    /// How many hits at most (20).
    pub fn limit(mut self, limit: usize) -> Query {
        self.limit = limit;
        self
    }

    /// How many of the best hits are left out (0).
    pub fn offset(mut self, offset: usize) -> Query {
        self.offset = offset;
        self
    }

    /// Only the best hit of each unit, with the number of its [others](super::Hit::others) (all hits). The limit is then one of units.
    pub fn by_unit(mut self) -> Query {
        self.is_by_unit = true;
        self
    }

    /// The query in the index's own language, made of nothing but words and our own signs.
    pub(crate) fn expression(&self) -> String {
        let wanted = self.terms.iter().map(Term::expression).collect::<Vec<_>>().join(" AND ");
        let unwanted = self.without.iter().map(Term::expression).collect::<Vec<_>>().join(" OR ");
        if unwanted.is_empty() { wanted } else { format!("({wanted}) NOT ({unwanted})") }
    }
}

/// A part of a query as it is written.
struct Item<'q> {
    text: &'q str,
    is_unwanted: bool,
    is_prefix: bool,
}

/// The first part of a query, and what follows it.
fn next_item(query: &str) -> (Item<'_>, &str) {
    let is_sign = |rest: &str| rest.starts_with(|char: char| char == '"' || char.is_alphanumeric());
    // Two of them are how options of programs are written.
    let unwanted = query.strip_prefix('-').filter(|rest| is_sign(rest));
    let text = unwanted.unwrap_or(query);
    let phrase = text.strip_prefix('"').and_then(|rest| rest.split_once('"'));
    let (text, behind) = phrase.unwrap_or_else(|| {
        let opened = usize::from(text.starts_with('"'));
        let is_end = |char: char| char.is_whitespace() || char == '"';
        let end = text[opened..].find(is_end).map_or(text.len(), |end| opened + end);
        text.split_at(end)
    });
    let (is_prefix, behind) = match behind.strip_prefix('*') {
        Some(behind) if phrase.is_some() => (true, behind),
        _ => (text.ends_with('*'), behind),
    };
    (Item { text, is_unwanted: unwanted.is_some(), is_prefix }, behind)
}

impl Term {
    /// The words of a part of a query; `None` if there is none.
    fn of(text: &str, is_prefix: bool) -> Option<Term> {
        let (mut all, mut words, mut forms) = (Words::of(text), Vec::new(), Vec::new());
        while let Some(word) = all.next() {
            words.push(word.folded.to_owned());
            forms.push(word.form);
        }
        let is_prefix = match forms[..] {
            [] => return None,
            // The character ends the query, not the text: there another may follow it. Its pair says all.
            [.., Form::Pair, Form::Last] => {
                words.pop();
                false
            }
            [.., Form::Last] => true,
            [..] => is_prefix,
        };
        Some(Term { words, is_prefix })
    }

    fn expression(&self) -> String {
        format!("\"{}\"{}", self.words.join(" "), if self.is_prefix { " *" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expression(text: &str) -> String {
        Query::parse(text).unwrap().expression()
    }

    #[test]
    fn words_phrases_prefixes_and_what_is_unwanted() {
        assert_eq!(expression("Quick  fóx"), r#""quick" AND "fox""#);
        assert_eq!(expression(r#""quick fox" jump*"#), r#""quick fox" AND "jump" *"#);
        assert_eq!(expression(r#"fox -hound -"red fox""#), r#"("fox") NOT ("hound" OR "red fox")"#);
        assert_eq!(
            expression(r#""quick fo"* well-known foo_bar*"#),
            r#""quick fo" * AND "well known" AND "foo bar" *"#
        );
        assert_eq!(
            expression("東京 東京都 東 AI技 技術AI"),
            r#""東京" AND "東京 京都" AND "東" * AND "ai 技" * AND "技術 術 ai""#
        );
    }

    #[test]
    fn everything_else_is_plain_text() {
        assert_eq!(expression(r#"say "hello wor"#), r#""say" AND "hello" AND "wor""#);
        assert_eq!(
            expression("NEAR(a b, 5) OR ^c : d AND"),
            r#""near a" AND "b" AND "5" AND "or" AND "c" AND "d" AND "and""#
        );
        assert_eq!(expression("--verbose - a"), r#""verbose" AND "a""#);
        assert_eq!(expression(r#"a"b"c*d ** {x}:y"#), r#""a" AND "b" AND "c d" AND "x y""#);
        assert_eq!(expression("'; DROP TABLE words; --"), r#""drop" AND "table" AND "words""#);
    }

    #[test]
    fn what_says_nothing_is_an_error_that_says_so() {
        assert_eq!(Query::parse(" \n"), Err(QueryError::Empty));
        for nothing in ["\"", "*", "-", "\"\"", "☃ ()", "-\"\"", "\0"] {
            assert!(matches!(Query::parse(nothing), Err(QueryError::NoWord { .. })), "{nothing}");
        }
        assert_eq!(Query::parse("-fox"), Err(QueryError::OnlyWithout));
        assert_eq!(Query::parse(&"x ".repeat(65)), Err(QueryError::TooLong { terms: 65 }));
        assert!(Query::parse(&"x ".repeat(64)).is_ok());
    }
}
