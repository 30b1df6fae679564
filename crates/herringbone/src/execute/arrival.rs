//! Messages that arrive: checked against the schedule, and noted.

use super::operation::Operation;
use crate::{
    execute::{
        program::{Head, Kind, Loc},
        room::Arrived,
    },
    {
        core::wire::Header,
        transport::{Broken, Destination},
    },
};

impl Operation {
    /// Where the payload of an arriving message goes: a result straight to where it belongs if nothing that the schedule
    /// does before has to be waited for, everything else to its place in my staging memory.
    pub(crate) fn place(&self, endpoint: u32, header: &Header) -> Result<Destination, Broken> {
        let (head, _) = self.expected(endpoint, header)?;
        let at = self.stage(header.segment) * self.prepared.instrs.len() + head.instr as usize;
        let only_for_this = self.room.waits[at] == 1 && header.segment < self.begun;
        Ok(match self.prepared.instrs[head.instr as usize].kind {
            Kind::Recv { into: Loc::Output(chunk), .. } if only_for_this => {
                Destination::User { op: self.key, range: self.prepared.output(chunk, header.segment) }
            }
            _ if head.placed => {
                return Err(Broken::Protocol("a result before all of what it is made of was sent"));
            }
            _ => Destination::Staged(self.stage_at(header.segment) + head.offset),
        })
    }

    /// The head that a frame is for, after all its numbers are checked against what the schedule says.
    fn expected(&self, endpoint: u32, header: &Header) -> Result<(&Head, usize), Broken> {
        let at = self.room.flows.iter().position(|flow| flow.endpoint == endpoint);
        let head = at.and_then(|at| self.prepared.peers[at].heads.get(header.index as usize));
        let Some(&head) = head else {
            return Err(Broken::Protocol("a message that the schedule does not have"));
        };
        if header.segment < self.finished || header.segment >= self.finished + self.prepared.depth {
            return Err(Broken::Protocol("a message outside its window"));
        }
        let wanted = &self.prepared.heads[head as usize];
        if header.length as usize != self.prepared.bytes(wanted.chunk, header.segment, wanted.form) {
            return Err(Broken::Protocol("a message of the wrong length"));
        }
        Ok((wanted, self.stage(header.segment) * self.prepared.heads.len() + head as usize))
    }

    /// A message is here: `fetch` says where, given its place in my staging memory.
    pub(crate) fn arrive(
        &mut self,
        endpoint: u32,
        header: &Header,
        fetch: impl FnOnce(usize) -> Result<Arrived, Broken>,
    ) -> Result<(), Broken> {
        let (head, at) = self.expected(endpoint, header)?;
        if self.room.heads[at] != Arrived::No {
            return Err(Broken::Protocol("a message that came before"));
        }
        let (instr, offset) = (head.instr, head.offset);
        let arrived = fetch(self.stage_at(header.segment) + offset)?;
        if matches!(arrived, Arrived::Direct(_)) && !self.prepared.may_be_direct(head) {
            return Err(Broken::Protocol("a place for a result that may lie on what it is made of"));
        }
        self.room.heads[at] = arrived;
        self.satisfied(header.segment, instr);
        Ok(())
    }
}
