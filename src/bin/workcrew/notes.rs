//! What is told on standard error while a screen may be drawn there: the screen makes room for it.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use indicatif::MultiProgress;
use workcrew::audit::visible::line;

static SCREEN: Mutex<Option<MultiProgress>> = Mutex::new(None);

/// From now on there is this screen, or none; gives the one that there was.
pub fn set_screen(screen: Option<MultiProgress>) -> Option<MultiProgress> {
    std::mem::replace(&mut *SCREEN.lock().unwrap_or_else(PoisonError::into_inner), screen)
}

/// Tells a line, made harmless.
pub fn tell(text: &str) {
    let screen = SCREEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    // A terminal that was closed, or a full disk, is no reason to stop.
    let print = || drop(writeln!(io::stderr(), "{}", line(text)));
    match screen {
        Some(screen) => screen.suspend(print),
        None => print(),
    }
}

/// What the library logs is told here too.
pub fn init_log() {
    let defaults = env_logger::Env::default().default_filter_or("warn");
    env_logger::Builder::from_env(defaults)
        .format(|_, record| {
            tell(&format!("workcrew: {}: {}", record.level().as_str().to_ascii_lowercase(), record.args()));
            Ok(())
        })
        .init();
}
