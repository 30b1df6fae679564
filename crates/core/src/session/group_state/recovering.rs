//! Whether operations use a group's reducers, which can be lost and come; see [recovery](super::super::recovery).

use super::{
    super::{
        control::Message,
        recovery::{Held, Holding, Resume, successor_of},
    },
    GroupState, Output, Outputs, Side,
};
use alloc::vec::Vec;

/// Whether operations use the reducers of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReducerUse {
    /// Operations whose plans use reducers use them.
    #[default]
    InUse,
    /// Operations that use reducers stand still, until the hub has decided.
    Suspended,
    /// None any more.
    Replaced {
        /// From the operation of this number on the group's calls
        from: u64,
        /// are calls of this group.
        by: u32,
    },
}

impl GroupState {
    /// Whether operations use the group's reducers.
    pub fn reducers(&self) -> ReducerUse {
        self.reducers
    }

    /// Whether operations that use reducers stand still, since the report to the hub.
    pub fn holds_still(&self) -> bool {
        self.rules.stands_still && self.reducers != ReducerUse::InUse
    }

    /// The group whose calls this one's are, from a number on.
    pub fn replaced(&self) -> Option<(u64, u32)> {
        match self.reducers {
            ReducerUse::Replaced { from, by } => Some((from, by)),
            _ => None,
        }
    }

    /// The group that this one's calls are next, if it has come so far.
    pub fn successor(&self) -> Option<u32> {
        self.replaced().filter(|(from, _)| self.next() >= *from).map(|(_, by)| by)
    }

    /// Whether nothing more is called in it here, and nothing more will [become
    /// known](super::super::fence::Member::is_settled) about its calls.
    pub fn is_past(&self) -> bool {
        self.successor().is_some() && self.member().is_none_or(|member| member.is_settled())
    }

    /// Another group takes the calls of the one that [takes](Self::replaced) this one's.
    pub fn replaced_by(&mut self, another: u32) {
        if let ReducerUse::Replaced { by, .. } = &mut self.reducers {
            *by = another;
        }
    }

    /// The hub asks for this process's holdings of operations that use reducers: this answer, and nothing of it changes
    /// from now on.
    pub fn suspend(&mut self, operations: Vec<Holding>, out: &mut impl Outputs) {
        self.reducers = ReducerUse::Suspended;
        let held = Held { group: self.group, calls: self.calls(), operations };
        out.put(self.group, Output::Tell(Message::Held(held)));
    }

    /// The hub has decided how the group continues. Returns whether this is the first such decision.
    ///
    /// Ranks that had not made the group when the hub asked could not report the number of its first call. If the ranks
    /// that could are dead, the hub's number lies before the first call.
    pub fn resume(&mut self, resume: &Resume) -> bool {
        if self.replaced().is_some() {
            return false;
        }
        let mut from = resume.calls.next;
        if let Side::Worker(member) = &mut self.side {
            member.follow(resume);
            from = from.max(member.first());
        }
        self.reducers = ReducerUse::Replaced { from, by: successor_of(self.group) };
        true
    }

    /// The same, before this process has made the group. Returns whether it was [asked](Self::suspend) before.
    pub fn resume_early(&mut self, resume: Resume) -> bool {
        let was_asked = self.reducers == ReducerUse::Suspended;
        self.early_resume = Some(resume).filter(|_| was_asked);
        was_asked
    }

    /// The decision from [before](Self::resume_early) the group was made.
    pub fn take_early_resume(&mut self) -> Option<Resume> {
        self.early_resume.take()
    }
}
