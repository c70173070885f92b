//! The small decisions that every repository takes alike: nothing here reads or writes a store.
//!
//! First what is checked before anything is looked up, then time, who gets which unit, workers and owners, the end of an
//! attempt, and pages; what is about jobs is in `jobs`. The order in a verb is always: these checks, the job, the owner, the rest.

mod jobs;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

pub(crate) use self::jobs::{changed_job, check_job_change, check_new_job, same_job};
use super::{
    Intake, LeaseView, MESSAGE_LIMIT_BYTES, PAGE_LIMIT, PAGE_LIMIT_BYTES, PARTIAL_LIMIT_BYTES, Page, RepositoryError,
    Result, STATE_LIMIT_BYTES, Slot, Staleness, UnitFilter,
};
use crate::attempt::{Attempt, AttemptKey, AttemptReport, AttemptResult, Outcome, ResultHashes};
use crate::chain::Hash;
use crate::clock::{Moment, milliseconds, whole_milliseconds};
use crate::conversation::{MessageContent, Raw, to_json};
use crate::lease::{Lease, Owner, OwnerState};
use crate::limits::RateLimits;
use crate::money::Charge;
use crate::process::Process;
use crate::unit::{Change, Inputs, NewUnit, UnitId, UnitKey, UnitStatus, WorkUnit, shortened};
use crate::worker::{WorkerChange, WorkerId, WorkerStatus};

/// How long the name of a provider may be.
const PROVIDER_LIMIT_BYTES: usize = 500;

/// Checks a unit: its name, and whether its inputs can be read again once they were stored.
pub(crate) fn check_new_unit(unit: &NewUnit) -> Result<(UnitId, Inputs)> {
    Ok((UnitId::new(unit.id.as_str())?, Inputs::of(unit)?))
}

/// What makes a unit another one than that which is stored under its id; `None` if they are the same.
pub(crate) fn difference(content_hash: &Hash, prompt_hash: Option<&Hash>, inputs: &Inputs) -> Option<&'static str> {
    if *content_hash != inputs.content_hash {
        return Some("another content");
    }
    let is_another_prompt = prompt_hash.zip(inputs.prompt_hash.as_ref()).is_some_and(|(stored, new)| stored != new);
    is_another_prompt.then_some("another prompt")
}

/// A unit that was to be inserted is there, but is another one. What differs an insert does not tell.
pub(crate) fn inserted_otherwise(id: &str) -> RepositoryError {
    RepositoryError::Conflict { what: format!("unit `{}`", shortened(id)), difference: "another content" }
}

/// The unit that was submitted is there, but is another one.
pub(crate) fn conflict(id: &UnitId, difference: &'static str) -> RepositoryError {
    RepositoryError::Conflict { what: format!("unit `{id}`"), difference }
}

/// Checks that a worker can have at least one unit.
pub(crate) fn check_slot(slot: &Slot) -> Result<()> {
    if slot.capacity == 0 {
        return Err(RepositoryError::Invalid(format!("worker `{}` has a capacity of 0", slot.worker_id)));
    }
    Ok(())
}

/// Checks that a worker's change is one that is asked for, and not one that a claim or its end brings.
pub(crate) fn check_worker_change(change: WorkerChange) -> Result<()> {
    use WorkerChange::{GiveBack, TakeBelowCapacity, TakeToCapacity};
    if matches!(change, TakeBelowCapacity | TakeToCapacity | GiveBack) {
        return Err(RepositoryError::Invalid(format!("{change} comes with a claim or its end, not by itself")));
    }
    Ok(())
}

/// Checks that a message is not too long to be read again.
pub(crate) fn check_content(content: &MessageContent) -> Result<()> {
    check_len("a message", content.len_bytes(), MESSAGE_LIMIT_BYTES)
}

/// Checks that a text will not be too long for a message.
pub(crate) fn check_partial(text: &str) -> Result<()> {
    check_len("a partial message", text.len(), PARTIAL_LIMIT_BYTES)
}

fn check_len(what: &str, len_bytes: usize, limit_bytes: usize) -> Result<()> {
    if len_bytes > limit_bytes {
        return Err(RepositoryError::Invalid(format!("{what} has {len_bytes} bytes, {limit_bytes} are allowed")));
    }
    Ok(())
}

/// What an owner says of itself, as it is stored.
pub(crate) fn state_json(state: &OwnerState) -> Result<Vec<u8>> {
    let json = to_json(state)?;
    if json.len() > STATE_LIMIT_BYTES {
        let problem =
            format!("what an owner says of itself has {} bytes, at most {STATE_LIMIT_BYTES} are kept", json.len());
        return Err(RepositoryError::Invalid(problem));
    }
    Ok(json)
}

/// How long a lease lasts, in milliseconds of which it has at least one.
pub(crate) fn check_ttl(ttl: Duration) -> Result<i64> {
    match milliseconds(ttl) {
        0 => Err(RepositoryError::Invalid("a lease must last a millisecond at least".to_owned())),
        ttl_ms => Ok(ttl_ms),
    }
}

/// Checks the name of a provider.
pub(crate) fn check_provider(provider: &str) -> Result<()> {
    match provider.len() {
        0 => Err(RepositoryError::Invalid("a provider without a name".to_owned())),
        1..=PROVIDER_LIMIT_BYTES => Ok(()),
        bytes => {
            let problem = format!("the name of a provider has {bytes} bytes, at most {PROVIDER_LIMIT_BYTES} are kept");
            Err(RepositoryError::Invalid(problem))
        }
    }
}

/// Checks what a turn is taken under.
pub(crate) fn check_turn(provider: &str, limits: &RateLimits) -> Result<()> {
    check_provider(provider)?;
    let refused = |problem| Err(RepositoryError::Invalid(format!("a rate limit {problem}")));
    limits.problem().map_or(Ok(()), refused)
}

/// Checks that the numbers of charges can be stored.
pub(crate) fn check_charges(charges: &[Charge]) -> Result<()> {
    for Charge { model, tokens, .. } in charges {
        let counts = [tokens.input, tokens.output, tokens.cache_read, tokens.cache_write, tokens.reasoning];
        if counts.iter().any(|&count| i64::try_from(count).is_err()) {
            let problem = format!("a token count of model `{}` is too large", shortened(model));
            return Err(RepositoryError::Invalid(problem));
        }
    }
    Ok(())
}

/// Checks a report, and gives its result as the JSON that is stored.
pub(crate) fn check_report(report: &AttemptReport) -> Result<Option<Raw>> {
    check_charges(&report.charges)?;
    if let Some(file) = report.output_files.iter().find(|file| i64::try_from(file.size_bytes).is_err()) {
        let problem = format!("the size of output file `{}` is too large", shortened(&file.path));
        return Err(RepositoryError::Invalid(problem));
    }
    let Some(result) = &report.result else { return Ok(None) };
    // One level deeper, as it is in a late report: whether a report can be stored must not depend on its hour.
    to_json(&[result])?;
    Ok(Some(Raw::from(to_json(result)?)))
}

/// A checked report in the form in which a late one is kept.
pub(crate) fn late_result(report: &AttemptReport) -> Raw {
    Raw::from(to_json(report).expect("`check_report` measured how deep it is"))
}

/// How long a unit may not be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    /// When it ends, in whole milliseconds.
    pub(crate) not_before: DateTime<Utc>,
    /// How far away that was when it was set.
    pub(crate) delay_ms: i64,
}

impl Pause {
    /// Until a time; `None` if that is not in the future.
    pub(crate) fn until(not_before: DateTime<Utc>, now: Moment) -> Option<Pause> {
        let not_before = whole_milliseconds(not_before);
        let delay_ms = (not_before - now.wall).num_milliseconds();
        (delay_ms > 0).then_some(Pause { not_before, delay_ms })
    }

    /// For some time; `None` if that is less than a millisecond.
    pub(crate) fn lasting(delay: Duration, now: Moment) -> Option<Pause> {
        let delay = TimeDelta::try_milliseconds(milliseconds(delay)).unwrap_or(TimeDelta::MAX);
        let not_before = now.wall.checked_add_signed(delay).unwrap_or(DateTime::<Utc>::MAX_UTC);
        Pause::until(not_before, now)
    }

    /// Whether it is over, or the calendar was set back since it began.
    pub(crate) fn is_over(&self, now: Moment) -> bool {
        let left_ms = (self.not_before - now.wall).num_milliseconds();
        left_ms <= 0 || left_ms > self.delay_ms
    }
}

/// Whether the process of an earlier attempt may still be at work for that. One that serves several has gone on to others, unless its
/// attempt was lost: then whoever looked after it may only be stopped.
pub(crate) fn may_still_work(process: &Process, was_lost: bool) -> bool {
    was_lost || !process.is_shared
}

/// When an inserted unit has waited too long, in boot time. Only what was accepted waits for somebody; what
/// is submitted never has a deadline, and loses the one it had.
pub(crate) fn queue_deadline_ms(queue_timeout: Option<Duration>, intake: Intake, now: Moment) -> Option<i64> {
    match intake {
        Intake::Open => None,
        Intake::AcceptedBy(_) => queue_timeout.map(|timeout| now.boot_ms.saturating_add(milliseconds(timeout))),
    }
}

/// What is said of a unit whose queue timeout passed.
pub(crate) const QUEUE_TIMEOUT_MESSAGE: &str = "waited longer than its queue timeout";

/// What the slots of a request ask for.
#[derive(Debug)]
pub(crate) struct Wishes {
    /// The units that slots are for. No other slot gets them.
    pub(crate) named: BTreeSet<UnitKey>,
    /// How many slots take whichever is next.
    pub(crate) any: usize,
}

impl Wishes {
    pub(crate) fn of(slots: &[Slot]) -> Wishes {
        let named = slots.iter().filter_map(|slot| slot.unit).collect();
        Wishes { named, any: slots.iter().filter(|slot| slot.unit.is_none()).count() }
    }

    /// How many units must be looked at to find `count` that no slot is for.
    #[cfg(any(test, feature = "sqlite", feature = "sqlite-system", feature = "postgres"))]
    pub(crate) fn to_look_at(&self, count: usize) -> usize {
        count.saturating_add(self.named.len())
    }
}

/// Gives units to slots, in the order of the slots: what they are for, as far as it can be had, or what is next.
pub(crate) fn deal<T>(
    slots: &[Slot],
    mut named: BTreeMap<UnitKey, T>,
    next: Vec<T>,
) -> impl Iterator<Item = (T, &Slot)> {
    let mut next = next.into_iter();
    slots.iter().filter_map(move |slot| {
        let unit = match slot.unit {
            Some(key) => named.remove(&key),
            None => next.next(),
        };
        Some((unit?, slot))
    })
}

/// The status of a worker once it took one more unit; `worker` is its status and load before, if it exists.
pub(crate) fn take(slot: &Slot, worker: Option<(WorkerStatus, u32)>) -> Result<WorkerStatus> {
    // BUSY is who had as many as it could when it took the last; by now that may be more.
    let has_room = |load: u32| load < slot.capacity;
    let worker = worker.map(|(status, load)| match status {
        WorkerStatus::Busy if has_room(load) => (WorkerStatus::Ready, load),
        status => (status, load),
    });
    let (status, load) = worker.unzip();
    let load = load.unwrap_or(0).saturating_add(1);
    let change = if load >= slot.capacity { WorkerChange::TakeToCapacity } else { WorkerChange::TakeBelowCapacity };
    match WorkerStatus::after(status, change) {
        Some(next) if load <= slot.capacity => Ok(next),
        _ => Err(illegal_for_worker(&slot.worker_id, status, change)),
    }
}

/// The status of a worker once one of its attempts ended.
///
/// A worker that was restarted while it held a unit is STARTING, and stays so.
pub(crate) fn give_back(status: WorkerStatus) -> WorkerStatus {
    WorkerStatus::after(Some(status), WorkerChange::GiveBack).unwrap_or(status)
}

/// The status of a worker after a change that was asked for.
pub(crate) fn changed_worker(
    id: &WorkerId,
    status: Option<WorkerStatus>,
    change: WorkerChange,
) -> Result<WorkerStatus> {
    WorkerStatus::after(status, change).ok_or_else(|| illegal_for_worker(id, status, change))
}

fn illegal_for_worker(id: &WorkerId, status: Option<WorkerStatus>, change: WorkerChange) -> RepositoryError {
    let status = status.map_or("ABSENT", WorkerStatus::name);
    RepositoryError::Illegal { what: format!("worker `{id}`"), status, change: change.name() }
}

/// The unit's status after a change, if it can make it.
pub(crate) fn changed_unit(id: &UnitId, status: UnitStatus, change: Change) -> Result<UnitStatus> {
    status.after(change).ok_or_else(|| illegal_for_unit(id, status.name(), change))
}

/// A filter for units that can be wanted after all: by default for all of them, and for no others.
pub(crate) fn to_requeue(filter: &UnitFilter) -> Result<UnitFilter> {
    let can_be = |status: &UnitStatus| status.after(Change::Requeue).is_some();
    if let Some(other) = filter.statuses.iter().find(|status| !can_be(status)) {
        return Err(RepositoryError::Invalid(format!(
            "a unit that is {other} cannot be requeued, only FAILED or CANCELLED"
        )));
    }
    let mut filter = filter.clone();
    if filter.statuses.is_empty() {
        filter.statuses = UnitStatus::ALL.iter().copied().filter(can_be).collect();
    }
    Ok(filter)
}

/// What tells one end of a unit from another: each attempt raises the fence, and what ends while it waits has its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) status: UnitStatus,
    pub(crate) fence: i64,
    pub(crate) completed_at: Option<DateTime<Utc>>,
}

impl End {
    pub(crate) fn of(unit: &WorkUnit) -> End {
        End { status: unit.status, fence: unit.fence, completed_at: unit.completed_at }
    }
}

/// The status of a unit that is wanted after all, if it still is as it was read. What was purged has nothing left to be done.
pub(crate) fn requeued(id: &UnitId, end: End, read: Option<End>, is_purged: bool) -> Result<UnitStatus> {
    let next = changed_unit(id, end.status, Change::Requeue)?;
    if is_purged {
        Err(illegal_for_unit(id, "purged", Change::Requeue))
    } else if read.is_some_and(|read| read != end) {
        Err(illegal_for_unit(id, "no longer as it was read", Change::Requeue))
    } else {
        Ok(next)
    }
}

fn illegal_for_unit(id: &UnitId, status: &'static str, change: Change) -> RepositoryError {
    RepositoryError::Illegal { what: format!("unit `{id}`"), status, change: change.name() }
}

/// Why nothing more is to be expected from an owner; `None` as long as it may live.
pub(crate) fn owner_loss(owner: &Owner, boot_id: &str) -> Option<Staleness> {
    let known = &owner.process.boot_id;
    if owner.ended_at.is_some() {
        None
    } else if !known.is_empty() && !boot_id.is_empty() && known != boot_id {
        Some(Staleness::OtherBoot)
    } else {
        owner_death(owner, boot_id)
    }
}

/// The same where owners are on many machines: of another boot nobody can tell whether it is over, or goes on elsewhere.
pub(crate) fn owner_death(owner: &Owner, boot_id: &str) -> Option<Staleness> {
    let is_dead = owner.ended_at.is_none() && owner.process.is_provably_dead(boot_id);
    is_dead.then_some(Staleness::OwnerDied)
}

/// How long nothing may be heard of an owner that cannot be seen before it is taken for dead.
const LONGEST_SILENCE: Duration = Duration::from_secs(24 * 3_600);

/// What the silence of an owner means of which nobody here can tell whether it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// All its leases would have run out. What waits for it waits for anybody; should it only have been slow, it goes on.
    BeyondLease,
    /// It is taken for dead, once it holds nothing.
    ForGood,
}

/// What it means that an owner renewed its leases last at this time of the machine; `None` if it is to be waited for.
///
/// Whoever can be seen to live is waited for, however long that takes.
pub(crate) fn owner_silence(owner: &Owner, heartbeat_boot_ms: i64, boot_id: &str, now: Moment) -> Option<Silence> {
    let silent_ms = now.boot_ms.saturating_sub(heartbeat_boot_ms);
    let lease_ms = milliseconds(owner.lease);
    if silent_ms < lease_ms || owner.ended_at.is_some() || owner.process.is_provably_alive(boot_id) {
        return None;
    }
    let is_for_good = silent_ms >= lease_ms.max(milliseconds(LONGEST_SILENCE));
    Some(if is_for_good { Silence::ForGood } else { Silence::BeyondLease })
}

/// Why a lease is to be taken back, if it is; `owner_loss` is what became of its owner.
pub(crate) fn staleness(owner_loss: Option<Staleness>, until_ms: i64, now: Moment) -> Option<Staleness> {
    owner_loss.or((until_ms <= now.boot_ms).then_some(Staleness::RanOut))
}

/// A lease as others may see it.
pub(crate) fn lease_view(
    lease: Lease,
    status: UnitStatus,
    since: DateTime<Utc>,
    owner_loss: Option<Staleness>,
    now: Moment,
) -> LeaseView {
    let staleness = staleness(owner_loss, lease.until_ms, now);
    let left_ms = match staleness {
        // Its milliseconds were counted from another start of the machine.
        Some(Staleness::OtherBoot) => 0,
        _ => lease.until_ms.saturating_sub(now.boot_ms),
    };
    let Lease { job_id, unit_id, unit, attempt_number, fence, owner, worker_id, until_ms: _ } = lease;
    LeaseView { unit, unit_id, job_id, status, attempt_number, fence, owner, worker_id, since, left_ms, staleness }
}

/// Messages were to follow more than there are.
pub(crate) fn gap(lease: &Lease, count: u32, follows: u32) -> RepositoryError {
    let Lease { unit_id, attempt_number, .. } = lease;
    RepositoryError::Invalid(format!(
        "attempt {attempt_number} of unit `{unit_id}` has {count} messages, not {follows}"
    ))
}

/// Messages that were to be stored are not there.
pub(crate) fn lost(lease: &Lease, messages: u32) -> RepositoryError {
    let Lease { unit_id, attempt_number, .. } = lease;
    RepositoryError::Invalid(format!("{messages} messages of attempt {attempt_number} of unit `{unit_id}` are lost"))
}

/// The charges of an attempt, by model, once further ones replaced those of the same model.
pub(crate) fn charged(stored: &[Charge], further: &[Charge]) -> Vec<Charge> {
    let all = stored.iter().chain(further).map(|charge| (charge.model.as_str(), charge));
    let by_model: BTreeMap<&str, &Charge> = all.collect();
    by_model.into_values().cloned().collect()
}

/// Whether the end of an attempt counts as a failure of its worker.
pub(crate) fn is_failure(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Failed | Outcome::TimedOut | Outcome::Lost)
}

/// Whether a report is the one that closed an attempt, sent again.
///
/// `stored` and `charges` are what the attempt has now, `closing_digest` is what the journal row says that
/// closed it. Works on hashes, so that a purge in between does not matter.
pub(crate) fn is_own_report(
    attempt: &Attempt,
    stored: &AttemptResult,
    charges: &[Charge],
    closing_digest: Option<&Hash>,
    report: &AttemptReport,
    result: Option<&Raw>,
) -> bool {
    let known = stored.hashes(attempt);
    let hashes = ResultHashes {
        rendered_prompt: known.rendered_prompt,
        result: result.map(|json| Hash::of(json.as_bytes())),
        output: report.output.as_deref().map(|text| Hash::of(text.as_bytes())),
        late_result: None,
        failure_message: known.failure_message,
    };
    let would_be = AttemptResult::of_hashes(hashes, report.output_files.clone());
    let digest = would_be.digest(attempt, &charged(charges, &report.charges));
    // A report without a failure may have become one: given back too often.
    let is_same_failure = report.ending.failure().is_none_or(|failure| {
        attempt.failure.as_ref().is_some_and(|stored| stored.kind == failure.kind)
            && known.failure_message == Some(failure.message_hash())
    });
    known.late_result.is_none()
        && attempt.outcome == Some(report.ending.outcome())
        && is_same_failure
        && closing_digest == Some(&digest)
}

/// Somebody asked for a unit by a key that was never given.
pub(crate) fn no_such_key(unit: UnitKey) -> RepositoryError {
    RepositoryError::Invalid(format!("there is no unit with the key {}", unit.0))
}

/// Somebody asked for an attempt that was never made.
pub(crate) fn no_such_attempt(attempt: AttemptKey) -> RepositoryError {
    RepositoryError::Invalid(format!(
        "there is no attempt {} of the unit with the key {}",
        attempt.number, attempt.unit.0
    ))
}

/// How many items a page has at most, whatever was wished for.
pub(crate) fn page_limit(limit: usize) -> usize {
    limit.clamp(1, PAGE_LIMIT)
}

/// An item of a page, with what decides where the page ends.
pub(crate) struct PageItem<T> {
    /// What to pass as `after` to go on behind it.
    pub(crate) key: i64,
    /// How many bytes of content it has.
    pub(crate) len_bytes: usize,
    /// The item itself.
    pub(crate) item: T,
}

/// Takes items until the page is full by number or by bytes. Looks at one more, to tell if it was the last page.
pub(crate) fn page<T>(limit: usize, items: impl IntoIterator<Item = Result<PageItem<T>>>) -> Result<Page<T>> {
    let mut page = Page { items: Vec::new(), next: None };
    let (mut last, mut total_bytes) = (0, 0_usize);
    for item in items {
        // That there is another is enough to know; whether it can be read is the next page's concern.
        if page.items.len() >= page_limit(limit) || total_bytes >= PAGE_LIMIT_BYTES {
            page.next = Some(last);
            break;
        }
        let PageItem { key, len_bytes, item } = item?;
        page.items.push(item);
        last = key;
        total_bytes = total_bytes.saturating_add(len_bytes);
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};
    use serde_json::{Value, json};

    fn items(count: i64, len_bytes: usize) -> impl Iterator<Item = Result<PageItem<i64>>> {
        (1..=count).map(move |key| Ok(PageItem { key, len_bytes, item: key }))
    }

    #[test]
    fn a_page_ends_by_number_or_by_bytes_and_tells_whether_more_follows() {
        assert_eq!(page(2, items(3, 0)).unwrap(), Page { items: vec![1, 2], next: Some(2) });
        assert_eq!(page(2, items(2, 0)).unwrap(), Page { items: vec![1, 2], next: None });
        assert_eq!(page(0, items(2, 0)).unwrap(), Page { items: vec![1], next: Some(1) });
        assert_eq!(page(9, items(2, PAGE_LIMIT_BYTES)).unwrap(), Page { items: vec![1], next: Some(1) });
        assert_eq!(page(9, items(3, PAGE_LIMIT_BYTES - 1)).unwrap(), Page { items: vec![1, 2], next: Some(2) });
        assert_eq!(page(usize::MAX, items(2_000, 0)).unwrap().items.len(), PAGE_LIMIT);
    }

    #[test]
    fn a_worker_that_was_busy_takes_more_once_it_can_have_more() {
        let slot = |capacity| Slot::with_capacity(WorkerId::new("w1").unwrap(), capacity);
        let busy = |load| Some((WorkerStatus::Busy, load));
        assert_eq!(take(&slot(1), None).unwrap(), WorkerStatus::Busy);
        assert!(take(&slot(1), busy(1)).is_err());
        assert_eq!(take(&slot(3), busy(1)).unwrap(), WorkerStatus::Ready);
        assert_eq!(take(&slot(2), busy(1)).unwrap(), WorkerStatus::Busy);
        assert!(take(&slot(2), busy(2)).is_err());
        assert!(take(&slot(2), Some((WorkerStatus::Tainted, 1))).is_err());
    }

    #[test]
    fn a_pause_is_over_in_time_or_when_the_calendar_was_set_back() {
        let clock = ManualClock::new();
        let pause = Pause::lasting(Duration::from_secs(10), clock.now()).unwrap();
        assert!(!pause.is_over(clock.now()));
        clock.jump_wall(TimeDelta::milliseconds(-1));
        assert!(pause.is_over(clock.now()));
        clock.jump_wall(TimeDelta::milliseconds(10_000));
        assert!(!pause.is_over(clock.now()));
        clock.jump_wall(TimeDelta::milliseconds(1));
        assert!(pause.is_over(clock.now()));
    }

    #[test]
    fn odd_times_are_no_pause_or_a_very_long_one() {
        let now = ManualClock::new().now();
        assert_eq!(Pause::lasting(Duration::from_micros(999), now), None);
        assert_eq!(Pause::until(now.wall, now), None);
        for pause in [Pause::lasting(Duration::MAX, now), Pause::until(DateTime::<Utc>::MAX_UTC, now)] {
            assert!(!pause.unwrap().is_over(now));
        }
        assert_eq!(Pause::until(DateTime::<Utc>::MIN_UTC, now), None);
    }

    #[test]
    fn units_are_dealt_in_the_order_of_the_slots_and_each_once() {
        let slot = |name: &str| Slot::new(WorkerId::new(name).unwrap());
        let [had, gone] = [UnitKey(7), UnitKey(8)];
        let slots = [slot("a"), slot("b").for_unit(had), slot("c").for_unit(gone), slot("d").for_unit(had), slot("e")];
        let wishes = Wishes::of(&slots);
        assert_eq!((wishes.any, wishes.to_look_at(1), wishes.named), (2, 3, BTreeSet::from([had, gone])));
        let dealt = |next: Vec<i32>| {
            let dealt = deal(&slots, BTreeMap::from([(had, 7)]), next);
            dealt.map(|(unit, slot)| (unit, slot.worker_id.as_str())).collect::<Vec<_>>()
        };
        assert_eq!(dealt(vec![1, 2]), [(1, "a"), (7, "b"), (2, "e")]);
        assert_eq!(dealt(vec![1]), [(1, "a"), (7, "b")]);
        assert_eq!(dealt(vec![]), [(7, "b")]);
    }

    #[test]
    fn a_worker_takes_up_to_its_capacity() {
        let slot = Slot::with_capacity(WorkerId::new("w1").unwrap(), 2);
        assert_eq!(take(&slot, None).unwrap(), WorkerStatus::Ready);
        assert_eq!(take(&slot, Some((WorkerStatus::Ready, 1))).unwrap(), WorkerStatus::Busy);
        let error = take(&slot, Some((WorkerStatus::Busy, 2))).unwrap_err().to_string();
        assert_eq!(error, "worker `w1` is BUSY, which allows no TAKE_TO_CAPACITY");
        assert!(take(&slot, Some((WorkerStatus::Ready, 2))).is_err());
        assert!(take(&slot, Some((WorkerStatus::Starting, 0))).is_err());
        assert_eq!(take(&slot, Some((WorkerStatus::Busy, 1))).unwrap(), WorkerStatus::Busy, "it could have one before");
    }

    #[test]
    fn a_report_that_can_be_finished_can_also_be_late() {
        let nested = |depth: usize| (0..depth).fold(Value::Null, |inner, _| json!([inner]));
        let report = AttemptReport::completed().result(nested(255));
        assert!(check_report(&report).unwrap().is_some());
        assert!(!late_result(&report).as_bytes().is_empty());
        assert!(check_report(&AttemptReport::completed().result(nested(256))).is_err());
    }
}
