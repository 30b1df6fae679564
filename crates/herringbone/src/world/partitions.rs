//! Machines that do not reach each other for a while. As with TCP nothing is lost by it: what was sent arrives later.

use super::VirtualWorld;
use crate::transport::tcp::virtual_link::PipeEnd;
use std::time::Duration;

/// How often a link flaps.
const FLAPS: u32 = 4;

/// How two machines do not reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partition {
    /// Neither reaches the other.
    Full,
    /// The first does not reach the second.
    OneWay,
    /// Neither reaches the other, over and over again for a short while.
    Flapping,
}

impl Partition {
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::OneWay, Self::Flapping];
}

impl VirtualWorld {
    /// Two machines do not reach each other for so long.
    pub(crate) fn part(&mut self, one: usize, other: usize, partition: Partition, time: Duration) {
        match partition {
            Partition::OneWay => self.block(one, other, time),
            Partition::Full => {
                [(one, other), (other, one)].into_iter().for_each(|(from, to)| self.block(from, to, time))
            }
            Partition::Flapping => {
                // As long as it is up in between.
                let down = time / (2 * FLAPS);
                for flap in 0..FLAPS {
                    self.later(2 * down * flap, move |world| world.part(one, other, Partition::Full, down));
                }
            }
        }
    }

    fn block(&mut self, from: usize, to: usize, time: Duration) {
        self.trace.note(self.clock.passed(), &format_args!("{from} does not reach {to} for {time:?}"));
        let until = self.clock.now() + time;
        let blocked = self.network.blocked.entry((from, to)).or_default();
        *blocked = until.max(*blocked);
        if let Some(PipeEnd { link, side }) = self.way(from, to) {
            link.hold(side, until);
        }
    }

    /// A machine's end of the link to another one, of which one may be gone.
    fn way(&self, from: usize, to: usize) -> Option<PipeEnd> {
        let back = || self.link(to, from).map(|PipeEnd { link, side }| PipeEnd { link, side: 1 - side });
        self.link(from, to).or_else(back)
    }

    /// Whether nothing that one machine sends to another arrives now.
    pub(super) fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.network.blocked.get(&(from, to)).is_some_and(|until| *until > self.clock.now())
    }

    /// How long what one machine sends to another takes.
    pub(super) fn delay(&self, from: usize, to: usize) -> Duration {
        let until = self.network.blocked.get(&(from, to));
        let blocked = until.map_or(Duration::ZERO, |until| until.since(self.clock.now()));
        blocked + self.setup.conditions.latency
    }
}
