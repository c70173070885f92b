//! Where the output goes: to somebody who reads no further, to a full disk, to nobody.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::process::Stdio;

use super::screen::Terminal;
use super::{Scene, wait};

const COMMANDS: [&str; 11] = [
    "list --json -n 1000",
    "list -n 1000",
    "show long",
    "show long --json",
    "show long --raw",
    "jobs",
    "status",
    "cost",
    "failures",
    "verify",
    "man",
];

fn scene() -> Scene {
    let scene = Scene::new();
    scene.write("long.jsonl", format!("{{\"id\":\"long\",\"prompt\":\"{}\"}}\n", "word\\n".repeat(60_000)));
    scene.run("run long.jsonl -q -- cat").well();
    scene.write_units("u.jsonl", 800);
    scene.run("queue u.jsonl").well();
    scene
}

#[test]
fn whoever_reads_only_the_first_line_hears_no_complaint() {
    let scene = scene();
    for line in COMMANDS {
        let mut command = scene.command(&line.split_whitespace().collect::<Vec<_>>());
        let mut child =
            command.stdout(Stdio::piped()).stderr(File::create(scene.path("err")).unwrap()).spawn().unwrap();
        let mut first = String::new();
        BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert!(!first.is_empty());
        assert_eq!(wait(&mut child).code(), Some(0), "{line}");
        assert_eq!(scene.read("err"), "", "{line}");
    }
    // The longest fill a pipe, so they have met its end.
    assert!(scene.run("show long --raw").out.len() > 200_000 && scene.run("list --json -n 1000").out.len() > 70_000);
}

#[test]
fn how_a_batch_ended_is_told_by_its_code_also_if_nobody_reads_it() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 2);
    for line in ["run u.jsonl -- false", "run u.jsonl --json -- false"] {
        let mut command = scene.command(&line.split_whitespace().collect::<Vec<_>>());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(wait(&mut child).code(), Some(1), "{line}");
    }
}

#[test]
fn a_full_disk_is_an_error_that_is_told() {
    let scene = scene();
    let commands =
        COMMANDS.into_iter().chain(["completions bash", "resume --job long", "queue u.jsonl", "backup copy.db"]);
    for line in commands {
        let mut command = scene.command(&line.split_whitespace().collect::<Vec<_>>());
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut child = command.stdout(full).stderr(File::create(scene.path("err")).unwrap()).spawn().unwrap();
        assert_eq!(wait(&mut child).code(), Some(3), "{line}: {}", scene.read("err"));
        let err = scene.read("err");
        let told = err.lines().last().unwrap();
        assert!(told.starts_with("workcrew: standard output cannot be written: "), "{line}: {err}");
    }
}

#[test]
fn nothing_to_write_to_is_no_trouble() {
    let scene = scene();
    for line in COMMANDS {
        let closed = format!("exec {} {line} >&- 2>&-", super::WORKCREW);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", &closed]).current_dir(scene.path("")).env_clear();
        assert_eq!(wait(&mut shell.spawn().unwrap()).code(), Some(0), "{line}");
    }
}

#[test]
fn whoever_cannot_be_told_of_trouble_is_no_reason_to_stop() {
    let scene = Scene::new();
    scene.write("u.jsonl", "nonsense\n{\"id\":\"a\",\"prompt\":\"p\"}\n");
    let full = || File::options().write(true).open("/dev/full").unwrap();
    let code = |line: &str| {
        let mut command = scene.command(&line.split_whitespace().collect::<Vec<_>>());
        wait(&mut command.stdout(Stdio::null()).stderr(full()).env("WORKCREW_PROGRESS", "1ms").spawn().unwrap()).code()
    };
    assert_eq!(code("run u.jsonl --latency 20ms"), Some(1));
    assert_eq!(scene.count("COMPLETED"), 1);
    assert_eq!((code("show nobody"), code("list --db none.db")), (Some(2), Some(3)));
}

#[test]
fn what_is_written_is_for_its_owner_and_an_existing_file_keeps_its_mode() {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 1);
    scene.run("run units.jsonl -q").well();
    let mode = |name: &str| fs::metadata(scene.path(name)).unwrap().permissions().mode() & 0o777;
    let lines = ["report -o page.html", "export -o all.jsonl", "export --folder units"];
    let names = ["page.html", "all.jsonl", "units/00000001-u0001.json"];
    for line in lines {
        scene.run(line).well();
    }
    assert_eq!(names.map(mode), [0o600; 3]);
    for name in names {
        fs::set_permissions(scene.path(name), Permissions::from_mode(0o644)).unwrap();
    }
    for line in lines {
        scene.run(line).well();
    }
    assert_eq!(names.map(mode), [0o644; 3]);
    assert_eq!(mode("units"), 0o700);
}

#[test]
fn what_is_no_file_is_written_to_and_never_replaced_and_a_link_leads_to_its_file() {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 1);
    scene.run("run units.jsonl -q").well();
    scene.write("page.html", "before");
    std::os::unix::fs::symlink("page.html", scene.path("link.html")).unwrap();
    scene.run("report -o link.html").well();
    assert!(scene.read("page.html").contains("<html") && scene.path("link.html").is_symlink());
    rustix::fs::mkfifoat(rustix::fs::CWD, scene.path("fifo"), rustix::fs::Mode::RWXU).unwrap();
    for line in ["report -o fifo", "export -o fifo"] {
        let started = scene.start(&line.split(' ').collect::<Vec<_>>());
        let read = fs::read(scene.path("fifo")).unwrap();
        started.end().well();
        assert!(!read.is_empty(), "{line}");
        assert!(fs::metadata(scene.path("fifo")).unwrap().file_type().is_fifo(), "{line}");
    }
}

#[test]
fn a_terminal_obeys_nothing_of_what_is_exported_and_a_file_has_it_as_it_was() {
    const HOSTILE: &str = "\u{1b}[2J\u{9b}31m\u{202e}x";
    let scene = Scene::new();
    let unit = serde_json::json!({ "id": "a", "prompt": HOSTILE });
    scene.write("units.jsonl", format!("{unit}\n"));
    scene.run("run units.jsonl -q -- cat").well();
    for line in ["export", "export --format markdown", "export --format otel", "show a --raw", "report -o -"] {
        let mut terminal = Terminal::start(scene.command(&line.split(' ').collect::<Vec<_>>()), 80, 24);
        assert!(terminal.end().success());
        let said = terminal.said();
        let obeyed = said.chars().find(|sign| matches!(sign, '\u{1b}' | '\u{9b}' | '\u{202e}'));
        assert_eq!(obeyed, None, "{line}: {said:?}");
    }
    assert!(scene.run("export --format markdown").well().out.contains(HOSTILE));
    assert_eq!(scene.run("export").well().json()[0]["prompt"], HOSTILE);
}
