//! Requests for operations on memory that the caller looks after.

use crate::{
    core::{
        codec::{Codec, CodecChoice},
        collective::Collective,
        element::{DType, ReduceOp},
        prepare::Call,
        session::{lane::MESSAGE_PRIORITY, mailbox::Envelope},
    },
    residuals::Residuals,
    sys::region::Region,
};
use std::time::Duration;

/// A message for the engine, with a buffer that it can keep; see
/// [`Communicator::submit_send`](crate::Communicator::submit_send).
///
/// ```
/// # use herringbone::{DType, MessageRequest, Region};
/// let buffer = Region::own(vec![1.0f32; 1000]);
/// let message = MessageRequest::new(DType::F32, 1000, buffer.region().clone()).tag(7);
/// # drop(message);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a message does nothing until it is submitted"]
pub struct MessageRequest {
    pub(crate) envelope: Envelope,
    pub(crate) region: Region,
    pub(crate) timeout: Option<Duration>,
}

impl MessageRequest {
    /// `count` elements of a type, which are sent from the region or received into it: all of it. With a region that is
    /// [lacking](Region::lacking) the message fails on both ranks.
    pub fn new(dtype: DType, count: usize, region: Region) -> Self {
        Self { envelope: Envelope { tag: 0, dtype, count: count as u64 }, region, timeout: None }
    }

    /// The number by which the receiver tells messages apart, by default 0.
    pub fn tag(self, tag: i64) -> Self {
        Self { envelope: Envelope { tag, ..self.envelope }, ..self }
    }

    /// Its timeout, by default the communicator's.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { timeout: timeout.into(), ..self }
    }
}

/// How the messages of an all-reduce are coded; see [`codec`](crate::core::codec).
///
/// ```
/// # use herringbone::Compression;
/// let compression = Compression::of("topk:0.01".parse()?).tensor("layer1.weight");
/// # drop(compression);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "it does nothing until it is given to a call"]
pub struct Compression {
    pub(crate) choice: CodecChoice,
    pub(crate) tensor: Option<String>,
    /// Who keeps what is lost; the group if nobody else does.
    pub(crate) residuals: Option<Residuals>,
}

impl Compression {
    /// By this codec, without error feedback.
    pub fn of(codec: Codec) -> Self {
        Self::by(CodecChoice::Of(codec))
    }

    /// By a codec, or by the codec that the plan [expects to pay](CodecChoice::Automatic).
    pub fn by(choice: CodecChoice) -> Self {
        Self { choice, tensor: None, residuals: None }
    }

    /// Error feedback: the codec's error of a tensor of this name is added to the tensor before it is coded the next
    /// time. On each rank the communicator keeps the error, for all calls whose compression names no other
    /// [owner](Self::kept_by).
    pub fn tensor(self, name: impl Into<String>) -> Self {
        Self { tensor: Some(name.into()), ..self }
    }

    /// This owner keeps the error of the [tensor](Self::tensor). Two tensors of the same name with different owners are
    /// different.
    pub fn kept_by(self, owner: &Residuals) -> Self {
        Self { residuals: Some(owner.clone()), ..self }
    }
}

/// A request for the engine, with buffers that it can keep; see [`Communicator::submit`](crate::Communicator::submit).
///
/// ```
/// # use herringbone::{Collective, DType, ReduceOp, Region, Request};
/// let buffer = Region::own(vec![1.0f32; 1000]);
/// let region = buffer.region().clone();
/// let request = Request::new(Collective::AllReduce, DType::F32, 1000, region.clone(), region)
///     .op(ReduceOp::Average)
///     .priority(1);
/// # drop(request);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is submitted"]
pub struct Request {
    /// Its codec is what `compression` comes to.
    pub(crate) call: Call,
    pub(crate) parts: Option<(Vec<usize>, Vec<usize>)>,
    pub(crate) compression: Compression,
    pub(crate) attrs: CallAttrs,
    pub(crate) input: Region,
    pub(crate) output: Region,
}

/// How a call is made, whatever it does; on its way to the wire it goes unchanged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallAttrs {
    pub(crate) priority: i32,
    /// What the caller says that it is for; 0 if nothing is said.
    pub(crate) mark: u32,
    /// How long it may take; the group's timeout if nothing is said.
    pub(crate) timeout: Option<Duration>,
    /// Of a barrier: the call whose slices follow, which ranks compare in its place.
    pub(crate) ahead_of: Option<Call>,
}

impl Request {
    /// A call on `count` elements of a type: of the whole buffer, or of one rank's part for reduce_scatter, all_gather,
    /// gather, scatter and all_to_all. Collectives that do not fold move bytes ([`DType::U8`]).
    ///
    /// The input can be the output, or, for all_gather and gather, this rank's part of it. For reduce_scatter and
    /// scatter the output can be this rank's part of the input. If they have other bytes in common, the engine works on
    /// a copy of the input. If one operation writes bytes that another reads or writes, they run one after the other,
    /// in the order in which they were issued.
    ///
    /// If a rank has no memory for a buffer, pass [`Region::lacking`] instead. Then the operation fails on all ranks
    /// with [`Memory`](crate::ErrorKind::Memory), and no rank waits.
    pub fn new(collective: Collective, dtype: DType, count: usize, input: Region, output: Region) -> Self {
        Self::of(Call::new(collective, dtype, ReduceOp::Sum, count), input, output)
    }

    /// A request for a call.
    pub(crate) fn of(call: Call, input: Region, output: Region) -> Self {
        let (parts, compression, attrs) = (None, Compression::default(), CallAttrs::default());
        Self { call, parts, compression, attrs, input, output }
    }

    /// How elements are folded, by default a sum; collectives that do not fold ignore it.
    pub fn op(self, op: ReduceOp) -> Self {
        Self { call: Call { op, ..self.call }, ..self }
    }

    /// Parts that can differ in length, instead of the count: how many elements this rank has for each rank, and how
    /// many each rank has for it. A buffer with only one part, or none, has that many numbers. For gather, scatter,
    /// all_gather and all_to_all. All ranks pass parts, or none does; each needs to know only its own parts.
    pub fn parts(self, input: &[usize], output: &[usize]) -> Self {
        Self { parts: Some((input.to_vec(), output.to_vec())), ..self }
    }

    /// How messages are coded, if they are: of an all-reduce of f32, with a sum or an average. The same on all ranks.
    pub fn compression(self, compression: Compression) -> Self {
        Self { compression, ..self }
    }

    /// How urgent it is, by default 0; the same on all ranks. Messages of a higher priority go first wherever they wait
    /// for a socket. Above 0 an operation is *urgent*. It has slots of its own, so it begins even if earlier ordinary
    /// operations have taken all memory, and passes them at their next segment.
    pub fn priority(self, priority: i32) -> Self {
        // The highest priority is for the groups that carry messages.
        Self { attrs: CallAttrs { priority: priority.min(MESSAGE_PRIORITY - 1), ..self.attrs }, ..self }
    }

    /// A number for its purpose, such as a hash of a name, by default 0. Ranks compare it, as they do the count: if it
    /// differs, the call fails on all of them with [`Mismatch`](crate::ErrorKind::Mismatch).
    pub fn mark(self, mark: u32) -> Self {
        Self { attrs: CallAttrs { mark, ..self.attrs }, ..self }
    }

    /// Its timeout, by default the communicator's.
    pub fn timeout(self, timeout: impl Into<Option<Duration>>) -> Self {
        Self { attrs: CallAttrs { timeout: timeout.into(), ..self.attrs }, ..self }
    }
}
