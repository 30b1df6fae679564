//! The common parts of all codecs: blocks, parameters, tags, and errors in bytes.

/// How many elements a block has; the last one of a tensor has fewer.
pub const BLOCK: usize = 4096;

/// How many bytes stand before a message's blocks: how many bytes these are.
pub const PREFIX_BYTES: usize = 4;

/// A parameter: an f32 that is compared by its bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Parameter(pub(super) u32);

impl Parameter {
    /// The parameter with this value.
    pub const fn new(value: f32) -> Self {
        Self(value.to_bits())
    }

    /// The value.
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// Why bytes are no message of a codec. Nothing is read beyond them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodedError {
    /// The bytes end before the block does.
    #[error("a coded message ends within a block")]
    Short,
    /// The message has more bytes than the blocks take.
    #[error("a coded message continues after its last block")]
    Long,
    /// Its prefix has another length.
    #[error("a coded message with another length than its prefix")]
    Prefix,
    /// A tag, a code or a number of values that the codec never writes.
    #[error("a coded message with a code that its codec does not have")]
    Code,
    /// An index that is not in the block, or does not come after the one before.
    #[error("a coded message with an index out of range or out of order")]
    Index,
}

/// What is done to an element with what was decoded of it: it is replaced, or what is left of it is.
pub(super) trait Put: Fn(&mut f32, f32) + Copy {}

impl<F: Fn(&mut f32, f32) + Copy> Put for F {}

/// What a tag says of a block.
pub(super) mod tag {
    /// It is as its codec writes it.
    pub(crate) const CODED: u8 = 0;
    /// There was a NaN or an infinity in it.
    pub(crate) const NOT_FINITE: u8 = 1;
    /// Of [`Exact`](super::super::Codec::Exact): plain, the elements that are not 0, or a number for each value.
    pub(crate) const PLAIN: u8 = 2;
    pub(crate) const SPARSE: u8 = 3;
    pub(crate) const PALETTE: u8 = 4;
}
