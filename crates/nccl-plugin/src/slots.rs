//! The requests of a comm that are not complete.

use crate::failure::PluginFailure;
use herringbone::Region;

/// How many requests a comm has at once: NCCL's `NCCL_NET_MAX_REQUESTS`, which is the most that it starts.
pub(crate) const SLOTS: usize = 32;

/// A request of a comm: its slot, and how often that was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRequest {
    pub(crate) slot: usize,
    pub(crate) generation: u16,
}

/// Which slots have a request, and the memory of each.
#[derive(Debug)]
pub(crate) struct RequestSlots {
    memory: [Option<Region>; SLOTS],
    generations: [u16; SLOTS],
}

impl RequestSlots {
    /// No request.
    pub(crate) fn new() -> Self {
        Self { memory: [const { None }; SLOTS], generations: [0; SLOTS] }
    }

    /// A new request with this memory: none if all slots have one.
    pub(crate) fn take(&mut self, memory: Region) -> Option<SlotRequest> {
        let slot = self.memory.iter().position(Option::is_none)?;
        self.memory[slot] = Some(memory);
        Some(SlotRequest { slot, generation: self.generations[slot] })
    }

    /// The memory of a slot that has a request.
    ///
    /// # Panics
    /// If it has none.
    pub(crate) fn memory(&self, slot: usize) -> &Region {
        self.memory[slot].as_ref().expect("a slot that is used has memory")
    }

    /// Whether a request is not complete.
    ///
    /// # Errors
    /// If there is no such request, or it is complete.
    pub(crate) fn check(&self, request: SlotRequest) -> Result<(), PluginFailure> {
        let SlotRequest { slot, generation } = request;
        let is_there = slot < SLOTS && self.memory[slot].is_some() && self.generations[slot] == generation;
        let failure = || PluginFailure::argument("NCCL tests a request that is complete or never was");
        is_there.then_some(()).ok_or_else(failure)
    }

    /// A request is complete, and its memory NCCL's again.
    pub(crate) fn release(&mut self, slot: usize) {
        self.memory[slot] = None;
        self.generations[slot] = self.generations[slot].wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_complete_is_told_from_the_next_one_of_its_slot() {
        let mut slots = RequestSlots::new();
        let requests: Vec<SlotRequest> = (0..SLOTS).map(|_| slots.take(Region::zeroed(1)).unwrap()).collect();
        assert!(slots.take(Region::zeroed(1)).is_none(), "there are more requests than slots");
        assert!(requests.iter().all(|request| slots.check(*request).is_ok()));
        slots.release(3);
        assert!(slots.check(requests[3]).is_err());
        let next = slots.take(Region::zeroed(2)).unwrap();
        assert_eq!((next.slot, next.generation, slots.memory(3).len()), (3, 1, 2));
        assert!(slots.check(requests[3]).is_err() && slots.check(next).is_ok());
        assert!(slots.check(SlotRequest { slot: SLOTS, generation: 0 }).is_err());
    }
}
