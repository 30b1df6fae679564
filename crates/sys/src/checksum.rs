//! The checksum of messages on sockets, of raw memory that others can write meanwhile.

#[cfg(target_arch = "x86_64")]
mod multiplied;

use crate::span::Span;
use std::slice;

impl Span<'_> {
    /// The CRC-32C (Castagnoli) checksum of the bytes.
    ///
    /// If other processes write the memory meanwhile, the result is the checksum of no particular moment.
    pub fn crc32c(self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if let Some(checksum) = multiplied::crc32c(self) {
            return checksum;
        }
        self.crc32c_portable()
    }

    /// As [`crc32c`](Self::crc32c), on every CPU.
    fn crc32c_portable(self) -> u32 {
        if !self.is_shared() {
            // SAFETY: valid bytes, which nobody writes during this call: other threads may not, this one is here.
            return crc32c::crc32c(unsafe { slice::from_raw_parts(self.as_ptr(), self.len()) });
        }
        let mut scratch = [0; 4096];
        (0..self.len()).step_by(scratch.len()).fold(0, |checksum, start| {
            let piece = self.slice(start..self.len().min(start + 4096));
            piece.read(&mut scratch[..piece.len()]);
            crc32c::crc32c_append(checksum, &scratch[..piece.len()])
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::span::{Kind, Span};
    use std::ptr::NonNull;

    #[test]
    fn private_and_shared_memory_have_the_standard_checksum() {
        // RFC 3720, appendix B.4: 32 bytes counting up.
        let mut bytes: Vec<u8> = (0..32).collect();
        assert_eq!(Span::of(&mut bytes).crc32c(), 0x46dd_794e);
        for len in [0, 1, 4_095, 4_096, 4_097, 20_000] {
            let mut bytes: Vec<u8> = (0..len).map(|n| ((n * n) >> 3) as u8).collect();
            let expected = crc32c::crc32c(&bytes);
            assert_eq!(Span::of_shared(&bytes).crc32c_portable(), expected, "{len} bytes");
            // SAFETY: the borrow lasts for the call.
            let shared = unsafe { Span::from_raw(NonNull::from(&mut *bytes).cast(), len, Kind::Shared) };
            assert_eq!((shared.crc32c(), shared.crc32c_portable()), (expected, expected), "{len} bytes");
        }
    }
}
