//! Buffers of messages that were used, kept for the next ones. A new buffer costs more than copying into it: the system
//! gives zeroed pages one by one, and takes them back as soon as the buffer is dropped.

use crate::core::table::PAYLOAD_BYTES;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shorter ones are not kept, nor taken from here: a kept one takes up as much memory as the longest message.
const SHORT: usize = PAYLOAD_BYTES / 2;
/// How many are kept in a process: 32 MiB.
const KEPT: usize = 128;

static SPARE: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

fn spare() -> MutexGuard<'static, Vec<Vec<u8>>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A buffer of so many bytes, at most those of a [payload](PAYLOAD_BYTES): with anything in it.
pub(super) fn buffer(length: usize) -> Vec<u8> {
    if length < SHORT {
        return vec![0; length];
    }
    let mut buffer = spare().pop().unwrap_or_else(|| Vec::with_capacity(PAYLOAD_BYTES));
    buffer.resize(length, 0);
    buffer
}

/// Keeps a buffer that is not used any more, if it is one for long messages and there are not many.
pub(super) fn keep(buffer: Vec<u8>) {
    if (SHORT..=PAYLOAD_BYTES).contains(&buffer.capacity()) {
        let mut kept = spare();
        if kept.len() < KEPT {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_has_the_length_that_is_asked_for() {
        for length in [0, 1, SHORT - 1, SHORT, PAYLOAD_BYTES, SHORT + 1] {
            let buffer = buffer(length);
            assert_eq!(buffer.len(), length);
            keep(buffer);
        }
        assert!(spare().iter().all(|spare| spare.capacity() >= SHORT));
    }
}
