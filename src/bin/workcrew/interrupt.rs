//! Ctrl-C: once lets what runs come to its end, twice ends it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use workcrew::Stop;

use crate::notes;

/// Whether somebody has asked to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Listens for signals, and stops what runs as they ask for.
    pub fn watch(stop: impl Fn(Stop) + Send + 'static) -> io::Result<Interrupt> {
        let interrupt = Interrupt::default();
        let count = Arc::clone(&interrupt.0);
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let listen = move || {
            for _ in signals.forever() {
                let first = count.fetch_add(1, Ordering::SeqCst) == 0;
                // First, since nobody may be there any more to be told.
                stop(if first { Stop::Drain } else { Stop::Now });
                if first {
                    notes::tell("stopping: what runs may come to its end; once more ends it at once");
                }
            }
        };
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
        Ok(interrupt)
    }

    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}
