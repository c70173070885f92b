//! What is exported: nothing is lost, nothing breaks out, and the same comes out twice.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::{Value, json};
use workcrew::attempt::{OutputFile, Provenance};
use workcrew::audit::export::{AmountRecord, Export, ExportError, Format, UnitRecord};
use workcrew::chain::Hash;
use workcrew::conversation::{StoredMessage, Truncation};
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::repository::{By, Claimant, Slot, Submitted, UnitFilter};
use workcrew::{
    Archive, AttemptReport, Beginning, Charge, Cost, Failure, FailureKind, JobId, Lease, MemoryRepository, Message,
    Money, NewJob, NewOwner, NewUnit, Next, OwnerId, Part, Price, Process, Progress, Repository, Role, Simulated,
    SqliteRepository, Stop, Tokens, UnitStatus, WorkPool, WorkerId,
};

use crate::support::folder;

const HOUR: Duration = Duration::from_secs(3_600);

struct Scene {
    repository: MemoryRepository,
    job: JobId,
    owner: OwnerId,
}

impl Scene {
    fn new() -> Scene {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("odd `job`\u{202e}")).unwrap().id;
        let owner = repository.register_owner(&NewOwner::new(Process::this("a boot"), "a test")).unwrap();
        Scene { repository, job, owner }
    }

    fn begin(&self, unit: NewUnit, beginning: &Beginning) -> Lease {
        let slot = Slot::new(WorkerId::new(format!("w-{}", unit.id)).unwrap());
        let submitted = self.repository.submit(self.job, &unit, &Claimant::new(self.owner, HOUR), &slot).unwrap();
        let Submitted::Claimed(claim) = submitted else { panic!("{submitted:?}") };
        self.repository.start(&claim.lease, beginning).unwrap();
        claim.lease
    }

    /// A unit with everything that a unit can have: two attempts, tools, files, charges with and without a price.
    fn rich(&self, id: &str) {
        let unit = || {
            let deep = (0..200).fold(json!(1), |value, _| json!([value]));
            NewUnit::new(id).payload(json!({ "deep": deep, "f": 0.1 })).prompt("Do it.").unit_type("page").priority(-3)
        };
        let provenance = Provenance::of("claude_cli").model("large").program_version("2.1").argument("--x");
        let lease = self.begin(unit(), &Beginning::default().rendered_prompt("# Sent").provenance(provenance.clone()));
        let truncation = Truncation { total_bytes: 99, hash: Hash::of(b"x") };
        self.repository.append(&lease, 0, &conversation()).unwrap();
        let cut = Message::assistant("cut").truncated_from(truncation).raw(vec![0xff, 0xfe]);
        self.repository.append(&lease, u32::try_from(conversation().len()).unwrap(), &[cut]).unwrap();
        self.repository.checkpoint_at(&lease, &json!({ "page": 3 })).unwrap();
        let tokens = Tokens { input: 10, output: 20, cache_read: 1_000, cache_write: 200, reasoning: 5 };
        self.repository.progress(&lease, &Progress::default().session("s-1")).unwrap();
        let report = AttemptReport::failed(
            Failure::new(FailureKind::new("overloaded"), "busy\n</code>\n# heading"),
            Next::Retry { after: Duration::ZERO },
        );
        let price = Price::new("2026-01-01T00:00:00Z".parse().unwrap()).input(Money::from_nanos(3));
        let report = report.charge(Charge::unpriced("local", tokens)).charge(Charge::priced("large", tokens, price));
        self.repository.finish(&lease, &report).unwrap();
        let lease = self.begin(unit(), &Beginning::default().provenance(provenance));
        self.repository.append(&lease, 0, &[Message::user("Again."), Message::assistant("Done.")]).unwrap();
        let file = OutputFile { path: "a`b.txt".to_owned(), size_bytes: 7, hash: Hash::of(b"content") };
        let report = AttemptReport::completed().output("```\n# Done\n").result(json!({ "ok": true })).output_file(file);
        let charge = Charge::reported("large", tokens, Money::from_nanos(1_234_567_891));
        self.repository.finish(&lease, &report.charge(charge)).unwrap();
    }
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new(Role::System).part(Part::text("# System\n<script>alert(1)</script>")),
        Message::user("````\nhello ` \u{0} \u{1b}[31m 東京"),
        Message::new(Role::Assistant)
            .part(Part::thinking("hm"))
            .part(Part::tool_use("t1", "read`file", json!({ "path": "a\n```\nb" })))
            .part(Part::tool_use("t2", "search", json!({})))
            .raw(r#"{"type":"assistant"}"#),
        Message::new(Role::Tool).part(Part::tool_result("t1", "``````\n# out")).part(Part::tool_error("t2", "no")),
        Message::new(Role::User)
            .part(Part::Image { media_type: "image/png".to_owned(), source: "aGVsbG8=".to_owned() })
            .part(Part::Other { kind: "server_tool".to_owned(), value: json!([1, null]) }),
    ]
}

fn written(export: &Export<'_>, format: Format) -> String {
    let mut out = Vec::new();
    export.write(format, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Compares all that a line says with all that the archive says.
fn assert_lossless(archive: &dyn Archive, record: &UnitRecord) {
    let unit = archive.unit(record.job_id, record.id.as_str()).unwrap();
    assert_eq!(record.job, archive.job(record.job_id).unwrap().name);
    assert_eq!((record.key, record.status, &record.unit_type), (unit.key, unit.status, &unit.unit_type));
    assert_eq!((&record.payload, &record.prompt, &record.template), (&unit.payload, &unit.prompt, &unit.template));
    assert_eq!((&record.options, record.priority, record.fence), (&unit.options, unit.priority, unit.fence));
    assert_eq!((record.max_retries, record.attempt_count), (unit.max_retries, unit.attempt_count));
    assert_eq!((record.attempts_used, record.accepted_by), (unit.attempts_used, unit.accepted_by));
    assert_eq!((record.created_at, record.completed_at), (unit.created_at, unit.completed_at));
    assert_eq!((record.not_before, record.purged_at), (unit.not_before, unit.purged_at));
    assert_eq!((&record.failure, record.tokens), (&unit.failure, unit.tokens));
    assert_eq!(record.checkpoint, archive.checkpoint(unit.key).unwrap());
    let attempts = archive.attempts(unit.key).unwrap();
    let cost: Cost = attempts.iter().map(|attempt| attempt.cost(&archive.charges(attempt.key).unwrap())).sum();
    assert_eq!(
        (record.cost.amount.as_ref().map(AmountRecord::money), record.cost.unpriced),
        (cost.known(), cost.unpriced)
    );
    let dollars = record.cost.amount.as_ref().map(|amount| amount.dollars.parse().unwrap());
    assert_eq!(dollars, cost.known(), "both say the same");
    assert_eq!(record.attempts.len(), attempts.len());
    for (written, attempt) in record.attempts.iter().zip(&attempts) {
        let same = (written.number, &written.worker_id, written.owner, written.fence, written.outcome);
        assert_eq!(same, (attempt.key.number, &attempt.worker_id, attempt.owner, attempt.fence, attempt.outcome));
        let times = (written.assigned_at, written.started_at, written.ended_at);
        assert_eq!(times, (attempt.assigned_at, attempt.started_at, attempt.ended_at));
        assert_eq!((&written.failure, &written.session_id), (&attempt.failure, &attempt.session_id));
        assert_eq!((&written.process, &written.provenance), (&attempt.process, &attempt.provenance));
        assert_eq!((written.is_counted, written.message_count), (attempt.is_counted, attempt.message_count));
        assert_eq!((written.head, written.messages_lost), (attempt.head, attempt.messages_lost));
        let left = archive.attempt_result(attempt.key).unwrap();
        let json = |raw: &Option<workcrew::Raw>| raw.as_ref().map(|raw| raw.json().unwrap());
        assert_eq!((&written.rendered_prompt, &written.output), (&left.rendered_prompt, &left.output));
        assert_eq!((&written.result, &written.late_result), (&json(&left.result), &json(&left.late_result)));
        assert_eq!((&written.output_files, &written.purged), (&left.output_files, &left.purged));
        assert_eq!(written.partial_text, archive.partial_text(attempt.key).unwrap());
        let charges = archive.charges(attempt.key).unwrap();
        assert_eq!(written.charges.len(), charges.len());
        for (written, charge) in written.charges.iter().zip(&charges) {
            assert_eq!((&written.model, written.tokens, &written.price), (&charge.model, charge.tokens, &charge.price));
            assert_eq!(written.amount.as_ref().map(|amount| amount.money()), charge.amount);
            assert_eq!(written.is_estimated, charge.is_estimated);
        }
        let (mut stored, mut next) = (Vec::<StoredMessage>::new(), Some(0));
        while let Some(after) = next {
            let page = archive.messages(attempt.key, after, 1_000).unwrap();
            stored.extend(page.items);
            next = page.next.map(|next| u32::try_from(next).unwrap());
        }
        assert_eq!(written.messages.len(), stored.len());
        for (written, stored) in written.messages.iter().zip(&stored) {
            assert_eq!((written.number, written.at, written.role), (stored.number, stored.at, stored.role));
            assert_eq!((written.content_hash, written.link), (stored.content_hash, stored.link));
            let message = stored.message().unwrap();
            assert_eq!(written.parts, message.as_ref().map(|message| message.parts.clone()));
            assert_eq!(written.raw, message.as_ref().and_then(|message| message.raw.clone()));
            assert_eq!(written.truncated, message.as_ref().and_then(|message| message.truncated));
            assert_eq!(written.is_partial, message.is_some_and(|message| message.is_partial));
        }
    }
}

#[test]
fn a_line_of_json_has_everything_and_reads_back() {
    let scene = Scene::new();
    scene.rich("rich `id` <b> ../x");
    scene.repository.queue_unit(scene.job, &NewUnit::new("waits").template("{{ x }}")).unwrap();
    let running = scene.begin(NewUnit::new("runs").prompt("Go."), &Beginning::default());
    scene.repository.append(&running, 0, &conversation()).unwrap();
    scene.repository.partial(&running, "so far").unwrap();
    let export = Export::new(&scene.repository).with_raw();
    let lines = written(&export, Format::Jsonl);
    assert_eq!(lines.lines().count(), 3);
    for line in lines.lines() {
        assert_lossless(&scene.repository, &UnitRecord::read(line).unwrap());
    }
    let rich: Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
    assert_eq!(rich["format"], "workcrew.unit.1");
    let without_raw = written(&Export::new(&scene.repository), Format::Jsonl);
    assert!(lines.contains("\"raw\":") && !without_raw.contains("\"raw\":"));
    let record = UnitRecord::read(lines.lines().next().unwrap()).unwrap();
    let amount = record.cost.amount.unwrap();
    assert_eq!(amount.dollars, "1.234567891");
    assert_eq!((amount.nanos, record.cost.unpriced), (1_234_567_891, 2), "what is not known is not 0");

    scene.repository.purge(Utc::now() + TimeDelta::days(1), &By::whom("test")).unwrap();
    let purged = written(&export, Format::Jsonl);
    let record = UnitRecord::read(purged.lines().next().unwrap()).unwrap();
    assert_lossless(&scene.repository, &record);
    assert!(record.attempts[0].messages[0].parts.is_none() && record.purged_at.is_some());
    assert!(UnitRecord::read(&purged.lines().next().unwrap().replace("workcrew.unit.1", "workcrew.unit.2")).is_err());
}

#[test]
fn a_whole_batch_in_a_file_is_exported_by_filter_and_into_files() {
    let folder = folder();
    let path = folder.path().join("batch.db");
    let repository = SqliteRepository::open(&path).unwrap();
    let job = repository.create_job(&NewJob::named("batch")).unwrap().id;
    let model = Simulated::new().seed(3).latency(Duration::ZERO, Duration::from_millis(2)).give_ups(0.3);
    let pool = WorkPool::builder(job, model, repository).max_workers(4).start().unwrap();
    let ids = ["../../escape", "/etc/passwd", "a", "A", "nul", "con.txt", "ü☃", &"x".repeat(512), "a b", ".", ".."];
    let handles: Vec<_> =
        ids.iter().map(|&id| pool.enqueue(NewUnit::new(id), "Summarise this page.").unwrap()).collect();
    handles.into_iter().for_each(|handle| drop(handle.wait().unwrap()));
    pool.stop(Stop::Drain).unwrap();
    drop(pool);

    let archive = SqliteArchive::open(&path).unwrap();
    let lines = written(&Export::new(&archive).with_raw(), Format::Jsonl);
    assert_eq!(lines.lines().count(), ids.len());
    lines.lines().for_each(|line| assert_lossless(&archive, &UnitRecord::read(line).unwrap()));
    let failed = UnitFilter::job(job).status(UnitStatus::Failed);
    let some = written(&Export::new(&archive).units(failed), Format::Jsonl);
    let count = usize::try_from(archive.counts(job).unwrap().failed).unwrap();
    assert!(count > 0 && some.lines().count() == count);

    for format in [Format::Jsonl, Format::Markdown, Format::OpenTelemetry] {
        let target = folder.path().join("out").join(format.extension());
        for _ in 0..2 {
            let count = Export::new(&archive).write_folder(format, &target).unwrap();
            assert_eq!(count, ids.len() as u64);
        }
        let names: BTreeSet<String> =
            fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names.len(), ids.len(), "nothing beside them: {names:?}");
        let folded: BTreeSet<String> = names.iter().map(|name| name.to_lowercase()).collect();
        assert_eq!(folded.len(), ids.len(), "not the same where case does not matter");
        assert!(names.iter().all(|name| name.len() < 128 && name.is_ascii() && !name.contains('/')), "{names:?}");
        let mut one = Vec::new();
        Export::new(&archive).write_unit(format, job, "a", &mut one).unwrap();
        let of_a = names.iter().find(|name| name.contains(&format!("-a.{}", format.extension()))).unwrap();
        assert_eq!(fs::read(target.join(of_a)).unwrap(), one);
    }
    assert_eq!(names_beside(folder.path()), ["batch.db", "out"]);
    let blocked = Export::new(&archive).write_folder(Format::Markdown, path.join("x"));
    assert!(matches!(blocked, Err(ExportError::File { .. })));
}

fn names_beside(folder: &std::path::Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.contains('-')).collect();
    names.sort();
    names
}

/// The lines of a document that are outside of its fences.
fn outside_of_fences(document: &str) -> Vec<&str> {
    let (mut outside, mut fence) = (Vec::new(), None::<&str>);
    for line in document.lines() {
        let run = &line[..line.len() - line.trim_start_matches('`').len()];
        match fence {
            Some(open) if run.len() >= open.len() && run == line => fence = None,
            Some(_) => {}
            None if run.len() >= 3 => fence = Some(run),
            None => outside.push(line),
        }
    }
    assert_eq!(fence, None, "every fence is closed");
    outside
}

#[test]
fn nothing_that_was_said_breaks_out_of_a_document() {
    let scene = Scene::new();
    scene.rich("id `with` <b>ticks</b>");
    let document = written(&Export::new(&scene.repository), Format::Markdown);
    for content in
        ["# System\n<script>", "````\nhello `", "\"path\": \"a\\n```\\nb\"", "``````\n# out", "# Done", "</code>"]
    {
        assert!(document.contains(content), "{content}\n{document}");
    }
    let outside = outside_of_fences(&document);
    let headings: Vec<&&str> = outside.iter().filter(|line| line.starts_with('#')).collect();
    let expected = [
        "# Unit `` id `with` <b>ticks</b> ``",
        "## Payload",
        "## Prompt",
        "## Attempt 1: FAILED",
        "### What was sent",
        "### 1. system",
        "### 2. user",
        "### 3. assistant",
        "### 4. tool",
        "### 5. user",
        "### 6. assistant",
        "## Attempt 2: COMPLETED",
        "### 1. user",
        "### 2. assistant",
        "### Output",
        "### Result",
        "### Files",
    ];
    assert_eq!(headings, expected.iter().collect::<Vec<_>>());
    // In names with backticks the marks are longer; what is outside of both kinds of marks is ours.
    for line in &outside {
        let without_code: String = line.split("``").step_by(2).flat_map(|part| part.split('`').step_by(2)).collect();
        assert!(!without_code.contains('<'), "{line}");
    }
    assert!(outside.contains(&"- Cost: $1.234567891 and 2 unpriced"), "{outside:#?}");
    assert!(outside.contains(&"`t2` failed:"));
}

fn attribute<'v>(span: &'v Value, key: &str) -> Option<&'v str> {
    let attributes = span["attributes"].as_array().unwrap();
    let found: Vec<&Value> = attributes.iter().filter(|attribute| attribute["key"] == key).collect();
    assert!(found.len() <= 1, "{key} is there twice");
    let value = &found.first()?["value"];
    Some(value.get("stringValue").or(value.get("intValue")).unwrap().as_str().unwrap())
}

#[test]
fn a_unit_is_a_trace_with_a_span_for_each_attempt_and_tool_call() {
    let scene = Scene::new();
    scene.rich("rich");
    let line = written(&Export::new(&scene.repository), Format::OpenTelemetry);
    assert_eq!(line, written(&Export::new(&scene.repository), Format::OpenTelemetry), "twice the same");
    let request: Value = serde_json::from_str(line.trim_end()).unwrap();
    let scope = &request["resourceSpans"][0]["scopeSpans"][0];
    let spans = scope["spans"].as_array().unwrap();
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    let expected = [
        "invoke_workflow odd `job`\u{202e}",
        "invoke_agent claude_cli",
        "execute_tool read`file",
        "execute_tool search",
        "invoke_agent claude_cli",
    ];
    assert_eq!(names, expected);
    let is_hex = |value: &Value, len| {
        value.as_str().unwrap().len() == len
            && value.as_str().unwrap().bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
    };
    assert!(spans.iter().all(|span| is_hex(&span["traceId"], 32) && is_hex(&span["spanId"], 16)));
    let ids: BTreeSet<&str> = spans.iter().map(|span| span["spanId"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), spans.len());
    assert!(spans.iter().all(|span| span["traceId"] == spans[0]["traceId"]));
    assert_eq!(spans[0].get("parentSpanId"), None);
    let parents: Vec<&Value> = spans[1..].iter().map(|span| &span["parentSpanId"]).collect();
    let (root, first) = (&spans[0]["spanId"], &spans[1]["spanId"]);
    assert_eq!(parents, [root, first, first, root]);
    for span in spans {
        let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        assert!(time("startTimeUnixNano") > 0 && time("startTimeUnixNano") <= time("endTimeUnixNano"));
    }

    let failed = &spans[1];
    for (key, value) in [
        ("gen_ai.operation.name", "invoke_agent"),
        ("gen_ai.provider.name", "anthropic"),
        ("gen_ai.agent.name", "claude_cli"),
        ("gen_ai.request.model", "large"),
        ("gen_ai.conversation.id", "s-1"),
        ("gen_ai.usage.input_tokens", "2420"),
        ("gen_ai.usage.output_tokens", "50"),
        ("gen_ai.usage.cache_read.input_tokens", "2000"),
        ("error.type", "overloaded"),
        ("workcrew.attempt.number", "1"),
        ("workcrew.cost.unpriced", "2"),
    ] {
        assert_eq!(attribute(failed, key), Some(value), "{key}");
    }
    assert_eq!((&failed["status"]["code"], &spans[4]["status"]), (&json!(2), &json!({})));
    let messages = |span, key| serde_json::from_str::<Value>(attribute(span, key).unwrap()).unwrap();
    let input = messages(failed, "gen_ai.input.messages");
    assert_eq!(input.as_array().unwrap().len(), 5);
    assert_eq!(input[1]["parts"][0], json!({ "type": "text", "content": "````\nhello ` \u{0} \u{1b}[31m 東京" }));
    assert_eq!(input[2]["parts"][0], json!({ "type": "reasoning", "content": "hm" }));
    let call = json!({ "type": "tool_call", "id": "t1", "name": "read`file", "arguments": { "path": "a\n```\nb" } });
    assert_eq!(input[2]["parts"][1], call);
    let answer = json!({ "type": "tool_call_response", "id": "t1", "response": "``````\n# out" });
    assert_eq!(input[3]["parts"][0], answer);
    assert_eq!(messages(failed, "gen_ai.output.messages")[0]["finish_reason"], "error");
    let output = messages(&spans[4], "gen_ai.output.messages");
    let said =
        json!([{ "role": "assistant", "parts": [{ "type": "text", "content": "Done." }], "finish_reason": "stop" }]);
    assert_eq!(output, said);
    let tool = &spans[3];
    assert_eq!(attribute(tool, "gen_ai.tool.call.id"), Some("t2"));
    assert_eq!(attribute(tool, "gen_ai.tool.call.result"), Some("no"));
    assert_eq!(attribute(tool, "error.type"), Some("tool_error"));
    assert_eq!(attribute(&spans[2], "error.type"), None);
}

#[test]
fn empty_and_very_large_things_are_exported_too() {
    let scene = Scene::new();
    for format in [Format::Jsonl, Format::Markdown, Format::OpenTelemetry] {
        assert_eq!(written(&Export::new(&scene.repository), format), "");
    }
    let lease = scene.begin(NewUnit::new("big").prompt(""), &Beginning::default());
    scene.repository.append(&lease, 0, &[Message::assistant("`\n".repeat(5_000_000)), Message::user("")]).unwrap();
    scene.repository.finish(&lease, &AttemptReport::completed()).unwrap();
    let lines = written(&Export::new(&scene.repository), Format::Jsonl);
    assert_lossless(&scene.repository, &UnitRecord::read(lines.trim_end()).unwrap());
    outside_of_fences(&written(&Export::new(&scene.repository), Format::Markdown));
    let trace = written(&Export::new(&scene.repository), Format::OpenTelemetry);
    serde_json::from_str::<Value>(trace.trim_end()).unwrap();

    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let full = Export::new(&scene.repository).write(Format::Jsonl, &mut Full);
    assert!(matches!(full, Err(ExportError::Write(error)) if error.kind() == std::io::ErrorKind::StorageFull));
}
