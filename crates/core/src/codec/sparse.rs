//! Codecs that leave elements out.

use super::format::{BLOCK, CodedError, Parameter, Put};
use alloc::vec::Vec;

/// How many of so many elements are kept: their share, rounded up.
#[inline(always)]
pub(super) fn kept(share: Parameter, elements: usize) -> usize {
    // Exact: a block has few elements, so an f64 has room for the product with an f32.
    let kept = f64::from(share.value()) * elements as f64;
    let whole = kept as usize;
    (whole + usize::from((whole as f64) < kept)).clamp(1, elements)
}

/// The indices that a block begins with.
pub(super) fn indices(block: &[u8], count: usize) -> impl Iterator<Item = u16> {
    block.as_chunks::<2>().0.iter().take(count).map(|bytes| u16::from_le_bytes(*bytes))
}

/// Refuses indices that do not ascend or are not below `elements`.
#[inline(always)]
pub(super) fn check(indices: impl Iterator<Item = u16>, elements: usize) -> Result<(), CodedError> {
    let mut next = 0;
    for index in indices.map(usize::from) {
        if index < next || index >= elements {
            return Err(CodedError::Index);
        }
        next = index + 1;
    }
    Ok(())
}

/// The indices of the largest, ascending, then their values. Of equal ones the first are kept; a NaN is larger than all.
#[inline(always)]
pub(super) fn top(share: Parameter, values: &[f32], coded: &mut Vec<u8>) {
    let count = values.len();
    let kept = if count == 0 { 0 } else { kept(share, count) };
    let mut keys = [0u64; BLOCK];
    let keys = &mut keys[..count];
    for ((key, value), index) in keys.iter_mut().zip(values).zip(0u64..) {
        *key = u64::from(value.to_bits() & 0x7fff_ffff) << 16 | (0xffff - index);
    }
    if kept < count {
        keys.select_nth_unstable_by(kept, |one, other| other.cmp(one));
    }
    let mut indices = [0u16; BLOCK];
    let indices = &mut indices[..kept];
    for (index, key) in indices.iter_mut().zip(&*keys) {
        *index = 0xffff - (*key as u16);
    }
    indices.sort_unstable();
    coded.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
    coded.extend(indices.iter().flat_map(|index| values[usize::from(*index)].to_le_bytes()));
}

/// What [`top`] wrote, or [`exact`](super::exact) of what is not 0. Elements that were left out are not touched.
#[inline(always)]
pub(super) fn from_top(block: &[u8], values: &mut [f32], put: impl Put) {
    let (kept, _) = block.as_chunks::<6>();
    let (indices, numbers) = block.split_at(2 * kept.len());
    for (index, number) in indices.as_chunks::<2>().0.iter().zip(numbers.as_chunks::<4>().0) {
        put(&mut values[usize::from(u16::from_le_bytes(*index))], f32::from_le_bytes(*number));
    }
}

/// The seed, then the values at the places that it draws.
pub(super) fn drawn(share: Parameter, seed: u64, values: &[f32], coded: &mut Vec<u8>) {
    coded.extend(seed.to_le_bytes());
    let kept = if values.is_empty() { 0 } else { kept(share, values.len()) };
    let mut places = [0u16; BLOCK];
    let places = draw(seed, values.len(), kept, &mut places);
    coded.extend(places.iter().flat_map(|place| values[usize::from(*place)].to_le_bytes()));
}

/// What [`drawn`] wrote. Elements that were left out are not touched.
pub(super) fn from_drawn(block: &[u8], values: &mut [f32], put: impl Put) {
    let Some((seed, numbers)) = block.split_first_chunk() else { return };
    let numbers = numbers.as_chunks::<4>().0;
    let mut places = [0u16; BLOCK];
    let places = draw(u64::from_le_bytes(*seed), values.len(), numbers.len(), &mut places);
    for (place, number) in places.iter().zip(numbers) {
        put(&mut values[usize::from(*place)], f32::from_le_bytes(*number));
    }
}

/// Draws `kept` of `count` places by SplitMix64 (Steele, Lea and Flood, 2014), ascending.
fn draw(seed: u64, count: usize, kept: usize, places: &mut [u16; BLOCK]) -> &[u16] {
    let places = &mut places[..count];
    for (place, index) in places.iter_mut().zip(0..) {
        *place = index;
    }
    let mut state = seed;
    for at in 0..kept {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let left = (count - at) as u64;
        places.swap(at, at + ((word ^ (word >> 31)) % left) as usize);
    }
    let drawn = &mut places[..kept];
    drawn.sort_unstable();
    drawn
}

/// The top bit of an index: the element is negative.
const NEGATIVE: u16 = 1 << 15;

/// How many there are, then the index of each with its sign.
#[inline(always)]
pub(super) fn above(threshold: f32, values: &[f32], coded: &mut Vec<u8>) {
    // Each index is written, and the next one over it unless it counts: a branch would be mispredicted often.
    let mut indices = [[0; 2]; BLOCK];
    let mut count = 0;
    for (value, index) in values.iter().zip(0u16..) {
        let sign = if *value < 0.0 { NEGATIVE } else { 0 };
        indices[count] = (index | sign).to_le_bytes();
        count += usize::from(value.abs() > threshold);
    }
    coded.extend((count as u16).to_le_bytes());
    coded.extend_from_slice(indices[..count].as_flattened());
}

/// How long a block is, by its first two bytes.
#[inline(always)]
pub(super) fn measure_above(count: Option<&[u8]>, elements: usize) -> Result<usize, CodedError> {
    let count = count.and_then(|bytes| bytes.first_chunk()).ok_or(CodedError::Short)?;
    let count = usize::from(u16::from_le_bytes(*count));
    if count > elements { Err(CodedError::Code) } else { Ok(2 + 2 * count) }
}

#[inline(always)]
pub(super) fn check_above(block: &[u8], elements: usize) -> Result<(), CodedError> {
    let count = block.len() / 2 - 1;
    check(indices(&block[2..], count).map(|index| index & !NEGATIVE), elements)
}

/// What [`above`] wrote. Elements that were left out are not touched. A block of no elements has no bytes.
#[inline(always)]
pub(super) fn from_above(threshold: f32, block: &[u8], values: &mut [f32], put: impl Put) {
    for bytes in block.get(2..).unwrap_or_default().as_chunks::<2>().0 {
        let index = u16::from_le_bytes(*bytes);
        let value = f32::from_bits(threshold.to_bits() | u32::from(index & NEGATIVE) << 16);
        put(&mut values[usize::from(index & !NEGATIVE)], value);
    }
}
