//! Where a journal ends, found without reading it.

use crate::repository::{Page, Result};

/// The number of a journal's last row, 0 if it is empty: it has no gaps, so the end can be searched for.
pub(super) fn last_seq<T>(read: impl Fn(i64, usize) -> Result<Page<T>>) -> Result<i64> {
    let has_row_after = |seq: i64| read(seq, 1).map(|page| !page.items.is_empty());
    let (mut known, mut beyond) = (0_i64, 1_i64);
    while beyond < i64::MAX && has_row_after(beyond)? {
        (known, beyond) = (beyond, beyond.saturating_mul(2));
    }
    // There is none behind `beyond`, and there may be none at all.
    while known < beyond {
        let middle = known + (beyond - known) / 2;
        if has_row_after(middle)? {
            known = middle + 1;
        } else {
            beyond = middle;
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repository::{Archive, Repository};
    use crate::{MemoryRepository, NewJob, NewUnit};

    #[test]
    fn the_last_row_of_a_journal_is_found_whatever_its_length() {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("a job")).unwrap().id;
        for rows in 0..40 {
            assert_eq!(last_seq(|after, limit| repository.journal(after, limit)).unwrap(), rows);
            repository.queue_unit(job, &NewUnit::new(format!("u{rows}"))).unwrap();
        }
    }
}
