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
            palette.write(values, coded);
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
            let numbers = Numbers::new(&body[1 + 4 * values..], values);
            let known = |number: usize| number < values;
            if !values.is_power_of_two() && !numbers.take(elements).all(known) {
                return Err(CodedError::Code);
            }
            Ok(1 + body.len())
        }
        _ => Err(CodedError::Code),
    }
}

/// Decodes a block that was measured.
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
            let palette = palette.as_chunks::<4>().0;
            for (value, number) in values.iter_mut().zip(Numbers::new(numbers, kinds)) {
                *value = f32::from_le_bytes(palette[number]);
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

/// The different values of a block, ascending by their bits, and where they are found.
struct Palette {
    values: Vec<u32>,
    /// By hash: a value and one more than its number; 0 where there is none.
    table: [(u32, u16); TABLE],
}

impl Palette {
    /// The palette of a block, unless it has more values than a palette takes.
    fn of(values: &[f32]) -> Option<Self> {
        let mut palette = Self { values: Vec::new(), table: [(0, 0); TABLE] };
        for value in values {
            let bits = value.to_bits();
            let place = palette.place(bits);
            if palette.table[place].1 == 0 {
                if palette.values.len() == MOST_VALUES {
                    return None;
                }
                palette.table[place] = (bits, 1);
                palette.values.push(bits);
            }
        }
        palette.values.sort_unstable();
        for (number, bits) in (1..).zip(palette.values.clone()) {
            let place = palette.place(bits);
            palette.table[place].1 = number;
        }
        Some(palette)
    }

    /// Where a value is in the table, or would be.
    fn place(&self, bits: u32) -> usize {
        let mut place = (bits.wrapping_mul(0x9e37_79b1) >> 22) as usize % TABLE;
        while self.table[place].1 != 0 && self.table[place].0 != bits {
            place = (place + 1) % TABLE;
        }
        place
    }

    fn bytes(&self, elements: usize) -> usize {
        palette_bytes(self.values.len(), elements)
    }

    /// How many values there are less one, the values, and the number of each element's, packed from the lowest bit up.
    fn write(&self, values: &[f32], coded: &mut Vec<u8>) {
        coded.push((self.values.len() - 1) as u8);
        coded.extend(self.values.iter().flat_map(|bits| bits.to_le_bytes()));
        let width = width(self.values.len());
        let (mut word, mut held) = (0u32, 0);
        for value in values {
            let number = self.table[self.place(value.to_bits())].1 - 1;
            word |= u32::from(number) << held;
            held += width;
            while held >= 8 {
                coded.push(word as u8);
                word >>= 8;
                held -= 8;
            }
        }
        if held > 0 {
            coded.push(word as u8);
        }
    }
}

/// Reads packed numbers; 0 when the bytes are over.
struct Numbers<'a> {
    bytes: core::slice::Iter<'a, u8>,
    width: u32,
    word: u32,
    held: u32,
}

impl<'a> Numbers<'a> {
    fn new(bytes: &'a [u8], values: usize) -> Self {
        Self { bytes: bytes.iter(), width: width(values), word: 0, held: 0 }
    }
}

impl Iterator for Numbers<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.held < self.width {
            self.word |= u32::from(*self.bytes.next().unwrap_or(&0)) << self.held;
            self.held += 8;
        }
        let number = self.word & ((1 << self.width) - 1);
        self.word >>= self.width;
        self.held -= self.width;
        Some(number as usize)
    }
}

const _: () = assert!(BLOCK <= 1 << 15, "an index and a sign fit 16 bits, and so does a number of elements");
