//! How soon a report can be used, as a ratio to a page of the same bytes that does nothing, in the same browser and run.
//!
//! ```text
//! cargo bench --bench report
//! ```
//!
//! One line for each figure, `name=value` pairs. `milliseconds` is from the navigation to the moment when the first row is seen and
//! nothing lies over it, so that a click would open its unit; of the floor to the moment when it has loaded. Each is the median of
//! several times. Absolute numbers mean nothing on a machine that is shared. It needs Chromium, and says so where there is none.

#[expect(dead_code, clippy::unwrap_used, reason = "what the tests have, of which this needs a part")]
#[path = "../tests/it/report/browser.rs"]
mod browser;

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use browser::Browser;
use workcrew::attempt::Provenance;
use workcrew::audit::report::{self, Report};
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::{Archive, Claimant, Repository, Slot, Submitted};
use workcrew::{
    AttemptReport, Charge, Message, Money, NewJob, NewOwner, NewUnit, Process, SqliteRepository, Tokens, WorkerId,
};

const UNITS: usize = 1_000;
const MESSAGES: usize = 20;
const TIMES: usize = 7;

fn main() {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let repository = SqliteRepository::open(folder.path().join("report.db")).expect("a new database");
    fill(&repository);
    let page = folder.path().join("report.html");
    write(&repository, &page);
    if let Some(mut browser) = Browser::start() {
        time_to_first_row(&mut browser, &page);
    }
}

/// Units such as an agent leaves.
fn fill(repository: &SqliteRepository) {
    let job = repository.create_job(&NewJob::named("bench")).expect("a job").id;
    let process = Process::this(&SystemClock.boot_id());
    let owner = repository.register_owner(&NewOwner::new(process, "bench")).expect("an owner");
    let text = "The quick brown fox jumps over the lazy dog, and again. ".repeat(12);
    let said = |number: usize| if number.is_multiple_of(2) { Message::user(&text) } else { Message::assistant(&text) };
    let messages: Vec<Message> = (0..MESSAGES).map(said).collect();
    for number in 0..UNITS {
        let unit = NewUnit::new(format!("unit-{number:05}")).prompt(&text);
        let slot = Slot::new(WorkerId::new(format!("w{}", number % 8)).expect("a name"));
        let claimant = Claimant::new(owner, Duration::from_secs(600)).starting(Provenance::of("bench"));
        let Submitted::Claimed(claim) = repository.submit(job, &unit, &claimant, &slot).expect("room") else {
            panic!("a fresh unit is claimed");
        };
        repository.append(&claim.lease, 0, &messages).expect("a lease that holds");
        let tokens = Tokens { input: 1_000, output: 1_000, ..Tokens::default() };
        let charge = Charge::reported("large", tokens, Money::from_nanos(18_000_000));
        repository.finish(&claim.lease, &AttemptReport::completed().output(&text).charge(charge)).expect("a lease");
    }
}

/// Writes the report of an archive, and prints how fast that was.
fn write(archive: &dyn Archive, page: &Path) {
    let began = Instant::now();
    let mut out = BufWriter::new(File::create(page).expect("a new file"));
    let written = report::write(archive, &Report::new(), &mut out).expect("an archive that answers");
    out.flush().expect("room on the disk");
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "figure=report_written units={} messages={} megabytes={:.1} milliseconds={:.0} megabytes_per_second={:.0}",
        written.units,
        written.messages,
        written.bytes as f64 / 1e6,
        seconds * 1e3,
        written.bytes as f64 / 1e6 / seconds
    );
}

/// Prints how soon the page can be used.
fn time_to_first_row(browser: &mut Browser, page: &Path) {
    let floor = page.with_extension("floor.html");
    without_script(page, &floor).expect("room on the disk");
    let first_row = "(() => { const link = document.querySelector('.unit-id'); if (!link) return false;
        link.scrollIntoView({ block: 'center' }); const box = link.getBoundingClientRect();
        return link.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)); })()";
    let floor_ms = median(browser, &floor, "document.readyState === 'complete'");
    println!("figure=report_floor milliseconds={floor_ms:.1}");
    let page_ms = median(browser, page, first_row);
    println!("figure=report_first_row milliseconds={page_ms:.1} ratio={:.2}", page_ms / floor_ms);
}

fn median(browser: &mut Browser, page: &Path, condition: &str) -> f64 {
    let mut times_ms: Vec<f64> = (0..TIMES)
        .map(|_| {
            browser.go_to(page, "");
            browser.until(condition)
        })
        .collect();
    times_ms.sort_by(f64::total_cmp);
    times_ms[TIMES / 2]
}

/// The same page, in which nothing is done with the data.
fn without_script(page: &Path, floor: &Path) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let (before, script) = text.rsplit_once("<script>").expect("the page has a script");
    let length = script.find("</script>").expect("the script ends");
    fs::write(floor, format!("{before}<script type=\"text/plain\">{}", " ".repeat(length) + &script[length..]))
}
