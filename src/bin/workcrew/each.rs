//! Several units that are named one by one: what cannot be done for one is done for the others all the same.

use std::process::ExitCode;

use crate::notes;
use crate::trouble::{Trouble, code};

/// Does something for each of them, and tells of those for which it could not be. If there is but one, its trouble is the command's.
pub fn each(ids: &[String], mut act: impl FnMut(&str) -> Result<(), Trouble>) -> Result<ExitCode, Trouble> {
    let mut is_done_for_all = true;
    for id in ids {
        match act(id) {
            Err(trouble @ Trouble::Usage(_)) if ids.len() > 1 => {
                is_done_for_all = false;
                notes::tell(&format!("workcrew: {trouble}"));
            }
            acted => acted?,
        }
    }
    Ok(if is_done_for_all { code::DONE } else { ExitCode::from(code::NOT_ALL_COMPLETED) })
}
