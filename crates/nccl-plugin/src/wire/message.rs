//! Headers of messages, and how their bytes are cut into pieces.

use std::ops::Range;

/// How many bytes a header has.
pub(crate) const HEADER_BYTES: usize = 16;
/// What every header begins with.
const MARK: u32 = 0x6e62_7268;
/// For each so many bytes a message gets another piece, as long as there are streams: less does not pay for another system call.
const BYTES_A_PIECE: usize = 64 << 10;
/// Pieces begin at multiples of this, in bytes: that of a cache line.
const ALIGNMENT: usize = 64;

/// Why bytes are no header of the message that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderProblem {
    /// They do not begin as one.
    NotOne,
    /// They are that of another message: one was lost, or comes twice.
    OfAnother,
    /// This machine has no memory of that size.
    TooLarge,
}

/// The header of message `number`, which has so many bytes.
pub(crate) fn header(number: u32, bytes: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&MARK.to_le_bytes());
    header[4..8].copy_from_slice(&number.to_le_bytes());
    header[8..].copy_from_slice(&bytes.to_le_bytes());
    header
}

/// How many bytes message `number` has, as its header says.
///
/// # Errors
/// If it is not that message's header.
pub(crate) fn message_bytes(header: [u8; HEADER_BYTES], number: u32) -> Result<usize, HeaderProblem> {
    let [a, b, c, d, e, f, g, h, size @ ..] = header;
    if u32::from_le_bytes([a, b, c, d]) != MARK {
        return Err(HeaderProblem::NotOne);
    }
    if u32::from_le_bytes([e, f, g, h]) != number {
        return Err(HeaderProblem::OfAnother);
    }
    usize::try_from(u64::from_le_bytes(size)).map_err(|_| HeaderProblem::TooLarge)
}

/// A part of a message that travels on one stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamPiece {
    /// The stream's index.
    pub(crate) stream: usize,
    /// Which bytes of the message.
    pub(crate) range: Range<usize>,
}

/// On which stream the header of message `number` is.
pub(crate) fn header_stream(number: u32, streams: usize) -> usize {
    number as usize % streams
}

/// The pieces of message `number`, none of which is empty, in order and one at most for each stream. The first is on the header's.
pub(crate) fn pieces(number: u32, bytes: usize, streams: usize) -> impl Iterator<Item = StreamPiece> {
    let count = bytes.div_ceil(BYTES_A_PIECE).min(streams);
    let each = bytes.div_ceil(count.max(1)).next_multiple_of(ALIGNMENT);
    (0..count).map(move |index| StreamPiece {
        stream: (header_stream(number, streams) + index) % streams,
        range: index * each..((index + 1) * each).min(bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_read_as_it_was_written_and_as_no_other() {
        let good = header(7, 1 << 40);
        assert_eq!(message_bytes(good, 7), Ok(1 << 40));
        assert_eq!(message_bytes(good, 8), Err(HeaderProblem::OfAnother));
        let mut bad = good;
        bad[0] ^= 1;
        assert_eq!(message_bytes(bad, 7), Err(HeaderProblem::NotOne));
    }

    #[test]
    fn small_messages_take_turns_on_the_streams_and_large_ones_take_all() {
        let streams = |number, bytes| pieces(number, bytes, 4).map(|piece| piece.stream).collect::<Vec<_>>();
        assert_eq!(streams(0, 1), [0]);
        assert_eq!(streams(1, 65_536), [1]);
        assert_eq!(streams(3, 65_537), [3, 0]);
        assert_eq!(streams(6, 1 << 20), [2, 3, 0, 1]);
        assert_eq!(streams(u32::MAX, 1 << 20), [3, 0, 1, 2]);
        assert_eq!(streams(5, 0), [0_usize; 0]);
    }

    proptest! {
        #[test]
        fn pieces_are_all_of_a_message_once(number: u32, bytes in 0_usize..20_000_000, streams in 1_usize..65) {
            let mut end = 0;
            let mut used = Vec::new();
            for piece in pieces(number, bytes, streams) {
                prop_assert_eq!(piece.range.start, end);
                prop_assert!(piece.range.end > end && piece.stream < streams && !used.contains(&piece.stream));
                end = piece.range.end;
                used.push(piece.stream);
            }
            prop_assert_eq!(end, bytes);
        }
    }
}
