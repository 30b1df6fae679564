//! Messages of an operation that wait for their turn.

use super::{
    operation::{Io, Operation},
    prepare::Prepared,
};

impl Operation {
    /// Sends what has come to its turn. Returns whether anything has.
    pub(super) fn release(&mut self, prepared: &Prepared, io: &mut Io<'_>) -> bool {
        let mut any = false;
        while let Some(held) =
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
        if let Some(turns) = &self.prepared.turns {
            self.room.line.left(turns, self.prepared.segments, self.prepared.depth());
        }
    }
}
