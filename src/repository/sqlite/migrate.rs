//! The schema, and how an older one becomes today's.
//!
//! **Fresh.** A new database is made from `schema.sql`, which describes it as it is today.
//!
//! **Older.** `user_version` says which steps of [`STEPS`] were taken. The list is append-only: a step that
//! was released is never changed. All missing steps are taken in one transaction, so that a crash
//! leaves the old schema or the new one. The first step is the baseline, so that the steps alone also make a
//! whole database; a test compares it with `schema.sql`.
//!
//! **Newer.** A version that this build does not know is refused before anything is written.
//!
//! **Compatibility.** While another owner is alive on the database its schema is not changed under it.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::accounts;
use super::jobs;
use super::owners::read_open_owners;
use crate::clock::Clock;
use crate::fault::{Stage, point};
use crate::lease::Owner;
use crate::repository::rules::{self, Silence};

/// What stands in the header of our files: "wkcr".
pub(super) const APPLICATION_ID: i32 = 0x776b_6372;

const SCHEMA: &str = include_str!("../../../schema.sql");

const STEPS: &[Step] = &[
    Step::of(include_str!("migrations/0001.sql")),
    Step::of(include_str!("migrations/0002.sql")),
    Step { sql: include_str!("migrations/0003.sql"), fill: jobs::begin_journal },
    Step { sql: include_str!("migrations/0004.sql"), fill: accounts::open_all },
    Step::of(include_str!("migrations/0005.sql")),
];

/// One step from a version to the next.
#[derive(Clone, Copy)]
struct Step {
    /// What becomes of the schema.
    sql: &'static str,
    /// What is then made of the rows that are there.
    fill: fn(&Connection) -> rusqlite::Result<()>,
}

impl Step {
    /// A step that leaves the rows as they are.
    const fn of(sql: &'static str) -> Step {
        Step { sql, fill: |_| Ok(()) }
    }
}

/// The version of the schema that this build reads and writes.
pub(super) fn current_version() -> u32 {
    version_after(STEPS)
}

fn version_after(steps: &[Step]) -> u32 {
    u32::try_from(steps.len()).expect("a few steps")
}

/// Makes a whole new database.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    point("create", Stage::Inside);
    transaction.pragma_update(None, "user_version", current_version())?;
    transaction.commit()
}

/// Why a schema was not brought up to date.
#[derive(Debug)]
pub(super) enum NotMigrated {
    /// It is of a later build.
    Newer(u32),
    /// Somebody else uses it.
    InUse(Box<Owner>),
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for NotMigrated {
    fn from(error: rusqlite::Error) -> NotMigrated {
        NotMigrated::Sqlite(error)
    }
}

/// Brings the schema up to date.
pub(super) fn migrate(connection: &Connection, clock: &dyn Clock) -> Result<(), NotMigrated> {
    take_steps(connection, STEPS, clock)
}

fn take_steps(connection: &Connection, steps: &[Step], clock: &dyn Clock) -> Result<(), NotMigrated> {
    if is_up_to_date(connection, steps)? {
        return Ok(());
    }
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    // Another process may have done it while this one waited for the lock.
    if is_up_to_date(connection, steps)? {
        return Ok(());
    }
    if let Some(owner) = living_owner(connection, clock)? {
        return Err(NotMigrated::InUse(Box::new(owner)));
    }
    for step in &steps[version(connection)? as usize..] {
        transaction.execute_batch(step.sql)?;
        (step.fill)(&transaction)?;
        point("migrate", Stage::Inside);
    }
    transaction.pragma_update(None, "user_version", version_after(steps))?;
    transaction.commit()?;
    point("migrate", Stage::Committed);
    Ok(())
}

fn is_up_to_date(connection: &Connection, steps: &[Step]) -> Result<bool, NotMigrated> {
    let (found, known) = (version(connection)?, version_after(steps));
    if found > known { Err(NotMigrated::Newer(found)) } else { Ok(found == known) }
}

pub(super) fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.prepare_cached("PRAGMA user_version")?.query_row([], |row| row.get(0))
}

/// An owner that has not ended, is not known to be gone, and was heard of not long ago.
pub(super) fn living_owner(connection: &Connection, clock: &dyn Clock) -> rusqlite::Result<Option<Owner>> {
    let owners_exist = connection.table_exists(None, "owners")?;
    let owners = if owners_exist { read_open_owners(connection)? } else { Vec::new() };
    let (now, boot_id) = (clock.now(), clock.boot_id());
    let is_living = |&(ref owner, heartbeat_boot_ms): &(Owner, i64)| {
        let silence = rules::owner_silence(owner, heartbeat_boot_ms, &boot_id, now);
        rules::owner_loss(owner, &boot_id).is_none() && silence != Some(Silence::ForGood)
    };
    Ok(owners.into_iter().find(is_living).map(|(owner, _)| owner))
}

/// Whether the tables, indexes and views are those that this build made, or an earlier one of the version that they are said to have.
pub(super) fn is_schema_ours(connection: &Connection) -> rusqlite::Result<bool> {
    let ours = Connection::open_in_memory()?;
    match STEPS.get(..version(connection)? as usize) {
        Some(steps) if steps.len() < STEPS.len() => steps.iter().try_for_each(|step| ours.execute_batch(step.sql))?,
        _ => ours.execute_batch(SCHEMA)?,
    }
    Ok(shape(connection)? == shape(&ours)?)
}

/// What a schema consists of, without comments and white space.
pub(super) fn shape(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut select = connection.prepare(
        "SELECT type || ' ' || name || ': ' || coalesce(sql, '')
         FROM sqlite_schema
         WHERE NOT (type = 'table' AND name IN ('sqlite_stat1', 'sqlite_stat4'))
         ORDER BY type, name",
    )?;
    let rows = select.query_map([], |row| row.get::<_, String>(0))?;
    rows.map(|row| row.map(|sql| normalised(&sql))).collect()
}

fn normalised(sql: &str) -> String {
    let without_comments = sql.lines().map(|line| line.split("--").next().unwrap_or_default());
    // A column that was added later has other white space before its comma, and behind it.
    let spaced = without_comments.map(|line| line.replace(',', " , "));
    let words = spaced.collect::<Vec<_>>().join(" ").split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    words.replace(" )", ")")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::Outcome;
    use crate::clock::{ManualClock, SystemClock};
    use crate::process::Process;
    use crate::unit::UnitStatus;
    use crate::worker::WorkerStatus;

    fn from_steps(steps: &[Step]) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        take_steps(&connection, steps, &SystemClock).unwrap();
        connection
    }

    fn fresh() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        create(&connection).unwrap();
        connection
    }

    #[test]
    fn a_fresh_database_equals_a_migrated_one() {
        let migrated = from_steps(STEPS);
        assert_eq!(shape(&fresh()).unwrap(), shape(&migrated).unwrap());
        assert_eq!(version(&fresh()).unwrap(), version(&migrated).unwrap());
        assert!(is_schema_ours(&migrated).unwrap());
    }

    #[test]
    fn each_earlier_version_is_known_and_none_passes_for_another() {
        for version in 1..STEPS.len() {
            let connection = from_steps(&STEPS[..version]);
            assert!(is_schema_ours(&connection).unwrap(), "version {version}");
            connection.pragma_update(None, "user_version", current_version()).unwrap();
            assert!(!is_schema_ours(&connection).unwrap(), "version {version}");
        }
    }

    #[test]
    fn a_difference_in_the_schema_is_seen() {
        let connection = fresh();
        connection.execute_batch("DROP INDEX journal_by_unit").unwrap();
        assert!(!is_schema_ours(&connection).unwrap());
        let connection = fresh();
        connection.execute_batch("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM jobs; END").unwrap();
        assert!(!is_schema_ours(&connection).unwrap());
    }

    #[test]
    fn an_existing_version_takes_only_the_missing_steps() {
        let two = [STEPS[0], Step::of("CREATE TABLE second (x INTEGER) STRICT;")];
        let connection = from_steps(&STEPS[..1]);
        connection
            .execute("INSERT INTO jobs (name, settings, created_at) VALUES ('kept', x'6e756c6c', 1)", [])
            .unwrap();
        take_steps(&connection, &two, &SystemClock).unwrap();
        assert_eq!(version(&connection).unwrap(), 2);
        assert!(connection.table_exists(None, "second").unwrap());
        let kept: String = connection.query_row("SELECT name FROM jobs", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, "kept");
    }

    #[test]
    fn a_step_that_fails_leaves_the_old_schema() {
        let steps = [STEPS[0], Step::of("CREATE TABLE second (x INTEGER) STRICT;"), Step::of("no SQL at all")];
        let connection = from_steps(&STEPS[..1]);
        assert!(take_steps(&connection, &steps, &SystemClock).is_err());
        assert_eq!(version(&connection).unwrap(), 1);
        assert!(!connection.table_exists(None, "second").unwrap());
    }

    #[test]
    fn a_newer_version_is_refused_and_left_alone() {
        let connection = from_steps(STEPS);
        connection.pragma_update(None, "user_version", 99).unwrap();
        assert!(matches!(take_steps(&connection, STEPS, &SystemClock), Err(NotMigrated::Newer(99))));
        assert_eq!(version(&connection).unwrap(), 99);
    }

    #[test]
    fn nothing_is_migrated_under_a_living_owner() {
        let boot_id = SystemClock.boot_id();
        let two = [STEPS[0], Step::of("CREATE TABLE second (x INTEGER) STRICT;")];
        let connection = from_steps(&STEPS[..1]);
        let this = Process::this(&boot_id);
        connection
            .execute(
                "INSERT INTO owners (instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at, heartbeat_at,
                                     heartbeat_boot_ms, lease_ms)
                 VALUES ('i', 'somebody', ?1, ?2, ?3, ?4, 1, 1, 1, 60000)",
                rusqlite::params![this.pid, this.start_ticks.cast_signed(), this.boot_id, this.pid_namespace.cast_signed()],
            )
            .unwrap();
        assert!(matches!(take_steps(&connection, &two, &SystemClock), Err(NotMigrated::InUse(_))));
        assert_eq!(version(&connection).unwrap(), 1);
        // Where nobody can see it, it may live as long as it was heard of lately.
        connection.execute("UPDATE owners SET pid_namespace = pid_namespace + 1", []).unwrap();
        let clock = ManualClock::new();
        assert!(matches!(take_steps(&connection, &two, &clock), Err(NotMigrated::InUse(_))));
        clock.advance(std::time::Duration::from_secs(24 * 3_600));
        assert!(living_owner(&connection, &clock).unwrap().is_none());
        connection.execute("UPDATE owners SET pid_namespace = pid_namespace - 1", []).unwrap();
        assert!(living_owner(&connection, &clock).unwrap().is_some());
        connection.execute("UPDATE owners SET start_ticks = start_ticks - 1", []).unwrap();
        take_steps(&connection, &two, &SystemClock).unwrap();
        assert_eq!(version(&connection).unwrap(), 2);
    }

    /// The names in a `CHECK (column = 'name' OR ...)` of `schema.sql`.
    fn checked_names(table: &str, column: &str) -> Vec<String> {
        let connection = fresh();
        let sql: String =
            connection.query_row("SELECT sql FROM sqlite_schema WHERE name = ?1", [table], |row| row.get(0)).unwrap();
        let sql = normalised(&sql).replace("( ", "(");
        let list = sql.split(&format!("CHECK ({column} = '")).nth(1).unwrap().split("')").next().unwrap();
        list.split(&format!("' OR {column} = '")).map(str::to_owned).collect()
    }

    #[test]
    fn the_names_of_each_status_are_those_that_sql_checks() {
        let names = |all: &[&str]| all.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let units: Vec<&str> = UnitStatus::ALL.iter().map(|status| status.name()).collect();
        assert_eq!(checked_names("work_units", "status"), names(&units));
        let workers: Vec<&str> = WorkerStatus::ALL.iter().map(|status| status.name()).collect();
        assert_eq!(checked_names("workers", "status"), names(&workers));
        let outcomes: Vec<&str> = Outcome::ALL.iter().map(|outcome| outcome.name()).collect();
        assert_eq!(checked_names("attempts", "outcome"), names(&outcomes));
        let roles: Vec<&str> = crate::conversation::Role::ALL.iter().map(|role| role.name()).collect();
        assert_eq!(checked_names("messages", "role"), names(&roles));
    }
}
