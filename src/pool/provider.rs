//! Until when the pool's provider is not to be asked: told to all who ask the same one, and heard from them.
//!
//! ```text
//!   an attempt is told "not before" ──▶ stored (`Repository::hold`) ──▶ held here
//!   an attempt that wants its turn  ──▶ reads it there              ──▶ held here
//!   each heartbeat                  ──▶ reads it there              ──▶ held here, or no longer
//! ```
//!
//! What is stored decides: who lifts a hold there lets all processes go on.

use chrono::{DateTime, Utc};

use super::core::Core;
use super::observe::Event;
use super::ready::HoldEnd;
use super::timers::boot_ms_of;
use crate::limits::{NewHold, ProviderHold};
use crate::panics;

/// Starts nothing until then, nor does anybody else who works for the same provider. Nobody here begins anything while others are still being
/// told.
///
/// A hold without an end is about this process and what it was given, so others do not hear of it.
pub(super) fn hold(core: &Core, until: Option<DateTime<Utc>>, reason: &str) {
    let now = core.clock.now();
    let Some(until) = until else { return hold_here(core, HoldEnd::Told, None, reason) };
    let until_ms = boot_ms_of(until, now);
    hold_here(core, HoldEnd::At(until_ms), Some(until), reason);
    if tell_others(core, until, reason) {
        core.hold(reason, HoldEnd::Provider(until_ms));
    }
}

/// Starts nothing here until then, as somebody has stored it.
pub(super) fn obey(core: &Core, ProviderHold { until, reason, .. }: &ProviderHold) {
    hold_here(core, HoldEnd::Provider(boot_ms_of(*until, core.clock.now())), Some(*until), reason);
}

/// Hears what was stored since, and what is no longer there.
pub(super) fn look(core: &Core) {
    let Some(provider) = &core.provider else { return };
    match core.repository().holds() {
        Ok(holds) => match holds.iter().find(|hold| hold.provider == *provider) {
            Some(hold) => obey(core, hold),
            None => core.provider_may_be_asked(),
        },
        Err(error) => log::debug!("{}: whether {provider} may be asked could not be read: {error}", core.job.id),
    }
}

/// Lets everybody ask the provider again.
pub(super) fn lift(core: &Core) {
    let Some(provider) = &core.provider else { return };
    if let Err(error) = core.repository().lift(provider) {
        log::warn!("{}: others were not told that {provider} may be asked: {error}", core.job.id);
    }
}

/// Stores it; says whether it is.
fn tell_others(core: &Core, until: DateTime<Utc>, reason: &str) -> bool {
    let Some(provider) = &core.provider else { return false };
    let Ok(pause) = (until - core.clock.now().wall).to_std() else { return false };
    let hold = NewHold::new(provider, pause, reason);
    match panics::contain("holding a provider", || core.repository().hold(&hold)) {
        Some(Ok(())) => true,
        Some(Err(error)) => {
            log::warn!("{}: others were not told that {provider} is not to be asked: {error}", core.job.id);
            false
        }
        None => false,
    }
}

fn hold_here(core: &Core, end: HoldEnd, until: Option<DateTime<Utc>>, reason: &str) {
    if core.hold(reason, end) {
        log::warn!("{}: nothing is started: {reason}", core.job.id);
        core.callbacks.tell_of(|| Event::Held { reason, until });
    } else {
        log::debug!("{}: held for something else already: {reason}", core.job.id);
    }
}
