//! What is told while a batch runs: a screen on a terminal, plain lines elsewhere.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::{Scene, noting, until};

/// A command on a terminal of its own.
pub(super) struct Terminal {
    child: Child,
    master: File,
    said: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    pub(super) fn start(mut command: Command, columns: u16, rows: u16) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        tcsetwinsize(&master, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let side = || File::options().read(true).write(true).open(&name).unwrap();
        command.env("TERM", "xterm-256color").stdin(side()).stdout(side()).stderr(side());
        let child = command.spawn().unwrap();
        // Who holds the other side of the terminal open never sees its end.
        drop(command);
        let master = File::from(master);
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let (mut from, to) = (master.try_clone().unwrap(), Arc::clone(&said));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Terminal { child, master, said, reader: Some(reader) }
    }

    pub(super) fn said(&self) -> String {
        String::from_utf8_lossy(&self.said.lock().unwrap()).into_owned()
    }

    #[track_caller]
    pub(super) fn wait_for(&self, part: &str) {
        until(part, || self.said().contains(part));
    }

    pub(super) fn write(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of the command and of what it says.
    pub(super) fn end(&mut self) -> ExitStatus {
        let status = super::wait(&mut self.child);
        self.reader.take().unwrap().join().unwrap();
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What is seen after all that was said: lines, the cursor among them, and no more than the few orders that are expected.
fn seen(said: &str, columns: usize) -> Vec<String> {
    let (mut lines, mut row, mut column) = (vec![Vec::new()], 0_usize, 0_usize);
    let mut signs = said.chars();
    while let Some(sign) = signs.next() {
        match sign {
            '\r' => column = 0,
            '\n' => row += 1,
            '\u{1b}' => {
                assert_eq!(signs.next(), Some('['), "an order that nobody expects");
                let mut number = String::new();
                let order = loop {
                    match signs.next().unwrap() {
                        digit @ ('0'..='9' | ';' | '?') => number.push(digit),
                        order => break order,
                    }
                };
                let count = number.parse().unwrap_or(1);
                match order {
                    'A' => row = row.saturating_sub(count),
                    'B' => row += count,
                    'C' => column += count,
                    'D' => column = column.saturating_sub(count),
                    'G' => column = count - 1,
                    'K' if number == "2" => lines[row].clear(),
                    'K' => lines[row].truncate(column),
                    'J' => {
                        lines.truncate(row + 1);
                        lines[row].truncate(column);
                    }
                    'm' | 'h' | 'l' => {}
                    order => panic!("an order that nobody expects: {order:?}"),
                }
            }
            sign => {
                assert!(!sign.is_control(), "{sign:?} reaches the terminal");
                if column == columns {
                    (row, column) = (row + 1, 0);
                }
                while lines.len() <= row {
                    lines.push(Vec::new());
                }
                while lines[row].len() <= column {
                    lines[row].push(' ');
                }
                lines[row][column] = sign;
                column += 1;
            }
        }
        while lines.len() <= row {
            lines.push(Vec::new());
        }
    }
    let lines = lines.into_iter().map(|line| line.into_iter().collect::<String>().trim_end().to_owned());
    lines.collect()
}

/// A batch on a terminal, in the middle of it and after it.
fn batch(columns: u16, workers: usize) -> (Vec<String>, Vec<String>) {
    let scene = Scene::new();
    let name = "a-unit-with-a-very-long-name-that-does-not-fit-into-a-line-of-a-narrow-terminal";
    let line = |number: usize| format!("{{\"id\":\"{number}-{name}\\u202e\",\"prompt\":\"{number}\"}}\n");
    scene.write("u.jsonl", (0..workers + 2).map(line).collect::<String>() + "nonsense\n");
    let then =
        "printf 'now \\033]0;x\\007 I \\033[31mthink\\n'; [ $unit -lt 2 ] || until [ -e gate ]; do sleep 0.01; done";
    let command = scene.command(&noting(&format!("run u.jsonl --workers {workers}"), then));
    let mut terminal = Terminal::start(command, columns, 40);
    let last = format!("  w{workers} ").chars().take(5).collect::<String>();
    until("it is shown what runs", || {
        let shown = seen(&terminal.said(), columns.into());
        let is_shown = |part: &str| shown.iter().any(|line| line.contains(part));
        is_shown("2 of ") && is_shown(if workers > 16 { "and 4 more workers" } else { &last })
    });
    let during = seen(&terminal.said(), columns.into());
    scene.write("gate", "");
    assert_eq!(terminal.end().code(), Some(1));
    (during, seen(&terminal.said(), columns.into()))
}

#[test]
fn on_a_terminal_a_bar_and_a_line_for_each_worker_are_shown_and_then_the_summary() {
    for columns in [40, 100, 200] {
        let (during, after) = batch(columns, 3);
        let text = during.join("\n");
        assert!(text.contains("2 of 5 completed, 0 failed"), "{text}");
        assert!(text.contains("3 running, ") && text.contains("/min"), "{text}");
        assert!(columns < 100 || (text.contains(" left") && text.contains("cost unknown")), "{text}");
        assert!(text.contains('━'), "{text}");
        for worker in ["w1", "w2", "w3"] {
            assert_eq!(during.iter().filter(|line| line.starts_with(&format!("  {worker} "))).count(), 1, "{text}");
        }
        let note = "workcrew: line 6: it is no JSON, from column 2 on";
        assert!(during.concat().starts_with(note), "{text}");
        let summary = after.iter().position(|line| line == "job u: 5 units").unwrap_or_else(|| panic!("{after:#?}"));
        assert_eq!(after[..summary].concat(), note, "{after:#?}");
        assert_eq!(after[summary + 1], "  5 completed");
        assert!(!after.join("\n").contains('━'), "{after:#?}");
    }
}

#[test]
fn more_workers_than_fit_are_counted() {
    let (during, after) = batch(100, 20);
    let worker = |line: &&String| line.starts_with("  w");
    let shown: Vec<&str> = during.iter().filter(worker).map(|line| line.split_whitespace().next().unwrap()).collect();
    let expected: Vec<String> = (1..=16).map(|number| format!("w{number}")).collect();
    assert_eq!(shown, expected, "{during:#?}");
    assert!(after.contains(&"job u: 22 units".to_owned()), "{after:#?}");
}

#[test]
fn whoever_is_to_type_units_is_told_so() {
    let scene = Scene::new();
    let mut terminal = Terminal::start(scene.command(&["run", "-", "--", "cat"]), 120, 30);
    terminal.wait_for(
        "reading units from the terminal, each a line such as {\"id\": \"a\", \"prompt\": \"…\"}; Ctrl-D ends",
    );
    terminal.write("{\"id\":\"a\",\"prompt\":\"x\"}\n\u{4}");
    assert_eq!(terminal.end().code(), Some(0));
    assert_eq!(scene.count("COMPLETED"), 1);
}

#[test]
fn what_is_counted_is_what_is_stored_whoever_did_it() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 6);
    // Those of the canary are units of the batch.
    let gate = "[ $unit != u0004 ] || until [ -e gate ]; do sleep 0.01; done";
    let arguments = noting("run u.jsonl --workers 1 --canary 2 --yes", gate);
    let started = super::Started::of(scene.command(&arguments).env("WORKCREW_PROGRESS", "20ms"));
    until("the canary is counted once", || started.told().contains("3 of 6 completed, 0 failed, 1 running, "));
    // Another process does the rest meanwhile.
    let helper = scene.start(&noting("worker --workers 1 -q", "echo done"));
    until("so is what another did", || started.told().contains("5 of 6 completed, 0 failed, 1 running, "));
    scene.write("gate", "");
    started.end().well().says("6 completed");
    helper.signal(Signal::TERM);
    helper.end().well();
}

#[test]
fn without_a_terminal_a_plain_line_comes_now_and_then_and_quiet_means_none() {
    let scene = Scene::new();
    scene.write_units("u.jsonl", 2);
    let arguments = noting("run u.jsonl --workers 1", "[ $unit = u0001 ] || until [ -e gate ]; do sleep 0.01; done");
    let started = super::Started::of(scene.command(&arguments).env("WORKCREW_PROGRESS", "20ms"));
    until("it was told", || started.told().contains("1 of 2 completed, 0 failed, 1 running, "));
    scene.write("gate", "");
    let ran = started.end().well();
    let told = ran
        .err
        .lines()
        .find(|line| line.starts_with("1 of 2 completed, 0 failed, 1 running, "))
        .unwrap_or_else(|| panic!("{ran:?}"));
    assert!(told.contains("/min, ") && told.ends_with(" left, cost unknown"), "{told}");
    assert!(!ran.err.contains('\u{1b}') && !ran.out.contains('\u{1b}'), "{ran:?}");
    let quiet = super::Started::of(scene.command(&["resume", "-q"]).env("WORKCREW_PROGRESS", "1ms")).end().well();
    assert!(quiet.err.starts_with("executed by: command -- sh ") && quiet.err.lines().count() == 1, "{quiet:?}");
}
