//! Time by the kernel's last tick.

use rustix::time::{ClockId, Timespec, clock_getres, clock_gettime};
use std::time::Duration;

/// A moment, early by up to a tick (1 to 10 ms): reading it takes a fifth of the time that an exact one takes, which is a
/// good part of a small operation's. Sums of what elapses between two are right on average.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment(Duration);

impl Moment {
    pub(crate) fn now() -> Self {
        Self(duration(clock_gettime(ClockId::MonotonicCoarse)))
    }

    /// How long ago it was, to a tick.
    pub(crate) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    /// How long ago it was at the least: what a timeout, which must not pass too early, is compared with.
    pub(crate) fn elapsed_at_least(self) -> Duration {
        self.elapsed().saturating_sub(duration(clock_getres(ClockId::MonotonicCoarse)))
    }
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
            let least = moment.elapsed_at_least();
            assert!(least <= began.elapsed(), "{least:?}");
            assert!(moment.elapsed() >= least);
        }
    }
}
