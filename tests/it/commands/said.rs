//! What a command gets, and what is kept of what it says.

use serde_json::json;
use workcrew::attempt::OutputFile;
use workcrew::chain::Hash;
use workcrew::executor::kinds;
use workcrew::{Archive, NewUnit, Part, Stop, Then, UnitStatus};

use super::World;
use crate::support::Up as _;

#[test]
fn prompts_arrive_byte_for_byte_and_output_is_kept() {
    let world = World::new();
    let pool = world.pool(world.script("cat")).max_workers(2).up();
    let long = "ü\0\u{1F469}\r".repeat(1_200_000);
    for (number, prompt) in ["", "-", "--flag", "'\"`$(x)\\\n\nb", "a\0b", &long].into_iter().enumerate() {
        let unit = pool.enqueue(NewUnit::new(format!("u{number}")), prompt).unwrap().wait().unwrap();
        assert_eq!(unit.status, UnitStatus::Completed);
        assert!(unit.output.as_deref() == Some(prompt), "{number}: byte for byte");
        let messages = world.repository.messages(world.attempts(unit.id.as_str())[0].key, 0, 10).unwrap();
        assert_eq!(messages.items.len(), usize::from(!prompt.is_empty()));
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_command_runs_in_its_workspace_with_little_of_the_environment_and_its_files_are_listed() {
    let world = World::new();
    let script = "pwd > where; echo \"${CARGO_MANIFEST_DIR-none} ${GIVEN}\"; mkdir out; printf abc > out/made; ln -s /etc/passwd link";
    let pool = world.pool(world.script(script).env("GIVEN", "given")).up();
    let unit = NewUnit::new("a").workspace_dir(world.workspace());
    let unit = ["out/made", "where", "link", "../commands.db", "missing"].into_iter().fold(unit, NewUnit::output_file);
    let unit = pool.enqueue(unit, "").unwrap().wait().unwrap();
    assert_eq!(unit.output.as_deref(), Some("none given"));
    let made = |path: &str, text: &str| OutputFile {
        path: path.to_owned(),
        size_bytes: text.len() as u64,
        hash: Hash::of(text.as_bytes()),
    };
    assert_eq!(unit.output_files, [made("out/made", "abc"), made("where", &format!("{}\n", world.workspace()))]);
    let attempt = &world.attempts("a")[0];
    let process = attempt.process.as_ref().unwrap();
    assert!(process.start_ticks > 0 && process.reaper.as_ref().unwrap().start_ticks > 0);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lines_of_json_are_messages_and_the_last_one_is_the_result() {
    let world = World::new();
    let script = r#"echo '{"type":"step","n":1}'; echo 'no json'; echo; echo '{"type":"end","n":2}'"#;
    let pool = world.pool(world.script(script).ndjson()).up();
    let unit = pool.enqueue(NewUnit::new("a"), "").unwrap().wait().unwrap();
    assert_eq!(unit.result, Some(json!({ "type": "end", "n": 2 })));
    let messages = world.repository.messages(world.attempts("a")[0].key, 0, 10).unwrap().items;
    let messages: Vec<_> = messages.iter().map(|stored| stored.message().unwrap().unwrap()).collect();
    let other = |kind: &str, n: u32| Part::Other { kind: kind.into(), value: json!({ "type": kind, "n": n }) };
    let parts: Vec<_> = messages.iter().flat_map(|message| message.parts.clone()).collect();
    assert_eq!(parts, [other("step", 1), Part::text("no json"), other("end", 2)]);
    assert_eq!(messages[1].raw.as_ref().unwrap().as_bytes(), b"no json");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn an_exit_code_means_what_it_was_said_to_mean() {
    let world = World::new();
    let executor = world.script("echo said; echo why >&2; read code; exit $code");
    let pool = world.pool(executor.exit_code(3, "hopeless", Then::GiveUp)).up();
    let end = |id: &str, prompt: &str| {
        let unit = NewUnit::new(id).max_retries(1);
        let unit = pool.enqueue(unit, format!("{prompt}\n")).unwrap().wait().unwrap();
        let failure = unit.failure.map(|failure| failure.to_string());
        (unit.status, failure, world.attempts(id).len(), unit.output)
    };
    let said = Some("said".to_owned());
    assert_eq!(end("a", "0"), (UnitStatus::Completed, None, 1, said.clone()));
    let three = Some("hopeless: `sh` ended with exit code 3: why".to_owned());
    assert_eq!(end("b", "3"), (UnitStatus::Failed, three, 1, said.clone()));
    let four = Some(format!("{}: `sh` ended with exit code 4: why", kinds::EXIT_CODE));
    assert_eq!(end("c", "4"), (UnitStatus::Failed, four, 2, said));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
