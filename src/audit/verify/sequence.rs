//! Reading a long sequence to its end, though parts of it are damaged.

use crate::repository::{PAGE_LIMIT, Page, RepositoryError, Result};

/// Something that is stored but cannot be read.
#[derive(Debug)]
pub(in crate::audit) struct Damage {
    /// Its key in the sequence; `None` if it is all the rest.
    pub(in crate::audit) position: Option<i64>,
    /// What cannot be read, and why.
    pub(in crate::audit) problem: String,
}

/// What an error says, with its cause.
pub(in crate::audit) fn explain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// The items of a paged sequence in order, with what is damaged in its place.
///
/// A page that cannot be read is read again item by item, to find the one that is to blame; behind
/// that it goes on in pages. An error that says nothing about an item ends the sequence.
#[derive(Debug)]
pub(in crate::audit) struct Sequence<T, Read> {
    read: Read,
    page: std::vec::IntoIter<T>,
    after: i64,
    /// Up to here single items are read.
    single_until: i64,
    end: End,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Ahead,
    /// The next page would be this one again.
    Stuck,
    Reached,
}

impl<T, Read: FnMut(i64, usize) -> Result<Page<T>>> Sequence<T, Read> {
    /// Reads from the beginning, by a function of `after` and `limit`.
    pub(in crate::audit) fn new(read: Read) -> Sequence<T, Read> {
        Sequence { read, page: Vec::new().into_iter(), after: 0, single_until: 0, end: End::Ahead }
    }

    fn go_on_behind(&mut self, position: i64) {
        if position > self.after {
            self.after = position;
        } else {
            self.end = End::Stuck;
        }
    }
}

impl<T, Read: FnMut(i64, usize) -> Result<Page<T>>> Iterator for Sequence<T, Read> {
    type Item = Result<std::result::Result<T, Damage>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.page.next() {
                return Some(Ok(Ok(item)));
            }
            match self.end {
                End::Ahead => {}
                End::Stuck => {
                    self.end = End::Reached;
                    let problem = format!("what follows {} cannot be reached", self.after);
                    return Some(Ok(Err(Damage { position: None, problem })));
                }
                End::Reached => return None,
            }
            let limit = if self.after < self.single_until { 1 } else { PAGE_LIMIT };
            match (self.read)(self.after, limit) {
                Ok(page) => {
                    self.page = page.items.into_iter();
                    match page.next {
                        Some(next) => self.go_on_behind(next),
                        None => self.end = End::Reached,
                    }
                }
                // Behind the last key of all there is nothing that single items could be counted up to.
                Err(RepositoryError::Corrupt { position, .. }) if limit > 1 && self.after < i64::MAX => {
                    self.single_until = position.max(self.after + 1);
                }
                Err(error @ RepositoryError::Corrupt { position, .. }) => {
                    // A position that was passed before names nothing: all the rest is out of reach.
                    let position = Some(position).filter(|position| *position > self.after);
                    self.go_on_behind(position.unwrap_or(self.after));
                    return Some(Ok(Err(Damage { position, problem: explain(&error) })));
                }
                Err(error) => {
                    self.end = End::Reached;
                    return Some(Err(error));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers 1 to 2500 in pages, some of them damaged.
    fn numbers(damaged: &[i64]) -> impl FnMut(i64, usize) -> Result<Page<i64>> {
        move |after, limit| {
            let last = (after + i64::try_from(limit).unwrap()).min(2_500);
            let items: Vec<i64> = (after + 1..=last).collect();
            match items.iter().find(|item| damaged.contains(item)) {
                Some(&item) => Err(RepositoryError::corrupt(format!("number {item}"), item, "a test")),
                None => Ok(Page { next: (last < 2_500).then_some(last), items }),
            }
        }
    }

    fn read_all(read: impl FnMut(i64, usize) -> Result<Page<i64>>) -> (Vec<i64>, Vec<Damage>) {
        let (mut whole, mut damaged) = (Vec::new(), Vec::new());
        for item in Sequence::new(read) {
            match item.unwrap() {
                Ok(item) => whole.push(item),
                Err(damage) => damaged.push(damage),
            }
        }
        (whole, damaged)
    }

    #[test]
    fn only_what_is_damaged_is_missing() {
        let damaged = [1, 2, 1_500, 2_001, 2_500];
        let (whole, found) = read_all(numbers(&damaged));
        assert_eq!(whole, (1..=2_500).filter(|number| !damaged.contains(number)).collect::<Vec<_>>());
        assert_eq!(found.iter().filter_map(|damage| damage.position).collect::<Vec<_>>(), damaged);
        assert_eq!(found[2].problem, "number 1500 cannot be read: a test");
    }

    #[test]
    fn pages_are_read_again_after_the_damage() {
        let mut calls = 0;
        let mut read = numbers(&[5]);
        read_all(|after, limit| {
            calls += 1;
            read(after, limit)
        });
        assert!(calls < 20, "{calls}");
    }

    #[test]
    fn pages_that_do_not_advance_end_with_a_word_about_it() {
        let (whole, damaged) = read_all(|_, _| Ok(Page { items: vec![1], next: Some(0) }));
        assert_eq!((whole.len(), damaged.len()), (1, 1));
        let (whole, damaged) = read_all(|_, _| Err(RepositoryError::corrupt("it", 0, "a test")));
        assert_eq!((whole.len(), damaged.len()), (0, 2));
        assert_eq!(damaged[1].problem, "what follows 0 cannot be reached");
    }

    #[test]
    fn damage_at_the_largest_key_of_all_is_passed_once() {
        let (whole, damaged) = read_all(|_, _| Err(RepositoryError::corrupt("it", i64::MAX, "a test")));
        assert_eq!(whole.len(), 0);
        assert_eq!(damaged.iter().map(|damage| damage.position).collect::<Vec<_>>(), [Some(i64::MAX), None, None]);
    }

    #[test]
    fn other_errors_end_it() {
        let mut items = Sequence::new(|_, _| -> Result<Page<i64>> { Err(RepositoryError::Closed) });
        assert!(matches!(items.next(), Some(Err(RepositoryError::Closed))));
        assert!(items.next().is_none());
    }
}
