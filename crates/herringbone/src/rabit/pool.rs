//! Memory for results that are kept: the next version's results reuse it.

use crate::sys::region::Region;
use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Memory of results that were dropped. The system gives new memory page by page, which takes longer than the copy that goes there.
#[derive(Debug, Default)]
pub(super) struct ResultPool {
    /// By size.
    free: Mutex<BTreeMap<usize, Vec<Region>>>,
}

/// Bytes that are kept for others. Clones are the same bytes.
#[derive(Clone, Debug)]
pub(super) struct KeptBytes(Arc<Lent>);

#[derive(Debug)]
struct Lent {
    region: Region,
    /// Where the memory goes back to.
    pool: Option<Arc<ResultPool>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // What was revoked is somebody else's business: a call that failed may still write there.
        if let Some(pool) = self.pool.as_ref().filter(|_| self.region.access().is_some()) {
            pool.free().entry(self.region.len()).or_default().push(self.region.clone());
        }
    }
}

impl KeptBytes {
    pub(super) fn region(&self) -> &Region {
        &self.0.region
    }
}

impl From<Region> for KeptBytes {
    fn from(region: Region) -> Self {
        Self(Arc::new(Lent { region, pool: None }))
    }
}

impl ResultPool {
    /// So many bytes of any value.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> KeptBytes {
        let used = self.free().get_mut(&bytes).and_then(Vec::pop);
        let region = used.unwrap_or_else(|| Region::zeroed(bytes));
        KeptBytes(Arc::new(Lent { region, pool: Some(self.clone()) }))
    }

    /// A version ends: what none of its calls has taken again goes back to the system.
    pub(super) fn drop_unused(&self) {
        drop(mem::take(&mut *self.free()));
    }

    fn free(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<Region>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_with_the_last_clone_and_goes_when_a_version_has_not_taken_it() {
        let pool = Arc::new(ResultPool::default());
        let first = pool.take(100);
        let place = first.region().addresses();
        let clone = first.clone();
        drop(first);
        assert_ne!(pool.take(100).region().addresses(), place, "a clone still has it");
        drop(clone);
        let again = [pool.take(100), pool.take(100)];
        assert!(again.iter().any(|kept| kept.region().addresses() == place));
        assert_eq!(pool.take(50).region().len(), 50);
        assert_eq!(pool.free().values().map(Vec::len).sum::<usize>(), 1);
        pool.drop_unused();
        assert!(pool.free().is_empty());
        drop(again);
        assert_eq!(pool.free().values().map(Vec::len).sum::<usize>(), 2);
    }
}
