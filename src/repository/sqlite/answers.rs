//! Telling the callers of a group that their changes were made.

use std::thread::JoinHandle;

use crossbeam_channel::{Sender, bounded};

use super::writer::Waiting;

/// The thread that wakes the callers of a large group, while the writer goes on with the next.
///
/// Waking a caller and freeing what it brought takes a good part of the time that its change took.
pub(super) struct Answers {
    groups: Option<Sender<Vec<Waiting>>>,
    thread: Option<JoinHandle<()>>,
}

/// Groups up to this size are told at once: handing them over would make their callers wait longer.
const TOLD_AT_ONCE: usize = 8;

/// How many groups may wait to be told before the writer tells them itself.
const GROUPS_TO_TELL: usize = 4;

impl Answers {
    pub(super) fn start() -> std::io::Result<Answers> {
        let (groups, told) = bounded::<Vec<Waiting>>(GROUPS_TO_TELL);
        let tell = move || told.iter().for_each(tell_made);
        let thread = std::thread::Builder::new().name("workcrew-answers".to_owned()).spawn(tell)?;
        Ok(Answers { groups: Some(groups), thread: Some(thread) })
    }

    /// Tells that changes were made.
    pub(super) fn tell(&self, group: Vec<Waiting>) {
        match &self.groups {
            Some(groups) if group.len() > TOLD_AT_ONCE => {
                if let Err(refused) = groups.try_send(group) {
                    tell_made(refused.into_inner());
                }
            }
            _ => tell_made(group),
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.groups = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tell_made(group: Vec<Waiting>) {
    group.into_iter().for_each(Waiting::tell_made);
}
