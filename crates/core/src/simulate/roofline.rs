//! The bounds of an operation: how long each of its places would need by itself for each kind of work, relative to the
//! whole time.
//!
//! A port carries bytes; a thread hands messages over and takes them, copies, and folds, one after the other. The roof of a kind
//! of work is the rate at which the busiest place does it while it does nothing else. Samuel Williams' roofline model draws
//! these as lines.

use super::{
    machine::Picoseconds,
    outcome::{BusySpan, Resource, WorkItem},
};
use crate::choice::choices;
use alloc::{collections::BTreeMap, vec::Vec};

choices! {
    "a kind of work":
    /// A kind of work.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Roof {
        /// A port or a direct link carries payload.
        Link => "link",
        /// A thread hands messages over and takes them.
        Messages => "messages",
        /// A thread copies in memory.
        Copy => "copy",
        /// A thread folds.
        Fold => "fold",
        /// A thread encodes or decodes.
        Code => "code",
        /// A thread does any of these four.
        Thread => "thread",
    }
}

impl Roof {
    /// The roof of a span of a simulation.
    pub fn of(span: &BusySpan) -> Self {
        match (span.place, span.what) {
            (Resource::Thread(_), WorkItem::Message { .. }) => Self::Messages,
            (Resource::Thread(_), WorkItem::Copy(_)) => Self::Copy,
            (Resource::Thread(_), WorkItem::Fold(_)) => Self::Fold,
            (Resource::Thread(_), WorkItem::Code(_)) => Self::Code,
            _ => Self::Link,
        }
    }
}

/// The bound of the busiest place for a kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound<P> {
    /// The kind of work.
    pub roof: Roof,
    /// The place that needs most time for it.
    pub place: P,
    /// How many bytes it works on.
    pub bytes: u64,
    /// How long it would need if it did nothing else and never waited.
    pub alone: Picoseconds,
}

/// Adds up the work of places.
#[derive(Clone, Debug)]
pub struct RoofCounter<P> {
    /// By place: time and bytes of each kind of work, in the order of [`Roof::ALL`].
    done: BTreeMap<P, [(Picoseconds, u64); 6]>,
}

impl<P: Ord + Clone> RoofCounter<P> {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { done: BTreeMap::new() }
    }

    /// A place is busy with `bytes` for some time.
    pub fn add(&mut self, place: P, roof: Roof, bytes: u64, busy: Picoseconds) {
        let done = self.done.entry(place).or_default();
        let mut count = |roof: Roof| {
            let (time, all) = &mut done[roof as usize];
            (*time, *all) = (time.saturating_add(busy), all.saturating_add(bytes));
        };
        count(roof);
        if matches!(roof, Roof::Messages | Roof::Copy | Roof::Fold | Roof::Code) {
            count(Roof::Thread);
        }
    }

    /// The busiest place of each kind of work that occurs.
    pub fn bounds(&self) -> Vec<Bound<P>> {
        let bound = |roof: Roof| {
            let (place, done) = self.done.iter().max_by_key(|(_, done)| done[roof as usize])?;
            let (alone, bytes) = done[roof as usize];
            (alone > 0).then(|| Bound { roof, place: place.clone(), bytes, alone })
        };
        Roof::ALL.into_iter().filter_map(bound).collect()
    }
}

impl<P: Ord + Clone> Default for RoofCounter<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// The one that binds: which needs most time by itself. A thread binds as a whole only if it needs clearly more than each kind of
/// its work.
pub fn binding<P>(bounds: &[Bound<P>]) -> Option<&Bound<P>> {
    let mut most: Option<&Bound<P>> = None;
    for bound in bounds {
        let least = match bound.roof {
            // A tenth more: else the kind of work is the better answer.
            Roof::Thread => most.map_or(0, |most| most.alone.saturating_add(most.alone / 10)),
            _ => most.map_or(0, |most| most.alone),
        };
        if bound.alone > least {
            most = Some(bound);
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(spans: &[(u32, Roof, u64, Picoseconds)]) -> RoofCounter<u32> {
        let mut counter = RoofCounter::new();
        for (place, roof, bytes, busy) in spans {
            counter.add(*place, *roof, *bytes, *busy);
        }
        counter
    }

    #[test]
    fn the_busiest_place_counts_for_each_kind_of_work() {
        let bounds =
            counter(&[(0, Roof::Fold, 8, 10), (1, Roof::Fold, 4, 30), (0, Roof::Copy, 2, 25)]).bounds();
        let bounds: Vec<_> =
            bounds.iter().map(|bound| (bound.roof, bound.place, bound.bytes, bound.alone)).collect();
        assert_eq!(bounds, [(Roof::Copy, 0, 2, 25), (Roof::Fold, 1, 4, 30), (Roof::Thread, 0, 10, 35)]);
    }

    #[test]
    fn a_thread_binds_where_none_of_its_kinds_of_work_does() {
        let both = counter(&[(0, Roof::Link, 1, 30), (1, Roof::Fold, 1, 29), (1, Roof::Copy, 1, 20)]);
        assert_eq!(binding(&both.bounds()).unwrap().roof, Roof::Thread);
        let one = counter(&[(0, Roof::Link, 1, 30), (1, Roof::Fold, 1, 31), (1, Roof::Copy, 1, 2)]);
        assert_eq!(binding(&one.bounds()).unwrap().roof, Roof::Fold);
        assert!(binding(&counter(&[]).bounds()).is_none());
    }
}
