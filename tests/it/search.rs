//! Full text: what is found and what is not any more, whatever happens to the index and to those who make it.

use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use rusqlite::Connection;
use serde_json::json;
use tempfile::TempDir;
use workcrew::audit::search::{Hit, Kind, Place, Query, SearchError, SearchIndex};
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::{By, Claimant, Intake, Slot, Submitted};
use workcrew::{
    Archive, AttemptReport, Beginning, Failure, FailureKind, JobId, Lease, Message, NewJob, NewOwner, NewUnit, Next,
    OwnerId, Part, Process, Repository, RepositoryError, Role, SqliteRepository, UnitStatus, WorkerId,
};

use crate::children::{self, ClockAhead, say, was_killed};
use crate::support::{Random, folder};

const HOUR: Duration = Duration::from_secs(3_600);

/// A database in a folder of its own.
struct Scene {
    folder: TempDir,
    repository: SqliteRepository,
    job: JobId,
    owner: OwnerId,
}

impl Scene {
    fn new() -> Scene {
        let folder = folder();
        let repository = SqliteRepository::open(folder.path().join("batch.db")).unwrap();
        Scene::on(folder, repository)
    }

    fn on(folder: TempDir, repository: SqliteRepository) -> Scene {
        let job = repository.create_job(&NewJob::named("search")).unwrap().id;
        let process = Process::this(&SystemClock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "a test")).unwrap();
        Scene { folder, repository, job, owner }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("batch.db")
    }

    fn index_path(&self) -> PathBuf {
        self.folder.path().join("batch.db.search")
    }

    fn begin(&self, unit: NewUnit) -> Lease {
        let slot = Slot::new(WorkerId::new(format!("w-{}", unit.id)).unwrap());
        match self.repository.submit(self.job, &unit, &Claimant::new(self.owner, HOUR), &slot).unwrap() {
            Submitted::Claimed(claim) => claim.lease,
            other => panic!("not claimed: {other:?}"),
        }
    }

    /// A unit that is being executed and has said this.
    fn running(&self, id: &str, said: &[Message]) -> Lease {
        let lease = self.begin(NewUnit::new(id).prompt("Go."));
        self.repository.start(&lease, &Beginning::default()).unwrap();
        self.repository.append(&lease, 0, said).unwrap();
        self.repository.flush(&lease).unwrap();
        lease
    }

    fn completed(&self, id: &str, said: &[Message]) {
        let lease = self.running(id, said);
        self.repository.finish(&lease, &AttemptReport::completed()).unwrap();
    }

    fn purge(&self) {
        self.repository.purge(Utc::now() + TimeDelta::days(1), &By::whom("test")).unwrap();
    }

    /// An index of all that is stored by now.
    fn index(&self) -> SearchIndex {
        let index = SearchIndex::beside(self.path()).unwrap();
        assert!(index.catch_up().unwrap().is_complete);
        index
    }
}

fn query(text: &str) -> Query {
    Query::parse(text).unwrap()
}

fn found(index: &SearchIndex, text: &str) -> Vec<Hit> {
    index.find(&query(text)).unwrap()
}

/// The units in which something is found, in the order of their names.
fn units(index: &SearchIndex, text: &str) -> Vec<String> {
    let hits = index.find(&query(text).limit(1_000)).unwrap();
    let mut units: Vec<String> = hits.iter().map(|hit| hit.unit_id.to_string()).collect();
    units.sort();
    units
}

#[test]
fn all_that_was_asked_said_answered_and_reported_is_found_where_it_is() {
    let scene = Scene::new();
    let lease = scene.begin(NewUnit::new("a").prompt("promptword"));
    scene.repository.start(&lease, &Beginning::default().rendered_prompt("renderedword")).unwrap();
    let long = format!("{} compressedword {}", "lorem ipsum ".repeat(5_000), "dolor ".repeat(5_000));
    let said = [
        Message::new(Role::System).part(Part::text("systemword")),
        Message::user("userword"),
        Message::new(Role::Assistant)
            .part(Part::thinking("thoughtword"))
            .part(Part::text("saidword"))
            .part(Part::tool_use("t1", "toolnameword", json!({ "path": "/src/inputword.rs" })))
            .raw("rawword"),
        Message::new(Role::Tool).part(Part::tool_result("t1", "resultword")),
        Message::assistant(long),
    ];
    scene.repository.append(&lease, 0, &said).unwrap();
    let failure = Failure::new(FailureKind::new("overloaded"), "errorword");
    let report = AttemptReport::failed(failure, Next::Retry { after: Duration::ZERO });
    scene.repository.finish(&lease, &report.output("partword")).unwrap();
    let lease = scene.begin(NewUnit::new("a").prompt("promptword"));
    scene.repository.start(&lease, &Beginning::default()).unwrap();
    let report = AttemptReport::completed().output("outputword").result(json!({ "city": "jsonword" }));
    scene.repository.finish(&lease, &report).unwrap();

    let index = scene.index();
    let all = [
        ("promptword", Place::Prompt, Kind::Prompt, None, None),
        ("renderedword", Place::RenderedPrompt, Kind::Prompt, Some(1), None),
        ("systemword", Place::Message, Kind::Prompt, Some(1), Some(1)),
        ("userword", Place::Message, Kind::Prompt, Some(1), Some(2)),
        ("thoughtword", Place::Message, Kind::Assistant, Some(1), Some(3)),
        ("saidword", Place::Message, Kind::Assistant, Some(1), Some(3)),
        ("toolnameword", Place::Message, Kind::Tool, Some(1), Some(3)),
        ("inputword", Place::Message, Kind::Tool, Some(1), Some(3)),
        ("resultword", Place::Message, Kind::Tool, Some(1), Some(4)),
        ("compressedword", Place::Message, Kind::Assistant, Some(1), Some(5)),
        ("errorword", Place::Error, Kind::Error, Some(1), None),
        ("overloaded", Place::Error, Kind::Error, Some(1), None),
        ("partword", Place::Output, Kind::Assistant, Some(1), None),
        ("outputword", Place::Output, Kind::Assistant, Some(2), None),
        ("jsonword", Place::Output, Kind::Assistant, Some(2), None),
    ];
    for (word, place, kind, attempt, message) in all {
        let hits = found(&index, word);
        assert_eq!(hits.len(), 1, "{word}: {hits:?}");
        let hit = &hits[0];
        assert_eq!(
            (hit.place, hit.kind, hit.attempt_number, hit.message_number),
            (place, kind, attempt, message),
            "{word}"
        );
        assert_eq!((hit.job_id, hit.unit_id.as_str(), hit.status), (scene.job, "a", UnitStatus::Completed));
        let marked: Vec<&str> = hit.snippet.matches.iter().map(|range| &hit.snippet.text[range.clone()]).collect();
        assert_eq!(marked, [word]);
        for other in Kind::ALL {
            let hits = index.find(&query(word).kind(*other)).unwrap();
            assert_eq!(!hits.is_empty(), *other == kind, "{word} {other}");
        }
    }
    assert_eq!(found(&index, "rawword"), []);
    assert_eq!(found(&index, "toolnameword")[0].role, Some(Role::Assistant));
}

#[test]
fn a_unit_that_failed_without_an_attempt_and_a_late_answer_are_found() {
    let (folder, clock) = (folder(), ClockAhead::default());
    let options = workcrew::repository::sqlite::SqliteOptions::new().clock(clock.clone());
    let repository = options.open(folder.path().join("batch.db")).unwrap();
    let scene = Scene::on(folder, repository);
    let unit = NewUnit::new("waits").prompt("Go.").queue_timeout(Duration::from_secs(1));
    scene.repository.insert(scene.job, &[unit], Intake::AcceptedBy(scene.owner)).unwrap();
    let lease = scene.running("late", &[]);
    clock.advance(2 * HOUR);
    scene.repository.expire(100).unwrap();
    let late = scene.repository.finish(&lease, &AttemptReport::completed().output("belatedword"));
    assert!(matches!(late, Err(RepositoryError::Stale { .. })));

    let index = scene.index();
    let hits = found(&index, "queue_timeout");
    assert_eq!((hits[0].unit_id.as_str(), hits[0].place, hits[0].attempt_number), ("waits", Place::Error, None));
    let hits = found(&index, "belatedword");
    assert_eq!((hits[0].unit_id.as_str(), hits[0].place, hits[0].attempt_number), ("late", Place::LateResult, Some(1)));

    // Brought back, it has not failed any more.
    scene.repository.requeue(scene.job, "waits", &By::whom("test")).unwrap();
    assert_eq!(found(&index, "queue_timeout"), []);
    index.catch_up().unwrap();
    assert_eq!(found(&index, "queue_timeout"), []);
}

#[test]
fn what_is_said_by_an_attempt_that_runs_is_found_and_later_only_what_is_new_is_read() {
    let scene = Scene::new();
    let lease = scene.running("a", &[Message::assistant("first words")]);
    let index = SearchIndex::beside(scene.path()).unwrap();
    let first = index.catch_up().unwrap();
    assert_eq!((first.texts, first.is_new, first.is_complete), (2, true, true));
    assert_eq!(found(&index, "first")[0].status, UnitStatus::Processing);

    scene.repository.append(&lease, 1, &[Message::assistant("second words")]).unwrap();
    scene.repository.flush(&lease).unwrap();
    assert_eq!(found(&index, "second"), [], "not yet");
    let second = index.catch_up().unwrap();
    assert_eq!((second.texts, second.text_bytes, second.is_new), (1, 12, false));
    assert_eq!(found(&index, "words").len(), 2);
    assert_eq!(index.catch_up().unwrap().texts, 0);
    drop(index);
    assert_eq!(SearchIndex::beside(scene.path()).unwrap().catch_up().unwrap().texts, 0, "it was kept");
}

#[test]
fn an_empty_database_has_nothing_to_find() {
    let folder = folder();
    let path = folder.path().join("empty.db");
    drop(SqliteRepository::open(&path).unwrap());
    let index = SearchIndex::beside(&path).unwrap();
    assert_eq!(found(&index, "anything"), []);
    let done = index.catch_up().unwrap();
    assert_eq!((done.texts, done.is_complete), (0, true));
    assert_eq!(found(&index, "anything"), []);
    let missing = SearchIndex::beside(folder.path().join("missing.db"));
    assert!(matches!(missing, Err(SearchError::Open(_))));
    assert!(!folder.path().join("missing.db.search").exists());
}

#[test]
fn hits_are_ranked_filtered_paged_and_grouped() {
    let scene = Scene::new();
    let filler = "and so on and on ".repeat(50);
    let other_job = scene.repository.create_job(&NewJob::named("other")).unwrap().id;
    scene.repository.queue_unit(other_job, &NewUnit::new("elsewhere").prompt("the badger")).unwrap();
    scene.completed("dense", &[Message::assistant("badger badger badger")]);
    scene.completed("sparse", &[Message::assistant(format!("{filler} badger {filler}"))]);
    let failing = scene.running(
        "many",
        &[
            Message::user("badger one"),
            Message::assistant("badger two"),
            Message::assistant("no such animal"),
            Message::assistant("three badger"),
        ],
    );
    let failure = Failure::new(FailureKind::EXECUTOR, "the badger bit");
    scene.repository.finish(&failing, &AttemptReport::failed(failure, Next::GiveUp)).unwrap();
    let index = scene.index();

    let all = found(&index, "badger");
    assert_eq!(all.len(), 7);
    assert_eq!(all[0].unit_id.as_str(), "dense");
    assert_eq!(all[6].unit_id.as_str(), "sparse");
    assert!(all.windows(2).all(|pair| pair[0].score >= pair[1].score) && all[6].score > 0.0, "{all:#?}");

    let names = |query: Query| -> Vec<String> {
        index.find(&query).unwrap().iter().map(|hit| format!("{} {}", hit.unit_id, hit.others)).collect()
    };
    assert_eq!(names(query("badger").job(other_job)), ["elsewhere 0"]);
    assert_eq!(names(query("badger").status(UnitStatus::Pending)), ["elsewhere 0"]);
    assert_eq!(names(query("badger").status(UnitStatus::Failed).kind(Kind::Error)), ["many 0"]);
    assert_eq!(names(query("badger").since(Utc::now() + TimeDelta::hours(1))), [""; 0]);
    assert_eq!(names(query("badger -three -bit").status(UnitStatus::Failed)).len(), 2);
    let grouped = names(query("badger").by_unit());
    assert_eq!(grouped.iter().collect::<BTreeSet<_>>().len(), 4);
    assert!(grouped[0] == "dense 0" && grouped.contains(&"many 3".to_owned()), "{grouped:?}");
    assert_eq!(names(query("badger").by_unit().limit(2).offset(1)), grouped[1..3]);
    assert_eq!(names(query("badger").by_unit().limit(9).offset(9)), [""; 0]);
    let paged: Vec<Hit> = (0..7).flat_map(|page| index.find(&query("badger").limit(1).offset(page)).unwrap()).collect();
    assert_eq!(paged, all);
    assert_eq!(names(query("badger").limit(0)), [""; 0]);
    assert_eq!(names(query("badger").limit(0).by_unit()), [""; 0]);
}

#[test]
fn words_in_any_script_are_found() {
    let scene = Scene::new();
    scene.completed("fr", &[Message::assistant("L'été à Zürich, naïveté")]);
    scene.completed("ja", &[Message::assistant("東京都に住んでいます。AI技術")]);
    scene.completed("th", &[Message::assistant("ภาษาไทยไม่มีช่องว่าง")]);
    scene.completed("ru", &[Message::assistant("Ёлка стоит в лесу")]);
    scene.completed("hi", &[Message::assistant("हिन्दी में लिखा")]);
    scene.completed("ar", &[Message::assistant("كِتَاب العربية")]);
    let index = scene.index();
    let words = [
        ("ETE zurich", "fr"),
        ("naivete", "fr"),
        ("京都", "ja"),
        ("住", "ja"),
        ("AI技術", "ja"),
        ("東京都", "ja"),
        ("ไทย", "th"),
        ("елка", "ru"),
        ("हिन्दी", "hi"),
        ("كتاب", "ar"),
    ];
    for (word, unit) in words {
        assert_eq!(units(&index, word), [unit], "{word}");
        assert!(!found(&index, word)[0].snippet.matches.is_empty(), "{word}");
    }
    assert_eq!(units(&index, "都京"), [""; 0]);
}

#[test]
fn no_query_is_a_syntax_error() {
    let scene = Scene::new();
    scene.completed("a", &[Message::assistant("one two three")]);
    let index = scene.index();
    let mut random = Random::new(Random::seed());
    let signs = [
        "\"", "*", "-", "(", ")", "{", "}", ":", "^", "+", "'", ";", "\\", "\0", " ", "AND", "OR", "NOT", "NEAR(",
        "one", "tw", "東", "é", "\u{301}", "words", "rank", ", 5)", "--", "☃",
    ];
    for _ in 0..2_000 {
        let text: String = (0..random.below(12)).map(|_| signs[random.below(signs.len())]).collect();
        if let Ok(query) = Query::parse(&text) {
            for query in [query.clone(), query.kind(Kind::Assistant).by_unit()] {
                index.find(&query).unwrap_or_else(|error| panic!("{text:?}: {error:?}"));
            }
        }
    }
}

#[test]
fn a_message_of_ten_megabytes_is_found_and_shown_in_part() {
    let scene = Scene::new();
    let text = format!("{} needleword {}", "haystack of straw ".repeat(300_000), "y".repeat(5_000_000));
    scene.completed("big", &[Message::assistant(text), Message::assistant("z".repeat(3_000_000))]);
    scene.completed("odd", &[Message::assistant("\u{1b}[31m needleword\u{0}\u{202e}\n\"'<b>")]);
    let index = scene.index();
    let hits = found(&index, "needleword");
    assert_eq!(hits.len(), 2);
    for hit in &hits {
        assert!(hit.snippet.text.len() < 1_000, "{}", hit.snippet.text.len());
        assert!(!hit.snippet.text.chars().any(|char| char.is_control() || char == '\u{202e}'), "{:?}", hit.snippet);
    }
    assert_eq!(found(&index, &"z".repeat(100)).len(), 1, "the beginning of a word without end");
}

#[test]
fn what_was_purged_is_not_shown_and_leaves_the_file() {
    let scene = Scene::new();
    let secret = "Xylophonquark";
    for number in 0..50 {
        scene.completed(&format!("old-{number}"), &[Message::assistant(format!("some {secret}{number} here"))]);
    }
    let kept = scene.running("kept", &[Message::assistant("still here")]);
    let index = scene.index();
    let holds = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(12).any(|window| window == &secret.to_lowercase().as_bytes()[1..])
    };
    assert!(holds(&scene.index_path()), "the test would find it");
    assert_eq!(index.find(&query("xylophonquark*").limit(99)).unwrap().len(), 50);

    scene.purge();
    assert_eq!(found(&index, "xylophonquark*"), [], "it is not shown even before the index knows");
    index.catch_up().unwrap();
    assert_eq!(found(&index, "xylophonquark*"), []);
    assert_eq!(units(&index, "here"), ["kept"]);
    assert!(!holds(&scene.index_path()), "its words are gone from the file");
    assert_eq!(index.catch_up().unwrap().texts, 0);
    scene.repository.finish(&kept, &AttemptReport::completed().output("further on")).unwrap();
    index.catch_up().unwrap();
    assert_eq!(units(&index, "further"), ["kept"]);
}

#[test]
fn another_database_under_the_same_name_gets_an_index_of_its_own() {
    let (one, two) = (Scene::new(), Scene::new());
    one.completed("one", &[Message::assistant("alpha")]);
    let backup = one.folder.path().join("backup.db");
    one.repository.backup(&backup).unwrap();
    one.completed("later", &[Message::assistant("gamma")]);
    two.completed("two", &[Message::assistant("beta")]);
    two.completed("more", &[Message::assistant("beta")]);
    two.completed("most", &[Message::assistant("beta")]);
    assert_eq!(units(&one.index(), "alpha"), ["one"]);
    let (first, second) = (one.path(), two.path());
    let index_path = one.index_path();
    let Scene { folder, repository, .. } = one;
    drop((repository, two.repository));

    // Larger than the one before, smaller, and an older copy of the one before that.
    let replace = |by: &Path| fs::copy(by, &first).unwrap();
    let others = [(&second, vec!["more", "most", "two"], "beta"), (&backup, vec!["one"], "alpha")];
    for (other, expected, word) in others {
        replace(other);
        let index = SearchIndex::beside(&first).unwrap();
        assert!(index.catch_up().unwrap().is_new);
        assert_eq!(units(&index, word), expected);
        assert_eq!(units(&index, "alpha OR beta"), [""; 0]);
        assert_eq!(units(&index, "gamma"), [""; 0]);
    }
    assert!(index_path.exists());
    drop(folder);
}

#[test]
fn an_index_that_is_deleted_damaged_or_of_another_version_is_made_anew() {
    let scene = Scene::new();
    for number in 0..200 {
        scene.completed(
            &format!("u{number}"),
            &[Message::assistant(format!("word{number} common {}", "x y z ".repeat(99)))],
        );
    }
    let path = scene.index_path();
    let whole = |index: &SearchIndex| index.find(&query("common").limit(999)).unwrap().len() == 200;
    let index = scene.index();
    assert!(whole(&index));

    fs::remove_file(&path).unwrap();
    assert!(whole(&index), "who has it open still has it");
    assert!(index.catch_up().unwrap().is_new && path.exists() && whole(&index));
    drop(index);

    Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    assert!(whole(&scene.index()));
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE more (x)").unwrap();
    assert!(whole(&scene.index()));
    fs::write(&path, b"").unwrap();
    assert!(whole(&scene.index()));

    let sound = fs::read(&path).unwrap();
    let mut random = Random::new(Random::seed());
    for _ in 0..30 {
        // Behind the header, which says whose it is.
        let mut bytes = sound.clone();
        let (start, len) = (100 + random.below(bytes.len() - 5_000), 1 + random.below(4_000));
        bytes[start..start + len].fill(u8::try_from(random.below(256)).unwrap());
        if random.below(4) == 0 {
            bytes.truncate(start);
        }
        fs::write(&path, &bytes).unwrap();
        let index = SearchIndex::beside(scene.path()).unwrap();
        // Damage shows or does not; it must not do more than hide something until the index is made anew.
        let _ = index.find(&query("common").limit(999));
        let _ = index.catch_up().unwrap();
        index.make_anew().unwrap();
        index.catch_up().unwrap();
        assert!(whole(&index));
    }
}

#[test]
fn what_is_no_index_is_left_alone() {
    let scene = Scene::new();
    scene.completed("a", &[Message::assistant("hello")]);
    for theirs in [&b"my notes on the search"[..], &[0; 500]] {
        fs::write(scene.index_path(), theirs).unwrap();
        let refused = SearchIndex::beside(scene.path()).unwrap_err();
        assert!(
            matches!(&refused, SearchError::NotOurs { path } if *path == scene.index_path().canonicalize().unwrap())
        );
        assert!(refused.to_string().contains("batch.db.search"), "{refused}");
        assert_eq!(fs::read(scene.index_path()).unwrap(), theirs);
    }
    fs::remove_file(scene.index_path()).unwrap();
    Connection::open(scene.index_path()).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    assert!(matches!(SearchIndex::beside(scene.path()), Err(SearchError::NotOurs { .. })));
    let index = SearchIndex::temporary(scene.path()).unwrap();
    index.catch_up().unwrap();
    assert_eq!(units(&index, "hello"), ["a"]);
}

#[test]
fn whoever_watches_may_end_it_and_it_goes_on_from_there() {
    let scene = Scene::new();
    let text = "lorem ipsum dolor ".repeat(100_000);
    for number in 0..12 {
        scene.completed(&format!("u{number}"), &[Message::assistant(&text)]);
    }
    let index = SearchIndex::beside(scene.path()).unwrap();
    let mut seen = Vec::new();
    let done = index
        .catch_up_with(|progress| {
            seen.push(*progress);
            if seen.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert!(!done.is_complete && done.texts > 0 && seen[1].rows > seen[0].rows, "{done:?} {seen:?}");
    let some = index.find(&query("ipsum").limit(99)).unwrap().len();
    assert!((1..12).contains(&some), "{some}");
    let rest = index.catch_up().unwrap();
    assert!(rest.is_complete && !rest.is_new);
    assert_eq!(done.texts + rest.texts, 24);
    assert_eq!(index.find(&query("ipsum").limit(99)).unwrap().len(), 12);
}

#[test]
#[ignore = "the part of a child process"]
fn child() {
    let Some(role) = children::role() else { return };
    workcrew::testing::arm_from_environment();
    let index = SearchIndex::beside(children::path()).unwrap();
    match role.as_str() {
        "catch up" => say(index.catch_up().unwrap().texts),
        "read only" => {
            assert!(index.is_temporary() && index.path().is_none());
            index.catch_up().unwrap();
            say(found(&index, "hello").len());
        }
        other => panic!("{other}"),
    }
}

#[test]
fn killed_in_the_middle_it_goes_on_where_it_was() {
    let scene = Scene::new();
    let text = "lorem ipsum dolor ".repeat(100_000);
    for number in 0..16 {
        scene.completed(&format!("u{number}"), &[Message::assistant(format!("{text} word{number}"))]);
    }
    for plan in ["index:inside:1:kill", "index:inside:2:kill", "index:committed:1:kill", "index:inside:1:kill"] {
        let (status, _) = children::Role::new("search::child", "catch up", scene.path()).fault(plan).start().end();
        assert!(was_killed(status), "{plan}: {status}");
    }
    let index = SearchIndex::beside(scene.path()).unwrap();
    let kept = index.find(&query("ipsum").limit(99)).unwrap().len();
    assert!((1..16).contains(&kept), "{kept}");
    let done = index.catch_up().unwrap();
    assert!(!done.is_new && done.is_complete);
    for number in 0..16 {
        assert_eq!(units(&index, &format!("word{number}")), [format!("u{number}")]);
    }
    assert_eq!(index.find(&query("go").limit(99)).unwrap().len(), 16, "no text is there twice");
}

#[test]
fn several_catch_up_beside_a_writer_and_nothing_is_there_twice() {
    let scene = Scene::new();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let catching_up = || {
            let index = SearchIndex::beside(scene.path()).unwrap();
            while !is_over.load(Ordering::SeqCst) {
                index.catch_up().unwrap();
                index.find(&query("common")).unwrap();
            }
        };
        let crew = [threads.spawn(catching_up), threads.spawn(catching_up)];
        for number in 0..300 {
            scene.completed(&format!("u{number}"), &[Message::assistant(format!("common word{number}"))]);
            if number == 150 {
                scene.purge();
            }
        }
        is_over.store(true, Ordering::SeqCst);
        crew.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let index = scene.index();
    let hits = index.find(&query("common").limit(999)).unwrap();
    let distinct: BTreeSet<String> = hits.iter().map(|hit| hit.unit_id.to_string()).collect();
    let purged = scene.repository.units(&workcrew::repository::UnitFilter::default(), 0, 1_000).unwrap();
    let expected = purged.items.iter().filter(|unit| unit.purged_at.is_none()).count();
    assert!(expected < 300);
    assert_eq!((hits.len(), distinct.len()), (expected, expected));
    let connection = Connection::open(scene.index_path()).unwrap();
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(count("SELECT count(*) FROM documents"), 2 * i64::try_from(expected).unwrap());
    connection.execute("INSERT INTO words (words) VALUES ('integrity-check')", []).unwrap();
}

#[test]
fn where_nothing_can_be_written_the_index_is_temporary_and_says_so() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new();
    scene.completed("a", &[Message::assistant("hello")]);
    let (path, Scene { folder, repository, .. }) = (scene.path(), scene);
    drop(repository);
    let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let hits_of_another_user = || {
        let binary = folder.path().join("it");
        if !binary.exists() {
            fs::copy(std::env::current_exe().unwrap(), &binary).unwrap();
            allow(&binary, 0o755);
        }
        children::Role::of(binary, "search::child", "read only", &path).user(65_534).start().end_well()
    };
    // Only who may become another user can tell.
    if !rustix::process::geteuid().is_root() {
        println!("skipped: not root");
        return;
    }
    allow(folder.path(), 0o755);
    allow(&path, 0o644);
    assert_eq!(hits_of_another_user(), ["1"], "the folder cannot be written");
    allow(folder.path(), 0o777);
    assert_eq!(hits_of_another_user(), ["1"], "the database cannot be written");
    assert!(!folder.path().join("batch.db.search").exists());

    let index = SearchIndex::beside(&path).unwrap();
    assert!(!index.is_temporary());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&index.path().unwrap()), 0o644, "it can be read by whom the database can be");
    allow(&path, 0o600);
    drop(index);
    fs::remove_file(folder.path().join("batch.db.search")).unwrap();
    assert_eq!(mode(&SearchIndex::beside(&path).unwrap().path().unwrap()), 0o600);
}
