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
