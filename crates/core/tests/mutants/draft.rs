//! Schedules that can be changed, and every change of one step.

use herringbone_core::schedule::{
    Chunk, Cut, Form, Origin, Place, ProgramBuilder, Rank, Schedule, Source, Step,
};
use std::ops::RangeInclusive;

/// A schedule to be changed.
#[derive(Clone)]
pub(crate) struct Draft {
    pub(crate) workers: u32,
    pub(crate) cut: Cut,
    side_by_side: bool,
    /// How many inputs a worker has at most.
    pub(crate) most_inputs: u32,
    pub(crate) programs: Vec<DraftProgram>,
}

#[derive(Clone)]
pub(crate) struct DraftProgram {
    slots: Vec<Form>,
    pub(crate) steps: Vec<SpannedStep>,
}

/// A step, and for how many chunks it stands.
#[derive(Clone)]
pub(crate) struct SpannedStep {
    pub(crate) step: DraftStep,
    span: u32,
}

#[derive(Clone)]
pub(crate) enum DraftStep {
    Send { from: Place, to: Vec<Rank> },
    Recv { lane: Rank, chunk: Chunk, into: Place },
    Fold { chunk: Chunk, from: Vec<Source>, into: Place, finish: bool },
    Copy { from: Place, into: Place },
    Encode { from: Place, into: Place },
    Decode { chunk: Chunk, from: Origin, into: Place },
}

impl Draft {
    pub(crate) fn of(schedule: &Schedule, most_inputs: u32) -> Self {
        let programs = (0..schedule.ranks()).map(|rank| {
            let program = schedule.program(rank);
            let step = |step: &Step| match *step {
                Step::Send { from, to } => DraftStep::Send { from, to: program.lanes(to).to_vec() },
                Step::Recv { lane, chunk, into } => DraftStep::Recv { lane, chunk, into },
                Step::Fold { chunk, from, into, finish } => {
                    DraftStep::Fold { chunk, from: program.sources(from).to_vec(), into, finish }
                }
                Step::Copy { from, into } => DraftStep::Copy { from, into },
                Step::Encode { from, into } => DraftStep::Encode { from, into },
                Step::Decode { chunk, from, into } => DraftStep::Decode { chunk, from, into },
            };
            let steps = program.steps().iter().enumerate();
            let steps = steps.map(|(at, of)| SpannedStep { step: step(of), span: program.span(at) });
            DraftProgram { slots: program.slots().to_vec(), steps: steps.collect() }
        });
        Self {
            workers: schedule.workers(),
            cut: schedule.cut().clone(),
            side_by_side: schedule.side_by_side(),
            most_inputs,
            programs: programs.collect(),
        }
    }

    /// The same with a step for each chunk.
    pub(crate) fn chunk_by_chunk(&self) -> Self {
        let schedule = self.schedule();
        let programs = (0..schedule.ranks()).map(|rank| schedule.program(rank).chunk_by_chunk().into_owned());
        let single = Schedule::listed(self.workers, self.cut.clone(), programs.collect());
        Self::of(&single, self.most_inputs)
    }

    pub(crate) fn schedule(&self) -> Schedule {
        let programs = self.programs.iter().map(|draft| {
            let mut program = ProgramBuilder::new();
            for form in &draft.slots {
                program.slot(*form);
            }
            for SpannedStep { step, span } in &draft.steps {
                match step {
                    DraftStep::Send { from, to } => program.send(*from, to.iter().copied()),
                    DraftStep::Recv { lane, chunk, into } => program.recv(*lane, *chunk, *into),
                    DraftStep::Fold { chunk, from, into, finish } => {
                        program.fold_shaped(*chunk, from.iter().copied(), *into, *finish)
                    }
                    DraftStep::Copy { from, into } => program.copy(*from, *into),
                    DraftStep::Encode { from, into } => program.encode(*from, *into),
                    DraftStep::Decode { chunk, from, into } => program.decode(*chunk, *from, *into),
                };
                // A send to nobody is no step.
                if *span > 1 && !matches!(step, DraftStep::Send { to, .. } if to.is_empty()) {
                    program.span(*span);
                }
            }
            program.build()
        });
        let schedule = Schedule::listed(self.workers, self.cut.clone(), programs.collect());
        if self.side_by_side { schedule.with_chunks_side_by_side() } else { schedule }
    }

    /// Every change of one step, with the kind of change.
    pub(crate) fn mutants(&self) -> Vec<(&'static str, Draft)> {
        let mut mutants = Vec::new();
        for (rank, program) in self.programs.iter().enumerate() {
            for at in 0..program.steps.len() {
                let mut change = |kind, change: &dyn Fn(&mut Vec<SpannedStep>)| {
                    let mut mutant = self.clone();
                    change(&mut mutant.programs[rank].steps);
                    mutants.push((kind, mutant));
                };
                change("drop", &|steps| {
                    steps.remove(at);
                });
                change("duplicate", &|steps| steps.insert(at, steps[at].clone()));
                if at + 1 < program.steps.len() {
                    change("swap with the next", &|steps| steps.swap(at, at + 1));
                }
                for (kind, step) in self.changed(&program.steps[at].step, program.slots.len() as u32) {
                    change(kind, &|steps| steps[at].step = step.clone());
                }
                change("span", &|steps| steps[at].span += 1);
                if program.steps[at].span > 1 {
                    change("span", &|steps| steps[at].span -= 1);
                }
            }
            for slot in 0..program.slots.len() {
                let mut mutant = self.clone();
                let form = mutant.programs[rank].slots[slot];
                for other in FORMS.into_iter().filter(|other| *other != form) {
                    mutant.programs[rank].slots[slot] = other;
                    mutants.push(("form of a slot", mutant.clone()));
                }
            }
        }
        mutants
    }

    fn changed(&self, step: &DraftStep, slots: u32) -> Vec<(&'static str, DraftStep)> {
        // One beyond what there is, each.
        let chunks = 0..=self.cut.chunks();
        let ranks = 0..=self.programs.len() as Rank;
        let users = (0..=self.cut.chunks() * self.most_inputs).map(Place::User);
        let places: Vec<Place> = users.chain((0..=slots).map(Place::Slot)).collect();
        let mut changed = Vec::new();
        match step {
            DraftStep::Send { from, to } => {
                for from in places.iter().filter(|place| *place != from) {
                    changed.push(("place", DraftStep::Send { from: *from, to: to.clone() }));
                }
                for (kind, to) in changed_receivers(to, ranks) {
                    changed.push((kind, DraftStep::Send { from: *from, to }));
                }
            }
            DraftStep::Recv { lane, chunk, into } => {
                let (lane, chunk, into) = (*lane, *chunk, *into);
                let lanes = ranks.filter(|other| *other != lane);
                changed.extend(lanes.map(|lane| ("lane", DraftStep::Recv { lane, chunk, into })));
                let chunks = chunks.filter(|other| *other != chunk);
                changed.extend(chunks.map(|chunk| ("chunk", DraftStep::Recv { lane, chunk, into })));
                let places = places.into_iter().filter(|other| *other != into);
                changed.extend(places.map(|into| ("place", DraftStep::Recv { lane, chunk, into })));
            }
            DraftStep::Fold { chunk, from, into, finish } => {
                let fold = |chunk, from: &[Source], into, finish| DraftStep::Fold {
                    chunk,
                    from: from.to_vec(),
                    into,
                    finish,
                };
                let (chunk, into, finish) = (*chunk, *into, *finish);
                changed.push(("finish", fold(chunk, from, into, !finish)));
                let others = chunks.filter(|other| *other != chunk);
                changed.extend(others.map(|chunk| ("chunk", fold(chunk, from, into, finish))));
                let others = places.iter().filter(|other| **other != into);
                changed.extend(others.map(|into| ("place", fold(chunk, from, *into, finish))));
                for (kind, from) in changed_sources(from, &places, ranks) {
                    changed.push((kind, fold(chunk, &from, into, finish)));
                }
            }
            DraftStep::Copy { from, into } => {
                for place in &places {
                    changed.push(("place", DraftStep::Copy { from: *place, into: *into }));
                    changed.push(("place", DraftStep::Copy { from: *from, into: *place }));
                }
                changed.retain(|(_, step)| !matches!(step, DraftStep::Copy { from: f, into: i } if (f, i) == (from, into)));
            }
            DraftStep::Encode { .. } | DraftStep::Decode { .. } => {
                return changed_coding(step, chunks, &places, ranks);
            }
        }
        changed
    }
}

/// The same of a step that encodes or decodes.
fn changed_coding(
    step: &DraftStep,
    chunks: std::ops::RangeInclusive<u32>,
    places: &[Place],
    ranks: std::ops::RangeInclusive<Rank>,
) -> Vec<(&'static str, DraftStep)> {
    let mut changed = Vec::new();
    match step {
        DraftStep::Encode { from, into } => {
            for place in places {
                changed.push(("place", DraftStep::Encode { from: *place, into: *into }));
                changed.push(("place", DraftStep::Encode { from: *from, into: *place }));
            }
            changed.push(("code", DraftStep::Copy { from: *from, into: *into }));
        }
        DraftStep::Decode { chunk, from, into } => {
            let (chunk, from, into) = (*chunk, *from, *into);
            for place in places.iter().copied() {
                changed.push(("place", DraftStep::Decode { chunk, from, into: place }));
                changed.push(("place", DraftStep::Decode { chunk, from: Origin::At(place), into }));
            }
            let others = chunks.filter(|other| *other != chunk);
            changed.extend(others.map(|chunk| ("chunk", DraftStep::Decode { chunk, from, into })));
            for (lane, form) in ranks.flat_map(|lane| FORMS.map(|form| (lane, form))) {
                let from = Origin::Head { lane, form };
                changed.push(("lane", DraftStep::Decode { chunk, from, into }));
                changed.push(("code", DraftStep::Recv { lane, chunk, into }));
            }
        }
        _ => {}
    }
    changed
}

const FORMS: [Form; 4] = [Form::Plain, Form::Acc, Form::Coded, Form::CodedResult];

type Kinds<T> = Vec<(&'static str, Vec<T>)>;

fn changed_receivers(to: &[Rank], ranks: RangeInclusive<Rank>) -> Kinds<Rank> {
    let mut changed = Vec::new();
    for rank in ranks {
        changed.push(("add a receiver", [to, &[rank]].concat()));
        for at in (0..to.len()).filter(|at| to[*at] != rank) {
            let mut to = to.to_vec();
            to[at] = rank;
            changed.push(("receiver", to));
        }
    }
    for at in 0..to.len() {
        let mut to = to.to_vec();
        to.remove(at);
        changed.push(("remove a receiver", to));
    }
    changed
}

fn changed_sources(from: &[Source], places: &[Place], ranks: RangeInclusive<Rank>) -> Kinds<Source> {
    let mut kinds = Vec::new();
    for at in 0..from.len() {
        let mut change = |kind, change: &dyn Fn(&mut Vec<Source>)| {
            let mut sources = from.to_vec();
            change(&mut sources);
            if sources != from {
                kinds.push((kind, sources));
            }
        };
        change("drop a source", &|sources| {
            sources.remove(at);
        });
        change("duplicate a source", &|sources| sources.insert(at, sources[at]));
        change("merges", &|sources| sources[at].merges += 1);
        change("merges", &|sources| sources[at].merges = sources[at].merges.saturating_sub(1));
        if at + 1 < from.len() {
            change("swap sources", &|sources| sources.swap(at, at + 1));
            change("swap origins", &|sources| {
                (sources[at].from, sources[at + 1].from) = (sources[at + 1].from, sources[at].from);
            });
            change("swap merges", &|sources| {
                (sources[at].merges, sources[at + 1].merges) = (sources[at + 1].merges, sources[at].merges);
            });
        }
        for place in places {
            change("place of a source", &|sources| sources[at].from = Origin::At(*place));
        }
        for rank in ranks.clone() {
            for form in FORMS {
                change("head of a source", &|sources| sources[at].from = Origin::Head { lane: rank, form });
            }
        }
    }
    kinds
}
