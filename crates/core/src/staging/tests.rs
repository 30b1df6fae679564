//! A line of staged operations beside two streams and an engine, in every order that seeds draw.

use super::*;
use alloc::{collections::BTreeSet, format, string::String};

const SEEDS: u64 = 2000;

/// Draws numbers: SplitMix64.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut drawn = self.0;
        drawn = (drawn ^ drawn >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        drawn = (drawn ^ drawn >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((drawn ^ drawn >> 31) % bound as u64) as usize
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

/// What a place on the host holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Nothing,
    Input(SliceId),
    Result(SliceId),
}

/// What a stream does next.
#[derive(Clone, Copy, Debug)]
enum Queued {
    AwaitCopyIn(u64),
    CopyOut(SliceId, Option<usize>),
    CopyIn(SliceId, Option<usize>, u64),
    Signal(u64),
}

struct World {
    draw: Draw,
    staging: StagingMachine,
    shapes: Vec<StagedShape>,
    slots: Vec<Content>,
    own: BTreeMap<u64, Content>,
    /// The memory of each operation's slices, as numbers of cells. Operations share some.
    cells: Vec<Vec<usize>>,
    /// The last operation that wrote each cell.
    written: BTreeMap<usize, u64>,
    outward: VecDeque<Queued>,
    inward: VecDeque<Queued>,
    /// The copies in that the stream of copies out was made to wait for.
    awaited: Vec<u64>,
    /// Copies that have ended and that the host has not seen.
    unseen_out: VecDeque<SliceId>,
    unseen_in: VecDeque<u64>,
    running: Vec<(SliceId, Option<usize>, bool)>,
    /// Operations about which ranks are being asked.
    asked: Vec<u64>,
    /// Operations that have failed since the machine was last told something: it has decided things before it knew.
    failing: BTreeSet<u64>,
    log: Log,
    failures: usize,
}

/// What a run has seen.
#[derive(Default)]
struct Log {
    started: Vec<SliceId>,
    /// What ranks have said about operations.
    agreed: BTreeMap<u64, StagedAgreement>,
    signalled: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    retired: Vec<u64>,
    /// Copies out that ended while an earlier slice travelled.
    overlapped: usize,
}

impl World {
    fn new(seed: u64, rules: StagingRules, failures: usize) -> Self {
        let mut draw = Draw(seed);
        let slots = 1 + draw.below(4);
        Self {
            staging: StagingMachine::with_rules(slots, rules),
            draw,
            shapes: Vec::new(),
            slots: vec![Content::Nothing; slots],
            own: BTreeMap::new(),
            cells: Vec::new(),
            written: BTreeMap::new(),
            outward: VecDeque::new(),
            inward: VecDeque::new(),
            awaited: Vec::new(),
            unseen_out: VecDeque::new(),
            unseen_in: VecDeque::new(),
            running: Vec::new(),
            asked: Vec::new(),
            failing: BTreeSet::new(),
            log: Log::default(),
            failures,
        }
    }

    fn push(&mut self) {
        let draw = &mut self.draw;
        let in_slots = !draw.one_in(4);
        let (copies_out, copies_in) = [(true, true), (true, false), (false, true)][draw.below(3)];
        let slices = if in_slots { 1 + draw.below(6) } else { 1 };
        let writers: Vec<usize> =
            (0..self.shapes.len()).filter(|number| self.shapes[*number].copies_in).collect();
        let cells = match writers.last() {
            Some(last) if draw.one_in(4) => self.cells[*last].clone(),
            Some(last) if draw.one_in(3) => {
                let both = [*last, writers[draw.below(writers.len())]];
                let all: BTreeSet<usize> =
                    both.iter().flat_map(|writer| &self.cells[*writer]).copied().collect();
                all.into_iter().collect()
            }
            _ => {
                let first = self.cells.iter().flatten().max().map_or(0, |last| last + 1);
                (first..first + slices).collect()
            }
        };
        let writes_some = |number: &&usize| self.cells[**number].iter().any(|cell| cells.contains(cell));
        let after = writers.iter().filter(writes_some).map(|number| *number as u64).collect();
        let (slices, in_slots) = (cells.len(), in_slots || cells.len() > 1);
        let shape = StagedShape { slices, in_slots, copies_out, copies_in, after };
        self.cells.push(cells);
        let number = self.shapes.len() as u64;
        self.shapes.push(shape.clone());
        if self.failures > 0 && self.draw.one_in(8) {
            self.failures -= 1;
            self.log.failed.insert(number);
            assert_eq!(self.staging.push_failed(shape), number);
        } else {
            assert_eq!(self.staging.push(shape), number);
        }
    }

    /// The last operation before this one that writes the cell.
    fn writer_before(&self, number: u64, cell: usize) -> Option<u64> {
        let writes = |number: &u64| {
            let number = *number as usize;
            self.shapes[number].copies_in && self.cells[number].contains(&cell)
        };
        (0..number).rev().find(writes)
    }

    fn place(&mut self, slice: SliceId, slot: Option<usize>) -> &mut Content {
        match slot {
            Some(slot) => &mut self.slots[slot],
            None => self.own.entry(slice.operation).or_insert(Content::Nothing),
        }
    }

    /// Whether the driver refuses a copy of this operation, which then fails.
    fn refuses_copy(&mut self, number: u64) -> bool {
        let refuses = self.failures > 0 && self.draw.one_in(12);
        if refuses {
            self.failures -= 1;
            self.failing.insert(number);
            self.log.failed.insert(number);
            self.staging.fail(number);
        }
        refuses
    }

    /// Whether the machine knows of an operation's failures.
    fn knows(&self, number: u64, lacking: bool) -> bool {
        lacking == self.log.failed.contains(&number) || !lacking && self.failing.contains(&number)
    }

    fn act(&mut self) -> Result<(), String> {
        self.failing.clear();
        while let Some(action) = self.staging.next_action() {
            match action {
                StagingAction::Agree { operation, lacking } => {
                    if !self.knows(operation, lacking) {
                        return Err(format!(
                            "ranks are asked about operation {operation}, lacking: {lacking}"
                        ));
                    }
                    let is_next = self.log.started.last().is_none_or(|last| last.operation < operation);
                    let is_first =
                        !self.asked.contains(&operation) && !self.log.agreed.contains_key(&operation);
                    if !is_next || !is_first || self.shapes[operation as usize].slices == 1 {
                        return Err(format!("ranks are asked about operation {operation} again, or late"));
                    }
                    self.asked.push(operation);
                }
                StagingAction::CopyOut { slice, slot, behind } => {
                    let is_refused = self.refuses_copy(slice.operation);
                    // The wait can be what is refused.
                    if !is_refused || self.draw.one_in(2) {
                        self.outward.extend(behind.map(Queued::AwaitCopyIn));
                        self.awaited.extend(behind);
                    }
                    if is_refused {
                        self.staging.copied_out(slice);
                    } else {
                        self.outward.push_back(Queued::CopyOut(slice, slot));
                    }
                }
                StagingAction::Start { slice, slot, lacking, last } => {
                    self.start(slice, slot, lacking, last)?;
                }
                StagingAction::CopyIn { slice, slot, ticket } => {
                    if self.refuses_copy(slice.operation) {
                        self.staging.copied_in(ticket);
                    } else {
                        self.inward.push_back(Queued::CopyIn(slice, slot, ticket));
                    }
                }
                StagingAction::Signal { operation, by: Signaller::Stream }
                    if !self.failing.contains(&operation) =>
                {
                    self.inward.push_back(Queued::Signal(operation));
                }
                StagingAction::Signal { operation, .. } => self.signal(operation)?,
                StagingAction::Retire { operation } => self.log.retired.push(operation),
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        slice: SliceId,
        slot: Option<usize>,
        lacking: bool,
        last: bool,
    ) -> Result<(), String> {
        let shape = self.shapes[slice.operation as usize].clone();
        // The others may have another number of slices, or none.
        let agreement = self.log.agreed.get(&slice.operation);
        let is_agreed = agreement.is_some_and(|agreement| *agreement != StagedAgreement::Refused);
        if shape.slices > 1 && !is_agreed {
            return Err(format!("{slice:?} starts, and ranks have said {agreement:?}"));
        }
        if last != (slice.slice + 1 == shape.slices) {
            return Err(format!("{slice:?} is the last: {last}"));
        }
        if !self.knows(slice.operation, lacking) {
            return Err(format!("{slice:?} starts without memory: {lacking}"));
        }
        if !lacking {
            let place = self.place(slice, slot);
            if shape.copies_out && *place != Content::Input(slice) {
                return Err(format!("{slice:?} starts on {place:?}"));
            }
            *place = Content::Input(slice);
        }
        self.log.started.push(slice);
        self.running.push((slice, slot, lacking));
        Ok(())
    }

    fn signal(&mut self, number: u64) -> Result<(), String> {
        let first = self.log.signalled.insert(number);
        // A failure signals again what the machine was about to signal.
        let is_right = first || self.failing.contains(&number);
        if is_right { Ok(()) } else { Err(format!("operation {number} is signalled twice")) }
    }

    /// Whether a copy in is queued with this ticket or an earlier one.
    fn has_copy_in_to(&self, awaited: u64) -> bool {
        let is_earlier = |queued: &Queued| matches!(queued, Queued::CopyIn(.., ticket) if *ticket <= awaited);
        self.inward.iter().any(is_earlier)
    }

    fn stream(&mut self, inward: bool) -> Result<(), String> {
        let queue = if inward { &self.inward } else { &self.outward };
        match queue.front().copied() {
            Some(Queued::AwaitCopyIn(awaited)) if self.has_copy_in_to(awaited) => return Ok(()),
            None => return Ok(()),
            Some(_) => {}
        }
        let queue = if inward { &mut self.inward } else { &mut self.outward };
        match queue.pop_front().expect("it has one") {
            Queued::AwaitCopyIn(_) => {}
            Queued::CopyOut(slice, slot) => self.copy_out(slice, slot)?,
            Queued::CopyIn(slice, slot, ticket) => {
                let place = *self.place(slice, slot);
                if place != Content::Result(slice) {
                    return Err(format!("{slice:?} gets {place:?}"));
                }
                let cell = self.cells[slice.operation as usize][slice.slice];
                self.written.insert(cell, slice.operation);
                self.unseen_in.push_back(ticket);
            }
            Queued::Signal(operation) => self.signal(operation)?,
        }
        Ok(())
    }

    fn copy_out(&mut self, slice: SliceId, slot: Option<usize>) -> Result<(), String> {
        let cell = self.cells[slice.operation as usize][slice.slice];
        let (written, expected) =
            (self.written.get(&cell).copied(), self.writer_before(slice.operation, cell));
        // What failed operations leave is undefined.
        if written != expected && self.log.failed.is_empty() {
            return Err(format!("{slice:?} reads what {written:?} wrote, in place of {expected:?}"));
        }
        let is_earlier = |(other, _, lacking): &(SliceId, _, bool)| *other < slice && !lacking;
        self.log.overlapped += usize::from(self.running.iter().any(is_earlier));
        *self.place(slice, slot) = Content::Input(slice);
        self.unseen_out.push_back(slice);
        Ok(())
    }

    /// Ends one of the engine's operations, whichever.
    fn end(&mut self) -> Result<(), String> {
        if self.running.is_empty() {
            return Ok(());
        }
        let (slice, slot, lacking) = self.running.remove(self.draw.below(self.running.len()));
        if !lacking {
            let place = self.place(slice, slot);
            if *place != Content::Input(slice) {
                return Err(format!("{slice:?} is summed over {place:?}"));
            }
            *place = Content::Result(slice);
        }
        let fails = lacking || (self.failures > 0 && self.draw.one_in(6));
        if fails && !lacking {
            self.failures -= 1;
        }
        if fails {
            self.log.failed.insert(slice.operation);
        }
        self.staging.ended(slice, !fails);
        Ok(())
    }

    /// Ranks have said whether they agree about one of the operations, whichever.
    fn agree(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let operation = self.asked.remove(self.draw.below(self.asked.len()));
        let mut agreement = StagedAgreement::Same;
        if self.failures > 0 && self.draw.one_in(6) {
            self.failures -= 1;
            agreement = [StagedAgreement::Refused, StagedAgreement::Unknown][self.draw.below(2)];
            self.log.failed.insert(operation);
        }
        self.log.agreed.insert(operation, agreement);
        self.staging.agreed(operation, agreement);
    }

    fn step(&mut self) -> Result<(), String> {
        match self.draw.below(6) {
            5 => self.agree(),
            0 => self.stream(false)?,
            1 => self.stream(true)?,
            2 => self.end()?,
            3 => {
                if let Some(slice) = self.unseen_out.pop_front() {
                    self.staging.copied_out(slice);
                }
            }
            _ => {
                if let Some(ticket) = self.unseen_in.pop_front() {
                    self.staging.copied_in(ticket);
                }
            }
        }
        self.act()
    }

    fn run(mut self) -> Result<Log, String> {
        let operations = 2 + self.draw.below(5);
        let mut steps = 0;
        while self.shapes.len() < operations || !self.staging.is_idle() || !self.inward.is_empty() {
            if self.shapes.len() < operations && self.draw.one_in(8) {
                self.push();
            }
            self.step()?;
            steps += 1;
            if steps > 20_000 {
                return Err(format!("it stands still: {:?}", self.staging));
            }
        }
        let all: BTreeSet<u64> = (0..operations as u64).collect();
        if self.log.signalled != all || self.log.retired.len() != operations {
            return Err(format!("of {operations} operations {:?} are signalled", self.log.signalled));
        }
        let slices = |number: &u64| match self.log.agreed.get(number) {
            Some(StagedAgreement::Refused) => 0,
            _ => self.shapes[*number as usize].slices,
        };
        if self.log.started.len() != all.iter().map(slices).sum::<usize>() {
            return Err(format!("{:?} start, where ranks say {:?}", self.log.started, self.log.agreed));
        }
        let is_last =
            |(cell, writer): (&usize, &u64)| self.writer_before(operations as u64, *cell) == Some(*writer);
        if self.log.failed.is_empty() && !self.written.iter().all(is_last) {
            return Err(format!("the last writers are {:?}", self.written));
        }
        if !self.log.started.is_sorted() {
            return Err(format!("slices start as {:?}", self.log.started));
        }
        // A wait for an earlier copy in than one before says nothing. After a failure all are given again.
        if self.log.failed.is_empty() && !self.awaited.is_sorted_by(|one, other| one < other) {
            return Err(format!("the stream of copies out waits for {:?}", self.awaited));
        }
        if self.slots.len() < self.staging.slots.len()
            || self.staging.slots.iter().any(|slot| *slot != SlotState::Free)
        {
            return Err("a slot is not free in the end".into());
        }
        Ok(self.log)
    }
}

#[test]
fn every_interleaving_ends_and_no_copy_meets_another() {
    for seed in 0..SEEDS {
        let log = World::new(seed, StagingRules::ALL, 0).run();
        let log = log.unwrap_or_else(|problem| panic!("seed {seed}: {problem}"));
        assert_eq!(log.failed.len(), 0);
    }
}

#[test]
fn a_failure_at_any_point_signals_its_value_and_keeps_the_order() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let log = World::new(seed, StagingRules::ALL, 2).run();
        failed += log.unwrap_or_else(|problem| panic!("seed {seed}: {problem}")).failed.len();
    }
    assert!(failed > SEEDS as usize / 2, "{failed} failures are too few to say something");
}

#[test]
fn the_next_slice_is_copied_out_while_earlier_ones_travel() {
    let logs = (0..SEEDS).map(|seed| World::new(seed, StagingRules::ALL, 0).run().unwrap());
    assert!(logs.filter(|log| log.overlapped > 0).count() > SEEDS as usize / 2);
    // Nothing has ended, and two slots are taken.
    let mut staging = StagingMachine::new(2);
    let shape =
        StagedShape { slices: 3, in_slots: true, copies_out: true, copies_in: true, after: Vec::new() };
    staging.push(shape);
    let id = |slice| SliceId { operation: 0, slice };
    let out =
        |slice, behind| Some(StagingAction::CopyOut { slice: id(slice), slot: Some(slice % 2), behind });
    assert_eq!(
        [staging.next_action(), staging.next_action(), staging.next_action()],
        [out(0, None), out(1, None), Some(StagingAction::Agree { operation: 0, lacking: false })]
    );
    staging.copied_out(id(0));
    assert_eq!(staging.next_action(), None);
    staging.agreed(0, StagedAgreement::Same);
    let start = StagingAction::Start { slice: id(0), slot: Some(0), lacking: false, last: false };
    assert_eq!([staging.next_action(), staging.next_action()], [Some(start), None]);
    // The third is queued behind the copy that leaves its slot, which has not ended.
    staging.ended(id(0), true);
    let leaves = StagingAction::CopyIn { slice: id(0), slot: Some(0), ticket: 0 };
    assert_eq!(
        [staging.next_action(), staging.next_action(), staging.next_action()],
        [Some(leaves), out(2, Some(0)), None]
    );
}

#[test]
fn broken_rules_are_found() {
    let plants = [
        StagingRules { wait_for_slots: false, ..StagingRules::ALL },
        StagingRules { wait_for_copies_out: false, ..StagingRules::ALL },
        StagingRules { wait_for_writers: false, ..StagingRules::ALL },
        StagingRules { start_in_order: false, ..StagingRules::ALL },
        StagingRules { signal_failures: false, ..StagingRules::ALL },
        StagingRules { wait_for_agreement: false, ..StagingRules::ALL },
        StagingRules { skip_refused: false, ..StagingRules::ALL },
    ];
    for rules in plants {
        let is_found = |seed| World::new(seed, rules, 2).run().is_err();
        assert!((0..SEEDS).any(is_found), "{rules:?} is not found by {SEEDS} seeds");
    }
}
