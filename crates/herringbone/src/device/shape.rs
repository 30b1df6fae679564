//! What is copied for a call, and how it is cut: the same on all ranks, because it follows from the call alone.

use crate::{
    Error, ErrorKind, MessageRequest, Request, Result,
    core::collective::Collective,
    sys::{device::DeviceMemory, region::Region},
};
use std::ops::Range;

/// Bytes of a slice. All ranks cut by it, so it is no setting; any element's length divides it.
pub(super) const SLICE: usize = 4 << 20;
/// Slices of a line that can be on the host at a time: one is copied out, two travel, one is copied in.
pub(super) const SLOTS: usize = 4;

/// A call on an accelerator's memory.
#[derive(Debug)]
pub enum StagedCall {
    /// A collective, whose request has no buffers of its own.
    Collective(Request),
    /// A message to a rank.
    Send {
        /// The receiver.
        to: u32,
        /// The message, which has no buffer of its own.
        message: MessageRequest,
    },
    /// A message from a rank, or from any.
    Receive {
        /// The sender, if only one will do.
        from: Option<u32>,
        /// The message, which has no buffer of its own.
        message: MessageRequest,
    },
}

/// The accelerator's memory that a call reads and writes.
#[derive(Clone, Debug, Default)]
pub struct StagedBuffers {
    /// What it reads, if this rank gives something.
    pub input: Option<DeviceMemory>,
    /// What it writes, if this rank gets something.
    pub output: Option<DeviceMemory>,
}

/// How a call's bytes pass through the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StagedCut {
    /// Bytes of all slices; of the larger buffer where the call is not cut.
    pub(super) bytes: usize,
    /// Bytes of a slice; 0 if the call is not cut.
    pub(super) slice: usize,
    pub(super) copies_out: bool,
    pub(super) copies_in: bool,
}

impl StagedCut {
    /// How a call on these buffers passes, for slices of so many bytes.
    pub(super) fn of(call: &StagedCall, buffers: &StagedBuffers, rank: u32, slice: usize) -> Self {
        let length = |memory: &Option<DeviceMemory>| memory.as_ref().map_or(0, DeviceMemory::len);
        let (input, output) = (length(&buffers.input), length(&buffers.output));
        let has_root = |root: u32| root == rank;
        let (gives, gets) = match call {
            StagedCall::Collective(request) => match request.call.collective {
                Collective::Reduce { root } => (true, has_root(root)),
                Collective::Broadcast { root } => (has_root(root), !has_root(root)),
                _ => (true, true),
            },
            StagedCall::Send { .. } => (true, false),
            StagedCall::Receive { .. } => (false, true),
        };
        Self {
            bytes: input.max(output),
            slice: if call.can_be_cut() { slice } else { 0 },
            copies_out: gives && input > 0,
            copies_in: gets && output > 0,
        }
    }

    /// That both buffers have all slices.
    pub(super) fn check(&self, buffers: &StagedBuffers) -> Result<()> {
        let StagedBuffers { input: Some(input), output: Some(output) } = buffers else { return Ok(()) };
        let (buffer, expected, actual) = ("the output", input.len(), output.len());
        match self.slice == 0 || expected == actual {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::BufferSize { buffer, expected, actual })),
        }
    }

    pub(super) fn slices(&self) -> usize {
        if self.slice == 0 { 1 } else { self.bytes.div_ceil(self.slice).max(1) }
    }

    /// The bytes of a slice.
    pub(super) fn range(&self, slice: usize) -> Range<usize> {
        if self.slice == 0 {
            return 0..self.bytes;
        }
        let start = slice * self.slice;
        start..self.bytes.min(start + self.slice)
    }
}

impl StagedCall {
    /// What errors call it.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Collective(request) => request.call.collective.name(),
            Self::Send { .. } => "send",
            Self::Receive { .. } => "recv",
        }
    }

    /// Whether it is a message, which no collective waits for.
    pub(super) fn is_message(&self) -> bool {
        !matches!(self, Self::Collective(_))
    }

    /// Whether slices give the bits of the whole: each element has the same place in all ranks' buffers. A codec sees whole tensors.
    fn can_be_cut(&self) -> bool {
        let Self::Collective(request) = self else { return false };
        let collective = request.call.collective;
        let is_same_everywhere = matches!(
            collective,
            Collective::AllReduce | Collective::Reduce { .. } | Collective::Broadcast { .. }
        );
        is_same_everywhere && request.parts.is_none() && request.compression == crate::Compression::default()
    }
}

/// The request for a slice of a call that is cut, on a part of a slot.
pub(super) fn slice_request(request: &Request, region: Region) -> Request {
    let mut call = request.clone();
    call.call.count = region.len() / request.call.dtype.bytes();
    Request { input: region.clone(), output: region, ..call }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ReduceOp};

    fn call(collective: Collective) -> StagedCall {
        let nothing = Region::zeroed(0);
        StagedCall::Collective(
            Request::new(collective, DType::F32, 3, nothing.clone(), nothing).op(ReduceOp::Sum),
        )
    }

    fn buffers(input: usize, output: usize) -> StagedBuffers {
        let memory = |bytes| (bytes > 0).then(|| DeviceMemory::of_host(Region::zeroed(bytes)));
        StagedBuffers { input: memory(input), output: memory(output) }
    }

    #[test]
    fn slices_have_each_byte_once() {
        for bytes in [0, 1, 4, 63, 64, 65, 128, 1000] {
            let cut = StagedCut::of(&call(Collective::AllReduce), &buffers(bytes, bytes), 0, 64);
            let ranges: Vec<_> = (0..cut.slices()).map(|slice| cut.range(slice)).collect();
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() == 64));
            assert_eq!((ranges[0].start, ranges.last().map(|last| last.end)), (0, Some(bytes)));
        }
    }

    #[test]
    fn a_rank_copies_what_it_gives_and_gets() {
        let copies = |collective, rank, input, output| {
            let cut = StagedCut::of(&call(collective), &buffers(input, output), rank, 64);
            (cut.copies_out, cut.copies_in, cut.slices())
        };
        assert_eq!(copies(Collective::AllReduce, 1, 100, 100), (true, true, 2));
        assert_eq!(copies(Collective::Reduce { root: 0 }, 1, 100, 100), (true, false, 2));
        assert_eq!(copies(Collective::Reduce { root: 1 }, 1, 100, 100), (true, true, 2));
        assert_eq!(copies(Collective::Broadcast { root: 0 }, 1, 100, 100), (false, true, 2));
        assert_eq!(copies(Collective::Broadcast { root: 1 }, 1, 100, 100), (true, false, 2));
        assert_eq!(copies(Collective::AllGather, 1, 100, 200), (true, true, 1));
        assert_eq!(copies(Collective::Gather { root: 0 }, 1, 100, 0), (true, false, 1));
        assert_eq!(copies(Collective::AllReduce, 1, 0, 0), (false, false, 1));
    }
}
