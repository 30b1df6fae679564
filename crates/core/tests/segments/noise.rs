//! Random schedules.

use herringbone_core::schedule::{Cut, Form, Origin, Place, ProgramBuilder, Rank, Schedule, Source};

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

/// A random schedule of one worker and some reducers.
pub(crate) fn noise(seed: u64) -> Schedule {
    let mut random = Random::new(seed);
    let ranks = 2 + random.below(3);
    let slots = 1 + random.below(4);
    let mut items: Vec<Vec<Item>> = (0..ranks).map(|_| Vec::new()).collect();
    for _ in 0..2 + random.below(7) {
        let mut order: Vec<Rank> = (0..ranks as Rank).collect();
        random.shuffle(&mut order);
        let receivers = 1 + random.below(ranks.min(3) - 1);
        let to = order[1..=receivers].to_vec();
        to.iter().for_each(|to| items[*to as usize].push(Item::Receive(order[0])));
        items[order[0] as usize].push(Item::Send(to));
    }
    let programs = items.into_iter().enumerate().map(|(rank, mut items)| {
        random.shuffle(&mut items);
        let mut program = ProgramBuilder::new();
        let slots: Vec<Place> = (0..slots).map(|_| program.slot(Form::Acc)).collect();
        fill(&mut program, rank, ranks, &slots);
        write(&mut program, &items, &slots, &mut random);
        if rank == 0 {
            program.fold(0, &[(0, Origin::At(Place::User(0)))], Place::User(0), true);
        }
        program.build()
    });
    Schedule::listed(1, Cut::Even { chunks: 1 }, programs.collect())
}

/// Gives every slot of every rank a value.
fn fill(program: &mut ProgramBuilder, rank: usize, ranks: usize, slots: &[Place]) {
    for slot in slots {
        if rank == 0 {
            program.fold(0, &[(0, Origin::At(Place::User(0)))], *slot, false);
            program.send(*slot, 1..ranks as Rank);
        } else {
            program.recv(0, 0, *slot);
        }
    }
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
