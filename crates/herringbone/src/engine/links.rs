//! Links of an engine: made, served, broken.

use super::{Engine, Event, table::Table};
use crate::{
    execute::{operation::Operation, staging::Staging},
    sys::{doorbell, span::Span},
    transport::{
        Broken, Outgoing, Payload,
        endpoint::Link,
        tcp::Memory,
        ticket::{OpKey, Token},
    },
};
use rustix::event::epoll;
use std::mem::MaybeUninit;

/// How many sockets one look at the poller finds ready at most.
const SOCKETS_AT_ONCE: usize = 64;

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Haste {
    /// Host-mates, who answer through memory.
    Memory,
    /// Small messages, which come within a round trip.
    Message,
    /// Large ones, which take their time.
    Stream,
}

impl Engine {
    /// Hands to links what is in line for them: a little to each in turn, and not all ranks to the same one first, so that
    /// no link is flooded while others are idle.
    pub(crate) fn flush(&mut self) -> bool {
        let (mut moved, mut unannounced) = (false, false);
        let links = self.linked.len();
        for at in 0..links {
            let Some(&index) = self.linked.get((at + self.me as usize) % links) else { continue };
            let endpoint = &mut self.endpoints[index as usize];
            match &mut endpoint.link {
                Link::Shm(link) => {
                    moved |= link.flush();
                    unannounced |= link.is_unannounced();
                }
                Link::Tcp(link) if link.has_room && !link.is_flushed() => moved |= self.flush_socket(index),
                _ => {}
            }
        }
        if unannounced {
            self.announce();
        }
        moved
    }

    /// Wakes host-mates that sleep and were sent something: one fence for all of them.
    fn announce(&mut self) {
        doorbell::published();
        for index in &self.linked {
            if let Link::Shm(link) = &mut self.endpoints[*index as usize].link {
                link.announce();
            }
        }
    }

    /// Whether all links have taken what was in line for them.
    pub(crate) fn is_flushed(&mut self) -> bool {
        self.flush();
        !self.has_backlog()
    }

    /// Whether a link has not taken all that is in line for it.
    pub(super) fn has_backlog(&self) -> bool {
        self.linked.iter().any(|index| match &self.endpoints[*index as usize].link {
            Link::Tcp(link) => !link.is_flushed(),
            Link::Shm(link) => !link.is_flushed(),
            _ => false,
        })
    }

    /// How an answer can be expected to come, at the soonest. Where large messages go between hosts, host-mates wait for
    /// links, too.
    pub(crate) fn haste(&self) -> Haste {
        let streams = |operation: &Operation| !operation.prepared.eager && !operation.prepared.is_in_memory();
        if self.linked.len() > self.sockets && !self.ops.iter().any(streams) {
            Haste::Memory
        } else if self.ops.iter().any(|operation| operation.prepared.eager) {
            Haste::Message
        } else {
            Haste::Stream
        }
    }

    fn flush_socket(&mut self, index: u32) -> bool {
        let mut memory = Buffers { ops: &mut self.ops, staging: &self.staging };
        let mut sent = Vec::new();
        let endpoint = &mut self.endpoints[index as usize];
        let result = endpoint.flush_stream(&mut memory, |token| sent.push(token));
        let Link::Tcp(link) = &mut endpoint.link else { return false };
        let had_watch = std::mem::replace(&mut link.watched, !link.has_room);
        if link.watched != had_watch {
            let mut wanted = epoll::EventFlags::IN;
            wanted.set(epoll::EventFlags::OUT, link.watched);
            let data = epoll::EventData::new_u64(u64::from(index));
            // A socket that the poller does not know any more is about to be reported as broken.
            let _gone = epoll::modify(&*self.poller, link.fd(), data, wanted);
        }
        self.handed_over(sent);
        match result {
            Ok(moved) => moved,
            Err(reason) => {
                self.broken(index, reason);
                true
            }
        }
    }

    /// An operation has failed: links forget it, before its memory is given back.
    pub(super) fn cancel(&mut self, key: OpKey) {
        let Some(operation) = self.ops.get(key) else { return };
        let (partners, memory): (Vec<u32>, _) = (operation.endpoints().collect(), operation.memory.clone());
        let buffers = Buffers { ops: &mut self.ops, staging: &self.staging };
        for index in partners {
            self.endpoints[index as usize].cancel(key, &memory, &buffers);
        }
    }

    /// Messages whose memory no link needs any more: their operations go on.
    fn handed_over(&mut self, messages: Vec<Token>) {
        for Token { op, segment, instr } in messages {
            if let Some(operation) = self.ops.get_mut(op) {
                operation.handed_over(segment, instr);
                self.run(op);
            }
        }
    }

    /// Lets operations go on that waited for a rank's word: it says no more.
    fn run_with(&mut self, index: u32) {
        let has_part = |operation: &&Operation| operation.endpoints().any(|endpoint| endpoint == index);
        let keys: Vec<OpKey> = self.ops.iter().filter(has_part).map(|operation| operation.key).collect();
        keys.into_iter().for_each(|key| self.run(key));
    }

    pub(super) fn look_at_sockets(&mut self) -> bool {
        if self.sockets == 0 {
            return false;
        }
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; SOCKETS_AT_ONCE];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted look is taken again in the next turn.
        let Ok((events, _)) = epoll::wait(&*self.poller, &mut room[..], Some(&now)) else { return false };
        self.serve(events)
    }

    /// Reads and writes the sockets that the poller found ready.
    pub(crate) fn serve(&mut self, events: &[epoll::Event]) -> bool {
        let mut moved = false;
        for event in events {
            let index = event.data.u64();
            if index >= self.endpoints.len() as u64 {
                continue;
            }
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT)
                && let Link::Tcp(link) = &mut self.endpoints[index as usize].link
            {
                link.has_room = true;
                moved |= self.flush_socket(index as u32);
            }
            if flags.intersects(!epoll::EventFlags::OUT) {
                moved |= self.receive_socket(index as u32);
            }
        }
        moved
    }

    /// Puts a new link in place. If there was one, it is of no use to the other end any more.
    pub(crate) fn connect(&mut self, index: u32, link: Link) {
        if self.endpoints[index as usize].is_up() {
            self.broken(index, Broken::Closed);
        }
        let mut unwatched = None;
        if let Link::Tcp(link) = &link {
            let data = epoll::EventData::new_u64(u64::from(index));
            unwatched = epoll::add(&*self.poller, link.fd(), data, epoll::EventFlags::IN).err();
            self.sockets += 1;
            self.stats.connections += 1;
        }
        if let Link::Shm(link) = &link {
            self.board.read_by(link);
        }
        self.endpoints[index as usize].connect(link);
        self.links += 1;
        if let Err(at) = self.linked.binary_search(&index) {
            self.linked.insert(at, index);
        }
        if let Some(error) = unwatched {
            self.broken(index, Broken::Io(format!("its socket cannot be watched: {error}")));
        }
        if self.endpoints[index as usize].left.is_some() {
            self.read_to_the_end(index);
        }
        self.start_queued();
        self.flush();
    }

    /// A link is of no use any more. What is left to be sent on it nobody waits for, as for what is to be sent later.
    pub(crate) fn broken(&mut self, index: u32, reason: Broken) {
        let endpoint = &mut self.endpoints[index as usize];
        if endpoint.is_lost() {
            return;
        }
        let mut unsent = Vec::new();
        if let Link::Tcp(link) = &mut endpoint.link {
            unsent = link.give_up();
            // The descriptor closes right after this.
            let _gone = epoll::delete(&*self.poller, link.fd());
            self.sockets -= 1;
        }
        if endpoint.is_shared() {
            self.board.close();
        }
        endpoint.lose(reason.to_string());
        self.linked.retain(|at| *at != index);
        self.links += 1;
        self.events.push(Event::Broken { endpoint: index, reason });
        self.handed_over(unsent);
        self.run_with(index);
        if self.endpoints[index as usize].left.is_some() {
            self.departed();
        }
    }
}

/// Where links find outgoing payloads.
struct Buffers<'a> {
    ops: &'a mut Table,
    staging: &'a Staging,
}

impl Buffers<'_> {
    /// Where the checksum is kept that a frame has in common with others of its send.
    fn kept(&mut self, frame: &Outgoing) -> Option<&mut Option<u32>> {
        let token = frame.done?;
        Some(self.ops.get_mut(token.op)?.checksum(token.segment, token.instr))
    }
}

impl Memory for Buffers<'_> {
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R {
        match payload {
            Payload::None => f(Some(Span::of(&mut []))),
            Payload::Owned(bytes) => f(Some(Span::of_shared(bytes))),
            Payload::Staged(range) => f(Some(self.staging.segment().span(range.clone()))),
            Payload::User { op, output, range } => {
                let access = self.ops.get(*op).and_then(|operation| operation.user(*output));
                f(access.as_ref().map(|access| access.span().slice(range.clone())))
            }
        }
    }

    fn checksum(&mut self, frame: &Outgoing) -> u32 {
        if let Some(known) = self.kept(frame).and_then(|kept| *kept) {
            return known;
        }
        let checksum = self.with(&frame.payload, |span| span.map_or(0, Span::crc32c));
        if let Some(kept) = self.kept(frame) {
            *kept = Some(checksum);
        }
        checksum
    }
}

#[cfg(test)]
mod tests;
