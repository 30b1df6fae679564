//! Time, as the engine gets it.

use crate::core::session::status::ClockReading;
use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::time::Duration;

/// How many are a second.
const NANOSECONDS: u64 = 1_000_000_000;

/// A point in time, in nanoseconds from some start that all moments of a process share.
///
/// The engine reads no clock: its callers hand it the moment, so that tests run it in virtual time. [`Moment::now`] is what
/// real callers hand it: the kernel's last tick, early by up to 10 ms. Reading that takes a fifth of the time that an exact
/// reading takes, which is a good part of a small operation's. Sums of what elapses between two are right on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// The kernel's last tick.
    pub(crate) fn now() -> Self {
        Self(nanoseconds_of(ClockId::MonotonicCoarse))
    }

    /// An exact reading, for those who watch.
    pub(crate) fn exact() -> Self {
        Self(monotonic())
    }

    /// How long after the start that all moments share, for machines of `core`.
    pub(crate) fn since_start(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// In nanoseconds of the monotonic clock.
    pub(crate) fn since_boot(self) -> u64 {
        self.0
    }

    /// How long before this moment another one was, to a tick.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanoseconds_since(earlier))
    }

    /// As [`since`](Self::since), for sums of many.
    pub(crate) fn nanoseconds_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// How long ago it was, to a tick.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().since(self)
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// What the clocks show, exactly.
pub(crate) fn reading() -> ClockReading {
    ClockReading {
        monotonic: nanoseconds_of(ClockId::Monotonic),
        realtime: nanoseconds_of(ClockId::Realtime),
    }
}

/// What the monotonic clock shows, exactly.
pub(crate) fn monotonic() -> u64 {
    nanoseconds_of(ClockId::Monotonic)
}

fn nanoseconds_of(clock: ClockId) -> u64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec as u64 * NANOSECONDS + tv_nsec as u64
}

/// By how much a moment may be early: a timeout, which must not pass too early, waits for so much longer.
pub(crate) fn resolution() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_getres(ClockId::MonotonicCoarse);
    Duration::new(tv_sec as u64, tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn no_timeout_passes_too_early() {
        for sleep in [0, 1, 3, 7, 20] {
            let (moment, began) = (Moment::now(), Instant::now());
            std::thread::sleep(Duration::from_millis(sleep));
            let least = Moment::now().since(moment).saturating_sub(resolution());
            assert!(least <= began.elapsed(), "{least:?}");
            assert!(moment.elapsed() >= least);
        }
    }
}
