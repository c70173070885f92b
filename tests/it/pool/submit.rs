//! Submitting: what is stored, who gets it, and what comes back when there is no room.

use serde_json::json;
use workcrew::{
    Archive, FailureKind, NewJob, NewUnit, Outcome, PoolPhase, Prompt, Refusal, RepositoryError, Stop, UnitStatus,
    WorkPool, WorkerStatus,
};

use super::{World, next, stage, tells_outcomes};
use crate::support::Up as _;

#[test]
fn a_unit_is_stored_executed_and_told_of() {
    // 004-F1, 004-F2, 004-F3, 004-F4, 004-F5, 004-F6, 004-F7, 004-F8, 004-F10, 004-F11, 004-F12, 004-F17,
    // 004-F18, 004-F19, 004-F20, 004-F21, 004-F23, 004-F24, 004-F25, 004-F31, 004-F32, 004-F33, 004-F44,
    // 004-F45, 004-F47
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part), &world);
    let pool = builder.up();
    assert_eq!(pool.stats().phase, PoolPhase::Running);

    let handle = pool.submit_work_unit(NewUnit::new("a").payload(json!({ "page": 1 })), "Summarise.").unwrap();
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.prompt.as_str(), call.attempt_number), ("a", "Summarise.", 1));
    assert_eq!(call.act(|call| call.payload().clone()), json!({ "page": 1 }));
    let unit = world.unit("a");
    assert_eq!(unit.status, UnitStatus::Processing);
    assert!(unit.assigned_at.is_some() && unit.started_at.is_some());
    let owner = world.repository.owners().unwrap()[0].id;
    let worker = &world.repository.workers(owner, "", 10).unwrap()[0];
    assert_eq!((worker.status, worker.current_unit), (WorkerStatus::Busy, Some(unit.key)));
    assert_eq!((&worker.id, Some(worker.job_id)), (unit.worker_id.as_ref().unwrap(), Some(world.job)));
    assert_eq!(pool.workers()[0].unit_id.as_ref().map(|id| id.as_str()), Some("a"));
    assert!(!handle.is_done());

    world.clock.advance(std::time::Duration::from_secs(2));
    call.succeed("short");
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("short")));
    assert_eq!(unit.execution_time, Some(std::time::Duration::from_secs(2)));
    assert_eq!(next(&outcomes), "complete a: COMPLETED");
    assert!(pool.all_idle() && handle.is_done());
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 1);
    drop(pool);
    assert!(stage.is_gone());
    world.assert_clean();
}

#[test]
fn a_bare_submit_at_capacity_gives_the_unit_back_and_stores_nothing() {
    // 004-F16, 004-F42
    let world = World::new();
    let (pool, stage) = world.staged(2);
    for id in ["a", "b"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    }
    let calls = stage.next_many(2);
    let error = pool.submit_work_unit(NewUnit::new("c").priority(7), "go").unwrap_err();
    assert!(error.is_at_capacity());
    assert_eq!(error.to_string(), "no capacity for unit `c`: 2 of 2 workers busy");
    assert_eq!((error.unit.id.as_str(), error.unit.priority), ("c", 7));
    assert!(matches!(world.repository.unit(world.job, "c"), Err(RepositoryError::UnknownUnit { .. })));

    drop(calls);
    pool.wait_for_completion();
    pool.submit_work_unit(*error.unit, Prompt::OfUnit).unwrap();
    assert_eq!(stage.next().prompt, "go");
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.status("c"), UnitStatus::Completed);
    world.assert_clean();
}

#[test]
fn a_prompt_reaches_the_executor_byte_for_byte() {
    // 004-F24, 004-F34
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let prompts =
        ["", "-", "--flag", "{\"a\": {\"b\": [1]}}", "{{ not }} {% a %} template", "nul \0 \u{202e}\r\n", "  tail \n"];
    for (number, prompt) in prompts.into_iter().enumerate() {
        let id = format!("u{number}");
        let handle = pool.submit_work_unit(NewUnit::new(id.as_str()), prompt).unwrap();
        assert_eq!(stage.next().prompt, prompt);
        handle.wait().unwrap();
        assert_eq!(world.unit(&id).prompt.as_deref(), Some(prompt));
        assert_eq!(world.unit(&id).rendered_prompt.as_deref(), Some(prompt));
    }
    let long = "x".repeat(10 * 1024 * 1024);
    let handle = pool.submit_work_unit(NewUnit::new("long"), long.as_str()).unwrap();
    assert!(stage.next().prompt == long);
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_template_is_rendered_and_what_was_sent_is_stored() {
    // 004-F27, 004-F34
    let world = World::with_job(&NewJob::named("translating").template("Translate {{ word }}: {\"a\": 1}"));
    let (pool, stage) = world.staged(1);
    let own = NewUnit::new("own").template("Say {{ payload.word }}").payload(json!({ "word": "no" }));
    for (unit, sent) in
        [(NewUnit::new("jobs").payload(json!({ "word": "bread" })), "Translate bread: {\"a\": 1}"), (own, "Say no")]
    {
        let id = unit.id.clone();
        let handle = pool.submit_work_unit(unit, Prompt::OfUnit).unwrap();
        let call = stage.next();
        assert_eq!(call.prompt, sent);
        assert_eq!(world.status(&id), UnitStatus::Processing);
        drop(call);
        assert_eq!(handle.wait().unwrap().rendered_prompt.as_deref(), Some(sent));
        let attempt = &world.attempts(&id)[0];
        assert_eq!(attempt.provenance.as_ref().unwrap().executor, "a play");
        let result = world.repository.attempt_result(attempt.key).unwrap();
        assert_eq!(result.rendered_prompt.as_deref(), Some(sent));
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_template_with_a_hole_fails_the_unit_and_costs_nothing() {
    // 004-F39, 004-F40
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part), &world);
    let pool = builder.up();
    let unit = NewUnit::new("a").template("Summarise {{ title }}.").payload(json!({ "titel": "Emma" }));
    let unit = pool.submit_work_unit(unit, Prompt::OfUnit).unwrap().wait().unwrap();
    assert_eq!(unit.status, UnitStatus::Failed);
    let failure = unit.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::PROMPT);
    assert!(failure.message.contains("`title`"), "{failure}");
    assert_eq!(next(&outcomes), "failed a: FAILED");
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Failed));
    assert!(stage.is_empty(), "the executor was never called");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_without_anything_to_send_or_with_two_prompts_is_refused() {
    let world = World::new();
    let (pool, _stage) = world.staged(1);
    let refusal = |unit: NewUnit, prompt: Prompt| pool.submit_work_unit(unit, prompt).unwrap_err().reason;
    assert!(matches!(refusal(NewUnit::new("a"), Prompt::OfUnit), Refusal::NoPrompt));
    assert!(matches!(refusal(NewUnit::new("a").prompt("one"), "two".into()), Refusal::TwoPrompts));
    for id in ["", "a\0b", &"x".repeat(1_000_000)] {
        let refused = refusal(NewUnit::new(id), "go".into());
        assert!(matches!(refused, Refusal::Repository(RepositoryError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(pool.stats().free_slots, 1, "what was refused holds no place");
    assert_eq!(world.repository.counts(world.job).unwrap().total(), 0);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn ids_that_look_like_paths_or_sql_are_just_ids() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    for id in ["../x", "a'; DROP TABLE work_units; --", "\"quoted\"", "ünïcode ✓"] {
        let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        assert_eq!(stage.next().id, id);
        assert_eq!(handle.wait().unwrap().id.as_str(), id);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_with_a_prompt_of_its_own_needs_none() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a").prompt("its own"), Prompt::OfUnit).unwrap();
    assert_eq!(stage.next().prompt, "its own");
    pool.wait_for_completion();
    pool.submit_work_unit(NewUnit::new("b").prompt("the same"), "the same").unwrap();
    assert_eq!(stage.next().prompt, "the same");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pool_of_a_job_that_is_not_there_cannot_be_built() {
    // 004-F10
    let world = World::new();
    let (part, _stage) = stage();
    let error = WorkPool::builder(workcrew::JobId(99), part, world.repository.clone()).build().unwrap_err();
    assert!(matches!(error, workcrew::StartError::Repository(RepositoryError::UnknownJob(_))));
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "there is no job 99");
}
