//! The operations under way, by key.

use crate::{core::execution::Tally, execute::operation::Operation, transport::ticket::OpKey};

/// A table whose keys are never used twice, so that a late report about an operation that is over finds nothing.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Option<Box<Operation>>>,
    free: Vec<u32>,
    len: usize,
    /// How many keys were given out.
    begun: u64,
    /// How many of the operations send small messages at once, and how many send streams between hosts.
    eager: usize,
    streams: usize,
    /// Memory for counts that operations which are over have left for the next ones.
    spare: Vec<Tally>,
}

fn is_stream(operation: &Operation) -> bool {
    !operation.prepared().eager && !operation.prepared().is_in_memory()
}

/// How much of it is kept.
const SPARE: usize = 16;

impl Table {
    /// A key for the next operation to be inserted, and memory for what it counts.
    pub(crate) fn reserve(&mut self) -> (OpKey, Tally) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        let key = OpKey { number: self.begun, place };
        self.begun += 1;
        (key, self.spare.pop().unwrap_or_default())
    }

    pub(crate) fn insert(&mut self, operation: Operation) {
        let key = operation.key;
        self.eager += usize::from(operation.prepared().eager);
        self.streams += usize::from(is_stream(&operation));
        self.places[key.place as usize] = Some(Box::new(operation));
        self.len += 1;
    }

    /// Keeps the memory of an operation's counts that is over.
    pub(crate) fn recycle(&mut self, counts: Tally) {
        if self.spare.len() < SPARE {
            self.spare.push(counts);
        }
    }

    pub(crate) fn get(&self, key: OpKey) -> Option<&Operation> {
        self.places.get(key.place as usize)?.as_deref().filter(|operation| operation.key == key)
    }

    pub(crate) fn get_mut(&mut self, key: OpKey) -> Option<&mut Operation> {
        self.places.get_mut(key.place as usize)?.as_deref_mut().filter(|operation| operation.key == key)
    }

    pub(crate) fn remove(&mut self, key: OpKey) -> Option<Box<Operation>> {
        let operation = self.places.get_mut(key.place as usize)?.take_if(|operation| operation.key == key)?;
        self.free.push(key.place);
        self.len -= 1;
        self.eager -= usize::from(operation.prepared().eager);
        self.streams -= usize::from(is_stream(&operation));
        Some(operation)
    }

    /// How many operations there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether any sends small messages at once.
    pub(crate) fn has_eager(&self) -> bool {
        self.eager > 0
    }

    /// Whether any sends large messages between hosts.
    pub(crate) fn has_streams(&self) -> bool {
        self.streams > 0
    }

    pub(crate) fn keys(&self) -> Vec<OpKey> {
        self.iter().map(|operation| operation.key).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.places.iter().filter_map(Option::as_deref)
    }
}
