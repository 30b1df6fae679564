//! Steps that encode and decode, for the interpreter: block by block, as in [`codec`](crate::codec).

use crate::codec::{BLOCK, Codec, seed_of};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// How messages are coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coding {
    /// The codec.
    pub codec: Codec,
    /// How many operations went before this one on the same tensor.
    pub steps: u64,
}

/// What is left of what a worker has encoded: before this operation and, as far as it has come, after it.
#[derive(Debug, Default)]
pub(super) struct CodingLeft {
    pub(super) before: Vec<f32>,
    pub(super) after: Vec<f32>,
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(super) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Encodes the elements `range` of a tensor, of which something may be left.
pub(super) fn encode(coding: Coding, range: Range<usize>, values: &[f32], left: &mut CodingLeft) -> Vec<u8> {
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
