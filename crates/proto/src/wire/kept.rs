//! Changes that were answered, and are lost if the server is before they are durable.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use tarn_base::{Trace, Txg};

/// A change that was answered.
#[derive(Clone)]
pub(super) struct Change {
    pub number: u64,
    /// The call, a [`super::message::Message`].
    pub message: Bytes,
    pub trace: Trace,
}

/// Where a change stands among all: those of a server that was started later come later.
pub(super) type Place = (u32, u64);

/// All of them, in the order in which they were made.
#[derive(Default)]
pub(super) struct Kept {
    changes: BTreeMap<Place, Change>,
    numbers: BTreeSet<u64>,
    /// How many servers there were.
    lives: u32,
    /// What the one that there is now has said to be durable. Transaction groups are its own: another numbers those anew
    /// that this one loses, and may fill them with something else.
    durable: Txg,
}

impl Kept {
    /// Takes a change that the server has answered.
    pub fn add(&mut self, change: Change) {
        if change.trace.txg > self.durable {
            self.numbers.insert(change.number);
            self.changes.insert((self.lives, change.trace.order), change);
        }
    }

    /// The server says that all up to this transaction group is durable.
    pub fn durable(&mut self, txg: Txg) {
        if txg <= self.durable {
            return;
        }
        self.durable = txg;
        let numbers = &mut self.numbers;
        self.changes.retain(|_, change| {
            let lost_with_it = change.trace.txg > txg;
            if !lost_with_it {
                numbers.remove(&change.number);
            }
            lost_with_it
        });
    }

    /// The lowest number that will be asked for once more if the server ends.
    pub fn first(&self) -> Option<u64> {
        self.numbers.first().copied()
    }

    pub fn all(&self) -> Vec<(Place, Change)> {
        self.changes.iter().map(|(place, change)| (*place, change.clone())).collect()
    }

    /// Another server has made all of them again, those in the transaction groups that are said here. What is not
    /// there could not be made again, and is forgotten.
    pub fn made_again(&mut self, made: BTreeMap<Place, Txg>) {
        self.lives += 1;
        self.durable = Txg(0);
        let numbers = &mut self.numbers;
        self.changes.retain(|place, change| match made.get(place) {
            Some(txg) => {
                change.trace.txg = *txg;
                true
            }
            None => {
                numbers.remove(&change.number);
                false
            }
        });
    }

    pub fn clear(&mut self) {
        self.changes.clear();
        self.numbers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_base::Timespec;

    fn change(number: u64, txg: u64) -> Change {
        let trace = Trace { txg: Txg(txg), order: number, at: Timespec::default(), ino: None };
        Change { number, message: Bytes::new(), trace }
    }

    #[test]
    fn what_one_server_says_of_its_groups_is_nothing_about_those_of_another() {
        let mut kept = Kept::default();
        (1..=6).for_each(|number| kept.add(change(number, 10 + number / 3)));
        kept.durable(Txg(10));
        assert_eq!((kept.first(), kept.all().len()), (Some(3), 4));
        // The other has made them again, all but one, the first of them in a group that was durable at once.
        let places = kept.all().into_iter().map(|(place, _)| place);
        kept.made_again(places.zip([0, 11, 11].map(Txg)).collect());
        assert_eq!((kept.first(), kept.all().len()), (Some(3), 3));
        kept.add(change(1, 11));
        assert_eq!(kept.all().last().map(|((life, _), change)| (*life, change.number)), Some((1, 1)));
        kept.durable(Txg(10));
        assert_eq!((kept.first(), kept.all().len()), (Some(1), 3));
        kept.durable(Txg(11));
        assert_eq!((kept.first(), kept.all().len()), (None, 0));
        kept.add(change(9, 11));
        assert_eq!(kept.first(), None);
    }
}
