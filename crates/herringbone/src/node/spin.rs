//! How long a rank spins before it gives its core away, and before it sleeps.

use crate::engine::ops::WaitKind;

/// Where ranks of a host share cores: how often those of a core yield before they sleep, all together. Those of other
/// sessions than the one that yields may be passed over (the kernel shares a core out among sessions first), and get it only
/// when that one sleeps.
const YIELDS_OF_A_CORE: usize = 160;
/// With more ranks than this to a core a rank yields no more often than that, be it in a straight run or not: hardly any of
/// those that it waits for is next.
const MANY_PER_CORE: usize = 8;
const YIELDS_OF_MANY: u32 = 3;
/// How often to yield where a small message is to come by a socket: it takes a round trip.
const YIELDS_FOR_A_MESSAGE: u32 = 20;

/// How often a rank spins and yields before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpinLimits {
    /// Turns before yielding.
    pub(super) spins: u32,
    /// Looks for the next message of a straight run before yielding.
    pub(super) tries: u32,
    /// Yields where it waits for ranks of its host.
    yields: u32,
}

impl SpinLimits {
    /// With so many ranks on a host of so many cores.
    pub(super) fn of(ranks: usize, cores: usize) -> Self {
        if ranks <= cores {
            return Self { spins: 50, tries: 1000, yields: 400 };
        }
        let most = if ranks > MANY_PER_CORE * cores { YIELDS_OF_MANY } else { u32::MAX };
        let shared_out = (YIELDS_OF_A_CORE * cores / ranks).max(1) as u32;
        Self { spins: 2, tries: 4, yields: shared_out.min(most) }
    }

    /// How often to yield before sleeping.
    pub(super) fn yields(self, wait_kind: WaitKind) -> u32 {
        match wait_kind {
            WaitKind::Memory => self.yields,
            WaitKind::Message => YIELDS_FOR_A_MESSAGE,
            WaitKind::Stream => 0,
        }
    }
}
