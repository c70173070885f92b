//! Whole pools under a model checker: units are handed over, cancelled, tried again and held while the pool stops, in orders
//! that a machine hardly ever shows. A deadlock or a lost wake-up is found as such; what is left at the end is checked.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/model cargo test --no-default-features --features testing --test model
//! ```
//!
//! Optimised (`CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_TEST_OPT_LEVEL=1`, as `.ci/run` does) it tries out ten times as much.
//!
//! Each test tries out schedules for some seconds (`WORKCREW_MODEL_SECONDS`, 3 unless set), half of them at random and half
//! by priorities that change a few times (PCT). Whatever a test chooses by [`one_of`](world::one_of) belongs to the schedule.
//!
//! A test that fails prints what was logged, and its schedule. To see that one again, write it to a file and run the same test with
//! `WORKCREW_MODEL_SCHEDULE=/path/to/file`.
//!
//! No time passes here unless a test says so: its clock stands still, and a wait that has time left ends only when somebody
//! ends it.
#![cfg(shuttle)]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adapting;
mod affinity;
mod budgets;
mod checker;
mod dispatch;
mod load;
mod pausing;
mod pulling;
mod races;
mod same_work;
mod stopping;
mod timing;
mod watch;
mod world;
