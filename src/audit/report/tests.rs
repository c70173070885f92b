//! What is written, seen without a browser; what a browser makes of it is in `tests/it/report`.

use std::io;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::attempt::AttemptReport;
use crate::conversation::Message;
use crate::lease::{Lease, NewOwner};
use crate::process::Process;
use crate::repository::{Claimant, Repository, Slot, Submitted};
use crate::worker::WorkerId;
use crate::{Failure, FailureKind, MemoryRepository, NewJob, NewUnit, Next};

struct Scene {
    repository: MemoryRepository,
    job: JobId,
    claimant: Claimant,
}

impl Scene {
    fn new() -> Scene {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("pages")).unwrap().id;
        let process = Process::this(&SystemClock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "test")).unwrap();
        let claimant = Claimant::new(owner, Duration::from_secs(60)).starting(crate::attempt::Provenance::of("test"));
        Scene { repository, job, claimant }
    }

    fn claimed(&self, id: &str) -> Lease {
        let (unit, slot) = (NewUnit::new(id).prompt("Summarise it."), Slot::new(WorkerId::new("w1").unwrap()));
        match self.repository.submit(self.job, &unit, &self.claimant, &slot).unwrap() {
            Submitted::Claimed(claim) => claim.lease,
            other => panic!("{other:?}"),
        }
    }

    fn completed(&self, id: &str, text: &str) {
        let lease = self.claimed(id);
        self.repository.append(&lease, 0, &[Message::user("Summarise it."), Message::assistant(text)]).unwrap();
        self.repository.finish(&lease, &AttemptReport::completed().output(text)).unwrap();
    }

    fn failed(&self, id: &str) {
        let failure = Failure::new(FailureKind::EXECUTOR, "no luck");
        self.repository.finish(&self.claimed(id), &AttemptReport::failed(failure, Next::GiveUp)).unwrap();
    }

    fn written(&self, wanted: &Report) -> (String, Written) {
        let mut page = Vec::new();
        let written = write(&self.repository, wanted, &mut page).unwrap();
        assert_eq!(written.bytes, page.len() as u64);
        (String::from_utf8(page).unwrap(), written)
    }
}

/// The values of the data blocks that begin like this.
fn blocks(page: &str, start: &str) -> Vec<Value> {
    let bodies = page.split(start).skip(1).map(|rest| rest.split("</script>").next().unwrap());
    bodies.map(|body| serde_json::from_str(body).unwrap()).collect()
}

fn rows(page: &str) -> Vec<Value> {
    let blocks = blocks(page, "<script type=\"application/json\" class=\"rows\">");
    blocks.into_iter().flat_map(|block| block.as_array().unwrap().clone()).collect()
}

fn overview(page: &str) -> Value {
    blocks(page, "<script type=\"application/json\" id=\"overview\">").pop().unwrap()
}

#[test]
fn what_failed_comes_first_and_the_overview_counts_what_the_table_has_no_room_for() {
    let scene = Scene::new();
    scene.completed("a", "done");
    scene.completed("b", "done");
    scene.failed("c");
    let (page, written) = scene.written(&Report::new().limit_units(2));
    let ids: Vec<Value> = rows(&page).iter().map(|row| row["id"].clone()).collect();
    assert_eq!(ids, ["c", "a"]);
    assert_eq!((written.units, written.rows, written.is_complete()), (3, 2, false));
    assert_eq!(overview(&page)["units"], 3);
    assert!(scene.written(&Report::new()).1.is_complete());
}

#[test]
fn beyond_the_limit_of_bytes_units_have_rows_without_contents() {
    let scene = Scene::new();
    for number in 0..20 {
        scene.completed(&format!("u{number:02}"), &"word ".repeat(2_000));
    }
    let (page, written) = scene.written(&Report::new().limit_bytes(50_000));
    assert_eq!((written.units, written.rows), (20, 20));
    let with_contents = rows(&page).iter().filter(|row| !row["place"].is_null()).count() as u64;
    assert!((2..10).contains(&with_contents), "{with_contents}");
    // The last one that was begun has lost some of its messages.
    assert_eq!(written.units_without_contents, 20 - with_contents + 1);
    assert_eq!(written.messages + written.messages_left_out, 2 * with_contents);
    let whole = scene.written(&Report::new()).1;
    assert_eq!((whole.messages, whole.is_complete()), (40, true));
    let none = scene.written(&Report::new().limit_bytes(0)).1;
    assert_eq!((none.rows, none.units_without_contents, none.messages), (20, 20, 0));
}

#[test]
fn a_long_text_is_cut_and_counted() {
    let scene = Scene::new();
    scene.completed("a", &"x".repeat(3_000));
    let (page, written) = scene.written(&Report::new().limit_text_bytes(1_000));
    assert_eq!(written.texts_cut, 2, "the message and the output");
    assert!(page.contains("\"bytes\":3000") && !page.contains(&"x".repeat(1_001)));
}

#[test]
fn a_job_that_is_not_there_and_an_output_that_fails_are_told_apart() {
    let scene = Scene::new();
    let nowhere = write(&scene.repository, &Report::new().job(JobId(4_711)), &mut Vec::new());
    assert!(matches!(nowhere, Err(ReportError::Archive(RepositoryError::UnknownJob(_)))));
    let full = write(&scene.repository, &Report::new(), &mut io::Cursor::new(&mut [0_u8; 100][..]));
    let error = full.unwrap_err();
    assert!(matches!(error, ReportError::Output(_)));
    assert_eq!(error.to_string(), "the report could not be written");
    assert!(error.source().is_some());
}

#[test]
fn only_the_units_of_the_job_are_in_its_report() {
    let scene = Scene::new();
    scene.completed("a", "done");
    let other = scene.repository.create_job(&NewJob::named("other")).unwrap().id;
    scene.repository.queue_unit(other, &NewUnit::new("b").prompt("Later.")).unwrap();
    assert_eq!(scene.written(&Report::new()).1.units, 2);
    let (page, written) = scene.written(&Report::new().job(other));
    assert_eq!((written.units, rows(&page)[0]["id"].as_str()), (1, Some("b")));
    assert_eq!(overview(&page)["jobs"].as_array().map(Vec::len), Some(1));
}

#[test]
fn no_data_ends_its_element() {
    let scene = Scene::new();
    for (number, text) in ["</script><script>alert(1)</script>", "<!--<script>", "\u{2028}"].into_iter().enumerate() {
        scene.completed(&format!("u{number}"), text);
    }
    let (page, _) = scene.written(&Report::new().title("</script><b>"));
    let (with, without) = (page.matches("<script").count(), page.matches("</script>").count());
    // The overview, the contents, the rows, what was written, and the script.
    assert_eq!((with, without, page.matches("<!--").count()), (5, 5, 0));
    assert!(!page.contains("alert(1)</"));
}
