//! Where units come from: files, tables, folders, pipes, and all that can be wrong with them.

use std::os::unix::fs::PermissionsExt;

use super::{Scene, noting, tally};

fn ids(scene: &Scene, line: &str) -> Vec<String> {
    scene.units(line).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn lines_tables_folders_and_pipes_are_units() {
    let scene = Scene::new();
    scene.write("a.jsonl", "\u{feff}{\"id\":\"a1\",\"prompt\":\"one\"}\r\n\r\n\n{\"id\":2,\"prompt\":\"two\"}");
    scene.run("run a.jsonl -- cat").well().says("2 completed").says("read: 2 new, 0 known before");
    scene.write("b.csv", "\u{feff}id,prompt,note\r\nb1,\"one,\ntwo\",x\r\nb2,three,y");
    scene.run("run b.csv -- cat").well();
    assert_eq!(scene.run("show b1 --json").well().json()[0]["unit"]["output"], "one,\ntwo");
    std::fs::create_dir(scene.path("c")).unwrap();
    scene.write("c/c1.txt", "one");
    scene.write("c/c2.md", "two");
    scene.run("run c -- cat").well();
    assert_eq!(ids(&scene, "--job c"), ["c1.txt", "c2.md"]);
    scene.pipe("run - --job d -- cat", b"{\"id\":\"d1\",\"prompt\":\"one\"}\n").well();
    scene.pipe("run - --format csv --job e -- cat", b"id,prompt\ne1,one\n").well();
    scene.pipe("queue -", b"{\"id\":\"f1\",\"prompt\":\"one\"}").well().says("job batch");
    assert_eq!(ids(&scene, ""), ["a1", "2", "b1", "b2", "c1.txt", "c2.md", "d1", "e1", "f1"]);
    scene.run("verify").well();
}

#[test]
fn a_template_is_filled_in_from_lines_rows_and_files() {
    let scene = Scene::new();
    scene.write("t.txt", "Greet {{ name }}!");
    scene.write("a.jsonl", "{\"id\":\"a\",\"payload\":{\"name\":\"Ada\"}}\n");
    scene.write("b.csv", "id,name\nb,Bob\n");
    std::fs::create_dir(scene.path("c")).unwrap();
    scene.write("c/c.txt", "Cleo");
    scene.write("t2.txt", "{{ path }}: {{ text }}");
    for line in ["run a.jsonl --template t.txt", "run b.csv --template t.txt", "run c --template t2.txt"] {
        scene.run(&format!("{line} -- cat")).well();
    }
    let output = |id: &str| scene.run(&format!("show {id} --json")).well().json()[0]["unit"]["output"].clone();
    assert_eq!([output("a"), output("b"), output("c.txt")], ["Greet Ada!", "Greet Bob!", "c.txt: Cleo"]);
    // The job has its template already.
    scene.write("a.jsonl", "{\"id\":\"a2\",\"payload\":{\"name\":\"Eve\"}}\n");
    scene.run("run a.jsonl").well().says("read: 1 new");
    assert_eq!(output("a2"), "Greet Eve!");
}

#[test]
fn a_folder_again_is_the_same_units_also_if_the_template_is_left_out() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("c")).unwrap();
    scene.write("c/c.txt", "Cleo");
    scene.write("t.txt", "{{ path }}: {{ text }}");
    scene.run("run c --template t.txt -- cat").well();
    scene.write("c/d.txt", "Dora");
    scene.run("run c -- cat").well().says("read: 1 new, 1 known before\n");
    assert_eq!(scene.run("show d.txt --json").well().json()[0]["unit"]["output"], "d.txt: Dora");
}

#[test]
fn the_database_is_no_text_of_the_folder_in_which_it_lies() {
    let scene = Scene::new();
    scene.write("a.txt", "Greet Ada.");
    scene.write("b.txt", "Greet Bo.");
    scene.run("run . -q -- cat").well();
    scene.run("search ada").well();
    // All files of it are there while it is open.
    scene.run("run . -q").well().says("0 new, 2 known before");
    scene.run_all(&["queue", scene.path("").to_str().unwrap(), "--job", "batch"]).well().says("0 new, 2 known before");
    assert_eq!(ids(&scene, ""), ["a.txt", "b.txt"]);
}

#[test]
fn what_a_line_says_of_its_retries_counts_and_not_the_option() {
    let scene = Scene::new();
    scene.write("a.jsonl", "{\"id\":\"a\",\"prompt\":\"x\",\"max_retries\":3}\n{\"id\":\"b\",\"prompt\":\"x\"}\n");
    scene.run("queue a.jsonl --retries 0").well();
    let retries = |id: &str| scene.run(&format!("show {id} --json")).json()[0]["unit"]["max_retries"].clone();
    assert_eq!([retries("a"), retries("b")], [3, 0]);
}

#[test]
fn a_quote_that_is_never_closed_is_told_and_swallows_nothing() {
    let scene = Scene::new();
    scene.write("a.csv", "id,prompt\r\n\r\na,one\r\nb,\"two\r\nc,three\r\n");
    let ran = scene.run("run a.csv -- cat").code(1).says("read: 1 new, 0 known before, 1 is no unit\n");
    ran.tells("workcrew: line 4: a quote opens here and is never closed: nothing from here on was read\n");
    assert_eq!(ids(&scene, ""), ["a"]);
}

#[test]
fn a_template_that_cannot_be_used_is_told_before_anything_is_stored() {
    let scene = Scene::new();
    scene.write("a.jsonl", "{\"id\":\"a\",\"payload\":{\"x\":1}}\n");
    scene.write("broken.txt", "one\n{{ x ");
    let told = "workcrew: the template `broken.txt` is no template: line 2 of the template is";
    scene.run("run a.jsonl --template broken.txt").code(2).tells(told);
    scene.run("queue a.jsonl --template none.txt").code(2).tells("the template `none.txt` cannot be read");
    scene
        .run("run a.jsonl")
        .code(2)
        .tells_only("workcrew: line 1: unit `a` has neither a prompt nor a template: give one with --template");
    scene.run("queue a.jsonl").code(2);
    assert!(!scene.path("batch.db").exists(), "what makes no sense makes no database");

    scene.write("needs.txt", "{{ x }} {{ y }}");
    scene.run("run a.jsonl --template needs.txt").code(1).says("1 failed");
    scene.run("failures").well().says("the template needs `y`, which the payload does not have");
    scene.write("needs.txt", "{{ x }}");
    scene.run("run a.jsonl --template needs.txt").code(2).tells_only(
        "workcrew: job `a` was made with another template: give the job another name with --job, or leave --template out",
    );
    scene.write("b.jsonl", "{\"id\":\"b\",\"prompt\":\"p\"}\n");
    scene.run("run b.jsonl").well();
    scene.run("run b.jsonl --template needs.txt").code(2).tells("job `b` was made without a template");
}

#[test]
fn a_unit_without_a_prompt_among_others_is_told_with_its_line_and_not_stored() {
    let scene = Scene::new();
    scene.write(
        "a.jsonl",
        "{\"id\":\"a\",\"prompt\":\"p\"}\n{\"id\":\"b\"}\n{\"id\":\"c\",\"payload\":{},\"template\":\"t\"}\n",
    );
    let ran = scene.run("run a.jsonl").code(1);
    ran.tells("workcrew: line 2: unit `b` has neither a prompt nor a template\n").says("2 completed");
    assert_eq!(ids(&scene, ""), ["a", "c"]);
}

#[test]
fn the_same_file_again_adds_only_what_is_new_and_executes_nothing_twice() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 3);
    scene.run_all(&noting("run u.jsonl", "echo done")).well().says("read: 3 new, 0 known before");
    scene.write_units("u.jsonl", 5);
    scene.run_all(&noting("run u.jsonl", "echo done")).well().says("read: 2 new, 3 known before");
    let log = scene.read("log");
    assert_eq!(tally(&log).into_values().collect::<Vec<_>>(), [1; 5]);
}

#[test]
fn a_line_that_is_no_unit_or_contradicts_one_is_told_and_the_rest_runs() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 2);
    scene.run("run u.jsonl").well();
    scene.write("u.jsonl", "{\"id\":\"u0001\",\"prompt\":\"other\"}\nnonsense\n{\"id\":\"u0003\",\"promt\":\"x\"}\n{\"id\":\"u0004\",\"prompt\":\"x\"}\n");
    let ran =
        scene.run("run u.jsonl").code(1).says("read: 1 new, 0 known before, 1 contradicts a known one, 2 are no units");
    assert!(ran.err.contains("workcrew: line 1: there is a unit `u0001` with another content, which stays as it is\n"));
    assert!(ran.err.contains("workcrew: line 2: it is no JSON, from column 2 on\n"), "{}", ran.err);
    assert!(ran.err.contains("workcrew: line 3: unknown field `promt`"), "{}", ran.err);
    assert_eq!(ids(&scene, "--status completed"), ["u0001", "u0002", "u0004"]);
    assert_eq!(scene.run("show u0001 --json").json()[0]["unit"]["prompt"], "u0001");
}

#[test]
fn strict_ends_at_the_first_such_line_and_says_what_stays() {
    let scene = Scene::new();
    let good: String = (1..=1_200).map(|number| format!("{{\"id\":\"u{number}\",\"prompt\":\"x\"}}\n")).collect();
    scene.write("u.jsonl", format!("{good}nonsense\n{{\"id\":\"late\",\"prompt\":\"x\"}}\n"));
    let told = scene
        .run("queue u.jsonl --strict")
        .code(2)
        .tells("workcrew: line 1201: it is no JSON, from column 2 on (--strict; ");
    let stored = ids(&scene, "").len();
    assert!(
        told.err.contains(&format!("(--strict; {} before it stay)", super::golden::thousands(stored))),
        "{}",
        told.err
    );
    assert!((1_000..=1_200).contains(&stored), "whole groups of those before it stay: {stored}");
    scene.run("queue u.jsonl").code(1);
    assert_eq!(ids(&scene, "").len(), 1_201, "the same file again adds the rest");

    scene.write("v.jsonl", "{\"id\":\"v\",\"prompt\":\"x\"}\nnonsense\n");
    scene.run("run v.jsonl --strict --db v.db").code(2).tells("workcrew: line 2: ");
    assert_eq!(ids(&scene, "--db v.db"), [""; 0]);
    scene.run("verify --db v.db").well();
}

#[test]
fn no_units_at_all_are_no_trouble() {
    let scene = Scene::new();
    for (name, text) in [("a.jsonl", ""), ("b.jsonl", "\n \r\n"), ("c.csv", "id,prompt\n")] {
        scene.write(name, text);
        let ran = scene.run(&format!("run {name}")).well();
        let ran = ran.says(": 0 units\n  0 completed\n  read: 0 new, 0 known before\n");
        ran.tells(&format!("workcrew: there are no units in `{name}`\n"));
    }
    std::fs::create_dir(scene.path("empty")).unwrap();
    scene.run("run empty").well();
    scene.run("resume --job a").well();
}

#[test]
fn what_cannot_be_read_at_all_is_told_and_makes_no_database() {
    let scene = Scene::new();
    scene.write("x.dat", "hi");
    scene.write("no_id.csv", "name,prompt\n");
    scene.write("empty.csv", "");
    for (line, told) in [
        ("run none.jsonl", "units cannot be read from `none.jsonl`: No such file or directory"),
        ("queue none.jsonl", "units cannot be read from `none.jsonl`: No such file or directory"),
        ("run x.dat", "`x.dat` is neither *.jsonl nor *.csv nor a folder, so its format must be given with --format"),
        ("run no_id.csv", "the first line is no header of a table of units: it has no column `id`, but: name, prompt"),
        ("run empty.csv", "the first line is no header of a table of units: it is empty"),
    ] {
        let ran = scene.run(line).code(2);
        assert!(ran.err.starts_with(&format!("workcrew: {told}")), "{}", ran.err);
        assert_eq!(ran.err.lines().count(), 1);
    }
    assert!(!scene.path("batch.db").exists());
    scene.run("run x.dat --format jsonl").code(1).tells("line 1: ");
}

#[test]
fn what_may_not_be_read_is_told() {
    let scene = Scene::new();
    if !rustix::process::getuid().is_root() {
        return;
    }
    std::fs::create_dir(scene.path("secret")).unwrap();
    let allow = |name: &str, mode| std::fs::set_permissions(scene.path(name), PermissionsExt::from_mode(mode)).unwrap();
    scene.write("secret.jsonl", "");
    allow("secret", 0o700);
    allow("secret.jsonl", 0o600);
    allow("", 0o777);
    for name in ["secret", "secret.jsonl"] {
        let ran = scene.run_as_nobody(&format!("run {name}")).code(2);
        ran.tells(&format!("units cannot be read from `{name}`: Permission denied"));
    }
}

#[test]
fn a_unit_costs_no_more_than_its_line_says_or_else_the_command() {
    let scene = Scene::new();
    scene.write(
        "u.jsonl",
        "{\"id\":\"a\",\"prompt\":\"one\"}\n{\"id\":\"b\",\"prompt\":\"two\",\"max_cost\":\"$100\",\"max_retries\":0}\n",
    );
    let line = "u.jsonl --max-cost 0.000001 --retries 1000";
    scene.run(&format!("run {line} --failures 1 --latency 1ms")).code(1).says("2 failed");
    let kind = |id: &str| scene.run(&format!("show {id} --json")).well().json()[0]["unit"]["failure"]["kind"].clone();
    assert_eq!((kind("a"), kind("b") == "cost_limit"), ("cost_limit".into(), false));
    scene.run("doctor").code(0).says("they are not executed again, also if they are brought back");
    // It is part of what the unit is.
    scene.run(&format!("queue {line}")).well().says("0 new, 2 known before");
    scene.run("queue u.jsonl").code(1).says("1 contradicts a known one");
    for wrong in ["0", "-1", "much"] {
        scene.run_all(&["queue", "u.jsonl", &format!("--max-cost={wrong}")]).code(2).tells("no amount of dollars");
    }
}
