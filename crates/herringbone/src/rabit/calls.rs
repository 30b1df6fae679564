//! Collectives whose results are kept.

use super::{
    Rabit, RabitSlice,
    models::{copy, kept},
    pool::KeptBytes,
};
use crate::{
    Error, ReduceOp, Request, Result,
    core::{
        collective::Collective,
        element::{DType, Element},
        replay::{ReplayCall, ReplayStep},
    },
    sys::{plain::Plain, region::Region},
};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    mem,
    panic::Location,
};

/// A collective on memory that the caller looks after, for [`Rabit::begin`] and [`Rabit::finish`].
#[derive(Clone, Debug)]
pub struct RabitCollective {
    /// An all-reduce, a broadcast or an all-gather. In other collectives the ranks have different results, which no
    /// other rank could keep for them.
    pub collective: Collective,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of elements: all of them, or one rank's for an all-gather.
    pub count: usize,
    /// How they are folded, for an all-reduce.
    pub op: ReduceOp,
    /// This rank's input.
    pub input: Region,
    /// The place for the result. For a broadcast it is the input.
    pub output: Region,
    /// This rank's slice, for an all-gather whose parts differ in length. Input and output are the whole buffer then,
    /// and the count is ignored.
    pub slice: Option<RabitSlice>,
    /// A hash of the place in the program from which it is called; 0 if it is not known. Broadcasts ignore it.
    pub place: u64,
}

impl RabitCollective {
    fn name(&self) -> &'static str {
        self.collective.name()
    }

    /// A number for what it is, of what type, and how it is folded: of a call that is replayed it is the same as before.
    fn kind(&self) -> u64 {
        hash_of(&(self.collective, self.dtype, self.op))
    }

    /// Where the program makes it, the same on all ranks. A root often calls a broadcast from another line than the others, so all
    /// broadcasts count as made from one place.
    fn place_for_all(&self) -> u64 {
        if matches!(self.collective, Collective::Broadcast { .. }) { 0 } else { self.place }
    }
}

/// A hash of a place in a program, which is the same in each process of it.
fn place_of(location: &Location<'_>) -> u64 {
    hash_of(&(location.file(), location.line(), location.column()))
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Rabit {
    /// Folds `buffer` over all ranks, in place, in the order of the canonical tree.
    ///
    /// # Errors
    /// [`ErrorKind::Replay`](crate::ErrorKind::Replay) if the others have called something else here; else see [`ErrorKind`](crate::ErrorKind).
    #[track_caller]
    pub fn all_reduce<T: Element + Plain>(&mut self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        self.all_reduce_prepared(buffer, op, |_| {})
    }

    /// As [`all_reduce`](Self::all_reduce). `prepare` puts the input into the buffer; it is not called if the others have the result
    /// already.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn all_reduce_prepared<T: Element + Plain>(
        &mut self,
        buffer: &mut [T],
        op: ReduceOp,
        prepare: impl FnOnce(&mut [T]),
    ) -> Result<()> {
        let place = place_of(Location::caller());
        let count = buffer.len();
        let call = |region: &Region| RabitCollective {
            collective: Collective::AllReduce,
            dtype: T::DTYPE,
            count,
            op,
            input: region.clone(),
            output: region.clone(),
            slice: None,
            place,
        };
        if Region::lend(buffer, |region| self.begin(&call(region)))? {
            prepare(buffer);
            Region::lend(buffer, |region| self.finish(&call(region)))?;
        }
        Ok(())
    }

    /// Copies `buffer` from rank `root` to all others.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn broadcast<T: Plain>(&mut self, buffer: &mut [T], root: u32) -> Result<()> {
        let place = place_of(Location::caller());
        self.broadcast_from(buffer, root, place)
    }

    fn broadcast_from<T: Plain>(&mut self, buffer: &mut [T], root: u32, place: u64) -> Result<()> {
        Region::lend(buffer, |region| {
            let call = RabitCollective {
                collective: Collective::Broadcast { root },
                dtype: DType::U8,
                count: region.len(),
                op: ReduceOp::Sum,
                input: region.clone(),
                output: region.clone(),
                slice: None,
                place,
            };
            if self.begin(&call)? { self.finish(&call) } else { Ok(()) }
        })
    }

    /// Copies a vector of any length from rank `root` to all others, whose own are replaced. It makes two calls, and
    /// the first one sends the length.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: u32) -> Result<()> {
        let place = place_of(Location::caller());
        let mut length = [bytes.len() as u64];
        self.broadcast_from(&mut length, root, place)?;
        if self.rank() != root {
            bytes.clear();
            let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
            self.check_memory(length).map_err(|error| error.about(self.rank(), "broadcast"))?;
            bytes.resize(length, 0);
        }
        self.broadcast_from(bytes, root, place)
    }

    /// Gathers every rank's `input`, all equally long, into every rank's `output`, by rank.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn all_gather<T: Plain>(&mut self, input: &[T], output: &mut [T]) -> Result<()> {
        let place = place_of(Location::caller());
        Region::lend_shared(input, |input| {
            Region::lend(output, |output| {
                let call = RabitCollective {
                    collective: Collective::AllGather,
                    dtype: DType::U8,
                    count: input.len(),
                    op: ReduceOp::Sum,
                    input: input.clone(),
                    output: output.clone(),
                    slice: None,
                    place,
                };
                if self.begin(&call)? { self.finish(&call) } else { Ok(()) }
            })
        })
    }

    /// Begins a collective: whether the program has to give its input now and [finish](Self::finish) it. If not, the others have
    /// kept the result, and it is in the output.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a collective whose results differ between ranks; else as [`all_reduce`](Self::all_reduce).
    pub fn begin(&mut self, call: &RabitCollective) -> Result<bool> {
        let is_kept = matches!(
            call.collective,
            Collective::AllReduce | Collective::Broadcast { .. } | Collective::AllGather
        );
        if !is_kept {
            return Err(Error::unsupported(format_args!(
                "{} between init and finalize of rabit: its results differ between ranks, so no rank can keep them for another; use all_reduce, broadcast or all_gather",
                call.name()
            ))
            .about(self.rank(), call.name()));
        }
        if let Some(slice) = call.slice {
            let is_whole = call.collective == Collective::AllGather && call.input.len() == call.output.len();
            let checked = match is_whole {
                true => slice.check(call.output.len()),
                false => {
                    Err(Error::unsupported("a slice: pass it for an all-gather whose input is its output"))
                }
            };
            checked.map_err(|error| error.about(self.rank(), call.name()))?;
        }
        let bytes = call.output.len() as u64;
        let proves_all = !matches!(call.collective, Collective::Broadcast { .. }) && bytes > 0;
        let (kind, place) = (call.kind(), call.place_for_all());
        self.begin_call(ReplayCall::Collective { bytes, proves_all, kind, place }, call.name())?;
        self.awaits_input = self.go_on(call)?;
        Ok(self.awaits_input)
    }

    /// Runs a collective until its result is in the output, as often as it takes.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if another call was made since it began.
    pub fn finish(&mut self, call: &RabitCollective) -> Result<()> {
        if !mem::take(&mut self.awaits_input) {
            let problem = "a call of rabit while another one waits for its input: a function that prepares the input must make no call of its own";
            return Err(Error::unsupported(problem).about(self.rank(), call.name()));
        }
        loop {
            match self.run(call) {
                Ok(result) => {
                    self.member.ran(kept(result));
                    self.warn_of_memory(call.name());
                    return Ok(());
                }
                Err(error) => self.lose(error)?,
            }
            if !self.go_on(call)? {
                return Ok(());
            }
        }
    }

    /// Goes on to where the collective runs. If the others have its result, it is over.
    fn go_on(&mut self, call: &RabitCollective) -> Result<bool> {
        loop {
            match self.next_step(call.name())? {
                ReplayStep::Run => return Ok(true),
                ReplayStep::Replayed(result) => {
                    copy(result.data.region(), &call.output)?;
                    return Ok(false);
                }
                _ => {}
            }
        }
    }

    /// Runs it once. The input stays as it is if this fails, so nothing else keeps it.
    fn run(&self, call: &RabitCollective) -> Result<KeptBytes> {
        let request = |output: &Region| {
            Request::new(call.collective, call.dtype, call.count, call.input.clone(), output.clone())
                .op(call.op)
        };
        let result = self.pool.take(call.output.len());
        let kept = result.region();
        let run = |request| self.waiting.execute(&self.comm, request);
        if matches!(call.collective, Collective::Broadcast { .. }) {
            run(request(&call.output))?;
            copy(&call.output, kept)?;
            return Ok(result);
        }
        let done = match call.slice {
            Some(slice) => slice.gather(&call.input, kept, self.size(), run),
            None => run(request(kept)),
        };
        done.inspect_err(|_| kept.revoke())?;
        copy(kept, &call.output)?;
        Ok(result)
    }

    fn warn_of_memory(&mut self, operation: &str) {
        let kept = self.member.kept_bytes();
        if kept <= self.options.kept_warning || self.has_warned {
            return;
        }
        self.has_warned = true;
        let who = format!("rank {}", self.rank());
        let point = self.member.point();
        crate::log::warn(
            &who,
            format_args!(
                "after {operation}, call {} of version {}, it keeps {} MiB of results for processes that are started again: call checkpoint() more often, or lower rabit_global_replica",
                point.call,
                point.version,
                kept >> 20
            ),
        );
    }
}
