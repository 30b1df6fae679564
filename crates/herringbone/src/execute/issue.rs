//! A call: an operation before it runs.

use crate::{
    clock::Moment,
    completion::Completion,
    core::{
        collective::UnevenParts,
        prepare::Call,
        wire::{Fingerprint, Header, Kind as FrameKind},
    },
    feedback::Fed,
    request::CallAttrs,
    sys::{heap::Heap, region::Region},
};
use std::{ops::Range, sync::Arc, time::Duration};

/// The number of the group of all ranks.
pub(crate) const WORLD_GROUP: u32 = 0;

/// What an operation is and where it runs; see [`Operation::start`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) group: u32,
    pub(crate) generation: u32,
    pub(crate) hash: u64,
    pub(crate) fingerprint: Fingerprint,
    /// How many operations were issued before it in this process, of all groups.
    pub(crate) number: u64,
}

impl Identity {
    /// Whether it has memory of its own and overtakes others.
    pub(crate) fn is_urgent(&self) -> bool {
        self.fingerprint.priority > 0
    }

    /// Whether a frame is about this operation, as its sender counts.
    pub(crate) fn is_of(&self, header: &Header) -> bool {
        (header.group, header.sequence, header.generation)
            == (self.group, self.fingerprint.sequence, self.generation)
    }

    /// A header for a frame about it.
    pub(crate) fn header(&self, kind: FrameKind, segment: u32) -> Header {
        let mut header = Header::new(kind, self.group, self.generation, self.fingerprint.sequence);
        (header.segment, header.hash) = (segment, self.hash);
        header
    }

    /// Whether both are the same operation.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let what = |id: &Self| (id.group, id.generation, id.fingerprint.sequence);
        what(self) == what(other)
    }
}

/// Where a group keeps a call's plan, so that it is searched for once per call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PlanKey {
    pub(crate) place: usize,
    /// The number of the plan, because another one may take its place.
    pub(crate) number: u64,
}

/// A call that has its number among those that all ranks make.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberedCall {
    pub(crate) id: Identity,
    pub(crate) plan: PlanKey,
    /// How long it may take.
    pub(crate) timeout: Duration,
}

/// Who waits for an operation.
#[derive(Debug)]
pub(crate) struct Caller {
    /// How its end is told, until it is.
    pub(crate) completion: Option<Arc<Completion>>,
    pub(crate) timeout: Duration,
    pub(crate) issued: Moment,
}

/// A request for an operation, with its buffers.
#[derive(Clone, Debug)]
pub(crate) struct Issue {
    pub(crate) group: u32,
    pub(crate) call: Call,
    /// This rank's parts, where they may differ.
    pub(crate) parts: Option<Arc<UnevenParts>>,
    /// What is left of the tensor, if that is fed back.
    pub(crate) fed: Option<Fed>,
    /// How many bytes the caller lacks for it, if so: then it has no buffers, and fails on all ranks.
    pub(crate) lacks: Option<u64>,
    pub(crate) attrs: CallAttrs,
    pub(crate) input: Region,
    pub(crate) output: Region,
}

/// An operation that was issued and has not started.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) id: Identity,
    pub(crate) plan: PlanKey,
    pub(crate) call: Call,
    pub(crate) parts: Option<Arc<UnevenParts>>,
    pub(crate) fed: Option<Fed>,
    pub(crate) lacks: Option<u64>,
    pub(crate) buffers: Option<(Region, Region)>,
    pub(crate) caller: Caller,
    /// Whether a fence was called for because it cannot start.
    pub(crate) given_up: bool,
    /// Its place among the queued ones: its number, or that of the operation that it finishes.
    pub(crate) order: u64,
    /// What it touches, if it has buffers.
    pub(crate) footprint: Option<Footprint>,
}

/// An operation's place among those of a process: its [order](Queued::order), then its number.
pub(crate) type OpPlace = (u64, u64);

/// The bytes that an operation reads and writes, by their addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footprint {
    pub(crate) place: OpPlace,
    /// Without those that it writes as well, if they are the same.
    pub(crate) reads: Range<usize>,
    pub(crate) writes: Range<usize>,
}

impl Footprint {
    fn of(place: OpPlace, input: &Region, output: &Region) -> Self {
        let reads = if input.is_same(output) { 0..0 } else { input.addresses() };
        Self { place, reads, writes: output.addresses() }
    }

    /// Whether one of two operations writes what the other reads or writes.
    pub(crate) fn interferes(&self, other: &Self) -> bool {
        let meet = |one: &Range<usize>, two: &Range<usize>| {
            !one.is_empty() && !two.is_empty() && one.start < two.end && two.start < one.end
        };
        meet(&self.writes, &other.writes)
            || meet(&self.writes, &other.reads)
            || meet(&self.reads, &other.writes)
    }
}

impl Issue {
    /// A call with nothing else said, which [lacks](Self::seeing_lack) what its buffers do.
    pub(crate) fn new(group: u32, call: Call, input: Region, output: Region) -> Self {
        let (parts, fed, lacks, attrs) = (None, None, None, CallAttrs::default());
        Self { group, call, parts, fed, lacks, attrs, input, output }.seeing_lack()
    }

    /// The same; if one of its buffers is [lacking](Region::lacking), so is the operation.
    #[inline]
    pub(crate) fn seeing_lack(mut self) -> Self {
        if self.input.is_lacking() || self.output.is_lacking() {
            self.take_lack();
        }
        self
    }

    #[cold]
    fn take_lack(&mut self) {
        let of = |region: &Region| if region.is_lacking() { region.len() as u64 } else { 0 };
        let apart = if self.input.is_same(&self.output) { 0 } else { of(&self.output) };
        self.lacks = Some(of(&self.input).saturating_add(apart));
        (self.input, self.output) = (Region::zeroed(0), Region::zeroed(0));
    }
}

impl Queued {
    pub(crate) fn new(
        agreed: NumberedCall,
        issue: &Issue,
        completion: Option<Arc<Completion>>,
        issued: Moment,
    ) -> Self {
        let number = agreed.id.number;
        Self {
            parts: issue.parts.clone(),
            fed: issue.fed.clone(),
            lacks: issue.lacks,
            buffers: Some((issue.input.clone(), issue.output.clone())),
            footprint: Some(Footprint::of((number, number), &issue.input, &issue.output)),
            ..Self::without_buffers(agreed, issue.call, completion, issued)
        }
    }

    /// What a reducer does, which has no buffers.
    pub(crate) fn without_buffers(
        NumberedCall { id, plan, timeout }: NumberedCall,
        call: Call,
        completion: Option<Arc<Completion>>,
        issued: Moment,
    ) -> Self {
        let caller = Caller { completion, timeout, issued };
        let (parts, fed, lacks, buffers, footprint) = (None, None, None, None, None);
        let (given_up, order) = (false, id.number);
        Self { id, plan, call, parts, fed, lacks, buffers, caller, given_up, order, footprint }
    }

    /// Gives it the place of an operation that it finishes.
    pub(crate) fn set_order(&mut self, order: u64) {
        self.order = order;
        let place = self.place();
        self.footprint.iter_mut().for_each(|footprint| footprint.place = place);
    }

    /// Its place among those that wait.
    pub(crate) fn place(&self) -> OpPlace {
        (self.order, self.id.number)
    }

    /// Its group, and whether it is urgent: operations of a class start in the order of their calls.
    pub(crate) fn class(&self) -> (u32, bool) {
        (self.id.group, self.id.is_urgent())
    }

    /// Where in my segment the user's buffer lies, if it does and is input and output in one: then local ranks may put
    /// results into it.
    pub(crate) fn mapped(&self, heap: Option<&Heap>) -> Option<usize> {
        let (input, output) = self.buffers.as_ref()?;
        heap.filter(|_| input.is_same(output))?.locate(output)
    }
}
