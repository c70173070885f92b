//! What the command says of itself: help, manual pages, completions.

use std::process::{Command, Stdio};

use super::{Scene, Started};

/// The commands, as the help lists them.
fn commands(scene: &Scene) -> Vec<String> {
    let help = scene.run("--help").well().out;
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap().lines();
    let named: Vec<String> = listed.map(|line| line.split_whitespace().next().unwrap().to_owned()).collect();
    named.into_iter().filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_a_help_that_fits() {
    let scene = Scene::new();
    let commands = commands(&scene);
    assert!(commands.len() >= 19, "{commands:?}");
    for line in
        commands.iter().flat_map(|name| [format!("{name} --help"), format!("{name} -h")]).chain(["--help".to_owned()])
    {
        let help = scene.run(&line).well();
        assert!(help.out.contains("Usage: workcrew") && help.err.is_empty());
        for text in help.out.lines() {
            assert!(text.chars().count() <= 120, "{line}: {text}");
        }
    }
    scene.run("--help").says("  130  interrupted").says("    3  the database cannot be opened");
    scene.run("--version").well().says("workcrew ");
}

#[test]
fn every_command_has_a_manual_page_that_can_be_set() {
    let scene = Scene::new();
    let has_groff =
        Command::new("groff").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success());
    for name in commands(&scene).iter().map(String::as_str).chain([""]) {
        let page = scene.run(&format!("man {name}")).well().out;
        assert!(page.contains(".SH NAME") && page.contains(".TH workcrew"), "{name}: {page}");
        if has_groff {
            scene.write("page.1", &page);
            let mut groff = Command::new("groff");
            let set = Started::of(groff.args(["-man", "-Tutf8", "-ww"]).arg(scene.path("page.1"))).end().well();
            assert_eq!(set.err, "", "{name}");
        }
    }
}

#[test]
fn shells_understand_their_completions() {
    let scene = Scene::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = scene.run(&format!("completions {shell}")).well().out;
        assert!(script.contains("requeue"), "{script}");
        scene.write(shell, &script);
        let is_there = Command::new(shell).args(["-c", "true"]).status().is_ok_and(|status| status.success());
        if is_there {
            Started::of(Command::new(shell).arg("-n").arg(scene.path(shell))).end().well();
        }
    }
}
