//! Handles: numbers that stand for communicators and works as long as these live.
//!
//! A number is given once. So a handle that is over differs from one that lives, and from one that never existed. A
//! forked child finds registries of its own. It takes no lock that a thread of its parent might have held at the fork,
//! and it knows the parent's handles by their numbers.

use crate::{failure::InterfaceFailure, pointers::LentMemory};
use herringbone::{Communicator, Pending};
use herringbone_sys::fork;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The bit above which a handle says what it stands for.
const KIND_SHIFT: u32 = 56;

/// An operation that runs, and its memory.
#[derive(Debug)]
pub(crate) struct RunningWork {
    pending: Pending,
    lent: LentMemory,
}

impl RunningWork {
    pub(crate) fn new(pending: Pending, lent: LentMemory) -> Self {
        Self { pending, lent }
    }

    /// Waits for its end, after which the memory is the caller's again.
    ///
    /// # Errors
    /// The operation's.
    pub(crate) fn wait(&self) -> Result<(), InterfaceFailure> {
        let result = self.pending.wait();
        self.lent.give_back();
        Ok(result?)
    }

    /// Its result, once it is over; then the memory is the caller's again.
    pub(crate) fn result(&self) -> Option<Result<(), InterfaceFailure>> {
        let result = self.pending.result()?;
        self.lent.give_back();
        Some(result.map_err(InterfaceFailure::from))
    }
}

/// What handles of one kind stand for.
pub(crate) struct Registry<T> {
    /// What one is called.
    noun: &'static str,
    /// How one ends.
    end: &'static str,
    /// The handles' highest byte.
    kind: u64,
    /// The process's, as `fork` counts.
    generation: u64,
    /// The number before the first one of this process: up to it they are the parent's.
    inherited: u64,
    last: AtomicU64,
    entries: Mutex<BTreeMap<u64, T>>,
    /// That of a forked child.
    of_child: OnceLock<Box<Registry<T>>>,
}

/// All communicators of the process.
pub(crate) static COMMUNICATORS: Registry<Communicator> = Registry::new("communicator", "finalized", 1);
/// All works of the process that were neither waited for nor seen to be over.
pub(crate) static WORKS: Registry<Arc<RunningWork>> = Registry::new("work", "over and returned by a call", 2);

impl<T> Registry<T> {
    /// Of things that a noun names, each until its end; `kind` is the registry's own.
    pub(crate) const fn new(noun: &'static str, end: &'static str, kind: u64) -> Self {
        Self::after(noun, end, kind, 0, 0)
    }

    const fn after(
        noun: &'static str,
        end: &'static str,
        kind: u64,
        generation: u64,
        inherited: u64,
    ) -> Self {
        let last = AtomicU64::new(inherited);
        let entries = Mutex::new(BTreeMap::new());
        let of_child = OnceLock::new();
        Self { noun, end, kind, generation, inherited, last, entries, of_child }
    }
}

impl<T: Clone> Registry<T> {
    /// This process's.
    fn own(&self) -> &Self {
        let (mut at, generation) = (self, fork::generation());
        while at.generation != generation {
            let last = at.last.load(Ordering::Relaxed);
            let child = || Box::new(Self::after(at.noun, at.end, at.kind, at.generation + 1, last));
            at = at.of_child.get_or_init(child);
        }
        at
    }

    /// A handle for a value.
    pub(crate) fn add(&self, value: T) -> u64 {
        let own = self.own();
        let number = own.last.fetch_add(1, Ordering::Relaxed) + 1;
        own.entries().insert(number, value);
        own.kind << KIND_SHIFT | number
    }

    /// What a handle stands for.
    ///
    /// # Errors
    /// If it stands for nothing any more, for nothing of this kind, or for something of the process's parent.
    pub(crate) fn find(&self, handle: u64) -> Result<T, InterfaceFailure> {
        let (own, number) = (self.own(), self.number(handle)?);
        let found = own.entries().get(&number).cloned();
        found.ok_or_else(|| own.without(handle, number))
    }

    /// What a handle has stood for: it is over.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub(crate) fn remove(&self, handle: u64) -> Result<T, InterfaceFailure> {
        let (own, number) = (self.own(), self.number(handle)?);
        let found = own.entries().remove(&number);
        found.ok_or_else(|| own.without(handle, number))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<u64, T>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, handle: u64) -> Result<u64, InterfaceFailure> {
        match handle ^ self.kind << KIND_SHIFT {
            number if number >> KIND_SHIFT == 0 && number > 0 => Ok(number),
            _ => Err(InterfaceFailure::handle(format!(
                "{handle:#x} is no {}'s handle: pass one that a call has given",
                self.noun
            ))),
        }
    }

    /// The failure of a handle that has no entry here.
    fn without(&self, handle: u64, number: u64) -> InterfaceFailure {
        let Self { noun, end, inherited, last, .. } = self;
        if number <= *inherited {
            return InterfaceFailure::forked();
        }
        InterfaceFailure::handle(match number <= last.load(Ordering::Relaxed) {
            true => format!("the {noun} {handle:#x} is {end} already: use a handle no more after that"),
            false => format!("{handle:#x} is no {noun}'s handle: no call of this process has given it"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(result: Result<u32, InterfaceFailure>) -> String {
        format!("{:?}", result.unwrap_err())
    }

    #[test]
    fn a_handle_stands_for_its_value_until_it_is_removed() {
        let registry = Registry::new("thing", "gone", 3);
        let (one, two) = (registry.add(1), registry.add(2));
        assert_eq!((registry.find(one).unwrap(), registry.find(two).unwrap()), (1, 2));
        assert_eq!(registry.remove(one).unwrap(), 1);
        assert!(said(registry.find(one)).contains("is gone already"));
        assert!(said(registry.remove(one)).contains("is gone already"));
        assert_ne!(registry.add(3), one);
        assert_eq!(registry.find(two).unwrap(), 2);
    }

    #[test]
    fn other_numbers_are_no_handles() {
        let (registry, other) = (Registry::new("thing", "gone", 3), Registry::new("other", "gone", 4));
        let (own, strange) = (registry.add(1), other.add(1));
        for handle in [0, 1, u64::MAX, strange, 3 << KIND_SHIFT, own ^ 1 << 60] {
            assert!(said(registry.find(handle)).contains("is no thing's handle: pass"), "{handle:#x}");
        }
        assert!(said(registry.find(own + 1)).contains("no call of this process has given it"));
    }

    #[test]
    fn a_childs_registry_knows_its_parents_handles() {
        let parent = Registry::new("thing", "gone", 3);
        let inherited = parent.add(1);
        let child = Registry::after("thing", "gone", 3, 0, parent.last.load(Ordering::Relaxed));
        assert!(said(child.find(inherited)).contains("forked"));
        let own = child.add(2);
        assert!(own > inherited && child.find(own).unwrap() == 2);
    }
}
