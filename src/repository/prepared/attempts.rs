//! What an attempt begins with, and what it reports at its end.

use crate::attempt::{AttemptReport, Beginning, Provenance, ResultHashes};
use crate::chain::Hash;
use crate::conversation::{Raw, to_json};
use crate::repository::{Result, rules};

/// What an attempt begins with, serialised by its caller, so that the writer need not.
#[derive(Debug)]
pub(in crate::repository) struct BeginningRow {
    pub(in crate::repository) rendered_prompt: Option<String>,
    pub(in crate::repository) provenance: Option<Provenance>,
    pub(in crate::repository) provenance_json: Option<Vec<u8>>,
    pub(in crate::repository) digest: Hash,
}

impl BeginningRow {
    pub(in crate::repository) fn of(beginning: &Beginning) -> Result<BeginningRow> {
        Ok(BeginningRow {
            rendered_prompt: beginning.rendered_prompt.clone(),
            provenance: beginning.provenance.clone(),
            provenance_json: beginning.provenance.as_ref().map(to_json).transpose()?,
            digest: beginning.digest(),
        })
    }

    pub(in crate::repository) fn len_bytes(&self) -> usize {
        self.rendered_prompt.as_ref().map_or(0, String::len)
    }
}

/// A report, checked and serialised by its caller, so that the writer need not.
#[derive(Debug)]
pub(in crate::repository) struct ReportRow {
    /// The report without what stands beside it, which is what a late report keeps too.
    pub(in crate::repository) report: AttemptReport,
    pub(in crate::repository) result: Option<Raw>,
    /// Of result and output.
    pub(in crate::repository) hashes: ResultHashes,
}

impl ReportRow {
    pub(in crate::repository) fn of(report: &AttemptReport) -> Result<ReportRow> {
        let result = rules::check_report(report)?;
        let hashes = ResultHashes {
            result: result.as_ref().map(|json| Hash::of(json.as_bytes())),
            output: report.output.as_deref().map(|text| Hash::of(text.as_bytes())),
            ..ResultHashes::default()
        };
        Ok(ReportRow { report: report.clone(), result, hashes })
    }

    pub(in crate::repository) fn len_bytes(&self) -> usize {
        let result = self.result.as_ref().map_or(0, |result| result.as_bytes().len());
        result + self.report.output.as_ref().map_or(0, String::len)
    }
}
