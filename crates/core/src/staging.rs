//! Staged operations: values that lie in an accelerator's memory pass through the host's memory on their way to other ranks.
//!
//! A [`StagingMachine`] decides what happens next in one *line* of staged operations, whose slices all ranks start in one order. A slice
//! is copied out to a slot of the host, the engine runs its operation there, and the result is copied back in. Two streams of the
//! accelerator take the copies, one for each direction, and each stream keeps its order. The machine hears what has ended and
//! returns [`StagingAction`]s. It does no I/O, so a seeded simulator tries every interleaving.
//!
//! * The next slice is copied out while earlier slices travel: there are several slots.
//! * A slot takes a new slice behind the copy in that leaves it: the stream waits for that copy, and the host does not.
//! * An operation begins once all earlier ones that write its memory have landed, because these end in any order.
//! * The engine's operations start in one order, whatever ends first. So all ranks match them.
//! * An operation of several slices first has all ranks agree that they make the same call, for which none lacks memory. Otherwise
//!   no slice starts, because ranks can have different numbers of slices. Each rank has then made one call of the group.
//! * A failure signals the operation's value at once, so no stream waits without end. The slices that are left start without
//!   memory, which fails them on all ranks: ranks that learn of a failure at different slices still make the same calls.
//!
//! Fairring (FAIR's process group for PyTorch) has the same pipeline of slices between GPUs and the network.

#[cfg(test)]
mod tests;

use alloc::{
    collections::{BTreeMap, VecDeque},
    vec,
    vec::Vec,
};

/// What a staged operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedShape {
    /// How many slices it has, from 1.
    pub slices: usize,
    /// Whether its slices take the line's slots. An operation without slots has host memory of its own for its only slice.
    pub in_slots: bool,
    /// Whether the accelerator's values are copied to the host first.
    pub copies_out: bool,
    /// Whether the result is copied to the accelerator.
    pub copies_in: bool,
    /// The earlier operations of the line that write some of what this one reads or writes.
    pub after: Vec<u64>,
}

/// A slice of a staged operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SliceId {
    /// The operation's number in its line, from 0.
    pub operation: u64,
    /// The slice's number in the operation, from 0.
    pub slice: usize,
}

/// The side that writes the value for which streams wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaller {
    /// The stream of copies in, behind the operation's last copy.
    Stream,
    /// The host, at once.
    Host,
}

/// How it ended that ranks were to agree about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagedAgreement {
    /// All make the same call.
    Same,
    /// All know that they do not, or that one of them lacks memory for it.
    Refused,
    /// It is not known: something else has failed.
    Unknown,
}

/// What to do next, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagingAction {
    /// Have all ranks agree that they make this call, and report [`agreed`](StagingMachine::agreed).
    Agree {
        /// The operation.
        operation: u64,
        /// Whether the ranks are to refuse it, because it has failed.
        lacking: bool,
    },
    /// Queue a copy to the host, and report [`copied_out`](StagingMachine::copied_out) once it has ended.
    CopyOut {
        /// The slice.
        slice: SliceId,
        /// The slot that takes it; `None` for the operation's own memory.
        slot: Option<usize>,
        /// The copy in that the stream of copies out has to wait for first, with all before it: this one may have failed. Left out if
        /// an earlier wait was for that or a later one.
        behind: Option<u64>,
    },
    /// Start the engine's operation, and report [`ended`](StagingMachine::ended).
    Start {
        /// The slice.
        slice: SliceId,
        /// The slot that it lies in.
        slot: Option<usize>,
        /// Whether it is to start without memory, because the operation has failed.
        lacking: bool,
        /// Whether it is the operation's last slice.
        last: bool,
    },
    /// Queue a copy to the accelerator, and report [`copied_in`](StagingMachine::copied_in) with the ticket once it has ended.
    CopyIn {
        /// The slice.
        slice: SliceId,
        /// The slot that it lies in.
        slot: Option<usize>,
        /// The number of the copy in its line.
        ticket: u64,
    },
    /// Write the value for which streams wait.
    Signal {
        /// The operation.
        operation: u64,
        /// The side that writes it.
        by: Signaller,
    },
    /// The operation is over, and nothing touches its memory.
    Retire {
        /// The operation.
        operation: u64,
    },
}

/// Rules that a test may break, to show that the simulator finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagingRules {
    /// A slot takes a new slice only behind the copy in that leaves it.
    pub(crate) wait_for_slots: bool,
    /// A slice starts only once it was copied out.
    pub(crate) wait_for_copies_out: bool,
    /// An operation waits for an earlier one that writes its memory.
    pub(crate) wait_for_writers: bool,
    /// Slices start in order.
    pub(crate) start_in_order: bool,
    /// A failure signals the value.
    pub(crate) signal_failures: bool,
    /// Slices start only once ranks agree about their operation.
    pub(crate) wait_for_agreement: bool,
    /// An operation about which ranks do not agree starts no slice.
    pub(crate) skip_refused: bool,
}

impl StagingRules {
    pub(crate) const ALL: Self = Self {
        wait_for_slots: true,
        wait_for_copies_out: true,
        wait_for_writers: true,
        start_in_order: true,
        signal_failures: true,
        wait_for_agreement: true,
        skip_refused: true,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SliceState {
    Waiting,
    CopyingOut,
    Ready,
    Travelling,
    CopyingIn,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// A slice has it, whose copy out comes behind the copy in of this ticket.
    Taken {
        behind: Option<u64>,
    },
    /// A copy in of this ticket leaves it.
    Leaving(u64),
}

/// Whether ranks agree about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgreementState {
    Unasked,
    Asked,
    /// Its slices start.
    Over,
    /// None of them does.
    Refused,
}

#[derive(Debug)]
struct StagedOperation {
    shape: StagedShape,
    states: Vec<SliceState>,
    slots: Vec<Option<usize>>,
    /// How many slices have no result to come: it is copied in, or there will be none.
    landed: usize,
    over: usize,
    last_ticket: Option<u64>,
    agreement: AgreementState,
    failed: bool,
    signalled: bool,
}

/// A line of staged operations.
#[derive(Debug)]
pub struct StagingMachine {
    rules: StagingRules,
    slots: Vec<SlotState>,
    operations: BTreeMap<u64, StagedOperation>,
    pushed: u64,
    /// The next slice to take a slot.
    begins: SliceId,
    /// The next slice to start.
    starts: SliceId,
    /// How many slices have taken slots.
    taken: usize,
    /// Copies in that have not ended.
    tickets: BTreeMap<u64, SliceId>,
    given: u64,
    /// The last copy in that the stream of copies out waits for.
    awaited: Option<u64>,
    actions: VecDeque<StagingAction>,
}

impl StagingMachine {
    /// A line with this number of slots, from 1.
    pub fn new(slots: usize) -> Self {
        Self::with_rules(slots, StagingRules::ALL)
    }

    pub(crate) fn with_rules(slots: usize, rules: StagingRules) -> Self {
        let first = SliceId { operation: 0, slice: 0 };
        Self {
            rules,
            slots: vec![SlotState::Free; slots.max(1)],
            operations: BTreeMap::new(),
            pushed: 0,
            begins: first,
            starts: first,
            taken: 0,
            tickets: BTreeMap::new(),
            given: 0,
            awaited: None,
            actions: VecDeque::new(),
        }
    }

    /// Adds an operation, and returns its number.
    pub fn push(&mut self, shape: StagedShape) -> u64 {
        self.add(shape, false)
    }

    /// Adds an operation that has failed before it began: its value is signalled, and all of it starts without memory, in its place.
    pub fn push_failed(&mut self, shape: StagedShape) -> u64 {
        self.add(shape, true)
    }

    fn add(&mut self, shape: StagedShape, failed: bool) -> u64 {
        let number = self.pushed;
        self.pushed += 1;
        let shape = StagedShape { slices: if shape.in_slots { shape.slices.max(1) } else { 1 }, ..shape };
        let operation = StagedOperation {
            states: vec![SliceState::Waiting; shape.slices],
            slots: vec![None; shape.slices],
            landed: 0,
            over: 0,
            last_ticket: None,
            agreement: if shape.slices > 1 { AgreementState::Unasked } else { AgreementState::Over },
            failed,
            signalled: failed,
            shape,
        };
        self.operations.insert(number, operation);
        if failed {
            self.signal_failure(number);
        }
        self.advance();
        number
    }

    /// The next action, until there is none.
    pub fn next_action(&mut self) -> Option<StagingAction> {
        self.actions.pop_front()
    }

    /// Whether no operation is left.
    pub fn is_idle(&self) -> bool {
        self.operations.is_empty()
    }

    /// It is known whether ranks agree about an operation.
    pub fn agreed(&mut self, number: u64, agreement: StagedAgreement) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        if operation.agreement != AgreementState::Asked {
            return;
        }
        let is_refused = agreement == StagedAgreement::Refused && self.rules.skip_refused;
        operation.agreement = if is_refused { AgreementState::Refused } else { AgreementState::Over };
        if agreement != StagedAgreement::Same {
            self.fail(number);
        }
        self.advance();
    }

    /// A copy out has ended.
    pub fn copied_out(&mut self, slice: SliceId) {
        self.move_on(slice, SliceState::CopyingOut, SliceState::Ready);
        self.advance();
    }

    /// The engine's operation on a slice has ended, well or not.
    pub fn ended(&mut self, slice: SliceId, ok: bool) {
        if !ok {
            self.fail(slice.operation);
        }
        let Some(operation) = self.operations.get_mut(&slice.operation) else {
            return;
        };
        if operation.states.get(slice.slice) != Some(&SliceState::Travelling) {
            return;
        }
        operation.landed += 1;
        let (slot, is_copied) =
            (operation.slots[slice.slice], operation.shape.copies_in && !operation.failed);
        if is_copied {
            let ticket = self.given;
            self.given += 1;
            operation.states[slice.slice] = SliceState::CopyingIn;
            operation.last_ticket = Some(ticket);
            self.tickets.insert(ticket, slice);
            self.actions.push_back(StagingAction::CopyIn { slice, slot, ticket });
            self.leave(slot, Some(ticket));
        } else {
            self.leave(slot, None);
        }
        self.signal_if_landed(slice.operation);
        if !is_copied {
            self.end_slice(slice);
        }
        self.advance();
    }

    /// A copy in has ended.
    pub fn copied_in(&mut self, ticket: u64) {
        let Some(slice) = self.tickets.remove(&ticket) else { return };
        for slot in &mut self.slots {
            if *slot == SlotState::Leaving(ticket) {
                *slot = SlotState::Free;
            }
        }
        self.end_slice(slice);
        self.advance();
    }

    /// Fails the operation: its value is signalled, and its remaining slices start without memory.
    pub fn fail(&mut self, number: u64) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        if operation.failed {
            return;
        }
        operation.failed = true;
        operation.signalled = true;
        // A wait may be what has failed, so none counts: the next copy out waits again, also if it is decided already.
        let awaited = self.awaited.take();
        for action in &mut self.actions {
            if let StagingAction::CopyOut { behind, .. } = action {
                *behind = (*behind).max(awaited);
            }
        }
        self.signal_failure(number);
        self.advance();
    }

    fn signal_failure(&mut self, number: u64) {
        if self.rules.signal_failures {
            self.actions.push_back(StagingAction::Signal { operation: number, by: Signaller::Host });
        }
    }

    /// A slice leaves its slot, by the copy in of this ticket if it has one.
    fn leave(&mut self, slot: Option<usize>, ticket: Option<u64>) {
        let Some(slot) = slot else { return };
        let SlotState::Taken { behind } = self.slots[slot] else { return };
        // A copy out that has failed has not waited for the copy in before it.
        let earlier = behind.filter(|ticket| self.tickets.contains_key(ticket));
        self.slots[slot] = ticket.or(earlier).map_or(SlotState::Free, SlotState::Leaving);
    }

    fn signal_if_landed(&mut self, number: u64) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        if operation.landed == operation.shape.slices && !operation.signalled {
            operation.signalled = true;
            let by = if operation.shape.copies_in { Signaller::Stream } else { Signaller::Host };
            self.actions.push_back(StagingAction::Signal { operation: number, by });
        }
    }

    fn end_slice(&mut self, slice: SliceId) {
        let Some(operation) = self.operations.get_mut(&slice.operation) else { return };
        operation.states[slice.slice] = SliceState::Over;
        operation.over += 1;
        if operation.over == operation.shape.slices {
            self.operations.remove(&slice.operation);
            self.actions.push_back(StagingAction::Retire { operation: slice.operation });
        }
    }

    fn move_on(&mut self, slice: SliceId, from: SliceState, to: SliceState) {
        let state = self.operations.get_mut(&slice.operation).and_then(|of| of.states.get_mut(slice.slice));
        if let Some(state) = state.filter(|state| **state == from) {
            *state = to;
        }
    }

    /// Begins and starts all that may.
    fn advance(&mut self) {
        while self.begin_next() {}
        while self.start_next() {
            // One that was skipped has left its slot.
            while self.begin_next() {}
        }
    }

    /// Gives the next slice its place on the host. Returns whether it could.
    fn begin_next(&mut self) -> bool {
        let slice = self.begins;
        let Some(operation) = self.operations.get(&slice.operation) else { return false };
        let StagedShape { slices, in_slots, copies_out, .. } = operation.shape;
        let failed = operation.failed;
        // The tickets are in the order of their stream.
        let mut behind = None;
        if self.rules.wait_for_writers {
            for earlier in operation.shape.after.iter().filter_map(|number| self.operations.get(number)) {
                if !earlier.signalled {
                    return false;
                }
                behind = behind.max(earlier.last_ticket.filter(|ticket| self.tickets.contains_key(ticket)));
            }
        }
        let mut slot = None;
        if in_slots && !failed {
            let next = self.taken % self.slots.len();
            let leaves = match self.slots[next] {
                SlotState::Free => None,
                SlotState::Leaving(ticket) if copies_out => Some(ticket),
                _ if self.rules.wait_for_slots => return false,
                _ => None,
            };
            behind = behind.max(leaves);
            self.slots[next] = SlotState::Taken { behind: leaves };
            self.taken += 1;
            slot = Some(next);
        }
        let copies = copies_out && !failed;
        let waits = copies && self.rules.wait_for_copies_out;
        let operation = self.operations.get_mut(&slice.operation).expect("it was there");
        operation.slots[slice.slice] = slot;
        operation.states[slice.slice] = if waits { SliceState::CopyingOut } else { SliceState::Ready };
        if copies {
            // Copies in end in the order of their tickets, and slices end in any.
            let behind = behind.filter(|ticket| Some(*ticket) > self.awaited);
            self.awaited = self.awaited.max(behind);
            self.actions.push_back(StagingAction::CopyOut { slice, slot, behind });
        }
        self.begins = slice.next(slices);
        true
    }

    /// Starts or skips the next slice, once ranks agree about its operation. Returns whether it could.
    fn start_next(&mut self) -> bool {
        let slice = self.starts;
        let Some(operation) = self.operations.get_mut(&slice.operation) else { return false };
        let slices = operation.shape.slices;
        match operation.agreement {
            AgreementState::Unasked => {
                operation.agreement = AgreementState::Asked;
                let (operation, lacking) = (slice.operation, operation.failed);
                self.actions.push_back(StagingAction::Agree { operation, lacking });
                return true;
            }
            AgreementState::Asked if self.rules.wait_for_agreement => return false,
            AgreementState::Refused => return self.skip(slice),
            AgreementState::Asked | AgreementState::Over => {}
        }
        if operation.states[slice.slice] != SliceState::Ready {
            return !self.rules.start_in_order && self.start_any(slice);
        }
        operation.states[slice.slice] = SliceState::Travelling;
        let (slot, lacking, last) =
            (operation.slots[slice.slice], operation.failed, slice.slice + 1 == slices);
        self.actions.push_back(StagingAction::Start { slice, slot, lacking, last });
        self.starts = slice.next(slices);
        while self.has_started(self.starts) {
            let slices = self.operations[&self.starts.operation].shape.slices;
            self.starts = self.starts.next(slices);
        }
        true
    }

    /// Ends a slice that does not start, once nothing is copied for it. Returns whether it could.
    fn skip(&mut self, slice: SliceId) -> bool {
        let Some(operation) = self.operations.get_mut(&slice.operation) else { return false };
        if operation.states[slice.slice] != SliceState::Ready {
            return false;
        }
        operation.landed += 1;
        let slot = operation.slots[slice.slice];
        self.starts = slice.next(operation.shape.slices);
        self.leave(slot, None);
        self.end_slice(slice);
        true
    }

    /// Starts a slice out of order, which only a broken rule allows.
    fn start_any(&mut self, first: SliceId) -> bool {
        let Some(operation) = self.operations.get_mut(&first.operation) else { return false };
        let Some(slice) = operation.states.iter().position(|state| *state == SliceState::Ready) else {
            return false;
        };
        operation.states[slice] = SliceState::Travelling;
        let (slot, lacking) = (operation.slots[slice], operation.failed);
        let slice = SliceId { slice, ..first };
        self.actions.push_back(StagingAction::Start { slice, slot, lacking, last: false });
        true
    }

    fn has_started(&self, slice: SliceId) -> bool {
        let state = self.operations.get(&slice.operation).and_then(|of| of.states.get(slice.slice));
        matches!(state, Some(SliceState::Travelling | SliceState::CopyingIn | SliceState::Over))
    }
}

impl SliceId {
    /// The slice behind it, where its operation has so many.
    fn next(self, slices: usize) -> Self {
        match self.slice + 1 < slices {
            true => Self { slice: self.slice + 1, ..self },
            false => Self { operation: self.operation + 1, slice: 0 },
        }
    }
}
