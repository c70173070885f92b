//! What an auditor asks of a finished batch: lists, costs, failures, transcripts.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use serde_json::json;
use workcrew::audit::cost::{CostBy, cost};
use workcrew::audit::failures::failures;
use workcrew::audit::list::{List, Sort, list};
use workcrew::audit::questions::{FindError, find};
use workcrew::audit::report::{self, Report};
use workcrew::audit::transcript::{self, Detail};
use workcrew::clock::ManualClock;
use workcrew::repository::{By, ClaimRequest, Claimant, Scope, Slot, UnitFilter};
use workcrew::{
    Archive, AttemptReport, Beginning, Call, Charge, ExecuteError, Failure, FailureKind, MemoryRepository, Message,
    Money, NewJob, NewUnit, Next, Part, Repository, RetryPolicy, Role, SqliteRepository, Stop, Tokens, UnitStatus,
    WorkPool, WorkResult, WorkerId,
};

use crate::support::{self, folder};

const SECRET: &str = "\u{1b}]0;pwned\u{7}\u{202e}";

/// A batch with every kind of end: `good` at once, `second` at its second attempt, `bad` never, `local` without a price, `silent` without a
/// bill, `unwanted` cancelled, `waits` never begun; and a second job with another `good`.
fn batch(repository: Arc<dyn Repository>) {
    let execute = |call: &Call<'_>| {
        let tokens = Tokens { input: 10, output: 5, ..Tokens::default() };
        let charge = |model: &str, nanos| Charge::reported(model, tokens, Money::from_nanos(nanos));
        let id = call.unit().id.as_str();
        match id {
            "local" => call.usage(Charge::unpriced("llama", tokens)),
            "silent" => {}
            "second" => {
                call.usage(charge("small", 1_000_000));
                call.usage(charge("large", 3_000_000));
            }
            _ => call.usage(charge("large", 2_000_000)),
        }
        call.message(Message::user(call.prompt()));
        let tool = Part::tool_use("t1", "bash", json!({ "command": "ls" }));
        call.message(Message::assistant("I look.").part(tool));
        call.message(Message::new(Role::Tool).part(Part::tool_result("t1", "one\ntwo\nthree\nfour\nfive\nsix")));
        match (id, call.attempt_number()) {
            ("second", 1) => Err(ExecuteError::retry(format!("request 17 of {SECRET} failed")).kind("overloaded")),
            ("bad", number) => Err(ExecuteError::give_up(format!("exit code {number}")).kind("broken")),
            _ => Ok(WorkResult::text(format!("done with {id}"))),
        }
    };
    let job = repository.create_job(&NewJob::named("main")).unwrap().id;
    repository.queue_unit(job, &NewUnit::new("waits").unit_type("odd")).unwrap();
    let retry = RetryPolicy::immediate();
    let pool = WorkPool::builder(job, execute, Arc::clone(&repository)).max_workers(1).retry(retry).start().unwrap();
    for id in ["good", "second", "bad", "local", "silent"] {
        pool.enqueue(NewUnit::new(id), format!("Do {id}.")).unwrap().wait().unwrap();
    }
    pool.stop(Stop::Drain).unwrap();
    repository.queue_unit(job, &NewUnit::new("unwanted").prompt("no")).unwrap();
    repository.cancel(job, "unwanted", &By::new("ada", "not needed")).unwrap();
    let other = repository.create_job(&NewJob::named("other")).unwrap().id;
    repository.queue_unit(other, &NewUnit::new("good").prompt("Do it.")).unwrap();
}

fn on_both(check: impl Fn(&dyn Archive)) {
    let memory = MemoryRepository::new();
    batch(Arc::new(memory.clone()));
    check(&memory);
    let place = folder();
    let sqlite = SqliteRepository::open(place.path().join("batch.db")).unwrap();
    batch(Arc::new(sqlite.clone()));
    check(&sqlite);
}

#[test]
fn units_are_listed_in_every_order_and_by_every_filter() {
    on_both(|archive| {
        let ids = |change: &dyn Fn(&mut List)| {
            let mut wanted = List::default();
            change(&mut wanted);
            let listed = list(archive, &wanted).unwrap();
            (listed.units.iter().map(|unit| unit.id.to_string()).collect::<Vec<_>>().join(" "), listed.has_more)
        };
        let all = |sort: Sort| ids(&|wanted| wanted.sort = sort).0;
        assert_eq!(all(Sort::Inserted), "waits good second bad local silent unwanted good");
        assert_eq!(all(Sort::Id), "bad good good local second silent unwanted waits");
        assert_eq!(all(Sort::Cost), "second good bad waits local silent unwanted good", "what nobody knows comes last");
        assert_eq!(all(Sort::Attempts), "second good bad local silent waits unwanted good");
        let mut by_end = List::default();
        by_end.sort = Sort::Ended;
        let ends: Vec<_> = list(archive, &by_end).unwrap().units.iter().map(|unit| unit.completed_at).collect();
        assert!(ends.is_sorted_by(|one, next| one >= next), "{ends:?}");
        assert!(all(Sort::Ended).ends_with("waits good"), "what has not ended comes last");
        let turned = ids(&|wanted| (wanted.sort, wanted.is_reversed) = (Sort::Cost, true)).0;
        assert_eq!(turned, "good bad second waits local silent unwanted good", "what nobody knows still does");
        let pages = |sort, offset| ids(&move |wanted| (wanted.sort, wanted.offset, wanted.limit) = (sort, offset, 3));
        assert_eq!(pages(Sort::Inserted, 0), ("waits good second".to_owned(), true));
        assert_eq!(pages(Sort::Inserted, 6), ("unwanted good".to_owned(), false));
        assert_eq!(pages(Sort::Id, 3), ("local second silent".to_owned(), true));
        assert_eq!(pages(Sort::Id, 5), ("silent unwanted waits".to_owned(), false));
        assert_eq!(pages(Sort::Id, 99), (String::new(), false));
        assert_eq!(ids(&|wanted| wanted.id_contains = Some("oo".to_owned())).0, "good good");
        assert_eq!(ids(&|wanted| wanted.model = Some("small".to_owned())).0, "second");
        assert_eq!(ids(&|wanted| wanted.worker = Some("nobody".to_owned())).0, "");
        assert_eq!(ids(&|wanted| wanted.filter.statuses = vec![UnitStatus::Cancelled]).0, "unwanted");
        let now = chrono::Utc::now();
        assert_eq!(ids(&|wanted| wanted.since = Some(now + Duration::from_secs(60))).0, "");
        assert_eq!(ids(&|wanted| wanted.until = Some(now + Duration::from_secs(60))).0.split(' ').count(), 8);
    });
}

#[test]
fn a_unit_took_as_long_as_all_its_attempts_for_whoever_asks() {
    let clock = ManualClock::new();
    let repository = MemoryRepository::with_clock(clock.clone());
    let job = repository.create_job(&NewJob::named("pages")).unwrap().id;
    let owner = support::owner(&repository, "crew");
    let execute = |id: &str, spans: &[u64]| {
        repository.queue_unit(job, &NewUnit::new(id).prompt("Go.")).unwrap();
        for (number, &seconds) in (1..).zip(spans) {
            let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
            let claimant = Claimant::new(owner, Duration::from_secs(3_600));
            let claim =
                repository.claim(&ClaimRequest::new(job, claimant, Scope::Pending, slots)).unwrap().pop().unwrap();
            repository.start(&claim.lease, &Beginning::default()).unwrap();
            clock.advance(Duration::from_secs(seconds));
            let again = Failure::new(FailureKind::EXECUTOR, "again");
            let report = match number == spans.len() {
                true => AttemptReport::completed(),
                false => AttemptReport::failed(again, Next::Retry { after: Duration::ZERO }),
            };
            repository.finish(&claim.lease, &report).unwrap();
        }
    };
    execute("once", &[5]);
    execute("twice", &[4, 2]);
    let mut wanted = List::default();
    wanted.sort = Sort::Duration;
    let listed = list(&repository, &wanted).unwrap().units;
    let took: Vec<_> = listed.iter().map(|unit| (unit.id.as_str(), unit.duration(Utc::now()))).collect();
    assert_eq!(took, [("twice", Some(Duration::from_secs(6))), ("once", Some(Duration::from_secs(5)))]);
    let mut page = Vec::new();
    report::write(&repository, &Report::new(), &mut page).unwrap();
    let page = String::from_utf8(page).unwrap();
    assert!(page.contains("\"executed_ms\":6000") && page.contains("\"executed_ms\":5000"));
}

#[test]
fn costs_hold_failed_attempts_and_name_what_nobody_knows() {
    on_both(|archive| {
        let grouped = |by| {
            let bill = cost(archive, &UnitFilter::default(), by).unwrap();
            let group = |group: &workcrew::audit::cost::CostGroup| {
                format!(
                    "{}: {} {} vain {} unbilled {}",
                    group.name, group.attempts, group.cost, group.in_vain, group.unbilled
                )
            };
            (bill.groups.iter().map(group).collect::<Vec<_>>(), bill)
        };
        let (jobs, bill) = grouped(CostBy::Job);
        assert_eq!(jobs, ["main: 6 $0.012 and 2 unpriced vain $0.006 unbilled 1"]);
        assert_eq!(bill.unpriced_models, ["llama"]);
        assert_eq!(bill.total.tokens.total(), 15 * 7);
        let (models, _) = grouped(CostBy::Model);
        let expected = [
            "(no bill): 1 unknown vain $0.00 unbilled 1",
            "large: 4 $0.01 vain $0.005 unbilled 0",
            "llama: 1 unknown vain $0.00 unbilled 0",
            "small: 2 $0.002 vain $0.001 unbilled 0",
        ];
        assert_eq!(models, expected);
        let (statuses, _) = grouped(CostBy::Status);
        let completed = "COMPLETED: 5 $0.01 and 2 unpriced vain $0.004 unbilled 1";
        assert_eq!(statuses, [completed, "FAILED: 1 $0.002 vain $0.002 unbilled 0"]);
        let (days, _) = grouped(CostBy::Day);
        assert!((1..=2).contains(&days.len()), "{days:?}");
        let other = archive.job_named("other").unwrap().unwrap().id;
        assert_eq!(cost(archive, &UnitFilter::job(other), CostBy::Job).unwrap().groups, []);
    });
}

#[test]
fn failures_that_look_alike_are_one_group_and_harmless() {
    on_both(|archive| {
        let groups = failures(archive, &UnitFilter::default()).unwrap();
        let told: Vec<_> = groups
            .iter()
            .map(|group| {
                (group.kind.as_str(), group.shape.as_str(), group.units, group.attempts, group.examples[0].as_str())
            })
            .collect();
        let shape = "request … of \\u{1b}]…;pwned\\u{7}\\u{202e} failed";
        assert_eq!(told, [("broken", "exit code …", 1, 1, "bad"), ("overloaded", shape, 0, 1, "second")]);
        assert_eq!((groups[0].latest.as_str(), groups[0].cost.to_string()), ("exit code 1", "$0.002".to_owned()));
    });
}

#[test]
fn a_transcript_tells_every_attempt_folds_tools_and_obeys_nothing() {
    on_both(|archive| {
        let unit = find(archive, None, "second").unwrap();
        let written = |detail| {
            let mut out = Vec::new();
            transcript::write(archive, &unit, detail, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let folded = written(Detail::default());
        for part in [
            "unit second of job main\n  status    COMPLETED\n  cost      $0.008, 60 tokens\n",
            "attempt 1 on w1: FAILED after",
            "  failure   overloaded: request 17 of \\u{1b}]0;pwned\\u{7}\\u{202e} failed\n",
            "attempt 2 on w1: COMPLETED after",
            "  user      Do second.\n  assistant I look.\n  → tool    bash {\"command\":\"ls\"}\n  ← result  bash: one\n            two\n            three\n            … 3 more lines\n",
            "\noutput\n            done with second\n",
        ] {
            assert!(folded.contains(part), "{part:?} is missing in\n{folded}");
        }
        assert!(!folded.contains("  prompt "), "it was said");
        assert!(written(Detail::ALL).contains("            six\n"));
        assert!(folded.chars().all(|sign| sign == '\n' || !sign.is_control()));

        let mut out = Vec::new();
        transcript::write(archive, &find(archive, None, "unwanted").unwrap(), Detail::default(), &mut out).unwrap();
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains(" by ada: not needed\n"), "{told}");
    });
}

#[test]
fn a_unit_is_found_by_its_name_unless_several_have_it() {
    on_both(|archive| {
        assert_eq!(find(archive, Some("other"), "good").unwrap().status, UnitStatus::Pending);
        let several = find(archive, None, "good").unwrap_err();
        assert_eq!(several.to_string(), "there is a unit `good` in several jobs: main, other");
        assert!(matches!(find(archive, Some("third"), "good"), Err(FindError::NoJob(_))));
        assert!(matches!(find(archive, Some("other"), "bad"), Err(FindError::NoUnit(_))));
    });
}
