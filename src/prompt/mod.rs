//! Prompts: what is sent, as it is or rendered from a template and a payload.
//!
//! A [`Prompt`] says where the text of a unit comes from. A text is sent byte for byte, whatever it holds. A
//! template is rendered by [`render`], in the [syntax of Jinja](https://docs.rs/minijinja/3/minijinja/syntax/):
//!
//! ```
//! use serde_json::json;
//! use workcrew::prompt::render;
//!
//! let template = "Translate into {{ language | default('French') }}:\n{% for word in words %}- {{ word }}\n{% endfor %}";
//! let prompt = render(template, &json!({ "words": ["bread", "salt & pepper"] }))?;
//! assert_eq!(prompt, "Translate into French:\n- bread\n- salt & pepper\n");
//!
//! let error = render("Summarise {{ title }}.", &json!({ "titel": "Emma" })).unwrap_err();
//! assert_eq!(error.to_string(), "the template needs `title`, which the payload does not have");
//! # Ok::<(), workcrew::PromptError>(())
//! ```
//!
//! # What a template sees
//!
//! The fields of the payload are its variables, and the whole payload is there as `payload`, unless it has a field of
//! that name. Fields whose names are no identifiers are reached through it: `{{ payload["due date"] }}`.
//!
//! What is missing is an error that names it, in conditions and loops too: a prompt with a hole in it is never
//! paid for. `{% if x is defined %}` and `{{ x | default("-") }}` are for what may be missing.
//!
//! # What comes out
//!
//! Texts are put in as they are: nothing is escaped, and what looks like a template in a payload stays text. Everything
//! else is put in as JSON: `true`, `null`, `1.5`, `["a","b"]`, `{"a":1}`, with sorted keys. `{{ x | tojson }}` does the same
//! with texts too, and `tojson(indent=2)` over several lines. Within an expression, such as `a ~ b` or `list | join(", ")`,
//! the engine makes texts in its own way, which writes `True` and `None`.
//!
//! Line ends are kept, also the last one. A text without `{{`, `{%` and `{#` comes out as it went in, so single braces,
//! as in JSON, need no care; double ones belong between `{% raw %}` and `{% endraw %}`.
//!
//! # What is bounded
//!
//! The tags are `if`, `for`, `set`, `with`, `filter` and `raw`: a prompt includes nothing, loads nothing and defines no
//! macros. A loop ends after [`STEP_LIMIT`] steps, a text at [`LENGTH_LIMIT_BYTES`], and what is nested too deep is
//! refused before it is looked at. So neither an odd payload nor a slip in a template can hang or end the process.
//! It is no prison, though: who writes the template can still use up memory, by doubling a text again and
//! again, or by replacing every letter of one long text by another. Templates of strangers should not be rendered.

mod scan;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior};
use serde_json::Value;

use crate::conversation::{JSON_DEPTH_LIMIT, TooDeep};
use crate::unit::NewUnit;

/// How many steps a template may take. A turn of a small loop takes about ten.
pub const STEP_LIMIT: u64 = 1_000_000;

/// How long a rendered prompt may be. The largest context of a model is a good deal smaller.
pub const LENGTH_LIMIT_BYTES: usize = 16 * 1024 * 1024;

/// How far a line may be indented, by `indent` and `tojson`: the engine would take any number from a payload.
const INDENT_LIMIT: usize = 64;

/// Where the text of a prompt comes from.
///
/// ```
/// use serde_json::json;
/// use workcrew::{Call, NewJob, NewUnit, Prompt, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, Repository};
/// # let repository = MemoryRepository::new();
///
/// let job = repository.create_job(&NewJob::named("capitals").template("What is the capital of {{ country }}?"))?;
/// let echo = |call: &Call<'_>| Ok(WorkResult::text(call.prompt()));
/// let pool = WorkPool::builder(job.id, echo, repository).start()?;
/// let unit = pool.enqueue(NewUnit::new("peru").payload(json!({ "country": "Peru" })), Prompt::OfUnit)?.wait()?;
/// assert_eq!(unit.output.as_deref(), Some("What is the capital of Peru?"));
/// let unit = pool.enqueue(NewUnit::new("sum"), "What is {{ 2 + 2 }}?")?.wait()?;
/// assert_eq!(unit.output.as_deref(), Some("What is {{ 2 + 2 }}?"), "a text is sent as it is");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prompt {
    /// This text, sent as it is.
    Text(String),
    /// The unit's own prompt as it is, or else its template or its job's, rendered from its payload.
    OfUnit,
}

impl Prompt {
    /// Puts itself into a unit; says whether it does not contradict the one that the unit has.
    pub(crate) fn put_into(self, unit: &mut NewUnit) -> bool {
        match self {
            Prompt::Text(text) if unit.prompt.as_ref().is_some_and(|own| *own != text) => return false,
            Prompt::Text(text) => unit.prompt = Some(text),
            Prompt::OfUnit => {}
        }
        true
    }
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<&String> for Prompt {
    fn from(text: &String) -> Prompt {
        Prompt::Text(text.clone())
    }
}

/// Why a template gave no prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PromptError {
    /// The payload does not have what the template needs.
    Missing {
        /// What is missing, as the template writes it, such as `author.name`.
        name: String,
        /// The line that needs it, from 1.
        line: usize,
    },
    /// The template is not written as it should be.
    Syntax {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The template is well written, but not for this payload: a number is added to a text, a filter does not exist.
    Failed {
        /// The line, from 1.
        line: usize,
        /// What went wrong.
        problem: String,
    },
    /// The template is nested deeper, or one of its tags is longer, than can be rendered.
    TooNested {
        /// The line, from 1.
        line: usize,
    },
    /// The template took more than [`STEP_LIMIT`] steps.
    TooManySteps,
    /// The prompt would be longer than [`LENGTH_LIMIT_BYTES`].
    TooLong,
    /// The payload is nested deeper than could be stored.
    PayloadTooDeep(TooDeep),
}

impl fmt::Display for PromptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PromptError as E;
        match self {
            E::Missing { name, .. } => write!(f, "the template needs `{name}`, which the payload does not have"),
            E::Syntax { line, problem } => write!(f, "line {line} of the template is not well written: {problem}"),
            E::Failed { line, problem } => write!(f, "line {line} of the template cannot be rendered: {problem}"),
            E::TooNested { line } => {
                write!(f, "line {line} of the template is nested too deep, or has a tag that is too long or not closed")
            }
            E::TooManySteps => write!(f, "the template takes more than {STEP_LIMIT} steps"),
            E::TooLong => write!(f, "the prompt is longer than {LENGTH_LIMIT_BYTES} bytes"),
            E::PayloadTooDeep(_) => f.write_str("the payload cannot be rendered"),
        }
    }
}

impl Error for PromptError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            PromptError::PayloadTooDeep(cause) => Some(cause),
            _ => None,
        }
    }
}

/// Renders a template with the fields of a payload. The [module](self) says what it may hold and what comes out.
///
/// # Errors
///
/// [`PromptError`] says what the payload lacks, or what is wrong with the template and on which line.
pub fn render(template: &str, payload: &Value) -> Result<String, PromptError> {
    if !["{{", "{%", "{#"].iter().any(|mark| template.contains(mark)) {
        return Ok(template.to_owned());
    }
    scan::check(template)?;
    let variables = variables(payload)?;
    let environment = environment();
    let mut prompt = Bounded(Vec::new());
    environment
        .template_from_str(template)
        .and_then(|compiled| compiled.render_captured_to(variables, &mut prompt).map(drop))
        .map_err(|error| explained(&error, template))?;
    Ok(String::from_utf8(prompt.0).expect("the engine writes text"))
}

fn environment<'source>() -> Environment<'source> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    let syntax =
        SyntaxConfig::builder().keep_trailing_newline(true).build().expect("the delimiters are the usual ones");
    environment.set_syntax(syntax);
    environment.set_fuel(Some(STEP_LIMIT));
    // Only so does an error name what is missing.
    environment.set_debug(true);
    environment.set_formatter(|output, _, value| {
        match value.as_str() {
            Some(text) => output.write_str(text)?,
            // What is missing was refused before; this is an `if` without `else`.
            None if value.is_undefined() => {}
            None => output.write_str(&json_text(value, None)?)?,
        }
        Ok(())
    });
    environment.add_filter("tojson", |value: minijinja::Value, options: Kwargs| {
        let indent = options.get::<Option<usize>>("indent")?;
        options.assert_all_used()?;
        json_text(&value, indent.map(|indent| indent.min(INDENT_LIMIT)))
    });
    environment.add_filter("indent", indented);
    // These take a number, perhaps out of the payload, and use as much memory as it says.
    for name in ["batch", "format", "slice"] {
        environment.remove_filter(name);
    }
    // One nests values without end, the other shows everything to whoever reads the prompt.
    for name in ["namespace", "debug"] {
        environment.remove_global(name);
    }
    environment
}

/// What the template sees.
fn variables(payload: &Value) -> Result<minijinja::Value, PromptError> {
    let whole = value_of(payload, 0).map_err(PromptError::PayloadTooDeep)?;
    let mut variables = vec![("payload".to_owned(), whole.clone())];
    if let Value::Object(fields) = payload {
        let field = |name: &String| Some((name.clone(), whole.get_attr(name).ok()?));
        // Behind the payload, so that a field of that name takes its place.
        variables.extend(fields.keys().filter_map(field));
    }
    Ok(minijinja::Value::from_pairs(variables))
}

/// The engine's form of a JSON value. Written out, since what serde makes of a number depends on the features of others.
fn value_of(json: &Value, depth: usize) -> Result<minijinja::Value, TooDeep> {
    if depth > JSON_DEPTH_LIMIT {
        return Err(TooDeep);
    }
    Ok(match json {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(truth) => minijinja::Value::from(*truth),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => minijinja::Value::from(number),
            (None, Some(number)) => minijinja::Value::from(number),
            (None, None) => minijinja::Value::from(number.as_f64()),
        },
        Value::String(text) => minijinja::Value::from(text.as_str()),
        Value::Array(items) => {
            minijinja::Value::from(items.iter().map(|item| value_of(item, depth + 1)).collect::<Result<Vec<_>, _>>()?)
        }
        Value::Object(fields) => {
            let field = |(name, field): (&String, &Value)| Ok((name.clone(), value_of(field, depth + 1)?));
            minijinja::Value::from_pairs(fields.iter().map(field).collect::<Result<Vec<_>, _>>()?)
        }
    })
}

/// A value of the engine as JSON text, on one line unless indented.
fn json_text(value: &minijinja::Value, indent: Option<usize>) -> Result<String, minijinja::Error> {
    let mut text = String::new();
    write_json(&mut text, value, indent, 0)?;
    Ok(text)
}

fn write_json(
    text: &mut String,
    value: &minijinja::Value,
    indent: Option<usize>,
    depth: usize,
) -> Result<(), minijinja::Error> {
    if depth > 2 * JSON_DEPTH_LIMIT {
        return Err(failed("a value is nested too deep"));
    }
    if text.len() > LENGTH_LIMIT_BYTES {
        return Err(ErrorKind::WriteFailure.into());
    }
    let (open, close) = match value.kind() {
        ValueKind::Undefined => return Err(ErrorKind::UndefinedError.into()),
        ValueKind::Seq | ValueKind::Iterable => ('[', ']'),
        ValueKind::Map => ('{', '}'),
        _ => {
            text.push_str(&scalar(value));
            return Ok(());
        }
    };
    let new_line = |text: &mut String, depth| {
        if let Some(indent) = indent {
            text.push('\n');
            text.push_str(&" ".repeat(indent * depth));
        }
    };
    text.push(open);
    let mut is_empty = true;
    for item in value.try_iter()? {
        if !is_empty {
            text.push(',');
        }
        is_empty = false;
        new_line(text, depth + 1);
        if open == '[' {
            write_json(text, &item, indent, depth + 1)?;
        } else {
            text.push_str(&quoted(&item.to_string()));
            text.push_str(if indent.is_some() { ": " } else { ":" });
            write_json(text, &value.get_item(&item)?, indent, depth + 1)?;
        }
    }
    if !is_empty {
        new_line(text, depth);
    }
    text.push(close);
    Ok(())
}

/// A value without others in it as JSON.
fn scalar(value: &minijinja::Value) -> String {
    match value.kind() {
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => value.is_true().to_string(),
        // The engine would write out all the zeros of a very large or small one.
        ValueKind::Number if !value.is_integer() => {
            f64::try_from(value.clone()).map_or(Value::Null, Value::from).to_string()
        }
        ValueKind::Number => value.to_string(),
        _ => quoted(&value.to_string()),
    }
}

/// A text as JSON, in which only quotes, backslashes and control characters are escaped.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Indents all lines but the first, and those that are empty.
fn indented(text: String, width: Option<usize>) -> Result<String, minijinja::Error> {
    let width = width.unwrap_or(4);
    if width > INDENT_LIMIT {
        return Err(failed(format!("a line is indented by more than {INDENT_LIMIT} spaces")));
    }
    let spaces = " ".repeat(width);
    let mut lines = text.split('\n');
    let first = lines.next().unwrap_or_default().to_owned();
    Ok(lines.fold(first, |text, line| text + "\n" + if line.trim().is_empty() { "" } else { &spaces } + line))
}

fn failed(problem: impl Into<String>) -> minijinja::Error {
    minijinja::Error::new(ErrorKind::InvalidOperation, problem.into())
}

/// The engine's error in our words.
fn explained(error: &minijinja::Error, template: &str) -> PromptError {
    let line = error.line().unwrap_or(1);
    let detail = error.detail().unwrap_or_default();
    let problem = || if detail.is_empty() { error.kind().to_string() } else { detail.to_owned() };
    match error.kind() {
        ErrorKind::OutOfFuel => PromptError::TooManySteps,
        ErrorKind::WriteFailure => PromptError::TooLong,
        // The engine has no kinds for these; tests see to it that the words stay the same.
        ErrorKind::SyntaxError if detail.contains("maximum recursion limits") => PromptError::TooNested { line },
        ErrorKind::SyntaxError | ErrorKind::BadEscape => PromptError::Syntax { line, problem: problem() },
        kind => match undefined_name(detail) {
            Some(name) => PromptError::Missing { name: name.to_owned(), line },
            None if kind == ErrorKind::UndefinedError => {
                let range = error.range().unwrap_or_default();
                PromptError::Missing { name: template.get(range).unwrap_or_default().trim().to_owned(), line }
            }
            None => PromptError::Failed { line, problem: problem() },
        },
    }
}

/// The name in ``… `name` is undefined …``.
fn undefined_name(detail: &str) -> Option<&str> {
    let end = detail.rfind("` is undefined")?;
    let begin = if detail.starts_with('`') { 1 } else { detail[..end].rfind("(`")? + 2 };
    detail.get(begin..end)
}

/// Takes text until it is too long.
struct Bounded(Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > LENGTH_LIMIT_BYTES {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
