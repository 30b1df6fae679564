//! How large the last cache is.

use std::sync::OnceLock;

/// Linux's description of a CPU's caches.
const DESCRIBED: &str = "/sys/devices/system/cpu/cpu0/cache";
/// What results may take of a cache: the slots that they come from need room there too.
const SHARE: (usize, usize) = (5, 8);
/// What a cache is good for, however large it is: many cores share it, and the rest of it is far away.
const MOST: usize = 64 << 20;
/// Where nobody says: what is right for 32 MiB.
const UNKNOWN: usize = 20 << 20;

/// How many bytes of results stay in the last cache until they are read again.
pub(super) fn results_that_stay() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| last_cache().map_or(UNKNOWN, share))
}

fn share(cache: usize) -> usize {
    (cache / SHARE.1 * SHARE.0).min(MOST)
}

/// The largest of the first CPU's caches.
fn last_cache() -> Option<usize> {
    let caches = std::fs::read_dir(DESCRIBED).ok()?;
    let size = |cache: std::fs::DirEntry| std::fs::read_to_string(cache.path().join("size")).ok();
    caches.flatten().filter_map(size).filter_map(|size| kibibytes(size.trim())).max()
}

/// "32768K" in bytes.
fn kibibytes(size: &str) -> Option<usize> {
    size.strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stay_in_a_part_of_the_last_cache() {
        assert_eq!(kibibytes("32768K").map(share), Some(UNKNOWN));
        assert_eq!(kibibytes("491520K").map(share), Some(MOST));
        assert_eq!(kibibytes("8192K").map(share), Some(5 << 20));
        assert!([kibibytes("8M"), kibibytes("K"), kibibytes("")].iter().all(Option::is_none));
        assert!((1..=MOST).contains(&results_that_stay()));
    }
}
