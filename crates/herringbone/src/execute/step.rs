//! The step function: one instruction of one segment, whatever the transport.

use super::{
    coding::{self, CodedPart},
    operation::Operation,
    room::{Delivery, Unsent},
    sources::gather,
    staging::Staging,
};
use crate::{
    core::{
        codec::PREFIX_BYTES,
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
    },
};
use crate::{
    execute::{io::Io, room::Arrived},
    transport::ticket::Token,
};
use std::ops::Range;

impl Operation {
    /// One instruction of one segment. Returns whether it is complete; a send may take longer.
    pub(super) fn step(&mut self, prepared: &Prepared, segment: u32, instr: u32, io: &mut Io<'_>) -> bool {
        match &prepared.instrs[instr as usize].kind {
            Kind::Send(send) => {
                self.copy_out(send, segment, io);
                let at = self.stage(segment) * prepared.instrs.len() + instr as usize;
                self.room.deliveries[at] = Delivery { left: send.lanes.len() as u16, checksum: None };
                let sent = self.send_lanes(prepared, (segment, instr), send.lanes.clone(), io);
                self.room.deliveries[at].left -= sent as u16;
                return self.room.deliveries[at].left == 0;
            }
            Kind::Recv { head, .. } if self.arrived(segment, *head) == Arrived::Placed => {}
            Kind::Recv { head, into } => {
                self.move_to(segment, Operand::Head { head: *head, merges: 0 }, *into, io);
            }
            Kind::Copy { from, into, form } => {
                self.move_to(segment, Operand::At { loc: *from, form: *form, merges: 0 }, *into, io);
            }
            Kind::Fold(fold) if self.folds_coded(fold) => self.fold_coded(segment, fold, io),
            Kind::Fold(fold) => self.fold(segment, fold, io),
            Kind::Encode { from, form, into } => self.encode(segment, *from, (*into, *form), io),
            Kind::Decode { from, into } => self.decode(segment, from, *into, io),
        }
        true
    }

    /// Copies a message to where host-mates find it, unless that is done, or they need not look there.
    fn copy_out(&self, send: &Send, segment: u32, io: &mut Io<'_>) {
        if send.folded {
            return;
        }
        if let Some(copy) = self.copy_of(send, segment, io.staging) {
            self.with(send.from, send.form, segment, io, |span, _| copy_for_others(span, copy));
        }
    }

    /// Where host-mates look for a copy of a message, if one of them has to.
    fn copy_of<'a>(&self, send: &Send, segment: u32, staging: &'a Staging) -> Option<Span<'a>> {
        let is_there = send.direct && self.is_mapped() || self.all_placed(segment, &send.lanes);
        let offset = send.copy.filter(|_| !is_there)?;
        let at = self.stage_at(segment) + offset;
        Some(staging.segment().span(at..at + self.length(send.from, send.form, segment)))
    }

    /// Where a message is.
    pub(super) fn arrived(&self, segment: u32, head: u32) -> Arrived {
        self.room.heads[self.stage(segment) * self.prepared.heads.len() + head as usize]
    }

    /// Where the receiver of a lane lets its message be put.
    fn place_of(&self, segment: u32, lane: u32) -> Option<usize> {
        match self.arrived(segment, self.prepared.lanes[lane as usize].answers?) {
            Arrived::Direct(at) => Some(at),
            _ => None,
        }
    }

    /// Whether all receivers have a message where they want it.
    fn all_placed(&self, segment: u32, lanes: &Range<u32>) -> bool {
        lanes.clone().all(|lane| self.place_of(segment, lane).is_some())
    }

    fn length(&self, loc: Loc, form: Form, segment: u32) -> usize {
        let (Loc::Input(chunk) | Loc::Output(chunk) | Loc::Staged { chunk, .. }) = loc;
        self.prepared.bytes(chunk, segment, form)
    }

    fn range(&self, loc: Loc, form: Form, segment: u32) -> Range<usize> {
        match loc {
            Loc::Input(chunk) => self.prepared.input(chunk, segment),
            Loc::Output(chunk) => self.prepared.output(chunk, segment),
            Loc::Staged { offset, .. } => {
                let at = self.stage_at(segment) + offset;
                at..at + self.length(loc, form, segment)
            }
        }
    }

    /// Where a message to be sent lies, and how long it is.
    fn sent(&self, send: &Send, segment: u32, staging: &Staging) -> Range<usize> {
        let range = self.range(send.from, send.form, segment);
        if !send.form.is_coded() {
            return range;
        }
        range.start..range.start + coding::length(staging.segment().span(range))
    }

    /// Sends a message to some of its receivers. Returns to how many of them it has gone; the others' lanes are told of later.
    fn send_lanes(
        &mut self,
        prepared: &Prepared,
        (segment, instr): (u32, u32),
        lanes: Range<u32>,
        io: &mut Io<'_>,
    ) -> usize {
        let send = prepared.send(instr);
        let mut sent = 0;
        if prepared.eager {
            sent += self.send_carried(prepared, (send, instr), lanes.clone(), io);
        }
        for lane in lanes {
            let endpoint = self.room.flows[prepared.lanes[lane as usize].peer as usize].endpoint;
            if !prepared.eager || !io.endpoints[endpoint].is_shared() {
                let message = Unsent { segment, instr, lane };
                sent += usize::from(self.send_lane(prepared, send, message, io));
            }
        }
        sent
    }

    /// Sends to one receiver what could not go when its instruction ran.
    pub(super) fn send_later(&mut self, prepared: &Prepared, unsent: Unsent, io: &mut Io<'_>) {
        let Unsent { segment, instr, lane } = unsent;
        if self.send_lanes(prepared, (segment, instr), lane..lane + 1, io) == 1 {
            self.delivered(segment, instr);
        }
    }

    /// Sends an eager message to those receivers that share memory with this rank: it goes with its frame.
    fn send_carried(
        &mut self,
        prepared: &Prepared,
        (send, instr): (&Send, u32),
        lanes: Range<u32>,
        io: &mut Io<'_>,
    ) -> usize {
        let mut blocked = std::mem::take(&mut self.room.blocked);
        let (mut sent, priority) = (0, self.id.fingerprint.priority);
        self.with(send.from, send.form, 0, io, |payload, io| {
            let payload = payload.slice(0..self.sent(send, 0, io.staging).len());
            let mut header = self.header(FrameKind::Data, 0);
            header.length = payload.len() as u32;
            let mut frame = Frame::new(&header, Some(Body::Carried(payload)));
            for lane in lanes {
                let to = prepared.lanes[lane as usize];
                let flow = &self.room.flows[to.peer as usize];
                let endpoint = &mut io.endpoints[flow.endpoint];
                if !endpoint.is_shared() {
                    continue;
                }
                let eager = !flow.window.is_open();
                if eager && !endpoint.take_eager(priority) {
                    endpoint.wait_for_slot(priority, self.key);
                    blocked.push(Unsent { segment: 0, instr, lane });
                    continue;
                }
                endpoint.send_shared(&mut frame, to.index, eager);
                io.observer.sent(&self.id, 0, (flow.endpoint, endpoint), payload.len());
                sent += 1;
            }
        });
        self.room.blocked = blocked;
        sent
    }

    /// Sends a message that is not carried to one of its receivers. Returns whether that is done with its source already.
    fn send_lane(&mut self, prepared: &Prepared, send: &Send, message: Unsent, io: &mut Io<'_>) -> bool {
        let Unsent { segment, instr, lane } = message;
        let lane_to = prepared.lanes[lane as usize];
        if segment >= prepared.peers[lane_to.peer as usize].takes {
            return true;
        }
        let flow = self.room.flows[lane_to.peer as usize];
        let endpoint = &mut io.endpoints[flow.endpoint];
        let priority = self.id.fingerprint.priority;
        let mut header = self.header(FrameKind::Data, segment);
        (header.index, header.length) = (lane_to.index, self.sent(send, segment, io.staging).len() as u32);
        if prepared.is_uneven() {
            let (Loc::Input(chunk) | Loc::Output(chunk) | Loc::Staged { chunk, .. }) = send.from;
            header.whole = prepared.whole(chunk).len() as u64;
        }
        if endpoint.is_away() {
            return true;
        }
        if !flow.window.is_open() {
            if !prepared.eager || !endpoint.take_eager(priority) {
                if prepared.eager {
                    endpoint.wait_for_slot(priority, self.key);
                }
                self.room.blocked.push(message);
                return false;
            }
            header.eager = true;
        }
        io.observer.sent(&self.id, segment, (flow.endpoint, endpoint), header.length as usize);
        if endpoint.is_shared() {
            let body = self.body(send, segment, lane);
            endpoint.send_shared(&mut Frame::new(&header, Some(body)), lane_to.index, header.eager);
            return true;
        }
        let reducer = prepared.is_reducer(prepared.peers[lane_to.peer as usize].rank);
        let fingerprint = (reducer && segment == 0).then_some(self.id.fingerprint);
        header.fingerprint = fingerprint.is_some();
        let payload = self.payload(send, self.sent(send, segment, io.staging));
        let done = Some(Token { op: self.key, segment, instr });
        endpoint.send_stream(Outgoing { header, fingerprint, payload, priority, done });
        false
    }

    /// Where a host-mate finds a message.
    fn body(&self, send: &Send, segment: u32, lane: u32) -> Body<Span<'static>> {
        if self.place_of(segment, lane).is_some() {
            return Body::Placed;
        }
        let start = self.range(send.from, send.form, segment).start;
        match (send.copy, self.lent.mapped.filter(|_| send.direct)) {
            (_, Some(mapped)) => Body::Direct(mapped + start),
            (Some(offset), None) => Body::At(self.stage_at(segment) + offset),
            (None, None) => Body::At(start),
        }
    }

    /// What goes over a socket.
    fn payload(&self, send: &Send, range: Range<usize>) -> Payload {
        match send.from {
            Loc::Staged { .. } => Payload::Staged(range),
            Loc::Input(_) => Payload::User { op: self.key, output: self.lent.input.is_none(), range },
            Loc::Output(_) => Payload::User { op: self.key, output: true, range },
        }
    }

    /// Where the checksum of what a send's messages carry is kept.
    pub(crate) fn checksum(&mut self, segment: u32, instr: u32) -> &mut Option<u32> {
        let at = self.stage(segment) * self.prepared.instrs.len() + instr as usize;
        &mut self.room.deliveries[at].checksum
    }

    fn region(&self, output: bool) -> Option<&Region> {
        if output {
            self.lent.output.as_ref()
        } else {
            self.lent.input.as_ref().or(self.lent.output.as_ref())
        }
    }

    /// A stretch of a user's buffer, for a transport.
    pub(crate) fn user(&self, output: bool) -> Option<Access<'_>> {
        self.region(output)?.access()
    }

    fn with(
        &self,
        loc: Loc,
        form: Form,
        segment: u32,
        io: &mut Io<'_>,
        f: impl FnOnce(Span<'_>, &mut Io<'_>),
    ) {
        let range = self.range(loc, form, segment);
        match loc {
            Loc::Staged { .. } => {
                let staging = io.staging;
                f(staging.segment().span(range), io);
            }
            Loc::Input(_) | Loc::Output(_) => {
                if let Some(access) = self.user(matches!(loc, Loc::Output(_))) {
                    f(access.span().slice(range), io);
                }
            }
        }
    }

    /// Folds operands into a place, and puts the result where receivers look for it, too.
    fn fold(&self, segment: u32, fold: &Fold, io: &mut Io<'_>) {
        let prepared = &*self.prepared;
        let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
        let memory = Memory::of(self, segment, io);
        let nothing = io.staging.segment().span(0..0);
        let any = kernel::Source { span: nothing, form: Form::Plain, merges: 0 };
        let sources = operands.iter().map(|operand| memory.source(operand));
        let put = |sources: &[kernel::Source<'_>]| {
            let Some(into) = memory.at(fold.into, fold.form) else { return };
            let finish = fold.finish.then_some(prepared.workers);
            let Call { dtype, op, .. } = prepared.call;
            let fold_to = |copies: &[_]| {
                let target = kernel::Target { copies, ..kernel::Target::of(into, fold.form) };
                kernel::fold(dtype, op, target, sources, finish);
            };
            let Some(send) = fold.sent_by.map(|instr| prepared.send(instr)) else { return fold_to(&[]) };
            let place = |lane: u32| {
                let endpoint = self.room.flows[prepared.lanes[lane as usize].peer as usize].endpoint;
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
        let operands = &self.prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
        operands.iter().any(|operand| match operand {
            Operand::At { form, .. } => form.is_coded(),
            Operand::Head { head, .. } => self.prepared.heads[*head as usize].form.is_coded(),
        })
    }

    /// Folds operands of which some are coded.
    fn fold_coded(&self, segment: u32, fold: &Fold, io: &Io<'_>) {
        let prepared = &*self.prepared;
        let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
        let memory = Memory::of(self, segment, io);
        let parts = operands.iter().map(|operand| {
            let kernel::Source { span, form, merges } = memory.source(operand)?;
            Some(CodedPart { span, form, merges })
        });
        let (Some(parts), Some(into)) = (parts.collect::<Option<Vec<_>>>(), memory.at(fold.into, fold.form))
        else {
            return;
        };
        let Call { codec, dtype, op, .. } = prepared.call;
        let finish = fold.finish.then_some(prepared.workers);
        coding::fold((codec, dtype, op), (into, fold.form), &parts, finish);
    }

    /// Encodes an input with what is left of it, or a result.
    fn encode(&self, segment: u32, from: Loc, (into, form): (Loc, Form), io: &Io<'_>) {
        let memory = Memory::of(self, segment, io);
        let (Some(plain), Some(slot)) = (memory.at(from, Form::Plain), memory.at(into, form)) else { return };
        let (Loc::Input(chunk) | Loc::Output(chunk) | Loc::Staged { chunk, .. }) = from;
        let codec = self.prepared.call.codec_of(form).unwrap_or_default();
        let fed = self.lent.fed.as_ref().filter(|_| form == Form::Coded);
        coding::encode(codec, (plain, self.prepared.elements(chunk, segment)), slot, fed);
    }

    /// Decodes a result.
    fn decode(&self, segment: u32, from: &Operand, into: Loc, io: &Io<'_>) {
        let memory = Memory::of(self, segment, io);
        let (Some(slot), Some(plain)) = (memory.source(from), memory.at(into, Form::Plain)) else { return };
        coding::decode(self.prepared.call.codec.result(), slot.span, plain);
    }

    /// Moves what an operand is to another place, if it is not there already.
    fn move_to(&self, segment: u32, operand: Operand, into: Loc, io: &mut Io<'_>) {
        let memory = Memory::of(self, segment, io);
        let Some(source) = memory.source(&operand) else { return };
        let Some(into) = memory.at(into, source.form) else { return };
        if into.same_start(source.span) {
            return;
        }
        if self.lent.outgrows_cache { into.stream_from(source.span) } else { into.copy_from(source.span) }
    }

    /// A message that has arrived, where it lies; of a coded one that lies with its sender as much as it says.
    pub(super) fn message<'a>(&self, segment: u32, head: u32, io: &'a Io<'_>) -> Option<Span<'a>> {
        let wanted = &self.prepared.heads[head as usize];
        let bytes = self.prepared.bytes(wanted.chunk, segment, wanted.form);
        match self.arrived(segment, head) {
            Arrived::At(offset) | Arrived::Direct(offset) => {
                let endpoint = &io.endpoints[self.room.flows[wanted.peer as usize].endpoint];
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
}

/// Where a segment's values lie, for a thread that has the user's buffers.
struct Memory<'a> {
    operation: &'a Operation,
    segment: u32,
    input: Option<Access<'a>>,
    output: Option<Access<'a>>,
    io: &'a Io<'a>,
}

impl<'a> Memory<'a> {
    fn of(operation: &'a Operation, segment: u32, io: &'a Io<'a>) -> Self {
        let input = operation.lent.input.as_ref().and_then(Region::access);
        let output = operation.lent.output.as_ref().and_then(Region::access);
        Self { operation, segment, input, output, io }
    }

    fn at(&self, loc: Loc, form: Form) -> Option<Span<'_>> {
        let range = self.operation.range(loc, form, self.segment);
        match loc {
            Loc::Staged { .. } => Some(self.io.staging.segment().span(range)),
            Loc::Input(_) => Some(self.input.as_ref().or(self.output.as_ref())?.span().slice(range)),
            Loc::Output(_) => Some(self.output.as_ref()?.span().slice(range)),
        }
    }

    fn source(&self, operand: &Operand) -> Option<kernel::Source<'_>> {
        match *operand {
            Operand::At { loc, form, merges } => {
                Some(kernel::Source { span: self.at(loc, form)?, form, merges })
            }
            Operand::Head { head, merges } => {
                let form = self.operation.prepared.heads[head as usize].form;
                let span = self.operation.message(self.segment, head, self.io)?;
                Some(kernel::Source { span, form, merges })
            }
        }
    }
}
