//! A disk that becomes full while a batch runs: it is told, what was executed waits for room, and nobody has to wait for ever.

use rustix::process::Signal;

use super::{Scene, Started, noting, tally, until};
use crate::support::small_disk::SmallDisk;

/// Units whose answers are larger than whatever may be left on a disk that is full.
const LONG: &str = "until [ -e gate ]; do sleep 0.01; done; head -c 1000000 /dev/zero | tr '\\0' x";

/// A batch on a disk that became full while its units were being executed, which are done now.
fn in_the_middle(scene: &Scene, disk: &SmallDisk, options: &str, patience: &str) -> Started {
    scene.write_units("u.jsonl", 4);
    let line = format!("run u.jsonl --workers 2 --db {} {options}", disk.path("batch.db").display());
    let mut command = scene.command(&noting(&line, LONG));
    let started = Started::of(command.env("WORKCREW_PROGRESS", "50ms").env("WORKCREW_PATIENCE", patience));
    until("the workers are busy", || scene.read("log").lines().count() == 2);
    disk.fill();
    scene.write("gate", "");
    until("it is told", || started.told().contains("workcrew: the disk is full: what is done waits for room, for "));
    started
}

fn resume(scene: &Scene, disk: &SmallDisk) {
    let db = disk.path("batch.db").display().to_string();
    scene.run(&format!("resume --db {db}")).well().says("4 completed");
    scene.run(&format!("verify --db {db}")).well();
}

#[test]
fn one_ctrl_c_ends_it_and_it_goes_on_when_there_is_room() {
    let Some(disk) = SmallDisk::new(16) else { return };
    let scene = Scene::new();
    let started = in_the_middle(&scene, &disk, "", "1h");
    until("so does the plain line", || started.told().contains("2 running, $0.0000, the disk is full: "));
    started.signal(Signal::INT);
    started.end().code(130).says("0 completed, 4 left").tells("what was executed and could not be stored is lost");
    disk.free();
    resume(&scene, &disk);
}

#[test]
fn once_there_is_room_again_what_was_executed_is_stored_and_the_rest_follows() {
    let Some(disk) = SmallDisk::new(16) else { return };
    let scene = Scene::new();
    let started = in_the_middle(&scene, &disk, "--json", "1h");
    disk.free();
    let ran = started.end().well().tells("workcrew: the disk has room again\n");
    let events = ran.json();
    let place = |name: &str| events.iter().position(|event| event["event"] == name).unwrap();
    assert!(place("disk_full") < place("disk_has_room") && place("disk_has_room") < place("summary"), "{events:#?}");
    assert_eq!(tally(&scene.read("log")).into_values().collect::<Vec<_>>(), [1; 4], "none was executed twice");
    resume(&scene, &disk);
}

#[test]
fn a_disk_that_stays_full_ends_it_as_trouble_with_the_storage() {
    let Some(disk) = SmallDisk::new(16) else { return };
    let scene = Scene::new();
    let ran = in_the_middle(&scene, &disk, "", "300ms").end().code(3).says("0 completed, 4 left");
    ran.tells("workcrew: the disk is full: what was executed and could not be stored is lost; make room to go on\n");
    disk.free();
    resume(&scene, &disk);
}

#[test]
fn units_that_do_not_fit_are_waited_for_and_given_up_in_time() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let scene = Scene::new();
    let line = |number: usize| format!("{{\"id\":\"{number}\",\"prompt\":\"{}\"}}\n", "x".repeat(100_000));
    scene.write("u.jsonl", (0..100).map(line).collect::<String>());
    let db = disk.path("batch.db").display().to_string();
    for command in ["run u.jsonl --latency 1ms", "queue u.jsonl"] {
        let arguments: Vec<String> = format!("{command} --db {db}").split_whitespace().map(str::to_owned).collect();
        let ran = Started::of(scene.command(&arguments).env("WORKCREW_PATIENCE", "300ms")).end().code(3);
        ran.tells("the disk is full");
    }
}

#[test]
fn the_log_leaves_room_for_the_data_of_a_batch_that_fits() {
    let Some(disk) = SmallDisk::new(8) else { return };
    let scene = Scene::new();
    scene.write_units("u.jsonl", 300);
    let db = disk.path("batch.db").display().to_string();
    let ran = scene.run(&format!("run u.jsonl --latency 1ms --workers 8 --db {db}")).well().says("300 completed");
    assert!(!ran.err.contains("full"), "{ran:?}");
    scene.run(&format!("verify --db {db}")).well();
}
