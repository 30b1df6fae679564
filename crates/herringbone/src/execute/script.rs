//! A small operation's program between local ranks, with everything worked out that is the same each time it is called.

use super::places::{BufferRange, FoldInput};
use crate::core::{
    prepare::{Fold, Kind, Operand, Prepared},
    schedule::Form,
    session::membership::MemberId,
};
use std::{ops::Range, sync::Arc};

/// What a step does.
#[derive(Clone, Debug)]
pub(super) enum StepAction {
    Send { from: BufferRange, to: Receivers },
    Move { from: FoldInput, into: BufferRange },
    Fold { parts: Vec<FoldInput>, into: BufferRange, form: Form, finish: Option<u32> },
}

/// The receivers of a message.
#[derive(Clone, Debug)]
pub(super) struct Receivers {
    pub(super) lanes: Range<usize>,
    /// Its number, if it may be written once for all of them.
    pub(super) all: Option<u16>,
}

/// One step, with the messages that it needs.
#[derive(Clone, Debug)]
pub(super) struct ScriptStep {
    pub(super) action: StepAction,
    pub(super) messages: Range<usize>,
}

/// A receiver of a message, by its endpoint, and the message's number there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) endpoint: MemberId,
    pub(super) index: u16,
}

/// A message that comes, from an endpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) endpoint: MemberId,
    pub(super) index: u16,
    pub(super) bytes: usize,
    /// Where it is kept in the operation's staging memory if it cannot stay with its frame.
    pub(super) offset: usize,
}

/// A program that can be run from beginning to end, in order.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) prepared: Arc<Prepared>,
    pub(super) steps: Vec<ScriptStep>,
    /// As the prepared program has them.
    pub(super) lanes: Vec<Lane>,
    pub(super) messages: Vec<Message>,
}

impl Script {
    /// The script of a program whose rank may run it in order; `endpoints` are those of its peers. `None` unless all messages
    /// go with their frames, and no step needs two from one rank, of which only the first can be seen.
    pub(crate) fn of(prepared: &Arc<Prepared>, endpoints: &[MemberId]) -> Option<Self> {
        let mut heads: Vec<_> = prepared.heads.iter().map(|head| (head.step, head.peer)).collect();
        heads.sort_unstable();
        let may = prepared.eager
            && prepared.peers.iter().all(|peer| peer.shared)
            && heads.windows(2).all(|pair| pair[0] != pair[1]);
        let steps = steps(prepared).filter(|_| may)?;
        Some({
            let endpoint = |peer: u32| endpoints[peer as usize];
            let lanes = prepared.lanes.iter().map(|to| Lane { endpoint: endpoint(to.peer), index: to.index });
            let messages = prepared.heads.iter().map(|head| Message {
                endpoint: endpoint(head.peer),
                index: head.index,
                bytes: prepared.bytes(head.run, 0, head.form),
                offset: head.offset,
            });
            let (lanes, messages) = (lanes.collect(), messages.collect());
            Self { steps, lanes, messages, prepared: prepared.clone() }
        })
    }
}

impl Script {
    /// The endpoints that send it messages.
    pub(crate) fn endpoints(&self) -> impl Iterator<Item = MemberId> {
        self.messages.iter().map(|message| message.endpoint)
    }
}

/// The program's steps; `None` if something in it is coded.
fn steps(prepared: &Prepared) -> Option<Vec<ScriptStep>> {
    let mut first = 0;
    let kinds = prepared.steps.iter().enumerate();
    kinds
        .map(|(at, step)| {
            let of_it = prepared.heads[first..].iter().take_while(|head| head.step as usize == at).count();
            let messages = first..first + of_it;
            first = messages.end;
            Some(ScriptStep { action: action(prepared, &step.kind)?, messages })
        })
        .collect()
}

fn action(prepared: &Prepared, kind: &Kind) -> Option<StepAction> {
    let range = |loc, form| BufferRange::of(prepared, loc, form, 0);
    let part = |operand| FoldInput::of(prepared, operand, 0);
    Some(match kind {
        Kind::Encode { .. } | Kind::Decode { .. } => return None,
        Kind::Send(send) => {
            let lanes = send.lanes.start as usize..send.lanes.end as usize;
            StepAction::Send {
                from: range(send.from, send.form),
                to: Receivers { all: for_all(prepared, &lanes), lanes },
            }
        }
        Kind::Recv { head, into } => {
            let from = part(Operand::Head { head: *head, merges: 0 });
            StepAction::Move { into: range(*into, from.form), from }
        }
        Kind::Copy { from, into, form } => StepAction::Move {
            from: part(Operand::At { loc: *from, form: *form, merges: 0 }),
            into: range(*into, *form),
        },
        Kind::Fold(Fold { operands, into, form, finish, .. }) => {
            let operands = &prepared.operands[operands.start as usize..operands.end as usize];
            let parts = operands.iter().map(|operand| part(*operand)).collect();
            StepAction::Fold { parts, into: range(*into, *form), form: *form, finish: *finish }
        }
    })
}

/// The number of a message that may be written once for all its receivers: the same for each, all of which have one for its
/// sender in return. So none of them has more than a few to read, and nobody has to count them.
fn for_all(prepared: &Prepared, lanes: &Range<usize>) -> Option<u16> {
    let lanes = &prepared.lanes[lanes.clone()];
    let index = lanes.first()?.index;
    let answered = |peer: u32| prepared.heads.iter().any(|head| head.peer == peer);
    lanes.iter().all(|lane| lane.index == index && answered(lane.peer)).then_some(index)
}
