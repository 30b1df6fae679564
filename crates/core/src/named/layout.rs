//! The bits that ranks combine.

use crate::group::Rank;

/// Where what is in the vector of an agreement.
#[derive(Clone, Copy, Debug)]
pub(super) struct BitLayout {
    pub(super) ranks: usize,
    /// How many bytes a bit for each place takes. Only some lengths are used, so that few kinds of operations are planned.
    pub(super) bitmap: usize,
}

impl BitLayout {
    pub(super) fn list_of(self, rank: Rank) -> core::ops::Range<usize> {
        let start = 1 + 4 * rank as usize;
        start..start + 4
    }

    pub(super) fn unready(self) -> core::ops::Range<usize> {
        let start = 1 + 4 * self.ranks;
        start..start + self.bitmap
    }

    pub(super) fn invalid(self) -> core::ops::Range<usize> {
        let start = self.unready().end;
        start..start + self.bitmap
    }

    /// What some rank has submitted: ranks that have joined are ready for all.
    pub(super) fn asked(self) -> core::ops::Range<usize> {
        let start = self.invalid().end;
        start..start + self.bitmap
    }

    pub(super) fn bytes(self) -> usize {
        self.asked().end
    }
}

pub(super) fn bit(bits: &[u8], place: u32) -> bool {
    bits.get(place as usize / 8).is_some_and(|byte| byte & 1 << (place % 8) != 0)
}
