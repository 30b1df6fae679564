//! Who takes part changes: reducers come and go, and ranks go on with those that are left.

use super::{Gone, Watch};
use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{control::Message, membership::Roster, survivors::Shrunk},
    },
    fabric::instruction::{Deed, Instruction, ToSurvivor},
};
use std::{collections::BTreeMap, sync::Arc};

impl Watch {
    /// This rank wants to go on with the members of a group that are left, or waits for that no longer.
    pub(crate) fn shrink(&mut self, group: u32, message: Message) {
        // Whoever waits no longer is told why not all came.
        self.shrinking.insert(group);
        // A rank 0 that leaves as a rank decides for a while yet, but the next group would be without a hub.
        if self.is_alone() || self.hub.is_none() && self.gone.contains_key(&0) {
            self.shrink_without_hub();
        } else {
            self.tell_hub(message);
        }
    }

    pub(super) fn shrunk(&mut self, Shrunk { group, outcome, completed }: Shrunk) {
        if self.shrinking.remove(&group) {
            let answer = ToSurvivor::Decided(outcome, completed);
            self.orders.push_back(Instruction::Answer { group, answer });
        }
    }

    /// There is no hub any more that could say who is left.
    pub(super) fn shrink_without_hub(&mut self) {
        let gone: BTreeMap<Rank, bool> =
            self.gone.iter().map(|(rank, gone)| (*rank, *gone != Gone::Silent)).collect();
        let answer = |group| Instruction::Answer { group, answer: ToSurvivor::WithoutHub(gone.clone()) };
        self.orders.extend(std::mem::take(&mut self.shrinking).into_iter().map(answer));
    }

    /// On rank 0: the job has other members.
    pub(super) fn renew(&mut self, roster: Roster) {
        self.spread(self.me, &Message::Members(roster.clone()));
        self.told_roster(roster);
    }

    pub(super) fn told_roster(&mut self, roster: Roster) {
        let same = self.roster.workers().eq(roster.workers());
        if !same || roster.epoch() <= self.roster.epoch() {
            return;
        }
        self.roster = Arc::new(roster);
        self.orders.push_back(Instruction::Renew(self.roster.clone()));
        self.order(Deed::Renew(self.roster.clone()));
    }

    /// On rank 0: the settings name a reducer that is no member yet.
    pub(crate) fn name_reducer(&mut self, address: String) {
        self.hub.iter_mut().for_each(|hub| hub.pool.name(address.clone(), None));
    }

    /// On rank 0: a reducer has answered, or calls by itself, in this life; or it has not answered.
    pub(crate) fn greeted(&mut self, address: &str, life: Option<u64>, now: Moment) {
        let roster = self.hub.as_mut().and_then(|hub| hub.greeted(address, life, (&self.roster, now)));
        if let Some(roster) = roster {
            crate::log::info(&self.name(), format_args!("the reducer at {address} joins"));
            self.renew(roster);
        }
    }
}
