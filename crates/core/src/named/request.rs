//! Requests of a rank under a name, and the answers to all ranks.

use super::DUPLICATE;
use crate::{
    choice::choices,
    codec::{Codec, CodecCode},
    element::{DType, ReduceOp},
    group::Rank,
};
use alloc::{string::String, vec::Vec};

/// The longest name, in bytes.
pub const NAME_BYTES: usize = 4096;
/// The most dimensions of a shape.
pub(super) const DIMENSIONS: usize = 64;

choices! {
    "a named operation":
    /// The operation under a name. The codes are the codes of Horovod's requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum NamedKind {
        /// Folds tensors of one shape; every rank gets the result.
        AllReduce = 0 => "ALLREDUCE",
        /// Gathers tensors that may differ in their first dimension.
        AllGather = 1 => "ALLGATHER",
        /// Copies the root's tensor.
        Broadcast = 2 => "BROADCAST",
        /// A rank has no more data: it contributes zeros until all ranks have joined.
        Join = 3 => "JOIN",
        /// Folds tensors by adaptive summation.
        Adasum = 4 => "ADASUM",
        /// Sends rows of the tensor to each rank.
        AllToAll = 5 => "ALLTOALL",
        /// Returns when all ranks have come.
        Barrier = 6 => "BARRIER",
        /// Folds tensors of one shape; every rank gets some rows of the result.
        ReduceScatter = 7 => "REDUCESCATTER",
    }
}

impl NamedKind {
    /// Whether a rank that has joined can contribute zeros to it.
    pub fn takes_zeros(self) -> bool {
        matches!(self, Self::AllReduce | Self::Adasum)
    }

    /// Whether responses to it are kept in the cache.
    pub(super) fn is_cached(self) -> bool {
        !matches!(self, Self::Join | Self::Barrier)
    }

    /// Whether its input is folded.
    pub(super) fn folds(self) -> bool {
        matches!(self, Self::AllReduce | Self::Adasum | Self::ReduceScatter)
    }
}

/// The operation: all properties that have to be equal for a request to be a known one.
#[derive(Clone, Debug)]
pub struct NamedCall {
    /// The kind of operation.
    pub kind: NamedKind,
    /// The type of the elements.
    pub dtype: DType,
    /// How elements are folded, if they are.
    pub op: ReduceOp,
    /// The tensor's dimensions on this rank.
    pub shape: Vec<u64>,
    /// The rank whose tensor is copied, if one is.
    pub root: Rank,
    /// The factor of each element before it is folded.
    pub prescale: f64,
    /// The factor of each element of the result.
    pub postscale: f64,
    /// How messages are coded. With error feedback, a tensor's error is added to the next message under the name.
    pub codec: Codec,
}

/// Factors are equal if their bits are.
impl PartialEq for NamedCall {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key() && self.shape == other.shape
    }
}

impl Eq for NamedCall {}

impl NamedCall {
    /// All but the shape.
    pub(super) fn key(&self) -> (NamedKind, DType, ReduceOp, Rank, [u64; 2], CodecCode) {
        let factors = [self.prescale.to_bits(), self.postscale.to_bits()];
        (self.kind, self.dtype, self.op, self.root, factors, self.codec.code())
    }

    /// Whether it can be done as it says: only sums and averages of f32 have coded forms.
    pub(super) fn is_coded_right(&self) -> bool {
        let folds = self.kind == NamedKind::AllReduce && matches!(self.op, ReduceOp::Sum | ReduceOp::Average);
        self.codec == Codec::Plain || (folds && self.dtype == DType::F32)
    }

    /// How many elements the tensor has, or the largest number if that would overflow.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, dimension| product.saturating_mul(*dimension))
    }

    /// How many bytes the tensor has.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.bytes() as u64)
    }

    /// How many elements one row has: the elements under one index of the first dimension.
    pub fn row_elements(&self) -> u64 {
        let rest = self.shape.get(1..).unwrap_or_default();
        rest.iter().fold(1, |product: u64, dimension| product.saturating_mul(*dimension))
    }
}

/// Operations that are run all or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedGroup {
    /// The group's name.
    pub name: String,
    /// How many operations it has.
    pub members: u32,
}

/// A request of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRequest {
    /// The operation's name: the same on all ranks.
    pub name: String,
    /// The operation.
    pub call: NamedCall,
    /// The operations without which it is not run.
    pub group: Option<NamedGroup>,
    /// Operations with a higher priority run first if several are ready at once.
    pub priority: i32,
}

/// Why a rank's own negotiator does not take a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// One of this name is under way.
    #[error("{DUPLICATE}")]
    Duplicate,
    /// The name or the shape cannot be sent.
    #[error(
        "a name of at most 4096 bytes and a tensor of at most 64 dimensions are allowed; use a shorter name"
    )]
    TooLong,
    /// It has no coded form.
    #[error(
        "only an allreduce of float32 with a sum or an average can be compressed by a codec; leave the compression out"
    )]
    NotCoded,
    /// This rank has joined.
    #[error("this rank has joined: it can submit again when all ranks have; wait for the join first")]
    Joined,
}

impl NamedRequest {
    /// # Errors
    /// If it is too long to be sent, or has no coded form.
    pub(super) fn check(&self) -> Result<(), SubmitError> {
        let group = self.group.as_ref().map_or(0, |group| group.name.len());
        let fits = self.name.len().max(group) <= NAME_BYTES && self.call.shape.len() <= DIMENSIONS;
        match (fits, self.call.is_coded_right()) {
            (true, true) => Ok(()),
            (true, false) => Err(SubmitError::NotCoded),
            (false, _) => Err(SubmitError::TooLong),
        }
    }
}

/// The operation that all ranks run under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedResponse {
    /// The operation's name.
    pub name: String,
    /// The operation; the shape is from the lowest rank that asked.
    pub call: NamedCall,
    /// The first dimension of each rank's tensor, if tensors can differ in it.
    pub sizes: Vec<u64>,
    /// The name of its group.
    pub group: Option<String>,
    /// Its priority.
    pub priority: i32,
}

impl NamedResponse {
    /// How many bytes the operation takes in a fusion buffer: the result's.
    pub fn bytes(&self) -> u64 {
        if self.sizes.is_empty() {
            return self.call.bytes();
        }
        let rows = self.sizes.iter().fold(0, |sum: u64, rows| sum.saturating_add(*rows));
        rows.saturating_mul(self.call.row_elements()).saturating_mul(self.call.dtype.bytes() as u64)
    }
}

/// An answer of rank 0 to all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamedAnswer {
    /// All ranks are ready for it.
    Run(NamedResponse),
    /// The ranks do not agree about it.
    Fail {
        /// The operation's name.
        name: String,
        /// Why.
        text: String,
    },
    /// All ranks have joined.
    Joined {
        /// The rank that did so last.
        last: Rank,
    },
    /// All ranks use these from now on.
    Tuned(super::Tuning),
}
