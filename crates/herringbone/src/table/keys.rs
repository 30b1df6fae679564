//! Turns a program's keys and values into the contents of messages.

use crate::{
    core::element::{DType, Element, Number},
    sys::span::Span,
};
use half::bf16;
use std::cmp::Ordering;

/// Rows by their keys, each key once, ascending; row after row.
pub(super) struct Distinct {
    pub(super) keys: Vec<u64>,
    pub(super) rows: Vec<u8>,
}

/// Adds the rows of a key up that is there several times, in the order in which they stand.
pub(super) fn add_up(dtype: DType, keys: &[u64], rows: &[u8], row_bytes: usize) -> Distinct {
    match dtype {
        DType::F64 => add_up_elements::<f64>(keys, rows, row_bytes),
        DType::Bf16 => add_up_elements::<bf16>(keys, rows, row_bytes),
        _ => add_up_elements::<f32>(keys, rows, row_bytes),
    }
}

fn add_up_elements<E: Element>(keys: &[u64], rows: &[u8], row_bytes: usize) -> Distinct {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    // Equal keys stay in their order.
    order.sort_by_key(|at| keys[*at]);
    let mut distinct = Distinct { keys: Vec::new(), rows: Vec::with_capacity(rows.len()) };
    for at in order {
        let row = &rows[at * row_bytes..(at + 1) * row_bytes];
        if distinct.keys.last() != Some(&keys[at]) {
            distinct.keys.push(keys[at]);
            distinct.rows.extend_from_slice(row);
            continue;
        }
        let begin = distinct.rows.len() - row_bytes;
        let sums = distinct.rows[begin..].chunks_exact_mut(size_of::<E>());
        for (sum, value) in sums.zip(row.chunks_exact(size_of::<E>())) {
            E::round(E::load(sum).lift().plus(E::load(value).lift())).store(sum);
        }
    }
    distinct
}

/// How many bytes are looked at at once.
const BLOCK: usize = 4096;

/// The largest magnitude that int8 scales: what comes back of a larger one may be infinite.
pub(super) const SCALED_MOST: f32 = f32::MAX / 128.0 * 127.0;

/// Where the first value of f32 begins that int8 cannot scale.
pub(super) fn first_beyond(values: Span<'_>) -> Option<usize> {
    // A NaN is not below anything.
    find(values, |bytes| {
        f32::from_le_bytes(bytes).abs().partial_cmp(&SCALED_MOST).is_none_or(Ordering::is_gt)
    })
}

fn find<const N: usize>(values: Span<'_>, is_meant: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let mut block = [0; BLOCK];
    (0..values.len()).step_by(BLOCK).find_map(|from| {
        let block = &mut block[..BLOCK.min(values.len() - from)];
        values.slice(from..from + block.len()).read(block);
        let elements = block.as_chunks().0;
        // Without a way out in the middle it is done with many elements at once.
        let has_one = elements.iter().fold(false, |found, bytes| found | is_meant(*bytes));
        let at = if has_one { elements.iter().position(|bytes| is_meant(*bytes)) } else { None };
        at.map(|at| from + at * N)
    })
}

/// Where the first NaN begins.
pub(super) fn first_nan(dtype: DType, values: Span<'_>) -> Option<usize> {
    match dtype {
        DType::F64 => find(values, |bytes| f64::from_le_bytes(bytes).is_nan()),
        DType::Bf16 => find(values, |bytes| bf16::from_le_bytes(bytes).is_nan()),
        _ => find(values, |bytes| f32::from_le_bytes(bytes).is_nan()),
    }
}
