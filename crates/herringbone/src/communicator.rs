//! Communicators, on which programs make calls.

mod automatic;
pub(crate) mod called;
mod calling;
mod handle;
#[expect(clippy::disallowed_methods, reason = "who waits for a turn has a limit")]
pub(crate) mod lines;
mod messages;
mod parts;
mod residuals;
#[expect(clippy::disallowed_methods, reason = "it waits for what is under way")]
pub(crate) mod shrink;
mod timed;
#[expect(clippy::disallowed_methods, reason = "a look waits for a limited time")]
pub(crate) mod view;

use crate::{
    Error, ErrorKind, Result,
    clock::Moment,
    completion::Completion,
    core::{
        codec::Codec,
        collective::{Collective, UnevenParts},
        element::{DType, Element, ReduceOp},
        group::Rank,
        plan::ChosenRuns,
        prepare::Call,
        session::{Ranks, control::Ordinal, membership::MemberId},
        shards::ShardRuns,
    },
    engine::group::{self, Settings},
    execute::issue::Issue,
    fabric::Fabric,
    observe::{ListenerId, Recent, Sink},
    request::{CallAttrs, Compression, Request},
    sys::{
        heap::Mapped,
        plain::Plain,
        region::{Owned, Region},
    },
    transport::stats::Stats,
    work::Pending,
};
use handle::{GroupHandle, GroupOrigin, make_known, nanoseconds, settings_of};
use std::{
    fmt,
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// One rank's handle on a group: every collective is a method of it, and every member has to call the same one.
///
/// Operations of one communicator are matched between ranks by the order in which they are issued. A communicator can
/// be used from several threads as long as all ranks issue the same order; see [`turn`](Self::turn) and
/// [`line`](Self::line) for threads that do not. Dropping the last handle of a fabric says goodbye to the others.
///
/// Results do not depend on the message's size, the algorithm, the transport or the number of reducers. Every element
/// is folded in the order of the group's canonical tree (see [`core::group`](crate::core::group)).
#[derive(Clone)]
pub struct Communicator {
    fabric: Arc<Fabric>,
    group: Arc<GroupHandle>,
}

/// A running operation that owns its buffer; see [`Communicator::all_reduce_async`].
#[derive(Debug)]
#[must_use = "the result comes with wait"]
pub struct Work<T: Plain> {
    pending: Pending,
    buffer: Owned<T>,
}

impl<T: Plain> Work<T> {
    /// Waits for the result.
    ///
    /// # Errors
    /// An error of the operation. The buffer is lost then: its content is undefined.
    pub fn wait(self) -> Result<Vec<T>> {
        self.pending.wait()?;
        Ok(self.buffer.take())
    }

    /// Whether the operation is over.
    pub fn is_done(&self) -> bool {
        self.pending.is_done()
    }
}

impl Communicator {
    /// A group of these members, of which this process is the one at place `rank`, and which is part of no other.
    pub(crate) fn group(
        fabric: Arc<Fabric>,
        number: u32,
        rank: Rank,
        members: Vec<MemberId>,
        timeout: Duration,
    ) -> Self {
        Self::part_of(fabric, GroupOrigin::of(number), number, None, rank, members, timeout)
    }

    /// The same, which may be named by a count.
    fn part_of(
        fabric: Arc<Fabric>,
        origin: GroupOrigin,
        number: u32,
        ordinal: Option<Ordinal>,
        rank: Rank,
        members: Vec<MemberId>,
        timeout: Duration,
    ) -> Self {
        let reducers = fabric.job.roster.reducers().map(|reducer| reducer.id);
        let ids = members.iter().copied().chain(reducers).collect();
        let guidance = fabric.settings.guidance.clone();
        let settings = settings_of(&fabric, number, rank, &members, ids).of_shards(origin.shards.clone());
        make_known(&fabric, Settings { guidance, timeout, ..settings }, ordinal);
        let group = GroupHandle::new(&fabric, number, origin, rank, members, timeout);
        Self { fabric, group: Arc::new(group) }
    }

    /// A communicator of some of this one's ranks, in ascending order. Only they call this, each with the same name and
    /// ranks, and each name once per set of ranks.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the ranks make no group with this rank in it, or the name was used.
    pub fn subgroup(&self, name: &str, ranks: &[u32]) -> Result<Self> {
        let (rank, members) = self.members_of(ranks)?;
        let number = group::number_of(name, &members);
        self.check_free(number, "give every group a name of its own")?;
        self.fabric.node.with(|engine| engine.runtime.out.observer.name_group(number, name));
        Ok(self.part(number, None, rank, members))
    }

    /// The same without a name: each rank's n-th group of exactly these ranks is the same group. It is made here,
    /// without waiting for other ranks.
    ///
    /// If a call to make one fails on some ranks, the others wait in theirs for their timeout. Then that group is over,
    /// with an error that names these ranks, and all ranks can make it again: their counts are the same.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the ranks make no group with this rank in it.
    pub fn subgroup_of(&self, ranks: &[u32]) -> Result<Self> {
        let (rank, members) = self.members_of(ranks)?;
        let roster = &self.fabric.job.roster;
        let in_job: Vec<Rank> = members.iter().filter_map(|member| roster.rank_of(*member)).collect();
        let (number, ordinal) = self.name_next("group", Ranks(&in_job), &members);
        self.check_free(number, "a group with a name of its own has it: give that one another name")?;
        Ok(self.part(number, Some(ordinal), rank, members))
    }

    /// A communicator of the same ranks for sums of shards: rank r carries the r-th run. An input has the partial sums of a rank's nodes,
    /// one after the other; ranks without shards give -0.0 in each element. Its all-reduces follow the canonical tree over the shards,
    /// so sums do not depend on how many ranks carry them, and an average divides by the number of shards. All ranks call this with the
    /// same runs: if one has others, the first operation fails on all with an error that names both numbers. Every rank's n-th one is
    /// the same group.
    ///
    /// Sums and averages run here, and no codecs.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if there are not as many runs as ranks.
    pub(crate) fn shard_group(&self, runs: &ShardRuns) -> Result<Self> {
        self.check_open("shard_group")?;
        let wrong = |problem: String| Error::config("runs of shards", problem).at(self.fabric.job.rank);
        if runs.workers() != self.size() {
            return Err(wrong(format!(
                "{} runs for {} ranks: give each rank one",
                runs.workers(),
                self.size()
            )));
        }
        let shards = runs.group();
        let members = self.group.members.clone();
        let (number, ordinal) =
            self.name_next("sums of shards", format_args!("group {:08x}", self.group.number), &members);
        self.check_free(number, "a group with a name of its own has it: give that one another name")?;
        let origin = GroupOrigin { root: self.group.origin.root, shards: Some(Arc::new(shards)) };
        let (fabric, rank, timeout) = (self.fabric.clone(), self.rank(), self.timeout());
        Ok(Self::part_of(fabric, origin, number, Some(ordinal), rank, members, timeout))
    }

    /// Which runs of shards make a training's step shorter here: see [`ShardGroup::choose_runs`](crate::shards::ShardGroup::choose_runs).
    pub(crate) fn choose_shard_runs(
        &self,
        shards: u32,
        shard_time: Duration,
        bytes: u64,
    ) -> Result<ChosenRuns> {
        self.check_open("choose_runs")?;
        automatic::chosen_runs(&self.fabric, &self.group, shards, shard_time, bytes)
            .map_err(|error| Error::config("shards", error.to_string()).at(self.fabric.job.rank))
    }

    fn part(&self, number: u32, ordinal: Option<Ordinal>, rank: Rank, members: Vec<MemberId>) -> Self {
        let origin = GroupOrigin::of(self.group.origin.root);
        Self::part_of(self.fabric.clone(), origin, number, ordinal, rank, members, self.timeout())
    }

    /// Names the next group of these members: its number, and what names it. Ranks that are left of a job begin to count anew: a
    /// loss may have found some of them in the middle of making groups.
    fn name_next(&self, kind: &str, of: impl fmt::Display, members: &[MemberId]) -> (u32, Ordinal) {
        let root = self.group.origin.root;
        let all = group::number_of(&format!("every {kind} of {of} in {root:08x}"), members);
        self.fabric.node.with(|engine| {
            let ordinal = engine.name_next(all);
            let name = format!("{kind} {} of {of}", ordinal.at + 1);
            let number = group::number_of(&format!("{name} in {root:08x}"), members);
            engine.runtime.out.observer.name_group(number, &name);
            (number, ordinal)
        })
    }

    fn check_free(&self, number: u32, remedy: &str) -> Result<()> {
        match self.fabric.node.with(|engine| engine.has_had_group(number)) {
            true => Err(self.wrong_ranks(&format!("a group of this name exists already: {remedy}"))),
            false => Ok(()),
        }
    }

    fn wrong_ranks(&self, problem: &str) -> Error {
        Error::config("ranks of a group", problem).at(self.fabric.job.rank)
    }

    /// This rank's place among some of this group's ranks, and who they are.
    fn members_of(&self, ranks: &[u32]) -> Result<(Rank, Vec<MemberId>)> {
        self.check_open("subgroup")?;
        let wrong = |problem: &str| self.wrong_ranks(problem);
        if let Some(pair) = ranks.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(wrong(&format!("they have to ascend, and {} stands before {}", pair[0], pair[1])));
        }
        if let Some(last) = ranks.last().filter(|last| **last >= self.size()) {
            return Err(wrong(&format!(
                "{last} is no rank of the larger group: its last is {}",
                self.size() - 1
            )));
        }
        let Some(rank) = ranks.iter().position(|rank| *rank == self.rank()) else {
            return Err(wrong("this rank is not one of them: only members form a group"));
        };
        Ok((rank as Rank, ranks.iter().map(|rank| self.group.members[*rank as usize]).collect()))
    }

    /// The name of the group in lists and errors.
    pub fn name(&self) -> String {
        self.fabric.node.with(|engine| engine.runtime.out.observer.name_of(self.group.number))
    }

    /// Sets the program's name and description of the group, for flight records. Errors keep their names.
    pub fn describe_as(&self, name: &str, description: &str) {
        let number = self.group.number;
        self.fabric.node.with(|engine| engine.runtime.out.observer.describe_group(number, name, description));
    }

    /// Its fabric and its group's handle.
    pub(crate) fn parts(&self) -> (&Arc<Fabric>, &GroupHandle) {
        (&self.fabric, &self.group)
    }

    /// # Errors
    /// If it is another process's, or was closed.
    pub(crate) fn check_open(&self, operation: &'static str) -> Result<()> {
        self.check_usable(operation)?;
        if self.takes_calls() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Closed).about(self.fabric.job.rank, operation))
    }

    /// Whether it was not closed.
    fn takes_calls(&self) -> bool {
        self.fabric.node.with(|engine| engine.takes_calls(self.group.number))
    }

    /// The address where this process listens, as `host:port`, for `herringbone status`. Ranks that are threads do not
    /// listen.
    pub fn address(&self) -> Option<&str> {
        let member = self.fabric.job.roster.member(self.fabric.job.me)?;
        Some(member.address.as_str()).filter(|address| !address.is_empty())
    }

    /// This process's rank in the group.
    pub fn rank(&self) -> u32 {
        self.group.rank
    }

    /// How many ranks the group has.
    pub fn size(&self) -> u32 {
        self.group.members.len() as u32
    }

    /// The timeout of later operations whose calls have none.
    pub fn set_timeout(&self, timeout: Duration) {
        self.group.timeout.store(nanoseconds(timeout), Ordering::Relaxed);
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.group.timeout()
    }

    /// Folds `buffer` over all ranks; every rank ends with the result in it.
    ///
    /// # Errors
    /// See [`ErrorKind`]; the buffer's content is undefined then.
    pub fn all_reduce<T: Element + Plain>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, buffer.len());
        self.in_place(call, Compression::default(), buffer)
    }

    /// Folds `input` over all ranks into every rank's `output`; the input stays as it is.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] if the two differ in length; else see [`ErrorKind`].
    pub fn all_reduce_into<T: Element + Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.lent(Call::new(Collective::AllReduce, T::DTYPE, op, input.len()), None, input, output)
    }

    /// Folds `buffer` over all ranks in the background; the result comes with [`Work::wait`].
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn all_reduce_async<T: Element + Plain>(&self, buffer: Vec<T>, op: ReduceOp) -> Result<Work<T>> {
        let call = Call::new(Collective::AllReduce, T::DTYPE, op, buffer.len());
        let buffer = Region::own(buffer);
        let region = buffer.region().clone();
        Ok(Work { pending: self.submit(Request::of(call, region.clone(), region))?, buffer })
    }

    /// Folds `input` over all ranks into `output` on rank `root`; the others' output is not touched.
    ///
    /// # Errors
    /// See [`ErrorKind`]. The output has to be as long as the input on every rank.
    pub fn reduce<T: Element + Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        root: u32,
        op: ReduceOp,
    ) -> Result<()> {
        self.lent(Call::new(Collective::Reduce { root }, T::DTYPE, op, input.len()), None, input, output)
    }

    /// Copies `buffer` from rank `root` to all others.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn broadcast<T: Plain>(&self, buffer: &mut [T], root: u32) -> Result<()> {
        self.in_place(
            moving(Collective::Broadcast { root }, size_of_val(buffer)),
            Compression::default(),
            buffer,
        )
    }

    /// Folds `input` over all ranks and leaves rank r the r-th part of the result.
    ///
    /// # Errors
    /// [`ErrorKind::BufferSize`] unless the input is [`size`](Self::size) times as long as the output; else see [`ErrorKind`].
    pub fn reduce_scatter<T: Element + Plain>(
        &self,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.lent(Call::new(Collective::ReduceScatter, T::DTYPE, op, output.len()), None, input, output)
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn barrier(&self) -> Result<()> {
        let nothing = Region::zeroed(0);
        self.execute(Request::of(moving(Collective::Barrier, 0), nothing.clone(), nothing))
    }

    /// Makes a call on one buffer.
    fn in_place<T: Plain>(&self, call: Call, compression: Compression, buffer: &mut [T]) -> Result<()> {
        Region::lend(buffer, |region| {
            self.execute(Request::of(call, region.clone(), region.clone()).compression(compression))
        })
    }

    /// Makes a call on two buffers, whose parts may be given in elements of theirs.
    fn lent<T: Plain>(
        &self,
        call: Call,
        parts: Option<(&[usize], &[usize])>,
        input: &[T],
        output: &mut [T],
    ) -> Result<()> {
        let bytes = |parts: &[usize]| -> Vec<usize> {
            parts.iter().map(|part| part.saturating_mul(size_of::<T>())).collect()
        };
        Region::lend_shared(input, |input| {
            Region::lend(output, |output| {
                let request = Request::of(call, input.clone(), output.clone());
                self.execute(match parts {
                    Some((input, output)) => request.parts(&bytes(input), &bytes(output)),
                    None => request,
                })
            })
        })
    }

    /// Issues an operation on regions and returns at once. The regions must not be touched until it is over. If it
    /// failed on other ranks before it was issued here, its wait fails.
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn submit(&self, request: Request) -> Result<Pending> {
        let operation = request.call.collective.name();
        Ok(self.pending(operation, self.fabric.node.submit(&self.checked(request)?, false)?))
    }

    /// As [`submit`](Self::submit), for a thread that waits for the operation next and so drives it. No other thread is
    /// woken for it. Until then it can stand still. A small one can be over when this returns.
    ///
    /// # Errors
    /// If the operation cannot be issued; see [`ErrorKind`].
    pub fn begin(&self, request: Request) -> Result<Pending> {
        let operation = request.call.collective.name();
        let completion = self.fabric.node.begin(self.checked(request)?)?;
        Ok(self.pending(operation, completion.unwrap_or_else(Completion::over)))
    }

    /// Has all ranks compare a call of which each makes the slices in operations of their own, once this has ended well. It moves
    /// nothing, and no rank completes it before all have called it. It fails on all if one lacks bytes for the slices.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub(crate) fn submit_ahead_of(&self, call: &Request, elements: usize, lacks: usize) -> Result<Pending> {
        let memory = if lacks > 0 { Region::lacking(lacks) } else { Region::zeroed(0) };
        let ahead_of = Some(Call { count: elements, ..call.call });
        let attrs = CallAttrs { ahead_of, ..call.attrs };
        let barrier = Request::of(moving(Collective::Barrier, 0), memory.clone(), memory);
        self.submit(Request { attrs, ..barrier })
    }

    /// Issues an operation on regions and waits for it.
    ///
    /// # Errors
    /// See [`ErrorKind`].
    pub fn execute(&self, request: Request) -> Result<()> {
        let operation = request.call.collective.name();
        let completion = self.fabric.node.begin(self.checked(request)?)?;
        completion.map_or(Ok(()), |completion| self.pending(operation, completion).wait())
    }

    /// Moves all data that can move, without waiting, and returns whether any did; see
    /// [`Config::manual_progress`](crate::Config::manual_progress).
    pub fn progress(&self) -> bool {
        !self.fabric.is_forked() && self.fabric.node.turn()
    }

    fn pending(&self, operation: &'static str, completion: Arc<Completion>) -> Pending {
        Pending { node: self.fabric.node.clone(), completion, rank: self.fabric.job.rank, operation }
    }

    fn checked(&self, request: Request) -> Result<Issue> {
        if let Err(error) = self.check_usable(request.call.collective.name()) {
            // To drop what keeps the memory may need a lock that a thread of the parent held as it forked.
            std::mem::forget(request);
            return Err(error);
        }
        let parts = self.check_request(&request).map_err(|error| error.at(self.fabric.job.rank))?;
        let codec = automatic::codec_of(&self.fabric, &self.group, &request);
        self.check_shards(&request, codec).map_err(|error| error.at(self.fabric.job.rank))?;
        let mut call = Call { codec, ..request.call };
        let timeout = request.attrs.timeout.unwrap_or_else(|| self.timeout());
        let (group, draws) =
            calling::called_group(&self.fabric, &self.group, call.collective.name(), timeout)?;
        let draws = draws.as_deref().unwrap_or(&self.group.draws);
        let owner = &self.group.residuals;
        let checked = residuals::checked(&call, &request.compression, owner, draws, self.group.rank);
        let fed = checked.map_err(|error| error.at(self.fabric.job.rank))?;
        if request.parts.is_some() {
            call.count = Call::UNEVEN;
        }
        let Request { attrs, input, output, .. } = request;
        let attrs = CallAttrs { timeout: Some(timeout), ..attrs };
        Ok(Issue { group, call, parts, fed, lacks: None, attrs, input, output }.seeing_lack())
    }

    /// That a group for sums of shards only does that.
    fn check_shards(&self, request: &Request, codec: Codec) -> Result<()> {
        let Call { collective, op, .. } = request.call;
        let is_sum = collective == Collective::AllReduce && matches!(op, ReduceOp::Sum | ReduceOp::Average);
        if self.group.origin.shards.is_none() || is_sum && codec == Codec::Plain {
            return Ok(());
        }
        let what = if is_sum { format!("{codec} codes") } else { format!("{} with {op}", collective.name()) };
        Err(Error::unsupported(format_args!(
            "{what} in a group for sums of shards: it runs plain all_reduces with sum or average; use the communicator that it was made of"
        )))
    }

    pub(crate) fn check_usable(&self, operation: &'static str) -> Result<()> {
        if self.fabric.is_forked() {
            return Err(Error::new(ErrorKind::Forked).about(self.fabric.job.rank, operation));
        }
        Ok(())
    }

    /// Checks what a request says, and works out its parts where they may differ. Of a rank that lacks memory for it nobody asks
    /// how much would be right.
    fn check_request(&self, request: &Request) -> Result<Option<Arc<UnevenParts>>> {
        let Request { call: Call { collective, dtype, op, count, .. }, parts, input, output, .. } = request;
        if collective.folds() && !op.takes(*dtype) {
            return Err(Error::unsupported(format_args!(
                "{} of {dtype} with {op}: it joins the bits of integers; pass integers",
                collective.name()
            )));
        }
        if let Some(root) = collective.root().filter(|root| *root >= self.size()) {
            return Err(Error::unsupported(format_args!(
                "{} with root {root}: the root has to be one of the group's ranks, 0 to {}",
                collective.name(),
                self.size() - 1
            )));
        }
        if input.is_lacking() || output.is_lacking() {
            return Ok(None);
        }
        let parts = match parts {
            Some((input, output)) => {
                let parts = UnevenParts::new(*collective, self.size(), self.rank(), input, output);
                Some(Arc::new(parts.map_err(Error::unsupported)?))
            }
            None => None,
        };
        let (inputs, outputs) = match &parts {
            Some(parts) => (parts.input_elements(), parts.output_elements()),
            None => (
                match &self.group.origin.shards {
                    Some(shards) => collective.elements_of(shards, self.rank(), *count),
                    None => collective.input_elements(self.size(), self.rank(), *count),
                },
                collective.output_elements(self.size(), self.rank(), *count),
            ),
        };
        let bytes = |elements: usize| elements.saturating_mul(dtype.bytes());
        let sizes = [("the input", bytes(inputs), input.len()), ("the output", bytes(outputs), output.len())];
        for (buffer, expected, actual) in sizes {
            if expected != actual {
                return Err(Error::new(ErrorKind::BufferSize { buffer, expected, actual }));
            }
        }
        if !output.is_writable() {
            return Err(Error::unsupported("the output is read-only: pass a buffer that can be written"));
        }
        Ok(parts)
    }

    /// `count` zeroed elements in memory that all ranks of this host map. An all-reduce in place of such a buffer, on
    /// all ranks of a host, needs no copies. Every rank folds its part in one pass over the others' buffers and writes
    /// the result there. Any other collective treats it like any other memory.
    ///
    /// The buffer can outlive the communicator. Forked children do not have it. [`Mapped`] describes the harm that a
    /// process could still do to it if it is stopped in the middle of an operation.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if the memory is too small.
    pub fn allocate<T: Plain>(&self, count: usize) -> Result<Mapped<T>> {
        self.check_usable("allocate")?;
        let heap = self.fabric.node.with(|engine| engine.runtime.ops.heap.clone());
        heap.and_then(|heap| heap.allocate(count)).ok_or_else(|| {
            let bytes = count.saturating_mul(size_of::<T>());
            let problem = format!("{bytes} bytes of mapped memory are more than is left: drop other mapped buffers, or use ordinary memory");
            Error::config("a mapped buffer", problem).at(self.fabric.job.rank)
        })
    }

    /// The traffic since the communicator's fabric was formed, of all its groups together.
    pub fn stats(&self) -> Stats {
        self.fabric.node.stats()
    }

    /// The last 1,024 operations that this process issued, oldest first. They are from all groups of the communicator's
    /// fabric, because operations of one group can wait for another group's. Each is a line as text.
    ///
    /// ```
    /// # fn main() -> Result<(), herringbone::Error> {
    /// for comm in herringbone::local(1)? {
    ///     comm.barrier()?;
    ///     for operation in comm.recent() {
    ///         println!("{operation}");
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn recent(&self) -> Vec<Recent> {
        self.fabric.node.with(|engine| engine.runtime.out.observer.recent())
    }

    /// Tells a sink, too, all that happens on this rank from now on, in all groups of the communicator's fabric, until it is
    /// [dismissed](Self::dismiss).
    pub fn listen(&self, sink: Box<dyn Sink>) -> ListenerId {
        self.fabric.node.with(|engine| engine.runtime.out.observer.listen(sink, Moment::exact))
    }

    /// Tells a sink nothing any more, and returns it; `None` if it was dismissed before.
    pub fn dismiss(&self, listener: ListenerId) -> Option<Box<dyn Sink>> {
        self.fabric.node.with(|engine| engine.runtime.out.observer.dismiss(listener))
    }

    /// Writes a timeline of this rank from now on, in all groups of the communicator's fabric. It is a file of its own
    /// in this folder, which is made if it is missing, and has a list of Chrome trace events. It ends with
    /// [`stop_timeline`](Self::stop_timeline), or when the rank leaves. `HERRINGBONE_TIMELINE` does the same from the
    /// beginning, and `herringbone trace merge` makes one file of all ranks' files. An earlier timeline ends.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the file cannot be written. If that fails later, there is a warning, and the file ends.
    pub fn start_timeline(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.fabric.start_timeline(folder.as_ref(), timed::measure(&self.fabric.job))
    }

    /// Ends the timeline, if one is written: then its file is whole.
    pub fn stop_timeline(&self) {
        self.fabric.stop_timeline();
    }

    /// Marks the beginning of a step of the program, for the timeline, if one is written. `herringbone trace report`
    /// shows each rank's times in each step.
    pub fn mark_step(&self) {
        self.fabric.mark_step();
    }

    /// How this rank takes part, in a line.
    pub fn describe(&self) -> String {
        self.fabric.to_string()
    }

    /// Fails all operations of this group that are under way or called later, and waits for no other rank.
    ///
    /// On this rank calls fail with [`ErrorKind::Closed`]. On the others they fail with [`ErrorKind::PeerLost`], which
    /// names this rank. They fail at once, with two exceptions. Calls that have ended there before they hear of the
    /// abort succeed. Calls before the first that failed here have a second to end.
    pub fn abort(&self) {
        if !self.fabric.is_forked() {
            self.fabric.node.with(|engine| engine.abort_group(self.group.number));
        }
    }

    /// Ends the group here: later calls fail, and operations under way continue.
    ///
    /// A rank whose last calls only sent, such as the root of a broadcast, does not know yet whether the others have
    /// made the same calls. It asks them, once these calls have ended, and waits until all have made them, have closed
    /// the group, left or died: for 2 s at most in all. After a call that needs all ranks, such as an all-reduce, there
    /// is nothing to ask.
    ///
    /// On the communicator of all ranks this leaves the job in order. It lets the operations of all groups end, waits
    /// for them as long as anything moves in 10 s, and fails the rest with [`ErrorKind::Closed`]. Then it asks, for all
    /// groups in 2 s, and says goodbye, once all sent data is on its way. Dropping the last handle does the same, but
    /// waits for no answer: an error that is known by then is a warning.
    ///
    /// # Errors
    /// If an operation that was complete here has failed on another rank, and no call has returned that error:
    /// [`ErrorKind::Mismatch`] if the ranks have not called the same. [`ErrorKind::PeerLost`] if a rank has left the group without a
    /// call that another one has made. The group is closed all the same.
    pub fn close(&self) -> Result<()> {
        if self.fabric.is_whole(self.group.number) {
            return self.fabric.close();
        }
        if self.fabric.is_forked() {
            return Ok(());
        }
        let ends = self.fabric.node.with(|engine| engine.close_group(self.group.number));
        self.fabric.check_before_close(&ends)
    }
}

/// The call of a collective that moves so many bytes.
fn moving(collective: Collective, bytes: usize) -> Call {
    Call::new(collective, DType::U8, ReduceOp::Sum, bytes)
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
