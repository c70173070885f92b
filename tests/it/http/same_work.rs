//! The same work once: what is asked a second time in the same way is not paid for a second time.

use std::sync::Arc;

use serde_json::{Value, json};
use workcrew::executor::http::Tool;
use workcrew::executor::kinds;
use workcrew::testing::Gate;
use workcrew::{
    AnthropicApi, Archive, Executor, MemoryRepository, Money, NewJob, NewUnit, Price, Repository, StartError, Stop,
    UnitStatus, WorkPool, WorkUnit,
};

use super::provider::{Provider, Step, begun_stream, stream};
use super::{anthropic, openai, speech};

fn price() -> Price {
    let money = |text: &str| text.parse::<Money>().unwrap();
    let price = Price::new("2026-01-01T00:00:00Z".parse().unwrap()).input(money("3")).output(money("15"));
    price.cache_read(money("0.3")).cache_write(money("3.75"))
}

/// Executes so many units with these prompts, one after the other, and gives them back.
fn execute(repository: &MemoryRepository, api: impl Executor, workers: usize, prompts: &[String]) -> Vec<WorkUnit> {
    let job = repository.create_job(&NewJob::named(format!("job {}", repository.jobs(0, 1_000).unwrap().items.len())));
    let pool = WorkPool::builder(job.unwrap().id, api, repository.clone()).max_workers(workers).same_work_once();
    let pool = pool.start().unwrap();
    let new = |(number, prompt): (usize, &String)| {
        pool.enqueue(NewUnit::new(number.to_string()).max_retries(0), prompt.as_str()).unwrap()
    };
    let handles: Vec<_> = prompts.iter().enumerate().map(new).collect();
    let units = handles.iter().map(|handle| handle.wait().unwrap()).collect();
    pool.stop(Stop::Drain).unwrap();
    units
}

fn prompts(count: usize) -> Vec<String> {
    vec!["Where?".to_owned(); count]
}

#[test]
fn a_hundred_units_with_ten_prompts_are_ten_requests_and_cost_as_much() {
    let gate = Gate::closed();
    let opens = gate.clone();
    let provider = Provider::new(move |_, request| {
        gate.pass();
        let prompt = request.body["messages"][0]["content"][0]["text"].as_str().unwrap();
        vec![Step::Send(stream(&speech::anthropic_text(&["An answer to: ", prompt])))]
    });
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("pages")).unwrap().id;
    let pool = WorkPool::builder(job, anthropic(&provider).price(price()), repository.clone()).max_workers(16);
    let pool = Arc::new(pool.same_work_once().start().unwrap());
    let handles: Vec<_> = (0..100)
        .map(|number| pool.enqueue(NewUnit::new(number.to_string()), format!("page {}", number % 10)).unwrap())
        .collect();
    // All are taken that can be: some ask, the others wait for those.
    crate::commands::until("all workers have one", || pool.busy_count() == 16);
    opens.open();
    for (number, handle) in handles.iter().enumerate() {
        let unit = handle.wait().unwrap();
        assert_eq!(unit.status, UnitStatus::Completed);
        assert_eq!(unit.output, Some(format!("An answer to: page {}", number % 10)));
    }
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(provider.all_asked().len(), 10);
    let costs = repository.costs(None).unwrap();
    let told: Vec<_> = costs.by_model.iter().map(|model| (&*model.model, model.tokens.output)).collect();
    assert_eq!(told, [("(shared)", 0), ("claude-test-1", 10 * 50_000)]);
    let ten = price().amount(&costs.by_model[1].tokens).unwrap();
    assert_eq!((costs.spent().amount, costs.spent().is_known()), (ten, true));
    let verification = workcrew::audit::verify(&repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

#[test]
fn a_refusal_or_an_answer_that_was_cut_off_is_handed_on_to_nobody() {
    type Api = fn(&Provider) -> Box<dyn Executor>;
    let anthropics: Api = |provider| Box::new(anthropic(provider));
    let openais: Api = |provider| Box::new(openai(provider));
    let in_a_form: Api = |provider| Box::new(anthropic(provider).json_schema(json!({ "type": "object" })));
    let text = |reason: &str| stream(&speech::anthropic(vec![speech::text_block(0, &["I am"])], reason));
    let filtered = stream(&speech::openai(&[json!({ "content": "I am" })], "content_filter"));
    let longer = stream(&speech::openai(&[json!({ "content": "I am" })], "length"));
    let dropped = begun_stream(&[vec![speech::began()], speech::text_block(0, &["I am"])].concat());
    for (api, bytes, kind) in [
        (anthropics, text("refusal"), kinds::REFUSED),
        (anthropics, text("max_tokens"), kinds::MAX_TOKENS),
        (openais, filtered, kinds::CONTENT_FILTER),
        (openais, longer, kinds::MAX_TOKENS),
        (anthropics, dropped, kinds::DROPPED),
        (in_a_form, text("end_turn"), kinds::NO_STRUCTURED_OUTPUT),
    ] {
        let provider = Provider::always(vec![Step::Send(bytes)]);
        let repository = MemoryRepository::new();
        for unit in execute(&repository, api(&provider), 3, &prompts(4)) {
            assert_eq!(unit.failure.unwrap().kind.as_str(), kind);
        }
        assert_eq!(provider.all_asked().len(), 4, "{kind}");
    }
}

#[test]
fn what_is_asked_in_another_way_is_not_the_same_and_what_is_asked_in_the_same_way_is() {
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&[r#"{"city":"Paris"}"#])))]);
    let api = |set: fn(AnthropicApi) -> AnthropicApi| set(anthropic(&provider));
    let ways: [fn(AnthropicApi) -> AnthropicApi; 12] = [
        |api| api,
        |api| api.temperature(0.5),
        |api| api.temperature(0.7),
        |api| api.system_prompt("Be brief."),
        |api| api.max_tokens(7),
        |api| api.json_schema(json!({ "type": "object" })),
        |api| api.thinking(1_024),
        |api| api.extra("top_k", 3),
        |api| api.extra("top_k", 4),
        |api| api.extra("max_tokens", Value::Null),
        |api| api.header("anthropic-beta", "long-context"),
        |api| api.header("anthropic-beta", "longer-context"),
    ];
    let repository = MemoryRepository::new();
    for round in 1..=2 {
        for (number, way) in ways.into_iter().enumerate() {
            execute(&repository, api(way), 2, &prompts(2));
            let asked = provider.all_asked().len();
            assert_eq!(asked, if round == 1 { 1 } else { 0 }, "round {round}, way {number}");
        }
    }
    let other_model = AnthropicApi::new("claude-other").base_url(&provider.url).without_key();
    execute(&repository, other_model, 1, &prompts(1));
    let behind = |query: &str| anthropic(&provider).base_url(format!("{}?{query}", provider.url));
    execute(&repository, behind("version=1"), 1, &prompts(1));
    execute(&repository, behind("version=2"), 1, &prompts(1));
    execute(&repository, behind("version=1"), 1, &prompts(1));
    assert_eq!(provider.all_asked().len(), 3);

    // With whose key, for how long and at what price it is asked changes no answer.
    let second = std::time::Duration::from_secs(1);
    let dear = anthropic(&provider).key_from(|| Some("sk-another".to_owned())).price(price()).silence_limit(second);
    let units = execute(&repository, dear.connect_limit(second).max_turns(1), 1, &prompts(1));
    assert_eq!((units[0].output.as_deref(), provider.all_asked().len()), (Some(r#"{"city":"Paris"}"#), 0));
    // Whoever speaks otherwise is another.
    let speaks = openai(&provider);
    assert_ne!(speaks.parameters(), anthropic(&provider).parameters());
}

#[test]
fn an_api_with_tools_is_refused_since_they_may_do_anything() {
    let provider = Provider::always(Vec::new());
    let tool = Tool::new("now", "What time it is.", json!({ "type": "object" }), |_, _| Ok("late".to_owned()));
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("tools")).unwrap().id;
    let api = anthropic(&provider).tool(tool);
    let refused = WorkPool::builder(job, api, repository).same_work_once().build().unwrap_err();
    assert!(matches!(&refused, StartError::Setting { name: "same_work_once", .. }), "{refused}");
    assert!(refused.to_string().contains("`anthropic_api` does not tell"), "{refused}");
}

#[test]
fn nothing_secret_can_be_read_from_what_an_api_tells_of_itself() {
    let provider = Provider::always(Vec::new());
    let api = anthropic(&provider)
        .base_url("https://ada:hunter2@example.org/?token=swordfish")
        .header("authorization", "Bearer opensesame")
        .extra("password", "opensesame");
    let told = format!("{:?}", api.parameters().unwrap());
    for secret in ["hunter2", "swordfish", "opensesame", "sk-test", "example"] {
        assert!(!told.contains(secret), "{told}");
    }
    let otherwise = anthropic(&provider)
        .base_url("https://ada:another@example.org/?token=swordfish")
        .header("authorization", "Bearer opensesame")
        .extra("password", "opensesame");
    assert_eq!(otherwise.parameters(), api.parameters(), "with which password it is asked changes no answer");
}
