//! A reducer: what it has got of each operation.

use super::{
    End, Job, Parcel,
    worker::{Frame, What},
};
use herringbone_core::group::Rank;
use std::collections::{BTreeMap, BTreeSet};

/// What a reducer has of an operation.
#[derive(Debug, Default)]
struct Sum {
    inputs: BTreeSet<Rank>,
    holders: BTreeSet<Rank>,
}

#[derive(Debug)]
pub(super) struct Reducer {
    at: usize,
    pub(super) runs: bool,
    /// By group, generation, number and rolling hash: what differs never meets.
    sums: BTreeMap<(u32, u32, u64, u64), Sum>,
}

impl Reducer {
    pub(super) fn new(at: usize) -> Self {
        Self { at, runs: true, sums: BTreeMap::new() }
    }

    pub(super) fn data(&mut self, parcel: Parcel, job: &mut Job) {
        let Parcel::Data(frame) = parcel else { return };
        let all = job.scenario.workers as usize;
        let issued = frame.issued;
        let key = (frame.group, issued.generation, issued.fingerprint.sequence, issued.hash);
        let sum = self.sums.entry(key).or_default();
        let what = match frame.what {
            What::Input if sum.inputs.insert(frame.from) && sum.inputs.len() == all => What::Result,
            What::Holds if sum.holders.insert(frame.from) && sum.holders.len() == all => What::AllHold,
            _ => return,
        };
        for rank in 0..job.scenario.workers {
            let parcel = Parcel::Data(Frame { what, ..frame });
            job.pipes.send(End::Reducer(self.at), End::Engine(rank), parcel);
        }
    }
}
