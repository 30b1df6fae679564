//! Messages between two ranks of a group.

use super::handle::{GroupHandle, clash, make_known, settings_of};
use crate::{
    Error, ErrorKind, Result,
    core::{group::Rank, session::membership::MemberId},
    engine::{
        group::{self, Service, Settings},
        messages::{Channel, Posted, ToOrFrom},
    },
    fabric::Fabric,
    request::MessageRequest,
    work::Pending,
};
use std::sync::{Arc, PoisonError};

impl GroupHandle {
    /// Sends or receives a message.
    pub(super) fn post_message(
        &self,
        fabric: &Arc<Fabric>,
        to_or_from: ToOrFrom,
        message: MessageRequest,
        waits: bool,
    ) -> Result<Pending> {
        let operation = match to_or_from {
            ToOrFrom::To(_) => "send",
            ToOrFrom::From(_) => "recv",
        };
        let (node, rank) = (fabric.node.clone(), fabric.job.rank);
        let at = |error: Error| error.about(rank, operation);
        if fabric.is_forked() {
            // As in `Communicator::checked`: to drop what keeps the memory may need a lock that a thread of the parent held.
            std::mem::forget(message);
            return Err(at(Error::new(ErrorKind::Forked)));
        }
        let MessageRequest { envelope, region, timeout } = message;
        let (expected, actual) = (envelope.bytes().unwrap_or(usize::MAX), region.len());
        if expected != actual {
            let buffer = "the message's buffer";
            return Err(at(Error::new(ErrorKind::BufferSize { buffer, expected, actual })));
        }
        let peers = match to_or_from {
            ToOrFrom::To(peer) | ToOrFrom::From(Some(peer)) => peer..peer.saturating_add(1),
            ToOrFrom::From(None) => 0..self.members.len() as u32,
        };
        if matches!(to_or_from, ToOrFrom::From(_)) && !region.is_writable() {
            return Err(at(Error::unsupported(
                "the buffer of a receive is read-only: pass one that can be written",
            )));
        }
        for peer in peers {
            self.open_channel(fabric, peer).map_err(at)?;
        }
        let posted = Posted::new(envelope, region, timeout.unwrap_or_else(|| self.timeout()));
        let completion =
            node.post_message(waits, |engine| engine.post_message(self.number, to_or_from, posted));
        Ok(Pending { completion: completion.map_err(at)?, node, rank, operation })
    }

    /// Makes the groups that carry messages between this rank and another one, if they are not there.
    fn open_channel(&self, fabric: &Fabric, peer: Rank) -> Result<()> {
        let (me, size) = (self.rank, self.members.len() as u32);
        if peer >= size {
            let last = size - 1;
            let problem = format_args!("rank {peer} is no rank of the group: they are 0 to {last}");
            return Err(Error::unsupported(problem));
        }
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        let takes_calls = || fabric.node.with(|engine| engine.takes_calls(self.number));
        if peer == me || channels.contains(&peer) || !takes_calls() {
            return Ok(());
        }
        let pair = [me.min(peer), me.max(peer)];
        let members = pair.map(|rank| self.members[rank as usize]);
        let make = |carries: fn(Rank, Rank) -> Service, from: Rank, to: Rank| {
            self.make_pair_group(fabric, carries, from, to, members)
        };
        let channel = Channel {
            records_to: make(Service::Records, me, peer)?,
            records_from: make(Service::Records, peer, me)?,
            to: make(Service::Messages, me, peer)?,
            from: make(Service::Messages, peer, me)?,
        };
        fabric.node.with(|engine| engine.messages.add_channel(self.number, me, peer, channel));
        channels.insert(peer);
        Ok(())
    }

    /// Makes one group of two.
    fn make_pair_group(
        &self,
        fabric: &Fabric,
        carries: fn(Rank, Rank) -> Service,
        from: Rank,
        to: Rank,
        members: [MemberId; 2],
    ) -> Result<u32> {
        let what = if matches!(carries(from, to), Service::Records(..)) { "records" } else { "messages" };
        let name = format!("{what} of group {:08x} from {from} to {to}", self.number);
        let number = group::number_of(&name, &members);
        if fabric.node.with(|engine| engine.has_had_group(number)) {
            return Err(clash());
        }
        let in_job = |rank: Rank| fabric.job.roster.rank_of(self.members[rank as usize]);
        let serves = in_job(from).zip(in_job(to)).map(|(from, to)| carries(from, to));
        let place = Rank::from(self.rank > from.min(to));
        let settings = settings_of(fabric, number, place, &members, members.to_vec());
        let ordinal = fabric.node.with(|engine| {
            engine.runtime.out.observer.name_group(number, &name);
            engine.ordinal_of(self.number)
        });
        make_known(fabric, Settings { serves, ..settings }, ordinal);
        Ok(number)
    }
}
