//! Lists of keys that a connection has carried: a list goes once, and afterwards a number stands for it.

use crate::session::Malformed;
use alloc::{collections::VecDeque, sync::Arc};

/// Shorter lists always go whole: a number would save little.
const LEAST_KEYS: usize = 64;
/// How many lists a connection knows at most.
const LISTS: usize = 256;
/// How many keys they have together at most: 2 MiB of them.
const KEYS: usize = 256 << 10;
/// What a list takes up besides its keys, in bytes.
const LIST_BYTES: usize = 32;

/// How the keys of a request go over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// As they are.
    Whole,
    /// As they are, and this number stands for them from now on.
    Taught(u64),
    /// By the number that stands for them.
    Known(u64),
}

/// The lists of keys that a connection knows, at one of its ends.
///
/// Both ends hold the same lists after the same requests: each new list is added, and the oldest ones are forgotten to
/// make room for it. Numbers count the lists of a connection, so none stands for two of them. Lists are compared by all
/// of their keys. Li et al. (OSDI 2014) send a hash of the list instead; two lists with one hash would change wrong
/// rows.
#[derive(Clone, Debug, Default)]
pub struct KnownKeys {
    /// The oldest first.
    lists: VecDeque<Arc<[u64]>>,
    /// The number of the oldest.
    first: u64,
    /// How many keys all lists have.
    keys: usize,
}

impl KnownKeys {
    /// How a list goes next over the connection.
    pub fn form(&self, list: &Arc<[u64]>) -> KeyForm {
        if !(LEAST_KEYS..=KEYS).contains(&list.len()) {
            return KeyForm::Whole;
        }
        // The newest first: a push mostly follows the pull of its rows.
        match self.lists.iter().rposition(|known| known == list) {
            Some(at) => KeyForm::Known(self.first + at as u64),
            None => KeyForm::Taught(self.next()),
        }
    }

    /// A list has gone over the connection in this [form](Self::form).
    pub fn sent(&mut self, list: &Arc<[u64]>, form: KeyForm) {
        if let KeyForm::Taught(_) = form {
            self.add(list.clone());
        }
    }

    /// The size of the lists, in bytes.
    pub fn bytes(&self) -> usize {
        self.keys * size_of::<u64>() + self.lists.len() * LIST_BYTES
    }

    /// A list has come, and the number that is to stand for it.
    pub(super) fn learn(&mut self, number: u64, list: &Arc<[u64]>) -> Result<(), Malformed> {
        if number != self.next() {
            return Err(Malformed("a list of keys with a number out of turn"));
        }
        if list.len() > KEYS {
            return Err(Malformed("a list of keys that is too long for a number to stand for it"));
        }
        self.add(list.clone());
        Ok(())
    }

    /// The list for which a number stands.
    pub(super) fn list(&self, number: u64) -> Result<Arc<[u64]>, Malformed> {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let list = at.and_then(|at| self.lists.get(at)).cloned();
        list.ok_or(Malformed("keys by a number that stands for none on this connection"))
    }

    fn next(&self) -> u64 {
        self.first + self.lists.len() as u64
    }

    fn add(&mut self, list: Arc<[u64]>) {
        self.keys += list.len();
        self.lists.push_back(list);
        while self.keys > KEYS || self.lists.len() > LISTS {
            self.keys -= self.lists.pop_front().map_or(self.keys, |oldest| oldest.len());
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::{collection::vec, prelude::*};

    fn listed(keys: impl IntoIterator<Item = u64>) -> Arc<[u64]> {
        keys.into_iter().collect()
    }

    /// What the other end makes of keys that go now.
    fn carried(here: &mut KnownKeys, there: &mut KnownKeys, keys: &Arc<[u64]>) -> Arc<[u64]> {
        let form = here.form(keys);
        here.sent(keys, form);
        match form {
            KeyForm::Known(number) => return there.list(number).unwrap(),
            KeyForm::Taught(number) => there.learn(number, keys).unwrap(),
            KeyForm::Whole => {}
        }
        keys.clone()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn both_ends_know_the_same_lists_whatever_is_sent(
            sent in vec((0..40_u64, prop_oneof![30 => 60..80_usize, 1 => Just(KEYS / 5), 1 => Just(KEYS / 2)]), 1..400),
        ) {
            let (mut here, mut there) = (KnownKeys::default(), KnownKeys::default());
            for (first, count) in sent {
                let keys = listed(first..first + count as u64);
                prop_assert_eq!(&carried(&mut here, &mut there, &keys), &keys);
                prop_assert_eq!((&here.lists, here.first, here.keys), (&there.lists, there.first, there.keys));
                let kept: usize = here.lists.iter().map(|list| list.len()).sum();
                prop_assert!(kept == here.keys && kept <= KEYS && here.lists.len() <= LISTS);
            }
        }
    }

    #[test]
    fn a_list_goes_by_its_number_until_newer_ones_take_its_place() {
        let (mut here, mut there) = (KnownKeys::default(), KnownKeys::default());
        let lists: Vec<Arc<[u64]>> = (0..=LISTS as u64).map(|first| listed(first..first + 64)).collect();
        for (number, keys) in (0..).zip(&lists) {
            assert_eq!(here.form(keys), KeyForm::Taught(number));
            carried(&mut here, &mut there, keys);
            assert_eq!(here.form(keys), KeyForm::Known(number));
        }
        assert_eq!(here.form(&lists[0]), KeyForm::Taught(LISTS as u64 + 1), "it is the oldest");
        assert_eq!(here.form(&lists[1]), KeyForm::Known(1));
        assert!(there.list(0).is_err() && there.list(LISTS as u64).is_ok());
        assert_eq!(there.bytes(), LISTS * (64 * 8 + LIST_BYTES));
    }

    #[test]
    fn what_differs_in_one_key_is_another_list_and_short_lists_go_whole() {
        let mut known = KnownKeys::default();
        let keys: Vec<u64> = (0..100).map(|key| 2 * key).collect();
        known.sent(&listed(keys.clone()), known.form(&listed(keys.clone())));
        for at in 0..keys.len() {
            let mut other = keys.clone();
            other[at] += 1;
            assert_eq!(known.form(&listed(other)), KeyForm::Taught(1));
        }
        assert_eq!(known.form(&listed(0..63)), KeyForm::Whole);
        assert_eq!(known.form(&listed(0..KEYS as u64 + 1)), KeyForm::Whole);
    }

    #[test]
    fn what_no_worker_sends_is_malformed_and_changes_nothing() {
        let mut known = KnownKeys::default();
        let list: Arc<[u64]> = (0..64).collect();
        known.learn(0, &list).unwrap();
        for number in [1, LISTS as u64, u64::MAX] {
            assert!(known.list(number).is_err());
        }
        for number in [0, 2, u64::MAX] {
            assert!(known.learn(number, &list).is_err());
        }
        assert!(known.learn(1, &(0..=KEYS as u64).collect()).is_err());
        assert_eq!((known.lists.len(), known.next()), (1, 1));
    }
}
