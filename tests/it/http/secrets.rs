//! Keys are found nowhere.

use std::sync::Mutex;

use serde_json::json;
use workcrew::audit::verify::Verify;
use workcrew::repository::UnitFilter;
use workcrew::{AnthropicApi, Archive, Executor, NewJob, NewUnit, OpenAiApi, Repository, SqliteRepository, WorkPool};

use super::provider::{Provider, Step, answer, begun_stream, json_answer, stream};
use super::speech;

/// One for every place in which a key may be.
const KEYS: [&str; 4] =
    ["sk-environment-0123456789", "sk-header-0123456789ab", "sk-url-password-0123456789", "sk-url-query-0123456789"];

/// All that is stored in the files of a folder.
fn all_bytes(folder: &std::path::Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn assert_without_keys(what: &str, bytes: &[u8]) {
    for key in KEYS {
        let found = bytes.windows(key.len()).any(|part| part == key.as_bytes());
        assert!(!found, "{what} has {key}");
    }
}

#[test]
fn a_key_is_in_no_table_no_export_no_error_and_no_debug_even_if_the_provider_repeats_it() {
    let repeated = KEYS.join(" and ");
    let error = json!({ "error": { "type": "invalid_request_error", "message": format!("bad key: {repeated}") } });
    let text = |text: &str| speech::anthropic_text(&[text]);
    let said = text(&format!("your key is {repeated}"));
    let escaped = error.to_string().replace("sk-", r"\u0073k-");
    let steps = vec![
        vec![Step::Send(json_answer(400, &error))],
        vec![Step::Send(answer(500, &[("request-id", &repeated)], &format!("<html>{repeated}</html>")))],
        vec![Step::Send(answer(404, &[], &repeated))],
        vec![Step::Send(answer(302, &[("location", &format!("http://127.0.0.1:1/?{}", KEYS[3]))], &repeated))],
        vec![Step::Send(answer(200, &[("content-type", "text/plain")], &repeated))],
        vec![Step::Send(answer(200, &[("content-type", "application/json")], &format!("{{{repeated}")))],
        vec![Step::Send(begun_stream(&[speech::began(), format!("data: {repeated}\n\n")]))],
        vec![Step::Send(begun_stream(&[
            speech::began(),
            speech::event(&json!({ "type": "error", "error": { "type": "api_error", "message": repeated } })),
        ]))],
        vec![Step::Send(stream(&said))],
        vec![Step::Send(Vec::new())],
        vec![Step::Send(answer(400, &[("content-type", "application/json")], &escaped))],
        vec![Step::Send(begun_stream(&[speech::began(), format!("data: {escaped}\n\n")]))],
    ];
    let count = steps.len();
    let provider = Provider::each(steps);
    let host = provider.url.trim_start_matches("http://").to_owned();
    let url = format!("http://user:{}@{host}/?key={}", KEYS[2], KEYS[3]);
    let api = || AnthropicApi::new("m").base_url(&url).key_from(|| Some(KEYS[0].to_owned())).header("x-extra", KEYS[1]);
    assert_without_keys("debug", format!("{:?}", api()).as_bytes());
    assert_without_keys(
        "debug",
        format!("{:?}", OpenAiApi::new("m").base_url(&url).header("x-extra", KEYS[1])).as_bytes(),
    );
    assert_without_keys("provenance", format!("{:?}", api().provenance()).as_bytes());

    let folder = crate::support::folder();
    let repository = SqliteRepository::open(folder.path().join("keys.db")).unwrap();
    let job = repository.create_job(&NewJob::named("keys")).unwrap().id;
    let errors = std::sync::Arc::new(Mutex::new(Vec::new()));
    let (kept, api) = (std::sync::Arc::clone(&errors), api());
    let provenance = api.provenance();
    let execute = move |call: &workcrew::Call<'_>| {
        let result = api.execute(call);
        kept.lock().unwrap().push(format!("{result:?}"));
        // So that none holds the pool.
        result.map_err(|error| workcrew::ExecuteError::give_up(error.to_string()))
    };
    let pool = WorkPool::builder(job, execute, repository.clone()).max_workers(1).start().unwrap();
    for number in 0..count {
        pool.enqueue(NewUnit::new(number.to_string()).max_retries(0), "Where?").unwrap().wait().unwrap();
    }
    drop(pool);
    let asked = provider.all_asked();
    assert_eq!(asked.len(), count);
    assert!(
        asked[0].head.contains(KEYS[0]) && asked[0].head.contains(KEYS[1]) && asked[0].head.contains(KEYS[3]),
        "they are sent"
    );
    for text in errors.lock().unwrap().iter() {
        assert_without_keys("an error", text.as_bytes());
    }
    assert_without_keys("a provenance", format!("{provenance:?}").as_bytes());
    let hidden = repository.unit(job, "8").unwrap();
    assert_eq!(hidden.output.as_deref(), Some("your key is [hidden] and [hidden] and [hidden] and [hidden]"));
    let mut export = Vec::new();
    for unit in repository.units(&UnitFilter::job(job), 0, 100).unwrap().items {
        export.extend(serde_json::to_vec(&unit).unwrap());
        for attempt in repository.attempts(unit.key).unwrap() {
            export.extend(format!("{attempt:?}").into_bytes());
            for message in super::messages(&repository, attempt.key) {
                export.extend(serde_json::to_vec(&message).unwrap());
            }
        }
    }
    assert_without_keys("an export", &export);
    let verify = KEYS.into_iter().fold(Verify::new(), Verify::must_not_contain);
    let verified = verify.run(&repository).unwrap();
    assert!(verified.is_clean(), "{verified:?}");
    drop(repository);
    assert_without_keys("a file", &all_bytes(folder.path()));
}
