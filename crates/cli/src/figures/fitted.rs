//! The one constant of a figure that is fitted to a number of its source.

use crate::failure::Failure;

/// The least of `0..=most` for which `reaches` holds, if it holds for all larger ones, too; `most` if it holds for none.
///
/// # Errors
/// As `reaches`.
pub(super) fn least(
    most: u64,
    mut reaches: impl FnMut(u64) -> Result<bool, Failure>,
) -> Result<u64, Failure> {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low) / 2;
        match reaches(middle)? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_reaches_is_found_and_the_most_if_none_does() {
        for first in 0..20 {
            assert_eq!(least(12, |value| Ok(value >= first)).unwrap(), first.min(12));
        }
    }
}
