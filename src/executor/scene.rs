//! A call without a pool, for the tests of executors.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;

use super::{Call, CancelToken, Recorder};
use crate::attempt::Process;
use crate::clock::{Clock, ManualClock};
use crate::conversation::Message;
use crate::job::NewJob;
use crate::lease::{Claim, NewOwner};
use crate::money::Charge;
use crate::repository::memory::MemoryRepository;
use crate::repository::{ClaimRequest, Claimant, Intake, Repository, Scope, Slot};
use crate::unit::NewUnit;
use crate::worker::WorkerId;

/// What an executor told, in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Told {
    Message(Message),
    Partial(String),
    Session(String),
    Process(Process),
    Usage(Charge),
    Checkpoint(Value),
    Hold(Duration),
}

/// Keeps what an executor tells.
#[derive(Debug, Default)]
struct Notebook(Mutex<Vec<Told>>);

impl Notebook {
    fn note(&self, told: Told) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(told);
    }
}

impl Recorder for Notebook {
    fn messages(&self, messages: Vec<Message>) {
        messages.into_iter().for_each(|message| self.note(Told::Message(message)));
    }

    fn partial(&self, text: &str) {
        self.note(Told::Partial(text.to_owned()));
    }

    fn session(&self, session_id: &str) {
        self.note(Told::Session(session_id.to_owned()));
    }

    fn process(&self, process: Process) {
        self.note(Told::Process(process));
    }

    fn usage(&self, charge: Charge) {
        self.note(Told::Usage(charge));
    }

    fn checkpoint(&self, value: &Value) {
        self.note(Told::Checkpoint(value.clone()));
    }

    fn hold(&self, pause: Duration, _: &str) {
        self.note(Told::Hold(pause));
    }
}

/// One claimed unit, and all that a call to its executor needs.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) claim: Claim,
    pub(crate) prompt: String,
    pub(crate) cancel: CancelToken,
    clock: ManualClock,
    notebook: Notebook,
}

impl Scene {
    /// The first attempt at a unit.
    pub(crate) fn of(unit: NewUnit, prompt: &str) -> Scene {
        let clock = ManualClock::new();
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("scene")).unwrap();
        repository.insert(job.id, &[unit.prompt(prompt)], Intake::Open).unwrap();
        let owner = repository.register_owner(&NewOwner::new(Process::this(&clock.boot_id()), "scene")).unwrap();
        let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
        let claimant = Claimant::new(owner, Duration::from_secs(60));
        let request = ClaimRequest::new(job.id, claimant, Scope::Pending, slots);
        let claim = repository.claim(&request).unwrap().remove(0);
        Scene { claim, prompt: prompt.to_owned(), cancel: CancelToken::new(), clock, notebook: Notebook::default() }
    }

    /// What the executor is called with.
    pub(crate) fn call(&self) -> Call<'_> {
        let timeout = Duration::from_secs(600);
        Call {
            claim: &self.claim,
            prompt: &self.prompt,
            timeout,
            deadline_ms: self.clock.now().boot_ms + 600_000,
            grace: Duration::from_millis(1_500),
            cancel: &self.cancel,
            clock: &self.clock,
            recorder: &self.notebook,
        }
    }

    /// What was told so far.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.notebook.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The conversation so far.
    pub(crate) fn messages(&self) -> Vec<Message> {
        let message = |told| match told {
            Told::Message(message) => Some(message),
            _ => None,
        };
        self.told().into_iter().filter_map(message).collect()
    }
}
