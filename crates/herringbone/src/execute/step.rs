//! The step function: one step of one segment, whatever the transport.

use super::{
    coding::{self, CodedPart},
    io::{Io, MemberEnds},
    operation::{Lent, Operation},
    places::{BufferRange, FoldInput, SegmentMemory},
    sources::gather,
    staging::Staging,
};
use crate::{
    core::{
        codec::PREFIX_BYTES,
        execution::{Arrived, SegmentMessage, SegmentStep, SendDecision},
        prepare::{Call, Fold, Kind, Loc, Operand, Prepared, Send},
        schedule::Form,
        wire::Kind as FrameKind,
    },
    sys::{
        kernel,
        region::{Access, Region},
        span::Span,
    },
    transport::{
        Outgoing, Payload,
        frame::{Body, Frame},
        stores::{copy_for_others, write_for_others},
        ticket::Token,
    },
};
use std::ops::Range;

/// A user's buffers, which nobody takes back meanwhile.
struct Accesses<'a> {
    input: Option<Access<'a>>,
    output: Option<Access<'a>>,
}

impl Lent {
    fn accesses(&self) -> Accesses<'_> {
        Accesses {
            input: self.input.as_ref().and_then(Region::access),
            output: self.output.as_ref().and_then(Region::access),
        }
    }

    fn region(&self, output: bool) -> Option<&Region> {
        if output { self.output.as_ref() } else { self.input.as_ref().or(self.output.as_ref()) }
    }

    /// Calls `f` with the memory of a range, in a stage of the staging memory, if it is there.
    fn with<R>(&self, range: &BufferRange, stage: Span<'_>, f: impl FnOnce(Span<'_>) -> R) -> Option<R> {
        let (region, range) = match range {
            BufferRange::Staged(range) => return Some(f(stage.slice(range.clone()))),
            BufferRange::Input(range) => (self.region(false), range),
            BufferRange::Output(range) => (self.region(true), range),
        };
        let access = region?.access()?;
        Some(f(access.span().slice(range.clone())))
    }
}

/// What a step does.
impl Operation {
    /// Runs a step; a send may take longer.
    pub(super) fn step(&mut self, prepared: &Prepared, ready: SegmentStep, io: &mut Io<'_>) {
        let segment = ready.segment;
        match &prepared.steps[ready.step as usize].kind {
            Kind::Send(send) => {
                self.copy_out(send, segment, io);
                self.execution.sends(ready);
                return self.send(prepared, ready, send.lanes.clone(), io);
            }
            Kind::Recv { head, .. } if self.execution.arrived(segment, *head) == Arrived::Placed => {}
            Kind::Recv { head, into } => {
                self.move_to(segment, Operand::Head { head: *head, merges: 0 }, *into, io);
            }
            Kind::Copy { from, into, form } => {
                self.move_to(segment, Operand::At { loc: *from, form: *form, merges: 0 }, *into, io);
            }
            Kind::Fold(fold) if self.folds_coded(fold) => self.fold_coded(segment, fold, io),
            Kind::Fold(fold) => self.fold(segment, fold, io),
            Kind::Encode { from, form, into } => self.encode(segment, *from, *into, *form, io),
            Kind::Decode { from, into } => self.decode(segment, *from, *into, io),
        }
        self.execution.complete(ready);
    }

    /// A stage of the staging memory.
    fn stage<'a>(&self, segment: u32, staging: &'a Staging) -> Span<'a> {
        let at = self.stage_at(segment);
        staging.segment().span(at..at + self.prepared().stage_bytes)
    }

    fn memory<'a>(&self, accesses: &'a Accesses<'_>, segment: u32, io: &'a Io<'_>) -> SegmentMemory<'a> {
        let Accesses { input, output } = accesses;
        let (input, output) = (input.as_ref(), output.as_ref());
        // An input of its own that was taken back is not the output.
        let is_gone = self.lent.input.is_some() && input.is_none();
        SegmentMemory::new(input, output.filter(|_| !is_gone), self.stage(segment, io.staging))
    }

    /// Folds operands into a place, and puts the result where receivers look for it, too.
    fn fold(&self, segment: u32, fold: &Fold, io: &Io<'_>) {
        let prepared = &**self.prepared();
        let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
        let accesses = self.lent.accesses();
        let memory = self.memory(&accesses, segment, io);
        let nothing = io.staging.segment().span(0..0);
        let any = kernel::Source { span: nothing, form: Form::Plain, merges: 0 };
        let message = |head| self.message(segment, head, io);
        let sources = operands
            .iter()
            .map(|operand| memory.source(&FoldInput::of(prepared, *operand, segment), message));
        let put = |sources: &[kernel::Source<'_>]| {
            let into = memory.at(&BufferRange::of(prepared, fold.into, fold.form, segment));
            let Some(into) = into else { return };
            let finish = fold.finish;
            let Call { dtype, op, .. } = prepared.call;
            let fold_to = |copies: &[_]| {
                let target = kernel::Target { copies, ..kernel::Target::of(into, fold.form) };
                kernel::fold(dtype, op, target, sources, finish);
            };
            let Some(send) = fold.sent_by.map(|step| prepared.send(step)) else { return fold_to(&[]) };
            let place = |lane: u32| {
                let endpoint = self.execution.member(prepared.lanes[lane as usize].peer);
                io.endpoints[endpoint].payload(self.place_of(segment, lane)?, into.len())
            };
            let places = send.lanes.clone().filter_map(place);
            write_for_others(into, self.copy_of(send, segment, io.staging), |copy| {
                let _all_there = gather(places.chain(copy).map(Some), nothing, fold_to);
            });
        };
        // A region that was taken back has no memory to find: then there is nobody to fold for.
        let _folded = gather(sources, any, put);
    }

    /// Whether something has to be decoded for a fold.
    fn folds_coded(&self, fold: &Fold) -> bool {
        let prepared = self.prepared();
        let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
        operands.iter().any(|operand| match operand {
            Operand::At { form, .. } => form.is_coded(),
            Operand::Head { head, .. } => prepared.heads[*head as usize].form.is_coded(),
        })
    }

    /// Folds operands of which some are coded.
    fn fold_coded(&self, segment: u32, fold: &Fold, io: &Io<'_>) {
        let prepared = &**self.prepared();
        let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
        let accesses = self.lent.accesses();
        let memory = self.memory(&accesses, segment, io);
        let message = |head| self.message(segment, head, io);
        let parts = operands.iter().map(|operand| {
            let source = memory.source(&FoldInput::of(prepared, *operand, segment), message);
            let kernel::Source { span, form, merges } = source?;
            Some(CodedPart { span, form, merges })
        });
        let into = memory.at(&BufferRange::of(prepared, fold.into, fold.form, segment));
        let (Some(parts), Some(into)) = (parts.collect::<Option<Vec<_>>>(), into) else { return };
        let finish = fold.finish;
        coding::fold(&prepared.call, into, fold.form, &parts, finish);
    }

    /// Encodes an input with what is left of it, or a result.
    fn encode(&self, segment: u32, from: Loc, into: Loc, form: Form, io: &Io<'_>) {
        let prepared = &**self.prepared();
        let accesses = self.lent.accesses();
        let memory = self.memory(&accesses, segment, io);
        let plain = memory.at(&BufferRange::of(prepared, from, Form::Plain, segment));
        let slot = memory.at(&BufferRange::of(prepared, into, form, segment));
        let (Some(plain), Some(slot)) = (plain, slot) else { return };
        let codec = prepared.call.codec_of(form).unwrap_or_default();
        let fed = self.lent.fed.as_ref().filter(|_| form == Form::Coded);
        coding::encode(codec, plain, prepared.elements(from.run(), segment), slot, fed);
    }

    /// Decodes a result.
    fn decode(&self, segment: u32, from: Operand, into: Loc, io: &Io<'_>) {
        let prepared = &**self.prepared();
        let accesses = self.lent.accesses();
        let memory = self.memory(&accesses, segment, io);
        let slot =
            memory.source(&FoldInput::of(prepared, from, segment), |head| self.message(segment, head, io));
        let plain = memory.at(&BufferRange::of(prepared, into, Form::Plain, segment));
        if let (Some(slot), Some(plain)) = (slot, plain) {
            coding::decode(prepared.call.codec.result(), slot.span, plain);
        }
    }

    /// Moves what an operand is to another place, if it is not there already.
    fn move_to(&self, segment: u32, operand: Operand, into: Loc, io: &Io<'_>) {
        let prepared = &**self.prepared();
        let accesses = self.lent.accesses();
        let memory = self.memory(&accesses, segment, io);
        let part = FoldInput::of(prepared, operand, segment);
        let source = memory.source(&part, |head| self.message(segment, head, io));
        let into = memory.at(&BufferRange::of(prepared, into, part.form, segment));
        let (Some(source), Some(into)) = (source, into) else { return };
        if into.same_start(source.span) {
            return;
        }
        if self.lent.outgrows_cache { into.stream_from(source.span) } else { into.copy_from(source.span) }
    }

    /// A message that has arrived, where it lies; of a coded one that lies with its sender as much as it says.
    pub(super) fn message<'a>(&self, segment: u32, head: u32, io: &'a Io<'_>) -> Option<Span<'a>> {
        let wanted = &self.prepared().heads[head as usize];
        let bytes = self.prepared().bytes(wanted.run, segment, wanted.form);
        match self.execution.arrived(segment, head) {
            Arrived::At(offset) | Arrived::Direct(offset) => {
                let endpoint = &io.endpoints[self.execution.member(wanted.peer)];
                if !wanted.form.is_coded() {
                    return endpoint.payload(offset, bytes);
                }
                let said = coding::said(endpoint.payload(offset, PREFIX_BYTES)?);
                endpoint.payload(offset, said.min(bytes))
            }
            _ => {
                let at = self.stage_at(segment) + wanted.offset;
                Some(io.staging.segment().span(at..at + bytes))
            }
        }
    }

    /// A stretch of a user's buffer, for a transport.
    pub(crate) fn user(&self, output: bool) -> Option<Access<'_>> {
        self.lent.region(output)?.access()
    }
}

/// Messages that leave.
impl Operation {
    /// Copies a message to where local ranks find it, unless that is done, or they need not look there.
    fn copy_out(&self, send: &Send, segment: u32, io: &Io<'_>) {
        if send.folded {
            return;
        }
        if let Some(copy) = self.copy_of(send, segment, io.staging) {
            let from = BufferRange::of(self.prepared(), send.from, send.form, segment);
            let _is_there =
                self.lent.with(&from, self.stage(segment, io.staging), |span| copy_for_others(span, copy));
        }
    }

    /// Where local ranks look for a copy of a message, if one of them has to.
    fn copy_of<'a>(&self, send: &Send, segment: u32, staging: &'a Staging) -> Option<Span<'a>> {
        let all_placed = || send.lanes.clone().all(|lane| self.place_of(segment, lane).is_some());
        let is_there = send.direct && self.is_mapped() || all_placed();
        let offset = send.copy.filter(|_| !is_there)?;
        let length = BufferRange::of(self.prepared(), send.from, send.form, segment).len();
        Some(self.stage(segment, staging).slice(offset..offset + length))
    }

    /// Where the receiver of a lane lets its message be put.
    fn place_of(&self, segment: u32, lane: u32) -> Option<usize> {
        match self.execution.arrived(segment, self.prepared().lanes[lane as usize].answers?) {
            Arrived::Direct(at) => Some(at),
            _ => None,
        }
    }

    /// Where a message to be sent lies, in a user's buffer or in the staging memory, and how long it is.
    fn sent(&self, send: &Send, segment: u32, staging: &Staging) -> Range<usize> {
        match BufferRange::of(self.prepared(), send.from, send.form, segment) {
            BufferRange::Input(range) | BufferRange::Output(range) => range,
            BufferRange::Staged(range) => {
                let base = self.stage_at(segment);
                let length = match send.form.is_coded() {
                    true => coding::length(self.stage(segment, staging).slice(range.clone())),
                    false => range.len(),
                };
                base + range.start..base + range.start + length
            }
        }
    }

    /// Sends a message to some of its receivers. Those that have no room for it wait.
    pub(super) fn send(
        &mut self,
        prepared: &Prepared,
        ready: SegmentStep,
        lanes: Range<u32>,
        io: &mut Io<'_>,
    ) {
        let mut gone = 0;
        if prepared.eager {
            gone += self.send_carried(prepared, ready, lanes.clone(), io);
        }
        for lane in lanes {
            let endpoint = self.execution.member(prepared.lanes[lane as usize].peer);
            if !prepared.eager || !io.endpoints[endpoint].is_shared() {
                gone += u16::from(self.send_lane(prepared, SegmentMessage { ready, lane }, io));
            }
        }
        if gone > 0 {
            self.execution.handed_over(ready, gone);
        }
    }

    /// Sends an eager message to those receivers that share memory with this rank: it goes with its frame. Returns to how many
    /// it has gone.
    fn send_carried(
        &mut self,
        prepared: &Prepared,
        ready: SegmentStep,
        lanes: Range<u32>,
        io: &mut Io<'_>,
    ) -> u16 {
        let send = prepared.send(ready.step);
        let length = self.sent(send, ready.segment, io.staging).len();
        let range = BufferRange::of(prepared, send.from, send.form, ready.segment);
        let stage = self.stage(ready.segment, io.staging);
        let mut header = self.id.header(FrameKind::Data, ready.segment);
        header.length = length as u32;
        let Self { lent, execution, id, key, .. } = self;
        let sent = lent.with(&range, stage, |payload| {
            let mut sent = 0;
            let mut frame = Frame::new(&header, Some(Body::Carried(payload.slice(0..length))));
            for lane in lanes {
                let to = prepared.lanes[lane as usize];
                let at = execution.member(to.peer);
                if !io.endpoints[at].is_shared() {
                    continue;
                }
                let mut ends = MemberEnds { io: &mut *io, id, key: *key };
                match execution.offer(SegmentMessage { ready, lane }, &mut ends) {
                    SendDecision::Later => continue,
                    SendDecision::Needless => {}
                    SendDecision::Go { eager } => {
                        let endpoint = &mut io.endpoints[at];
                        io.observer.sent(id, ready.segment, at, endpoint, length);
                        endpoint.send_shared(&mut frame, to.index, eager);
                    }
                }
                sent += 1;
            }
            sent
        });
        sent.unwrap_or(0)
    }

    /// Sends a message that is not carried to one of its receivers. Returns whether that is done with its source already.
    fn send_lane(&mut self, prepared: &Prepared, message: SegmentMessage, io: &mut Io<'_>) -> bool {
        let SegmentMessage { ready: ready @ SegmentStep { segment, step }, lane } = message;
        let (execution, mut ends) = self.parts(io);
        let eager = match execution.offer(message, &mut ends) {
            SendDecision::Needless => return true,
            SendDecision::Later => return false,
            SendDecision::Go { eager } => eager,
        };
        let (send, to) = (prepared.send(step), prepared.lanes[lane as usize]);
        let sent = self.sent(send, segment, io.staging);
        let mut header = self.id.header(FrameKind::Data, segment);
        (header.index, header.length, header.eager) = (to.index, sent.len() as u32, eager);
        if prepared.is_uneven() {
            header.whole = prepared.whole(send.from.run().first).len() as u64;
        }
        let at = self.execution.member(to.peer);
        let endpoint = &mut io.endpoints[at];
        io.observer.sent(&self.id, segment, at, endpoint, sent.len());
        if endpoint.is_shared() {
            let body = self.body(send, segment, lane);
            endpoint.send_shared(&mut Frame::new(&header, Some(body)), to.index, eager);
            return true;
        }
        let reducer = prepared.is_reducer(prepared.peers[to.peer as usize].rank);
        let fingerprint = (reducer && segment == 0).then_some(self.id.fingerprint);
        header.fingerprint = fingerprint.is_some();
        let (payload, priority) = (self.payload(send, sent), self.id.fingerprint.priority);
        let done = Some(Token { op: self.key, ready });
        endpoint.send_stream(Outgoing { header, fingerprint, payload, priority, done });
        false
    }

    /// Where a local rank finds a message.
    fn body(&self, send: &Send, segment: u32, lane: u32) -> Body<Span<'static>> {
        if self.place_of(segment, lane).is_some() {
            return Body::Placed;
        }
        let start = || match BufferRange::of(self.prepared(), send.from, send.form, segment) {
            BufferRange::Input(range) | BufferRange::Output(range) => range.start,
            BufferRange::Staged(range) => self.stage_at(segment) + range.start,
        };
        match (send.copy, self.lent.mapped.filter(|_| send.direct)) {
            (_, Some(mapped)) => Body::Direct(mapped + start()),
            (Some(offset), None) => Body::At(self.stage_at(segment) + offset),
            (None, None) => Body::At(start()),
        }
    }

    /// What goes over a socket.
    fn payload(&self, send: &Send, range: Range<usize>) -> Payload {
        match send.from {
            Loc::Staged(_) => Payload::Staged(range),
            Loc::Input(_) => Payload::User { op: self.key, output: self.lent.input.is_none(), range },
            Loc::Output(_) => Payload::User { op: self.key, output: true, range },
        }
    }
}
