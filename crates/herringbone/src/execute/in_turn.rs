//! Messages of an operation that wait for their turn.

use super::operation::Operation;
use crate::{
    execute::{io::Io, program::Prepared},
    {
        core::{
            session::turns::Words,
            wire::{Header, Kind},
        },
        transport::Broken,
    },
};

impl Operation {
    /// Sends what has come to its turn. Returns whether anything has.
    pub(super) fn release(&mut self, prepared: &Prepared, io: &mut Io<'_>) -> bool {
        let mut any = false;
        while !self.awaits_word(io)
            && let Some(&(turn, unsent)) = self.room.held.first()
            && turn == self.room.sending.line.turn()
        {
            self.room.held.pop_first();
            self.send_later(prepared, unsent, io);
            any = true;
        }
        any
    }

    /// A message was handed to the kernel, or its link is of no use any more.
    pub(crate) fn handed_over(&mut self, segment: u32, instr: u32) {
        self.has_left();
        self.delivered(segment, instr);
    }

    /// A message of this turn has left, or need not.
    pub(super) fn has_left(&mut self) {
        if let Some(turns) = &self.prepared.turns {
            self.room.sending.left(turns);
        }
    }

    /// Whether this rank waits for word of another one before it sends on.
    pub(super) fn awaits_word(&self, io: &Io<'_>) -> bool {
        self.awaited(|endpoint| io.endpoints[endpoint as usize].is_away()).is_some()
    }

    /// The peer whose word this rank waits for, if not of one that is away.
    pub(super) fn awaited(&self, is_away: impl Fn(u32) -> bool) -> Option<usize> {
        self.prepared.arrivals.as_ref()?;
        let turns = self.prepared.turns.as_ref()?;
        let heard = |rank| {
            let flow = &self.room.flows[self.prepared.peer(rank)?];
            (!is_away(flow.endpoint)).then_some(flow.heard)
        };
        self.room.sending.awaited(turns, heard).and_then(|rank| self.prepared.peer(rank))
    }

    /// Lets the rank send from which messages are to come first.
    pub(super) fn welcome(&self, io: &mut Io<'_>) {
        if let Some(arrivals) = &self.prepared.arrivals {
            self.say(self.room.arrivals.welcome(arrivals), io);
        }
    }

    /// A message has come. Returns whether others wait for word of that.
    pub(crate) fn has_come(&mut self, endpoint: u32, io: &mut Io<'_>) -> Result<bool, Broken> {
        let Some(arrivals) = &self.prepared.arrivals else { return Ok(false) };
        let from = self.room.flows.iter().position(|flow| flow.endpoint == endpoint);
        if from.is_some_and(|peer| self.prepared.peers[peer].shared) {
            return Ok(false);
        }
        let whose = self.room.arrivals.with(arrivals).and_then(|rank| self.prepared.peer(rank));
        if whose != from {
            return Err(Broken::Protocol("a message whose turn was not cleared"));
        }
        let words = self.room.arrivals.came(arrivals);
        self.say(words, io);
        Ok(words != Words::default())
    }

    fn say(&self, words: Words, io: &mut Io<'_>) {
        for (kind, word) in [(Kind::Clear, words.clear), (Kind::Taken, words.taken)] {
            let Some((rank, turn)) = word else { continue };
            let Some(peer) = self.prepared.peer(rank) else { continue };
            let header = Header { index: turn.number as u16, ..self.header(kind, turn.lap) };
            io.endpoints[self.room.flows[peer].endpoint as usize].notice(header);
        }
    }
}
