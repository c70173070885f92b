//! What callers check, hash and serialise before they hand over a change, so that a writer need not; and what a writer knows of a
//! unit when it decides. None of it depends on how it is stored.

mod attempts;
mod claims;
mod messages;
mod units;

pub(in crate::repository) use self::attempts::{BeginningRow, ReportRow};
pub(in crate::repository) use self::claims::{Grant, Terms, fresh_claim};
pub(in crate::repository) use self::messages::{Encoding, NewMessage};
pub(in crate::repository) use self::units::{HotUnit, NewRow};
