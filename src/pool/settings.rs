//! The settings of a pool, as they are if nobody says anything, and what makes no sense: that is refused when the pool is built.

use std::time::Duration;

use super::capacity::{CapacityStrategy, WORKER_CAPACITY_LIMIT};
use super::error::StartError;
use super::ready::CrewLimits;
use super::retry::RetryPolicy;
use super::same_work::ToldBy;
use super::scaling::Scaling;
use crate::executor::Executor;
use crate::limits::{Expectation, RateLimits};
use crate::money::Money;
use crate::repository::rules;
use crate::same_work::Parameters;
use crate::unit::Affinity;

/// The most workers a pool may have.
const MAX_WORKERS_LIMIT: usize = 100_000;

/// The longest time a setting may name: what is longer is a mistake in the unit.
const LONGEST_TIME: Duration = Duration::from_secs(366 * 24 * 3_600);

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) min_workers: usize,
    pub(super) max_workers: usize,
    pub(super) scaling: Scaling,
    pub(super) worker_capacity: u32,
    pub(super) capacity_strategy: CapacityStrategy,
    pub(super) affinity: Affinity,
    pub(super) affinity_ttl: Duration,
    pub(super) max_queue_size: usize,
    pub(super) queue_timeout: Option<Duration>,
    pub(super) startup_timeout: Duration,
    pub(super) startup_batch: usize,
    pub(super) startup_batch_delay: Duration,
    pub(super) max_worker_age: Option<Duration>,
    pub(super) max_units_per_worker: Option<u64>,
    pub(super) taint_for: Duration,
    pub(super) timeout: Duration,
    pub(super) retry: RetryPolicy,
    pub(super) lease: Duration,
    pub(super) heartbeat: Duration,
    pub(super) poll_interval: Duration,
    pub(super) kill_grace: Duration,
    pub(super) shutdown_grace: Duration,
    pub(super) reservation: Duration,
    /// `None` means as many as there are workers.
    pub(super) max_abandoned: Option<usize>,
    pub(super) conversation_limit_bytes: u64,
    pub(super) budget: Option<Money>,
    pub(super) rate_limits: Option<RateLimits>,
    pub(super) provider: Option<String>,
    /// By what the same work is told, if it is done once.
    pub(super) same_work: Option<ToldBy>,
    pub(super) expectation: Expectation,
    pub(super) label: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            min_workers: 1,
            max_workers: 4,
            scaling: Scaling::OnDemand,
            worker_capacity: 1,
            capacity_strategy: CapacityStrategy::Pool,
            affinity: Affinity::Hint,
            affinity_ttl: Duration::from_secs(15 * 60),
            max_queue_size: 1_000,
            queue_timeout: None,
            startup_timeout: Duration::from_secs(30),
            startup_batch: 10,
            startup_batch_delay: Duration::from_millis(500),
            max_worker_age: None,
            max_units_per_worker: None,
            taint_for: Duration::ZERO,
            timeout: Duration::from_secs(600),
            retry: RetryPolicy::default(),
            lease: Duration::from_secs(60),
            heartbeat: Duration::from_secs(15),
            poll_interval: Duration::from_secs(5),
            kill_grace: Duration::from_millis(1_500),
            shutdown_grace: Duration::from_secs(10),
            reservation: Duration::from_secs(30),
            max_abandoned: None,
            conversation_limit_bytes: 256 * 1024 * 1024,
            budget: None,
            rate_limits: None,
            provider: None,
            same_work: None,
            expectation: Expectation::default(),
            label: "workcrew".to_owned(),
        }
    }
}

impl Settings {
    pub(super) fn check(&self) -> Result<(), StartError> {
        let refuse = |name, problem: String| Err(StartError::Setting { name, problem });
        if let Some(problem) = max_workers_problem(self.max_workers) {
            return refuse("max_workers", problem);
        }
        if let Some(problem) = self.rate_limits.and_then(|limits| limits.problem()) {
            return refuse("rate_limits", problem);
        }
        if let Some(provider) = &self.provider
            && let Err(problem) = rules::check_provider(provider)
        {
            return refuse("provider", format!("is not one: {problem}"));
        }
        if self.min_workers > self.max_workers {
            let problem =
                format!("is {}, which is more than the {} of `max_workers`", self.min_workers, self.max_workers);
            return refuse("min_workers", problem);
        }
        if self.worker_capacity == 0 {
            return refuse("worker_capacity", "is 0, which lets nothing be done".to_owned());
        }
        if self.worker_capacity > WORKER_CAPACITY_LIMIT {
            let problem = format!("is {}, and {WORKER_CAPACITY_LIMIT} is the most", self.worker_capacity);
            return refuse("worker_capacity", problem);
        }
        if self.startup_batch == 0 {
            return refuse("startup_batch", "is 0, which starts nothing".to_owned());
        }
        if self.max_units_per_worker == Some(0) {
            return refuse("max_units_per_worker", "is 0, which lets nothing be done".to_owned());
        }
        if let Scaling::Threshold { queued: 0, .. } = self.scaling {
            return refuse("scaling", "has a threshold of 0, which is always reached".to_owned());
        }
        let shortest = Duration::from_millis(1);
        let times = [
            ("queue_timeout", self.queue_timeout.unwrap_or(shortest), shortest),
            ("startup_timeout", self.startup_timeout, shortest),
            ("startup_batch_delay", self.startup_batch_delay, Duration::ZERO),
            ("max_worker_age", self.max_worker_age.unwrap_or(shortest), shortest),
            ("scaling", self.scaling.idle_limit().or(self.scaling.cool_down()).unwrap_or_default(), Duration::ZERO),
            ("taint_for", self.taint_for, Duration::ZERO),
            ("affinity_ttl", self.affinity_ttl, Duration::ZERO),
            ("timeout", self.timeout, shortest),
            ("lease", self.lease, shortest),
            ("heartbeat", self.heartbeat, shortest),
            ("poll_interval", self.poll_interval, shortest),
            ("reservation", self.reservation, shortest),
            ("kill_grace", self.kill_grace, Duration::ZERO),
            ("shutdown_grace", self.shutdown_grace, Duration::ZERO),
            ("retry", self.retry.limit(), Duration::ZERO),
        ];
        for (name, time, shortest) in times {
            if time < shortest {
                return refuse(name, format!("is {time:?}, which leaves no time at all"));
            }
            if time > LONGEST_TIME {
                return refuse(name, format!("is {time:?}, which is longer than a year"));
            }
        }
        if self.heartbeat >= self.lease / 2 {
            let problem =
                format!("is {:?}, which must be less than half the lease of {:?}", self.heartbeat, self.lease);
            return refuse("heartbeat", problem);
        }
        if self.conversation_limit_bytes == 0 {
            return refuse("conversation_limit_bytes", "is 0, which lets nothing be said".to_owned());
        }
        Ok(())
    }

    /// How many units a worker can have in hand, if nobody has to be asked.
    pub(super) fn known_capacity(&self) -> Option<u32> {
        self.capacity_strategy.known(self.worker_capacity)
    }

    /// How many units a worker can have in hand, by what its executor says.
    pub(super) fn capacity_of(&self, of_executor: Option<u32>) -> u32 {
        self.capacity_strategy.resolve(self.worker_capacity, of_executor)
    }

    /// Whom the pool asks, as far as anybody says.
    pub(super) fn provider_of(&self, executor: &dyn Executor) -> Option<String> {
        let named = self.provider.clone().or_else(|| executor.provider());
        named.or_else(|| self.rate_limits.map(|_| executor.name().to_owned()))
    }

    /// What the executor's answers depend on besides the prompt, if the same work is to be done once.
    pub(super) fn parameters_of(&self, executor: &dyn Executor) -> Result<Option<Parameters>, StartError> {
        match self.same_work {
            None => Ok(None),
            Some(ToldBy::Caller(parameters)) => Ok(Some(parameters)),
            Some(ToldBy::Executor) => executor.parameters().map(Some).ok_or_else(|| {
                let name = executor.name();
                let problem = format!(
                    "cannot be kept: the executor `{name}` does not tell what its answers depend on besides the prompt"
                );
                StartError::Setting { name: "same_work_once", problem }
            }),
        }
    }

    pub(super) fn crew(&self) -> CrewLimits {
        CrewLimits {
            min_workers: self.min_workers,
            max_workers: self.max_workers,
            scaling: self.scaling,
            startup_batch: self.startup_batch,
            startup_pause: self.startup_batch_delay,
            max_units_per_worker: self.max_units_per_worker,
            max_abandoned: self.max_abandoned,
        }
    }
}

/// What is wrong with a number of workers.
pub(super) fn max_workers_problem(max_workers: usize) -> Option<String> {
    match max_workers {
        0 => Some("is 0, which lets nothing be done".to_owned()),
        1..=MAX_WORKERS_LIMIT => None,
        _ => Some(format!("is {max_workers}, and {MAX_WORKERS_LIMIT} is the most")),
    }
}
