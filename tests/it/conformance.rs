//! Every repository of ours keeps the contract.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tempfile::TempDir;
use workcrew::clock::ManualClock;
use workcrew::repository::conformance::{self, OnManualClock, Subject};
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::{MemoryRepository, Repository, SqliteRepository};

use crate::support;

/// A database in a directory that vanishes with it. The repository is closed first.
struct InDirectory {
    subject: OnManualClock<SqliteRepository>,
    _directory: TempDir,
}

impl InDirectory {
    fn fresh() -> Box<dyn Subject> {
        let (directory, clock) = (support::folder(), ManualClock::new());
        let path = directory.path().join("units.db");
        let repository = SqliteOptions::new().clock(clock.clone()).open(path).expect("a new database");
        Box::new(InDirectory { subject: OnManualClock::new(repository, clock), _directory: directory })
    }
}

impl Subject for InDirectory {
    fn repository(&self) -> &dyn Repository {
        self.subject.repository()
    }

    fn now(&self) -> DateTime<Utc> {
        self.subject.now()
    }

    fn advance(&self, by: Duration) {
        self.subject.advance(by);
    }

    fn set_calendar(&self, by: TimeDelta) -> bool {
        self.subject.set_calendar(by)
    }
}

#[test]
fn the_repository_in_memory_conforms() {
    conformance::run(|| {
        let clock = ManualClock::new();
        Box::new(OnManualClock::new(MemoryRepository::with_clock(clock.clone()), clock))
    });
}

#[test]
fn the_sqlite_repository_conforms() {
    conformance::run(InDirectory::fresh);
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;
    use workcrew::repository::postgres::{PostgresOptions, PostgresRepository};

    /// A schema of its own on the server of the tests.
    struct InSchema(OnManualClock<PostgresRepository>);

    impl InSchema {
        fn fresh(server: &support::postgres::Server) -> Box<dyn Subject> {
            let clock = ManualClock::new();
            let options = PostgresOptions::new().clock(clock.clone()).readers(1);
            let repository = options.connect(&server.fresh()).expect("a fresh schema");
            Box::new(InSchema(OnManualClock::new(repository, clock)))
        }
    }

    impl Subject for InSchema {
        fn repository(&self) -> &dyn Repository {
            self.0.repository()
        }

        fn now(&self) -> DateTime<Utc> {
            self.0.now()
        }

        fn advance(&self, by: Duration) {
            self.0.advance(by);
        }

        fn set_calendar(&self, by: TimeDelta) -> bool {
            self.0.set_calendar(by)
        }

        fn spans_machines(&self) -> bool {
            true
        }
    }

    #[test]
    fn the_postgres_repository_conforms() {
        if let Some(server) = support::postgres::server() {
            conformance::run(|| InSchema::fresh(server));
        }
    }
}
