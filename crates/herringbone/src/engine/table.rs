//! The operations under way, by key.

use crate::execute::{
    operation::{OpKey, Operation},
    room::Room,
};

/// A table whose keys are never used twice, so that a late report about an operation that is over finds nothing.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<(u32, Option<Box<Operation>>)>,
    free: Vec<u32>,
    len: usize,
    /// Room that operations which are over have left for the next ones.
    spare: Vec<Room>,
}

/// How much of it is kept.
const SPARE: usize = 16;

impl Table {
    /// A key for the next operation to be inserted, and room for what it counts.
    pub(crate) fn reserve(&mut self) -> (OpKey, Room) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let key = OpKey { index, version: self.places[index as usize].0 };
        (key, self.spare.pop().unwrap_or_default())
    }

    pub(crate) fn insert(&mut self, operation: Operation) {
        let key = operation.key;
        self.places[key.index as usize].1 = Some(Box::new(operation));
        self.len += 1;
    }

    /// Keeps the room of an operation that is over.
    pub(crate) fn recycle(&mut self, room: Room) {
        if self.spare.len() < SPARE {
            self.spare.push(room);
        }
    }

    pub(crate) fn get(&self, key: OpKey) -> Option<&Operation> {
        let (version, operation) = self.places.get(key.index as usize)?;
        (*version == key.version).then_some(operation.as_deref()).flatten()
    }

    pub(crate) fn get_mut(&mut self, key: OpKey) -> Option<&mut Operation> {
        let (version, operation) = self.places.get_mut(key.index as usize)?;
        (*version == key.version).then_some(operation.as_deref_mut()).flatten()
    }

    pub(crate) fn remove(&mut self, key: OpKey) -> Option<Box<Operation>> {
        let (version, operation) = self.places.get_mut(key.index as usize)?;
        if *version != key.version {
            return None;
        }
        let operation = operation.take()?;
        *version = version.wrapping_add(1);
        self.free.push(key.index);
        self.len -= 1;
        Some(operation)
    }

    /// How many operations there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn keys(&self) -> Vec<OpKey> {
        self.iter().map(|operation| operation.key).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Operation> {
        self.places.iter().filter_map(|(_, operation)| operation.as_deref())
    }
}
