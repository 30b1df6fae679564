//! The results of calls before the last checkpoint was loaded. They belong to no version, so they are kept until the end.

use super::{
    models::KeptResult,
    standing::{CallSite, HeldBootstrap},
};
use alloc::{collections::BTreeMap, vec::Vec};

/// These results, in the order in which they came, and how far this process is with them.
#[derive(Clone, Debug)]
pub(super) struct BootstrapResults<M> {
    results: Vec<(CallSite, KeptResult<M>)>,
    bytes: u64,
    /// Where the result of a call is among them.
    index: BTreeMap<CallSite, usize>,
    /// How many calls this process has made from each place.
    made: BTreeMap<u64, u32>,
}

impl<M> Default for BootstrapResults<M> {
    fn default() -> Self {
        Self { results: Vec::new(), bytes: 0, index: BTreeMap::new(), made: BTreeMap::new() }
    }
}

impl<M> BootstrapResults<M> {
    /// The next call that this process makes from a place.
    pub(super) fn next_at(&self, place: u64) -> CallSite {
        CallSite { place, nth: self.made.get(&place).copied().unwrap_or(0) }
    }

    /// The program has the result of a call.
    pub(super) fn passed(&mut self, site: CallSite) {
        *self.made.entry(site.place).or_default() += 1;
    }

    pub(super) fn get(&self, site: CallSite) -> Option<&KeptResult<M>> {
        self.index.get(&site).map(|index| &self.results[*index].1)
    }

    pub(super) fn insert(&mut self, site: CallSite, result: KeptResult<M>) {
        self.index.insert(site, self.results.len());
        self.bytes += result.kept.bytes;
        self.results.push((site, result));
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What others are told of them.
    pub(super) fn held(&self) -> Vec<HeldBootstrap> {
        let held = |(site, result): &(CallSite, KeptResult<M>)| HeldBootstrap {
            site: *site,
            kind: result.kind,
            bytes: result.kept.bytes,
        };
        self.results.iter().map(held).collect()
    }
}
