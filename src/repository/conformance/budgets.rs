//! Budgets: what is reserved, spent and left, and what does not begin for it.

use super::scene::{Scene, TTL, give_up, ids, retry, work};
use crate::attempt::{AttemptReport, Outcome, Progress};
use crate::job::{JobChange, JobId, NewJob};
use crate::lease::{Claim, NewOwner, OwnerId};
use crate::limits::{Account, AccountHolder, Estimate, Expectation};
use crate::money::{Charge, Money, Price, Tokens};
use crate::repository::{By, ClaimRequest, Claimant, RepositoryError, Result, Scope, Submitted};
use crate::unit::{NewUnit, UnitStatus};
use crate::worker::WorkerChange;

cases![
    without_a_budget_nothing_is_expected_and_there_is_no_account,
    a_claim_reserves_and_an_end_spends_instead,
    a_claim_stops_before_the_first_unit_that_may_cost_too_much,
    a_claim_for_which_nothing_is_left_is_refused_and_changes_nothing,
    what_is_submitted_beyond_the_budget_waits_for_its_pool,
    a_guess_never_bars_the_way_and_what_was_learnt_takes_its_place,
    the_length_of_the_prompt_counts_where_its_price_is_known,
    every_way_out_of_an_attempt_frees_what_was_reserved,
    what_is_lost_is_charged_as_expected_and_marked,
    a_lost_attempt_that_told_more_is_charged_that,
    what_a_lost_attempt_tells_later_takes_the_place_of_the_guess,
    what_has_no_price_counts_as_expected,
    a_raised_budget_goes_on_and_a_lowered_one_stops,
    a_budget_that_comes_later_knows_what_was_spent_before,
    an_owner_has_a_budget_of_its_own_over_all_jobs,
    retries_of_one_unit_are_all_paid_for,
];

fn dollars(text: &str) -> Money {
    text.parse().expect("the suite's amounts are amounts")
}

fn job(scene: &Scene<'_>, name: &str, budget: &str) -> JobId {
    let new = NewJob::named(name).budget(dollars(budget));
    scene.repository.create_job(&new).expect("a new name").id
}

fn units(scene: &Scene<'_>, job: JobId, ids: &[&str]) {
    let units: Vec<NewUnit> = ids.iter().map(|id| work(id)).collect();
    scene.repository.queue_units(job, &units).expect("new units");
}

/// Expects so much of an attempt while nothing is known.
fn claimant(owner: OwnerId, otherwise: &str) -> Claimant {
    Claimant::new(owner, TTL).expecting(Expectation::default().otherwise(dollars(otherwise)))
}

fn claim(scene: &Scene<'_>, job: JobId, claimant: &Claimant, count: usize) -> Result<Vec<Claim>> {
    let claimant = Claimant { token: Claimant::new(claimant.owner, TTL).token, ..claimant.clone() };
    scene.repository.claim(&ClaimRequest::new(job, claimant, Scope::Pending, scene.slots(count)))
}

fn one(scene: &Scene<'_>, job: JobId, otherwise: &str) -> Claim {
    let claims = claim(scene, job, &claimant(scene.owner, otherwise), 1).expect("enough is left");
    claims.into_iter().next().expect("a unit waits")
}

fn cost(amount: &str) -> Charge {
    Charge::reported("large", Tokens::default(), dollars(amount))
}

fn completed(amount: &str) -> AttemptReport {
    AttemptReport::completed().charge(cost(amount))
}

fn end(scene: &Scene<'_>, claim: &Claim, report: &AttemptReport) {
    scene.start(&claim.lease);
    scene.finish(&claim.lease, report);
}

fn account(scene: &Scene<'_>, job: JobId) -> Account {
    account_of(scene, AccountHolder::Job(job)).expect("a job with a budget has an account")
}

fn account_of(scene: &Scene<'_>, holder: AccountHolder) -> Option<Account> {
    scene.repository.account(holder).expect("an account can be read")
}

fn assert_account(scene: &Scene<'_>, job: JobId, spent: &str, reserved: &str) {
    let account = account(scene, job);
    assert_eq!((account.spent, account.reserved), (dollars(spent), dollars(reserved)), "{account:?}");
}

fn status(scene: &Scene<'_>, job: JobId, id: &str) -> UnitStatus {
    scene.repository.unit(job, id).expect("the unit exists").status
}

fn without_a_budget_nothing_is_expected_and_there_is_no_account(scene: &Scene<'_>) {
    let claim = scene.assigned("a");
    assert_eq!(scene.attempt(&claim.lease).expected, None);
    for holder in [scene.job, JobId(99)].map(AccountHolder::Job).into_iter().chain([AccountHolder::Owner(scene.owner)])
    {
        assert_eq!(account_of(scene, holder), None);
    }
    scene.lose_all();
    assert_eq!(scene.repository.charges(claim.lease.attempt()).expect("charges can be read"), []);
}

fn a_claim_reserves_and_an_end_spends_instead(scene: &Scene<'_>) {
    let job = job(scene, "pages", "10");
    units(scene, job, &["a", "b"]);
    assert_account(scene, job, "0", "0");
    let a = one(scene, job, "0.5");
    assert_eq!(scene.attempt(&a.lease).expected, Some(dollars("0.5")));
    let b = one(scene, job, "0.5");
    assert_account(scene, job, "0", "1");
    scene.repository.progress(&a.lease, &Progress::default().charge(cost("0.1"))).expect("a live lease can tell");
    assert_account(scene, job, "0", "1");
    end(scene, &a, &completed("0.3"));
    assert_account(scene, job, "0.3", "0.5");
    end(scene, &b, &AttemptReport::completed());
    assert_account(scene, job, "0.3", "0");
    let account = account(scene, job);
    assert_eq!(
        (account.budget, account.largest, account.left()),
        (dollars("10"), Some(dollars("0.3")), dollars("9.7"))
    );
}

fn a_claim_stops_before_the_first_unit_that_may_cost_too_much(scene: &Scene<'_>) {
    let job = job(scene, "pages", "1");
    units(scene, job, &["a", "b", "c", "d"]);
    let claims = claim(scene, job, &claimant(scene.owner, "0.4"), 4).expect("the first has enough");
    // The third gets what is left, since nobody knows anything yet.
    assert_eq!(ids(&claims), ["a", "b", "c"]);
    assert_account(scene, job, "0", "1");
    end(scene, &claims[0], &completed("0.4"));
    end(scene, &claims[1], &completed("0.3"));
    // Now it is known that one may cost 0.4, and 0.1 is left.
    assert!(claim(scene, job, &claimant(scene.owner, "0.4"), 1).is_err());
    end(scene, &claims[2], &completed("0.01"));
    assert!(claim(scene, job, &claimant(scene.owner, "0"), 1).is_err(), "0.29 is left");
}

fn a_claim_for_which_nothing_is_left_is_refused_and_changes_nothing(scene: &Scene<'_>) {
    let job = job(scene, "pages", "1");
    units(scene, job, &["a", "b"]);
    let a = one(scene, job, "0.7");
    end(scene, &a, &completed("0.7"));
    let (before, journal) = (scene.repository.unit(job, "b").expect("it exists"), scene.journal());
    match claim(scene, job, &claimant(scene.owner, "0.1"), 1) {
        Err(RepositoryError::OverBudget(over)) => {
            assert_eq!((over.account, over.expected), (account(scene, job), dollars("0.7")));
            assert!(!over.is_passing());
        }
        other => panic!("0.3 is left: {other:?}"),
    }
    assert_eq!((scene.repository.unit(job, "b").expect("it exists"), scene.journal()), (before, journal));
    // Where nothing waits, nothing is refused.
    let key = scene.repository.unit(job, "a").expect("it exists").key;
    let slots = vec![scene.slot().for_unit(key)];
    let request = ClaimRequest::new(job, claimant(scene.owner, "0.1"), Scope::Accepted, slots);
    assert_eq!(scene.repository.claim(&request).expect("it has ended"), []);
}

fn what_is_submitted_beyond_the_budget_waits_for_its_pool(scene: &Scene<'_>) {
    let job = job(scene, "pages", "1");
    let submit = |id: &str| {
        let answer = scene.repository.submit(job, &work(id), &claimant(scene.owner, "1"), &scene.slot());
        answer.expect("a new unit can be submitted")
    };
    let Submitted::Claimed(a) = submit("a") else { panic!("a dollar is left") };
    assert_account(scene, job, "0", "1");
    for _ in 0..2 {
        let Submitted::Waiting(b) = submit("b") else { panic!("nothing is left") };
        assert_eq!((b.status, b.accepted_by, b.attempt_count), (UnitStatus::Pending, Some(scene.owner), 0));
    }
    end(scene, &a, &completed("0.1"));
    let Submitted::Claimed(b) = submit("b") else { panic!("0.9 is left") };
    assert_eq!(scene.attempt(&b.lease).expected, Some(dollars("0.1")));
}

fn a_guess_never_bars_the_way_and_what_was_learnt_takes_its_place(scene: &Scene<'_>) {
    let job = job(scene, "pages", "0.2");
    units(scene, job, &["a", "b"]);
    let a = one(scene, job, "5");
    assert_account(scene, job, "0", "0.2");
    assert!(claim(scene, job, &claimant(scene.owner, "5"), 1).is_err(), "all is reserved");
    end(scene, &a, &completed("0.05"));
    assert_eq!(scene.attempt(&one(scene, job, "5").lease).expected, Some(dollars("0.05")));
}

fn the_length_of_the_prompt_counts_where_its_price_is_known(scene: &Scene<'_>) {
    let budget = dollars("10");
    let new = NewJob::named("pages").budget(budget).template("0123456789{{ x }}");
    let job = scene.repository.create_job(&new).expect("a new name").id;
    // A dollar for a byte, and none for the answer.
    let price = Price::new(scene.now()).input(dollars("3000000")).output(Money::ZERO);
    let estimate = Estimate { prompt_megabyte: dollars("1000000"), ..Estimate::of(&price, 1).expect("both are known") };
    let mut claimant = claimant(scene.owner, "0");
    claimant.expectation.estimate = Some(estimate);
    let of = |unit: NewUnit| {
        let (id, slot) = (unit.id.clone(), scene.slot());
        match scene.repository.submit(job, &unit, &claimant, &slot).expect("a new unit can be submitted") {
            Submitted::Claimed(claim) => {
                scene.release(&claim.lease, None, "seen");
                scene.repository.cancel(job, &id, &By::whom("suite")).expect("it waits");
                scene.attempt(&claim.lease).expected
            }
            _ => None,
        }
    };
    assert_eq!(of(NewUnit::new("a").prompt("12345")), Some(dollars("5")));
    assert_eq!(of(NewUnit::new("b").template("12").payload(7)), Some(dollars("3")));
    assert_eq!(of(NewUnit::new("c").prompt("12345678901")), None, "it is too long");
    assert_eq!(of(NewUnit::new("d").payload(7)), None, "the job's template is too long");
    scene.repository.queue_unit(job, &NewUnit::new("e").template("12").payload(123)).expect("a new unit");
    scene.repository.cancel(job, "c", &By::whom("suite")).expect("it waits");
    scene.repository.cancel(job, "d", &By::whom("suite")).expect("it waits");
    let claims = claim(scene, job, &claimant, 1).expect("enough is left");
    assert_eq!(scene.attempt(&claims[0].lease).expected, Some(dollars("5")));
}

fn every_way_out_of_an_attempt_frees_what_was_reserved(scene: &Scene<'_>) {
    let job = job(scene, "pages", "100");
    type Way = fn(&Scene<'_>, JobId, &Claim);
    let ways: [(&str, Way); 7] = [
        ("completed", |scene, _, claim| end(scene, claim, &AttemptReport::completed())),
        ("failed", |scene, _, claim| end(scene, claim, &give_up())),
        ("released", |scene, job, claim| {
            scene.release(&claim.lease, None, "later");
            scene.repository.cancel(job, claim.unit.id.as_str(), &By::whom("suite")).expect("it waits");
        }),
        ("cancelled", |scene, job, claim| {
            scene.repository.cancel(job, claim.unit.id.as_str(), &By::whom("suite")).expect("it can be cancelled");
            scene.finish(&claim.lease, &AttemptReport::cancelled());
        }),
        ("terminated", |scene, job, claim| {
            let slot = crate::repository::Slot::new(claim.lease.worker_id.clone());
            for change in [WorkerChange::ShutDown, WorkerChange::Terminate] {
                scene.repository.change_worker(scene.owner, job, &slot, change).expect("a worker can end");
            }
            scene.repository.cancel(job, claim.unit.id.as_str(), &By::whom("suite")).expect("it waits");
        }),
        ("retried", |scene, job, claim| {
            end(scene, claim, &retry());
            scene.repository.cancel(job, claim.unit.id.as_str(), &By::whom("suite")).expect("it waits");
        }),
        ("expired", |scene, _, _| drop(scene.lose_all())),
    ];
    for (id, way) in ways {
        units(scene, job, &[id]);
        let claim = one(scene, job, "0.5");
        assert_eq!(claim.unit.id.as_str(), id);
        assert_eq!(account(scene, job).reserved, dollars("0.5"), "{id}");
        way(scene, job, &claim);
        assert_eq!(account(scene, job).reserved, Money::ZERO, "{id}");
    }
}

fn what_is_lost_is_charged_as_expected_and_marked(scene: &Scene<'_>) {
    let job = job(scene, "pages", "10");
    units(scene, job, &["a"]);
    let claim = one(scene, job, "0.5");
    scene.repository.progress(&claim.lease, &Progress::default().charge(cost("0.2"))).expect("a live lease can tell");
    scene.lose_all();
    assert_eq!(scene.attempt(&claim.lease).outcome, Some(Outcome::Lost));
    assert_account(scene, job, "0.5", "0");
    let charges = scene.repository.charges(claim.lease.attempt()).expect("charges can be read");
    assert_eq!(charges.iter().filter(|charge| charge.is_estimated).count(), 1, "{charges:?}");
    assert!(charges.contains(&cost("0.2")), "what it told stays as it was: {charges:?}");
    assert_eq!(scene.repository.costs(Some(job)).expect("costs can be read").total().amount, dollars("0.5"));
    assert_eq!(account(scene, job).largest, None, "nothing is known from it");
}

fn a_lost_attempt_that_told_more_is_charged_that(scene: &Scene<'_>) {
    let job = job(scene, "pages", "10");
    units(scene, job, &["a"]);
    let claim = one(scene, job, "0.5");
    scene.repository.progress(&claim.lease, &Progress::default().charge(cost("0.8"))).expect("a live lease can tell");
    scene.lose_all();
    assert_account(scene, job, "0.8", "0");
    assert_eq!(scene.repository.charges(claim.lease.attempt()).expect("charges can be read"), [cost("0.8")]);
}

fn what_a_lost_attempt_tells_later_takes_the_place_of_the_guess(scene: &Scene<'_>) {
    let job = job(scene, "pages", "10");
    units(scene, job, &["a"]);
    let claim = one(scene, job, "0.5");
    scene.start(&claim.lease);
    scene.lose_all();
    assert_account(scene, job, "0.5", "0");
    // Without a bill nothing more is known than before.
    let late = |report: &AttemptReport| assert!(scene.repository.finish(&claim.lease, report).is_err());
    late(&AttemptReport::completed().output("late"));
    assert_account(scene, job, "0.5", "0");
    for _ in 0..2 {
        late(&completed("0.1"));
        assert_account(scene, job, "0.1", "0");
    }
    assert_eq!(scene.repository.charges(claim.lease.attempt()).expect("charges can be read"), [cost("0.1")]);
    late(&completed("0.7"));
    assert_account(scene, job, "0.7", "0");
    assert_eq!(account(scene, job).largest, Some(dollars("0.7")));
}

fn what_has_no_price_counts_as_expected(scene: &Scene<'_>) {
    let job = job(scene, "pages", "1");
    units(scene, job, &["a", "b", "c"]);
    let local = || Charge::unpriced("local", Tokens { output: 3, ..Tokens::default() });
    for spent in ["0.5", "1"] {
        let claim = one(scene, job, "0.5");
        end(scene, &claim, &AttemptReport::completed().charge(local()));
        assert_account(scene, job, spent, "0");
        assert_eq!(scene.repository.charges(claim.lease.attempt()).expect("charges can be read"), [local()]);
    }
    assert!(claim(scene, job, &claimant(scene.owner, "0.5"), 1).is_err());
}

fn a_raised_budget_goes_on_and_a_lowered_one_stops(scene: &Scene<'_>) {
    let job = job(scene, "pages", "0.5");
    units(scene, job, &["a", "b", "c"]);
    end(scene, &one(scene, job, "0.5"), &completed("0.5"));
    assert!(claim(scene, job, &claimant(scene.owner, "0"), 1).is_err());
    let change = |budget: Option<Money>| {
        let change = JobChange::default().budget(budget);
        scene.repository.change_job(job, &change, &By::new("ada", "it is worth it")).expect("a budget can be changed");
    };
    change(Some(dollars("2")));
    let b = one(scene, job, "0.5");
    assert_account(scene, job, "0.5", "0.5");
    change(Some(dollars("0.1")));
    assert_eq!(account(scene, job).left(), dollars("-0.9"));
    assert!(claim(scene, job, &claimant(scene.owner, "0"), 1).is_err());
    change(None);
    assert_eq!(account_of(scene, AccountHolder::Job(job)), None);
    let c = one(scene, job, "0.5");
    assert_eq!(scene.attempt(&c.lease).expected, None);
    end(scene, &b, &completed("0.2"));
    end(scene, &c, &completed("0.1"));
    change(Some(dollars("1")));
    assert_account(scene, job, "0.8", "0");
}

fn a_budget_that_comes_later_knows_what_was_spent_before(scene: &Scene<'_>) {
    end(scene, &scene.assigned("a"), &completed("0.3"));
    let open = scene.assigned("b");
    let change = JobChange::default().budget(dollars("1"));
    scene.repository.change_job(scene.job, &change, &By::whom("ada")).expect("a budget can be set");
    assert_account(scene, scene.job, "0.3", "0");
    assert_eq!(account(scene, scene.job).largest, Some(dollars("0.3")));
    end(scene, &open, &completed("0.4"));
    assert_account(scene, scene.job, "0.7", "0");
}

fn an_owner_has_a_budget_of_its_own_over_all_jobs(scene: &Scene<'_>) {
    let new = NewOwner::new(scene.this_process(), "thrifty").budget(Some(dollars("1")));
    let owner = scene.repository.register_owner(&new).expect("an owner can be registered");
    let told = scene.repository.owners().expect("owners can be read");
    assert_eq!(told.iter().find(|told| told.id == owner).expect("it was registered").budget, Some(dollars("1")));
    let limited = job(scene, "limited", "10");
    units(scene, limited, &["a"]);
    scene.insert_all(&["b", "c"]);
    let thrifty = claimant(owner, "0.6");
    let a = claim(scene, limited, &thrifty, 1).expect("both have enough").remove(0);
    let of_owner = || account_of(scene, AccountHolder::Owner(owner)).expect("an owner with a budget has an account");
    assert_eq!((of_owner().reserved, account(scene, limited).reserved), (dollars("0.6"), dollars("0.6")));
    let b = claim(scene, scene.job, &thrifty, 2).expect("0.4 is left");
    assert_eq!(ids(&b), ["b"]);
    assert_eq!(of_owner().left(), Money::ZERO);
    match claim(scene, scene.job, &thrifty, 1) {
        Err(RepositoryError::OverBudget(over)) => {
            assert_eq!(over.account.holder, AccountHolder::Owner(owner));
            assert!(over.is_passing(), "what is under way may cost less");
        }
        other => panic!("nothing is left: {other:?}"),
    }
    end(scene, &a, &completed("0.2"));
    end(scene, &b[0], &completed("0.1"));
    assert_eq!((of_owner().spent, account(scene, limited).spent), (dollars("0.3"), dollars("0.2")));
    assert_eq!(ids(&scene.claim_up_to(1)), ["c"], "others have budgets of their own, or none");
}

fn retries_of_one_unit_are_all_paid_for(scene: &Scene<'_>) {
    let job = job(scene, "pages", "1");
    scene.repository.queue_unit(job, &work("a").max_retries(100)).expect("a new unit");
    for spent in ["0.4", "0.8"] {
        let claim = one(scene, job, "0.1");
        end(scene, &claim, &retry().charge(cost("0.4")));
        assert_account(scene, job, spent, "0");
    }
    assert!(claim(scene, job, &claimant(scene.owner, "0.1"), 1).is_err(), "it has cost enough");
    assert_eq!(status(scene, job, "a"), UnitStatus::Pending);
}
