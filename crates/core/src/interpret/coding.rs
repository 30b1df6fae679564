//! Steps that encode and decode, for the interpreter: block by block, as [`codec`](crate::codec) says.

use super::{InterpretError, Task, run};
use crate::{
    codec::{BLOCK, Codec, seed_of},
    collective::Collective,
    element::{DType, ReduceOp},
    verify::Verified,
};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// How messages are coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coding {
    /// By what.
    pub codec: Codec,
    /// How many operations went before this one on the same tensor.
    pub steps: u64,
}

/// What is left of what a worker has encoded: before this operation and, as far as it has come, after it.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) before: Vec<f32>,
    pub(super) after: Vec<f32>,
}

/// Runs an all-reduce of f32 whose schedule has coded messages. `left` has, for each worker, what was left of every element
/// before, and what is left after it; nothing, if nothing is fed back.
///
/// # Errors
/// If the inputs do not fit, or what is left has another number of elements.
pub fn interpret_coded(
    schedule: &Verified,
    op: ReduceOp,
    count: usize,
    coding: Coding,
    inputs: &[&[u8]],
    left: &mut [Vec<f32>],
) -> Result<Vec<Vec<u8>>, InterpretError> {
    debug_assert_eq!(schedule.collective(), Collective::AllReduce);
    if let Some(rank) = left.iter().position(|left| left.len() != count) {
        let (given, needed) = (left[rank].len() * 4, count * 4);
        return Err(InterpretError::InputLength { rank: rank as u32, given, needed });
    }
    let task = Task { schedule, dtype: DType::F32, op, count, parts: &[], coding };
    let kept = left.iter().map(|left| Left { before: left.clone(), after: left.clone() }).collect();
    let (outputs, kept) = run(&task, inputs, kept)?;
    for (left, kept) in left.iter_mut().zip(kept) {
        *left = kept.after;
    }
    Ok(outputs)
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(super) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Encodes the elements `range` of a tensor, of which something may be left.
pub(super) fn encode(coding: Coding, range: Range<usize>, values: &[f32], left: &mut Left) -> Vec<u8> {
    let mut coded = Vec::new();
    for (block, values) in values.chunks(BLOCK).enumerate() {
        let at = range.start + block * BLOCK;
        let elements = at..at + values.len();
        let seed = seed_of(coding.steps, at / BLOCK);
        match left.after.get_mut(elements.clone()) {
            Some(after) if !left.before.is_empty() => {
                coding.codec.encode_with(seed, values, &left.before[elements], after, &mut coded);
            }
            _ => coding.codec.encode(seed, values, &mut coded),
        }
    }
    coded
}

/// Decodes a message of so many elements.
pub(super) fn decode(codec: Codec, mut coded: &[u8], elements: usize) -> Vec<f32> {
    let mut values = vec![0.0; elements];
    for block in values.chunks_mut(BLOCK) {
        let bytes = codec.decode(coded, block).expect("a verified schedule decodes what it has encoded");
        coded = &coded[bytes..];
    }
    assert!(coded.is_empty(), "all of a message is decoded");
    values
}
