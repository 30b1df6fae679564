//! A reducer's use of the workers' messages: it plans nothing by itself.

use super::{plans::Plans, settings::Settings};
use crate::{
    Error, Result,
    core::{
        algorithm::Algorithm,
        codec::Codec,
        collective::Collective,
        element::{DType, ReduceOp},
        prepare::Call,
        session::Basis,
        wire::Fingerprint,
    },
};

/// The algorithm that a worker's plan takes, or in what it differs from the plan that would be made here.
pub(super) fn compared(
    worker: &str,
    theirs: &Basis,
    plans: &Plans,
    settings: &Settings,
) -> Result<Algorithm, String> {
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
pub(crate) fn call_of(sent: &Fingerprint) -> Result<Call> {
    let unknown = || Error::unsupported(format!("an operation that this version does not know: {sent}"));
    let sent = &sent.runs();
    let dtype = DType::from_code(sent.dtype).ok_or_else(unknown)?;
    Ok(Call {
        collective: Collective::from_code(sent.collective, sent.root).ok_or_else(unknown)?,
        dtype,
        op: ReduceOp::from_code(sent.op).filter(|op| op.takes(dtype)).ok_or_else(unknown)?,
        count: addressable(sent.count, dtype).ok_or_else(unknown)?,
        codec: Codec::from_code(sent.codec).ok_or_else(unknown)?,
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
        let sent = |count| Fingerprint {
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
        assert_eq!(call_of(&sent(1 << 40)).unwrap().count, 1 << 40);
        for count in [1 << 60, i64::MAX as u64, u64::MAX - 1, Fingerprint::UNEVEN] {
            assert!(call_of(&sent(count)).is_err(), "{count}");
        }
    }
}
