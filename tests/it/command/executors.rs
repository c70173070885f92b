//! What executes the units: asked for, kept with the job, or not there.

use super::{Scene, Started, noting};

#[test]
fn an_agent_that_is_not_installed_is_told_before_a_database_is_made() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    for (arguments, told) in [
        ("--executor claude", "workcrew: there is no program `claude` on the path: install it with `npm install"),
        ("--executor codex", "workcrew: there is no program `codex` on the path: install it with `npm install"),
        ("--executor claude --program /no/claude", "workcrew: `/no/claude` is not there: "),
        ("--executor command", "workcrew: --executor command needs a program behind --"),
        ("--executor command -- /no/such/program", "workcrew: `/no/such/program` is not there: "),
        ("-- no-such-program", "workcrew: there is no program `no-such-program` on the path: "),
    ] {
        let line = format!("run u.jsonl {arguments}");
        let mut command = scene.command(&line.split_whitespace().collect::<Vec<_>>());
        let ran = Started::of(command.env("PATH", scene.path(""))).end().code(2);
        assert!(ran.err.starts_with(told) && ran.err.lines().count() == 1, "{ran:?}");
    }
    assert!(!scene.path("batch.db").exists());
}

#[test]
fn an_option_that_is_for_another_executor_is_refused_before_anything_is_made() {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 1);
    for (options, told) in [
        ("--executor codex --permission-mode plan", "--permission-mode is for --executor claude, not for codex"),
        ("--executor claude --sandbox read-only", "--sandbox is for --executor codex, not for claude"),
        ("--executor openai --model m --max-turns 3", "--max-turns is for --executor claude, not for openai"),
        ("--program ./agent", "--program is for --executor claude or codex, not for simulated"),
        ("--seed 3 -- cat", "--seed is for --executor simulated, not for command"),
        ("--executor replay --from a.db --model m", " or openai, not for replay"),
        ("--executor claude -- cat", "a program behind -- is for --executor command, not for claude"),
    ] {
        scene.run(&format!("run units.jsonl {options}")).code(2).tells(told);
    }
    assert!(!scene.path("batch.db").exists());
    // The same of what is added to what is kept.
    scene.run("queue units.jsonl -- cat").well();
    scene.run("resume --max-turns 3").code(2).tells("--max-turns is for --executor claude, not for command");
    scene.run("queue units.jsonl --seed 3").code(2).tells("--seed is for --executor simulated, not for command");
    scene.run("resume -q --silence 60s").well();
}

#[test]
fn what_executes_a_job_is_kept_with_it_and_another_may_be_asked_for() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    scene.run_all(&noting("run u.jsonl", "echo by the command")).well();
    let output = |id: &str| scene.run(&format!("show {id} --json")).json()[0]["unit"]["output"].clone();
    assert_eq!(output("u0001"), "by the command");
    scene.write_units("u.jsonl", 2);
    scene.run("queue u.jsonl").well();
    scene.run("resume").well();
    assert_eq!(output("u0002"), "by the command");
    scene.write_units("u.jsonl", 3);
    scene.run("run u.jsonl").well();
    assert_eq!(output("u0003"), "by the command");
    scene.write_units("u.jsonl", 4);
    scene.run("queue u.jsonl").well();
    scene
        .run("resume --executor simulated --latency 1ms")
        .well()
        .tells("simulated: nothing is asked and nothing is paid");
    assert!(output("u0004").as_str().unwrap().starts_with("This is a simulated answer"));
    scene.write_units("u.jsonl", 5);
    scene.run("queue u.jsonl").well();
    scene.run("resume -- cat").well();
    assert_eq!(output("u0005"), "u0005", "a program behind -- is another one");
}

#[test]
fn a_command_gets_the_prompt_a_folder_and_only_the_variables_that_it_is_given() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 1);
    std::fs::create_dir(scene.path("below")).unwrap();
    let script = "read prompt; echo $prompt ${SECRET-none} ${GIVEN-none} $(basename $(pwd))";
    let mut command =
        scene.command(&["run", "u.jsonl", "--cwd", "below", "--pass-env", "GIVEN", "--", "sh", "-c", script]);
    Started::of(command.env("SECRET", "s").env("GIVEN", "g")).end().well();
    assert_eq!(scene.run("show u0001 --json").json()[0]["unit"]["output"], "u0001 none g below");
}
