//! Keys are found nowhere.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use workcrew::audit::export::{Export, Format};
use workcrew::audit::verify::Verify;
use workcrew::executor::http::Tool;
use workcrew::repository::{By, UnitFilter};
use workcrew::{
    AnthropicApi, Archive, Call, ExecuteError, Executor, NewJob, NewUnit, OpenAiApi, Repository, SqliteRepository,
    Then, UnitStatus, WorkPool, WorkUnit,
};

use super::provider::{Provider, Step, answer, begun_stream, json_answer, stream};
use super::speech;

/// One for every place in which a key may be.
const KEYS: [&str; 4] =
    ["sk-environment-0123456789", "sk-header-0123456789ab", "sk-url-password-0123456789", "sk-url-query-0123456789"];

/// What is shorter of a key tells nobody what it is.
const TELLING_BYTES: usize = 16;

/// What tells something of a key: its parts, and base64 as it may stand behind none, one or two other bytes.
fn traces(key: &str) -> Vec<String> {
    let parts = (TELLING_BYTES..=key.len()).map(|end| key[end - TELLING_BYTES..end].to_owned());
    let base64 = (0..3).map(|before| {
        let whole = base64(&format!("{}{key}", &"xx"[..before]));
        // Letters at the ends are made of neighbours too.
        whole[4..whole.len() - 4].to_owned()
    });
    parts.chain(base64).collect()
}

fn base64(text: &str) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let four = |three: &[u8]| {
        let number = (0..3).fold(0_usize, |sum, at| sum << 8 | usize::from(three.get(at).copied().unwrap_or(0)));
        let letter = |at: usize| if at > three.len() { '=' } else { char::from(LETTERS[number >> (18 - 6 * at) & 63]) };
        (0..4).map(letter).collect::<String>()
    };
    text.as_bytes().chunks(3).map(four).collect()
}

fn assert_without_keys(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for key in KEYS {
        for trace in traces(key) {
            assert!(!text.contains(&trace), "{what} has {trace} of {key}");
        }
    }
}

/// All that is stored in the files of a folder.
fn all_bytes(folder: &std::path::Path) -> Vec<u8> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect()
}

/// An address with a password and a query.
fn secret_url(provider: &Provider) -> String {
    let host = provider.url.trim_start_matches("http://");
    format!("http://user:{}@{host}/?key={}", KEYS[2], KEYS[3])
}

fn anthropic(provider: &Provider) -> AnthropicApi {
    let api = AnthropicApi::new("m").base_url(secret_url(provider)).key_from(|| Some(KEYS[0].to_owned()));
    api.header("x-extra", format!("Bearer {}", KEYS[1]))
}

fn openai(provider: &Provider) -> OpenAiApi {
    let api = OpenAiApi::new("m").base_url(secret_url(provider)).key_from(|| Some(KEYS[0].to_owned()));
    api.header("x-extra", format!("Bearer {}", KEYS[1]))
}

/// A file in which everything is looked for.
struct Searched {
    folder: tempfile::TempDir,
    repository: SqliteRepository,
    job: workcrew::JobId,
}

impl Searched {
    fn new() -> Searched {
        let folder = crate::support::folder();
        let repository = SqliteRepository::open(folder.path().join("keys.db")).unwrap();
        let job = repository.create_job(&NewJob::named("keys")).unwrap().id;
        Searched { folder, repository, job }
    }

    /// Executes a unit for each way in which a key may come, one after the other.
    fn execute(&self, api: impl Executor, units: usize) -> Vec<WorkUnit> {
        let errors = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&errors);
        let execute = move |call: &Call<'_>| {
            let result = api.execute(call);
            kept.lock().unwrap().push(format!("{result:?}"));
            // So that none holds the pool.
            result.map_err(|error| match error.then() {
                Then::Hold { .. } => ExecuteError::give_up(error.to_string()),
                _ => error,
            })
        };
        let pool = WorkPool::builder(self.job, execute, self.repository.clone()).max_workers(1).start().unwrap();
        let execute = |number: usize| {
            pool.enqueue(NewUnit::new(number.to_string()).max_retries(0), "Where?").unwrap().wait().unwrap()
        };
        let units = (0..units).map(execute).collect();
        drop(pool);
        errors.lock().unwrap().iter().for_each(|error| assert_without_keys("an error", error.as_bytes()));
        units
    }

    /// Looks everywhere.
    fn assert_without_keys(self) {
        let mut records = Vec::new();
        for unit in self.repository.units(&UnitFilter::job(self.job), 0, 1_000).unwrap().items {
            records.extend(serde_json::to_vec(&unit).unwrap());
            records.extend(format!("{:?}", self.repository.checkpoint(unit.key).unwrap()).into_bytes());
            for attempt in self.repository.attempts(unit.key).unwrap() {
                records.extend(format!("{attempt:?} {:?}", self.repository.partial_text(attempt.key)).into_bytes());
                for message in super::messages(&self.repository, attempt.key) {
                    records.extend(serde_json::to_vec(&message).unwrap());
                    records.extend(message.raw.iter().flat_map(|raw| raw.as_bytes().to_vec()));
                }
            }
        }
        assert_without_keys("a record", &records);
        for format in [Format::Jsonl, Format::Markdown, Format::OpenTelemetry] {
            let mut export = Vec::new();
            Export::new(&self.repository).with_raw().write(format, &mut export).unwrap();
            assert_without_keys("an export", &export);
        }
        #[cfg(feature = "report")]
        {
            let mut page = Vec::new();
            workcrew::audit::report::write(&self.repository, &workcrew::audit::report::Report::new(), &mut page)
                .unwrap();
            assert_without_keys("a report", &page);
        }
        let verify = KEYS.into_iter().fold(Verify::new(), Verify::must_not_contain);
        let verified = verify.run(&self.repository).unwrap();
        assert!(verified.is_clean(), "{verified:?}");
        drop(self.repository);
        assert_without_keys("a file", &all_bytes(self.folder.path()));
    }
}

#[test]
fn what_is_looked_for_is_what_others_write() {
    let written = ["", "f", "fo", "foo", "foob", "?>?"].map(base64);
    assert_eq!(written, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Pz4/"]);
}

#[test]
fn a_key_is_in_no_table_no_export_no_error_and_no_debug_even_if_the_provider_repeats_it() {
    let repeated = KEYS.join(" and ");
    let error =
        |said: &str| json!({ "error": { "type": "invalid_request_error", "message": format!("bad key: {said}") } });
    let said = speech::anthropic_text(&[&format!("your key is {repeated}")]);
    let escaped = error(&repeated).to_string().replace("sk-", r"\u0073k-");
    // As a header has it, or a part of one.
    let mut packed: Vec<String> =
        KEYS.iter().flat_map(|key| ["", "a:", "user:"].map(|user| format!("{user}{key}"))).collect();
    packed.push(format!("user:{}", KEYS[2]));
    let packed = packed.iter().map(|text| format!("Basic {}", base64(text))).collect::<Vec<_>>().join(", ");
    let of_addresses = packed.replace('+', "-").replace('/', "_").replace('=', "");
    let steps = vec![
        vec![Step::Send(json_answer(400, &error(&repeated)))],
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
        vec![Step::Send(json_answer(400, &error(&packed)))],
        vec![Step::Send(json_answer(429, &error(&of_addresses)))],
        vec![Step::Send(answer(401, &[("content-type", "text/html")], &format!("<pre>{packed}</pre>")))],
        vec![Step::Send(answer(200, &[("content-type", KEYS[0]), ("content-encoding", KEYS[1])], ""))],
        vec![Step::Send(answer(503, &[("content-type", "text/plain"), ("content-encoding", KEYS[1])], ""))],
        vec![Step::Send(stream(&speech::anthropic_text(&[&packed])))],
    ];
    let count = steps.len();
    let provider = Provider::each(steps);
    for debug in [format!("{:?}", anthropic(&provider)), format!("{:?}", openai(&provider))] {
        assert_without_keys("debug", debug.as_bytes());
    }
    assert_without_keys("a provenance", format!("{:?}", anthropic(&provider).provenance()).as_bytes());
    let searched = Searched::new();
    let units = searched.execute(anthropic(&provider), count);
    let asked = provider.all_asked();
    assert_eq!(asked.len(), count);
    assert!(KEYS.iter().filter(|key| asked[0].head.contains(**key)).count() >= 3, "they are sent");
    assert_eq!(units[8].output.as_deref(), Some("your key is [hidden] and [hidden] and [hidden] and [hidden]"));
    searched.assert_without_keys();
}

/// A text that has a key in it, in two pieces.
fn in_two(cut: usize) -> [String; 2] {
    let text = format!("It is {}, is it not?", KEYS[0]);
    let (first, second) = text.split_at("It is ".len() + cut);
    [first.to_owned(), second.to_owned()]
}

#[test]
fn a_key_that_comes_in_pieces_is_in_no_table_whatever_it_is_a_part_of() {
    let mut anthropics = Vec::new();
    let mut openais = Vec::new();
    for cut in [1, 5, 12, 20, 24] {
        let pieces = in_two(cut);
        let [first, second] = [pieces[0].as_str(), pieces[1].as_str()];
        anthropics.push(speech::anthropic_text(&[first, second]));
        let letters: Vec<String> = pieces.concat().chars().map(String::from).collect();
        anthropics.push(speech::anthropic_text(&letters.iter().map(String::as_str).collect::<Vec<_>>()));
        let thoughts = [first, second].map(|text| json!({ "type": "thinking_delta", "thinking": text }));
        let thinking = speech::block(0, &json!({ "type": "thinking", "thinking": "" }), &thoughts);
        anthropics.push(speech::anthropic(vec![thinking, speech::text_block(1, &["Hm."])], "end_turn"));
        let arguments = [format!(r#"{{"a":"{first}"#), format!(r#"{second}"}}"#)];
        let call = speech::tool_block(0, "t", "look", &arguments.each_ref().map(String::as_str));
        anthropics.push(speech::anthropic(vec![call], "end_turn"));
        for name in ["content", "reasoning_content", "refusal"] {
            openais.push(speech::openai(&[first, second].map(|text| json!({ name: text })), "stop"));
        }
        let call = |text: &str| json!({ "tool_calls": [{ "index": 0, "id": "t", "function": { "name": "look", "arguments": text } }] });
        openais.push(speech::openai(&arguments.each_ref().map(|text| call(text)), "tool_calls"));
    }
    let steps =
        |streams: &[Vec<String>]| streams.iter().map(|events| vec![Step::Send(stream(events))]).collect::<Vec<_>>();
    for (events, is_anthropic) in [(anthropics, true), (openais, false)] {
        let provider = Provider::each(steps(&events));
        let searched = Searched::new();
        // One turn each: what a tool was called with is kept in the checkpoint too.
        let units = match is_anthropic {
            true => searched.execute(anthropic(&provider).max_turns(1), events.len()),
            false => searched.execute(openai(&provider).max_turns(1), events.len()),
        };
        assert_eq!(units[0].output.as_deref(), Some("It is [hidden], is it not?"));
        searched.assert_without_keys();
    }
}

#[test]
fn a_part_of_a_key_that_was_cut_off_is_in_no_table() {
    let ways: Vec<Vec<Step>> = (TELLING_BYTES..KEYS[0].len())
        .flat_map(|cut| {
            let [first, _] = in_two(cut);
            let begun =
                begun_stream(&[vec![speech::began()], speech::text_block(0, &[&first[..9], &first[9..]])].concat());
            let longest = stream(&speech::anthropic(vec![speech::text_block(0, &[&first])], "max_tokens"));
            [vec![Step::Send(begun)], vec![Step::Send(longest)]]
        })
        .collect();
    let count = ways.len();
    let provider = Provider::each(ways);
    let searched = Searched::new();
    for unit in searched.execute(anthropic(&provider), count) {
        assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Failed, Some("It is [hidden]")));
    }
    searched.assert_without_keys();
}

#[test]
fn of_a_text_that_is_being_written_what_may_become_a_key_is_not_told() {
    for cut in [1, 12, 24] {
        let [first, _] = in_two(cut);
        let begun = begun_stream(&[vec![speech::began()], speech::text_block(0, &[&first])].concat());
        let provider = Provider::always(vec![Step::Send(begun), Step::Linger]);
        let searched = Searched::new();
        let (repository, job) = (&searched.repository, searched.job);
        let pool = WorkPool::builder(job, anthropic(&provider), repository.clone()).start().unwrap();
        let unit = pool.enqueue(NewUnit::new("a"), "Where?").unwrap();
        let key = repository.unit(job, "a").unwrap().key;
        let partial = || {
            let attempts = repository.attempts(key).unwrap();
            attempts.first().and_then(|attempt| repository.partial_text(attempt.key).unwrap())
        };
        crate::commands::until("the text is there", || partial().is_some());
        assert_eq!(partial().as_deref(), Some("It is "));
        unit.cancel(By::new("a test", "why not")).unwrap();
        assert_eq!(unit.wait().unwrap().status, UnitStatus::Cancelled);
        drop(pool);
        searched.assert_without_keys();
    }
}

#[test]
fn a_key_that_a_tool_returns_is_told_to_no_model_and_kept_nowhere() {
    let call = |input: &str| stream(&speech::anthropic(vec![speech::tool_block(0, "t", "look", &[input])], "tool_use"));
    let provider = Provider::each(vec![
        vec![Step::Send(call("{}"))],
        vec![Step::Send(call(r#"{"fail":true}"#))],
        vec![Step::Send(stream(&speech::anthropic_text(&["Done."])))],
    ]);
    let look = Tool::new("look", "", json!({ "type": "object" }), |input: &Value, _: &Call<'_>| {
        let said = format!("the environment has {}", KEYS.join(" and "));
        if input["fail"] == true { Err(said.into()) } else { Ok(said) }
    });
    let searched = Searched::new();
    let units = searched.execute(anthropic(&provider).tool(look), 1);
    assert_eq!(units[0].output.as_deref(), Some("Done."));
    for request in provider.all_asked() {
        assert_without_keys("what is sent", request.body.to_string().as_bytes());
    }
    searched.assert_without_keys();
}
