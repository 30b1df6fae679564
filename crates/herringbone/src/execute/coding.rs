//! Steps that encode and decode, over memory that other processes can write: block by block, through copies.
//!
//! A coded message lies in its slot behind a prefix with its length, because frames of local ranks' messages stay with
//! their senders. Every message is checked as it is read, whichever rank wrote it.

use crate::{
    core::{
        codec::{BLOCK, Codec, CodedError, PREFIX_BYTES},
        prepare::Call,
        schedule::Form,
    },
    feedback::Fed,
    sys::{
        codec as fast,
        kernel::{self, Source, Target},
        span::Span,
    },
};
use std::ops::Range;

const ELEMENT: usize = size_of::<f32>();

/// A source of a fold.
pub(super) struct CodedPart<'a> {
    pub(super) span: Span<'a>,
    pub(super) form: Form,
    pub(super) merges: u8,
}

/// How long a message is, as its prefix says, with that.
pub(super) fn said(prefix: Span<'_>) -> usize {
    let mut bytes = [0; PREFIX_BYTES];
    prefix.read(&mut bytes);
    (u32::from_le_bytes(bytes) as usize).saturating_add(PREFIX_BYTES)
}

/// How long the message in a slot is, its prefix included; no longer than the slot.
pub(super) fn length(slot: Span<'_>) -> usize {
    said(slot.slice(0..PREFIX_BYTES)).min(slot.len())
}

/// A copy of the message in a slot, without its prefix.
fn message(slot: Span<'_>) -> Vec<u8> {
    slot.slice(PREFIX_BYTES..length(slot)).to_vec()
}

/// Whether the message in a slot, of which `received` bytes came, is one of the codec's.
pub(super) fn check(
    codec: Codec,
    slot: Span<'_>,
    received: usize,
    elements: usize,
) -> Result<(), CodedError> {
    if said(slot.slice(0..PREFIX_BYTES)) != received {
        return Err(CodedError::Prefix);
    }
    codec.check(&message(slot), elements)
}

/// Encodes f32 into a slot. `range` are the elements' places in their buffer.
pub(crate) fn encode(codec: Codec, plain: Span<'_>, range: Range<usize>, slot: Span<'_>, fed: Option<&Fed>) {
    let mut left = fed.map(|fed| (fed.lock(), fed.first));
    let (mut bytes, mut values) = ([0; ELEMENT * BLOCK], [0.0; BLOCK]);
    let mut coded = Vec::with_capacity(slot.len());
    coded.extend([0; PREFIX_BYTES]);
    for from in range.clone().step_by(BLOCK) {
        let elements = from..range.end.min(from + BLOCK);
        let at = from - range.start;
        let (bytes, values) = (&mut bytes[..ELEMENT * elements.len()], &mut values[..elements.len()]);
        plain.slice(ELEMENT * at..ELEMENT * (at + elements.len())).read(bytes);
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        match &mut left {
            Some((left, first)) => {
                left.encode(codec, *first + elements.start..*first + elements.end, values, &mut coded);
            }
            None => fast::encode(codec, 0, values, &mut coded),
        }
    }
    let prefix = (coded.len() - PREFIX_BYTES) as u32;
    coded[..PREFIX_BYTES].copy_from_slice(&prefix.to_le_bytes());
    slot.slice(0..coded.len()).write(&coded);
}

/// Decodes the message in a slot.
pub(crate) fn decode(codec: Codec, slot: Span<'_>, plain: Span<'_>) {
    let coded = message(slot);
    let (mut reader, mut bytes) = (Reader { codec, coded: &coded }, [0; ELEMENT * BLOCK]);
    for at in (0..plain.len()).step_by(bytes.len()) {
        let into = plain.slice(at..plain.len().min(at + bytes.len()));
        let bytes = &mut bytes[..into.len()];
        reader.next(bytes);
        into.write(bytes);
    }
}

/// Folds parts, coded ones as they are decoded.
pub(super) fn fold(
    &Call { codec, dtype, op, .. }: &Call,
    into: Span<'_>,
    form: Form,
    parts: &[CodedPart<'_>],
    finish: Option<u32>,
) {
    let coded = |part: &CodedPart<'_>| if part.form == Form::Coded { message(part.span) } else { Vec::new() };
    let messages: Vec<Vec<u8>> = parts.iter().map(coded).collect();
    let mut readers: Vec<_> = messages.iter().map(|coded| Reader { codec, coded }).collect();
    let mut blocks = vec![0; parts.len() * ELEMENT * BLOCK];
    for at in (0..into.len()).step_by(ELEMENT * BLOCK) {
        let range = at..into.len().min(at + ELEMENT * BLOCK);
        let sources = parts.iter().zip(&mut readers).zip(blocks.chunks_mut(ELEMENT * BLOCK));
        let sources: Vec<Source<'_>> = sources
            .map(|((part, reader), block)| {
                let merges = part.merges;
                if part.form != Form::Coded {
                    return Source { span: part.span.slice(range.clone()), form: part.form, merges };
                }
                let block = &mut block[..range.len()];
                reader.next(block);
                Source { span: Span::of(block), form: Form::Plain, merges }
            })
            .collect();
        kernel::fold(dtype, op, Target::of(into.slice(range), form), &sources, finish);
    }
}

/// Reads a message block by block.
struct Reader<'a> {
    codec: Codec,
    coded: &'a [u8],
}

impl Reader<'_> {
    /// The next block's f32 as bytes. They are NaNs if a local rank has written to the message after it was checked.
    fn next(&mut self, bytes: &mut [u8]) {
        let mut values = [0.0; BLOCK];
        let values = &mut values[..bytes.len() / ELEMENT];
        match fast::decode(self.codec, self.coded, values) {
            Ok(read) => self.coded = &self.coded[read..],
            Err(_) => values.fill(f32::NAN),
        }
        for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        collective::Collective,
        element::{DType, ReduceOp},
    };

    #[test]
    fn what_is_encoded_is_folded_as_it_is_decoded() {
        let count = 2 * BLOCK + 3;
        let values = |seed: usize| (0..count).map(move |at| ((at * seed) % 97) as f32 - 40.0);
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        let mut slots: Vec<Vec<u8>> = Vec::new();
        let mut sums = vec![0.0; count];
        for seed in [3, 5] {
            let mut plain = bytes(&values(seed).collect::<Vec<_>>());
            let mut slot = vec![0; Codec::Int8.bound(count)];
            encode(Codec::Int8, Span::of(&mut plain), 0..count, Span::of(&mut slot), None);
            let received = length(Span::of(&mut slot));
            assert_eq!(check(Codec::Int8, Span::of(&mut slot), received, count), Ok(()));
            assert!(check(Codec::Int8, Span::of(&mut slot), received - 1, count).is_err());
            let mut decoded = vec![0; plain.len()];
            decode(Codec::Int8, Span::of(&mut slot), Span::of(&mut decoded));
            for (sum, bytes) in sums.iter_mut().zip(decoded.as_chunks().0) {
                *sum += f32::from_le_bytes(*bytes);
            }
            slots.push(slot);
        }
        let parts = slots.iter_mut().zip([0, 1]);
        let parts: Vec<_> = parts
            .map(|(slot, merges)| CodedPart { span: Span::of(slot), form: Form::Coded, merges })
            .collect();
        let mut folded = vec![0; ELEMENT * count];
        let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
        let (call, into) = (Call { codec: Codec::Int8, ..call }, Span::of(&mut folded));
        fold(&call, into, Form::Plain, &parts, Some(2));
        assert_eq!(folded, bytes(&sums));
    }
}
