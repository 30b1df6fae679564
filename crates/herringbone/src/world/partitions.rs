//! Machines that do not reach each other for a while. As with TCP nothing is lost by it: what was sent arrives later.

use super::VirtualWorld;
use crate::{clock::Moment, core::session::control::Message, transport::tcp::virtual_link::VirtualLink};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How often a link flaps.
const FLAPS: u32 = 4;

/// Whether a control message to a process arrives.
type Filter = Box<dyn FnMut(usize, &Message) -> bool>;

/// What is between the processes, besides their links.
#[derive(Default)]
pub(crate) struct Network {
    /// Control connections, by the end that is open.
    pub(super) control: BTreeSet<(usize, usize)>,
    /// How much longer control messages take than bytes of links.
    pub(super) control_delay: Duration,
    /// Until when nothing arrives at the second from the first.
    blocked: BTreeMap<(usize, usize), Moment>,
    /// Messages of control connections that this says `false` about are lost, which no connection does: a fault.
    pub(crate) filter: Option<Filter>,
}

impl Network {
    /// Control connections of rank 0 with all others.
    pub(super) fn between(workers: usize) -> Self {
        let control = (1..workers).flat_map(|rank| [(0, rank), (rank, 0)]).collect();
        Self { control, ..Self::default() }
    }
}

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
        if let Some((link, side)) = self.way(from, to) {
            link.hold(side, until);
        }
    }

    /// The link from one machine to another, of which one may be gone, and the side of the first.
    fn way(&self, from: usize, to: usize) -> Option<(VirtualLink, usize)> {
        self.link(from, to).or_else(|| self.link(to, from).map(|(link, side)| (link, 1 - side)))
    }

    /// Whether nothing that one machine sends to another arrives now.
    pub(super) fn is_blocked(&self, from: usize, to: usize) -> bool {
        self.network.blocked.get(&(from, to)).is_some_and(|until| *until > self.clock.now())
    }

    /// How long what one machine sends to another takes.
    pub(super) fn delay(&self, from: usize, to: usize) -> Duration {
        let until = self.network.blocked.get(&(from, to));
        let blocked = until.map_or(Duration::ZERO, |until| until.since(self.clock.now()));
        blocked + self.setup.nature.latency
    }
}
