//! Changes of the members: reducers come and go, and ranks continue with the survivors.

use super::{Effect, PeerEnd, ShrinkAnswer, Watch};
use crate::{
    group::Rank,
    session::{membership::Roster, survivors::Shrunk},
};
use alloc::{collections::BTreeMap, format, string::String, sync::Arc};
use core::{mem, time::Duration};

impl Watch {
    /// This rank wants to go on with the members of a group that are left, or waits for that no longer. Returns whether the hub is
    /// there to be told.
    pub(super) fn shrinks(&mut self, group: u32) -> bool {
        // Whoever waits no longer hears why not all came.
        self.shrinking.insert(group);
        // A rank 0 that leaves as a rank decides for a while yet, but the next group would be without a hub.
        let has_hub = !self.is_alone() && (self.hub.is_some() || !self.gone.contains_key(&0));
        if !has_hub {
            self.shrink_without_hub();
        }
        has_hub
    }

    pub(super) fn shrunk(&mut self, shrunk: Shrunk) {
        let group = shrunk.group;
        if self.shrinking.remove(&group) {
            self.effects.push_back(Effect::Answer { group, answer: ShrinkAnswer::Decided(shrunk) });
        }
    }

    /// There is no hub any more that could say who is left.
    pub(super) fn shrink_without_hub(&mut self) {
        let gone: BTreeMap<Rank, bool> =
            self.gone.iter().map(|(rank, gone)| (*rank, *gone != PeerEnd::Silent)).collect();
        let answer = |group| Effect::Answer { group, answer: ShrinkAnswer::NoHub(gone.clone()) };
        self.effects.extend(mem::take(&mut self.shrinking).into_iter().map(answer));
    }

    /// The job has other members, says the hub.
    pub(super) fn members(&mut self, roster: Roster) {
        let same = self.roster.workers().eq(roster.workers());
        if same && roster.epoch() > self.roster.epoch() {
            self.roster = Arc::new(roster);
            self.effects.push_back(Effect::Members(self.roster.clone()));
        }
    }

    /// On rank 0: the settings name a reducer that is no member yet.
    pub fn name_reducer(&mut self, address: String) {
        self.hub.iter_mut().for_each(|hub| hub.name_reducer(address.clone()));
    }

    /// On rank 0: a reducer has answered, or calls by itself, in this life; or it has not answered.
    pub fn greeted(&mut self, address: &str, life: Option<u64>, now: Duration) {
        let Some(hub) = &mut self.hub else { return };
        let directed = hub.greeted(address, life, now);
        if !directed.is_empty() {
            self.log(false, None, format!("the reducer at {address} joins"));
        }
        self.direct(directed);
    }
}
