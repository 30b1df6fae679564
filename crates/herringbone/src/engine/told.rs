//! What a reducer is told by workers, and remembers: it plans nothing by itself.

use super::{plans::Plans, settings::Settings};
use crate::{
    Error, Result,
    core::{
        algorithm::Algorithm,
        codec::Codec,
        collective::Collective,
        element::{DType, ReduceOp},
        prepare::Call,
        session::{
            Basis,
            fence::{Check, REMEMBERED},
        },
        wire::{Fingerprint, Header},
    },
    transport::Broken,
};
use std::collections::{BTreeMap, VecDeque};

/// How many plans a reducer remembers for a generation of a group. Few algorithms go through reducers.
const PLANS: usize = 64;

/// What workers have told a reducer of a generation of a group.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) generation: u32,
    history: VecDeque<(u64, u64, Fingerprint)>,
    /// By digest: the algorithm of a plan, or why it is not taken.
    plans: BTreeMap<u64, Result<Algorithm, String>>,
}

impl Told {
    /// Nothing, of a generation that begins.
    pub(crate) fn of(generation: u32) -> Self {
        Self { generation, ..Self::default() }
    }

    /// How a frame's rolling hash compares with what other workers have told.
    pub(crate) fn check(&self, header: &Header) -> Check {
        match self.history.iter().find(|(sequence, ..)| *sequence == header.sequence) {
            Some((_, hash, _)) if *hash == header.hash => Check::Match,
            Some(_) => Check::Differs,
            None => Check::NotYet,
        }
    }

    /// Remembers what the first worker to come says of an operation, and of those that run.
    pub(crate) fn note(&mut self, header: &Header, told: Fingerprint, runs: impl Fn(u64) -> bool) {
        if self.history.len() >= REMEMBERED {
            // Few run at once, so what is over is found soon.
            let over = self.history.iter().position(|(sequence, ..)| !runs(*sequence));
            over.and_then(|over| self.history.remove(over));
        }
        self.history.push_back((header.sequence, header.hash, told));
    }

    /// A worker says what a plan was made from. It is taken if the same is made of it here.
    pub(crate) fn plan(
        &mut self,
        worker: &str,
        theirs: &Basis,
        plans: &Plans,
        settings: &Settings,
    ) -> Result<(), Broken> {
        let digest = theirs.digest();
        if self.plans.contains_key(&digest) {
            return Ok(());
        }
        if self.plans.len() >= PLANS {
            return Err(Broken::Protocol("more plans than a reducer remembers"));
        }
        self.plans.insert(digest, compared(worker, theirs, plans, settings));
        Ok(())
    }

    /// Why operations of a plan do not run here, if they do not.
    pub(crate) fn refused(&self, plan: u64) -> Option<&str> {
        self.plans.get(&plan)?.as_ref().err().map(String::as_str)
    }

    /// The algorithm of a plan.
    pub(crate) fn algorithm(&self, plan: u64) -> Result<Algorithm> {
        let told = self.plans.get(&plan).and_then(|told| told.as_ref().ok());
        told.cloned().ok_or_else(|| Error::unsupported("an operation of a plan that was not told"))
    }
}

/// The algorithm that a worker's plan takes, or in what it differs from the plan that would be made here.
fn compared(worker: &str, theirs: &Basis, plans: &Plans, settings: &Settings) -> Result<Algorithm, String> {
    let algorithm: Algorithm = theirs
        .algorithm
        .parse()
        .map_err(|error| format!("it does not know the plan of {worker}: {error}"))?;
    let difference = plans.basis(settings, theirs.collective, &algorithm).difference(theirs);
    if difference.is_empty() {
        return Ok(algorithm);
    }
    let each = difference
        .iter()
        .map(|one| format!("{} {} there and {} at {worker}", one.name, one.ours, one.theirs));
    let each = each.collect::<Vec<_>>().join(", ");
    Err(format!("it plans otherwise than {worker}: {each}; start the same release everywhere"))
}

/// What a worker's fingerprint says was called.
pub(crate) fn call_of(told: &Fingerprint) -> Result<Call> {
    let unknown = || Error::unsupported(format!("an operation that this version does not know: {told}"));
    let dtype = DType::from_code(told.dtype).ok_or_else(unknown)?;
    Ok(Call {
        collective: Collective::from_code(told.collective, told.root).ok_or_else(unknown)?,
        dtype,
        op: ReduceOp::from_code(told.op).filter(|op| op.takes(dtype)).ok_or_else(unknown)?,
        count: addressable(told.count, dtype).ok_or_else(unknown)?,
        codec: Codec::from_code(told.codec).ok_or_else(unknown)?,
    })
}

/// A count of elements that memory can hold. The mark of parts that may differ is none: such operations have no reducers.
fn addressable(count: u64, dtype: DType) -> Option<usize> {
    let count = usize::try_from(count).ok()?;
    let widest = dtype.bytes().max(size_of::<f64>());
    count.checked_mul(widest).filter(|bytes| isize::try_from(*bytes).is_ok()).map(|_| count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_no_memory_holds_is_refused() {
        let told = |count| Fingerprint {
            sequence: 0,
            collective: Collective::AllReduce.code(),
            dtype: DType::F32.code(),
            op: ReduceOp::Sum.code(),
            order: 0,
            root: 0,
            count,
            plan: 0,
            priority: 0,
            mark: 0,
            codec: Codec::Plain.code(),
        };
        assert_eq!(call_of(&told(1 << 40)).unwrap().count, 1 << 40);
        for count in [1 << 60, i64::MAX as u64, u64::MAX - 1, Fingerprint::UNEVEN] {
            assert!(call_of(&told(count)).is_err(), "{count}");
        }
    }
}
