//! What rank 0 decides for all: how groups come back into step, which reducers are used, and which ranks continue after
//! a death.

use super::{
    Role,
    control::{Death, Message},
    fence::{Directed, Fences, HubState},
    membership::Roster,
    pool::Pool,
    recovery::LostReducer,
    survivors::{Shrunk, Survivors},
};
use crate::group::Rank;
use alloc::{string::String, sync::Arc, vec::Vec};
use core::time::Duration;

/// The state with which rank 0 decides. Times are since any start that is the same for all calls.
#[derive(Debug)]
pub struct Hub {
    fences: Fences,
    pool: Pool,
    survivors: Survivors,
    roster: Arc<Roster>,
    /// When it was last told the time.
    now: Duration,
}

impl Hub {
    /// The hub of a job that begins now with these members.
    pub fn new(roster: Arc<Roster>, now: Duration) -> Self {
        let mut pool = Pool::default();
        roster.reducers().for_each(|reducer| pool.name(reducer.address.clone(), Some(reducer.id), now));
        Self { fences: Fences::default(), pool, survivors: Survivors::default(), roster, now }
    }

    /// The settings name a reducer that is no member yet.
    pub fn name_reducer(&mut self, address: String) {
        self.pool.name(address, None, self.now);
    }

    /// How many groups it knows.
    pub fn groups(&self) -> usize {
        self.states().count()
    }

    /// The protocols under way in each group, by number.
    pub fn states(&self) -> impl Iterator<Item = (u32, HubState)> {
        self.fences.states()
    }

    /// A message of a worker or reducer. Returns the messages to send because of it.
    ///
    /// * GroupInfo and Dispute have the members of a group.
    /// * Forget reports that a member takes no part in a group any more. A group that no member needs is forgotten, and
    ///   all live members learn of it: then no rank reads the data that others have left in memory for it.
    /// * Dispute begins a fence, if it is of the current generation and none is under way. An abort ends the group in
    ///   any generation: a fence that is under way decides this.
    /// * Report brings a fence forward; the last one ends it.
    /// * Suspect and Grow begin a recovery, if the group has had none: after one no operation of it uses reducers. A
    ///   suspected reducer is no member of the job any more.
    /// * Held brings a recovery forward; the last one ends it, unless a fence is under way, which goes first. A member
    ///   that leaves sends Held before Forget.
    /// * Waiting is shown to the members that can compare it with their own history. These are the next member that
    ///   waits behind it and ahead of it, and one that waits in the same operation with another hash. The first of its
    ///   [round](super::control::Waiting::round) is shown to all members. So a disagreement is also found with a rank
    ///   that has continued, or that waits nowhere. It costs one message to each member per second and stuck operation.
    ///   If a member has left without the operation, a fence begins.
    /// * Confirm and Confirmed are the questions of members that leave, and their answers; see
    ///   [`close_check`](super::close_check). A question about a call that a member has left without begins a fence.
    /// * PortReport has the traffic of connections. Once ports have had other speeds for long, the hub proposes new
    ///   ones to all members. The last PortPledge decides from which call on plans use them; see
    ///   [`rebalance`](super::rebalance).
    /// * Shrink and Unshrink come from members that continue with the survivors; see [`survivors`](super::survivors).
    pub fn receive(&mut self, from: Rank, message: Message) -> Vec<Directed> {
        let members = match &message {
            Message::Suspect(suspect) => self.lose_reducer(&suspect.lost),
            _ => Vec::new(),
        };
        let mut sent = match message {
            Message::Shrink(shrink) => directed(self.survivors.call(from, shrink)),
            Message::Unshrink { group } => directed(self.survivors.withdraw(from, group)),
            Message::PortReport(carried) => self.fences.carried(from, &carried, &self.roster),
            message => self.fences.receive(from, message),
        };
        sent.extend(members);
        sent
    }

    fn lose_reducer(&mut self, LostReducer { id, address, .. }: &LostReducer) -> Vec<Directed> {
        let was_used = self.pool.lost(address, *id, self.now);
        let next = was_used.then(|| self.roster.without(*id).ok()).flatten();
        next.map_or_else(Vec::new, |roster| self.renew(roster))
    }

    /// A rank is dead, as `death` shows: fences no longer wait for it, and end in [`PeerLost`](super::Cause::PeerLost)
    /// if it was a member.
    pub fn lose(&mut self, rank: Rank, death: &Death) -> Vec<Directed> {
        let mut sent = self.fences.lose(rank);
        sent.extend(directed(self.survivors.lose(rank, death.is_certain())));
        sent
    }

    /// A rank has left in order. It is treated as [dead](Self::lose), but it is named as lost only if no rank died and
    /// it did not follow another rank that left.
    pub fn leave(&mut self, rank: Rank) -> Vec<Directed> {
        let mut sent = self.fences.leave(rank);
        sent.extend(directed(self.survivors.lose(rank, true)));
        sent
    }

    /// Time has passed. Returns the reducers that are to be called now.
    pub fn due(&mut self, now: Duration) -> Vec<String> {
        self.now = now;
        self.pool.due(now)
    }

    /// A reducer has answered, or calls by itself, in this life; or it has not answered. It can be a member from now
    /// on.
    pub fn greeted(&mut self, address: &str, life: Option<u64>, now: Duration) -> Vec<Directed> {
        let Some(life) = life else {
            self.pool.not_there(address, now);
            return Vec::new();
        };
        if !self.pool.there(address, life, now) {
            return Vec::new();
        }
        match self.roster.with_joined(Role::Reducer, address.into(), Some(life), None) {
            Ok((roster, member)) => {
                self.pool.is_used(address, life, member, now);
                self.renew(roster)
            }
            Err(_) => {
                self.pool.not_there(address, now);
                Vec::new()
            }
        }
    }

    /// The job has other members, which all workers hear.
    fn renew(&mut self, roster: Roster) -> Vec<Directed> {
        self.roster = Arc::new(roster);
        let members = || Message::Members(Roster::clone(&self.roster));
        (0..self.roster.world()).map(|to| Directed { to, message: members() }).collect()
    }
}

fn directed(shrunk: Vec<(Rank, Shrunk)>) -> Vec<Directed> {
    shrunk.into_iter().map(|(to, shrunk)| Directed { to, message: Message::Shrunk(shrunk) }).collect()
}
