//! The time of a thread for a step.

use super::{
    machine::{Costs, Overhead, Picoseconds},
    member::SimulatedMember,
    outcome::WorkItem,
};
use crate::{
    execution::SegmentStep,
    prepare::{Kind, Operand},
    schedule::{ChunkRun, Form},
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
        let bytes = |run: ChunkRun, form: Form| prepared.expected_bytes(run, segment, form) as u64;
        let copied = |run: ChunkRun, form, is_copied| {
            let bytes = bytes(run, form);
            let cost = if is_copied { costs.copy.of(bytes) } else { 0 };
            Self { what: WorkItem::Copy(run.first), bytes, cost }
        };
        let coded = |run: ChunkRun, overhead: Overhead| {
            let bytes = bytes(run, Form::Plain);
            Self { what: WorkItem::Code(run.first), bytes, cost: overhead.of(bytes) }
        };
        match &prepared.steps[step as usize].kind {
            Kind::Send(send) => copied(send.from.run(), send.form, send.copy.is_some() && !send.folded),
            Kind::Recv { head, into } => {
                let form = prepared.heads[*head as usize].form;
                copied(into.run(), form, !member.is_placed(segment, *head))
            }
            Kind::Copy { from, form, .. } => copied(from.run(), *form, true),
            Kind::Encode { from, form, .. } => {
                coded(from.run(), costs.encoding(prepared.call.codec_of(*form).unwrap_or_default()))
            }
            Kind::Decode { into, .. } => coded(into.run(), costs.decoding(prepared.call.codec.result())),
            Kind::Fold(fold) => {
                let operands = &prepared.operands[fold.operands.start as usize..fold.operands.end as usize];
                let run = fold.into.run();
                let form = |operand: &Operand| match operand {
                    Operand::At { form, .. } => *form,
                    Operand::Head { head, .. } => prepared.heads[*head as usize].form,
                };
                let plain = |form: Form| if form == Form::Coded { Form::Plain } else { form };
                let bytes_of = |operand| bytes(run, plain(form(operand)));
                let coded = operands.iter().filter(|operand| form(operand) == Form::Coded).map(bytes_of);
                let decoding = costs.decoding(prepared.call.codec);
                let decoded = coded.fold(0u64, |sum, bytes| sum.saturating_add(decoding.of(bytes)));
                let bytes = operands.iter().map(bytes_of).sum();
                let cost = decoded.saturating_add(costs.fold.of(bytes));
                Self { what: WorkItem::Fold(run.first), bytes, cost }
            }
        }
    }
}
