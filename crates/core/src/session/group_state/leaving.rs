//! How a process ends its part in a group.
//!
//! Operations that are under way continue when the group is closed. A rank that does not know whether all have made the
//! same calls [asks](super::super::close_check) before it leaves. It stays as long as another rank waits for its
//! answer.

use super::{
    super::{
        cause::Cause,
        control::Message,
        fence::{Member, Phase},
        recovery::Held,
    },
    CloseCheck, GroupState, Leaving, Output, Outputs, Side,
};
use alloc::{sync::Arc, vec::Vec};

/// The answer to a request to leave a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// A rank waits for the answers of others.
    Stays,
    /// It has left. An operation has failed elsewhere for this reason, if that is news.
    Left(Option<Arc<Cause>>),
}

impl GroupState {
    /// Whether nothing more is called in the group here.
    pub fn is_closed(&self) -> bool {
        self.leaving.is_closed
    }

    /// Whether this process takes no part in the group any more.
    pub fn has_left(&self) -> bool {
        self.leaving.has_left
    }

    /// Nothing more is called in the group here. Operations under way continue.
    pub fn close(&mut self, out: &mut impl Outputs) {
        self.leaving.is_closed = true;
        out.put(self.group, Output::Leave);
    }

    /// The same, and operations under way fail here. If it `tells` the others, their calls fail as well, except the
    /// calls before the first that fails here.
    pub fn abort(&mut self, tells: bool, out: &mut impl Outputs) {
        let tells = tells && self.rules.says_aborts && !self.leaving.has_left;
        if tells && !core::mem::replace(&mut self.leaving.has_aborted, true) {
            let message = self.member().and_then(Member::abort);
            message.into_iter().for_each(|message| out.put(self.group, Output::Tell(message)));
        }
        self.leaving.close_check = CloseCheck::Over;
        self.close(out);
    }

    /// A caller waits, once the group is closed, until all members have made the same calls: until this process
    /// [leaves](Self::leave).
    pub fn await_close_check(&mut self) {
        self.leaving.close_check = CloseCheck::Awaited;
    }

    /// No caller waits for that any more.
    pub fn end_close_check(&mut self, out: &mut impl Outputs) {
        self.leaving.close_check = CloseCheck::Over;
        out.put(self.group, Output::Leave);
    }

    /// No operation is under way any more in a closed group. This process takes no part in it from now on, unless a
    /// rank waits for the answers of others. `counts`: whether ranks have to make the same calls in it.
    pub fn leave(&mut self, counts: bool, out: &mut impl Outputs) -> Departure {
        if self.leaving.has_left {
            return Departure::Left(None);
        }
        let departure = self.depart(counts, out);
        if departure == Departure::Stays {
            return departure;
        }
        (self.leaving.has_left, self.leaving.close_check) = (true, CloseCheck::Over);
        let group = self.group;
        if counts && self.rules.counts_calls {
            let calls = self.member().map_or_else(Default::default, Member::calls);
            let held = Held { group, calls, operations: Vec::new() };
            out.put(group, Output::Tell(Message::Held(held)));
        }
        out.put(group, Output::Tell(Message::Forget { group }));
        departure
    }

    fn depart(&mut self, counts: bool, out: &mut impl Outputs) -> Departure {
        const LEAVES: Departure = Departure::Left(None);
        let (is_fenced, hub_is_gone) = (self.is_fenced(), self.hub_is_gone);
        let is_over = self.lost.is_some() || self.gone.is_some() || hub_is_gone;
        let Self { group, side, leaving: Leaving { close_check, .. }, .. } = self;
        let is_awaited = matches!(close_check, CloseCheck::Awaited | CloseCheck::Asked);
        let Side::Worker(member) = side else { return LEAVES };
        if *close_check == CloseCheck::Over {
            return LEAVES;
        }
        // An operation that was complete here has failed elsewhere.
        if let Some(cause) = member.take_unreported() {
            return Departure::Left(Some(cause));
        }
        if is_over || !counts {
            return LEAVES;
        }
        if is_fenced || member.phase() != Phase::Running {
            return if is_awaited { Departure::Stays } else { LEAVES };
        }
        if let Some(cause) = member.missed() {
            return Departure::Left(Some(Arc::new(cause)));
        }
        let Some(question) = member.question() else { return LEAVES };
        if *close_check != CloseCheck::Asked {
            out.put(*group, Output::Tell(Message::Confirm(question)));
        }
        if !is_awaited {
            return LEAVES;
        }
        *close_check = CloseCheck::Asked;
        Departure::Stays
    }
}
