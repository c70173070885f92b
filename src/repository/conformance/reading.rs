//! What an archive tells, and what is left of it after a purge.

use chrono::TimeDelta;
use serde_json::{Value, json};

use super::scene::{SECOND, Scene, all_pages, give_up, retry, work};
use crate::attempt::{Attempt, AttemptReport, AttemptResult, Progress};
use crate::conversation::Message;
use crate::job::{JobId, NewJob};
use crate::money::{Charge, Money, Tokens};
use crate::repository::{
    AttemptSummary, By, Costs, Insertion, Intake, JournalEntry, PAGE_LIMIT, PAGE_LIMIT_BYTES, PURGE_LIMIT, Purged,
    RepositoryError, UnitFilter, UnitSummary,
};
use crate::unit::{Change, NewUnit, UnitStatus};

cases![
    units_are_found_by_job_status_type_and_failure,
    units_come_in_pages,
    a_summary_is_a_unit_with_its_attempts_and_their_bills,
    no_page_is_longer_than_the_limit,
    a_page_of_units_is_bounded_in_bytes,
    a_conversation_comes_in_pages,
    a_page_of_messages_is_bounded_in_bytes,
    jobs_come_in_pages,
    every_status_is_counted,
    costs_are_summed_by_model_and_the_unknown_is_not_zero,
    the_journal_tells_a_unit_s_whole_life,
    the_journal_comes_in_pages,
    outcomes_can_be_followed_from_any_point,
    an_attempt_that_left_nothing_reads_as_nothing,
    a_purge_removes_contents_and_keeps_what_proves_them,
    a_purge_takes_only_what_ended_before,
    a_purge_takes_a_bounded_number_of_units,
    a_purge_takes_only_what_its_filter_means,
    what_was_purged_is_not_done_again,
    what_was_purged_takes_no_late_report,
];

fn units_are_found_by_job_status_type_and_failure(scene: &Scene<'_>) {
    // 003-F60.
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    scene.repository.insert(other, &[work("elsewhere")], Intake::Open).expect("it is valid");
    scene.assign(work("typed").unit_type("summary"));
    scene.insert(work("waiting"));
    scene.bring("failed", UnitStatus::Failed);
    scene.bring("done", UnitStatus::Completed);
    let found = |filter: UnitFilter| {
        let units = all_pages(|after| scene.repository.units(&filter, after, PAGE_LIMIT));
        units.into_iter().map(|unit| unit.id.to_string()).collect::<Vec<String>>()
    };
    let here = || UnitFilter::job(scene.job);
    assert_eq!(found(UnitFilter::default()), ["elsewhere", "typed", "waiting", "failed", "done"]);
    assert_eq!(found(UnitFilter::job(other)), ["elsewhere"]);
    assert_eq!(found(here().status(UnitStatus::Pending)), ["waiting"]);
    assert_eq!(found(here().status(UnitStatus::Failed).status(UnitStatus::Assigned)), ["typed", "failed"]);
    assert_eq!(found(here().unit_type("summary")), ["typed"]);
    assert_eq!(found(here().failure_kind("executor")), ["failed"]);
    assert_eq!(found(here().failure_kind("lost")), [""; 0]);
    assert_eq!(found(here().unit_type("summary").status(UnitStatus::Pending)), [""; 0]);
}

fn a_summary_is_a_unit_with_its_attempts_and_their_bills(scene: &Scene<'_>) {
    scene.insert(work("waiting").unit_type("summary").priority(3));
    scene.bring("done", UnitStatus::Completed);
    let lease = scene.processing("twice").lease;
    let charge = |model: &str| Charge::reported(model, Tokens { input: 3, ..Tokens::default() }, Money::from_nanos(7));
    scene.finish(&lease, &retry().charge(charge("one")).charge(charge("another")));
    scene.advance(SECOND * 3_600);
    let lease = scene.processing("twice").lease;
    scene.finish(&lease, &give_up().charge(Charge::unpriced("one", Tokens::default())));
    for filter in [UnitFilter::default(), UnitFilter::job(scene.job).status(UnitStatus::Failed)] {
        let units = all_pages(|after| scene.repository.units(&filter, after, 2));
        let summaries = all_pages(|after| scene.repository.summaries(&filter, after, 2));
        assert_eq!(summaries.len(), units.len());
        for (summary, unit) in summaries.into_iter().zip(units) {
            let charged = summary.charges().map(Charge::cost).sum();
            assert_eq!((unit.cost, unit.tokens), (charged, summary.tokens()));
            assert_eq!(summary.last_attempt().map(|last| &last.worker_id), unit.worker_id.as_ref());
            let attempts = scene.repository.attempts(unit.key).expect("they can be read");
            let bill = |attempt: Attempt| {
                let charges = scene.repository.charges(attempt.key).expect("they can be read");
                AttemptSummary { attempt, charges }
            };
            assert_eq!(summary, UnitSummary::of(unit, attempts.into_iter().map(bill).collect()));
        }
    }
}

fn units_come_in_pages(scene: &Scene<'_>) {
    let keys = ["a", "b", "c", "d", "e"].map(|id| scene.insert(work(id)).0);
    let page = |after, limit| {
        let page = scene.repository.units(&UnitFilter::job(scene.job), after, limit).expect("a page can be read");
        (page.items.iter().map(|unit| unit.key.0).collect::<Vec<i64>>(), page.next)
    };
    assert_eq!(page(0, 2), (keys[..2].to_vec(), Some(keys[1])));
    assert_eq!(page(keys[1], 2), (keys[2..4].to_vec(), Some(keys[3])));
    assert_eq!(page(keys[3], 2), (keys[4..].to_vec(), None));
    assert_eq!(page(0, 5), (keys.to_vec(), None), "a page that is just full is the last");
    assert_eq!(page(keys[4], 2), (vec![], None));
    assert_eq!(page(0, 0), (keys[..1].to_vec(), Some(keys[0])), "a page has room for one");
}

fn no_page_is_longer_than_the_limit(scene: &Scene<'_>) {
    let units: Vec<NewUnit> = (0..=PAGE_LIMIT).map(|number| NewUnit::new(format!("unit-{number}"))).collect();
    scene.repository.insert(scene.job, &units, Intake::Open).expect("all are valid");
    let page = scene.repository.units(&UnitFilter::default(), 0, usize::MAX).expect("a page can be read");
    assert_eq!((page.items.len(), page.next.is_some()), (PAGE_LIMIT, true));
    let page = scene.repository.journal(0, usize::MAX).expect("a page can be read");
    assert_eq!((page.items.len(), page.next), (PAGE_LIMIT, Some(1_000)));
}

fn a_page_of_units_is_bounded_in_bytes(scene: &Scene<'_>) {
    let long = "x".repeat(PAGE_LIMIT_BYTES / 2 + 1);
    for id in ["a", "b", "c"] {
        scene.insert(NewUnit::new(id).prompt(long.as_str()));
    }
    let page = scene.repository.units(&UnitFilter::default(), 0, 9).expect("a page can be read");
    assert!((1..=2).contains(&page.items.len()), "{} units of half the limit each", page.items.len());
    let all = all_pages(|after| scene.repository.units(&UnitFilter::default(), after, 9));
    assert!(all.iter().map(|unit| unit.id.as_str()).eq(["a", "b", "c"]));
}

fn a_conversation_comes_in_pages(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let said: Vec<Message> = ["a", "b", "c"].map(Message::user).into();
    scene.repository.append(&lease, 0, &said).expect("it is held");
    scene.repository.flush(&lease).expect("it is held");
    let page = |after, limit| {
        let page = scene.repository.messages(lease.attempt(), after, limit).expect("a page can be read");
        (page.items.iter().map(|message| message.number).collect::<Vec<u32>>(), page.next)
    };
    assert_eq!(page(0, 2), (vec![1, 2], Some(2)));
    assert_eq!(page(2, 2), (vec![3], None));
    assert_eq!(page(0, 3), (vec![1, 2, 3], None));
    assert_eq!(page(3, 3), (vec![], None));
    assert_eq!(page(0, 0), (vec![1], Some(1)));
}

fn a_page_of_messages_is_bounded_in_bytes(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let quarter = PAGE_LIMIT_BYTES / 4 + 1;
    let long = Message::assistant("x".repeat(quarter)).raw(vec![0xff; quarter]);
    scene.repository.append(&lease, 0, &[long.clone(), long.clone(), long]).expect("it is held");
    scene.repository.flush(&lease).expect("it is held");
    let page = scene.repository.messages(lease.attempt(), 0, 9).expect("a page can be read");
    assert!((1..=2).contains(&page.items.len()), "{} messages of half the limit each", page.items.len());
    assert_eq!(scene.messages(lease.attempt()).len(), 3);
}

fn jobs_come_in_pages(scene: &Scene<'_>) {
    let job = |name: &str| scene.repository.create_job(&NewJob::named(name)).expect("a new name").id.0;
    let ids = [scene.job.0, job("b"), job("a")];
    let page = |after, limit| {
        let page = scene.repository.jobs(after, limit).expect("a page can be read");
        (page.items.iter().map(|job| job.id.0).collect::<Vec<i64>>(), page.next)
    };
    assert_eq!(page(0, 2), (ids[..2].to_vec(), Some(ids[1])));
    assert_eq!(page(ids[1], 2), (ids[2..].to_vec(), None));
}

fn every_status_is_counted(scene: &Scene<'_>) {
    for (number, &status) in UnitStatus::ALL.iter().enumerate() {
        for copy in 0..=number {
            scene.bring(&format!("{status} {copy}"), status);
        }
    }
    let counts = scene.repository.counts(scene.job).expect("units can be counted");
    for (number, &status) in UnitStatus::ALL.iter().enumerate() {
        assert_eq!(counts.of(status), number as u64 + 1, "{status}");
    }
    let empty = scene.repository.create_job(&NewJob::named("empty")).expect("a new name").id;
    assert_eq!(scene.repository.counts(empty).expect("nothing can be counted").total(), 0);
}

fn costs_are_summed_by_model_and_the_unknown_is_not_zero(scene: &Scene<'_>) {
    // 004-F30. Failed and lost attempts cost money too.
    let tokens = |input| Tokens { input, ..Tokens::default() };
    let paid = |model: &str, nanos: i64| Charge::reported(model, tokens(1), Money::from_nanos(nanos));
    let first = scene.processing("a").lease;
    scene.finish(&first, &retry().charge(paid("large", 100)));
    let second = scene.claim().lease;
    let progress = Progress::default().charge(paid("large", 5)).charge(Charge::unpriced("small", tokens(7)));
    scene.repository.progress(&second, &progress).expect("it is held");
    scene.lose_all();
    let third = scene.processing("b").lease;
    scene.finish(&third, &give_up().charge(paid("small", 2)));

    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    let costs = |job| scene.repository.costs(job).expect("costs can be read");
    let lines = |costs: &Costs| -> Vec<(String, i64, u64, u64)> {
        let line = |line: &crate::repository::ModelCost| {
            (line.model.clone(), line.cost.amount.nanos(), line.cost.unpriced, line.tokens.input)
        };
        costs.by_model.iter().map(line).collect()
    };
    let expected = [("large".to_owned(), 105, 0, 2), ("small".to_owned(), 2, 1, 8)];
    assert_eq!(lines(&costs(Some(scene.job))), expected);
    assert_eq!(lines(&costs(None)), expected);
    assert_eq!(costs(Some(other)), Costs::default());
    assert_eq!((costs(None).unbilled, costs(None).spent().unpriced), (0, 1));
    // What was executed and left no bill has cost nobody knows what; what was only claimed has cost nothing. What is
    // still executed may still tell.
    let fourth = scene.processing("c").lease;
    scene.finish(&fourth, &AttemptReport::completed().charge(paid("large", 40)));
    let fifth = scene.processing("d").lease;
    scene.finish(&fifth, &AttemptReport::completed());
    scene.bring("e", UnitStatus::Assigned);
    scene.bring("f", UnitStatus::Processing);
    // What was claimed as started, and was not executed then, has cost nothing.
    let unexecuted = scene.processing("g").lease;
    let given_back = scene.processing("h").lease;
    for lease in [&unexecuted, &given_back] {
        scene.repository.progress(lease, &Progress::default().unexecuted()).expect("it is held");
        assert_eq!(scene.attempts(lease.unit_id.as_str())[0].started_at, None);
    }
    scene.finish(&unexecuted, &AttemptReport::cancelled());
    scene.release(&given_back, None, "its provider is not to be asked");
    let in_all = costs(Some(scene.job));
    assert_eq!((in_all.total().amount.nanos(), in_all.in_vain.amount.nanos(), in_all.unbilled), (147, 107, 1));
    assert_eq!((in_all.total().unpriced, in_all.spent().unpriced), (1, 2), "what is under way may still say so");
    let unit = scene.unit("a");
    assert_eq!((unit.cost.amount, unit.cost.unpriced, unit.tokens), (Money::from_nanos(105), 1, tokens(9)));
}

fn the_journal_tells_a_unit_s_whole_life(scene: &Scene<'_>) {
    use UnitStatus::{Assigned, CancelRequested, Cancelled, Completed, Failed, Pending, Processing};
    scene.insert(work("a").max_retries(1));
    let lease = scene.claim().lease;
    scene.start(&lease);
    scene.finish(&lease, &retry());
    scene.claim();
    scene.lose_all();
    scene.requeue("a").expect("it is FAILED");
    let lease = scene.claim().lease;
    scene.cancel("a");
    scene.finish(&lease, &AttemptReport::cancelled());
    scene.requeue("a").expect("it is CANCELLED");
    let lease = scene.claim().lease;
    scene.start(&lease);
    scene.finish(&lease, &AttemptReport::completed());

    let rows = scene.journal_of("a");
    let steps: Vec<_> = rows.iter().map(|row| (row.change, row.to, row.attempt_number, row.fence)).collect();
    assert_eq!(
        steps,
        [
            (Change::Insert, Pending, None, 0),
            (Change::Claim, Assigned, Some(1), 1),
            (Change::Start, Processing, Some(1), 1),
            (Change::Retry, Pending, Some(1), 1),
            (Change::Claim, Assigned, Some(2), 2),
            (Change::ExpireFinally, Failed, Some(2), 3),
            (Change::Requeue, Pending, None, 3),
            (Change::Claim, Assigned, Some(3), 4),
            (Change::Cancel, CancelRequested, Some(3), 4),
            (Change::EndCancelled, Cancelled, Some(3), 4),
            (Change::Requeue, Pending, None, 4),
            (Change::Claim, Assigned, Some(4), 5),
            (Change::Start, Processing, Some(4), 5),
            (Change::Complete, Completed, Some(4), 5),
        ]
    );
    for row in &rows {
        let closes = matches!(row.to, Pending | Failed | Cancelled | Completed) && row.attempt_number.is_some();
        assert_eq!((row.head.is_some(), row.message_count.is_some()), (closes, closes), "{row:?}");
        let tells_what_was_stored = closes || matches!(row.change, Change::Insert | Change::Start);
        assert_eq!(row.digest.is_some(), tells_what_was_stored, "{row:?}");
    }
}

fn the_journal_comes_in_pages(scene: &Scene<'_>) {
    let (a, b) = (scene.insert(work("a")), scene.insert(work("b")));
    scene.cancel("a");
    let of = |unit, after, limit| {
        let page = scene.repository.unit_journal(unit, after, limit).expect("a page can be read");
        (page.items.iter().map(|row: &JournalEntry| row.seq).collect::<Vec<i64>>(), page.next)
    };
    assert_eq!(of(a, 0, 9), (vec![1, 3], None));
    assert_eq!(of(a, 0, 1), (vec![1], Some(1)));
    assert_eq!(of(a, 1, 1), (vec![3], None));
    assert_eq!(of(b, 0, 9), (vec![2], None));
    let page = scene.repository.journal(1, 1).expect("a page can be read");
    assert_eq!((page.items.len(), page.next), (1, Some(2)));
    assert_eq!(page.items[0].unit, b);
    assert_eq!(scene.repository.journal(3, 9).expect("a page can be read").items, []);
}

fn outcomes_can_be_followed_from_any_point(scene: &Scene<'_>) {
    scene.accept(work("queued").queue_timeout(SECOND));
    scene.advance(SECOND);
    scene.expire();
    let late = scene.bring("completed", UnitStatus::Completed).lease;
    scene.bring("pending", UnitStatus::Pending);
    scene.cancel("pending");
    scene.bring("failed", UnitStatus::Failed);
    scene.requeue("failed").expect("it is FAILED");
    let lease = scene.assigned("failed").lease;
    scene.finish(&lease, &give_up());
    // A late report and a purge end nothing.
    drop(scene.repository.finish(&late, &give_up()));
    scene.repository.purge(scene.now() + SECOND, &By::whom("suite")).expect("it can be purged");

    let outcomes = all_pages(|after| scene.repository.outcomes_since(after, 2));
    let changes: Vec<Change> = outcomes.iter().map(|row| row.change).collect();
    assert_eq!(changes, [Change::QueueTimeout, Change::Complete, Change::Cancel, Change::Fail, Change::Fail]);
    let journal = scene.journal();
    assert!(outcomes.iter().all(|row| journal.contains(row)), "they are rows of the journal");
    let rest = scene.repository.outcomes_since(outcomes[2].seq, 9).expect("a page can be read");
    assert_eq!((rest.items.as_slice(), rest.next), (&outcomes[3..], None));
}

fn an_attempt_that_left_nothing_reads_as_nothing(scene: &Scene<'_>) {
    let attempt = scene.assigned("a").lease.attempt();
    let result = scene.repository.attempt_result(attempt).expect("it can be read");
    assert_eq!(result, AttemptResult::default());
    assert_eq!(scene.repository.charges(attempt).expect("they can be read"), []);
    assert_eq!(scene.repository.partial_text(attempt).expect("it can be read"), None);
    let page = scene.repository.messages(attempt, 0, 9).expect("they can be read");
    assert_eq!((page.items, page.next), (vec![], None));
}

fn a_purge_removes_contents_and_keeps_what_proves_them(scene: &Scene<'_>) {
    let unit = work("a").payload(json!({ "secret": 1 })).template("t").unit_type("summary");
    let lease = scene.process(unit).lease;
    scene.repository.append(&lease, 0, &[Message::user("hello"), Message::assistant("x").raw("y")]).expect("held");
    scene.repository.checkpoint_at(&lease, &json!(1)).expect("it is held");
    let charge = Charge::reported("m", Tokens { input: 3, ..Tokens::default() }, Money::from_nanos(7));
    let report = AttemptReport::completed().result(json!([1])).output("out").charge(charge);
    scene.finish(&lease, &report);

    let result_before = scene.repository.attempt_result(lease.attempt()).expect("it can be read");
    let inputs_before = scene.repository.inputs(lease.unit).expect("they can be read");
    let (messages_before, attempts_before) = (scene.messages(lease.attempt()), scene.attempts("a"));
    let (costs_before, rows_before) = (scene.repository.costs(None).expect("they can be read"), scene.journal());
    scene.advance(SECOND);
    let by = By::new("ada", "retention");
    let purged = scene.repository.purge(scene.now(), &by).expect("it can be purged");
    assert_eq!(purged, Purged { units: 1, messages: 2, ..Purged::default() });

    let unit = scene.unit("a");
    assert_eq!((unit.payload, unit.prompt, unit.rendered_prompt), (Value::Null, None, None));
    assert_eq!((unit.result, unit.output, unit.purged_at), (None, None, Some(scene.now())));
    assert_eq!((unit.status, unit.cost.amount), (UnitStatus::Completed, Money::from_nanos(7)));
    let inputs = scene.repository.inputs(lease.unit).expect("they can be read");
    assert_eq!((inputs.payload, inputs.prompt), (None, None));
    assert_eq!((inputs.content_hash, inputs.prompt_hash), (inputs_before.content_hash, inputs_before.prompt_hash));
    assert_eq!(scene.repository.checkpoint(lease.unit).expect("it can be read"), None);

    let messages = scene.messages(lease.attempt());
    assert!(messages.iter().all(|message| message.content.is_none()), "{messages:?}");
    let proofs = |messages: &[crate::conversation::StoredMessage]| -> Vec<_> {
        messages.iter().map(|message| (message.number, message.at, message.content_hash, message.link)).collect()
    };
    assert_eq!(proofs(&messages), proofs(&messages_before));
    let result = scene.repository.attempt_result(lease.attempt()).expect("it can be read");
    assert_eq!((&result.result, &result.output, &result.rendered_prompt), (&None, &None, &None));
    assert_eq!(result.purged, Some(result_before.hashes(&attempts_before[0])), "hashes stand in for contents");
    assert_eq!(scene.attempts("a"), attempts_before);
    assert_eq!(scene.repository.costs(None).expect("they can be read"), costs_before);

    let rows = scene.journal();
    assert_eq!(rows[..rows_before.len()], rows_before[..]);
    let [row] = &rows[rows_before.len()..] else { panic!("a purge is one row a unit") };
    assert_eq!((row.change, row.from, row.to), (Change::Purge, Some(UnitStatus::Completed), UnitStatus::Completed));
    assert_eq!((&row.actor, &row.reason, row.attempt_number), (&by.actor, &by.reason, None));
}

fn a_purge_takes_only_what_ended_before(scene: &Scene<'_>) {
    let purge = |before| scene.repository.purge(before, &By::whom("suite")).expect("it can be purged").units;
    for &status in UnitStatus::ALL {
        scene.bring(status.name(), status);
    }
    let ended = scene.now();
    assert_eq!(purge(ended), 0, "at that very time is not before");
    scene.advance(SECOND);
    scene.bring("later", UnitStatus::Completed);
    assert_eq!(purge(scene.now()), 3);
    assert_eq!(purge(scene.now()), 0, "what is purged is not purged again");
    for &status in UnitStatus::ALL {
        assert_eq!(scene.unit(status.name()).purged_at.is_some(), status.is_terminal(), "{status}");
    }
    assert_eq!(scene.unit("later").purged_at, None);
    assert_eq!(purge(ended + TimeDelta::days(1)), 1);
}

fn a_purge_takes_a_bounded_number_of_units(scene: &Scene<'_>) {
    let units: Vec<NewUnit> = (0..=PURGE_LIMIT).map(|number| work(&format!("unit-{number}"))).collect();
    scene.repository.insert(scene.job, &units, Intake::Open).expect("all are valid");
    units.iter().for_each(|unit| scene.cancel(&unit.id));
    scene.advance(SECOND);
    let purge = || scene.repository.purge(scene.now(), &By::whom("suite")).expect("it can be purged").units;
    assert_eq!([purge(), purge(), purge()], [PURGE_LIMIT as u64, 1, 0]);
}

fn a_purge_takes_only_what_its_filter_means(scene: &Scene<'_>) {
    let other = scene.repository.create_job(&NewJob::named("another job")).expect("a new job").id;
    for id in ["failed", "done", "typed"] {
        let lease = scene.process(if id == "typed" { work(id).unit_type("summary") } else { work(id) }).lease;
        scene.finish(&lease, &if id == "failed" { give_up() } else { AttemptReport::completed() });
    }
    scene.repository.queue_unit(other, &work("elsewhere")).expect("a new unit");
    let by = By::new("ada", "retention");
    scene.repository.cancel(other, "elsewhere", &by).expect("it waits");
    scene.advance(SECOND);
    let purged = |filter: &UnitFilter| {
        let purged = scene.repository.purge_where(filter, scene.now(), &by).expect("it can be purged");
        let rows = scene.journal();
        let fresh = &rows[rows.len() - purged.units as usize..];
        assert!(fresh.iter().all(|row| (&row.actor, &row.reason) == (&by.actor, &by.reason)), "{fresh:?}");
        fresh.iter().map(|row| row.unit).collect::<Vec<_>>()
    };
    let key = |id| scene.unit(id).key;
    let job = || UnitFilter::job(scene.job);
    assert_refused!(
        scene.repository.purge_where(&UnitFilter::job(JobId(4_711)), scene.now(), &by),
        RepositoryError::UnknownJob(JobId(4_711))
    );
    assert_eq!(purged(&job().status(UnitStatus::Cancelled)), []);
    assert_eq!(purged(&job().unit_type("summary")), [key("typed")]);
    assert_eq!(purged(&UnitFilter::default().failure_kind("executor")), [key("failed")]);
    assert_eq!(purged(&job().status(UnitStatus::Failed).status(UnitStatus::Completed)), [key("done")]);
    assert_eq!(purged(&job()), []);
    assert_eq!(purged(&UnitFilter::default()).len(), 1, "what was elsewhere");
}

fn what_was_purged_is_not_done_again(scene: &Scene<'_>) {
    let key = scene.bring("a", UnitStatus::Failed).lease.unit;
    scene.advance(SECOND);
    scene.repository.purge(scene.now(), &By::whom("suite")).expect("it can be purged");
    let before = scene.snapshot("a");
    assert_refused!(scene.requeue("a"), RepositoryError::Illegal { change: "REQUEUE", .. });
    let units = [work("a"), work("a").prompt("other")];
    let answers = scene.repository.insert(scene.job, &units, Intake::Open).expect("they are valid");
    assert_eq!(answers, [Insertion::AlreadyExists(key), Insertion::Conflict(key)], "its hashes are still known");
    assert_eq!(scene.snapshot("a"), before);
}

fn what_was_purged_takes_no_late_report(scene: &Scene<'_>) {
    let lease = scene.process(work("a").max_retries(0)).lease;
    scene.lose_all();
    scene.advance(SECOND);
    scene.repository.purge(scene.now(), &By::whom("suite")).expect("it can be purged");
    let before = scene.snapshot("a");
    let report = AttemptReport::completed().output("much too late");
    assert_refused!(scene.repository.finish(&lease, &report), RepositoryError::Stale { .. });
    assert_eq!(scene.snapshot("a"), before);
    let result = scene.repository.attempt_result(lease.attempt()).expect("it can be read");
    assert_eq!(result.late_result, None);
}
