//! Each thing that can be wrong, made so, and found; and nothing else with it.

use std::time::Duration;

use chrono::TimeDelta;

use super::*;
use crate::attempt::{AttemptReport, Failure, FailureKind, Next};
use crate::clock::ManualClock;
use crate::job::{JobId, NewJob};
use crate::lease::{Backpressure, Lease, NewOwner, OwnerHold, OwnerId, OwnerLevel, OwnerState};
use crate::limits::NewHold;
use crate::process::Process;
use crate::repository::memory::MemoryRepository;
use crate::repository::{By, ClaimRequest, Claimant, Repository, Scope, Slot};
use crate::unit::NewUnit;
use crate::worker::{WorkerChange, WorkerId};

const HOUR: Duration = Duration::from_secs(3_600);

/// A job, and a process that pulls its units.
struct Ward {
    clock: ManualClock,
    repository: MemoryRepository,
    job: JobId,
    owner: OwnerId,
}

impl Ward {
    fn new() -> Ward {
        let clock = ManualClock::new();
        let repository = MemoryRepository::with_clock(clock.clone());
        let job = repository.create_job(&NewJob::named("pages")).unwrap().id;
        let process = Process::this(&clock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "crew").lease(HOUR * 999)).unwrap();
        let ward = Ward { clock, repository, job, owner };
        ward.tell(|_| {});
        ward
    }

    fn tell(&self, change: impl Fn(&mut OwnerState)) {
        let mut state = OwnerState { job_id: Some(self.job), is_pulling: true, ..OwnerState::default() };
        (state.workers, state.target_workers, state.max_queue_size, state.max_abandoned) = (4, 4, 1_000, 4);
        change(&mut state);
        self.repository.tell(self.owner, &state).unwrap();
    }

    fn queue(&self, id: &str) {
        self.repository.queue_unit(self.job, &NewUnit::new(id).prompt("go").max_retries(99)).unwrap();
    }

    fn claim(&self) -> Lease {
        let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
        let claimant = Claimant::new(self.owner, HOUR * 999);
        let mut claims = self.repository.claim(&ClaimRequest::new(self.job, claimant, Scope::Pending, slots)).unwrap();
        claims.pop().expect("a unit is due").lease
    }

    /// Executes the next unit and fails.
    fn fail(&self, next: Next) {
        let lease = self.claim();
        self.repository.start(&lease, &crate::attempt::Beginning::default()).unwrap();
        let failure = Failure::new(FailureKind::new("rate_limit"), "too many \u{1b}[31mrequests");
        self.repository.finish(&lease, &AttemptReport::failed(failure, next)).unwrap();
    }

    fn examined(&self) -> Diagnosis {
        Doctor::new().clock(self.clock.clone()).run(&self.repository).unwrap()
    }

    /// The only finding.
    fn finding(&self) -> Symptom {
        only(self.examined())
    }
}

fn only(diagnosis: Diagnosis) -> Symptom {
    assert_eq!(diagnosis.findings.len(), 1, "{diagnosis}");
    diagnosis.findings.into_iter().next().unwrap()
}

#[test]
fn nothing_is_wrong_with_a_crew_at_work() {
    let ward = Ward::new();
    ward.queue("a");
    ward.queue("b");
    ward.claim();
    let diagnosis = ward.examined();
    assert_eq!(diagnosis.findings, []);
    assert!(diagnosis.is_well());
    assert_eq!((diagnosis.leases, diagnosis.stale_leases, diagnosis.journal_rows), (1, 0, 3));
    assert_eq!((diagnosis.owners[0].standing, diagnosis.owners[0].leases), (Standing::Alive, 1));
    assert_eq!(diagnosis.jobs[0].oldest_pending.as_ref().unwrap().id.as_str(), "b");
    let text = diagnosis.to_string();
    assert!(text.contains("nothing is wrong") && text.contains("alive       `crew` (process"), "{text}");
    let json = serde_json::to_string(&diagnosis).unwrap();
    assert_eq!(serde_json::from_str::<Diagnosis>(&json).unwrap(), diagnosis);
}

#[test]
fn holds_and_pauses_are_told_with_their_reasons_and_what_ends_them() {
    let ward = Ward::new();
    ward.tell(|state| state.holds = vec![OwnerHold::new("the key \nis wrong", None)]);
    let held = ward.finding();
    assert_eq!((held.urgency, held.concern), (Urgency::Now, Concern::Held));
    assert!(held.what.ends_with(r"starts nothing: the key \nis wrong"), "{held}");
    assert!(held.advice.contains("`workcrew resume`"));

    let until = ward.clock.now().wall + TimeDelta::hours(1);
    ward.tell(|state| state.holds = vec![OwnerHold::new("quota", Some(until))]);
    assert!(ward.examined().is_well(), "that goes away by itself");
    assert!(ward.finding().what.contains("until 2026-01-01 01:00:00 UTC: quota"), "{}", ward.finding());

    ward.tell(|state| state.is_paused = true);
    assert_eq!((ward.finding().urgency, ward.finding().concern), (Urgency::Soon, Concern::Paused));
}

#[test]
fn a_provider_that_is_not_asked_is_told_with_the_time_when_it_is() {
    let ward = Ward::new();
    ward.repository.hold(&NewHold::new("a \u{1b}[2J model", Duration::from_secs(3_600), "closed\nat night")).unwrap();
    let diagnosis = ward.examined();
    let held = diagnosis.findings.iter().find(|finding| finding.concern == Concern::Held).expect("it is told");
    assert_eq!(held.urgency, Urgency::Note, "it goes on by itself");
    assert!(held.what.ends_with(r"is not asked until 2026-01-01 01:00:00 UTC: closed\nat night"), "{held}");
    assert!(!held.what.contains('\u{1b}'), "{held}");
    assert_eq!(diagnosis.providers.len(), 1);
    ward.clock.advance(Duration::from_secs(3_600));
    assert_eq!(ward.examined().providers, []);
}

#[test]
fn what_a_process_suffers_from_is_found() {
    let ward = Ward::new();
    let finding = |change: fn(&mut OwnerState)| {
        ward.tell(change);
        (ward.finding().urgency, ward.finding().concern)
    };
    assert_eq!(finding(|state| state.abandoned_threads = 1), (Urgency::Soon, Concern::AbandonedThreads));
    assert_eq!(finding(|state| state.abandoned_threads = 4), (Urgency::Now, Concern::AbandonedThreads));
    assert_eq!(finding(|state| state.queue_size = 1_000), (Urgency::Note, Concern::QueueFull));
    let fewer = finding(|state| {
        let at = DateTime::from_timestamp(1_767_225_600, 0);
        (state.level, state.max_workers) = (Some(OwnerLevel::new(6, at)), 16);
    });
    assert_eq!(fewer, (Urgency::Note, Concern::FewerWorkers));
    let told = "may have 6 of 16 workers since its provider asked for fewer at 2026-01-01 00:00:00 UTC";
    assert!(ward.finding().what.ends_with(told) && ward.examined().is_well(), "{}", ward.finding());
    for level in [OwnerLevel::new(16, DateTime::from_timestamp(1_767_225_600, 0)), OwnerLevel::new(6, None)] {
        ward.tell(|state| (state.level, state.max_workers) = (Some(level), 16));
        assert_eq!(ward.examined().findings, [], "it has all again, or nobody asked for fewer");
    }
    let missing = finding(|state| (state.workers, state.last_start_failure) = (1, Some("no such program".to_owned())));
    assert_eq!(missing, (Urgency::Soon, Concern::WorkersMissing));
    let slow = finding(|state| {
        let writing = Backpressure { changes: 1, bytes: 80, limit_bytes: 100, ..Backpressure::default() };
        state.writing = Some(writing);
    });
    assert_eq!(slow, (Urgency::Soon, Concern::WritingSlow));
    ward.tell(|_| {});
    let slot = Slot::new(WorkerId::new("w9").unwrap());
    for change in [WorkerChange::Start, WorkerChange::Die] {
        ward.repository.change_worker(ward.owner, ward.job, &slot, change).unwrap();
    }
    assert_eq!(ward.finding().concern, Concern::WorkersBroken);
    ward.clock.advance(2 * HOUR);
    assert_eq!(ward.examined().findings, [], "that was long ago");
}

#[test]
fn units_that_nobody_can_or_will_execute_are_found() {
    let ward = Ward::new();
    ward.queue("a");
    ward.repository.queue_unit(ward.job, &NewUnit::new("empty")).unwrap();
    let missing = ward.finding();
    assert_eq!(missing.concern, Concern::PromptMissing);
    assert!(missing.what.contains("1 unit without a prompt (`empty`)"), "{missing}");
    ward.repository.cancel(ward.job, "empty", &By::whom("ada")).unwrap();

    ward.tell(|state| state.is_pulling = false);
    assert_eq!(ward.examined().findings, [], "it may only not have said so yet");
    ward.clock.advance(HOUR);
    let unpulled = ward.finding();
    assert_eq!((unpulled.urgency, unpulled.concern), (Urgency::Soon, Concern::NobodyPulls));

    ward.repository.end_owner(ward.owner).unwrap();
    let nobody = ward.finding();
    assert_eq!((nobody.urgency, nobody.concern), (Urgency::Now, Concern::NobodyWorks));
    assert!(nobody.what.contains("1 unit waiting (`a`) for up to 60 min"), "{nobody}");
    assert!(nobody.advice.contains("`workcrew worker`"));
    // What is not to begin yet waits for nobody.
    ward.repository.cancel(ward.job, "a", &By::whom("ada")).unwrap();
    let later = ward.clock.now().wall + TimeDelta::days(1);
    ward.repository.queue_unit(ward.job, &NewUnit::new("later").prompt("go").not_before(later)).unwrap();
    assert_eq!(ward.examined().findings, []);
}

#[test]
fn a_unit_that_was_to_be_cancelled_and_still_runs_is_found_with_who_wanted_it() {
    let ward = Ward::new();
    ward.queue("a");
    ward.claim();
    ward.repository.cancel(ward.job, "a", &By::new("ada", "no longer wanted")).unwrap();
    assert_eq!(ward.examined().findings, [], "it was only just asked");
    ward.clock.advance(Duration::from_secs(600));
    let unheard = ward.finding();
    assert_eq!(unheard.concern, Concern::CancelUnheard);
    assert!(
        unheard.what.starts_with("unit `a` was to be cancelled 10 min ago by `ada` and still runs in `crew`"),
        "{unheard}"
    );
    assert_eq!(unheard.advice, format!("if it does not end: `kill {}`", std::process::id()));
}

#[test]
fn units_that_are_tried_again_and_again_are_found_and_many_such_are_a_storm() {
    let ward = Ward::new();
    ward.queue("a");
    for _ in 0..5 {
        ward.fail(Next::Retry { after: Duration::ZERO });
    }
    let tried = ward.finding();
    assert_eq!(tried.concern, Concern::TriedAgain);
    assert!(tried.what.starts_with("unit `a` is at attempt 5, of which 5 count against its 99 retries"), "{tried}");
    for _ in 0..15 {
        ward.fail(Next::Retry { after: Duration::ZERO });
    }
    let storm = ward.examined().findings.remove(0);
    assert_eq!((storm.urgency, storm.concern), (Urgency::Now, Concern::RetryStorm));
    assert!(storm.what.contains("20 attempts ended badly within 15 min, 0 well; most with rate_limit"), "{storm}");
    ward.clock.advance(HOUR);
    assert_eq!(ward.finding().concern, Concern::TriedAgain, "the storm is over");
}

#[test]
fn what_failed_is_grouped_by_its_kind_with_how_to_bring_it_back() {
    let ward = Ward::new();
    for id in ["a", "b", "c", "d"] {
        ward.queue(id);
        ward.fail(Next::GiveUp);
    }
    let failed = ward.finding();
    assert_eq!((failed.urgency, failed.concern), (Urgency::Note, Concern::Failed));
    let expected = r"job `pages`: 4 units FAILED with rate_limit (`a`, `b`, `c`, …): too many \u{1b}[31mrequests";
    assert_eq!(failed.what, expected);
    assert_eq!(failed.advice, "once that is mended: `workcrew requeue --error rate_limit`, for job `pages`");
}

#[test]
fn a_lease_that_nobody_looks_after_is_found() {
    let ward = Ward::new();
    ward.queue("a");
    let gone = Process { start_ticks: 1, ..Process::this(&ward.clock.boot_id()) };
    let gone = ward.repository.register_owner(&NewOwner::new(gone, "gone")).unwrap();
    let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
    let request = ClaimRequest::new(ward.job, Claimant::new(gone, HOUR), Scope::Pending, slots);
    assert_eq!(ward.repository.claim(&request).unwrap().len(), 1);
    let diagnosis = ward.examined();
    let found: Vec<_> = diagnosis.findings.iter().map(|finding| (finding.urgency, finding.concern)).collect();
    assert_eq!(found, [(Urgency::Now, Concern::Died), (Urgency::Note, Concern::StaleLeases)]);
    assert_eq!((diagnosis.stale_leases, diagnosis.owners[1].standing), (1, Standing::Died));
    ward.repository.end_owner(ward.owner).unwrap();
    let findings = ward.examined().findings;
    assert_eq!(
        (findings[1].urgency, findings[1].concern),
        (Urgency::Now, Concern::StaleLeases),
        "nobody takes it back"
    );
}

#[test]
fn a_process_of_another_boot_or_namespace_is_told_as_such() {
    let ward = Ward::new();
    let this = Process::this(&ward.clock.boot_id());
    let places = [Process { boot_id: "another".to_owned(), ..this.clone() }, Process { pid_namespace: 1, ..this }];
    for process in places {
        ward.repository.register_owner(&NewOwner::new(process, "elsewhere").lease(HOUR)).unwrap();
    }
    let standings = |ward: &Ward| ward.examined().owners.iter().map(|fact| fact.standing).collect::<Vec<_>>();
    assert_eq!(standings(&ward), [Standing::Alive, Standing::OtherBoot, Standing::Heard]);
    ward.clock.advance(2 * HOUR);
    assert_eq!(standings(&ward), [Standing::Alive, Standing::OtherBoot, Standing::Silent]);
    assert!(ward.examined().findings.iter().any(|finding| finding.concern == Concern::Silent));
}

#[test]
fn times_in_the_future_are_found() {
    let ward = Ward::new();
    ward.clock.jump_wall(TimeDelta::hours(-3));
    let clock = ward.finding();
    assert_eq!(clock.concern, Concern::Clock);
    assert!(clock.what.contains("3 h in the future"), "{clock}");
}

fn sound() -> Health {
    Health {
        path: "/srv/batch.db".into(),
        database_bytes: 1 << 30,
        log_limit_bytes: 64 << 20,
        pages: 1 << 16,
        page_bytes: 1 << 14,
        disk_free_bytes: 1 << 40,
        disk_bytes: 1 << 41,
        mode: 0o600,
        schema_version: 2,
        current_schema_version: 2,
        sqlite_version: "3".to_owned(),
        journal_mode: "wal".to_owned(),
        ..Health::default()
    }
}

#[test]
fn what_is_wrong_with_a_file_is_found() {
    let ward = Ward::new();
    let examined =
        |health: Health| Doctor::new().clock(ward.clock.clone()).health(health).run(&ward.repository).unwrap();
    assert_eq!(examined(sound()).findings, []);
    let cases = [
        (Health { disk_free_bytes: 1, ..sound() }, Urgency::Now, Concern::Disk),
        (Health { disk_free_bytes: 1 << 29, ..sound() }, Urgency::Soon, Concern::Disk),
        (Health { log_bytes: 256 << 20, ..sound() }, Urgency::Soon, Concern::LogLarge),
        (Health { mode: 0o640, ..sound() }, Urgency::Soon, Concern::Permissions),
        (Health { free_pages: 60_000, ..sound() }, Urgency::Note, Concern::FreePages),
        (Health { schema_version: 1, ..sound() }, Urgency::Note, Concern::Format),
        (Health { journal_mode: "delete".to_owned(), ..sound() }, Urgency::Note, Concern::Format),
    ];
    for (health, urgency, concern) in cases {
        let finding = only(examined(health));
        assert_eq!((finding.urgency, finding.concern), (urgency, concern));
    }
    // A log that would not fit once more.
    let full = Health { disk_free_bytes: 2 << 30, log_bytes: 3 << 30, ..sound() };
    assert_eq!((examined(full).findings[0].urgency, examined(sound()).findings.len()), (Urgency::Now, 0));
}

#[test]
fn a_disk_that_will_be_full_tomorrow_is_found_today() {
    let ward = Ward::new();
    ward.queue("a");
    ward.clock.advance(2 * HOUR);
    ward.claim();
    let doctor =
        |free: u64| Doctor::new().clock(ward.clock.clone()).health(Health { disk_free_bytes: free, ..sound() });
    // A GiB in two hours.
    assert_eq!(doctor(13 << 30).run(&ward.repository).unwrap().findings, []);
    let finding = only(doctor(11 << 30).run(&ward.repository).unwrap());
    assert!(finding.what.contains("which at its growth lasts 22 h"), "{finding}");
}

#[test]
fn the_most_urgent_comes_first_and_a_terminal_obeys_nothing() {
    let ward = Ward::new();
    let nasty = "x\u{1b}]0;owned\u{7}\r\n\u{202e}";
    ward.repository.create_job(&NewJob::named("a job")).unwrap();
    ward.queue("a");
    ward.fail(Next::GiveUp);
    let owner = NewOwner::new(Process { start_ticks: 1, ..Process::this(&ward.clock.boot_id()) }, nasty);
    ward.repository.register_owner(&owner).unwrap();
    ward.tell(|state| {
        state.holds = vec![OwnerHold::new(nasty, None)];
        state.is_paused = true;
    });
    let health = Health { path: format!("/srv/{nasty}.db").into(), mode: 0o644, ..sound() };
    let diagnosis = Doctor::new().clock(ward.clock.clone()).health(health).run(&ward.repository).unwrap();
    let found: Vec<_> = diagnosis.findings.iter().map(|finding| finding.concern).collect();
    assert_eq!(found, [Concern::Held, Concern::Paused, Concern::Permissions, Concern::Died, Concern::Failed]);
    let text = diagnosis.to_string();
    assert!(!text.chars().any(|char| (char.is_control() && char != '\n') || char == '\u{202e}'), "{text:?}");
}
