//! PostgreSQL as such: what the suite of all repositories cannot show, on a real server of the tests' own.

mod contents;
mod hosts;
mod lost;
mod proxy;

use workcrew::repository::postgres::PostgresOptions;
use workcrew::repository::{Archive, By, ClaimRequest, Claimant, Intake, Repository, Scope, Slot, Submitted};
use workcrew::{Claim, JobId, NewJob, NewUnit, OwnerId, PostgresRepository, WorkerId};

use crate::support::{self, postgres::Server};

/// How long the leases of these tests last: far longer than any of them, also on a slow machine.
const TTL: std::time::Duration = std::time::Duration::from_secs(3_600);

/// A repository in a schema that nobody has used, with a job.
struct Place {
    address: String,
    repository: PostgresRepository,
    job: JobId,
}

impl Place {
    /// `None` where there is no server.
    fn fresh() -> Option<Place> {
        support::postgres::server().map(Place::on)
    }

    fn on(server: &Server) -> Place {
        let address = server.fresh();
        let repository = PostgresRepository::connect(&address).unwrap();
        let job = repository.create_job(&NewJob::named("work")).unwrap().id;
        Place { address, repository, job }
    }

    /// The same schema as another host sees it, through connections of its own.
    fn other_host(&self) -> PostgresRepository {
        PostgresRepository::connect(&self.address).unwrap()
    }

    /// A unit that was just submitted and claimed.
    fn claimed(&self, owner: OwnerId, unit: &NewUnit) -> Claim {
        let slot = Slot::new(WorkerId::new(format!("for {}", unit.id)).unwrap());
        match self.repository.submit(self.job, unit, &Claimant::new(owner, TTL), &slot).unwrap() {
            Submitted::Claimed(claim) => *claim,
            other => panic!("it is new and due: {other:?}"),
        }
    }
}

/// What is stored is whole.
fn assert_sound(repository: &PostgresRepository) {
    let verification = workcrew::audit::verify(repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

/// A client beside ours, as a person with `psql` would have it.
fn by_hand(address: &str) -> postgres::Client {
    let (place, query) = address.split_once('?').unwrap();
    let schema = query.rsplit_once("schema=").unwrap().1;
    let mut client = postgres::Client::connect(place, postgres::NoTls).unwrap();
    client.batch_execute(&format!("SET search_path = {schema}")).unwrap();
    client
}

fn slots(count: usize, name: &str) -> Vec<Slot> {
    (0..count).map(|number| Slot::new(WorkerId::new(format!("{name} {number}")).unwrap())).collect()
}

/// Claims what nobody has accepted.
fn pull(repository: &dyn Repository, job: JobId, owner: OwnerId, slots: Vec<Slot>) -> Vec<Claim> {
    repository.claim(&ClaimRequest::new(job, Claimant::new(owner, TTL), Scope::Open, slots)).unwrap()
}

fn units(count: usize) -> Vec<NewUnit> {
    (0..count).map(|number| NewUnit::new(format!("u{number}")).prompt(format!("do {number}"))).collect()
}

#[test]
fn many_hosts_that_start_together_make_one_schema() {
    let Some(server) = support::postgres::server() else { return };
    for _ in 0..5 {
        let address = server.fresh();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let repository = PostgresRepository::connect(&address).unwrap();
                    repository.create_job(&NewJob::named("work")).unwrap();
                });
            }
        });
        assert_eq!(PostgresRepository::connect(&address).unwrap().jobs(0, 10).unwrap().items.len(), 1);
    }
}

#[test]
fn a_schema_with_something_else_in_it_is_left_alone() {
    let Some(server) = support::postgres::server() else { return };
    let address = server.at("somebody_elses");
    let mut client = by_hand(&address);
    client
        .batch_execute(
            "DROP SCHEMA IF EXISTS somebody_elses CASCADE; CREATE SCHEMA somebody_elses; CREATE TABLE t (x int)",
        )
        .unwrap();
    let refusal = PostgresRepository::connect(&address).unwrap_err().to_string();
    assert!(refusal.contains("somebody_elses"), "{refusal}");
    let tables = client.query("SELECT 1 FROM pg_tables WHERE schemaname = 'somebody_elses'", &[]).unwrap();
    assert_eq!(tables.len(), 1);
}

#[test]
fn a_later_version_is_refused_and_left_alone() {
    let Some(place) = Place::fresh() else { return };
    by_hand(&place.address).batch_execute("UPDATE version SET number = 99").unwrap();
    let refusal = PostgresRepository::connect(&place.address).unwrap_err().to_string();
    assert!(refusal.contains("99"), "{refusal}");
}

#[test]
fn a_role_that_owns_nothing_but_its_schema_is_enough() {
    let Some(server) = support::postgres::server() else { return };
    let address = server.at("of_grace");
    let mut client = by_hand(&address);
    client
        .batch_execute(
            "DROP SCHEMA IF EXISTS of_grace CASCADE; DROP ROLE IF EXISTS grace;
             CREATE ROLE grace LOGIN; CREATE SCHEMA of_grace AUTHORIZATION grace",
        )
        .unwrap();
    let address = address.replace("postgres://postgres@", "postgres://grace@");
    let repository = PostgresRepository::connect(&address).unwrap();
    let job = repository.create_job(&NewJob::named("work")).unwrap().id;
    repository.insert(job, &units(3), Intake::Open).unwrap();
    repository.cancel(job, "u1", &By::whom("grace")).unwrap();
    assert_sound(&repository);
}

#[test]
fn an_address_where_nobody_answers_is_an_error_that_says_so() {
    let refusal = PostgresRepository::connect("postgres://nobody@127.0.0.1:1/none").unwrap_err();
    let words = format!("{refusal}: {}", std::error::Error::source(&refusal).unwrap());
    assert!(words.contains("cannot be used") && words.contains("connect"), "{words}");
}

#[test]
fn leases_go_by_the_database_s_clock() {
    let Some(place) = Place::fresh() else { return };
    let owner = support::owner(&place.repository, "host");
    let mut client = by_hand(&place.address);
    let claim = place.claimed(owner, &NewUnit::new("a").prompt("do it"));
    let row = client
        .query_one("SELECT lease_left_ms, extract(epoch FROM clock_timestamp())::bigint * 1000 FROM active_units", &[])
        .unwrap();
    let (left_ms, now_ms): (i64, i64) = (row.get(0), row.get(1));
    let ttl_ms = i64::try_from(TTL.as_millis()).unwrap();
    assert!((ttl_ms - 600_000..=ttl_ms).contains(&left_ms), "{left_ms}");
    assert!((claim.lease.until_ms - now_ms - ttl_ms).abs() < 600_000);
    // A clock of one's own is for tests: here it is in another year, and the lease long over.
    let elsewhere = PostgresOptions::new().clock(workcrew::clock::ManualClock::new()).connect(&place.address).unwrap();
    assert_eq!(elsewhere.expire(10).unwrap(), []);
}
