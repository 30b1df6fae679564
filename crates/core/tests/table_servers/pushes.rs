//! What workers push, and what servers have of it.

use std::collections::BTreeMap;

/// A push: a worker's, of a number.
pub(super) type Push = (u32, u64);

/// What a server has of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Shard {
    pub(super) pushes: Vec<Push>,
    pub(super) last: BTreeMap<u32, u64>,
}

impl Shard {
    pub(super) fn execute(&mut self, (worker, number): Push) {
        self.pushes.push((worker, number));
        self.last.insert(worker, number);
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        self.pushes.iter().flat_map(|push| encode(*push)).collect()
    }

    pub(super) fn load(&mut self, record: &[u8]) {
        record.chunks(12).for_each(|push| self.execute(decode(push)));
    }
}

pub(super) fn encode((worker, number): Push) -> Vec<u8> {
    worker.to_le_bytes().into_iter().chain(number.to_le_bytes()).collect()
}

pub(super) fn decode(bytes: &[u8]) -> Push {
    (u32::from_le_bytes(bytes[..4].try_into().unwrap()), u64::from_le_bytes(bytes[4..12].try_into().unwrap()))
}
