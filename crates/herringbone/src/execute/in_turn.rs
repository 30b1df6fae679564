//! Messages of an operation that wait for their turn.

use super::{
    operation::{Io, Operation},
    prepare::Prepared,
};
use crate::core::{
    session::turns::Turn,
    wire::{Header, Kind},
};

impl Operation {
    /// Sends what has come to its turn. Returns whether anything has.
    pub(super) fn release(&mut self, prepared: &Prepared, io: &mut Io<'_>) -> bool {
        let mut any = false;
        while !self.awaits_word(io)
            && let Some(held) =
                self.room.held.first().copied().filter(|held| held.turn == self.room.line.turn())
        {
            self.room.held.pop_first();
            self.send_later(prepared, held.segment, held.instr, held.lane, io);
            any = true;
        }
        any
    }

    /// Sends to one receiver what could not go when its instruction ran.
    pub(super) fn send_later(
        &mut self,
        prepared: &Prepared,
        segment: u32,
        instr: u32,
        lane: u32,
        io: &mut Io<'_>,
    ) {
        if self.send_lanes(prepared, segment, instr, lane..lane + 1, io) == 1 {
            self.delivered(segment, instr);
        }
    }

    /// A message was handed to the kernel, or its link is of no use any more.
    pub(crate) fn handed_over(&mut self, segment: u32, instr: u32) {
        self.has_left();
        self.delivered(segment, instr);
    }

    /// A message of this turn has left, or need not.
    pub(super) fn has_left(&mut self) {
        let Some(turns) = &self.prepared.turns else { return };
        let to = self.room.line.with(turns);
        if let Some(ended) = self.room.line.pass(turns) {
            let peer = to.and_then(|rank| self.prepared.peer(rank));
            self.room.before = peer.map(|peer| (peer, ended));
        }
    }

    /// Whether this rank waits for word of another one before it sends on.
    pub(super) fn awaits_word(&self, io: &Io<'_>) -> bool {
        let is_away = |peer: usize| io.endpoints[self.room.flows[peer].endpoint as usize].is_away();
        self.awaited().is_some_and(|peer| !is_away(peer))
    }

    /// The peer whose word this rank waits for: that it has taken the turn before, or that it clears this one.
    pub(super) fn awaited(&self) -> Option<usize> {
        self.prepared.arrivals.as_ref()?;
        let to = self.prepared.peer(self.room.line.with(self.prepared.turns.as_ref()?)?)?;
        let flow = |peer: usize| &self.room.flows[peer];
        let not_taken =
            self.room.before.filter(|(peer, ended)| *peer != to && flow(*peer).taken < Some(*ended));
        let not_cleared = flow(to).cleared < Some(self.room.line.turn());
        not_taken.map(|(peer, _)| peer).or(not_cleared.then_some(to))
    }

    /// Lets the rank send from which messages are to come next.
    pub(super) fn clear(&self, io: &mut Io<'_>) {
        let Some(arrivals) = &self.prepared.arrivals else { return };
        if let Some(from) = self.room.arrivals.with(arrivals) {
            self.tell_of(Kind::Clear, from, self.room.arrivals.last_with_same(arrivals), io);
        }
    }

    /// A message has come over a link: if it was the last before another rank's, tells both ranks. Returns whether it was:
    /// they wait for that word.
    pub(crate) fn has_come(&mut self, io: &mut Io<'_>) -> bool {
        let Some(arrivals) = &self.prepared.arrivals else { return false };
        let from = self.room.arrivals.with(arrivals);
        let (Some(ended), Some(rank)) = (self.room.arrivals.pass(arrivals), from) else { return false };
        let changes = self.room.arrivals.with(arrivals) != from;
        if changes {
            self.clear(io);
            self.tell_of(Kind::Taken, rank, ended, io);
        }
        changes
    }

    fn tell_of(&self, kind: Kind, rank: u32, turn: Turn, io: &mut Io<'_>) {
        let Some(peer) = self.prepared.peer(rank) else { return };
        let header = Header { index: turn.number as u16, ..self.header(kind, turn.lap) };
        io.endpoints[self.room.flows[peer].endpoint as usize].notice(header);
    }
}
