//! Databases to be shown, made through the repository as pools make them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use workcrew::attempt::Provenance;
use workcrew::audit::report::{self, Report, Written};
use workcrew::repository::{Claimant, Slot, Submitted};
use workcrew::{
    AttemptReport, Charge, Failure, FailureKind, JobId, Lease, Message, Money, NewJob, NewUnit, Next, OwnerId, Part,
    Prompt, Repository, RetryPolicy, Role, Simulated, SqliteRepository, Stop, Tokens, WorkPool, WorkerId,
};

use crate::support::{self, Up};

/// A database of its own, and where its report goes.
pub(crate) struct Scene {
    pub(crate) repository: SqliteRepository,
    pub(crate) job: JobId,
    owner: OwnerId,
    folder: TempDir,
}

impl Scene {
    pub(crate) fn new(job: &str) -> Scene {
        let folder = support::folder();
        let repository = SqliteRepository::open(folder.path().join("report.db")).unwrap();
        let job = repository.create_job(&NewJob::named(job)).unwrap().id;
        let owner = support::owner(&repository, "report");
        Scene { repository, job, owner, folder }
    }

    /// A batch that a pool has worked on, of which a few failed.
    pub(crate) fn batch(units: usize) -> Scene {
        let scene = Scene::new("batch");
        let model = Simulated::new().seed(7).latency(Duration::ZERO, Duration::from_millis(3)).failures(0.2);
        let pool = WorkPool::builder(scene.job, model.give_ups(0.06), scene.repository.clone())
            .max_workers(4)
            .retry(RetryPolicy::fixed(Duration::from_millis(1)))
            .up();
        for number in 1..=units {
            let payload = json!({ "page": number });
            let unit = NewUnit::new(format!("page-{number:03}")).payload(payload).max_retries(2);
            pool.wait_for_available_slot();
            pool.submit_work_unit(unit, Prompt::from(format!("Summarise page {number} of the log."))).unwrap();
        }
        pool.wait_for_completion();
        pool.stop(Stop::Drain).unwrap();
        scene
    }

    /// A unit that is being executed by a worker.
    pub(crate) fn claim(&self, unit: &NewUnit, worker: &str) -> Lease {
        let slot = Slot::with_capacity(WorkerId::new(worker).unwrap(), 1_000);
        let provenance = Provenance::of("test").model("large").argument("--verbose").program_version("1.2");
        let claimant = Claimant::new(self.owner, Duration::from_secs(3_600)).starting(provenance);
        match self.repository.submit(self.job, unit, &claimant, &slot).unwrap() {
            Submitted::Claimed(claim) => claim.lease,
            other => panic!("{}: {other:?}", unit.id),
        }
    }

    /// Writes the report, and says where it is.
    pub(crate) fn write(&self, wanted: &Report) -> (PathBuf, Written) {
        let path = self.folder.path().join("report.html");
        let mut page = BufWriter::new(File::create(&path).unwrap());
        let written = report::write(&self.repository, wanted, &mut page).unwrap();
        page.flush().unwrap();
        (path, written)
    }
}

/// Tokens and what they cost, or not.
pub(crate) fn charge(model: &str, cents: Option<i64>) -> Charge {
    let tokens = Tokens { input: 1_000, output: 200, ..Tokens::default() };
    match cents {
        Some(cents) => Charge::reported(model, tokens, Money::from_nanos(cents * 10_000_000)),
        None => Charge::unpriced(model, tokens),
    }
}

pub(crate) fn failed(kind: &'static str, message: &str, next: Next) -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::new(kind), message), next)
}

pub(crate) fn again() -> Next {
    Next::Retry { after: Duration::ZERO }
}

/// One unit that was tried twice, with tools, thoughts and a message that was cut off; and one of each other fate.
pub(crate) fn story() -> Scene {
    let scene = Scene::new("stories");
    let repository = &scene.repository;
    let unit =
        NewUnit::new("tried/twice").prompt("What is in the notes?").unit_type("question").payload(json!({ "n": 1 }));

    let lease = scene.claim(&unit, "w1");
    repository.append(&lease, 0, &[Message::user("What is in the notes?")]).unwrap();
    repository.partial(&lease, "The notes begin with").unwrap();
    let report = failed("overloaded", "the provider is overloaded", again()).charge(charge("large", Some(2)));
    repository.finish(&lease, &report).unwrap();

    let lease = scene.claim(&unit, "w2");
    let calls = Message::new(Role::Assistant)
        .part(Part::thinking("I had better look."))
        .part(Part::text("Let me look."))
        .part(Part::tool_use("t1", "read_file", json!({ "path": "notes/a.md" })))
        .part(Part::tool_use("t2", "run_command", json!({ "command": ["ls", "-l"] })));
    let image = Part::Image { media_type: "image/png".into(), source: "https://example.org/x.png".into() };
    let said = [
        Message::new(Role::System).part(Part::text("You are careful.")),
        Message::user("What is in the notes?"),
        calls,
        Message::new(Role::Tool).part(Part::tool_result("t1", "# Notes\nalpha")),
        Message::new(Role::Tool).part(Part::tool_error("t2", "exit status 1")),
        Message::new(Role::User).part(image),
        Message::assistant("The notes say alpha."),
    ];
    repository.append(&lease, 0, &said).unwrap();
    let report = AttemptReport::completed().output("The notes say alpha.").result(json!({ "answer": "alpha" }));
    repository.finish(&lease, &report.session("session-9").charge(charge("large", Some(5)))).unwrap();

    let lease = scene.claim(&NewUnit::new("given-up").prompt("Do the impossible."), "w1");
    repository.append(&lease, 0, &[Message::assistant("I cannot.")]).unwrap();
    repository
        .finish(&lease, &failed("refused", "the model refuses", Next::GiveUp).charge(charge("small", None)))
        .unwrap();

    let lease = scene.claim(&NewUnit::new("running").prompt("Take your time."), "w3");
    repository.partial(&lease, "So far I have").unwrap();
    repository.flush(&lease).unwrap();
    repository.queue_unit(scene.job, &NewUnit::new("waiting").prompt("Later.")).unwrap();
    scene
}
