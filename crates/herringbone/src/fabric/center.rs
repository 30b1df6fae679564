//! What rank 0 decides for all: fences, recoveries, and which reducers are used.

use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            Role,
            control::{Death, Message},
            fence::{Directed, Hub},
            membership::Roster,
            pool::Pool,
            recovery::LostReducer,
            survivors::{Shrunk, Survivors},
        },
    },
};

/// What rank 0 decides with.
#[derive(Debug)]
pub(super) struct Center {
    fences: Hub,
    pub(super) pool: Pool,
    survivors: Survivors,
    /// When the pool began.
    began: Moment,
}

impl Center {
    pub(super) fn new(roster: &Roster, began: Moment) -> Self {
        let mut pool = Pool::default();
        roster.reducers().for_each(|reducer| pool.name(reducer.address.clone(), Some(reducer.id)));
        Self { fences: Hub::new(), pool, survivors: Survivors::default(), began }
    }

    /// The next epoch, if a message accuses a reducer that is a member: it is none any more.
    pub(super) fn without_accused(
        &mut self,
        message: &Message,
        (roster, now): (&Roster, Moment),
    ) -> Option<Roster> {
        let Message::Accuse(accuse) = message else { return None };
        let LostReducer { id, address, .. } = &accuse.lost;
        let was_used = self.pool.lost(address, *id, now.since(self.began));
        was_used.then(|| roster.without(*id).ok()).flatten()
    }

    /// A message for the hub: what to send because of it.
    pub(super) fn receive(&mut self, from: Rank, message: Message) -> Vec<Directed> {
        match message {
            Message::Shrink(shrink) => directed(self.survivors.call(from, shrink)),
            Message::Unshrink { group } => directed(self.survivors.withdraw(from, group)),
            message => {
                #[cfg(any(test, feature = "simulator"))]
                crate::seen::hub(&self.fences, &message);
                self.fences.receive(from, message)
            }
        }
    }

    /// A rank is dead, as is known from this.
    pub(super) fn lose(&mut self, rank: Rank, death: &Death) -> Vec<Directed> {
        #[cfg(any(test, feature = "simulator"))]
        crate::seen::hub_without(&self.fences, "a rank is lost");
        let mut sent = self.fences.lose(rank);
        sent.extend(directed(self.survivors.lose(rank, death.is_certain())));
        sent
    }

    /// A rank has left in order.
    pub(super) fn leave(&mut self, rank: Rank) -> Vec<Directed> {
        #[cfg(any(test, feature = "simulator"))]
        crate::seen::hub_without(&self.fences, "a rank has left");
        let mut sent = self.fences.leave(rank);
        sent.extend(directed(self.survivors.lose(rank, true)));
        sent
    }

    /// The reducers that are to be called now.
    pub(super) fn due(&mut self, now: Moment) -> Vec<String> {
        self.pool.due(now.since(self.began))
    }

    /// A reducer has answered, or calls by itself, in this life; or it has not answered. Returns the next epoch if it becomes a
    /// member.
    pub(super) fn greeted(
        &mut self,
        address: &str,
        life: Option<u64>,
        (roster, now): (&Roster, Moment),
    ) -> Option<Roster> {
        let since = now.since(self.began);
        let Some(life) = life else {
            self.pool.not_there(address, since);
            return None;
        };
        if !self.pool.there(address, life, since) {
            return None;
        }
        match roster.with_joined(Role::Reducer, address.to_owned(), Some(life), None) {
            Ok((roster, member)) => {
                self.pool.is_used(address, life, member, since);
                Some(roster)
            }
            Err(_) => {
                self.pool.not_there(address, since);
                None
            }
        }
    }
}

fn directed(told: Vec<(Rank, Shrunk)>) -> Vec<Directed> {
    told.into_iter().map(|(to, shrunk)| Directed { to, message: Message::Shrunk(shrunk) }).collect()
}
