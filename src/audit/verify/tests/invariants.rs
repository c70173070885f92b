//! One thing is altered, and the invariant that it breaks is named.

use super::tampered::assert_found;
use super::*;
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Outcome};
use crate::conversation::{MessageContent, Role, StoredMessage, Truncation};
use crate::lease::Owner;
use crate::repository::{JournalEntry, StoredInputs};
use crate::unit::UnitStatus;
use crate::worker::{Worker, WorkerStatus};

#[test]
fn i1_an_acknowledged_unit_that_is_missing_is_found() {
    let pool = completed();
    let job_id = pool.job_id;
    let verify = Verify::new().acknowledged([(job_id, "a41"), (job_id, "a42"), (JobId(9), "a41")]);
    let findings = Tampered::nothing_of(pool).findings_of(&verify);
    assert_eq!(findings.len(), 2, "{findings:#?}");
    assert_found(&findings, "I1 unit `a42`: was acknowledged, but is not there");
}

#[test]
fn i2_a_unit_that_nobody_submitted_is_found() {
    let pool = completed();
    let job_id = pool.job_id;
    let tampered = Tampered::nothing_of(pool);
    assert!(tampered.findings_of(&Verify::new().submitted([(job_id, "a41"), (job_id, "a42")])).is_empty());
    let findings = tampered.findings_of(&Verify::new().submitted([(JobId(9), "a41")]));
    assert_eq!(findings, ["I2 unit `a41`: was never submitted"]);
}

#[test]
fn i3_a_status_that_the_journal_does_not_lead_to_is_found() {
    let units = |units: &mut Vec<WorkUnit>| units.iter_mut().for_each(|unit| unit.status = UnitStatus::Failed);
    let findings = Tampered { units, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I3 unit `a41`: is FAILED, but the journal leads to COMPLETED");
}

#[test]
fn i3_a_missing_row_and_an_illegal_step_are_found() {
    let journal = |rows: &mut Vec<JournalEntry>| rows.retain(|row| row.seq != 3);
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    let gap = "I3 unit `a41`: journal row 4 starts from PROCESSING, but the row before led to ASSIGNED";
    assert_found(&findings, gap);
    assert_found(&findings, "I13 the journal: row 4 follows row 2");

    let journal = |rows: &mut Vec<JournalEntry>| rows[2].change = Change::Retry;
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    let step = "I3 unit `a41`: journal row 3 is RETRY from ASSIGNED to PROCESSING, which is no step";
    assert_found(&findings, step);

    let journal = |rows: &mut Vec<JournalEntry>| rows.clear();
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I3 unit `a41`: the journal says nothing about it");
}

#[test]
fn i4_an_end_that_was_not_the_end_is_found() {
    let journal = |rows: &mut Vec<JournalEntry>| rows[2].to = UnitStatus::Completed;
    let units = |units: &mut Vec<WorkUnit>| units[0].status = UnitStatus::Processing;
    let revive = |rows: &mut Vec<JournalEntry>| {
        let mut row = rows[3].clone();
        (row.seq, row.change, row.from, row.to) = (5, Change::Claim, Some(UnitStatus::Pending), UnitStatus::Assigned);
        rows.push(row);
    };
    let findings = Tampered { journal: revive, units, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I4 unit `a41`: journal row 5 leaves COMPLETED by CLAIM to ASSIGNED");
    // Not left, only entered too early.
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert!(findings.iter().all(|finding| !finding.starts_with("I4")), "{findings:#?}");
}

#[test]
fn i5_a_second_completion_and_one_under_another_fence_are_found() {
    let journal = |rows: &mut Vec<JournalEntry>| {
        let again = JournalEntry { seq: 5, ..rows[3].clone() };
        rows.push(again);
    };
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I5 unit `a41`: journal rows 4 and 5 both complete attempt 1");

    let journal = |rows: &mut Vec<JournalEntry>| rows[3].fence = 7;
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I5 unit `a41`: journal row 4 completes under fence 7, which is not its claim's");
    assert_found(&findings, "I6 unit `a41`: journal row 4 is COMPLETE with fence 7, not 1");
}

#[test]
fn i6_a_fence_that_stands_still_or_differs_is_found() {
    let journal = |rows: &mut Vec<JournalEntry>| rows[1].fence = 0;
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I6 unit `a41`: journal row 2 is CLAIM with fence 0, not 1");

    let units = |units: &mut Vec<WorkUnit>| units[0].fence = 2;
    let attempts = |attempts: &mut Vec<Attempt>| attempts[0].fence = 3;
    let findings = Tampered { units, attempts, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I6 unit `a41`: has fence 2, but the journal leads to 1");
    assert_found(&findings, "I6 attempt 1 of unit `a41`: has fence 3, which is not that of its claim");
}

#[test]
fn i6_the_end_of_a_cancelled_unit_raises_the_fence_only_if_its_attempt_was_lost() {
    let pool = running();
    pool.cancel("a41");
    pool.lose();
    let attempts = |attempts: &mut Vec<Attempt>| attempts[0].outcome = Some(Outcome::Cancelled);
    let findings = Tampered { attempts, ..Tampered::nothing_of(pool) }.findings();
    assert_found(&findings, "I6 unit `a41`: journal row 5 is END_CANCELLED with fence 2, not 1");
}

#[test]
fn i6_a_late_report_of_an_attempt_that_is_open_is_found() {
    let journal = |rows: &mut Vec<JournalEntry>| {
        rows[2].change = Change::LateReport;
        rows[2].to = UnitStatus::Assigned;
    };
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I6 unit `a41`: journal row 3 is a late report of no closed attempt");
}

#[test]
fn i7_a_unit_that_has_not_ended_is_found_once_all_must_have() {
    let tampered = Tampered::nothing_of(running());
    assert!(tampered.findings().is_empty());
    assert_eq!(tampered.findings_of(&Verify::new().settled()), ["I7 unit `a41`: is still PROCESSING"]);
}

#[test]
fn i7_a_lease_without_an_open_attempt_and_a_wait_for_nobody_are_found() {
    let attempts = |attempts: &mut Vec<Attempt>| attempts[0].outcome = Some(Outcome::Lost);
    let findings = Tampered { attempts, ..Tampered::nothing_of(running()) }.findings();
    assert_found(&findings, "I7 unit `a41`: is PROCESSING and has 0 open attempts");

    let pool = Pool::new();
    let unit = NewUnit::new("a41");
    pool.repository.insert(pool.job_id, &[unit], Intake::AcceptedBy(pool.owner)).unwrap();
    let owners = |owners: &mut Vec<Owner>| owners[0].ended_at = Some(owners[0].heartbeat_at);
    let findings = Tampered { owners, ..Tampered::nothing_of(pool) }.findings();
    assert_eq!(findings, ["I7 unit `a41`: waits for owner 1, which has ended"]);
}

#[test]
fn i8_attempts_that_are_missing_or_ended_otherwise_are_found() {
    let attempts = |attempts: &mut Vec<Attempt>| attempts.clear();
    let findings = Tampered { attempts, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I8 unit `a41`: attempt 1 is in the journal, but is not stored");
    assert_found(&findings, "I8 unit `a41`: has 1 attempts, but 0 are stored");
    assert_found(&findings, "I8 unit `a41`: used 1 attempts, but 0 are counted");

    let attempts = |attempts: &mut Vec<Attempt>| attempts[0].outcome = Some(Outcome::Lost);
    let findings = Tampered { attempts, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I8 attempt 1 of unit `a41`: is LOST, which COMPLETE of journal row 4 is not");

    let attempts = |attempts: &mut Vec<Attempt>| attempts[0].key.number = 2;
    let findings = Tampered { attempts, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I8 unit `a41`: attempt 2 is in place of attempt 1");
}

#[test]
fn i8_more_attempts_than_allowed_are_found() {
    let units = |units: &mut Vec<WorkUnit>| units[0].attempts_used = 5;
    let findings = Tampered { units, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I8 unit `a41`: used 5 attempts with 3 retries");
    let attempts = |attempts: &mut Vec<Attempt>| attempts[0].is_counted = false;
    let findings = Tampered { attempts, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I8 attempt 1 of unit `a41`: is COMPLETED by COMPLETE and is not counted");
}

#[test]
fn i8_a_row_about_another_attempt_is_found() {
    let journal = |rows: &mut Vec<JournalEntry>| rows[2].attempt_number = None;
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I8 unit `a41`: journal row 3 is START of no attempt, not attempt 1");
}

#[test]
fn i9_an_altered_byte_is_found_in_its_message_only() {
    let messages = |messages: &mut Vec<StoredMessage>| {
        let content = messages[0].content.as_mut().unwrap();
        content.body = String::from_utf8_lossy(&content.body).replace("Do", "Da").into_bytes();
    };
    let findings = Tampered { messages, ..Tampered::nothing_of(completed()) }.findings();
    assert_eq!(findings, ["I9 attempt 1 of unit `a41`: message 1 is not what was stored: its hash differs"]);
}

#[test]
fn i9_a_message_that_is_missing_moved_or_misattributed_is_found() {
    let messages = |messages: &mut Vec<StoredMessage>| drop(messages.remove(0));
    let findings = Tampered { messages, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I9 attempt 1 of unit `a41`: message 2 follows message 0");
    assert_found(&findings, "I9 attempt 1 of unit `a41`: message 2 does not link to the one before");

    let messages = |messages: &mut Vec<StoredMessage>| drop(messages.pop());
    let findings = Tampered { messages, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I9 attempt 1 of unit `a41`: has 1 messages, but ended with 2");
    assert_found(&findings, "I9 attempt 1 of unit `a41`: its last link is not the one with which it ended");

    let messages = |messages: &mut Vec<StoredMessage>| messages[0].role = Role::Assistant;
    let findings = Tampered { messages, ..Tampered::nothing_of(completed()) }.findings();
    assert_eq!(findings, ["I9 attempt 1 of unit `a41`: message 1 does not link to the one before"]);
}

#[test]
fn i9_an_end_that_differs_from_the_journal_is_found() {
    let journal = |rows: &mut Vec<JournalEntry>| rows[3].head = None;
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    let finding = "I9 attempt 1 of unit `a41`: its conversation ended otherwise than journal row 4 says";
    assert_found(&findings, finding);
}

#[test]
fn i9_a_partial_message_in_the_middle_and_a_cut_that_made_it_longer_are_found() {
    let messages = |messages: &mut Vec<StoredMessage>| {
        let whole = Truncation { total_bytes: 3, hash: Hash::of(b"Do.") };
        let message = Message::user("Do it.").partial().truncated_from(whole);
        messages[0].content = Some(MessageContent::of(&message).unwrap());
    };
    let findings = Tampered { messages, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I9 attempt 1 of unit `a41`: message 1 is partial, but is not the last");
    assert_found(&findings, "I9 attempt 1 of unit `a41`: message 1 was cut, but is longer than the whole was");

    let tampered = Tampered { partial_text: Some("and"), ..Tampered::nothing_of(completed()) };
    let finding = "I9 attempt 1 of unit `a41`: has ended, but a message of it is still being written";
    assert_eq!(tampered.findings(), [finding]);
    let tampered = Tampered { partial_text: Some("and"), ..Tampered::nothing_of(running()) };
    assert!(tampered.findings().is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn i10_a_child_that_outlives_its_attempt_is_found() {
    let pool = Pool::new();
    pool.insert("a41");
    let lease = pool.begin();
    let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let process = Process::of(child.id(), &pool.clock.boot_id());
    pool.repository.progress(&lease, &Progress::default().process(process)).unwrap();
    let repository = &pool.repository;
    assert!(verify(repository).unwrap().is_clean());
    pool.complete(&lease);
    let findings = verify(repository).unwrap().findings;
    let finding = format!("I10 attempt 1 of unit `a41`: is COMPLETED, but its process {} still runs", child.id());
    assert_eq!(findings.iter().map(Finding::to_string).collect::<Vec<_>>(), [finding]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(verify(repository).unwrap().is_clean());
}

#[test]
fn i10_a_lease_that_outlives_its_owner_or_its_worker_is_found() {
    let owners = |owners: &mut Vec<Owner>| owners[0].ended_at = Some(owners[0].heartbeat_at);
    let workers = |workers: &mut Vec<Worker>| workers.iter_mut().for_each(|worker| worker.status = WorkerStatus::Dead);
    let findings = Tampered { owners, workers, ..Tampered::nothing_of(running()) }.findings();
    assert_found(&findings, "I10 attempt 1 of unit `a41`: owner 1 ended, but still holds it");
    assert_found(&findings, "I10 worker `w1` of owner 1: is DEAD, but holds 1 units");
}

#[test]
fn i12_a_secret_is_found_wherever_it_is_and_not_repeated() {
    const SECRET: &str = "sk-\"live\"-1234";
    let pool = Pool::new();
    let (repository, job_id) = (&pool.repository, pool.job_id);
    repository.create_job(&NewJob::named("other").settings(json!({ "key": SECRET }))).unwrap();
    let unit = NewUnit::new(SECRET).prompt(SECRET).payload(json!([SECRET]));
    repository.insert(job_id, &[unit], Intake::Open).unwrap();
    let lease = pool.begin();
    let raw = [b"\xff".as_slice(), SECRET.as_bytes()].concat();
    repository.append(&lease, 2, &[Message::assistant("Hm.").raw(raw)]).unwrap();
    repository.partial(&lease, SECRET).unwrap();
    repository.checkpoint_at(&lease, &json!({ SECRET: 1 })).unwrap();
    repository.release(&lease, None, SECRET).unwrap();

    let verification = Verify::new().must_not_contain("harmless").must_not_contain(SECRET).run(repository).unwrap();
    let subjects = |name: &str| verification.findings.iter().filter(|finding| finding.subject == name).count();
    for (subject, count) in [
        ("job 2", 1),
        // The record, prompt, payload and checkpoint.
        ("unit key 1", 4),
        ("message 3 of attempt 1 of unit key 1", 1),
        ("message 4 of attempt 1 of unit key 1", 1),
        ("journal row 4", 1),
    ] {
        assert_eq!(subjects(subject), count, "{subject}: {verification}");
    }
    assert!(!verification.to_string().contains("live"));
    assert!(verification.findings.iter().all(|finding| finding.invariant == Invariant::I12), "{verification}");
}

#[test]
fn i13_what_the_storage_says_is_found() {
    let tampered = Tampered { integrity: &["page 7 is torn"], ..Tampered::nothing_of(completed()) };
    assert_eq!(tampered.findings(), ["I13 the storage: page 7 is torn"]);
}

#[test]
fn i13_altered_inputs_are_found() {
    let finding = |inputs: fn(&mut StoredInputs)| Tampered { inputs, ..Tampered::nothing_of(completed()) }.findings();
    let payload = finding(|inputs| inputs.payload = Some(b"[]".to_vec()));
    assert_eq!(payload, ["I13 unit `a41`: its inputs are not what was stored: their hash differs"]);
    let options = finding(|inputs| inputs.options = b"{\"timeout\":1}".to_vec());
    let said = "I13 unit `a41`: its name, inputs, job, priority or retries are not what the journal says";
    assert_eq!(options, ["I13 unit `a41`: its inputs are not what was stored: their hash differs", said]);
    let prompt = finding(|inputs| inputs.prompt = Some("Do evil.".to_owned()));
    assert_eq!(prompt, ["I13 unit `a41`: its prompt is not what was stored: its hash differs"]);
    let both = finding(|inputs| {
        inputs.prompt = Some("Do evil.".to_owned());
        inputs.prompt_hash = Some(crate::unit::prompt_hash("Do evil."));
    });
    assert_eq!(both, [said]);
    let gone = finding(|inputs| inputs.payload = None);
    assert_eq!(gone, ["I13 unit `a41`: has no inputs any more, but was never purged"]);
}

#[test]
fn i13_a_unit_that_was_hurried_or_given_more_tries_is_found() {
    let said = "I13 unit `a41`: its name, inputs, job, priority or retries are not what the journal says";
    let units = |units: &mut Vec<WorkUnit>| units[0].priority = 7;
    assert_eq!(Tampered { units, ..Tampered::nothing_of(completed()) }.findings(), [said]);
    let units = |units: &mut Vec<WorkUnit>| units[0].max_retries = 7;
    assert_eq!(Tampered { units, ..Tampered::nothing_of(completed()) }.findings(), [said]);
}

#[test]
fn i13_a_unit_of_an_earlier_version_is_vouched_for_by_the_hash_of_its_inputs_alone() {
    let journal = |rows: &mut Vec<JournalEntry>| {
        let unit = NewUnit::new("a41").prompt("Do a41.").payload(json!({ "n": 1 }));
        rows[0].digest = Some(crate::unit::Inputs::of(&unit).unwrap().digest);
    };
    let altered = "I13 the journal: row 1 was altered, or does not link to the one before";
    assert_eq!(Tampered { journal, ..Tampered::nothing_of(completed()) }.findings(), [altered], "and nothing else");
}

#[test]
fn i13_a_prompt_that_its_row_does_not_vouch_for_is_found() {
    let prompted = || {
        let pool = Pool::new();
        given_a_prompt_when_submitted(&pool);
        pool
    };
    let finding = "I13 unit `prompted`: its name, inputs, job, priority or retries are not what the journal says";
    let journal = |rows: &mut Vec<JournalEntry>| rows[1].digest = None;
    assert_found(&Tampered { journal, ..Tampered::nothing_of(prompted()) }.findings(), finding);
    let inputs = |inputs: &mut StoredInputs| (inputs.prompt, inputs.prompt_hash) = (None, None);
    assert_found(&Tampered { inputs, ..Tampered::nothing_of(prompted()) }.findings(), finding);

    let journal = |rows: &mut Vec<JournalEntry>| rows[2].change = Change::AddPrompt;
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    let step = "I3 unit `a41`: journal row 3 is ADD_PROMPT from ASSIGNED to PROCESSING, which is no step";
    assert_found(&findings, step);
}

#[test]
fn i13_what_was_left_of_the_inputs_is_checked_after_a_purge_too() {
    let pool = completed();
    purge(&pool);
    let units = |units: &mut Vec<WorkUnit>| units[0].id = crate::UnitId::new("a42").unwrap();
    let finding = "I13 unit `a42`: its name, inputs, job, priority or retries are not what the journal says";
    assert_eq!(Tampered { units, ..Tampered::nothing_of(pool) }.findings(), [finding]);
    let pool = completed();
    purge(&pool);
    let inputs = |inputs: &mut StoredInputs| inputs.unit_type = Some("page".to_owned());
    let finding = "I13 unit `a41`: its name, inputs, job, priority or retries are not what the journal says";
    assert_eq!(Tampered { inputs, ..Tampered::nothing_of(pool) }.findings(), [finding]);
}

#[test]
fn i13_an_altered_beginning_is_found_while_the_attempt_runs() {
    let result = |result: &mut AttemptResult| result.rendered_prompt = Some("Do evil.".to_owned());
    let finding = "I13 attempt 1 of unit `a41`: what it was started with is not what the journal says";
    assert_eq!(Tampered { result, ..Tampered::nothing_of(running()) }.findings(), [finding]);
}

#[test]
fn i13_an_altered_record_of_an_attempt_is_found() {
    let finding =
        "I13 attempt 1 of unit `a41`: how it ended, what it left, or what it cost is not what the journal says";
    let alterations: [fn(&mut Vec<Attempt>); 4] = [
        |attempts| attempts[0].session_id = Some("another".to_owned()),
        |attempts| attempts[0].messages_lost = 1,
        |attempts| attempts[0].started_at = None,
        |attempts| attempts[0].worker_id = WorkerId::new("another").unwrap(),
    ];
    for attempts in alterations {
        assert_eq!(Tampered { attempts, ..Tampered::nothing_of(completed()) }.findings(), [finding]);
    }
}

#[test]
fn i13_altered_results_and_charges_are_found() {
    let finding =
        "I13 attempt 1 of unit `a41`: how it ended, what it left, or what it cost is not what the journal says";
    let result = |result: &mut AttemptResult| result.output = Some("Not done.".to_owned());
    assert_eq!(Tampered { result, ..Tampered::nothing_of(completed()) }.findings(), [finding]);
    let charges = |charges: &mut Vec<Charge>| charges[0].tokens.input = 1;
    assert_eq!(Tampered { charges, ..Tampered::nothing_of(completed()) }.findings(), [finding]);
}

#[test]
fn i13_an_answer_that_is_anothers_is_compared_with_that_one() {
    /// `a41` and `b` have one answer, which `a41` gave.
    fn shared() -> Pool {
        let pool = completed();
        pool.insert("b");
        let lease = pool.begin();
        let of = pool.repository.attempts(UnitKey(1)).unwrap()[0].key;
        let report = AttemptReport::completed().output("Done.").result(json!({ "is": "done" })).answer_of(of);
        pool.repository.finish(&lease, &report).unwrap();
        pool
    }
    assert_eq!(Tampered::nothing_of(shared()).findings(), [""; 0]);
    let record = "I13 attempt 1 of unit `b`: how it ended, what it left, or what it cost is not what the journal says";
    let missing = "I13 attempt 1 of unit `b`: there is no attempt 2 of the unit with the key 1";
    let not_its = "I13 attempt 1 of unit `b`: its answer is not that of attempt 1 of the unit with the key 3";
    let nobodys: fn(&mut Vec<Attempt>) = |attempts| {
        attempts.iter_mut().filter_map(|attempt| attempt.answer_of.as_mut()).for_each(|of| of.number = 2);
    };
    let findings = Tampered { attempts: nobodys, ..Tampered::nothing_of(shared()) }.findings();
    assert_eq!(findings, [record, missing]);
    let another: fn(&mut Vec<Attempt>) = |attempts| {
        attempts.iter_mut().filter_map(|attempt| attempt.answer_of.as_mut()).for_each(|of| of.unit = UnitKey(3));
    };
    let pool = shared();
    pool.insert("c");
    let lease = pool.begin();
    pool.repository.finish(&lease, &AttemptReport::completed().output("Something else.")).unwrap();
    assert_eq!(Tampered { attempts: another, ..Tampered::nothing_of(pool) }.findings(), [record, not_its]);
    // Purged together they are the same by their hashes.
    let pool = shared();
    purge(&pool);
    assert_eq!(Tampered::nothing_of(pool).findings(), [""; 0]);
}

#[test]
fn i13_an_altered_row_is_found() {
    let journal = |rows: &mut Vec<JournalEntry>| rows[1].actor = "nobody".to_owned();
    let findings = Tampered { journal, ..Tampered::nothing_of(completed()) }.findings();
    assert_eq!(findings, ["I13 the journal: row 2 was altered, or does not link to the one before"]);
}

#[test]
fn i13_a_journal_that_was_rewritten_or_cut_is_found_by_a_head_kept_elsewhere() {
    let pool = completed();
    let before = verify(&pool.repository).unwrap();
    let head = before.journal_head.unwrap();
    pool.insert("a42");
    let tampered = Tampered::nothing_of(pool);
    assert!(tampered.findings_of(&Verify::new().known_head(before.journal_rows, head)).is_empty());
    let other = tampered.findings_of(&Verify::new().known_head(before.journal_rows, Hash::of(b"other")));
    assert_eq!(other, ["I13 the journal: row 4 is not the one that was there before"]);
    let cut = tampered.findings_of(&Verify::new().known_head(9, head));
    assert_eq!(cut, ["I13 the journal: row 9 is gone"]);
}

#[test]
fn i13_a_unit_that_is_missing_leaves_rows_behind() {
    let units = |units: &mut Vec<WorkUnit>| units.clear();
    let findings = Tampered { units, ..Tampered::nothing_of(completed()) }.findings();
    assert_found(&findings, "I13 the journal: has 4 rows, of which 0 are about units that are there");
    assert_found(&findings, "I13 job 1: its counts are not those of its units");
}

#[test]
fn i13_contents_that_a_purge_left_and_ones_that_vanished_without_it_are_found() {
    let pool = completed();
    purge(&pool);
    let tampered = Tampered {
        result: |result| result.output = Some("Done.".to_owned()),
        messages: |messages| messages[0].content = Some(MessageContent::of(&Message::user("Do it.")).unwrap()),
        inputs: |inputs| inputs.prompt = Some("Do a41.".to_owned()),
        ..Tampered::nothing_of(pool)
    };
    let left = [
        "I13 attempt 1 of unit `a41`: has its results after a purge",
        "I13 attempt 1 of unit `a41`: message 1 has its content after a purge",
        "I13 unit `a41`: has its inputs after a purge",
    ];
    assert_eq!(tampered.findings(), left);

    let tampered = Tampered {
        result: |result| {
            let worker = WorkerId::new("w1").unwrap();
            let key = AttemptKey { unit: UnitKey(1), number: 1 };
            let without_failure = Attempt::claimed(key, 1, OwnerId(1), worker, chrono::DateTime::UNIX_EPOCH);
            result.purged = Some(result.hashes(&without_failure));
            (result.rendered_prompt, result.result, result.output) = (None, None, None);
        },
        messages: |messages| messages[0].content = None,
        ..Tampered::nothing_of(completed())
    };
    let vanished = [
        "I13 attempt 1 of unit `a41`: has no results any more, but was never purged",
        "I13 attempt 1 of unit `a41`: message 1 has no content, but was never purged",
    ];
    assert_eq!(tampered.findings(), vanished);
}

#[test]
fn i13_a_worker_that_holds_something_else_is_found() {
    let workers = |workers: &mut Vec<Worker>| {
        for worker in workers {
            worker.load = 2;
            worker.current_unit = Some(UnitKey(9));
        }
    };
    let findings = Tampered { workers, ..Tampered::nothing_of(running()) }.findings();
    let found = ["has load 2, but holds 1 units", "works on unit key 9, which it does not hold"]
        .map(|problem| format!("I13 worker `w1` of owner 1: {problem}"));
    assert_eq!(findings, found);

    let workers = |workers: &mut Vec<Worker>| workers.clear();
    let findings = Tampered { workers, ..Tampered::nothing_of(running()) }.findings();
    assert_eq!(findings, ["I13 worker `w1` of owner 1: is not there, but holds 1 units"]);
    let owners = |owners: &mut Vec<Owner>| owners.clear();
    let findings = Tampered { owners, ..Tampered::nothing_of(running()) }.findings();
    assert_found(&findings, "I13 attempt 1 of unit `a41`: owner 1 is not registered");
}
