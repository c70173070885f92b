//! Which units there are: filtered, sorted, in pages.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::attempt::Attempt;
use crate::repository::{Archive, PAGE_LIMIT, Result, UnitFilter, UnitSummary};

/// Which units are wanted, in which order, and how many. The default is the first hundred of all of them, in the order of insertion.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct List {
    /// What the repository looks for itself.
    pub filter: UnitFilter,
    /// Only with this in its name.
    pub id_contains: Option<String>,
    /// Only if one of its attempts used this model.
    pub model: Option<String>,
    /// Only if one of its attempts was made by this worker.
    pub worker: Option<String>,
    /// Only if it ended, or was inserted if it has not ended, at that time or later.
    pub since: Option<DateTime<Utc>>,
    /// Only if it ended, or was inserted if it has not ended, before that time.
    pub until: Option<DateTime<Utc>>,
    /// What they are sorted by.
    pub sort: Sort,
    /// Whether the order is turned round.
    pub is_reversed: bool,
    /// How many come before the first.
    pub offset: usize,
    /// How many.
    pub limit: usize,
}

impl Default for List {
    fn default() -> List {
        List {
            filter: UnitFilter::default(),
            id_contains: None,
            model: None,
            worker: None,
            since: None,
            until: None,
            sort: Sort::default(),
            is_reversed: false,
            offset: 0,
            limit: 100,
        }
    }
}

/// What units are sorted by. What is equal, or has none of it, stays in the order of insertion; what has none comes last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Sort {
    /// When they were inserted, first ones first.
    #[default]
    Inserted,
    /// Their names.
    Id,
    /// When they ended, latest first.
    Ended,
    /// How long they took, all their attempts together, longest first.
    Duration,
    /// What all their attempts cost, dearest first.
    Cost,
    /// How many attempts they had, most first.
    Attempts,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Listed {
    /// The units, in order.
    pub units: Vec<UnitSummary>,
    /// Whether there are more behind them.
    pub has_more: bool,
}

impl UnitSummary {
    /// How long it was executed, in all its attempts together; one that is being made has taken so long by `now`.
    pub fn duration(&self, now: DateTime<Utc>) -> Option<Duration> {
        let so_far = |attempt: &Attempt| attempt.execution_time().or_else(|| (now - attempt.started_at?).to_std().ok());
        let times = self.attempts.iter().filter_map(|summary| so_far(&summary.attempt));
        times.reduce(Duration::saturating_add)
    }
}

/// What is sorted by, such that the smaller comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Name(String),
    /// Larger numbers first.
    Number(Reverse<i128>),
    None,
}

/// A unit and its place; the largest of a heap of them is the one that comes last.
struct Ranked {
    rank: Rank,
    is_reversed: bool,
    unit: UnitSummary,
}

impl Ord for Ranked {
    fn cmp(&self, other: &Ranked) -> Ordering {
        let by_rank = match (&self.rank, &other.rank) {
            // What has none comes last, whichever way the rest is turned.
            (Rank::None, _) | (_, Rank::None) => self.rank.cmp(&other.rank),
            _ if self.is_reversed => other.rank.cmp(&self.rank),
            _ => self.rank.cmp(&other.rank),
        };
        by_rank.then(self.unit.key.cmp(&other.unit.key))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Ranked) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Ranked) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ranked {}

/// Lists units. In the order of insertion only as many are read as are asked for; for another order all that the filter means are,
/// and no more are kept than the page and what comes before it.
///
/// ```
/// use workcrew::audit::list::{List, Sort, list};
/// use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("pages"))?.id;
/// repository.queue_units(job, &["b", "a", "c"].map(|id| NewUnit::new(id).prompt("Go.")))?;
///
/// let mut wanted = List::default();
/// (wanted.sort, wanted.limit) = (Sort::Id, 2);
/// let listed = list(&repository, &wanted)?;
/// assert_eq!(listed.units[0].id.as_str(), "a");
/// assert!(listed.has_more);
/// # Ok::<(), workcrew::RepositoryError>(())
/// ```
///
/// # Errors
///
/// [`UnknownJob`](crate::RepositoryError::UnknownJob), and what the storage says.
pub fn list(archive: &dyn Archive, wanted: &List) -> Result<Listed> {
    if let Some(job_id) = wanted.filter.job_id {
        archive.job(job_id)?;
    }
    let is_walk = wanted.sort == Sort::Inserted && !wanted.is_reversed;
    let end = wanted.offset.saturating_add(wanted.limit);
    // One more tells whether there are more.
    let room = end.saturating_add(1);
    let now = Utc::now();
    let mut heap: BinaryHeap<Ranked> = BinaryHeap::new();
    // What is asked for a page at a time is read no further than that.
    let page = if is_walk { room } else { PAGE_LIMIT };
    in_pages(archive, &wanted.filter, page, |unit| {
        if is_meant(wanted, &unit) {
            heap.push(Ranked { rank: rank(wanted.sort, &unit, now), is_reversed: wanted.is_reversed, unit });
        }
        if heap.len() > room {
            heap.pop();
        }
        !(is_walk && heap.len() == room)
    })?;
    let found = heap.into_sorted_vec();
    let has_more = found.len() > end;
    let units = found.into_iter().map(|ranked| ranked.unit).skip(wanted.offset).take(wanted.limit).collect();
    Ok(Listed { units, has_more })
}

/// Goes through all units that a filter means, in the order of insertion, until it is told not to go on.
///
/// # Errors
///
/// What the storage says.
pub fn for_each(archive: &dyn Archive, filter: &UnitFilter, see: impl FnMut(UnitSummary) -> bool) -> Result<()> {
    in_pages(archive, filter, PAGE_LIMIT, see)
}

fn in_pages(
    archive: &dyn Archive,
    filter: &UnitFilter,
    limit: usize,
    mut see: impl FnMut(UnitSummary) -> bool,
) -> Result<()> {
    let mut next = Some(0);
    while let Some(after) = next {
        let page = archive.summaries(filter, after, limit)?;
        for unit in page.items {
            if !see(unit) {
                return Ok(());
            }
        }
        // An archive that does not get on must not keep its caller for ever.
        next = page.next.filter(|&next| next > after);
    }
    Ok(())
}

fn is_meant(wanted: &List, unit: &UnitSummary) -> bool {
    let at = unit.completed_at.unwrap_or(unit.created_at);
    let has_model = |model: &String| unit.charges().any(|charge| charge.model == *model);
    let has_worker = |worker: &String| unit.attempts.iter().any(|of| of.attempt.worker_id.as_str() == worker);
    wanted.id_contains.as_ref().is_none_or(|part| unit.id.as_str().contains(part.as_str()))
        && wanted.model.as_ref().is_none_or(has_model)
        && wanted.worker.as_ref().is_none_or(has_worker)
        && wanted.since.is_none_or(|since| at >= since)
        && wanted.until.is_none_or(|until| at < until)
}

fn rank(sort: Sort, unit: &UnitSummary, now: DateTime<Utc>) -> Rank {
    let number = |number: i128| Rank::Number(Reverse(number));
    let optional = |found: Option<i128>| found.map_or(Rank::None, number);
    match sort {
        Sort::Inserted => number(-i128::from(unit.key.0)),
        Sort::Id => Rank::Name(unit.id.to_string()),
        Sort::Ended => optional(unit.completed_at.map(|at| i128::from(at.timestamp_millis()))),
        Sort::Duration => {
            optional(unit.duration(now).map(|duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX)))
        }
        Sort::Cost => {
            let cost = unit.cost();
            let is_unknown = unit.attempts.is_empty() || (cost.amount.nanos() == 0 && !cost.is_known());
            optional((!is_unknown).then(|| i128::from(cost.amount.nanos())))
        }
        Sort::Attempts => number(unit.attempts.len() as i128),
    }
}
