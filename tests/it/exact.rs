//! Whatever is stored is read again byte for byte, by every repository, and in little memory however much it is.

use std::time::Duration;

use serde_json::{Value, json};
use workcrew::attempt::OutputFile;
use workcrew::chain::Hash;
use workcrew::clock::{Clock, SystemClock};
use workcrew::conversation::StoredMessage;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::repository::{
    By, ClaimRequest, Claimant, Intake, PAGE_LIMIT, Page, Result, Scope, Slot, Submitted, UnitFilter,
};
use workcrew::{
    Archive, AttemptKey, AttemptReport, Beginning, Failure, FailureKind, JobId, Lease, MemoryRepository, Message,
    NewJob, NewOwner, NewUnit, Next, OwnerId, Part, Process, Progress, Repository, Role, SqliteRepository, UnitStatus,
    WorkerId, audit,
};

use crate::memory;

/// Texts that something on the way might take for something else.
const ODD_TEXTS: &[&str] = &[
    "",
    " ",
    "-",
    "--flag",
    "-- a comment",
    "a\0b",
    "\0",
    "\u{feff}with a mark",
    "two\r\nlines\r\n",
    "\n",
    "'; DROP TABLE work_units; --",
    "\"\\\"'`",
    "{\"json\": \"\\ud800\"}",
    "\u{1f980}\u{10ffff}\u{e000}",
    "\u{202e}\u{2028}\u{85}\u{7f}\u{1b}[31m",
    "e\u{301} is not \u{e9}",
    "NULL",
    "1e400",
];

/// Bytes that need be no text.
const ODD_BYTES: &[&[u8]] = &[
    b"",
    b"\0",
    b"\xff\xfe\0\x80",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"{\"lone\": \"\\ud800\"}",
    b"{\"cut\": \"off",
    b"\xef\xbb\xbf{}",
    b"data: {}\r\n\r\n",
    b"1e400",
];

/// A repository of each kind, fresh and with its place.
fn repositories() -> Vec<(&'static str, Box<dyn Repository>, tempfile::TempDir)> {
    let folder = || tempfile::tempdir().unwrap();
    let database = folder();
    let sqlite = SqliteRepository::open(database.path().join("exact.db")).unwrap();
    vec![("memory", Box::new(MemoryRepository::new()), folder()), ("sqlite", Box::new(sqlite), database)]
}

/// A pool that uses a repository.
struct Pool<'a> {
    repository: &'a dyn Repository,
    owner: OwnerId,
    job_id: JobId,
}

impl<'a> Pool<'a> {
    fn of(repository: &'a dyn Repository) -> Pool<'a> {
        let process = Process::this(&SystemClock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "pool")).unwrap();
        let job_id = repository.create_job(&NewJob::named("job")).unwrap().id;
        Pool { repository, owner, job_id }
    }

    fn slot(&self) -> Slot {
        Slot::with_capacity(WorkerId::new("w").unwrap(), u32::MAX)
    }

    fn claimant(&self) -> Claimant {
        Claimant::new(self.owner, Duration::from_secs(3_600))
    }

    fn submit(&self, unit: &NewUnit) -> Lease {
        match self.repository.submit(self.job_id, unit, &self.claimant(), &self.slot()).unwrap() {
            Submitted::Claimed(claim) => claim.lease,
            other => panic!("{other:?}"),
        }
    }
}

/// All items of a sequence, page by page.
fn each<T>(mut read: impl FnMut(i64, usize) -> Result<Page<T>>, mut look: impl FnMut(T)) {
    let mut after = 0;
    loop {
        let page = read(after, PAGE_LIMIT).unwrap();
        page.items.into_iter().for_each(&mut look);
        match page.next {
            Some(next) => after = next,
            None => return,
        }
    }
}

fn messages(repository: &dyn Repository, attempt: AttemptKey) -> Vec<StoredMessage> {
    let mut all = Vec::new();
    each(|after, _| repository.messages(attempt, u32::try_from(after).unwrap(), 2), |message| all.push(message));
    all
}

fn assert_sound(name: &str, repository: &dyn Repository) {
    let verification = audit::verify(repository).unwrap();
    assert!(verification.is_clean(), "{name}: {verification}");
}

#[test]
fn prompts_payloads_and_templates_are_kept_byte_for_byte() {
    for (name, repository, _folder) in &repositories() {
        let pool = Pool::of(&**repository);
        for (index, text) in ODD_TEXTS.iter().enumerate() {
            let payload = json!({ *text: [text, { "deep": text }], "numbers": [u64::MAX, i64::MIN, 1.5e300, -0.0] });
            let unit = NewUnit::new(format!("u{index}"))
                .prompt(*text)
                .template(*text)
                .unit_type(*text)
                .affinity_key(*text)
                .workspace_dir(*text)
                .payload(payload.clone());
            repository.insert(pool.job_id, std::slice::from_ref(&unit), Intake::Open).unwrap();
            let stored = repository.unit(pool.job_id, &unit.id).unwrap();
            assert_eq!(stored.prompt.as_deref(), Some(*text), "{name}");
            assert_eq!(stored.template.as_deref(), Some(*text), "{name}");
            assert_eq!(stored.unit_type.as_deref(), Some(*text), "{name}");
            assert_eq!(stored.options, unit.options, "{name}");
            assert_eq!(stored.payload, payload, "{name}");
            let inputs = repository.inputs(stored.key).unwrap();
            assert_eq!(inputs.payload, Some(serde_json::to_vec(&payload).unwrap()), "{name}");
            let mut found = Vec::new();
            let filter = UnitFilter::job(pool.job_id).unit_type(*text);
            each(|after, limit| repository.units(&filter, after, limit), |unit| found.push(unit.key));
            assert_eq!(found, [stored.key], "{name}: {text:?}");
        }
        assert_sound(name, &**repository);
    }
}

#[test]
fn odd_ids_and_names_are_taken_as_they_are_or_refused() {
    for (name, repository, _folder) in &repositories() {
        let pool = Pool::of(&**repository);
        for text in ODD_TEXTS {
            let is_allowed = !text.is_empty() && !text.chars().any(char::is_control);
            let inserted = repository.insert(pool.job_id, &[NewUnit::new(*text)], Intake::Open);
            assert_eq!(inserted.is_ok(), is_allowed, "{name}: {text:?}");
            let job = repository.create_job(&NewJob::named(*text).template(*text).settings(json!({ *text: text })));
            assert_eq!(job.is_ok(), is_allowed, "{name}: {text:?}");
            if !is_allowed {
                assert!(repository.unit(pool.job_id, text).is_err(), "{name}: {text:?}");
                assert_eq!(repository.job_named(text).unwrap(), None, "{name}: {text:?}");
                continue;
            }
            assert_eq!(repository.unit(pool.job_id, text).unwrap().id.as_str(), *text, "{name}");
            let job = repository.job_named(text).unwrap().unwrap();
            assert_eq!((job.name.as_str(), job.template.as_deref()), (*text, Some(*text)), "{name}");
            assert_eq!(job.settings, json!({ *text: text }), "{name}");
        }
        let allowed = ODD_TEXTS.iter().filter(|text| !text.is_empty() && !text.chars().any(char::is_control)).count();
        assert_eq!(repository.counts(pool.job_id).unwrap().pending, allowed as u64, "{name}");
        assert_sound(name, &**repository);
    }
}

#[test]
fn conversations_are_kept_byte_for_byte_through_their_pages() {
    let mut said: Vec<Message> = ODD_TEXTS
        .iter()
        .flat_map(|text| {
            let call = Part::tool_use(*text, *text, json!({ *text: text }));
            [
                Message::user(*text).raw(*text),
                Message::new(Role::Tool).part(Part::tool_error(*text, *text)).part(Part::thinking(*text)),
                Message::new(Role::Assistant)
                    .part(call)
                    .part(Part::Other { kind: text.to_string(), value: json!(text) }),
            ]
        })
        .collect();
    said.extend(ODD_BYTES.iter().map(|bytes| Message::new(Role::System).raw(*bytes)));
    // Long enough to be compressed.
    said.extend(ODD_TEXTS.iter().map(|text| Message::assistant(text.repeat(20_000))));
    said.extend(ODD_BYTES.iter().map(|bytes| Message::new(Role::System).raw(bytes.repeat(20_000))));
    for (name, repository, _folder) in &repositories() {
        let pool = Pool::of(&**repository);
        let lease = pool.submit(&NewUnit::new("a").prompt("Talk."));
        repository.start(&lease, &Beginning::default()).unwrap();
        for (follows, message) in (0..).zip(&said) {
            repository.append(&lease, follows, std::slice::from_ref(message)).unwrap();
        }
        for text in ODD_TEXTS {
            repository.partial(&lease, text).unwrap();
            repository.flush(&lease).unwrap();
            let expected = Some(text.to_string()).filter(|text| !text.is_empty());
            assert_eq!(repository.partial_text(lease.attempt()).unwrap(), expected, "{name}: {text:?}");
        }
        repository.finish(&lease, &AttemptReport::completed()).unwrap();
        let mut stored = messages(&**repository, lease.attempt());
        let partial = stored.pop().unwrap().message().unwrap().unwrap();
        assert_eq!(partial, Message::assistant(*ODD_TEXTS.last().unwrap()).partial(), "{name}");
        assert_eq!(stored.len(), said.len(), "{name}");
        for (stored, said) in stored.iter().zip(&said) {
            let content = stored.content.as_ref().unwrap();
            assert_eq!(content.raw.as_deref(), said.raw.as_ref().map(|raw| raw.as_bytes()), "{name}");
            assert!(stored.message().unwrap().as_ref() == Some(said), "{name}: message {} differs", stored.number);
        }
        assert_sound(name, &**repository);
    }
}

#[test]
fn results_outputs_reasons_and_sessions_are_kept_byte_for_byte() {
    for (name, repository, _folder) in &repositories() {
        let pool = Pool::of(&**repository);
        for (index, text) in ODD_TEXTS.iter().enumerate() {
            let id = format!("u{index}");
            let lease = pool.submit(&NewUnit::new(&id).prompt("Do it."));
            repository.start(&lease, &Beginning::default().rendered_prompt(*text)).unwrap();
            repository.progress(&lease, &Progress::default().session(*text)).unwrap();
            repository.checkpoint_at(&lease, &json!({ *text: text })).unwrap();
            let result: Value = json!([text, { *text: null }]);
            let file =
                OutputFile { path: text.to_string(), size_bytes: i64::MAX as u64, hash: Hash::of(text.as_bytes()) };
            let failure = Failure::new(FailureKind::new(*text), *text);
            let report = AttemptReport::failed(failure.clone(), Next::GiveUp).output(*text).result(result.clone());
            repository.finish(&lease, &report.output_file(file.clone())).unwrap();

            let unit = repository.unit(pool.job_id, &id).unwrap();
            assert_eq!((unit.status, unit.failure), (UnitStatus::Failed, Some(failure)), "{name}");
            assert_eq!(unit.output.as_deref(), Some(*text), "{name}");
            assert_eq!(unit.rendered_prompt.as_deref(), Some(*text), "{name}");
            assert_eq!(unit.session_id.as_deref(), Some(*text), "{name}");
            assert_eq!((unit.result, unit.output_files), (Some(result.clone()), vec![file]), "{name}");
            assert_eq!(repository.checkpoint(unit.key).unwrap(), Some(json!({ *text: text })), "{name}");
            let left = repository.attempt_result(lease.attempt()).unwrap();
            assert_eq!(left.result.unwrap().as_bytes(), serde_json::to_vec(&result).unwrap(), "{name}");
            repository.requeue(pool.job_id, &id, &By::new(*text, *text)).unwrap();
            repository.cancel(pool.job_id, &id, &By::new(*text, *text)).unwrap();
            let rows = repository.unit_journal(unit.key, 0, PAGE_LIMIT).unwrap().items;
            for row in rows.iter().rev().take(2) {
                assert_eq!((row.actor.as_str(), row.reason.as_deref()), (*text, Some(*text)), "{name}");
            }
            let kind = repository.attempts(unit.key).unwrap().remove(0).failure.unwrap().kind;
            assert_eq!(kind.as_str(), *text, "{name}");
        }
        assert_sound(name, &**repository);
    }
}

/// A text of some length that hardly compresses, the same for the same seed.
fn noise(seed: u64, len_bytes: usize) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::with_capacity(len_bytes + 16);
    while text.len() < len_bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(&format!("{state:016x}"));
    }
    text.truncate(len_bytes);
    text
}

#[test]
fn a_conversation_of_a_hundred_megabytes_needs_little_memory() {
    const NAME: &str = "exact::a_conversation_of_a_hundred_megabytes_needs_little_memory";
    let lengths = || std::iter::repeat_n(256 * 1024, 400).chain([20 * 1024 * 1024]);
    let Some(peak_mib) = memory::peak_growth_mib(NAME, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.db");
        let repository = SqliteRepository::open(&path).unwrap();
        let pool = Pool::of(&repository);
        let lease = pool.submit(&NewUnit::new("long").prompt("Talk."));
        repository.start(&lease, &Beginning::default()).unwrap();
        for (number, len_bytes) in (0..).zip(lengths()) {
            let message = Message::assistant(noise(u64::from(number), len_bytes));
            repository.append(&lease, number, &[message]).unwrap();
        }
        repository.finish(&lease, &AttemptReport::completed()).unwrap();
        let (mut expected, mut total_bytes) = ((0..).zip(lengths()), 0);
        each(
            |after, limit| repository.messages(lease.attempt(), u32::try_from(after).unwrap(), limit),
            |message| {
                let (seed, len_bytes) = expected.next().unwrap();
                let text = message.message().unwrap().unwrap().text();
                assert_eq!(Hash::of(text.as_bytes()), Hash::of(noise(seed, len_bytes).as_bytes()));
                total_bytes += text.len();
            },
        );
        assert!(expected.next().is_none() && total_bytes > 120_000_000, "{total_bytes}");
        drop(repository);
        let verification = audit::verify(&SqliteArchive::open(&path).unwrap()).unwrap();
        assert!(verification.is_clean(), "{verification}");
        assert_eq!(verification.messages, 401);
    }) else {
        return;
    };
    println!("the memory grew by {peak_mib} MiB");
    assert!(peak_mib < 200, "the memory grew by {peak_mib} MiB");
}

/// Inserts units in batches, works on some, lists and verifies all, in one process.
fn live_with(units: usize) {
    const BATCH: usize = 1_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.db");
    let mut since = std::time::Instant::now();
    let mut lap = |what: &str| {
        println!("{what}: {:.1} s", since.elapsed().as_secs_f64());
        since = std::time::Instant::now();
    };
    let repository = SqliteRepository::open(&path).unwrap();
    let pool = Pool::of(&repository);
    for first in (0..units).step_by(BATCH) {
        let unit = |number| NewUnit::new(format!("unit-{number}")).prompt("Do it.").payload(json!({ "n": number }));
        let batch: Vec<NewUnit> = (first..first + BATCH).map(unit).collect();
        repository.insert(pool.job_id, &batch, Intake::Open).unwrap();
    }
    lap("inserted");
    for _ in 0..10 {
        let slots = vec![pool.slot(); 100];
        let request = ClaimRequest::new(pool.job_id, pool.claimant(), Scope::Pending, slots);
        for claim in repository.claim(&request).unwrap() {
            repository.start(&claim.lease, &Beginning::default()).unwrap();
            repository.append(&claim.lease, 0, &[Message::assistant("Done.")]).unwrap();
            repository.finish(&claim.lease, &AttemptReport::completed().output("Done.")).unwrap();
        }
    }
    lap("1000 claimed and completed");
    let (mut listed, mut last) = (0, None);
    each(
        |after, limit| repository.units(&UnitFilter::job(pool.job_id), after, limit),
        |unit| {
            listed += 1;
            assert!(last < Some(unit.key));
            last = Some(unit.key);
        },
    );
    lap("listed");
    assert_eq!(listed, units);
    let counts = repository.counts(pool.job_id).unwrap();
    assert_eq!((counts.completed, counts.pending), (1_000, units as u64 - 1_000));
    lap("counted");
    assert_eq!(repository.unit(pool.job_id, &format!("unit-{}", units - 1)).unwrap().status, UnitStatus::Pending);
    let mut outcomes = 0;
    each(|after, limit| repository.outcomes_since(after, limit), |_| outcomes += 1);
    assert_eq!(outcomes, 1_000);
    drop(repository);
    lap("closed");
    let verification = audit::verify(&SqliteArchive::open(&path).unwrap()).unwrap();
    assert!(verification.is_clean(), "{verification}");
    assert_eq!(verification.units, units as u64);
    lap("verified");
    println!("{units} units: {} MiB on disk", std::fs::metadata(&path).unwrap().len() / (1024 * 1024));
}

/// A million with `WORKCREW_MILLION=1`.
#[test]
fn very_many_units_need_little_memory() {
    const NAME: &str = "exact::very_many_units_need_little_memory";
    let units = if std::env::var_os("WORKCREW_MILLION").is_some() { 1_000_000 } else { 50_000 };
    let Some(peak_mib) = memory::peak_growth_mib(NAME, || live_with(units)) else { return };
    println!("{units} units: the memory grew by {peak_mib} MiB");
    assert!(peak_mib < 150, "the memory grew by {peak_mib} MiB");
}
