//! The report, as a real browser shows it.
//!
//! Where there is no Chromium these tests say so and do nothing; with `CI` set they fail.

mod browser;
mod hostile;
mod large;
mod picture;
mod scene;
mod seen;
mod units;
