//! Real children that behave badly, run to their end.

use std::fs;
use std::io::{Read, Write};
use std::time::Duration;

use super::*;
use crate::executor::scene::{Scene, Told};
use crate::executor::{CancelReason, CancelToken, Then};
use crate::process::Process;
use crate::unit::NewUnit;

/// Keeps the lines, and takes one that says `answer` for the answer. Whoever it may cancel it does with the first.
#[derive(Default)]
struct Notes {
    lines: Vec<Vec<u8>>,
    truncated_bytes: Option<u64>,
    cancels: Option<CancelToken>,
    /// How long each line takes to be kept.
    takes: Duration,
}

impl Reader for &mut Notes {
    fn read(&mut self, line: Line<'_>, _call: &Call<'_>) -> Heard {
        if let Some(token) = &self.cancels {
            token.cancel(CancelReason::Requested);
        }
        self.truncated_bytes = self.truncated_bytes.or(line.truncation.map(|truncation| truncation.total_bytes));
        self.lines.push(line.bytes.to_vec());
        std::thread::sleep(self.takes);
        match line.bytes {
            b"answer" => Heard::Answer,
            b"at work" => Heard::AtWork,
            _ => Heard::More,
        }
    }

    fn conclude(self, _exit: &Exit, _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }
}

impl Notes {
    fn text(&self) -> Vec<String> {
        self.lines.iter().map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    }
}

fn shell(script: &str) -> ChildCommand {
    ChildCommand { arguments: vec!["-c".into(), script.into()], ..ChildCommand::new("sh") }
}

fn within(limits: impl FnOnce(&mut Limits), script: &str) -> ChildCommand {
    let mut command = shell(script);
    limits(&mut command.limits);
    command
}

fn scene() -> Scene {
    Scene::of(NewUnit::new("a"), "go")
}

fn watched(command: &ChildCommand) -> (Exit, Notes, Scene) {
    let (scene, mut notes) = (scene(), Notes::default());
    let exit = watch::watch(command, &mut &mut notes, &scene.call()).unwrap();
    assert_gone(&scene);
    (exit, notes, scene)
}

/// Nothing is left of what was told of.
fn assert_gone(scene: &Scene) {
    for told in scene.told() {
        let Told::Process(process) = told else { continue };
        let boot_id = scene.call().boot_id();
        assert!(!process.is_provably_alive(&boot_id), "the leader is gone");
        assert!(!process.reaper.unwrap().is_provably_alive(&boot_id), "the reaper is gone");
    }
}

/// Whether a process with this number, which a script told of, is there and no zombie.
fn is_there(pid: &[u8]) -> bool {
    let pid = std::str::from_utf8(pid).unwrap().parse().unwrap();
    let boot_id = crate::clock::Clock::boot_id(&crate::clock::SystemClock);
    Process::of(pid, &boot_id).start_ticks != 0
}

#[test]
fn a_child_reads_its_input_to_the_end_and_says_how_it_ended() {
    for input in [b"".as_slice(), b"-", b"--flag", b"a\nb\0\xff\r\n\"'$(x)`"] {
        let command = ChildCommand { input: Input::All(input.to_vec()), ..shell("cat; exit 3") };
        let (exit, notes, _) = watched(&command);
        assert_eq!(
            (notes.lines.join(&b'\n'), exit.how),
            (input.strip_suffix(b"\n").unwrap_or(input).to_vec(), How::Exited(3))
        );
    }
    let input: Vec<u8> = (0..10 * 1024 * 1024_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let command = ChildCommand { input: Input::All(input.clone()), ..ChildCommand::new("cat") };
    let (exit, notes, _) = watched(&command);
    assert_eq!(exit.how, How::Exited(0));
    assert!(notes.lines.join(&b'\n') == input, "byte for byte");
}

#[test]
fn a_child_may_ignore_its_input_and_die_of_a_signal() {
    let (exit, ..) = watched(&ChildCommand { input: Input::All(vec![b'x'; 1 << 20]), ..shell("kill -SEGV $$") });
    assert_eq!(exit.how, How::Signalled(libc::SIGSEGV));
}

#[test]
fn what_cannot_be_started_says_what_follows() {
    let scene = scene();
    let error = |command: &ChildCommand| run(command, &mut Notes::default(), &scene.call()).unwrap_err();
    let missing = error(&ChildCommand::new("/no/such/program"));
    assert_eq!(missing.then(), Then::Hold { until: None });
    let text = missing.with_causes_told().to_string();
    assert_eq!(text, "no_program: `/no/such/program` could not be started: No such file or directory (os error 2)");
    let nowhere = error(&ChildCommand { directory: Some("/no/such/folder".into()), ..shell("true") });
    assert_eq!((nowhere.then(), nowhere.to_string().contains("/no/such/folder")), (Then::GiveUp, true));
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(error(&ChildCommand::new(file.path())).then(), Then::Hold { until: None }, "it may not be run");
    let long = ChildCommand { arguments: vec!["x".repeat(8 << 20).into()], ..shell("") };
    assert_eq!(error(&long).then(), Then::GiveUp);
    assert_eq!(error(&ChildCommand { arguments: vec!["a\0b".into()], ..shell("") }).then(), Then::GiveUp);
    assert_eq!(scene.told(), []);
}

#[test]
fn a_grandchild_that_left_its_session_and_holds_the_pipe_ends_with_its_tree() {
    let (exit, notes, _) = watched(&shell(
        "setsid sh -c 'echo $$; trap \"\" TERM HUP; while :; do sleep 100; done' & while ! [ $(cut -d' ' -f6 /proc/$!/stat) -eq $! ]; do :; done; exit 0",
    ));
    assert_eq!(exit.how, How::Exited(0));
    for pid in &notes.lines {
        assert!(!is_there(pid));
    }
}

#[test]
fn a_child_that_ignores_everything_but_kill_is_killed() {
    let script = "trap '' TERM INT HUP QUIT; echo up; while :; do sleep 100; done";
    let command = within(|limits| limits.silence = Some(Duration::from_millis(300)), script);
    let (exit, notes, _) = watched(&command);
    assert_eq!(
        (exit.how, notes.text()),
        (How::Ended(Reason::Silent(Duration::from_millis(300))), vec!["up".to_owned()])
    );
}

#[test]
fn a_child_that_was_asked_to_end_may_say_more_and_that_is_heard() {
    let script = "trap 'echo last words; exit 7' TERM; echo up; while :; do sleep 0.01; done";
    let (scene, mut notes) = (scene(), Notes::default());
    notes.cancels = Some(scene.cancel.clone());
    let exit = watch::watch(&shell(script), &mut &mut notes, &scene.call()).unwrap();
    assert_eq!(exit.how, How::Ended(Reason::Cancelled(CancelReason::Requested)));
    assert_eq!(notes.text(), ["up", "last words"]);
    assert_gone(&scene);
}

#[test]
fn a_child_that_stops_itself_is_ended() {
    let command = within(|limits| limits.start = Some(Duration::from_millis(300)), "kill -STOP $$");
    let (exit, ..) = watched(&command);
    assert_eq!(exit.how, How::Ended(Reason::NeverSpoke(Duration::from_millis(300))));
}

#[test]
fn a_child_that_lives_on_after_its_answer_or_without_its_output_is_ended() {
    let soon = |limits: &mut Limits| limits.after_answer = Duration::from_millis(200);
    let (exit, notes, _) = watched(&within(soon, "echo answer; sleep 100"));
    assert_eq!((exit.how, notes.lines.len()), (How::Ended(Reason::Lingered), 1));
    let (exit, ..) = watched(&within(soon, "exec >&-; sleep 100"));
    assert_eq!(exit.how, How::Ended(Reason::ClosedItsOutput));
    let (exit, notes, _) = watched(&within(soon, "echo answer; echo at work; sleep 0.5; echo answer; exit 1"));
    assert_eq!((exit.how, notes.lines.len()), (How::Exited(1), 3), "work that goes on suspends it");
}

#[test]
fn what_floods_its_outputs_is_read_and_little_of_it_is_kept() {
    let script = "head -c 300000000 /dev/zero | tr '\\0' e >&2; printf '%s' end >&2; echo done";
    let (exit, notes, _) = watched(&shell(script));
    assert_eq!((exit.how, exit.stderr_bytes, notes.text()), (How::Exited(0), 300_000_003, vec!["done".to_owned()]));
    assert_eq!(exit.stderr_tail.len(), 64 * 1024);
    assert!(exit.stderr_tail.ends_with(b"eend"));
    let (exit, notes, _) = watched(&shell("head -c 1000000000 /dev/zero; echo; echo behind"));
    assert_eq!((exit.how, notes.truncated_bytes), (How::Exited(0), Some(1_000_000_000)));
    assert_eq!((notes.lines[0].len(), notes.lines[1].as_slice()), (10 * 1024 * 1024, b"behind".as_slice()));
}

#[test]
fn the_reaper_is_known_before_anything_else_and_survives_whatever_comes() {
    let scene = scene();
    let ended = std::thread::scope(|threads| {
        let watching =
            threads.spawn(|| watch::watch(&shell("sleep 1000"), &mut &mut Notes::default(), &scene.call()).unwrap());
        let process = loop {
            match scene.told().into_iter().next() {
                Some(Told::Process(process)) => break process,
                _ => std::thread::yield_now(),
            }
        };
        let reaper = process.reaper.unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(reaper.pid).unwrap()).unwrap();
        let name = fs::read_to_string(format!("/proc/{}/comm", reaper.pid)).unwrap();
        assert_eq!(name, "workcrew-reaper\n");
        let descriptors = fs::read_dir(format!("/proc/{}/fd", reaper.pid)).unwrap().count();
        assert!(descriptors <= 3, "the socket, the signals and the host, not {descriptors}");
        use rustix::process::Signal;
        for signal in [Signal::PIPE, Signal::HUP, Signal::INT, Signal::QUIT, Signal::USR1, Signal::ALARM] {
            rustix::process::kill_process(pid, signal).unwrap();
        }
        assert!(reaper.is_provably_alive(&scene.call().boot_id()));
        end_orphans(&[process_of(&scene)], &scene.call().boot_id()).unwrap();
        watching.join().unwrap()
    });
    assert_eq!(ended.how, How::Signalled(libc::SIGTERM), "nobody here has ended it");
    assert_gone(&scene);
}

fn process_of(scene: &Scene) -> Process {
    let process = scene.told().into_iter().find_map(|told| match told {
        Told::Process(process) => Some(process),
        _ => None,
    });
    process.expect("it was told")
}

#[test]
fn what_a_child_says_after_its_answer_gives_it_no_more_time() {
    let soon = |limits: &mut Limits| limits.after_answer = Duration::from_millis(200);
    // Storage is slower than the child, so that there is always something to be read.
    let chatter = "echo answer; exec timeout 10 sh -c 'while :; do printf %060000d\\\\n 0; done'";
    let (scene, mut notes) = (scene(), Notes { takes: Duration::from_millis(5), ..Notes::default() });
    let exit = watch::watch(&within(soon, chatter), &mut &mut notes, &scene.call()).unwrap();
    assert_eq!(exit.how, How::Ended(Reason::Lingered));
    assert_gone(&scene);
}

/// Watches a child while something is done to it, as soon as its process is known. It must end by itself, after which the rest is done.
fn watched_while<T>(scene: &Scene, command: &ChildCommand, mut notes: Notes, act: impl FnOnce(Process) -> T) -> Exit {
    let (exit, is_in_time) = std::thread::scope(|threads| {
        let watching = threads.spawn(|| watch::watch(command, &mut &mut notes, &scene.call()).unwrap());
        while scene.told().is_empty() {
            std::thread::yield_now();
        }
        let process = process_of(scene);
        let reaper = pid(process.reaper.as_ref().unwrap());
        let done = act(process);
        let is_in_time = soon(|| watching.is_finished());
        // Whatever kept it is no more.
        drop(done);
        if !is_in_time {
            let _ = rustix::process::kill_process(reaper, rustix::process::Signal::CONT);
            scene.cancel.cancel(CancelReason::Requested);
        }
        (watching.join().unwrap(), is_in_time)
    });
    assert!(is_in_time, "it ended by itself");
    assert!(soon(|| !process_of(scene).reaper.unwrap().is_provably_alive(&scene.call().boot_id())));
    assert_gone(scene);
    exit
}

fn pid(process: &Process) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(i32::try_from(process.pid).unwrap()).unwrap()
}

/// Whether something is so before far more time is over than it takes.
fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let began = std::time::Instant::now();
    while !is_so() {
        if began.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The reaper's own end of its socket; `None` where one may not look into other processes.
fn socket_of(process: &Process) -> Option<std::os::unix::net::UnixStream> {
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let reaper = process.reaper.as_ref().unwrap();
    let handle = pidfd_open(pid(reaper), PidfdFlags::empty()).unwrap();
    let folder = format!("/proc/{}/fd", reaper.pid);
    let sockets = || {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let is_socket = |path: &std::path::Path| {
            fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
        };
        let paths: Vec<_> = entries.map(|entry| entry.path()).collect();
        let all = paths.len();
        (all, paths.into_iter().filter(|path| is_socket(path)).collect::<Vec<_>>())
    };
    assert!(soon(|| sockets().0 <= 3), "it has closed all else");
    let number = sockets().1.first()?.file_name()?.to_str()?.parse().ok()?;
    pidfd_getfd(handle, number, PidfdGetfdFlags::empty()).ok().map(Into::into)
}

#[test]
fn a_reaper_that_was_stopped_keeps_nobody_waiting_and_is_made_to_go_on() {
    let (scene, mut notes) = (scene(), Notes::default());
    notes.cancels = Some(scene.cancel.clone());
    let exit = watched_while(&scene, &shell("kill -STOP $PPID; echo up; exec sleep 1000"), notes, drop);
    assert_eq!(exit.how, How::Ended(Reason::Cancelled(CancelReason::Requested)));
}

#[test]
fn who_holds_the_reapers_socket_keeps_nobody_waiting() {
    let scene = scene();
    let go = tempfile::tempdir().unwrap();
    let wait = format!("while ! [ -e {}/go ]; do sleep 0.01; done", go.path().display());
    let exit = watched_while(&scene, &shell(&wait), Notes::default(), |process| {
        let socket = socket_of(&process);
        fs::write(go.path().join("go"), "").unwrap();
        socket
    });
    assert_eq!(exit.how, How::Exited(0));
}

#[test]
fn who_cannot_be_killed_does_not_keep_the_answer_of_a_command_that_ended() {
    use std::io::Write as _;
    let scene = scene();
    let exit = watched_while(&scene, &shell("exec sleep 30"), Notes::default(), |process| {
        // As if the leader had ended, and somebody whom it left behind belonged to another user.
        let Some(mut socket) = socket_of(&process) else { return };
        socket.write_all(&[2_i32.to_ne_bytes(), (3_i32 << 8).to_ne_bytes()].concat()).unwrap();
    });
    assert_eq!(exit.how, How::Exited(3));
}

/// Is kept by its first line until all of the tree is gone, and cancels the call only then.
struct Late<'a>(&'a Scene);

impl Reader for Late<'_> {
    fn read(&mut self, _line: Line<'_>, call: &Call<'_>) -> Heard {
        let reaper = process_of(self.0).reaper.unwrap();
        assert!(soon(|| !reaper.is_provably_alive(&call.boot_id())));
        self.0.cancel.cancel(CancelReason::TimedOut);
        Heard::More
    }

    fn conclude(self, _exit: &Exit, _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }
}

#[test]
fn a_command_that_had_ended_before_it_was_to_stop_ended_by_itself() {
    let scene = scene();
    let exit = watch::watch(&shell("echo done; exit 0"), &mut Late(&scene), &scene.call()).unwrap();
    assert_eq!(exit.how, How::Exited(0));
}

#[test]
fn who_forks_as_fast_as_it_can_ends_with_its_tree() {
    let hops = "use POSIX; my $end = time + 15; while (time < $end) { exit if fork; setsid; }";
    let spreads = "use POSIX; my $end = time + 15; $SIG{TERM} = 'IGNORE'; while (time < $end) { fork or setsid && sleep(15) && exit; }";
    for script in [hops, spreads] {
        let began = std::time::Instant::now();
        let (exit, ..) = watched(&shell(&format!("perl -e '{script}' & sleep 0.2; exit 4")));
        assert_eq!(exit.how, How::Exited(4));
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

/// Runs one of the tests here in a process of its own, which this one starts like that.
fn alone(wrapper: &[&str], test: &str) {
    let this = std::env::current_exe().unwrap();
    let test = format!("executor::process::tests::{test}");
    let mut command = std::process::Command::new(wrapper.first().map_or(this.as_os_str(), |wrapper| wrapper.as_ref()));
    command.args(wrapper.iter().skip(1)).args(wrapper.first().map(|_| &this));
    let ended = command.args(["--exact", "--ignored", "--nocapture", &test]).output().unwrap();
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
}

/// The descriptors, threads and children of this process.
fn held() -> [usize; 3] {
    let count = |folder: &str| fs::read_dir(folder).unwrap().count();
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let children = children.collect::<String>().split_ascii_whitespace().count();
    [count("/proc/self/fd"), count("/proc/self/task"), children]
}

/// Panics at the first line.
struct Panics;

impl Reader for Panics {
    fn read(&mut self, _line: Line<'_>, _call: &Call<'_>) -> Heard {
        std::panic::resume_unwind(Box::new("on purpose"))
    }

    fn conclude(self, _exit: &Exit, _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn hundreds_one_by_one() {
    let _ = watched(&shell("exit 3"));
    let before = held();
    for _ in 0..100 {
        let (exit, ..) = watched(&shell("sleep 100 & exit 3"));
        assert_eq!(exit.how, How::Exited(3));
        let scene = scene();
        let missing = ChildCommand { input: Input::All(b"x".to_vec()), ..ChildCommand::new("/no/such/program") };
        assert!(run(&missing, &mut Notes::default(), &scene.call()).is_err());
        let panics = || watch::watch(&shell("echo up; sleep 100"), &mut Panics, &scene.call());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        scene.cancel.cancel(CancelReason::Requested);
        let exit = watch::watch(&shell("sleep 100"), &mut &mut Notes::default(), &scene.call()).unwrap();
        assert_eq!(exit.how, How::Ended(Reason::Cancelled(CancelReason::Requested)));
    }
    assert!(soon(|| held() == before), "{:?} became {:?}", before, held());
}

#[test]
fn after_hundreds_that_ended_failed_panicked_or_were_cancelled_nothing_is_held() {
    alone(&[], "hundreds_one_by_one");
}

#[test]
#[ignore = "a process of its own, which another test starts"]
fn many_at_once() {
    let before = held();
    std::thread::scope(|threads| {
        for _ in 0..64 {
            threads.spawn(|| {
                for _ in 0..5 {
                    let (exit, ..) = watched(&ChildCommand::new("false"));
                    assert_eq!(exit.how, How::Exited(1));
                }
            });
        }
    });
    assert!(soon(|| held() == before), "{:?} became {:?}", before, held());
    let (_, notes, _) =
        watched(&ChildCommand { arguments: vec!["/proc/self/status".into()], ..ChildCommand::new("cat") });
    for name in ["SigIgn:", "SigBlk:"] {
        let mask =
            notes.text().into_iter().find_map(|line| u64::from_str_radix(line.strip_prefix(name)?.trim(), 16).ok());
        // Those above are the C library's own.
        assert_eq!(mask.unwrap() & 0x7fff_ffff, 0, "{name}");
    }
}

#[test]
fn whatever_the_host_ignores_many_at_once_end_as_they_do_and_ignore_nothing() {
    alone(&[], "many_at_once");
    let ignores = "$SIG{$_} = 'IGNORE' for qw(CHLD PIPE HUP USR1 ALRM XFSZ TSTP); exec @ARGV";
    alone(&["perl", "-e", ignores], "many_at_once");
    alone(&["sh", "-c", "exec \"$0\" \"$@\" <&- "], "many_at_once");
}

/// Does not come back from the first line until it is told to.
struct Stuck {
    heard: std::sync::mpsc::Sender<()>,
    go_on: std::sync::mpsc::Receiver<()>,
}

impl Reader for Stuck {
    fn read(&mut self, _line: Line<'_>, _call: &Call<'_>) -> Heard {
        self.heard.send(()).unwrap();
        self.go_on.recv().unwrap();
        Heard::More
    }

    fn conclude(self, _exit: &Exit, _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }
}

#[test]
fn a_cancel_ends_the_tree_also_while_the_thread_that_watches_it_is_stuck() {
    let scene = scene();
    let ((heard, hears), (tell, go_on)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let exit = std::thread::scope(|threads| {
        let call = || watch::watch(&shell("echo up; sleep 1000"), &mut Stuck { heard, go_on }, &scene.call()).unwrap();
        let watching = threads.spawn(call);
        hears.recv().unwrap();
        let (process, boot_id) = (process_of(&scene), scene.call().boot_id());
        scene.cancel.cancel(CancelReason::TimedOut);
        let reaper = process.reaper.clone().unwrap();
        let began = std::time::Instant::now();
        while process.is_provably_alive(&boot_id) || reaper.is_provably_alive(&boot_id) {
            assert!(began.elapsed() < Duration::from_secs(60), "the tree is gone in time");
            std::thread::yield_now();
        }
        tell.send(()).unwrap();
        watching.join().unwrap()
    });
    assert_eq!(exit.how, How::Ended(Reason::Cancelled(CancelReason::TimedOut)));
}

#[test]
fn a_tree_ends_by_itself_when_its_time_is_up_whatever_its_host_does() {
    let times = tree::Times { grace: Duration::from_millis(50), limit: Duration::from_millis(50) };
    let tree = tree::Tree::spawn(&shell("trap '' TERM; sleep 1000"), times).unwrap();
    // Nobody asks it to, and nobody reads what it says.
    let ended = tree.line.hear();
    assert!(matches!(ended, tree::Word::Ended(_)), "{ended:?}");
    assert_eq!(tree.line.hear(), tree::Word::Gone);
}

#[test]
fn how_long_a_tree_may_live_can_be_said_anew_while_it_lives() {
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(1_000));
    let tree = tree::Tree::spawn(&shell("sleep 1000"), tree::Times { grace: short, limit: long }).unwrap();
    [long, short].into_iter().for_each(|limit| tree.line.may_live(limit));
    let ended = tree.line.hear();
    assert!(matches!(ended, tree::Word::Ended(_)), "{ended:?}");

    let limit = Duration::from_secs(2);
    let mut command = shell("read word; echo $word");
    command.input = Input::Open;
    let mut tree = tree::Tree::spawn(&command, tree::Times { grace: short, limit }).unwrap();
    tree.line.may_live(long);
    // What was said first is over.
    std::thread::sleep(limit + short);
    tree.stdin.take().unwrap().write_all(b"alive\n").unwrap();
    let mut said = String::new();
    tree.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), tree.line.hear()), ("alive\n", tree::Word::Exited(0)));
}
