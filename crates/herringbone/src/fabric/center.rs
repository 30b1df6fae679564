//! What rank 0 decides for all: fences, recoveries, and which reducers are used.

use crate::{
    clock::Moment,
    core::session::{
        Role,
        control::Message,
        fence::Hub,
        membership::{MemberId, Roster},
        pool::Pool,
    },
};

/// What rank 0 decides with.
#[derive(Debug)]
pub(super) struct Center {
    pub(super) fences: Hub,
    pub(super) pool: Pool,
    /// When the pool began.
    began: Moment,
}

impl Center {
    pub(super) fn new(roster: &Roster, began: Moment) -> Self {
        let mut pool = Pool::default();
        roster.reducers().for_each(|reducer| pool.name(reducer.address.clone(), Some(reducer.id)));
        Self { fences: Hub::new(), pool, began }
    }

    /// The next epoch, if a message accuses a reducer that is a member: it is none any more.
    pub(super) fn without_accused(
        &mut self,
        message: &Message,
        (roster, now): (&Roster, Moment),
    ) -> Option<Roster> {
        let Message::Accuse(accuse) = message else { return None };
        let lost: MemberId = self.pool.lost(&accuse.address, now.since(self.began))?;
        roster.without(lost).ok()
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
