//! The step function: one instruction of one segment, whatever the transport.

use super::{
    operation::{Arrived, Io, Operation, Token},
    prepare::{Call, Kind, Loc, Operand, Prepared},
    room::{Delivery, Held},
    sources::gather,
};
use crate::{
    core::{schedule::Form, session::turns::Turn, wire::Kind as FrameKind},
    sys::{
        kernel,
        region::{Access, Region},
        span::Span,
    },
    transport::{
        Outgoing, Payload,
        frame::{Body, Frame},
        stores::copy_for_others,
    },
};
use std::ops::Range;

/// How many elements are folded before the result is put elsewhere too, so that it is still in cache.
const BLOCK_ITEMS: usize = 4096;

impl Operation {
    /// One instruction of one segment. Returns whether it is complete; a send may take longer.
    pub(super) fn step(&mut self, prepared: &Prepared, segment: u32, instr: u32, io: &mut Io<'_>) -> bool {
        match &prepared.instrs[instr as usize].kind {
            Kind::Send { lanes, from, form, copy, direct } => {
                let is_there = *direct && self.is_mapped() || self.all_placed(segment, lanes);
                let offset = copy.filter(|_| !is_there);
                if let Some(offset) = offset {
                    let bytes = self.length(*from, *form, segment);
                    let at = self.stage_at(segment) + offset;
                    self.with(*from, *form, segment, io, |span, io| {
                        copy_for_others(span, io.staging.segment().span(at..at + bytes))
                    });
                }
                let at = self.stage(segment) * prepared.instrs.len() + instr as usize;
                self.room.deliveries[at] = Delivery { left: lanes.len() as u16, checksum: None };
                let sent = self.send_lanes(prepared, segment, instr, lanes.clone(), io);
                self.room.deliveries[at].left -= sent as u16;
                self.room.deliveries[at].left == 0
            }
            Kind::Recv { head, .. } if self.arrived(segment, *head) == Arrived::Placed => true,
            Kind::Recv { head, into } => {
                self.fold(segment, &[Operand::Head { head: *head, merges: 0 }], *into, None, io);
                true
            }
            Kind::Copy { from, into, form } => {
                let operand = Operand::At { loc: *from, form: *form, merges: 0 };
                self.fold(segment, &[operand], *into, None, io);
                true
            }
            Kind::Fold { operands, into, form, finish, spread } => {
                let operands = &prepared.operands[operands.start as usize..operands.end as usize];
                let finish = finish.then_some(prepared.workers);
                self.fold(segment, operands, *into, Some((*form, finish, spread.clone())), io);
                true
            }
        }
    }

    /// Where a message is.
    fn arrived(&self, segment: u32, head: u32) -> Arrived {
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

    /// Sends a message to some of its receivers. Returns to how many of them it has gone; the others' lanes are told of later.
    pub(super) fn send_lanes(
        &mut self,
        prepared: &Prepared,
        segment: u32,
        instr: u32,
        lanes: Range<u32>,
        io: &mut Io<'_>,
    ) -> usize {
        let carried = if prepared.eager { self.send_carried(prepared, instr, lanes.clone(), io) } else { 0 };
        let mut others = 0;
        for lane in lanes {
            let endpoint = self.room.flows[prepared.lanes[lane as usize].peer as usize].endpoint;
            if !prepared.eager || !io.endpoints[endpoint as usize].is_shared() {
                others += usize::from(self.send_lane(prepared, segment, instr, lane, io));
            }
        }
        carried + others
    }

    /// Sends an eager message to those receivers that share memory with this rank: it goes with its frame.
    fn send_carried(&mut self, prepared: &Prepared, instr: u32, lanes: Range<u32>, io: &mut Io<'_>) -> usize {
        let Kind::Send { from, form, .. } = &prepared.instrs[instr as usize].kind else { return 0 };
        let mut blocked = std::mem::take(&mut self.room.blocked);
        let mut sent = 0;
        self.with(*from, *form, 0, io, |payload, io| {
            let mut header = self.header(FrameKind::Data, 0);
            header.length = payload.len() as u32;
            let mut frame = Frame::new(&header, Some(Body::Carried(payload)));
            for lane in lanes {
                let to = prepared.lanes[lane as usize];
                let flow = &self.room.flows[to.peer as usize];
                let endpoint = &mut io.endpoints[flow.endpoint as usize];
                if !endpoint.is_shared() {
                    continue;
                }
                let eager = !flow.window.is_open();
                if eager && !endpoint.take_eager() {
                    endpoint.wait_for_slot(self.id.fingerprint.priority, self.key);
                    blocked.push((0, instr, lane));
                    continue;
                }
                endpoint.send_shared(&mut frame, to.index, eager);
                io.stats.sent(endpoint, payload.len());
                sent += 1;
            }
        });
        self.room.blocked = blocked;
        sent
    }

    /// Sends a message that is not carried to one of its receivers. Returns whether that is done with its source already.
    fn send_lane(
        &mut self,
        prepared: &Prepared,
        segment: u32,
        instr: u32,
        lane: u32,
        io: &mut Io<'_>,
    ) -> bool {
        let Kind::Send { from, form, copy, direct, .. } = &prepared.instrs[instr as usize].kind else {
            return true;
        };
        let lane_to = prepared.lanes[lane as usize];
        if let Some(number) = lane_to.turn {
            let turn = Turn { lap: segment / prepared.depth(), number };
            if turn != self.room.sending.line.turn() || self.awaits_word(io) {
                self.room.held.insert(Held { turn, segment, instr, lane });
                return false;
            }
        }
        let flow = self.room.flows[lane_to.peer as usize];
        let endpoint = &mut io.endpoints[flow.endpoint as usize];
        let mut header = self.header(FrameKind::Data, segment);
        (header.index, header.length) = (lane_to.index, self.length(*from, *form, segment) as u32);
        if endpoint.is_away() {
            if lane_to.turn.is_some() {
                self.has_left();
            }
            return true;
        }
        if !flow.window.is_open() {
            if !prepared.eager || !endpoint.take_eager() {
                if prepared.eager {
                    endpoint.wait_for_slot(self.id.fingerprint.priority, self.key);
                }
                self.room.blocked.push((segment, instr, lane));
                return false;
            }
            header.eager = true;
        }
        io.stats.sent(endpoint, header.length as usize);
        let range = self.range(*from, *form, segment);
        if endpoint.is_shared() {
            let body = match (copy, self.mapped.filter(|_| *direct)) {
                _ if self.place_of(segment, lane).is_some() => Body::Placed,
                (_, Some(mapped)) => Body::Direct(mapped + range.start),
                (Some(offset), None) => Body::At(self.stage_at(segment) + offset),
                (None, None) => Body::At(range.start),
            };
            endpoint.send_shared(&mut Frame::new(&header, Some(body)), lane_to.index, header.eager);
            return true;
        }
        let token = Token { op: self.key, segment, instr };
        let payload = match from {
            Loc::Staged { .. } => Payload::Staged(range),
            Loc::Input(_) => Payload::User { op: self.key, output: self.input.is_none(), range },
            Loc::Output(_) => Payload::User { op: self.key, output: true, range },
        };
        let reducer = prepared.peers[lane_to.peer as usize].rank >= prepared.workers;
        let fingerprint = (reducer && segment == 0).then_some(self.id.fingerprint);
        header.fingerprint = fingerprint.is_some();
        let priority = self.id.fingerprint.priority;
        endpoint.send_stream(Outgoing { header, fingerprint, payload, priority, done: Some(token) });
        false
    }

    /// Where the checksum of what a send's messages carry is kept.
    pub(crate) fn checksum(&mut self, segment: u32, instr: u32) -> &mut Option<u32> {
        let at = self.stage(segment) * self.prepared.instrs.len() + instr as usize;
        &mut self.room.deliveries[at].checksum
    }

    fn region(&self, output: bool) -> Option<&Region> {
        if output { self.output.as_ref() } else { self.input.as_ref().or(self.output.as_ref()) }
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

    /// Folds operands into a place, as the form and the finish say, and puts the result where the lanes' receivers let
    /// it be put; or moves the single operand.
    fn fold(
        &self,
        segment: u32,
        operands: &[Operand],
        into: Loc,
        how: Option<(Form, Option<u32>, Range<u32>)>,
        io: &mut Io<'_>,
    ) {
        let prepared = &*self.prepared;
        let input = self.input.as_ref().and_then(Region::access);
        let output = self.output.as_ref().and_then(Region::access);
        let staging = io.staging.segment();
        let span = |loc: Loc, form: Form| -> Option<Span<'_>> {
            let range = self.range(loc, form, segment);
            match loc {
                Loc::Staged { .. } => Some(staging.span(range)),
                Loc::Input(_) => Some(input.as_ref().or(output.as_ref())?.span().slice(range)),
                Loc::Output(_) => Some(output.as_ref()?.span().slice(range)),
            }
        };
        let source = |operand: &Operand| -> Option<kernel::Source<'_>> {
            match *operand {
                Operand::At { loc, form, merges } => {
                    Some(kernel::Source { span: span(loc, form)?, form, merges })
                }
                Operand::Head { head, merges } => {
                    let form = prepared.heads[head as usize].form;
                    Some(kernel::Source { span: self.message(segment, head, io)?, form, merges })
                }
            }
        };
        let any = kernel::Source { span: staging.span(0..0), form: Form::Plain, merges: 0 };
        let put = |sources: &[kernel::Source<'_>]| match how {
            Some((form, finish, spread)) => {
                let Some(into) = span(into, form) else { return };
                let place = |lane: u32| {
                    let endpoint = self.room.flows[prepared.lanes[lane as usize].peer as usize].endpoint;
                    io.endpoints[endpoint as usize].payload(self.place_of(segment, lane)?, into.len())
                };
                let places: Vec<Span<'_>> = spread.filter_map(place).collect();
                let Call { dtype, op, .. } = prepared.call;
                if places.is_empty() {
                    return kernel::fold(dtype, op, into, form, sources, finish);
                }
                fold_into(&places, prepared, into, form, sources, finish);
            }
            None => {
                let Some(into) = span(into, sources[0].form) else { return };
                let from = sources[0].span;
                if into.same_start(from) {
                    return;
                }
                if self.outgrows_cache { into.stream_from(from) } else { into.copy_from(from) }
            }
        };
        // A region that was taken back has no memory to find: then there is nobody to fold for.
        let _folded = gather(operands.len(), any, |at| source(&operands[at]), put);
    }

    /// A message that has arrived, where it lies.
    fn message<'a>(&self, segment: u32, head: u32, io: &'a Io<'_>) -> Option<Span<'a>> {
        let wanted = &self.prepared.heads[head as usize];
        let bytes = self.prepared.bytes(wanted.chunk, segment, wanted.form);
        match self.arrived(segment, head) {
            Arrived::At(offset) | Arrived::Direct(offset) => {
                let endpoint = self.room.flows[wanted.peer as usize].endpoint;
                io.endpoints[endpoint as usize].payload(offset, bytes)
            }
            _ => {
                let at = self.stage_at(segment) + wanted.offset;
                Some(io.staging.segment().span(at..at + bytes))
            }
        }
    }
}

/// A fold whose result goes to other places too, block by block, while it is in cache.
fn fold_into(
    places: &[Span<'_>],
    prepared: &Prepared,
    into: Span<'_>,
    form: Form,
    sources: &[kernel::Source<'_>],
    finish: Option<u32>,
) {
    let items = into.len() / prepared.width(form);
    let mut parts = sources.to_vec();
    for start in (0..items).step_by(BLOCK_ITEMS) {
        let end = items.min(start + BLOCK_ITEMS);
        let range = |form| start * prepared.width(form)..end * prepared.width(form);
        for (part, source) in parts.iter_mut().zip(sources) {
            part.span = source.span.slice(range(source.form));
        }
        let result = into.slice(range(form));
        kernel::fold(prepared.call.dtype, prepared.call.op, result, form, &parts, finish);
        places.iter().for_each(|place| place.slice(range(form)).push_from(result));
    }
}
