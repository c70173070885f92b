//! How fast the index of all words is made, how large it is, and how long a query takes.
//!
//! ```text
//! cargo bench --bench search -- 256
//! ```
//!
//! The number is how many megabytes of text are made first, of words as frequent as those of a language are. One line for each
//! figure, `name=value` pairs.

use std::error::Error;
use std::time::{Duration, Instant};

use workcrew::audit::search::{Query, SearchIndex};
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::{Claimant, Slot, Submitted};
use workcrew::{
    AttemptReport, Beginning, JobId, Message, NewJob, NewOwner, NewUnit, OwnerId, Process, Repository,
    SqliteRepository, WorkerId,
};

const MESSAGE_BYTES: usize = 4 * 1024;
const MESSAGES_PER_UNIT: usize = 64;
const VOCABULARY: f64 = 50_000.0;
const TOPICS: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return Ok(());
    }
    let megabytes: usize = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(64);
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("batch.db");
    let text_bytes = fill(&SqliteRepository::open(&path)?, megabytes * 1024 * 1024)?;

    let index = SearchIndex::beside(&path)?;
    let began = Instant::now();
    let done = index.catch_up()?;
    let seconds = began.elapsed().as_secs_f64();
    let index_bytes = std::fs::metadata(index.path().ok_or("it is a file")?)?.len();
    println!(
        "figure=build text_megabytes={megabytes} texts={} megabytes_per_second={:.1} index_bytes_per_text_byte={:.3}",
        done.texts,
        text_bytes as f64 / 1e6 / seconds,
        index_bytes as f64 / text_bytes as f64,
    );
    let began = Instant::now();
    index.catch_up()?;
    println!("figure=nothing_new milliseconds={:.2}", began.elapsed().as_secs_f64() * 1e3);
    for (name, text) in [
        ("commonest_word", word(1)),
        ("common_word", word(30)),
        ("rare_word", word(40_000)),
        ("two_common_words", format!("{} {}", word(30), word(40))),
        ("rare_and_common", format!("{} {}", word(40_000), word(1))),
        ("phrase", format!("\"{} {}\"", word(30), word(40))),
        ("prefix", format!("{}*", &word(40_000)[..3])),
        ("nothing", "zzzzzz".to_owned()),
    ] {
        for query in [Query::parse(&text)?, Query::parse(&text)?.by_unit()] {
            let (mut best, mut hits) = (Duration::MAX, 0);
            for _ in 0..5 {
                let began = Instant::now();
                hits = index.find(&query)?.len();
                best = best.min(began.elapsed());
            }
            println!("figure=find query={name} hits={hits} milliseconds={:.2}", best.as_secs_f64() * 1e3);
        }
    }
    Ok(())
}

/// A word by how common it is.
fn word(rank: u64) -> String {
    let (mut word, mut left) = (String::new(), rank.wrapping_mul(0x9e37_79b9) % 0x7fff_ffff);
    let letters = 2 + rank.ilog2() / 2;
    for position in 0..letters {
        let letters = if position % 2 == 0 { "bcdfghklmnprstvw" } else { "aeiou" };
        word.push(char::from(letters.as_bytes()[(left % letters.len() as u64) as usize]));
        left /= letters.len() as u64;
    }
    word
}

fn fill(repository: &SqliteRepository, bytes: usize) -> Result<u64, Box<dyn Error>> {
    let job = repository.create_job(&NewJob::named("search"))?.id;
    let owner = repository.register_owner(&NewOwner::new(Process::this(&SystemClock.boot_id()), "a bench"))?;
    let mut seed = 42_u64;
    let mut total = 0;
    for unit in 0..bytes / MESSAGE_BYTES / MESSAGES_PER_UNIT {
        let messages: Vec<Message> = (0..MESSAGES_PER_UNIT).map(|_| Message::assistant(text(&mut seed))).collect();
        total += messages.iter().map(|message| message.text().len() as u64).sum::<u64>();
        execute(repository, job, owner, unit, &messages)?;
    }
    Ok(total)
}

/// Words, each as often as its rank lets expect; half of them are of a few that the text is about.
fn text(seed: &mut u64) -> String {
    let topics: Vec<String> = (0..TOPICS).map(|_| word(rank(seed))).collect();
    let mut text = String::with_capacity(MESSAGE_BYTES + 16);
    while text.len() < MESSAGE_BYTES {
        let common = word(rank(seed));
        let topic = rank(seed) as usize;
        text.push_str(if topic.is_multiple_of(2) { &common } else { &topics[topic / 2 % TOPICS] });
        text.push(' ');
    }
    text
}

fn rank(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let chance = (*seed >> 11) as f64 / (1_u64 << 53) as f64;
    VOCABULARY.powf(chance) as u64
}

fn execute(
    repository: &SqliteRepository,
    job: JobId,
    owner: OwnerId,
    unit: usize,
    messages: &[Message],
) -> Result<(), Box<dyn Error>> {
    let unit = NewUnit::new(format!("u{unit}")).prompt("Go.");
    let claimant = Claimant::new(owner, Duration::from_secs(600));
    let Submitted::Claimed(claim) = repository.submit(job, &unit, &claimant, &Slot::new(WorkerId::new("w")?))? else {
        return Err("it was not claimed".into());
    };
    repository.start(&claim.lease, &Beginning::default())?;
    repository.append(&claim.lease, 0, messages)?;
    repository.finish(&claim.lease, &AttemptReport::completed())?;
    Ok(())
}
