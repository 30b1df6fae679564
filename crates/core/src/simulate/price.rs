//! What a thread spends on a step.

use super::{
    machine::{Costs, Overhead, Picoseconds},
    member::SimulatedMember,
    outcome::WorkItem,
};
use crate::{
    execution::SegmentStep,
    prepare::{Kind, Loc, Operand},
    schedule::Form,
};

/// What a step does, and what it costs.
pub(super) struct Price {
    pub(super) what: WorkItem,
    pub(super) bytes: u64,
    pub(super) cost: Picoseconds,
}

impl Price {
    /// Of a member's step, without the messages of a send.
    pub(super) fn of(
        member: &SimulatedMember,
        costs: &Costs,
        SegmentStep { segment, step }: SegmentStep,
    ) -> Self {
        let prepared = member.prepared();
        let chunk_of = |loc: Loc| match loc {
            Loc::Input(chunk) | Loc::Output(chunk) | Loc::Staged { chunk, .. } => chunk,
        };
        let bytes = |chunk, form: Form| prepared.expected_bytes(chunk, segment, form) as u64;
        let copied = |chunk, form, is_copied| {
            let bytes = bytes(chunk, form);
            let cost = if is_copied { costs.copy.of(bytes) } else { 0 };
            Self { what: WorkItem::Copy(chunk), bytes, cost }
        };
        let coded = |chunk, overhead: Overhead| {
            let bytes = bytes(chunk, Form::Plain);
            Self { what: WorkItem::Code(chunk), bytes, cost: overhead.of(bytes) }
        };
        match &prepared.steps[step as usize].kind {
            Kind::Send(send) => copied(chunk_of(send.from), send.form, send.copy.is_some() && !send.folded),
            Kind::Recv { head, into } => {
                let form = prepared.heads[*head as usize].form;
                copied(chunk_of(*into), form, !member.is_placed(segment, *head))
            }
            Kind::Copy { from, form, .. } => copied(chunk_of(*from), *form, true),
            Kind::Encode { from, form, .. } => {
                coded(chunk_of(*from), costs.encoding(prepared.call.codec_of(*form).unwrap_or_default()))
            }
            Kind::Decode { into, .. } => coded(chunk_of(*into), costs.decoding(prepared.call.codec.result())),
            Kind::Fold(fold) => {
                let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
                let chunk = chunk_of(fold.into);
                let form = |operand: &Operand| match operand {
                    Operand::At { form, .. } => *form,
                    Operand::Head { head, .. } => prepared.heads[*head as usize].form,
                };
                let plain = |form: Form| if form == Form::Coded { Form::Plain } else { form };
                let bytes_of = |operand| bytes(chunk, plain(form(operand)));
                let coded = operands.iter().filter(|operand| form(operand) == Form::Coded).map(bytes_of);
                let decoding = costs.decoding(prepared.call.codec);
                let decoded = coded.fold(0u64, |sum, bytes| sum.saturating_add(decoding.of(bytes)));
                let bytes = operands.iter().map(bytes_of).sum();
                let cost = decoded.saturating_add(costs.fold.of(bytes));
                Self { what: WorkItem::Fold(chunk), bytes, cost }
            }
        }
    }
}
