//! How often a provider may be asked, as it is said on the command line and kept with a job.

use clap::Args;
use serde::{Deserialize, Serialize};
use workcrew::limits::RateLimits;

#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// How many requests there may be in any minute, from all processes on the database that ask the same provider; `none` for any number. Kept with the job, as the next three are [default: what was last said for the job, or any number]
    #[arg(long, value_name = "N", value_parser = most)]
    #[serde(skip_serializing_if = "Option::is_none")]
    rpm: Option<Most>,
    /// How many tokens may be sent in any minute; what the provider has in its cache does not count
    #[arg(long, value_name = "N", value_parser = most)]
    #[serde(skip_serializing_if = "Option::is_none")]
    input_tpm: Option<Most>,
    /// How many tokens may be answered in any minute; an attempt that runs counts as much as it may answer
    #[arg(long, value_name = "N", value_parser = most)]
    #[serde(skip_serializing_if = "Option::is_none")]
    output_tpm: Option<Most>,
    /// How many units may be executed at a time in all processes; --workers is how many in this one
    #[arg(long, value_name = "N", value_parser = most)]
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<Most>,
}

/// How much there may be; `None` is without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
struct Most(Option<u64>);

/// Reads a number from 1, or `none` for no limit.
fn most(text: &str) -> Result<Most, String> {
    let number = text.parse().ok().filter(|&number: &u64| number > 0);
    match (text, number) {
        ("none", _) => Ok(Most(None)),
        (_, Some(number)) => Ok(Most(Some(number))),
        _ => Err(format!("`{text}` is no number from 1, and not `none`")),
    }
}

impl Rates {
    pub fn is_empty(&self) -> bool {
        *self == Rates::default()
    }

    /// What is said now, over what was said before. A limit that was taken away is none.
    pub fn over(self, kept: Rates) -> Rates {
        let over = |now: Option<Most>, kept: Option<Most>| now.or(kept).filter(|Most(most)| most.is_some());
        Rates {
            rpm: over(self.rpm, kept.rpm),
            input_tpm: over(self.input_tpm, kept.input_tpm),
            output_tpm: over(self.output_tpm, kept.output_tpm),
            concurrency: over(self.concurrency, kept.concurrency),
        }
    }

    /// For a pool; `None` if nothing is limited.
    pub fn limits(&self) -> Option<RateLimits> {
        let most = |most: Option<Most>| most.and_then(|Most(most)| most);
        let mut limits = RateLimits::new();
        limits.requests = most(self.rpm);
        limits.input_tokens = most(self.input_tpm);
        limits.output_tokens = most(self.output_tpm);
        limits.concurrency = most(self.concurrency);
        Some(limits).filter(|&limits| limits != RateLimits::new())
    }
}
