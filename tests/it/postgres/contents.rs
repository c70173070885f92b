//! Whatever was given is given back, byte for byte.

use serde_json::json;
use workcrew::attempt::{OutputFile, Provenance};
use workcrew::chain::Hash;
use workcrew::repository::{Archive, By, PAGE_LIMIT, Repository};
use workcrew::{
    AttemptReport, Beginning, Charge, Failure, FailureKind, Message, Money, NewJob, NewUnit, Next, Progress, Tokens,
    UnitStatus,
};

use super::{Place, assert_sound};
use crate::support;

/// A text that PostgreSQL's own type does not take.
fn odd(what: &str) -> String {
    format!("{what} \0 'ü' \u{10ffff} \\x00 $1")
}

#[test]
fn texts_with_any_character_survive_wherever_they_are_kept() {
    let Some(place) = Place::fresh() else { return };
    let repository = &place.repository;
    let owner = support::owner(repository, &odd("label"));
    let settings = json!({ "odd": odd("settings") });
    let job = NewJob::named("odd").template(odd("template")).settings(settings.clone());
    let job = repository.create_job(&job).unwrap();
    assert_eq!((job.template, job.settings), (Some(odd("template")), settings));

    let unit = NewUnit::new("a").unit_type(odd("type")).payload(json!(odd("payload"))).template(odd("its own"));
    let claim = place.claimed(owner, &unit);
    let (lease, attempt) = (&claim.lease, claim.lease.attempt());
    let mut beginning = Beginning::default();
    beginning.rendered_prompt = Some(odd("prompt"));
    beginning.provenance = Some(Provenance::of(odd("executor")));
    repository.start(lease, &beginning).unwrap();
    let mut progress = Progress::default();
    progress.session_id = Some(odd("session"));
    repository.progress(lease, &progress).unwrap();
    repository.checkpoint_at(lease, &json!(odd("checkpoint"))).unwrap();
    repository.partial(lease, &odd("partial")).unwrap();
    repository.flush(lease).unwrap();
    assert_eq!(repository.partial_text(attempt).unwrap(), Some(odd("partial")));

    let failure = Failure::new(FailureKind::new(odd("kind")), odd("message"));
    let mut report = AttemptReport::failed(failure.clone(), Next::GiveUp);
    report.output = Some(odd("output"));
    report.charges = vec![Charge::reported(odd("model"), Tokens::default(), Money::from_nanos(1))];
    report.output_files = vec![OutputFile { path: odd("path"), size_bytes: 1, hash: Hash::of(b"x") }];
    repository.finish(lease, &report).unwrap();

    let stored = repository.unit(place.job, "a").unwrap();
    assert_eq!((stored.status, stored.failure), (UnitStatus::Failed, Some(failure)));
    assert_eq!(stored.unit_type, Some(odd("type")));
    assert_eq!((stored.payload, stored.template), (json!(odd("payload")), Some(odd("its own"))));
    assert_eq!((stored.rendered_prompt, stored.output), (Some(odd("prompt")), Some(odd("output"))));
    assert_eq!((stored.session_id, stored.output_files), (Some(odd("session")), report.output_files));
    assert_eq!(repository.checkpoint(stored.key).unwrap(), Some(json!(odd("checkpoint"))));
    assert_eq!(repository.charges(attempt).unwrap(), report.charges);
    let partial = repository.messages(attempt, 0, PAGE_LIMIT).unwrap().items.pop().unwrap();
    assert_eq!(partial.message().unwrap().unwrap().text(), odd("partial"));

    repository.requeue(place.job, "a", &By::new(odd("ada"), odd("reason"))).unwrap();
    let last = repository.journal(0, PAGE_LIMIT).unwrap().items.pop().unwrap();
    assert_eq!((last.actor, last.reason), (odd("ada"), Some(odd("reason"))));
    assert_eq!(repository.owners().unwrap()[0].label, odd("label"));
    assert_sound(repository);
}

#[test]
fn names_that_cannot_be_are_not_there() {
    let Some(place) = Place::fresh() else { return };
    let repository = &place.repository;
    let unknown = repository.unit(place.job, "a\0b").unwrap_err();
    assert!(unknown.is_rejection(), "{unknown}");
    assert!(repository.cancel(place.job, "a\0b", &By::whom("ada")).unwrap_err().is_rejection());
    assert_eq!(repository.job_named("a\0b").unwrap(), None);
    let owner = support::owner(repository, "host");
    assert_eq!(repository.workers(owner, "a\0b", 10).unwrap(), []);
}

#[test]
fn bytes_that_are_no_text_and_long_conversations_survive() {
    let Some(place) = Place::fresh() else { return };
    let owner = support::owner(&place.repository, "host");
    let claim = place.claimed(owner, &NewUnit::new("a").prompt("do it"));
    let mut random = support::Random::new(support::Random::seed());
    // What compresses and what does not, what is empty, and every byte there is.
    let noise: Vec<u8> = (0..3_000_000).map(|_| random.below(256) as u8).collect();
    let every: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let mut messages = vec![
        Message::user("short").raw(vec![0xff, 0x00, 0xfe]),
        Message::assistant("x".repeat(5_000_000)).raw(noise),
        Message::user("").raw(Vec::new()),
        Message::assistant("every byte").raw(every),
    ];
    messages.extend((0..200).map(|number| Message::assistant(format!("{number} {}", "and on ".repeat(20_000)))));
    for (follows, message) in (0..).zip(&messages) {
        place.repository.append(&claim.lease, follows, std::slice::from_ref(message)).unwrap();
    }
    place.repository.flush(&claim.lease).unwrap();

    let (mut read, mut after) = (Vec::new(), 0);
    loop {
        let page = place.repository.messages(claim.lease.attempt(), after, PAGE_LIMIT).unwrap();
        let bytes: usize = page.items.iter().map(|message| message.message().unwrap().unwrap().text().len()).sum();
        assert!(bytes < 20_000_000, "a page of {bytes} bytes");
        read.extend(page.items);
        match page.next {
            Some(next) => after = u32::try_from(next).unwrap(),
            None => break,
        }
    }
    assert_eq!(read.len(), messages.len());
    for (stored, message) in read.iter().zip(&messages) {
        assert_eq!(stored.message().unwrap().as_ref(), Some(message), "message {}", stored.number);
    }
    place.repository.start(&claim.lease, &Beginning::default()).unwrap();
    place.repository.finish(&claim.lease, &AttemptReport::completed()).unwrap();
    assert_sound(&place.repository);
}
