//! All bits in as few bytes as a glance finds: for results of few values, or with few elements that are not 0.

use super::{
    casts,
    format::{BLOCK, CodedError, tag},
    sparse,
};
use alloc::vec::Vec;

/// The most values of a palette.
pub(super) const MOST_VALUES: usize = 256;

/// The places of a table that finds values: four for each.
const TABLE: usize = 4 * MOST_VALUES;

/// Writes the shortest of the three ways; of equal ones the first of plain, sparse and palette.
#[inline(always)]
pub(super) fn encode(values: &[f32], coded: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let nonzero = values.iter().filter(|value| value.to_bits() != 0).count();
    let plain = 4 * values.len();
    let sparse = 2 + 6 * nonzero;
    let least = plain.min(sparse);
    let palette = Palette::of(values).filter(|palette| palette.bytes(values.len()) < least);
    match palette {
        Some(palette) => {
            coded.push(tag::PALETTE);
            palette.write(values.len(), coded);
        }
        None if sparse < plain => {
            coded.push(tag::SPARSE);
            coded.extend((nonzero as u16).to_le_bytes());
            let is_there = |(_, value): &(u16, &f32)| value.to_bits() != 0;
            let there = || (0u16..).zip(values).filter(is_there);
            coded.extend(there().flat_map(|(index, _)| index.to_le_bytes()));
            coded.extend(there().flat_map(|(_, value)| value.to_le_bytes()));
        }
        None => {
            coded.push(tag::PLAIN);
            coded.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
}

/// How long the block is that `coded` starts with, after a check of all that decoding relies on. None is longer than plain.
#[inline(always)]
pub(super) fn measure(coded: &[u8], elements: usize) -> Result<usize, CodedError> {
    let (tag, body) = coded.split_first().ok_or(CodedError::Short)?;
    let whole = |bytes: usize| match bytes > 4 * elements {
        true => Err(CodedError::Code),
        false => body.get(..bytes).ok_or(CodedError::Short),
    };
    match *tag {
        tag::PLAIN => whole(4 * elements).map(|body| 1 + body.len()),
        tag::SPARSE => {
            let count: [u8; 2] = *body.first_chunk().ok_or(CodedError::Short)?;
            let count = usize::from(u16::from_le_bytes(count));
            if count > elements {
                return Err(CodedError::Code);
            }
            let body = whole(2 + 6 * count)?;
            sparse::check(sparse::indices(&body[2..], count), elements)?;
            Ok(1 + body.len())
        }
        tag::PALETTE => {
            let values = usize::from(*body.first().ok_or(CodedError::Short)?) + 1;
            let body = whole(palette_bytes(values, elements))?;
            if !values.is_power_of_two() {
                let mut numbers = [0; BLOCK];
                unpack(&body[1 + 4 * values..], values, &mut numbers[..elements]);
                let largest = numbers.iter().fold(0, |largest: u8, number| largest.max(*number));
                if usize::from(largest) >= values {
                    return Err(CodedError::Code);
                }
            }
            Ok(1 + body.len())
        }
        _ => Err(CodedError::Code),
    }
}

/// Decodes a block that was measured.
#[inline(always)]
pub(super) fn decode(block: &[u8], values: &mut [f32]) {
    let Some((tag, body)) = block.split_first() else { return };
    match *tag {
        tag::SPARSE => {
            values.fill(0.0);
            sparse::from_top(&body[2..], values, |value, decoded| *value = decoded);
        }
        tag::PALETTE => {
            let kinds = usize::from(body[0]) + 1;
            let (palette, numbers) = body[1..].split_at(4 * kinds);
            let mut known = [0.0; MOST_VALUES];
            for (known, bytes) in known.iter_mut().zip(palette.as_chunks::<4>().0) {
                *known = f32::from_le_bytes(*bytes);
            }
            let mut unpacked = [0; BLOCK];
            let unpacked = &mut unpacked[..values.len()];
            unpack(numbers, kinds, unpacked);
            for (value, number) in values.iter_mut().zip(&*unpacked) {
                *value = known[usize::from(*number)];
            }
        }
        _ => casts::from_plain(body, values),
    }
}

/// How many bits number so many values.
fn width(values: usize) -> u32 {
    usize::BITS - (values - 1).leading_zeros()
}

/// The bytes of a palette of so many values and its elements' numbers, without the tag.
pub(super) fn palette_bytes(values: usize, elements: usize) -> usize {
    1 + 4 * values + (elements * width(values) as usize).div_ceil(8)
}

/// The different values of a block, ascending by their bits, and which of them each element has.
struct Palette {
    values: Vec<u32>,
    numbers: [u8; BLOCK],
}

impl Palette {
    /// The palette of a block, unless it has more values than a palette takes.
    #[inline(always)]
    fn of(values: &[f32]) -> Option<Self> {
        // By hash: a value and one more than the number of those that were found before it; 0 where there is none.
        let mut table = [(0u32, 0u16); TABLE];
        let (mut found, mut numbers) = (Vec::new(), [0; BLOCK]);
        for (number, value) in numbers.iter_mut().zip(values) {
            let bits = value.to_bits();
            let mut place = (bits.wrapping_mul(0x9e37_79b1) >> 22) as usize % TABLE;
            while table[place].1 != 0 && table[place].0 != bits {
                place = (place + 1) % TABLE;
            }
            if table[place].1 == 0 {
                if found.len() == MOST_VALUES {
                    return None;
                }
                found.push(bits);
                table[place] = (bits, found.len() as u16);
            }
            *number = (table[place].1 - 1) as u8;
        }
        let mut order: Vec<usize> = (0..found.len()).collect();
        order.sort_unstable_by_key(|at| found[*at]);
        let mut ascending = [0; MOST_VALUES];
        for (number, at) in (0u8..=255).zip(&order) {
            ascending[*at] = number;
        }
        numbers.iter_mut().for_each(|number| *number = ascending[usize::from(*number)]);
        Some(Self { values: order.iter().map(|at| found[*at]).collect(), numbers })
    }

    fn bytes(&self, elements: usize) -> usize {
        palette_bytes(self.values.len(), elements)
    }

    /// How many values there are less one, the values, and the number of each element's, packed from the lowest bit up.
    #[inline(always)]
    fn write(&self, elements: usize, coded: &mut Vec<u8>) {
        coded.push((self.values.len() - 1) as u8);
        coded.extend(self.values.iter().flat_map(|bits| bits.to_le_bytes()));
        let width = width(self.values.len()) as usize;
        let start = coded.len();
        coded.resize(start + (elements * width).div_ceil(8), 0);
        // Eight numbers fill as many bytes as one has bits.
        let packed = coded[start..].chunks_mut(width.max(1));
        for (bytes, numbers) in packed.zip(self.numbers[..elements].chunks(8)) {
            let word = numbers.iter().rev().fold(0u64, |word, number| word << width | u64::from(*number));
            bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
        }
    }
}

/// Reads packed numbers, of which `kinds` are told apart; 0 where the bytes are over.
#[inline(always)]
fn unpack(bytes: &[u8], kinds: usize, numbers: &mut [u8]) {
    match width(kinds) {
        1 => unpack_by::<1>(bytes, numbers),
        2 => unpack_by::<2>(bytes, numbers),
        3 => unpack_by::<3>(bytes, numbers),
        4 => unpack_by::<4>(bytes, numbers),
        5 => unpack_by::<5>(bytes, numbers),
        6 => unpack_by::<6>(bytes, numbers),
        7 => unpack_by::<7>(bytes, numbers),
        8 => unpack_by::<8>(bytes, numbers),
        _ => numbers.fill(0),
    }
}

/// Reads numbers of so many bits.
#[inline(always)]
fn unpack_by<const WIDTH: usize>(bytes: &[u8], numbers: &mut [u8]) {
    let (whole, rest) = numbers.as_chunks_mut::<8>();
    let (words, last) = bytes.as_chunks::<WIDTH>();
    for (numbers, bytes) in whole.iter_mut().zip(words) {
        let mut word = [0; 8];
        word[..WIDTH].copy_from_slice(bytes);
        *numbers = apart::<WIDTH>(u64::from_le_bytes(word));
    }
    let mut word = [0; 8];
    // The rest has fewer than eight numbers, so fewer bytes than a number has bits, or as many.
    let last = words.get(whole.len()).map_or(last, |word| &word[..]);
    word[..last.len()].copy_from_slice(last);
    rest.copy_from_slice(&apart::<WIDTH>(u64::from_le_bytes(word))[..rest.len()]);
}

/// The eight numbers of a word.
#[inline(always)]
fn apart<const WIDTH: usize>(word: u64) -> [u8; 8] {
    let mask = (1u64 << WIDTH) - 1;
    core::array::from_fn(|at| (word >> (at * WIDTH) & mask) as u8)
}

const _: () = assert!(BLOCK <= 1 << 15, "an index and a sign fit 16 bits, and so does a number of elements");
