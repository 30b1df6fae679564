//! Frames that came before their operation began here.

use crate::{
    core::{session::membership::MemberId, wire::Header},
    transport::frame::Body,
};
use std::collections::BTreeMap;

/// The payload of a frame that has arrived.
#[derive(Debug)]
pub(super) enum Content {
    None,
    /// It is in its place in my staging memory.
    InPlace,
    /// It is a result, and is where it belongs in the user's buffer.
    Placed,
    Bytes(Vec<u8>),
    Shared(Body<usize>),
    /// Nobody needs it, and it was not kept.
    Skipped,
}

impl Content {
    /// The payload, if it has memory of its own.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Content::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// A frame that came before its operation began here.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) endpoint: MemberId,
    pub(super) header: Header,
    pub(super) body: Content,
}

/// They wait by operation, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct EarlyArrivals {
    /// By group and number.
    frames: BTreeMap<(u32, u64), Vec<Parked>>,
    len: usize,
}

impl EarlyArrivals {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn park(&mut self, parked: Parked) {
        self.frames.entry((parked.header.group, parked.header.sequence)).or_default().push(parked);
        self.len += 1;
    }

    /// Those of one number in a group, whatever their generation and hash.
    pub(super) fn of(&self, group: u32, sequence: u64) -> &[Parked] {
        self.frames.get(&(group, sequence)).map_or(&[], Vec::as_slice)
    }

    /// Takes those of one number in a group that `which` holds for.
    pub(super) fn take(
        &mut self,
        group: u32,
        sequence: u64,
        mut which: impl FnMut(&Parked) -> bool,
    ) -> Vec<Parked> {
        let Some(frames) = self.frames.get_mut(&(group, sequence)) else { return Vec::new() };
        let taken: Vec<Parked> = frames.extract_if(.., |parked| which(parked)).collect();
        if frames.is_empty() {
            self.frames.remove(&(group, sequence));
        }
        self.len -= taken.len();
        taken
    }

    /// Takes all of a group.
    pub(super) fn take_group(&mut self, group: u32) -> Vec<Parked> {
        let mut later = self.frames.split_off(&(group, 0));
        let mut others = later.split_off(&(group, u64::MAX));
        // The last number there is would be among the others; no group comes so far.
        self.frames.append(&mut others);
        let taken: Vec<Parked> = later.into_values().flatten().collect();
        self.len -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::wire::Kind;

    fn parked(endpoint: MemberId, group: u32, sequence: u64) -> Parked {
        Parked { endpoint, header: Header::new(Kind::Data, group, 0, sequence), body: Content::None }
    }

    fn endpoints(taken: &[Parked]) -> Vec<u32> {
        taken.iter().map(|parked| parked.endpoint.number()).collect()
    }

    #[test]
    fn each_operation_gets_its_own_in_order() {
        let mut early = EarlyArrivals::default();
        for (endpoint, group, sequence) in [(3, 1, 7), (1, 1, 8), (2, 2, 7), (1, 1, 7), (0, 0, 9), (2, 1, 7)]
        {
            early.park(parked(MemberId::new(endpoint), group, sequence));
        }
        assert_eq!(endpoints(early.of(1, 7)), [3, 1, 2]);
        assert_eq!(endpoints(&early.take(1, 7, |parked| parked.endpoint.number() != 1)), [3, 2]);
        assert_eq!((endpoints(early.of(1, 7)), early.len()), (vec![1], 4));
        assert!(early.take(5, 5, |_| true).is_empty() && early.of(5, 5).is_empty());
        assert_eq!(endpoints(&early.take_group(1)), [1, 1]);
        assert_eq!(
            (endpoints(early.of(2, 7)), endpoints(early.of(0, 9)), early.len()),
            (vec![2], vec![0], 2)
        );
        early.take_group(2);
        assert!(!early.is_empty());
        early.take(0, 9, |_| true);
        assert!(early.is_empty());
    }
}
