//! The view from outside: one binary, a module for each concern.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod affinity_stress;
mod children;
#[cfg(feature = "cli")]
mod command;
mod commands;
mod concurrency;
mod conformance;
mod crash;
mod damage;
mod dispatch_model;
mod dispatch_moments;
mod dispatch_races;
mod dispatch_storm;
mod doctor;
mod exact;
mod examples;
mod export;
mod faulty;
mod heads;
#[cfg(feature = "http")]
mod http;
mod looks;
mod memory;
mod pool;
mod pool_calendar;
mod pool_cancel;
mod pool_chaos;
mod pool_crash;
mod pool_edges;
mod pool_freeze;
mod pool_races;
mod pool_stress;
mod pool_stuck;
#[cfg(feature = "postgres")]
mod postgres;
mod processes;
mod property;
mod questions;
mod real_cli;
mod replay;
#[cfg(feature = "report")]
mod report;
mod requeueing;
mod search;
mod storage;
mod support;
mod tidy;
#[cfg(feature = "cli")]
mod tour;
mod upkeep;
mod workers;
