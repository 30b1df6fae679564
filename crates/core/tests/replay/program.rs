//! Programs as seeds draw them, and what an undisturbed run of them computes.

use crate::Rng;
use std::collections::BTreeMap;

/// A collective, and how many numbers each rank gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Sum(usize),
    Broadcast { root: u32, count: usize },
    Gather(usize),
}

impl Op {
    pub(super) fn result_bytes(self, size: u32) -> u64 {
        8 * match self {
            Op::Sum(count) | Op::Broadcast { count, .. } => count as u64,
            Op::Gather(count) => count as u64 * u64::from(size),
        }
    }

    pub(super) fn proves_all(self, size: u32) -> bool {
        !matches!(self, Op::Broadcast { .. }) && self.result_bytes(size) > 0
    }

    pub(super) fn kind(self) -> u64 {
        match self {
            Op::Sum(_) => 1,
            Op::Broadcast { root, .. } => 2 + u64::from(root),
            Op::Gather(_) => 0,
        }
    }

    /// How many numbers a rank gives.
    fn count(self) -> usize {
        let (Op::Sum(count) | Op::Broadcast { count, .. } | Op::Gather(count)) = self;
        count
    }

    /// What comes of the inputs, of which a broadcast needs its root's only.
    pub(super) fn result(self, inputs: &[Option<Vec<u64>>]) -> Option<Vec<u64>> {
        match self {
            Op::Broadcast { root, .. } => inputs[root as usize].clone(),
            Op::Gather(_) => {
                let all: Option<Vec<_>> = inputs.iter().cloned().collect();
                all.map(|all| all.concat())
            }
            Op::Sum(count) => {
                let all: Option<Vec<_>> = inputs.iter().cloned().collect();
                let sum = |at: usize| move |sum: u64, input: &Vec<u64>| sum.wrapping_add(input[at]);
                all.map(|all| (0..count).map(|at| all.iter().fold(0, sum(at))).collect())
            }
        }
    }
}

/// How a version ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Global,
    Local,
    Lazy,
}

/// What every rank's program does: calls before the checkpoint is loaded, then versions, and calls after the last checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) size: u32,
    pub(super) bootstrap: Vec<(u64, Op)>,
    pub(super) versions: Vec<(Vec<Op>, Ending)>,
    pub(super) tail: Vec<Op>,
}

/// What a rank's program has in its variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Variables {
    /// The same on all ranks.
    pub(super) model: u64,
    pub(super) local: u64,
    /// What came of this version's calls.
    scratch: u64,
    bootstrap: u64,
}

fn mix(one: u64, other: u64) -> u64 {
    (one ^ other.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}

impl Variables {
    pub(super) fn input(&self, rank: u32, op: Op) -> Vec<u64> {
        let own = mix(mix(self.model, self.local), mix(self.scratch, self.bootstrap + u64::from(rank)));
        (0..op.count() as u64).map(|at| mix(own, at)).collect()
    }

    pub(super) fn learn(&mut self, result: &[u64], has_loaded: bool) {
        let into = if has_loaded { &mut self.scratch } else { &mut self.bootstrap };
        *into = result.iter().fold(mix(*into, 7), |sum, value| mix(sum, *value));
    }

    /// After a version's last call.
    pub(super) fn improve(&mut self, rank: u32, ending: Ending) {
        self.model = mix(self.model, self.scratch);
        if ending == Ending::Local {
            self.local = mix(self.local, self.scratch + u64::from(rank));
        }
    }

    pub(super) fn begin_version(&mut self) {
        self.scratch = 0;
    }
}

/// Where a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Join,
    Bootstrap(usize),
    Load,
    Call { version: u32, call: usize },
    Checkpoint { version: u32 },
    Finalize,
    End,
}

impl Program {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let size = 1 + rng.below(7) as u32;
        let op = |rng: &mut Rng| {
            let count = if rng.below(6) == 0 { 0 } else { 1 + rng.below(3) as usize };
            match rng.below(4) {
                0 => Op::Gather(count),
                1 => Op::Sum(count),
                _ => Op::Broadcast { root: rng.below(u64::from(size)) as u32, count },
            }
        };
        let ops = |rng: &mut Rng, most: u64| -> Vec<Op> { (0..rng.below(most)).map(|_| op(rng)).collect() };
        let bootstrap = ops(rng, 4).into_iter().map(|op| (rng.below(2), op)).collect();
        let endings =
            [&[Ending::Local][..], &[Ending::Global], &[Ending::Lazy], &[Ending::Global, Ending::Lazy]];
        let endings = endings[rng.below(4) as usize];
        let versions = (0..1 + rng.below(4))
            .map(|_| (ops(rng, 7), endings[rng.below(endings.len() as u64) as usize]))
            .collect();
        Self { size, bootstrap, versions, tail: ops(rng, 3) }
    }

    pub(super) fn op(&self, place: Place) -> Option<Op> {
        match place {
            Place::Bootstrap(at) => self.bootstrap.get(at).map(|(_, op)| *op),
            Place::Call { version, call } => {
                let ops = self.versions.get(version as usize).map_or(&self.tail, |(ops, _)| ops);
                ops.get(call).copied()
            }
            _ => None,
        }
    }

    /// What comes after a place.
    pub(super) fn next(&self, place: Place) -> Place {
        let settle = |place: Place| match place {
            Place::Bootstrap(at) if at == self.bootstrap.len() => Place::Load,
            Place::Call { version, .. } if self.op(place).is_none() => {
                if version as usize == self.versions.len() {
                    Place::Finalize
                } else {
                    Place::Checkpoint { version }
                }
            }
            place => place,
        };
        settle(match place {
            Place::Join => Place::Bootstrap(0),
            Place::Bootstrap(at) => Place::Bootstrap(at + 1),
            Place::Load => Place::Call { version: 0, call: 0 },
            Place::Call { version, call } => Place::Call { version, call: call + 1 },
            Place::Checkpoint { version } => Place::Call { version: version + 1, call: 0 },
            Place::Finalize | Place::End => Place::End,
        })
    }

    /// Where a program goes on that has loaded a version.
    pub(super) fn loaded(&self, version: u32) -> Place {
        match version {
            0 => self.next(Place::Load),
            version => self.next(Place::Checkpoint { version: version - 1 }),
        }
    }
}

/// What an undisturbed run computes: each call's result, and each rank's variables at the end.
#[derive(Clone, Debug)]
pub(super) struct Undisturbed {
    pub(super) results: BTreeMap<Place, Vec<u64>>,
    pub(super) ends: Vec<Variables>,
}

impl Undisturbed {
    pub(super) fn of(program: &Program) -> Self {
        let mut ranks = vec![Variables::default(); program.size as usize];
        let mut results = BTreeMap::new();
        let mut place = program.next(Place::Join);
        while place != Place::End {
            if let Some(op) = program.op(place) {
                let inputs: Vec<_> =
                    (0..).zip(&ranks).map(|(rank, variables)| Some(variables.input(rank, op))).collect();
                let result = op.result(&inputs).unwrap();
                let has_loaded = matches!(place, Place::Call { .. });
                ranks.iter_mut().for_each(|variables| variables.learn(&result, has_loaded));
                results.insert(place, result);
            }
            if let Place::Checkpoint { version } = place {
                let ending = program.versions[version as usize].1;
                for (rank, variables) in (0..).zip(&mut ranks) {
                    variables.improve(rank, ending);
                    variables.begin_version();
                }
            }
            place = program.next(place);
        }
        Self { results, ends: ranks }
    }
}
