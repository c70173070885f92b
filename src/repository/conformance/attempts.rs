//! What an attempt writes while it runs: `start`, `append`, `partial`, `flush`, `progress`, `checkpoint_at`.

use serde_json::{Value, json};

use super::scene::{Act, SECOND, Scene, give_up, retry, too_deep, work};
use crate::attempt::{AttemptReport, Beginning, OutputFile, Progress, Provenance};
use crate::chain::{Hash, conversation_genesis};
use crate::conversation::{Message, MessageContent, Part, Role, Truncation};
use crate::lease::Lease;
use crate::money::{Charge, Money, Price, Tokens};
use crate::process::Process;
use crate::repository::RepositoryError;
use crate::unit::{Change, NewUnit, UnitStatus};

cases![
    an_execution_begins_once,
    a_start_after_a_cancel_request_changes_nothing,
    the_prompt_as_it_is_counts_as_rendered_once_it_is_sent,
    a_conversation_comes_back_byte_for_byte,
    a_conversation_without_words_has_a_head,
    messages_that_are_sent_again_are_not_doubled,
    a_gap_in_a_conversation_is_refused,
    a_message_that_is_too_deep_is_refused,
    the_first_message_has_its_time,
    a_partial_message_is_replaced_until_the_whole_one_comes,
    a_partial_message_becomes_a_part_of_the_conversation_at_the_end,
    every_attempt_has_a_conversation_of_its_own,
    progress_keeps_what_it_does_not_mention,
    what_could_not_be_read_again_is_refused,
    a_checkpoint_reaches_the_next_attempt,
    the_processes_of_earlier_attempts_reach_the_next,
    a_process_that_serves_several_attempts_reaches_the_next_only_after_one_that_was_lost,
    a_session_reaches_the_next_attempt,
];

fn an_execution_begins_once(scene: &Scene<'_>) {
    // 004-F5, 004-F23, 004-F27, 004-F34.
    let lease = scene.assigned("a").lease;
    scene.advance(SECOND);
    let began = scene.now();
    let mut provenance = Provenance::of("shell");
    provenance.arguments = vec!["--model".into(), "\0odd".into()];
    let beginning = Beginning::default().rendered_prompt("do \0 it").provenance(provenance.clone());
    scene.repository.start(&lease, &beginning).expect("it is held");
    let before = scene.snapshot("a");
    scene.advance(SECOND);
    scene.repository.start(&lease, &beginning).expect("sent again");
    assert_eq!(scene.snapshot("a"), before);

    let (unit, attempt) = (scene.unit("a"), scene.attempt(&lease));
    assert_eq!((unit.status, unit.started_at), (UnitStatus::Processing, Some(began)));
    assert_eq!(unit.rendered_prompt.as_deref(), Some("do \0 it"));
    assert_eq!((attempt.started_at, attempt.provenance), (Some(began), Some(provenance)));
    let row = scene.last_row("a");
    assert_eq!((row.change, row.attempt_number, row.fence), (Change::Start, Some(1), 1));
    assert_eq!(row.actor, scene.owner.to_string());
}

fn a_start_after_a_cancel_request_changes_nothing(scene: &Scene<'_>) {
    let lease = scene.bring("a", UnitStatus::CancelRequested).lease;
    let before = scene.snapshot("a");
    scene.repository.start(&lease, &Beginning::default().rendered_prompt("x")).expect("it is held");
    assert_eq!(scene.snapshot("a"), before);
}

fn the_prompt_as_it_is_counts_as_rendered_once_it_is_sent(scene: &Scene<'_>) {
    let lease = scene.assigned("a").lease;
    assert_eq!(scene.unit("a").rendered_prompt, None);
    scene.start(&lease);
    assert_eq!(scene.unit("a").rendered_prompt.as_deref(), Some("do a"));
}

fn a_conversation_comes_back_byte_for_byte(scene: &Scene<'_>) {
    // 004-F28, 004-F35, 004-F36.
    let lease = scene.processing("a").lease;
    let said = odd_messages();
    scene.repository.append(&lease, 0, &said).expect("it is held");
    scene.repository.flush(&lease).expect("it is held");
    read_back(scene, &lease, &said);
    scene.finish(&lease, &give_up());
    // 004-F38: for a failed execution too.
    read_back(scene, &lease, &said);
    assert_eq!(scene.attempt(&lease).message_count.map(|count| count as usize), Some(said.len()));
}

fn read_back(scene: &Scene<'_>, lease: &Lease, said: &[Message]) {
    let stored = scene.messages(lease.attempt());
    assert_eq!(stored.len(), said.len());
    for (stored, said) in stored.iter().zip(said) {
        assert_eq!(stored.content, Some(MessageContent::of(said).expect("it is not deep")), "other bytes");
        assert_eq!(stored.message().expect("it can be read").as_ref(), Some(said));
        assert_eq!((stored.role, stored.at), (said.role, scene.now()));
    }
}

fn a_conversation_without_words_has_a_head(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    scene.repository.flush(&lease).expect("there is nothing to wait for");
    scene.repository.append(&lease, 0, &[]).expect("nothing can be added");
    scene.finish(&lease, &AttemptReport::completed());
    let attempt = scene.attempt(&lease);
    let genesis = conversation_genesis(lease.attempt(), lease.fence);
    assert_eq!((attempt.message_count, attempt.head), (Some(0), Some(genesis)));
}

fn messages_that_are_sent_again_are_not_doubled(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let said: Vec<Message> = ["a", "b", "c", "d"].map(Message::user).into();
    for (follows, sent) in [(0, &said[..2]), (0, &said[..2]), (1, &said[1..3]), (0, &said[..1]), (3, &said[3..])] {
        scene.repository.append(&lease, follows, sent).expect("there is no gap");
    }
    scene.repository.flush(&lease).expect("it is held");
    read_back(scene, &lease, &said);
}

fn a_gap_in_a_conversation_is_refused(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let said = [Message::user("one")];
    scene.repository.append(&lease, 0, &said).expect("there is no gap");
    scene.repository.flush(&lease).expect("it is held");
    match scene.repository.append(&lease, 2, &[Message::user("three")]) {
        // Whoever does not look at once tells it later: what was not stored is never passed over.
        Ok(()) => assert!(scene.repository.flush(&lease).is_err(), "a message was lost, and nobody was told"),
        answer => assert_refused!(answer, RepositoryError::Invalid(_)),
    }
    read_back(scene, &lease, &said);
}

fn a_message_that_is_too_deep_is_refused(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let call = Part::tool_use("t", "deep", too_deep());
    let said = [Message::user("one"), Message::new(Role::Assistant).part(call)];
    let answer = scene.repository.append(&lease, 0, &said).and_then(|()| scene.repository.flush(&lease));
    assert_refused!(answer, RepositoryError::Invalid(_));
    assert_eq!(scene.messages(lease.attempt()), [], "all messages of a call are added, or none");
}

fn the_first_message_has_its_time(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    assert_eq!(scene.unit("a").first_message_at, None);
    scene.advance(SECOND);
    let first = scene.now();
    scene.repository.append(&lease, 0, &[Message::user("one")]).expect("it is held");
    scene.repository.flush(&lease).expect("it is held");
    scene.advance(SECOND);
    scene.repository.append(&lease, 1, &[Message::assistant("two")]).expect("it is held");
    scene.repository.flush(&lease).expect("it is held");
    assert_eq!(scene.unit("a").first_message_at, Some(first));
}

fn a_partial_message_is_replaced_until_the_whole_one_comes(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let partial = || {
        scene.repository.flush(&lease).expect("it is held");
        scene.repository.partial_text(lease.attempt()).expect("it can be read")
    };
    assert_eq!(partial(), None);
    for text in ["P", "Par\0is \u{202e}", "Paris"] {
        scene.repository.partial(&lease, text).expect("it is held");
        assert_eq!(partial().as_deref(), Some(text));
    }
    scene.repository.append(&lease, 0, &[]).expect("it is held");
    assert_eq!(partial().as_deref(), Some("Paris"), "nothing came");
    let said = [Message::assistant("Paris.")];
    scene.repository.append(&lease, 0, &said).expect("it is held");
    assert_eq!(partial(), None);
    scene.repository.partial(&lease, "Or").expect("it is held");
    scene.repository.partial(&lease, "").expect("it is held");
    assert_eq!(partial(), None);
    scene.finish(&lease, &AttemptReport::completed());
    read_back(scene, &lease, &said);
}

fn a_partial_message_becomes_a_part_of_the_conversation_at_the_end(scene: &Scene<'_>) {
    let ends: [(&str, Act); 4] = [
        ("finish", |scene, lease| {
            scene.finish(lease, &give_up());
        }),
        ("release", |scene, lease| {
            scene.release(lease, None, "no time");
        }),
        ("expire", |scene, _| drop(scene.lose_all())),
        ("end_owner", |scene, _| scene.repository.end_owner(scene.owner).expect("an owner can end")),
    ];
    for (verb, end) in ends {
        let lease = scene.processing(verb).lease;
        scene.repository.append(&lease, 0, &[Message::user("hello")]).expect("it is held");
        scene.repository.partial(&lease, "Bonj").expect("it is held");
        end(scene, &lease);
        read_back_texts(scene, &lease, &[("hello", false), ("Bonj", true)]);
        assert_eq!(scene.repository.partial_text(lease.attempt()).expect("it can be read"), None, "{verb}");
        assert_eq!(scene.attempt(&lease).message_count, Some(2), "{verb}");
    }
}

fn read_back_texts(scene: &Scene<'_>, lease: &Lease, expected: &[(&str, bool)]) {
    let stored = scene.messages(lease.attempt());
    let message = |stored: &crate::conversation::StoredMessage| stored.message().expect("it can be read");
    let messages: Vec<Message> = stored.iter().filter_map(message).collect();
    let texts: Vec<(String, bool)> = messages.iter().map(|message| (message.text(), message.is_partial)).collect();
    let expected: Vec<(String, bool)> = expected.iter().map(|&(text, is)| (text.to_owned(), is)).collect();
    assert_eq!(texts, expected);
    assert!(messages.iter().all(|message| !message.is_partial || message.role == Role::Assistant));
}

fn every_attempt_has_a_conversation_of_its_own(scene: &Scene<'_>) {
    let first = scene.processing("a").lease;
    scene.repository.append(&first, 0, &[Message::user("one"), Message::assistant("1")]).expect("it is held");
    scene.finish(&first, &retry());
    let second = scene.claim().lease;
    assert_eq!(scene.unit("a").first_message_at, None, "the last attempt has said nothing yet");
    scene.start(&second);
    scene.repository.append(&second, 0, &[Message::user("two")]).expect("it begins anew");
    scene.repository.flush(&second).expect("it is held");
    read_back_texts(scene, &first, &[("one", false), ("1", false)]);
    read_back_texts(scene, &second, &[("two", false)]);
}

fn progress_keeps_what_it_does_not_mention(scene: &Scene<'_>) {
    // 004-F29, 004-F30, 004-F37.
    let lease = scene.processing("a").lease;
    let progress = |progress: Progress| scene.repository.progress(&lease, &progress).expect("it is held");
    let charges = || scene.repository.charges(lease.attempt()).expect("charges can be read");
    let (process, price) = (scene.this_process(), Price::new(scene.now()).input(Money::from_nanos(7)));
    let tokens = |input| Tokens { input, output: 1, cache_read: 2, cache_write: 3, reasoning: 4 };
    progress(Progress::default());
    progress(Progress::default().session("s1").charge(Charge::unpriced("z", tokens(1)).estimated()));
    progress(Progress::default().process(process.clone()));
    let priced = Charge::priced("a", Tokens { input: 9, ..Tokens::default() }, price);
    let reported = Charge::reported("z", tokens(5), Money::from_nanos(11));
    progress(Progress::default().charge(reported.clone()).charge(priced.clone()));
    assert_eq!(charges(), [priced, reported], "one line per model, the last one counts");

    let (unit, attempt) = (scene.unit("a"), scene.attempt(&lease));
    assert_eq!((unit.session_id.as_deref(), unit.process), (Some("s1"), Some(process.clone())));
    assert_eq!((attempt.session_id.as_deref(), attempt.process), (Some("s1"), Some(process)));
    assert_eq!((unit.cost.amount, unit.cost.unpriced, unit.tokens.input), (Money::from_nanos(11), 0, 14));
    progress(Progress::default().session("s2"));
    assert_eq!(scene.unit("a").session_id.as_deref(), Some("s2"));
    assert_eq!(scene.last_row("a").change, Change::Start, "the journal has no row of it");
}

fn what_could_not_be_read_again_is_refused(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let charge = Charge::unpriced("m", Tokens { cache_read: u64::MAX, ..Tokens::default() });
    let file = OutputFile { path: "x".into(), size_bytes: u64::MAX, hash: Hash::of(b"x") };
    let before = scene.snapshot("a");
    let progress = scene.repository.progress(&lease, &Progress::default().charge(charge.clone()));
    assert_refused!(progress, RepositoryError::Invalid(_));
    assert_refused!(scene.repository.checkpoint_at(&lease, &too_deep()), RepositoryError::Invalid(_));
    let completed = AttemptReport::completed;
    for report in [completed().charge(charge), completed().output_file(file), completed().result(too_deep())] {
        assert_refused!(scene.repository.finish(&lease, &report), RepositoryError::Invalid(_));
    }
    assert_eq!(scene.snapshot("a"), before);
}

fn a_checkpoint_reaches_the_next_attempt(scene: &Scene<'_>) {
    // 003-F37, 003-F69: whoever comes next goes on where the last one was.
    let save = |lease: &Lease, value: Value| scene.repository.checkpoint_at(lease, &value).expect("it is held");
    let saved = |lease: &Lease| scene.repository.checkpoint(lease.unit).expect("it can be read");
    let first = scene.processing("a").lease;
    assert_eq!(saved(&first), None);
    save(&first, json!({ "page": 1 }));
    save(&first, json!({ "page": 2, "odd": "\0\u{202e}" }));
    assert_eq!(saved(&first), Some(json!({ "page": 2, "odd": "\0\u{202e}" })));
    scene.lose_all();

    let second = scene.claim();
    assert_eq!(second.checkpoint, Some(json!({ "page": 2, "odd": "\0\u{202e}" })));
    scene.release(&second.lease, None, "no time");
    let third = scene.claim();
    assert_eq!(third.checkpoint, second.checkpoint, "an attempt that saved nothing hides nothing");
    save(&third.lease, json!([3]));
    scene.finish(&third.lease, &retry());
    let fourth = scene.claim();
    assert_eq!(fourth.checkpoint, Some(json!([3])));
    scene.finish(&fourth.lease, &give_up());
    scene.requeue("a").expect("it is FAILED");
    assert_eq!(scene.claim().checkpoint, Some(json!([3])), "a requeue keeps it");
}

fn a_session_reaches_the_next_attempt(scene: &Scene<'_>) {
    // 004-F37.
    let first = scene.process(work("a").resume_session("given"));
    assert_eq!(first.resume_session.as_deref(), Some("given"));
    scene.repository.progress(&first.lease, &Progress::default().session("early")).expect("it is held");
    scene.finish(&first.lease, &retry().session("first"));
    assert_eq!(scene.attempt(&first.lease).session_id.as_deref(), Some("first"));
    let second = scene.claim();
    assert_eq!(second.resume_session.as_deref(), Some("first"));
    assert_eq!(second.unit.session_id, None, "it is the last attempt's, which has none yet");
    scene.lose_all();
    let third = scene.claim();
    assert_eq!(third.resume_session.as_deref(), Some("first"), "the second had none");
    scene.repository.progress(&third.lease, &Progress::default().session("third")).expect("it is held");
    scene.finish(&third.lease, &retry());
    assert_eq!(scene.attempt(&third.lease).session_id.as_deref(), Some("third"), "the report did not say otherwise");
    assert_eq!(scene.claim().resume_session.as_deref(), Some("third"));

    assert_eq!(scene.assign(NewUnit::new("b")).resume_session, None);
}

fn the_processes_of_earlier_attempts_reach_the_next(scene: &Scene<'_>) {
    let started = |lease: &Lease, pid: u32| {
        let process = Process { pid, ..scene.this_process() }.kept_by(Process { pid: pid + 1, ..scene.this_process() });
        scene.repository.progress(lease, &Progress::default().process(process.clone())).expect("it is held");
        process
    };
    let first = scene.processing("a");
    assert_eq!(first.earlier_processes, []);
    let one = started(&first.lease, 10);
    assert_eq!(scene.attempt(&first.lease).process.as_ref(), Some(&one), "with the one that ends it");
    scene.lose_all();
    let second = scene.claim();
    assert_eq!(second.earlier_processes, std::slice::from_ref(&one));
    scene.lose_all();
    let third = scene.claim();
    assert_eq!(third.earlier_processes, std::slice::from_ref(&one), "the second had none");
    let other = started(&third.lease, 20);
    scene.finish(&third.lease, &retry());
    assert_eq!(scene.claim().earlier_processes, [one, other], "however they ended");
}

fn a_process_that_serves_several_attempts_reaches_the_next_only_after_one_that_was_lost(scene: &Scene<'_>) {
    let shared = Process { pid: 30, ..scene.this_process() }.shared();
    let started = |lease: &Lease| {
        let progress = Progress::default().process(shared.clone());
        scene.repository.progress(lease, &progress).expect("it is held");
    };
    let first = scene.processing("a");
    started(&first.lease);
    assert_eq!(scene.attempt(&first.lease).process.as_ref(), Some(&shared));
    scene.finish(&first.lease, &retry());
    let second = scene.claim();
    assert_eq!(second.earlier_processes, [], "it serves others by now");
    started(&second.lease);
    scene.lose_all();
    assert_eq!(scene.claim().earlier_processes, [shared], "nobody has seen it come to an end");
}

/// One of everything that models and their tools have been seen to say.
fn odd_messages() -> Vec<Message> {
    let everything = Message::new(Role::Assistant)
        .part(Part::text("said \0 \u{202e} ✓ \u{1F469}\u{200D}\u{1F680} \r\n"))
        .part(Part::thinking(""))
        .part(Part::tool_use("t", "bash", json!({ "command": "ls \0", "n": 1.5e300, "big": u64::MAX })))
        .part(Part::tool_error("t", "no such file"))
        .part(Part::Image { media_type: "image/png".into(), source: "https://example.org/x.png".into() })
        .part(Part::Other { kind: "server_tool".into(), value: json!([null, true]) });
    vec![
        Message::new(Role::System).part(Part::text("be brief")),
        Message::user(""),
        Message::new(Role::User),
        everything.clone().raw(vec![0xff, 0xfe, 0x00, b'{', 0xc3, 0x28]),
        everything.raw(r#"{"lone":"\ud800"}"#),
        Message::new(Role::Tool).part(Part::tool_result("t", "ü")).raw(Vec::new()),
        Message::assistant("x".repeat(300_000)).raw(vec![b'x'; 300_000]),
        Message::assistant("cut").truncated_from(Truncation { total_bytes: 9, hash: Hash::of(b"x") }).partial(),
    ]
}
