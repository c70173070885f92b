//! Who asks for a change, and why: the journal keeps both.

use clap::Args;
use workcrew::repository::By;

#[derive(Args, Clone, Debug)]
pub struct Who {
    /// Who asks for it, for the journal [default: the user who is logged in]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Why, for the journal [default: the command as it was given]
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

impl Who {
    pub fn by(&self) -> By {
        let reason = self.reason.clone().unwrap_or_else(as_it_was_given);
        By::new(self.by.clone().unwrap_or_else(user), reason)
    }
}

/// Whoever gives this command, by giving it.
pub fn this_command() -> By {
    By::new(user(), as_it_was_given())
}

fn user() -> String {
    let names = ["SUDO_USER", "USER", "LOGNAME"].into_iter().filter_map(|name| std::env::var(name).ok());
    let name = names.into_iter().find(|name| !name.is_empty());
    name.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()))
}

fn as_it_was_given() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    format!("workcrew {}", arguments.collect::<Vec<_>>().join(" "))
}
