//! A running operation: an [`Execution`] with the user's buffers, staging memory and links.

use super::{
    cache, coding,
    io::{Io, MemberEnds},
    issue::{Caller, Footprint, Identity, NumberedCall, PlanKey, Queued},
    places::step_work,
};
use crate::{
    core::{
        collective::Collective,
        execution::{
            Arrived, Execution, ExecutionProgress, MessageClaim, MessagePlace, Participant, Rules,
            SegmentMessage, SegmentStep, Signal, Tally, Violation,
        },
        prepare::Prepared,
        session::membership::MemberId,
        wire::{Header, Kind as FrameKind},
    },
    feedback::Fed,
    sys::region::Region,
    transport::{Broken, Destination, ticket::OpKey},
};
use std::{ops::Range, sync::Arc};

/// The user's buffers. Reducers have none.
#[derive(Debug)]
pub(super) struct Lent {
    /// `None` when it is the output.
    pub(super) input: Option<Region>,
    pub(super) output: Option<Region>,
    /// Where in my segment the user's buffer lies.
    pub(super) mapped: Option<usize>,
    /// What is left of the tensor, if that is fed back.
    pub(super) fed: Option<Fed>,
    /// What others have to wait for.
    footprint: Option<Footprint>,
    /// Whether the results of the ranks of this host are more than a cache holds when the last comes.
    pub(super) outgrows_cache: bool,
}

/// What an operation is made of beside its call.
#[derive(Debug)]
pub(crate) struct OperationMeans<'a> {
    /// What it runs.
    pub(crate) prepared: Arc<Prepared>,
    /// Where local ranks find the user's buffer, if they do.
    pub(crate) mapped: Option<usize>,
    /// Its staging memory.
    pub(crate) memory: Range<usize>,
    /// Memory for what it counts.
    pub(crate) counts: Tally,
    /// The members of the group.
    pub(crate) ids: &'a [MemberId],
    /// The rules that all ranks follow.
    pub(crate) rules: Rules,
}

/// A running operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) key: OpKey,
    pub(crate) id: Identity,
    pub(crate) plan: PlanKey,
    pub(crate) caller: Caller,
    pub(crate) memory: Range<usize>,
    pub(super) lent: Lent,
    pub(super) execution: Execution,
}

/// What it is, and the user's buffers.
impl Operation {
    pub(crate) fn new(key: OpKey, queued: Queued, means: OperationMeans<'_>) -> Self {
        let OperationMeans { prepared, mapped, memory, counts, ids, rules } = means;
        // Of several inputs the result may overwrite the first.
        let overlap = |(input, output): &(Region, Region)| {
            queued.call.collective == Collective::AllReduce && input.overlaps(output)
        };
        let overlap = queued.buffers.as_ref().is_some_and(overlap);
        let (input, output, is_worker) = match queued.buffers {
            Some((input, output)) => ((!input.is_same(&output)).then_some(input), Some(output), true),
            None => (None, None, false),
        };
        let ahead = prepared.ahead(memory.len());
        let here = 1 + prepared.peers.iter().filter(|peer| peer.shared).count();
        let results = here * output.as_ref().map_or(0, Region::len);
        let outgrows_cache = results > cache::results_that_stay();
        let me = Participant { is_worker, in_place: overlap || input.is_none(), ahead, rules };
        Self {
            key,
            id: queued.id,
            plan: queued.plan,
            caller: queued.caller,
            memory,
            lent: Lent {
                input,
                output,
                mapped,
                fed: queued.fed,
                footprint: queued.footprint,
                outgrows_cache,
            },
            execution: Execution::new(prepared, me, ids, counts),
        }
    }

    /// What it runs.
    pub(crate) fn prepared(&self) -> &Arc<Prepared> {
        self.execution.prepared()
    }

    /// Whether local ranks may put results into the user's buffer.
    pub(crate) fn is_mapped(&self) -> bool {
        self.lent.mapped.is_some()
    }

    /// The memory of what it counts.
    pub(crate) fn into_counts(self) -> Tally {
        self.execution.into_counts()
    }

    /// Whether this rank has data in it, and its caller waits for the end.
    pub(crate) fn is_workers(&self) -> bool {
        self.execution.is_worker()
    }

    /// Whether reducers take part.
    pub(crate) fn with_reducers(&self) -> bool {
        self.execution.with_reducers()
    }

    /// The user's buffers, until they are given back: input and output.
    pub(crate) fn buffers(&self) -> Option<(&Region, &Region)> {
        let output = self.lent.output.as_ref()?;
        Some((self.lent.input.as_ref().unwrap_or(output), output))
    }

    /// What it touches, until its buffers are given back.
    pub(crate) fn footprint(&self) -> Option<&Footprint> {
        self.lent.footprint.as_ref()
    }

    /// Gives the user's buffers back. Returns what is not touched any more.
    pub(crate) fn release_buffers(&mut self) -> Option<Footprint> {
        (self.lent.input, self.lent.output) = (None, None);
        self.lent.footprint.take()
    }

    /// Its call and its buffers, to be done in another way.
    pub(crate) fn taken_back(&mut self) -> Option<Queued> {
        let (input, output) = self.buffers().map(|(input, output)| (input.clone(), output.clone()))?;
        let completion = self.caller.completion.take()?;
        let footprint = self.release_buffers();
        let agreed = NumberedCall { id: self.id, plan: self.plan, timeout: self.caller.timeout };
        let (call, issued) = (self.prepared().call, self.caller.issued);
        Some(Queued {
            fed: self.lent.fed.clone(),
            buffers: Some((input, output)),
            footprint,
            ..Queued::without_buffers(agreed, call, Some(completion), issued)
        })
    }
}

/// What it does.
impl Operation {
    /// The execution, and the other ends as that sees them.
    pub(super) fn parts<'a, 'b>(&'a mut self, io: &'a mut Io<'b>) -> (&'a mut Execution, MemberEnds<'a, 'b>) {
        (&mut self.execution, MemberEnds { io, id: &self.id, key: self.key })
    }

    /// Begins: all links are up.
    pub(crate) fn start(&mut self, io: &mut Io<'_>) {
        let (execution, mut ends) = self.parts(io);
        execution.start(&mut ends);
    }

    /// Runs what can run.
    pub(crate) fn run(&mut self, io: &mut Io<'_>) -> ExecutionProgress {
        let prepared = self.prepared().clone();
        loop {
            while let Some(ready) = self.execution.next() {
                let began = io.observer.watch();
                self.step(&prepared, ready, io);
                io.observer.step(&self.id, ready, began, || step_work(&prepared, ready));
            }
            let (execution, mut ends) = self.parts(io);
            if !execution.advance(&mut ends) {
                return execution.progress(&ends);
            }
        }
    }

    /// An endpoint has used up its eager slots here: messages of operations that are running need none.
    pub(crate) fn open_to(&mut self, crowded: MemberId, io: &mut Io<'_>) {
        let (execution, mut ends) = self.parts(io);
        execution.open_to(crowded, &mut ends);
    }

    /// A grant, or word that an operation is stable.
    pub(crate) fn receive_signal(
        &mut self,
        endpoint: MemberId,
        header: &Header,
        io: &mut Io<'_>,
    ) -> Result<(), Broken> {
        let peer = self.execution.peer(endpoint).ok_or(Violation::NoPart)?;
        let signal =
            if header.kind == FrameKind::Stable { Signal::Stable } else { Signal::Grant(header.segment) };
        let (execution, mut ends) = self.parts(io);
        execution.receive_signal(peer, signal, &mut ends)?;
        self.retry(io);
        let (execution, ends) = self.parts(io);
        execution.begin(&ends);
        Ok(())
    }

    /// Tries again what could not be sent.
    pub(crate) fn retry(&mut self, io: &mut Io<'_>) {
        let blocked = self.execution.take_blocked();
        if blocked.is_empty() {
            return;
        }
        let prepared = self.prepared().clone();
        for SegmentMessage { ready, lane } in blocked {
            self.send(&prepared, ready, lane..lane + 1, io);
        }
    }

    /// One of a send's messages needs its source no more: the kernel has it, or its link is of no use any more.
    pub(crate) fn delivered(&mut self, ready: SegmentStep) {
        self.execution.handed_over(ready, 1);
    }

    /// Where the checksum of what a send's messages carry is kept.
    pub(crate) fn checksum(&mut self, ready: SegmentStep) -> &mut Option<u32> {
        self.execution.checksum(ready)
    }

    pub(super) fn stage_at(&self, segment: u32) -> usize {
        self.memory.start + self.execution.slot(segment) * self.prepared().stage_bytes
    }
}

/// Messages that arrive.
impl Operation {
    fn incoming(&self, endpoint: MemberId, header: &Header) -> Result<MessageClaim, Violation> {
        let Header { index, segment, length, .. } = *header;
        let peer = self.execution.peer(endpoint).ok_or(Violation::NoPart)?;
        Ok(MessageClaim { peer, index, segment, length })
    }

    /// Where the payload of an arriving message goes.
    pub(crate) fn place(&self, endpoint: MemberId, header: &Header) -> Result<Destination, Broken> {
        let (execution, segment) = (&self.execution, header.segment);
        let head = execution.awaited(&self.incoming(endpoint, header)?)?;
        Ok(match execution.landing(segment, head)? {
            MessagePlace::Output(run) => {
                Destination::User { op: self.key, range: self.prepared().output(run, segment) }
            }
            MessagePlace::Staged(offset) => Destination::Staged(self.stage_at(segment) + offset),
        })
    }

    /// A message is here: `fetch` says where, given its place in my staging memory.
    pub(crate) fn arrive(
        &mut self,
        endpoint: MemberId,
        header: &Header,
        fetch: impl FnOnce(usize) -> Result<Arrived, Broken>,
    ) -> Result<(), Broken> {
        let head = self.execution.awaited(&self.incoming(endpoint, header)?)?;
        let offset = self.prepared().heads[head as usize].offset;
        let arrived = fetch(self.stage_at(header.segment) + offset)?;
        Ok(self.execution.arrive(header.segment, head, arrived)?)
    }

    /// Whether a message that has arrived is as its codec writes it, if it is coded.
    pub(crate) fn inspect(&self, endpoint: MemberId, header: &Header, io: &Io<'_>) -> Result<(), Broken> {
        let head = self.execution.expected(&self.incoming(endpoint, header)?)?;
        let wanted = &self.prepared().heads[head as usize];
        let Some(codec) = self.prepared().call.codec_of(wanted.form) else { return Ok(()) };
        let elements = self.prepared().elements(wanted.run, header.segment).len();
        let slot = self.message(header.segment, head, io);
        let slot =
            slot.ok_or(Broken::Protocol("a compressed message that lies outside its sender's memory"))?;
        coding::check(codec, slot, header.length as usize, elements)
            .map_err(|problem| Broken::Coded { codec, problem })
    }

    /// What a message says of the length of its part, and what this rank expects, if these differ.
    pub(crate) fn disagrees(&self, endpoint: MemberId, header: &Header) -> Option<(u64, u64)> {
        let prepared = self.prepared();
        if !prepared.is_uneven() {
            return None;
        }
        let head = *prepared.peers[self.execution.peer(endpoint)?].heads.get(header.index as usize)?;
        let expected = prepared.whole(prepared.heads[head as usize].run.first).len() as u64;
        (header.whole != expected).then_some((header.whole, expected))
    }
}

/// What is still needed of other ranks, and what is there: for errors, losses and leaves.
impl Operation {
    /// The endpoints that it exchanges messages with.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = MemberId> {
        self.execution.members()
    }

    /// The endpoints that have not sent, granted or confirmed what this operation needs of them.
    pub(crate) fn missing(&self) -> Vec<MemberId> {
        self.execution.missing().collect()
    }

    /// Whether a message from an endpoint is still needed to complete, or word that it has room for one.
    pub(crate) fn needs(&self, endpoint: MemberId) -> bool {
        self.execution.peer(endpoint).is_some_and(|peer| self.execution.needs(peer))
    }

    /// Whether reducers have not said yet that all workers hold the whole result: until then it needs each of them.
    pub(crate) fn is_unstable(&self) -> bool {
        self.execution.is_unstable()
    }

    /// Whether an endpoint takes part and is not done.
    pub(crate) fn involves(&self, endpoint: MemberId) -> bool {
        self.execution.peer(endpoint).is_some_and(|peer| self.execution.involves(peer))
    }

    /// Whether something waits to be sent to an endpoint.
    pub(crate) fn is_blocked_on(&self, endpoint: MemberId) -> bool {
        self.execution.peer(endpoint).is_some_and(|peer| self.execution.is_blocked_on(peer))
    }

    /// The segments of each chunk whose result is in its place.
    pub(crate) fn held(&self) -> Vec<Vec<Range<u32>>> {
        self.execution.held()
    }
}
