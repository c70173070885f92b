//! Units that carry on what others have said.

use serde_json::json;
use workcrew::executor::http::Tool;
use workcrew::executor::kinds;
use workcrew::{Archive, Executor, JobId, MemoryRepository, NewJob, NewUnit, Repository, WorkPool, WorkUnit};

use super::provider::{Provider, Step, stream};
use super::{anthropic, openai, speech};

fn world() -> (MemoryRepository, JobId) {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("sessions")).unwrap().id;
    (repository, job)
}

fn run(repository: &MemoryRepository, job: JobId, executor: impl Executor, unit: NewUnit, prompt: &str) -> WorkUnit {
    let pool = WorkPool::builder(job, executor, repository.clone()).start().unwrap();
    pool.enqueue(unit.max_retries(0), prompt).unwrap().wait().unwrap()
}

#[test]
fn a_unit_carries_on_what_another_has_said_and_a_third_all_of_it() {
    let (repository, job) = world();
    let call = stream(&speech::anthropic(vec![speech::tool_block(0, "t1", "look", &["{}"])], "tool_use"));
    let text = |text: &str| vec![Step::Send(stream(&speech::anthropic_text(&[text])))];
    let provider = Provider::each(vec![vec![Step::Send(call)], text("Paris."), text("Two million."), text("Yes.")]);
    let api = || {
        let look = Tool::new("look", "", json!({ "type": "object" }), |_, _| Ok("a map".to_owned()));
        anthropic(&provider).tool(look).history(repository.clone())
    };
    let first = run(&repository, job, api(), NewUnit::new("first/unit"), "The capital of France?");
    let session = first.session_id.unwrap();
    assert_eq!(session, format!("{}/first/unit/1", job.0));
    let second = NewUnit::new("second").resume_session(&session);
    let second = run(&repository, job, api(), second, "How many live there?").session_id.unwrap();
    let third = NewUnit::new("third").resume_session(&second);
    assert_eq!(run(&repository, job, api(), third, "Sure?").output.as_deref(), Some("Yes."));
    let said = provider.all_asked().last().unwrap().body["messages"].clone();
    let text = |role: &str, text: &str| json!({ "role": role, "content": [{ "type": "text", "text": text }] });
    let expected = json!([
        text("user", "The capital of France?"),
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t1", "name": "look", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t1", "is_error": false, "content": [{ "type": "text", "text": "a map" }] }] },
        text("assistant", "Paris."),
        text("user", "How many live there?"),
        text("assistant", "Two million."),
        text("user", "Sure?"),
    ]);
    assert_eq!(said, expected);
}

#[test]
fn what_one_provider_was_told_another_can_carry_on() {
    let (repository, job) = world();
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))]);
    let session = run(&repository, job, anthropic(&provider), NewUnit::new("a"), "The capital?").session_id.unwrap();
    let provider = Provider::always(vec![Step::Send(stream(&speech::openai_text(&["Two million."])))]);
    let api = openai(&provider).history(repository.clone());
    run(&repository, job, api, NewUnit::new("b").resume_session(session), "How many live there?");
    let expected = json!([
        { "role": "user", "content": "The capital?" },
        { "role": "assistant", "content": "Paris." },
        { "role": "user", "content": "How many live there?" },
    ]);
    assert_eq!(provider.asked().body["messages"], expected);
}

#[test]
fn a_call_of_a_tool_that_nobody_answered_is_not_carried_on() {
    let (repository, job) = world();
    let call = stream(&speech::anthropic(vec![speech::tool_block(0, "t1", "look", &["{}"])], "max_tokens"));
    let provider =
        Provider::each(vec![vec![Step::Send(call)], vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))]]);
    let session = run(&repository, job, anthropic(&provider), NewUnit::new("a"), "Look.").session_id.unwrap();
    let api = anthropic(&provider).history(repository.clone());
    run(&repository, job, api, NewUnit::new("b").resume_session(session), "And?");
    let content = json!([{ "type": "text", "text": "Look." }, { "type": "text", "text": "And?" }]);
    assert_eq!(provider.all_asked()[1].body["messages"], json!([{ "role": "user", "content": content }]));
}

#[test]
fn a_session_that_is_not_there_gives_the_unit_up() {
    let (repository, job) = world();
    let provider = Provider::always(Vec::new());
    let api = || anthropic(&provider).history(repository.clone());
    for (number, session) in ["1/nobody/1", "7/a/1", "nonsense", "1/0/2"].into_iter().enumerate() {
        let unit = NewUnit::new(number.to_string()).resume_session(session);
        let failure = run(&repository, job, api(), unit, "And?").failure.unwrap();
        assert_eq!(failure.kind.as_str(), kinds::SESSION_NOT_FOUND, "{session}: {failure}");
    }
    let unit = NewUnit::new("blind").resume_session("1/0/1");
    let failure = run(&repository, job, anthropic(&provider), unit, "And?").failure.unwrap();
    assert_eq!(failure.to_string(), "session_not_found: session `1/0/1` cannot be looked up: no history was given");
    assert_eq!(provider.all_asked().len(), 0);
    assert!(repository.units(&workcrew::repository::UnitFilter::job(job), 0, 100).unwrap().items.len() >= 5);
}
