//! A port: how fast bytes go out of a host or a site, and into it.

/// The unit in which ports travel, in bytes/s.
pub(super) const UNIT: u64 = 1000;

/// The link of a host to the switch: bytes of payload per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// From the host; 0: unlimited, or unknown.
    pub out: u64,
    /// To the host; 0: unlimited, or unknown.
    pub into: u64,
}

impl Port {
    /// How many bytes one is in messages.
    pub(super) const BYTES: usize = 2 * size_of::<u32>();

    /// One of these GB/s, 0 where a rate is not known.
    pub(super) fn of_gigabytes(out: f64, into: f64) -> Self {
        // What is slow is not unknown.
        let least = |gigabytes: f64| u64::from(gigabytes > 0.0);
        let rate = |gigabytes: f64| ((gigabytes * 1e9 + 0.5) as u64).max(least(gigabytes));
        Self { out: rate(out), into: rate(into) }
    }

    /// The same in whole thousands of bytes/s.
    pub(super) fn in_units(self) -> Self {
        // What is slow is not unlimited.
        let whole = |rate: u64| rate.min(1) * (rate / UNIT).clamp(1, u32::MAX.into()) * UNIT;
        Self { out: whole(self.out), into: whole(self.into) }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let [out, into] = [self.out, self.into].map(|rate| ((rate / UNIT) as u32).to_le_bytes());
        core::array::from_fn(|at| if at < out.len() { out[at] } else { into[at - out.len()] })
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let rate = |bytes: &[u8]| Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)) * UNIT);
        let (out, into) = bytes.split_at_checked(size_of::<u32>())?;
        Some(Self { out: rate(out)?, into: rate(into)? })
    }

    /// Whether nothing is known of it.
    pub(super) fn is_unknown(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_is_not_unknown() {
        for slow in [1e-300, 1e-12, 1e-7] {
            let port = Port::of_gigabytes(slow, 0.0).in_units();
            assert_eq!(port, Port { out: UNIT, into: 0 }, "{slow}");
            assert!(!port.is_unknown());
        }
        assert!(Port::of_gigabytes(0.0, 0.0).in_units().is_unknown());
    }
}
