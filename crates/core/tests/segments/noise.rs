//! Random schedules.

use herringbone_core::schedule::{Cut, Form, Origin, Place, ProgramBuilder, Rank, Schedule, Source};
use std::ops::Range;

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

/// What a rank is to do, in some order.
enum Item {
    Send(Vec<Rank>),
    Receive(Rank),
}

/// Random messages between some workers and reducers, whatever they carry, before the workers' all-reduce. In one of eight,
/// reducers may send to each other, and may leave a worker without an answer.
pub(crate) fn noise(seed: u64) -> Schedule {
    let mut random = Random::new(seed);
    let ranks = 2 + random.below(3);
    let (workers, slots) = (1 + random.below(ranks), 1 + random.below(4));
    let is_loose = random.below(8) == 0;
    let mut messages: Vec<(Rank, Vec<Rank>)> = Vec::new();
    for _ in 0..2 + random.below(7) {
        let mut order: Vec<Rank> = (0..ranks as Rank).collect();
        random.shuffle(&mut order);
        let receivers = 1 + random.below(ranks.min(3) - 1);
        let may = |to: &&Rank| is_loose || order[0].min(**to) < workers as Rank;
        let to: Vec<Rank> = order[1..=receivers].iter().filter(may).copied().collect();
        messages.extend((!to.is_empty()).then_some((order[0], to)));
    }
    if !is_loose {
        answer(&mut messages, workers as Rank, ranks as Rank);
    }
    let mut items: Vec<Vec<Item>> = (0..ranks).map(|_| Vec::new()).collect();
    for (from, to) in messages {
        to.iter().for_each(|to| items[*to as usize].push(Item::Receive(from)));
        items[from as usize].push(Item::Send(to));
    }
    let programs = (0..).zip(items).map(|(rank, mut items)| {
        random.shuffle(&mut items);
        let mut program = ProgramBuilder::new();
        let slots: Vec<Place> = (0..slots).map(|_| program.slot(Form::Acc)).collect();
        fill(&mut program, rank, workers as Rank..ranks as Rank, &slots);
        write(&mut program, &items, &slots, &mut random);
        if rank < workers as Rank {
            all_reduce(&mut program, rank, workers as Rank);
        }
        program.build()
    });
    Schedule::listed(workers as u32, Cut::Even { chunks: 1 }, programs.collect())
}

/// Adds messages from reducers to workers that sent to them and hear nothing; the first worker fills their slots.
fn answer(messages: &mut Vec<(Rank, Vec<Rank>)>, workers: Rank, ranks: Rank) {
    for (reducer, worker) in
        (workers..ranks).flat_map(|reducer| (0..workers).map(move |worker| (reducer, worker)))
    {
        let sends = |from: Rank, to: Rank| {
            messages.iter().any(|message| message.0 == from && message.1.contains(&to))
        };
        if (worker == 0 || sends(worker, reducer)) && !sends(reducer, worker) {
            messages.push((reducer, vec![worker]));
        }
    }
}

/// Gives every slot of every rank a value.
fn fill(program: &mut ProgramBuilder, rank: Rank, reducers: Range<Rank>, slots: &[Place]) {
    for slot in slots {
        if reducers.contains(&rank) {
            program.recv(0, 0, *slot);
            continue;
        }
        program.fold(0, &[(0, Origin::At(Place::User(0)))], *slot, false);
        if rank == 0 && !reducers.is_empty() {
            program.send(*slot, reducers.clone());
        }
    }
}

/// Each worker sends its input to the others, and folds all.
fn all_reduce(program: &mut ProgramBuilder, me: Rank, workers: Rank) {
    let result = program.slot(Form::Plain);
    if workers > 1 {
        program.send(Place::User(0), (0..workers).filter(|to| *to != me));
    }
    let source = |rank| Source {
        from: match rank == me {
            true => Origin::At(Place::User(0)),
            false => Origin::Head { lane: rank, form: Form::Plain },
        },
        merges: u8::from(rank > 0),
    };
    program.fold_shaped(0, (0..workers).map(source), result, true);
    program.copy(result, Place::User(0));
}

fn write(program: &mut ProgramBuilder, items: &[Item], slots: &[Place], random: &mut Random) {
    let mut heads: Vec<Rank> = Vec::new();
    for (at, item) in items.iter().enumerate() {
        let (slot, other) = (slots[random.below(slots.len())], slots[random.below(slots.len())]);
        match item {
            Item::Send(to) => {
                program.send(slot, to.iter().copied());
            }
            Item::Receive(lane) => {
                heads.push(*lane);
                let joined = matches!(items.get(at + 1), Some(Item::Receive(next)) if !heads.contains(next));
                if joined && random.below(2) == 0 {
                    continue;
                }
                if heads.len() == 1 && random.below(2) == 0 {
                    program.recv(*lane, 0, slot);
                } else {
                    let first = Source { from: Origin::At(other), merges: 0 };
                    let rest = heads.iter().map(|lane| Source {
                        from: Origin::Head { lane: *lane, form: Form::Acc },
                        merges: 1,
                    });
                    program.fold_shaped(0, core::iter::once(first).chain(rest), slot, false);
                }
                heads.clear();
            }
        }
    }
}
