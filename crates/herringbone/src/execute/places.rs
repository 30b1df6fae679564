//! The places of the values that a step reads and writes, in whatever order a program is run.

use crate::{
    core::{
        execution::SegmentStep,
        prepare::{Kind, Loc, Operand, Prepared},
        schedule::Form,
    },
    observe::{StepKind, StepWork},
    sys::{kernel::Source, region::Access, span::Span},
};
use std::ops::Range;

/// Bytes of a segment's memory.
#[derive(Clone, Debug)]
pub(super) enum BufferRange {
    Input(Range<usize>),
    Output(Range<usize>),
    /// Of its stage.
    Staged(Range<usize>),
}

/// What a step reads.
#[derive(Clone, Debug)]
pub(super) enum ValueOrigin {
    At(BufferRange),
    /// The message of a head.
    Message(u32),
}

/// One source of a fold, or of what moves.
#[derive(Clone, Debug)]
pub(super) struct FoldInput {
    pub(super) origin: ValueOrigin,
    pub(super) form: Form,
    pub(super) merges: u8,
}

impl BufferRange {
    /// Where a chunk's segment lies.
    #[inline]
    pub(super) fn of(prepared: &Prepared, loc: Loc, form: Form, segment: u32) -> Self {
        match loc {
            Loc::Input(run) => Self::Input(prepared.input(run, segment)),
            Loc::Output(run) => Self::Output(prepared.output(run, segment)),
            Loc::Staged(staged) => Self::Staged(prepared.staged(staged, segment, form)),
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        let (Self::Input(range) | Self::Output(range) | Self::Staged(range)) = self;
        range.len()
    }
}

impl FoldInput {
    /// An operand of a segment.
    #[inline]
    pub(super) fn of(prepared: &Prepared, operand: Operand, segment: u32) -> Self {
        match operand {
            Operand::At { loc, form, merges } => {
                Self { origin: ValueOrigin::At(BufferRange::of(prepared, loc, form, segment)), form, merges }
            }
            Operand::Head { head, merges } => {
                let form = prepared.heads[head as usize].form;
                Self { origin: ValueOrigin::Message(head), form, merges }
            }
        }
    }
}

/// What a step does, as listeners are told of it.
pub(super) fn step_work(prepared: &Prepared, ran: SegmentStep) -> StepWork {
    let bytes = |loc, form| BufferRange::of(prepared, loc, form, ran.segment).len();
    let (kind, bytes) = match &prepared.steps[ran.step as usize].kind {
        Kind::Send(send) => (StepKind::Send, bytes(send.from, send.form)),
        Kind::Recv { head, into } => (StepKind::Receive, bytes(*into, prepared.heads[*head as usize].form)),
        Kind::Copy { into, form, .. } => (StepKind::Copy, bytes(*into, *form)),
        Kind::Fold(fold) => (StepKind::Fold, bytes(fold.into, fold.form)),
        Kind::Encode { into, form, .. } => (StepKind::Encode, bytes(*into, *form)),
        Kind::Decode { into, .. } => (StepKind::Decode, bytes(*into, Form::Plain)),
    };
    StepWork { kind, bytes }
}

/// A segment's memory, for a thread that has it. The user's buffers are not there if they were taken back.
pub(super) struct SegmentMemory<'a> {
    input: Option<Span<'a>>,
    output: Option<Span<'a>>,
    staged: Span<'a>,
}

impl<'a> SegmentMemory<'a> {
    /// `input` is `None` where it is the output, too.
    #[inline]
    pub(super) fn new(
        input: Option<&'a Access<'_>>,
        output: Option<&'a Access<'_>>,
        staged: Span<'a>,
    ) -> Self {
        let output = output.map(Access::span);
        Self { input: input.map(Access::span).or(output), output, staged }
    }

    #[inline]
    pub(super) fn at(&self, range: &BufferRange) -> Option<Span<'a>> {
        let (span, range) = match range {
            BufferRange::Input(range) => (self.input?, range),
            BufferRange::Output(range) => (self.output?, range),
            BufferRange::Staged(range) => (self.staged, range),
        };
        Some(span.slice(range.clone()))
    }

    /// Where something lies; `message` finds a message. `None` if that is gone.
    #[inline]
    pub(super) fn source(
        &self,
        part: &FoldInput,
        message: impl FnOnce(u32) -> Option<Span<'a>>,
    ) -> Option<Source<'a>> {
        let span = match &part.origin {
            ValueOrigin::At(range) => self.at(range),
            ValueOrigin::Message(head) => message(*head),
        };
        Some(Source { span: span?, form: part.form, merges: part.merges })
    }
}
