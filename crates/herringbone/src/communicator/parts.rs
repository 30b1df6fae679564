//! Calls that are coded or explained, and calls that only move data: parts to one rank, from one rank, from every rank
//! to every other, and messages between two.

use super::{
    Communicator, Work, automatic, calling,
    lines::{LineTurn, PROGRAM},
    moving, residuals,
};
use crate::{
    Error, ErrorKind, Result,
    core::{
        codec::CodecChoice,
        collective::Collective,
        element::{DType, Element, ReduceOp},
        prepare::Call,
    },
    engine::messages::ToOrFrom,
    memory,
    request::{Compression, MessageRequest, Request},
    residuals::Residuals,
    sys::{
        plain::Plain,
        region::{Owned, Region},
    },
    work::Pending,
};

impl Communicator {
    /// Folds `buffer` over all ranks, with coded messages; every rank ends with the same bits in it. Without a
    /// [tensor](Compression::tensor) the codec's error is dropped.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn all_reduce_compressed(
        &self,
        buffer: &mut [f32],
        op: ReduceOp,
        compression: Compression,
    ) -> Result<()> {
        self.in_place(Call::new(Collective::AllReduce, DType::F32, op, buffer.len()), compression, buffer)
    }

    /// The residuals on this rank of tensors that have no other [owner](Compression::kept_by) than this group.
    pub fn residuals(&self) -> &Residuals {
        &self.parts().1.residuals
    }

    /// A turn for code that runs when an operation of this group is over: the next turn in the line of such code. All
    /// ranks ask for the same number of turns, in the same order. So its calls match the other ranks' calls, at any
    /// time and on any thread, while the program's own calls continue.
    ///
    /// A call in a turn waits until all earlier turns are over. Code that makes no calls waits for nothing. If a call
    /// has not reached its turn within its timeout, all later ones of the line fail, because the other ranks have made
    /// one more.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] if this is called in a turn, and earlier ones do not end within the group's timeout.
    pub fn turn(&self) -> Result<LineTurn> {
        self.turn_of("callbacks")
    }

    /// A [`turn`](Self::turn) for code that runs when a message is here, or when the program decides. The order of
    /// collectives does not determine that time, so these turns are a line of their own, and the others do not wait for
    /// them.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn turn_apart(&self) -> Result<LineTurn> {
        self.turn_of("callbacks of messages")
    }

    fn turn_of(&self, callbacks: &'static str) -> Result<LineTurn> {
        let asking = self.asking_line()?;
        let group = self.parts().1;
        Ok(group.lines.turn(callbacks, group.number, asking))
    }

    /// A line of calls apart from the program's, for a thread that makes them in an order of its own: all that runs in the turn
    /// has its place. All ranks ask for as many lines, in the same order.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn line(&self) -> Result<LineTurn> {
        let asking = self.asking_line()?;
        let group = self.parts().1;
        Ok(group.lines.line(group.number, asking))
    }

    /// A turn for a call on an accelerator's memory, whose operations start once they are on the host: the next one in the line of
    /// such calls that code of line `asking` makes.
    pub(crate) fn staged_turn(&self, asking: u64) -> LineTurn {
        let group = self.parts().1;
        group.lines.turn("calls on a device's memory", group.number, asking)
    }

    /// The number of this thread's line, once it is its turn.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub(crate) fn asking_line(&self) -> Result<u64> {
        let line = calling::own_line(self.parts().0, "turn", self.timeout())?;
        Ok(line.map_or(PROGRAM, |line| line.number))
    }

    /// The algorithm of a collective of `count` elements, with its reason, as `algorithm: reason`. Folds are sums:
    /// averages of integers, whose partial sums are wider, can take another algorithm.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if no algorithm can do it.
    pub fn explain(&self, collective: Collective, dtype: DType, count: usize) -> Result<String> {
        self.check_open("explain")?;
        self.explained(Call::new(collective, dtype, ReduceOp::Sum, count))
    }

    /// Which codec and which algorithm a call of `count` elements takes, and why, as `codec: reason; algorithm: reason`; without
    /// the first reason if the plan did not choose the codec.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the call cannot be coded: if it is no all-reduce of f32.
    pub fn explain_compressed(
        &self,
        collective: Collective,
        dtype: DType,
        count: usize,
        choice: CodecChoice,
    ) -> Result<String> {
        self.check_open("explain")?;
        let (fabric, group) = self.parts();
        let call = Call::new(collective, dtype, ReduceOp::Sum, count);
        let (codec, why) = match choice {
            CodecChoice::Of(codec) => (codec, String::new()),
            CodecChoice::Automatic => {
                let (codec, why) = automatic::chosen(fabric, group, &call);
                (codec, format!(": {why}"))
            }
        };
        let call = Call { codec, ..call };
        residuals::check(&call).map_err(|error| error.at(fabric.job.rank))?;
        Ok(format!("{codec}{why}; {}", self.explained(call)?))
    }

    fn explained(&self, call: Call) -> Result<String> {
        let (fabric, group) = self.parts();
        fabric.node.with(|engine| {
            let group = engine.runtime.groups.get_mut(engine.current(group.number));
            let group = group.ok_or_else(|| Error::new(ErrorKind::Closed))?;
            group
                .plan(call, &mut engine.runtime.out.observer)
                .map(|planned| format!("{}: {}", planned.basis.algorithm, planned.why))
        })
    }

    /// Gathers every rank's `input`, in rank order, into every rank's `output`.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless the output is [`size`](Self::size) times as long as the input; else see [`ErrorKind`].
    pub fn all_gather<T: Plain>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        self.lent(moving(Collective::AllGather, size_of_val(input)), None, input, output)
    }

    /// Gathers every rank's `input`, in rank order, into `output` on rank `root`; the others' output is empty.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless the root's output is [`size`](Self::size) times as long
    /// as the input; else see [`ErrorKind`].
    pub fn gather<T: Plain>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        self.lent(moving(Collective::Gather { root }, size_of_val(input)), None, input, output)
    }

    /// Gathers every rank's `input`, which can differ in length. On rank `root` `counts` has the number of elements of
    /// each rank; on the others it is empty, as is the output.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on all ranks if a rank gives as many as the root does not expect;
    /// else see [`ErrorKind`].
    pub fn gather_uneven<T: Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
        root: u32,
    ) -> Result<()> {
        let parts = (&[input.len()][..], counts);
        self.lent(moving(Collective::Gather { root }, 0), Some(parts), input, output)
    }

    /// Gives rank r the r-th part of rank `root`'s `input`; the others' input is empty.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless the root's input is [`size`](Self::size) times as long
    /// as the output; else see [`ErrorKind`].
    pub fn scatter<T: Plain>(&self, input: &[T], output: &mut [T], root: u32) -> Result<()> {
        self.lent(moving(Collective::Scatter { root }, size_of_val(output)), None, input, output)
    }

    /// Gives each rank its part of rank `root`'s `input`; parts can differ in length. On the root `counts` has the
    /// number of elements for each rank; on the others it is empty, as is the input.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on all ranks if a rank expects as many as the root does not give;
    /// else see [`ErrorKind`].
    pub fn scatter_uneven<T: Plain>(
        &self,
        input: &[T],
        counts: &[usize],
        output: &mut [T],
        root: u32,
    ) -> Result<()> {
        let parts = (counts, &[output.len()][..]);
        self.lent(moving(Collective::Scatter { root }, 0), Some(parts), input, output)
    }

    /// Gathers every rank's `input`, which can differ in length, into every rank's `output`; `counts` has the number of
    /// elements of each rank.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on all ranks if a rank gives as many as another does not expect;
    /// else see [`ErrorKind`].
    pub fn all_gather_uneven<T: Plain>(&self, input: &[T], output: &mut [T], counts: &[usize]) -> Result<()> {
        self.lent(moving(Collective::AllGather, 0), Some((&[input.len()], counts)), input, output)
    }

    /// Sends the r-th part of `input` to rank r and receives the r-th part of `output` from it; all parts are equal.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless both are equally long and have a part for each rank;
    /// else see [`ErrorKind`].
    pub fn all_to_all<T: Plain>(&self, input: &[T], output: &mut [T]) -> Result<()> {
        let part = size_of_val(input) / self.size() as usize;
        self.lent(moving(Collective::AllToAll, part), None, input, output)
    }

    /// The same with parts that can differ in length: `sends` has the number of elements of this rank for each rank,
    /// and `receives` of each rank for this one.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on all ranks if a rank sends as many as another does not expect;
    /// else see [`ErrorKind`].
    pub fn all_to_all_uneven<T: Plain>(
        &self,
        input: &[T],
        sends: &[usize],
        output: &mut [T],
        receives: &[usize],
    ) -> Result<()> {
        self.lent(moving(Collective::AllToAll, 0), Some((sends, receives)), input, output)
    }

    /// As [`gather`](Self::gather), in the background; the result comes with [`Work::wait`], empty on all ranks but `root`.
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn gather_async<T: Plain + Default>(&self, input: Vec<T>, root: u32) -> Result<Work<T>> {
        let ranks = if self.rank() == root { self.size() as usize } else { 0 };
        let (part, output) = (size_of_val(&input[..]), input.len() * ranks);
        self.moved_later(Collective::Gather { root }, part, input, output)
    }

    /// As [`scatter`](Self::scatter), in the background; `count` is the length of a part. The result comes with
    /// [`Work::wait`].
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn scatter_async<T: Plain + Default>(
        &self,
        input: Vec<T>,
        count: usize,
        root: u32,
    ) -> Result<Work<T>> {
        self.moved_later(Collective::Scatter { root }, count * size_of::<T>(), input, count)
    }

    /// As [`all_to_all`](Self::all_to_all), in the background; the result comes with [`Work::wait`].
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn all_to_all_async<T: Plain + Default>(&self, input: Vec<T>) -> Result<Work<T>> {
        let (part, output) = (size_of_val(&input[..]) / self.size() as usize, input.len());
        self.moved_later(Collective::AllToAll, part, input, output)
    }

    /// Sends `values` to rank `to`, which receives as many with the same tag. Returns when it has them, or has a place for
    /// them and they have left.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on both ranks if the receiver asks for another number or type of elements; else see
    /// [`ErrorKind`].
    pub fn send<T: Element + Plain>(&self, values: &[T], to: u32, tag: i64) -> Result<()> {
        Region::lend_shared(values, |region| {
            let message = MessageRequest::new(T::DTYPE, values.len(), region.clone()).tag(tag);
            self.group.post_message(&self.fabric, ToOrFrom::To(to), message, true)?.wait()
        })
    }

    /// Receives `values` from a rank, or from any rank of the group if none is named: then from the rank whose message
    /// of this tag comes first. Returns the sender's rank.
    ///
    /// Receives of one tag are served in the order of their calls, and messages of one sender and tag in the order in which
    /// they were sent.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on both ranks if the sender gives another number or type of elements; else see [`ErrorKind`].
    pub fn recv<T: Element + Plain>(
        &self,
        values: &mut [T],
        from: impl Into<Option<u32>>,
        tag: i64,
    ) -> Result<u32> {
        let count = values.len();
        Region::lend(values, |region| {
            let message = MessageRequest::new(T::DTYPE, count, region.clone()).tag(tag);
            let pending =
                self.group.post_message(&self.fabric, ToOrFrom::From(from.into()), message, true)?;
            pending.wait()?;
            pending.source().ok_or_else(|| Error::new(ErrorKind::Closed))
        })
    }

    /// As [`send`](Self::send), in the background; the values come back with [`Work::wait`].
    ///
    /// # Errors
    /// If the message cannot be issued; see [`ErrorKind`].
    pub fn send_async<T: Element + Plain>(&self, values: Vec<T>, to: u32, tag: i64) -> Result<Work<T>> {
        let (count, buffer) = (values.len(), Region::own(values));
        let message = MessageRequest::new(T::DTYPE, count, buffer.region().clone()).tag(tag);
        Ok(Work { pending: self.submit_send(to, message)?, buffer })
    }

    /// As [`recv`](Self::recv), in the background; the `count` elements come with [`Work::wait`].
    ///
    /// # Errors
    /// If the receive cannot be issued; see [`ErrorKind`].
    pub fn recv_async<T: Element + Plain + Default>(
        &self,
        count: usize,
        from: impl Into<Option<u32>>,
        tag: i64,
    ) -> Result<Work<T>> {
        let (buffer, region) = owned(count);
        let message = MessageRequest::new(T::DTYPE, count, region).tag(tag);
        Ok(Work { pending: self.submit_recv(from, message)?, buffer })
    }

    /// Sends a message and returns at once. Its region must not be touched until it is over.
    ///
    /// # Errors
    /// If it cannot be issued; see [`ErrorKind`].
    pub fn submit_send(&self, to: u32, message: MessageRequest) -> Result<Pending> {
        self.group.post_message(&self.fabric, ToOrFrom::To(to), message, false)
    }

    /// Receives a message from a rank, or from any, and returns at once. Its region must not be touched until it is
    /// over; then [`Pending::source`] is the sender.
    ///
    /// # Errors
    /// If it cannot be issued; see [`ErrorKind`].
    pub fn submit_recv(&self, from: impl Into<Option<u32>>, message: MessageRequest) -> Result<Pending> {
        self.group.post_message(&self.fabric, ToOrFrom::From(from.into()), message, false)
    }

    fn moved_later<T: Plain + Default>(
        &self,
        collective: Collective,
        part: usize,
        input: Vec<T>,
        output: usize,
    ) -> Result<Work<T>> {
        let (buffer, region) = owned(output);
        let input = Region::own(input).region().clone();
        Ok(Work { pending: self.submit(Request::of(moving(collective, part), input, region))?, buffer })
    }
}

/// Zeroed memory for a result, as a region, which is lacking if there is not so much.
fn owned<T: Plain + Default>(count: usize) -> (Owned<T>, Region) {
    let zeros = memory::zeros(count);
    let lacking = zeros.is_none().then(|| Region::lacking(count.saturating_mul(size_of::<T>())));
    let buffer = Region::own(zeros.unwrap_or_default());
    let region = lacking.unwrap_or_else(|| buffer.region().clone());
    (buffer, region)
}
