//! How do I put a folder of prompts through Claude Code? Every `*.md` and `*.txt` in it is one, and its answer is put beside it.
//!
//! ```text
//! cargo run --release --example claude_batch -- prompts/
//! ```
//!
//! The answer to `hello.md` is `hello.md.answer.md`; everything else, such as what was said and what it cost, is in `claude_batch.db` in the
//! same folder. Kill it at any moment and start it again: it carries on, and pays for no answer twice. What failed is tried again
//! then, and so are prompts that are new. It needs `claude` on the path, logged in or with a key.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use workcrew::repository::{By, UnitFilter};
use workcrew::{
    Archive, ClaudeCli, Completion, Executor, NewJob, NewUnit, Refusal, Repository, RepositoryError, SqliteRepository,
    Stop, UnitStatus, WorkPool, WorkUnit,
};

const USAGE: &str = "usage: claude_batch FOLDER\n\nEvery *.md and *.txt in the folder is a prompt; answers are put beside them, as NAME.answer.md.";
const ANSWER_ENDING: &str = ".answer.md";
const WORKERS: usize = 4;

fn main() -> ExitCode {
    env_logger::init();
    let folder = std::env::args_os().nth(1).map(PathBuf::from);
    let Some(folder) = folder.filter(|folder| folder.is_dir()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&folder) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(folder: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let claude = ClaudeCli::new().directory(folder);
    claude.is_available()?;
    let repository = SqliteRepository::open(folder.join("claude_batch.db"))?;
    let job = repository.create_job(&NewJob::named("prompts"))?;
    let failed_before = UnitFilter::job(job.id).status(UnitStatus::Failed);
    repository.requeue_all(&failed_before, &By::new("claude_batch", "it was started again"))?;

    let answers = folder.to_owned();
    let pool = WorkPool::builder(job.id, claude, repository.clone())
        .max_workers(WORKERS)
        .max_queue_size(usize::MAX)
        .on_unit_complete(move |unit, _| match write_answer(&answers, unit) {
            Ok(()) => println!("{}: answered, {}", unit.id, unit.cost),
            Err(error) => eprintln!("{}: the answer could not be written: {error}", unit.id),
        })
        .on_unit_failed(|unit, failure| eprintln!("{}: {failure}", unit.id))
        .start()?;
    for name in prompts(folder)? {
        let prompt = fs::read_to_string(folder.join(&name))?;
        // A unit is known again by its name: what was answered before is not asked again.
        match pool.enqueue(NewUnit::new(&name), prompt) {
            Ok(_) => {}
            Err(error) if matches!(error.reason, Refusal::Repository(RepositoryError::Conflict { .. })) => {
                eprintln!("{name}: was changed after it was asked: give it another name to ask it again");
            }
            Err(error) => return Err(error.into()),
        }
    }
    if let Completion::Blocked(reason) = pool.wait_for_completion() {
        eprintln!("Claude Code cannot go on: {reason}\nSee to it and start this again: it carries on.");
    }
    pool.stop(Stop::Drain)?;

    // A crash may have come between an answer and its callback.
    let units = repository.units(&UnitFilter::job(job.id), 0, usize::MAX)?.items;
    for unit in units.iter().filter(|unit| !answer_path(folder, unit).exists()) {
        write_answer(folder, unit)?;
    }
    let answered = units.iter().filter(|unit| unit.status == UnitStatus::Completed).count();
    let cost = repository.costs(Some(job.id))?.total();
    println!("{answered} of {} prompts are answered; {cost} in all, failed attempts included", units.len());
    Ok(if answered == units.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The names of the prompts in a folder, in order.
fn prompts(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if (name.ends_with(".md") || name.ends_with(".txt")) && !name.ends_with(ANSWER_ENDING) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn answer_path(folder: &Path, unit: &WorkUnit) -> PathBuf {
    folder.join(format!("{}{ANSWER_ENDING}", unit.id))
}

/// Puts the answer beside its prompt, if there is one: all of it or nothing.
fn write_answer(folder: &Path, unit: &WorkUnit) -> io::Result<()> {
    let Some(answer) = unit.output.as_deref().filter(|_| unit.status == UnitStatus::Completed) else { return Ok(()) };
    let path = answer_path(folder, unit);
    let begun = path.with_extension("part");
    fs::write(&begun, answer)?;
    fs::rename(begun, path)
}
