//! The step function: one instruction of one segment, whatever the transport.

use super::{
    operation::{Arrived, Io, Operation, Token},
    prepare::{Kind, Loc, Operand},
};
use crate::{
    core::{schedule::Form, wire::Kind as FrameKind},
    sys::{
        kernel,
        region::{Access, Region},
        span::Span,
    },
    transport::{INLINE_BYTES, Outgoing, Payload, shm::Body},
};
use std::ops::Range;

impl Operation {
    /// One instruction of one segment. Returns whether it is complete; a send may take longer.
    pub(super) fn step(&mut self, segment: u32, instr: u32, io: &mut Io<'_>) -> bool {
        let prepared = self.prepared.clone();
        match &prepared.instrs[instr as usize].kind {
            Kind::Send { lanes, from, form, copy } => {
                if let Some(offset) = copy {
                    let bytes = self.length(*from, *form, segment);
                    let at = self.stage_at(segment) + offset;
                    self.with(*from, *form, segment, io, |span, io| {
                        io.staging.segment().span(at..at + bytes).copy_from(span)
                    });
                }
                let at = self.stage(segment) * prepared.instrs.len() + instr as usize;
                self.unsent[at] = lanes.len() as u16;
                for lane in lanes.clone() {
                    if self.send_lane(segment, instr, lane, io) {
                        self.unsent[at] -= 1;
                    }
                }
                self.unsent[at] == 0
            }
            Kind::Recv { head, into } => {
                self.fold(segment, &[Operand::Head { head: *head, merges: 0 }], *into, None, None, io);
                true
            }
            Kind::Copy { from, into, form } => {
                let operand = Operand::At { loc: *from, form: *form, merges: 0 };
                self.fold(segment, &[operand], *into, None, None, io);
                true
            }
            Kind::Fold { operands, into, form, finish } => {
                let operands = &prepared.operands[operands.start as usize..operands.end as usize];
                self.fold(segment, operands, *into, Some(*form), finish.then_some(prepared.workers), io);
                true
            }
        }
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

    /// Sends one lane's message. Returns whether it is done with its source already.
    pub(super) fn send_lane(&mut self, segment: u32, instr: u32, lane: u32, io: &mut Io<'_>) -> bool {
        let prepared = self.prepared.clone();
        let Kind::Send { from, form, copy, .. } = &prepared.instrs[instr as usize].kind else { return true };
        let lane_to = prepared.lanes[lane as usize];
        let flow = self.flows[lane_to.peer as usize];
        let endpoint = &mut io.endpoints[flow.endpoint as usize];
        let mut header = self.header(FrameKind::Data, segment);
        (header.index, header.length) = (lane_to.index, self.length(*from, *form, segment) as u32);
        if endpoint.is_away() {
            return true;
        }
        if !flow.window.is_open() {
            if !prepared.eager || !endpoint.take_eager() {
                self.blocked.push((segment, instr, lane));
                return false;
            }
            header.eager = true;
        }
        io.stats.sent(endpoint, header.length as usize);
        let range = self.range(*from, *form, segment);
        if endpoint.is_shared() {
            let body = match (prepared.inline, copy) {
                (true, _) => self.inline(*from, *form, segment, io),
                (false, Some(offset)) => Body::At(self.stage_at(segment) + offset),
                (false, None) => Body::At(range.start),
            };
            io.endpoints[flow.endpoint as usize].send_shared(header, Some(body));
            return true;
        }
        let token = Token { op: self.key, segment, instr };
        let payload = match from {
            Loc::Staged { .. } => Payload::Staged(range),
            Loc::Input(_) => Payload::User { token, output: self.input.is_none(), range },
            Loc::Output(_) => Payload::User { token, output: true, range },
        };
        let reducer = prepared.peers[lane_to.peer as usize].rank >= prepared.workers;
        let fingerprint = (reducer && segment == 0).then_some(self.id.fingerprint);
        header.fingerprint = fingerprint.is_some();
        endpoint.send_stream(Outgoing { header, fingerprint, payload, done: Some(token) });
        false
    }

    fn inline(&self, from: Loc, form: Form, segment: u32, io: &mut Io<'_>) -> Body {
        let mut bytes = [0; INLINE_BYTES];
        self.with(from, form, segment, io, |span, _| span.read(&mut bytes[..span.len()]));
        let mut words = [0; INLINE_BYTES / 8];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Body::Inline(words)
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

    /// Folds operands into a place; with `form` absent, moves the single operand.
    fn fold(
        &self,
        segment: u32,
        operands: &[Operand],
        into: Loc,
        form: Option<Form>,
        finish: Option<u32>,
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
                    let wanted = &prepared.heads[head as usize];
                    let bytes = prepared.bytes(wanted.chunk, segment, wanted.form);
                    let span = match self.heads[self.stage(segment) * prepared.heads.len() + head as usize] {
                        Arrived::At(offset) => {
                            let peer = prepared.peers.iter().position(|peer| peer.heads.contains(&head))?;
                            io.endpoints[self.flows[peer].endpoint as usize].payload(offset, bytes)?
                        }
                        _ => {
                            let at = self.stage_at(segment) + wanted.offset;
                            staging.span(at..at + bytes)
                        }
                    };
                    Some(kernel::Source { span, form: wanted.form, merges })
                }
            }
        };
        let sources: Option<Vec<kernel::Source<'_>>> = operands.iter().map(source).collect();
        let Some(sources) = sources else { return };
        match form {
            Some(form) => {
                let Some(into) = span(into, form) else { return };
                kernel::fold(prepared.call.dtype, prepared.call.op, into, form, &sources, finish);
            }
            None => {
                let Some(into) = span(into, sources[0].form) else { return };
                if !into.same_start(sources[0].span) {
                    into.copy_from(sources[0].span);
                }
            }
        }
    }
}
