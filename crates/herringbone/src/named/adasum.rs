//! Adaptive summation: two tensors are added if they are orthogonal, and averaged if they are parallel.

use super::{NamedFailure, scale::open};
use crate::{Communicator, DType, MessageRequest, Region, core::element::Element, sys::span::Span};

/// The tag of its messages.
const TAG: i64 = 1;
/// How many bytes are taken at a time. A multiple of every element's length.
const BLOCK: usize = 8 << 10;

/// Folds a tensor over all ranks, a power of two of them, in place: in round i with the rank whose number differs in bit i.
/// Both compute the same, so all ranks end with the same bits. `other` has room for a second tensor.
pub(super) fn all_reduce(
    group: &Communicator,
    dtype: DType,
    tensor: &Region,
    other: &Region,
) -> Result<(), NamedFailure> {
    let (rank, size) = (group.rank(), group.size());
    let mut distance = 1;
    while distance < size {
        let partner = rank ^ distance;
        let message = |region: &Region| {
            MessageRequest::new(dtype, region.len() / dtype.bytes(), region.clone()).tag(TAG)
        };
        let receive = group.submit_recv(partner, message(other))?;
        let send = group.submit_send(partner, message(tensor))?;
        send.wait()?;
        receive.wait()?;
        let (own, theirs) = (open(tensor)?, open(other)?);
        let is_lower = rank & distance == 0;
        match dtype {
            DType::F64 => combine::<f64>(own.span(), theirs.span(), is_lower, |x| x, |x| x),
            DType::F32 => combine::<f32>(own.span(), theirs.span(), is_lower, f64::from, |x| x as f32),
            DType::F16 => {
                let (wide, narrow) = (half::f16::to_f64, |x| half::f16::round(x as f32));
                combine::<half::f16>(own.span(), theirs.span(), is_lower, wide, narrow);
            }
            DType::Bf16 => {
                let (wide, narrow) = (half::bf16::to_f64, |x| half::bf16::round(x as f32));
                combine::<half::bf16>(own.span(), theirs.span(), is_lower, wide, narrow);
            }
            _ => return Err(NamedFailure::Text("Adasum takes floating-point tensors".to_owned())),
        }
        distance *= 2;
    }
    Ok(())
}

/// Replaces `own` by what it and `theirs` are together. The lower rank's tensor is the first one on both ranks.
fn combine<E: Element>(
    own: Span<'_>,
    theirs: Span<'_>,
    is_lower: bool,
    wide: impl Fn(E) -> f64,
    narrow: impl Fn(f64) -> E,
) {
    let (first, second) = if is_lower { (own, theirs) } else { (theirs, own) };
    let (mut dot, mut norm_first, mut norm_second) = (0.0, 0.0, 0.0);
    each_pair::<E>(first, second, |_, one, two| {
        let (one, two) = (wide(one), wide(two));
        dot += one * two;
        norm_first += one * one;
        norm_second += two * two;
    });
    let least = f64::MIN_POSITIVE.sqrt();
    let factor = |norm: f64| if norm < least { 1.0 } else { 1.0 - dot / norm * 0.5 };
    let (of_first, of_second) = (factor(norm_first), factor(norm_second));
    let mut element = [0u8; 8];
    each_pair::<E>(first, second, |place, one, two| {
        let element = &mut element[..size_of::<E>()];
        narrow(of_first * wide(one) + of_second * wide(two)).store(element);
        own.slice(place..place + size_of::<E>()).write(element);
    });
}

/// Calls `f` with where each pair of elements is, and with both. `f` may write there.
fn each_pair<E: Element>(first: Span<'_>, second: Span<'_>, mut f: impl FnMut(usize, E, E)) {
    let (mut one, mut two) = ([0u8; BLOCK], [0u8; BLOCK]);
    let mut at = 0;
    while at < first.len() {
        let bytes = BLOCK.min(first.len() - at);
        first.slice(at..at + bytes).read(&mut one[..bytes]);
        second.slice(at..at + bytes).read(&mut two[..bytes]);
        let pairs = one[..bytes].chunks_exact(size_of::<E>()).zip(two[..bytes].chunks_exact(size_of::<E>()));
        for (number, (one, two)) in pairs.enumerate() {
            f(at + number * size_of::<E>(), E::load(one), E::load(two));
        }
        at += bytes;
    }
}
