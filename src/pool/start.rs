//! How a pool comes to life: it registers, takes back what the dead were holding, and starts its threads but the workers'.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::core::Core;
use super::error::StartError;
use super::init::InitHook;
use super::stats::PoolPhase;
use super::supervisor::Helpers;
use super::{claimer, heartbeat, inside, news, reporter, run, supervisor};
use crate::executor::ExecuteError;
use crate::lease::NewOwner;
use crate::panics;
use crate::process::Process;
use crate::sync::thread::{self, JoinHandle};

/// Registers the pool and starts all its threads but the workers'. Returns the supervisor's.
pub(super) fn start_threads(core: &Arc<Core>, hook: Option<Box<dyn InitHook>>) -> Result<JoinHandle<()>, StartError> {
    let settings = &core.settings;
    let owner = NewOwner::new(Process::this(&core.clock.boot_id()), &settings.label);
    let owner = owner.lease(settings.lease).budget(settings.budget);
    let owner = core.repository().register_owner(&owner).or_else(|error| match error.is_passing() {
        true => core.repository().register_owner(&owner),
        false => Err(error),
    });
    core.start_as(owner.map_err(StartError::Repository)?);
    news::listen(core);
    panics::contain("the first sweep", || heartbeat::sweep(core));
    core.clock.on_jump(Box::new({
        let core = Arc::downgrade(core);
        move || {
            let core = core.upgrade();
            if let Some(core) = &core {
                core.ready.supervisor.wake();
                core.heartbeat.wake();
                core.turns.wake_all();
            }
            core.is_some()
        }
    }));

    let supervisor = start_helpers(core, hook)
        .and_then(|helpers| spawn(core, "workcrew-supervisor", move |core| supervisor::serve(core, helpers)));
    supervisor.map_err(|error| {
        // Those that did start have nothing to do, and end.
        core.end_helpers();
        if let Err(error) = core.repository().end_owner(core.owner()) {
            log::warn!("{}: the end of the pool was not stored: {error}", core.job.id);
        }
        StartError::Thread(error)
    })
}

fn start_helpers(core: &Arc<Core>, hook: Option<Box<dyn InitHook>>) -> io::Result<Helpers> {
    let beat = heartbeat::Beat::first(core);
    Ok(Helpers {
        claimer: spawn(core, "workcrew-claimer", claimer::serve)?,
        heartbeat: spawn(core, "workcrew-heartbeat", move |core| heartbeat::serve(core, beat))?,
        reporter: spawn(core, "workcrew-reporter", |core| reporter::serve(core))?,
        init: start_hook(core, hook)?,
    })
}

/// Calls the init hook on a thread of its own: the pool can be stopped while it runs.
fn start_hook(core: &Arc<Core>, hook: Option<Box<dyn InitHook>>) -> io::Result<Option<JoinHandle<()>>> {
    let Some(hook) = hook.filter(|_| core.ready.phase() == PoolPhase::Initializing) else {
        core.ready.hook_ends(Ok(()));
        return Ok(None);
    };
    let call = move |core: &Arc<Core>| {
        inside::enter(core.number);
        let returned =
            catch_unwind(AssertUnwindSafe(|| hook.init(&core.init_cancel).map_err(ExecuteError::with_causes_told)));
        let returned = returned.unwrap_or_else(|payload| Err(run::panicked(payload)));
        core.ready.hook_ends(returned.map_err(|error| format!("init_hook: {error}")));
    };
    spawn(core, "workcrew-init", call).map(Some)
}

/// Starts a thread of the pool.
pub(super) fn spawn(
    core: &Arc<Core>,
    name: &str,
    serve: impl FnOnce(&Arc<Core>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    thread::Builder::new().name(name.to_owned()).spawn(move || serve(&core))
}
