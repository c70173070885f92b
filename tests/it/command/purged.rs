//! What is left of contents that were purged: nothing, in whichever file one looks.

use std::fs;

use super::{Ran, Scene};

/// What nobody may find any more.
const WORD: &str = "Lovelacean";

/// A unit that completes and one that fails, both with the word in all that is said of them, and an index that knows it.
fn scene() -> Scene {
    let scene = Scene::new();
    let long = format!("{WORD} ").repeat(3_000);
    let units =
        format!("{{\"id\":\"good\",\"prompt\":\"good {long}\"}}\n{{\"id\":\"bad\",\"prompt\":\"bad {long}\"}}\n");
    scene.write("units.jsonl", units);
    let answer =
        "read unit; case $unit in bad*) echo \"I refuse: $unit\" | head -c 2000 >&2; exit 1;; esac; echo $unit";
    let mut words: Vec<&str> = "run units.jsonl --retries 1 --executor command -- sh -c".split(' ').collect();
    words.push(answer);
    scene.run_all(&words).code(1);
    fs::remove_file(scene.path("units.jsonl")).unwrap();
    scene.run(&format!("search {WORD}")).well().says("good").says("bad");
    assert!(!files_with(&scene, WORD).is_empty());
    scene
}

/// The files of the folder in which something can be found, whatever case it is in.
fn files_with(scene: &Scene, text: &str) -> Vec<String> {
    let names = fs::read_dir(scene.path("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let text = text.to_lowercase().into_bytes();
    let holds = |name: &String| {
        let bytes = fs::read(scene.path(name)).unwrap().to_ascii_lowercase();
        bytes.windows(text.len()).any(|part| part == text)
    };
    names.filter(holds).collect()
}

fn purge(scene: &Scene) -> Ran {
    scene.run("purge --older-than 0s --by ada --reason she-asked-for-it").well()
}

#[test]
fn after_a_purge_no_file_holds_the_words_and_no_command_tells_them() {
    let scene = scene();
    purge(&scene).says("the contents of 2 units");
    assert_eq!(files_with(&scene, WORD), [""; 0]);
    for line in ["show bad", "show bad --json", "show bad --raw", "failures", "list", "list --json", "export"] {
        let told = scene.run(line).well().out;
        assert!(!told.contains(WORD), "{line}: {told}");
    }
    // Why it failed is gone, that and how it did is not.
    scene.run("show bad").well().says("FAILED").says("exit_code").says("purged");
    scene.run(&format!("search {WORD}")).well().says("nothing was found");
    scene.run("verify").well();
    assert_eq!(files_with(&scene, WORD), [""; 0]);
}
