//! The fraction of a buffer that each owner folds, if ports differ.
//!
//! A host behind a slow port can own little or nothing of an all-reduce. Each byte that it owns crosses its port once
//! for each other rank; each byte that it does not own crosses it only twice.

use crate::schedule::{Chunk, Cut, HEAVIEST, Weights, read_runs, write_runs};
use alloc::{string::String, sync::Arc, vec::Vec};
use core::{fmt, str::FromStr};

/// How much each owner folds, in sixteenths of the largest share. An owner with share 0 folds nothing: it has no chunk, so there
/// is no message for one.
///
/// Owners are the workers by rank for `radix` and for `hierarchical(radix,radix)`, the reducers for `reduction_server` and for
/// `hierarchical(radix,reduction_server)`, the workers and then the reducers for `mixed`. Cheap to clone.
///
/// ```
/// use herringbone_core::algorithm::Shares;
///
/// let shares: Shares = "16x3,1".parse()?;
/// assert_eq!(shares.parts(), [16, 16, 16, 1]);
/// # Ok::<(), herringbone_core::algorithm::SharesError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shares(Arc<[u8]>);

/// Why numbers are no shares.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SharesError {
    /// A share is larger than the largest.
    #[error(
        "share {share} of owner {owner} is above {}: shares are sixteenths, 0 to {}",
        Shares::WHOLE,
        Shares::WHOLE
    )]
    TooLarge {
        /// The owner's place.
        owner: usize,
        /// Its share.
        share: u8,
    },
    /// No owner would fold anything.
    #[error("no owner has a share above 0: give one of them a share")]
    Nobody,
    /// More owners than there can be.
    #[error("{owners} shares are too many: at most {} are allowed", Shares::MOST_OWNERS)]
    TooMany {
        /// How many there are.
        owners: usize,
    },
    /// A text that has no shares.
    #[error(
        "{text:?} has no shares: write sixteenths, 0 to {} and at most {} of them, with commas between, equal ones as a \
         run: 16x3,1",
        Shares::WHOLE,
        Shares::MOST_OWNERS
    )]
    Text {
        /// The text, as far as it is short.
        text: String,
    },
}

impl Shares {
    /// The largest share.
    pub const WHOLE: u8 = HEAVIEST;

    /// The most owners.
    pub const MOST_OWNERS: usize = 4096;

    /// The shares of the owners, in order: sixteenths, 0 to [`WHOLE`](Self::WHOLE).
    ///
    /// # Errors
    /// [`SharesError`] for a larger one, for more than [`MOST_OWNERS`](Self::MOST_OWNERS), and if none is above 0.
    pub fn new(parts: Vec<u8>) -> Result<Self, SharesError> {
        if parts.len() > Self::MOST_OWNERS {
            return Err(SharesError::TooMany { owners: parts.len() });
        }
        if let Some((owner, share)) = parts.iter().enumerate().find(|(_, share)| **share > Self::WHOLE) {
            return Err(SharesError::TooLarge { owner, share: *share });
        }
        match parts.iter().any(|share| *share > 0) {
            true => Ok(Self(parts.into())),
            false => Err(SharesError::Nobody),
        }
    }

    /// The share of each owner.
    pub fn parts(&self) -> &[u8] {
        &self.0
    }

    /// Whether all owners have the same share.
    pub fn is_even(&self) -> bool {
        self.0.windows(2).all(|pair| pair[0] == pair[1])
    }
}

impl fmt::Display for Shares {
    /// The shares, equal ones that follow each other as a run: `16x3,1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_runs(f, &self.0)
    }
}

impl FromStr for Shares {
    type Err = SharesError;

    /// Reads what [`Display`](fmt::Display) writes; spaces around numbers do not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unreadable = || SharesError::Text { text: text.chars().take(40).collect() };
        Self::new(read_runs(text, Self::MOST_OWNERS).ok_or_else(unreadable)?)
    }
}

/// Who owns which chunk: each owner one or several, all as long as each other or by shares.
#[derive(Clone, Debug)]
pub(super) struct Owners {
    /// The owners that have chunks, ascending.
    places: Vec<u32>,
    /// The share of each of these; none where all are equal.
    shares: Option<Vec<u8>>,
}

impl Owners {
    /// So many that own as much as each other.
    pub(super) fn even(owners: u32) -> Self {
        Self { places: (0..owners).collect(), shares: None }
    }

    /// Those with shares above 0.
    pub(super) fn of(shares: &Shares) -> Self {
        let owning = (0..).zip(shares.parts()).filter(|(_, share)| **share > 0);
        let (places, parts): (Vec<u32>, Vec<u8>) = owning.unzip();
        Self { places, shares: (!shares.is_even()).then_some(parts) }
    }

    /// How many have chunks.
    pub(super) fn len(&self) -> u32 {
        self.places.len() as u32
    }

    /// The place of the owner of a chunk, if each has one.
    pub(super) fn place(&self, chunk: Chunk) -> u32 {
        self.places[chunk as usize]
    }

    /// The places of all that have chunks.
    pub(super) fn places(&self) -> &[u32] {
        &self.places
    }

    /// The chunk of an owner, if each has one and it has any; else the first of as many.
    pub(super) fn chunk(&self, place: u32) -> Option<Chunk> {
        self.places.binary_search(&place).ok().map(|chunk| chunk as Chunk)
    }

    /// Whether all have as much.
    pub(super) fn are_alike(&self) -> bool {
        self.shares.is_none()
    }

    /// The weights of the chunks, of which each owner has `each`, one owner's after the other's; none if all are equal.
    pub(super) fn weights(&self, each: u32) -> Option<Weights> {
        let shares = self.shares.as_ref()?;
        let weights = shares.iter().flat_map(|share| core::iter::repeat_n(*share, each as usize));
        Some(Weights::new(weights).expect("shares above 0, of at most 4096 owners"))
    }

    /// How a buffer is cut for them, into `each` chunks of each owner: anywhere, or into whole blocks.
    pub(super) fn cut(&self, each: u32, blocks: bool) -> Cut {
        let chunks = self.len() * each;
        match self.weights(each) {
            Some(weights) => Cut::Weighted { weights, blocks },
            None if blocks => Cut::Blocks { chunks },
            None => Cut::Even { chunks },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn shares_round_trip() {
        for (text, parts) in
            [("16x3,1", &[16, 16, 16, 1][..]), ("0,16", &[0, 16]), ("5x2", &[5, 5]), ("1", &[1])]
        {
            let shares: Shares = text.parse().unwrap();
            assert_eq!((shares.parts(), shares.to_string().as_str()), (parts, text));
            assert_eq!(Shares::new(parts.to_vec()), Ok(shares));
        }
        assert!(Shares::new(alloc::vec![3; 4096]).unwrap().is_even());
        assert!(!"0,16".parse::<Shares>().unwrap().is_even());
    }

    #[test]
    fn other_numbers_are_refused() {
        assert_eq!(Shares::new(alloc::vec![]), Err(SharesError::Nobody));
        assert_eq!(Shares::new(alloc::vec![0; 3]), Err(SharesError::Nobody));
        assert_eq!(Shares::new(alloc::vec![1, 17]), Err(SharesError::TooLarge { owner: 1, share: 17 }));
        assert_eq!(Shares::new(alloc::vec![1; 4097]), Err(SharesError::TooMany { owners: 4097 }));
        for text in ["", "16,", "16x", "x3", "16x0", "-1", "1.5", "16x4097", "16;1"] {
            let error = text.parse::<Shares>().unwrap_err();
            assert!(error.to_string().contains("write sixteenths"), "{text}: {error}");
        }
    }
}
