//! How much memory a part of a test needs: it runs in a process of its own, the test binary executing itself.

use std::process::Command;

/// Names the test that a child is to run.
const VARIABLE: &str = "WORKCREW_TEST_CHILD";

/// Runs a part of a test in a child process, and tells by how many MiB its memory grew at most.
///
/// `name` is the test that calls this. In the child it is `None`, and nothing is left to be done.
pub(crate) fn peak_growth_mib(name: &str, part: impl FnOnce()) -> Option<u64> {
    if std::env::var(VARIABLE).is_ok_and(|running| running == name) {
        let before = status_kib("VmRSS:");
        part();
        println!("\npeak growth {} KiB", status_kib("VmHWM:").saturating_sub(before));
        return None;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(VARIABLE, name);
    let output = child.output().unwrap();
    let (told, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {told}{errors}");
    print!("{told}");
    let growth = told.lines().find_map(|line| line.strip_prefix("peak growth ")?.strip_suffix(" KiB"));
    Some(growth.unwrap_or_else(|| panic!("{name} did not run: {told}")).parse::<u64>().unwrap() / 1024)
}

/// A number in the kernel's account of this process.
fn status_kib(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
