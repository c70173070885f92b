//! Full text over everything that was asked, said, answered and reported as an error.
//!
//! The words are in an index beside the database, `batch.db.search`, which holds nothing that is not in the database: it can be deleted at
//! any time and is made anew. Running batches pay nothing for it, because it is brought up to date only when
//! [`SearchIndex::catch_up`] is called, by whoever wants to search.
//!
//! ```
//! use workcrew::audit::search::{Kind, Query, SearchIndex};
//! use workcrew::{NewJob, NewUnit, Repository, SqliteRepository};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("batch.db");
//! let repository = SqliteRepository::open(&path)?;
//! let job = repository.create_job(&NewJob::named("cities"))?.id;
//! repository.queue_unit(job, &NewUnit::new("zh").prompt("How many people live in Zürich?"))?;
//!
//! let index = SearchIndex::beside(&path)?;
//! index.catch_up()?;
//! let hits = index.find(&Query::parse("zurich peop*")?.kind(Kind::Prompt))?;
//! assert_eq!((hits.len(), hits[0].unit_id.as_str()), (1, "zh"));
//!
//! let snippet = &hits[0].snippet;
//! let marked: Vec<&str> = snippet.matches.iter().map(|range| &snippet.text[range.clone()]).collect();
//! assert_eq!(marked, ["people", "Zürich"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is found
//!
//! | [place](Place) | what | [kind](Kind) |
//! |---|---|---|
//! | `Prompt` | the prompt that a unit was stored with | prompt |
//! | `RenderedPrompt` | what an attempt has really sent, if it was rendered | prompt |
//! | `Message` | text and thoughts of a message, also of an attempt that still runs | by its role: prompt (system, user), assistant, tool |
//! | `Message` | names and inputs of tool calls, what tools answered | tool |
//! | `Output` | the answer of an attempt, as text and as JSON | assistant |
//! | `LateResult` | what an attempt reported when it was too late | assistant |
//! | `Error` | kind and message of the failure of an attempt, or of a unit that failed without one | error |
//!
//! Not found are payloads and templates as such, pictures, the provider's raw bytes, and the text of a message while it is being
//! written. Chinese, Japanese, Thai and others that write without spaces are searched by their characters: what is
//! looked for may begin and end anywhere.
//!
//! Hits come best first, by how often and how densely they have the words, and how rare those are (bm25).

mod query;
mod snippet;
mod text;
mod words;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::query::{Query, QueryError, TERM_LIMIT};
pub use self::snippet::Snippet;
pub(crate) use self::snippet::snippet;
pub(crate) use self::text::{Piece, of_message, of_value};
pub(crate) use self::words::spell;
use crate::attempt::AttemptKey;
use crate::conversation::Role;
use crate::job::JobId;
pub use crate::repository::sqlite::search::{CaughtUp, IndexProgress, SearchError, SearchIndex};
use crate::unit::{UnitId, UnitKey, UnitStatus, names};

/// What kind of text it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// What was asked: prompts, and what users and systems say.
    Prompt,
    /// What the model said, thought and answered.
    Assistant,
    /// What tools were asked and answered.
    Tool,
    /// Why something failed.
    Error,
}

names!(Kind {
    Prompt => "prompt",
    Assistant => "assistant",
    Tool => "tool",
    Error => "error",
});

/// Where something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// In the prompt of the unit.
    Prompt,
    /// In what an attempt has really sent.
    RenderedPrompt,
    /// In a message of an attempt.
    Message,
    /// In the answer of an attempt.
    Output,
    /// In what an attempt reported when it was too late.
    LateResult,
    /// In the failure of an attempt, or of the unit.
    Error,
}

names!(Place {
    Prompt => "prompt",
    RenderedPrompt => "rendered_prompt",
    Message => "message",
    Output => "output",
    LateResult => "late_result",
    Error => "error",
});

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Hit {
    /// The job.
    pub job_id: JobId,
    /// The unit, by its key.
    pub unit: UnitKey,
    /// The unit, by its name.
    pub unit_id: UnitId,
    /// The status of the unit now.
    pub status: UnitStatus,
    /// The attempt; `None` for what belongs to the unit.
    pub attempt_number: Option<u32>,
    /// The message, if it is in one.
    pub message_number: Option<u32>,
    /// Where it is.
    pub place: Place,
    /// What kind of text it is.
    pub kind: Kind,
    /// Who spoke, if it is in a message.
    pub role: Option<Role>,
    /// When it was stored; for a prompt or an answer, when that became so.
    pub at: DateTime<Utc>,
    /// The words around it.
    pub snippet: Snippet,
    /// How well it fits; larger is better, and comparable only within one query.
    pub score: f64,
    /// How many other hits the unit has; counted only [by unit](Query::by_unit).
    pub others: u64,
}

impl Hit {
    /// The attempt by its key; `None` for what belongs to the unit.
    pub fn attempt(&self) -> Option<AttemptKey> {
        self.attempt_number.map(|number| AttemptKey { unit: self.unit, number })
    }
}
