//! Time, as the engine is told of it.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::time::Duration;

/// A point in time, counted from some start that all moments of a process share.
///
/// The engine reads no clock: its callers hand it the moment, so that tests run it in virtual time. [`Moment::now`] is what
/// real callers hand it: the kernel's last tick, early by up to 10 ms. Reading that takes a fifth of the time that an exact
/// reading takes, which is a good part of a small operation's. Sums of what elapses between two are right on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(Duration);

impl Moment {
    /// The kernel's last tick.
    pub(crate) fn now() -> Self {
        Self(duration(clock_gettime(ClockId::MonotonicCoarse)))
    }

    /// How long before this moment another one was, to a tick.
    pub(crate) fn since(self, earlier: Self) -> Duration {
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
        Self(self.0.saturating_add(duration))
    }
}

/// By how much a moment may be early: a timeout, which must not pass too early, waits for so much longer.
pub(crate) fn resolution() -> Duration {
    duration(clock_getres(ClockId::MonotonicCoarse))
}

fn duration(time: Timespec) -> Duration {
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
