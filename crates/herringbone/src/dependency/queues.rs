//! The queues of the variables: which operations can begin, which have to wait, and which a failure spoils. Pure: no
//! threads, no locks, no clock.
//!
//! Each variable has a queue of the operations that use it, in the order of their pushes. Reads at its head hold it together,
//! a write holds it alone. An operation is ready when it holds all its variables. As a push enters all its queues at once,
//! all queues have one order, and no circle of operations waits for each other.

use super::failure::{OperationFailure, labelled};
use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashMap, VecDeque},
    sync::Arc,
};

/// How an operation uses a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VariableUse {
    pub(crate) variable: u32,
    pub(crate) writes: bool,
}

/// What is to be pushed.
pub(crate) struct Pushed<B> {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) priority: i32,
    pub(crate) accesses: Vec<VariableUse>,
    pub(crate) body: B,
}

/// An operation that is not over.
struct Pending<B> {
    number: u64,
    name: Option<Arc<str>>,
    priority: i32,
    /// What it still uses: what it has released before its end is no longer here.
    accesses: Vec<VariableUse>,
    /// How many of them it does not hold yet.
    missing: usize,
    /// The earliest failure of what it holds.
    spoiled: Option<OperationFailure>,
    stage: Stage<B>,
}

enum Stage<B> {
    /// It waits to hold its variables, or for a thread.
    Waiting(B),
    /// It has begun.
    Running,
    /// A wait for a variable, with its ticket: it needs no thread.
    Marker(u64),
}

/// A variable: who holds it, and who is in its queue.
#[derive(Default)]
struct Queue {
    name: Option<Arc<str>>,
    readers: usize,
    written: bool,
    queue: VecDeque<(u32, bool)>,
    /// How many writes of it have succeeded.
    version: u64,
    spoiled: Option<OperationFailure>,
    /// Nobody can push an operation on it any more.
    abandoned: bool,
}

impl Queue {
    fn grants(&self, writes: bool) -> bool {
        !self.written && (!writes || self.readers == 0)
    }

    fn hold(&mut self, writes: bool) {
        if writes {
            self.written = true;
        } else {
            self.readers += 1;
        }
    }
}

/// All operations that are not over, and the queues of their variables.
pub(crate) struct Queues<B> {
    operations: Slots<Pending<B>>,
    variables: Slots<Queue>,
    ready: BinaryHeap<(i32, Reverse<u64>, u32)>,
    pushed: u64,
    tickets: u64,
    /// Variables that are spoiled now.
    spoiled: BTreeSet<u32>,
    /// The earliest failure that no variable has.
    homeless: Option<OperationFailure>,
    /// Waits for a variable, by ticket, and what they have come to.
    waits: HashMap<u64, Option<Option<OperationFailure>>>,
    /// Operations that end without a thread, and the failures that they pass on.
    ended: Vec<(u32, Option<OperationFailure>)>,
    /// Whether a wait has come to its end since this was asked.
    has_waited: bool,
    /// Functions of skipped operations: whoever holds the lock over this drops them outside of it.
    skipped: Vec<B>,
}

impl<B> Default for Queues<B> {
    fn default() -> Self {
        Self {
            operations: Slots::default(),
            variables: Slots::default(),
            ready: BinaryHeap::new(),
            pushed: 0,
            tickets: 0,
            spoiled: BTreeSet::new(),
            homeless: None,
            waits: HashMap::new(),
            ended: Vec::new(),
            has_waited: false,
            skipped: Vec::new(),
        }
    }
}

impl<B> Queues<B> {
    /// A new variable, with a name for pictures.
    pub(crate) fn variable(&mut self, name: Option<Arc<str>>) -> u32 {
        self.variables.insert(Queue { name, ..Queue::default() })
    }

    /// Says that no more operations will use it; it goes once those are over that do.
    pub(crate) fn abandon(&mut self, variable: u32) {
        self.variables[variable].abandoned = true;
        self.forget_if_unused(variable);
    }

    /// How many writes of a variable have succeeded.
    pub(crate) fn version(&self, variable: u32) -> u64 {
        self.variables[variable].version
    }

    /// How many operations are not over, waits included.
    pub(crate) fn pending(&self) -> usize {
        self.operations.len()
    }

    /// How many operations are ready to begin.
    pub(crate) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Puts an operation at the ends of its variables' queues, and returns its number: how many were pushed before.
    pub(crate) fn push(&mut self, entry: Pushed<B>) -> u64 {
        let Pushed { name, priority, accesses, body } = entry;
        self.enter(name, priority, accesses, Stage::Waiting(body));
        self.pushed += 1;
        self.pushed - 1
    }

    /// Begins a wait until what is pushed so far and writes the variable is over; returns its ticket.
    pub(crate) fn wait(&mut self, variable: u32) -> u64 {
        let ticket = self.tickets;
        self.tickets += 1;
        self.waits.insert(ticket, None);
        self.enter(None, i32::MAX, vec![VariableUse { variable, writes: false }], Stage::Marker(ticket));
        ticket
    }

    /// What a wait has come to, once it has: the failure that the variable was spoiled by, which is cleared.
    pub(crate) fn waited(&mut self, ticket: u64) -> Option<Option<OperationFailure>> {
        let outcome = self.waits.get(&ticket)?.clone()?;
        self.waits.remove(&ticket);
        outcome.iter().for_each(OperationFailure::tell);
        Some(outcome)
    }

    /// Gives a wait up: what it would have been told stays with the variable, unless it has been cleared already.
    pub(crate) fn give_up(&mut self, ticket: u64) {
        if let Some(Some(Some(failure))) = self.waits.remove(&ticket) {
            earliest(&mut self.homeless, &failure);
        }
    }

    /// The ready operation of the highest priority, of equals the one that was pushed first; it has begun now.
    pub(crate) fn take(&mut self) -> Option<(u32, B)> {
        let (_, _, operation) = self.ready.pop()?;
        match std::mem::replace(&mut self.operations[operation].stage, Stage::Running) {
            Stage::Waiting(body) => Some((operation, body)),
            Stage::Running | Stage::Marker(_) => unreachable!("only operations that wait are ready"),
        }
    }

    /// The number and name of an operation that is not over.
    pub(crate) fn identity(&self, operation: u32) -> (u64, Option<Arc<str>>) {
        let operation = &self.operations[operation];
        (operation.number, operation.name.clone())
    }

    /// Ends an operation that has begun.
    pub(crate) fn finish(&mut self, operation: u32, result: Result<(), OperationFailure>) {
        self.end(operation, result.err());
        self.settle();
    }

    /// Lets go of one variable before the end: it holds what the operation leaves there.
    ///
    /// Returns whether the operation held it.
    pub(crate) fn release(&mut self, operation: u32, variable: u32) -> bool {
        let accesses = &mut self.operations[operation].accesses;
        let Some(at) = accesses.iter().position(|access| access.variable == variable) else { return false };
        let access = accesses.swap_remove(at);
        self.let_go(access, None);
        self.settle();
        true
    }

    /// An operation that is not over, in texts.
    pub(crate) fn label(&self, operation: u32) -> String {
        let Pending { number, name, .. } = &self.operations[operation];
        labelled("operation", *number, name.as_deref())
    }

    /// A variable in texts.
    pub(crate) fn variable_label(&self, variable: u32) -> String {
        labelled("variable", variable.into(), self.variables[variable].name.as_deref())
    }

    /// The earliest failure that nobody has been told of; clears all.
    pub(crate) fn take_failures(&mut self) -> Option<OperationFailure> {
        let mut first = self.homeless.take().filter(|failure| !failure.is_reported());
        for variable in std::mem::take(&mut self.spoiled) {
            if let Some(failure) = self.variables[variable].spoiled.take() {
                earliest(&mut first, &failure);
            }
        }
        first.iter().for_each(OperationFailure::tell);
        first
    }

    /// The earliest failure that nobody has been told of; clears nothing.
    pub(crate) fn unreported(&self) -> Option<OperationFailure> {
        let spoiled = self.spoiled.iter().filter_map(|variable| self.variables[*variable].spoiled.as_ref());
        let unreported = self.homeless.iter().chain(spoiled).filter(|failure| !failure.is_reported());
        unreported.min_by_key(|failure| failure.operation()).cloned()
    }

    /// Whether a wait has come to its end since the last call.
    pub(crate) fn take_has_waited(&mut self) -> bool {
        std::mem::take(&mut self.has_waited)
    }

    /// Functions that will never run; to be dropped where no lock is held.
    pub(crate) fn take_skipped(&mut self) -> Vec<B> {
        std::mem::take(&mut self.skipped)
    }

    /// Takes the functions of all operations that have not begun, which then never do.
    pub(crate) fn abandon_waiting(&mut self) -> Vec<B> {
        self.ready.clear();
        let waiting =
            self.operations.iter_mut().filter(|(_, operation)| matches!(operation.stage, Stage::Waiting(_)));
        let stages = waiting.map(|(_, operation)| std::mem::replace(&mut operation.stage, Stage::Running));
        stages.filter_map(|stage| if let Stage::Waiting(body) = stage { Some(body) } else { None }).collect()
    }

    /// What a picture shows.
    pub(crate) fn snapshot(&self) -> Vec<QueueShown> {
        let mut shown: Vec<QueueShown> = self
            .variables
            .iter()
            .map(|(variable, state)| QueueShown {
                variable,
                name: state.name.clone(),
                version: state.version,
                spoiled: state.spoiled.as_ref().map(ToString::to_string),
                blocks: Vec::new(),
            })
            .collect();
        let places: HashMap<u32, usize> =
            shown.iter().enumerate().map(|(at, queue)| (queue.variable, at)).collect();
        for (_, operation) in self.operations.iter() {
            for access in &operation.accesses {
                let state = match operation.stage {
                    Stage::Running => BlockState::Running,
                    _ if operation.missing == 0 => BlockState::Ready,
                    _ => BlockState::Waiting,
                };
                let (number, name) = (operation.number, operation.name.clone());
                let is_wait = matches!(operation.stage, Stage::Marker(_));
                let block = QueueBlock { number, name, writes: access.writes, is_wait, state };
                shown[places[&access.variable]].blocks.push(block);
            }
        }
        // A queue is in the order of the pushes, and so are those that have left its head and hold the variable.
        // A wait has the number of the next push.
        shown.iter_mut().for_each(|queue| queue.blocks.sort_by_key(|block| (block.number, !block.is_wait)));
        shown
    }

    fn enter(&mut self, name: Option<Arc<str>>, priority: i32, accesses: Vec<VariableUse>, stage: Stage<B>) {
        let number = self.pushed;
        let operation =
            Pending { number, name, priority, missing: accesses.len(), accesses, spoiled: None, stage };
        let id = self.operations.insert(operation);
        let count = self.operations[id].accesses.len();
        for at in 0..count {
            let VariableUse { variable, writes } = self.operations[id].accesses[at];
            let state = &mut self.variables[variable];
            if state.queue.is_empty() && state.grants(writes) {
                state.hold(writes);
                self.granted(id, variable);
            } else {
                state.queue.push_back((id, writes));
            }
        }
        if self.operations[id].missing == 0 {
            self.begin_or_skip(id);
            self.settle();
        }
    }

    /// An operation holds one more of its variables.
    fn granted(&mut self, operation: u32, variable: u32) {
        let (operation, state) = (&mut self.operations[operation], &mut self.variables[variable]);
        operation.missing -= 1;
        match operation.stage {
            // Whoever waits is told, and the variable is clear for all that comes after.
            Stage::Marker(ticket) if self.waits.contains_key(&ticket) => {
                operation.spoiled = state.spoiled.take();
                self.spoiled.remove(&variable);
            }
            Stage::Marker(_) => {}
            _ => {
                if let Some(failure) = &state.spoiled {
                    earliest(&mut operation.spoiled, failure);
                }
            }
        }
    }

    /// An operation holds all its variables.
    fn begin_or_skip(&mut self, id: u32) {
        let operation = &mut self.operations[id];
        match operation.stage {
            Stage::Marker(ticket) => {
                let failure = operation.spoiled.take();
                if let Some(outcome) = self.waits.get_mut(&ticket) {
                    *outcome = Some(failure);
                    self.has_waited = true;
                }
                self.ended.push((id, None));
            }
            _ if operation.spoiled.is_some() => {
                let failure = operation.spoiled.clone();
                if let Stage::Waiting(body) = std::mem::replace(&mut operation.stage, Stage::Running) {
                    self.skipped.push(body);
                }
                self.ended.push((id, failure));
            }
            _ => self.ready.push((operation.priority, Reverse(operation.number), id)),
        }
    }

    /// Ends what needed no thread, and all that this lets end, one after the other: never deeper than one call.
    fn settle(&mut self) {
        while let Some((operation, failure)) = self.ended.pop() {
            self.end(operation, failure);
        }
    }

    fn end(&mut self, id: u32, failure: Option<OperationFailure>) {
        let operation = self.operations.remove(id);
        let has_place = operation.accesses.iter().any(|access| access.writes);
        if let (Some(failure), false, None) = (&failure, has_place, &operation.spoiled) {
            earliest(&mut self.homeless, failure);
        }
        for access in operation.accesses {
            self.let_go(access, failure.as_ref());
        }
    }

    /// A variable is free of one operation, and the next ones in its queue get it.
    fn let_go(&mut self, VariableUse { variable, writes }: VariableUse, failure: Option<&OperationFailure>) {
        let state = &mut self.variables[variable];
        if writes {
            state.written = false;
            match failure {
                None => state.version += 1,
                Some(failure) => {
                    earliest(&mut state.spoiled, failure);
                    self.spoiled.insert(variable);
                }
            }
        } else {
            state.readers -= 1;
        }
        loop {
            let state = &mut self.variables[variable];
            let Some((id, writes)) = state.queue.front().copied().filter(|(_, writes)| state.grants(*writes))
            else {
                break;
            };
            state.queue.pop_front();
            state.hold(writes);
            self.granted(id, variable);
            if self.operations[id].missing == 0 {
                self.begin_or_skip(id);
            }
        }
        self.forget_if_unused(variable);
    }

    fn forget_if_unused(&mut self, variable: u32) {
        let state = &self.variables[variable];
        if !state.abandoned || state.written || state.readers > 0 || !state.queue.is_empty() {
            return;
        }
        if let Some(failure) = self.variables.remove(variable).spoiled {
            self.spoiled.remove(&variable);
            if !failure.is_reported() {
                earliest(&mut self.homeless, &failure);
            }
        }
    }
}

/// Of two failures the one whose operation was pushed first.
fn earliest(kept: &mut Option<OperationFailure>, other: &OperationFailure) {
    if kept.as_ref().is_none_or(|kept| other.operation() < kept.operation()) {
        *kept = Some(other.clone());
    }
}

/// A variable's queue, for a picture.
pub(crate) struct QueueShown {
    pub(crate) variable: u32,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) version: u64,
    pub(crate) spoiled: Option<String>,
    pub(crate) blocks: Vec<QueueBlock>,
}

/// An operation in a queue.
pub(crate) struct QueueBlock {
    pub(crate) number: u64,
    pub(crate) name: Option<Arc<str>>,
    pub(crate) writes: bool,
    pub(crate) is_wait: bool,
    pub(crate) state: BlockState,
}

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Running,
    Ready,
    Waiting,
}

/// Things with numbers, which are given again once a thing is gone.
struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, value: T) -> u32 {
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = Some(value);
            return place;
        }
        self.slots.push(Some(value));
        self.slots.len() as u32 - 1
    }

    fn remove(&mut self, place: u32) -> T {
        self.free.push(place);
        self.slots[place as usize].take().unwrap_or_else(|| unreachable!("a number is given to one thing"))
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(place, slot)| Some((place, slot.as_ref()?)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.slots).filter_map(|(place, slot)| Some((place, slot.as_mut()?)))
    }
}

impl<T> std::ops::Index<u32> for Slots<T> {
    type Output = T;

    fn index(&self, place: u32) -> &T {
        self.slots[place as usize]
            .as_ref()
            .unwrap_or_else(|| unreachable!("who has a number uses it before its thing goes"))
    }
}

impl<T> std::ops::IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, place: u32) -> &mut T {
        self.slots[place as usize]
            .as_mut()
            .unwrap_or_else(|| unreachable!("who has a number uses it before its thing goes"))
    }
}
