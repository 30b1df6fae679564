//! Numbers of bytes as people read them.

use core::fmt;

/// So many bytes, in binary units: `800 B`, `64 KiB`, `1.5 MiB`. It has one decimal unless the unit divides it.
pub(super) struct ByteCount(pub(super) u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        let bytes = self.0;
        let Some((shift, unit)) = UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0) else {
            return write!(f, "{bytes} B");
        };
        let whole = 1_u64 << shift;
        if bytes.is_multiple_of(whole) {
            return write!(f, "{} {unit}", bytes >> shift);
        }
        let tenths = (u128::from(bytes) * 10 + u128::from(whole) / 2) >> shift;
        write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn bytes_have_units() {
        let cases =
            [(0, "0 B"), (800, "800 B"), (1 << 16, "64 KiB"), (3 << 19, "1.5 MiB"), (26_214_400, "25 MiB")];
        for (bytes, text) in cases {
            assert_eq!(format!("{}", ByteCount(bytes)), text);
        }
        assert_eq!(format!("{}", ByteCount(u64::MAX)), "17179869184.0 GiB");
    }
}
