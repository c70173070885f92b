//! Where units come from.

use std::io::{self, BufReader, IsTerminal};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::Value;
use workcrew::prompt::{self, PromptError};
use workcrew::source::{Format, UnitSource};
use workcrew::{Money, NewUnit};

use crate::notes;
use crate::print;
use crate::trouble::Trouble;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Written {
    Jsonl,
    Csv,
}

#[derive(Args, Clone, Debug)]
pub struct Input {
    /// The units: a *.jsonl file ({"id", "prompt"} or {"id", "payload"} on each line), a *.csv file with a header, a folder of texts, or - for standard input
    #[arg(value_name = "UNITS")]
    pub units: PathBuf,
    /// How the file is written, if its name does not say so
    #[arg(long, value_enum)]
    format: Option<Written>,
    /// A template for the prompts, filled in from each unit's payload: {{ field }}
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// Ends at the first line that is no unit or contradicts one that is there, instead of going on with the rest; what was stored before it stays
    #[arg(long)]
    pub strict: bool,
    /// How often a unit is tried again, unless its line says so
    #[arg(long, value_name = "N", default_value_t = NewUnit::DEFAULT_MAX_RETRIES, allow_negative_numbers = true, value_parser = print::whole)]
    retries: u32,
    /// How many dollars a unit may cost over all attempts, unless its line says so; it belongs to the unit, so the same file again needs the same
    #[arg(long, value_name = "DOLLARS", value_parser = print::dollars)]
    pub max_cost: Option<Money>,
}

impl Input {
    pub fn is_stdin(&self) -> bool {
        self.units.as_os_str() == "-"
    }

    /// Whether it can be read only once, such as a pipe, also one that has a path.
    pub fn is_read_once(&self) -> bool {
        self.is_stdin() || std::fs::metadata(&self.units).is_ok_and(|found| !found.is_file() && !found.is_dir())
    }

    /// Opens it, from its beginning.
    pub fn open(&self) -> Result<UnitSource, Trouble> {
        let format = self.format.map(|written| match written {
            Written::Jsonl => Format::JsonLines,
            Written::Csv => Format::Csv,
        });
        let source = if self.is_stdin() {
            if io::stdin().is_terminal() {
                notes::tell(
                    "reading units from the terminal, each a line such as {\"id\": \"a\", \"prompt\": \"…\"}; Ctrl-D ends",
                );
            }
            UnitSource::from_reader(BufReader::new(io::stdin()), format.unwrap_or(Format::JsonLines))?
        } else {
            UnitSource::open(&self.units, format)?
        };
        Ok(source.max_retries(self.retries))
    }

    /// The text of the template.
    pub fn template(&self) -> Result<Option<String>, Trouble> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path)
                .map_err(|error| Trouble::usage(format!("the template `{}` cannot be read: {error}", path.display())))
        };
        let template = self.template.as_ref().map(read).transpose()?;
        // Whether it is well written is known before anything is stored; what it needs, only from each payload.
        let tried = template.as_deref().map(|text| prompt::render(text, &Value::Null));
        match (tried, &self.template) {
            (Some(Err(error @ (PromptError::Syntax { .. } | PromptError::TooNested { .. }))), Some(path)) => {
                Err(Trouble::usage(format!("the template `{}` is no template: {error}", path.display())))
            }
            _ => Ok(template),
        }
    }

    /// What it is called where something is told of it.
    pub fn name(&self) -> String {
        if self.is_stdin() { "standard input".to_owned() } else { format!("`{}`", self.units.display()) }
    }

    /// What the job is called if nobody says so: as the file without its ending.
    pub fn job_name(&self) -> String {
        let name = self.units.file_stem().map(|name| name.to_string_lossy().into_owned());
        name.filter(|name| !self.is_stdin() && !name.is_empty()).unwrap_or_else(|| "batch".to_owned())
    }
}
