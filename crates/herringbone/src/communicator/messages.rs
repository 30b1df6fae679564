//! Messages between two ranks.

use super::{Communicator, Work, make_known, settings_of};
use crate::{
    Error, ErrorKind, Result,
    core::{element::Element, group::Rank, session::membership::MemberId},
    engine::{
        group::{self, Settings},
        messages::{Called, Channel, ToOrFrom},
    },
    request::MessageRequest,
    sys::{plain::Plain, region::Region},
    work::Pending,
};
use std::sync::{Arc, PoisonError};

impl Communicator {
    /// Sends `values` to rank `to`, which receives as many with the same tag. Returns when it has them, or has a place for
    /// them and they have left.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on both ranks if the receiver asks for another number or type of elements; else see
    /// [`ErrorKind`].
    pub fn send<T: Element + Plain>(&self, values: &[T], to: u32, tag: i64) -> Result<()> {
        Region::lend_shared(values, |region| {
            let message = MessageRequest::new(T::DTYPE, values.len(), region.clone()).tag(tag);
            self.exchange(ToOrFrom::To(to), message, true)?.wait()
        })
    }

    /// Receives `values` from a rank, or from any rank of the group if none is named: then from the one whose message of this
    /// tag comes first. Returns the sender's rank.
    ///
    /// Receives of one tag are served in the order of their calls, and messages of one sender and tag in the order in which
    /// they were sent.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] on both ranks if the sender gives another number or type of elements; else see [`ErrorKind`].
    pub fn recv<T: Element + Plain>(
        &self,
        values: &mut [T],
        from: impl Into<Option<u32>>,
        tag: i64,
    ) -> Result<u32> {
        let count = values.len();
        Region::lend(values, |region| {
            let message = MessageRequest::new(T::DTYPE, count, region.clone()).tag(tag);
            let pending = self.exchange(ToOrFrom::From(from.into()), message, true)?;
            pending.wait()?;
            pending.source().ok_or_else(|| Error::new(ErrorKind::Closed))
        })
    }

    /// As [`send`](Self::send), in the background; the values come back with [`Work::wait`].
    ///
    /// # Errors
    /// If the message cannot be issued; see [`ErrorKind`].
    pub fn send_async<T: Element + Plain>(&self, values: Vec<T>, to: u32, tag: i64) -> Result<Work<T>> {
        let (count, buffer) = (values.len(), Region::own(values));
        let message = MessageRequest::new(T::DTYPE, count, buffer.region().clone()).tag(tag);
        Ok(Work { pending: self.submit_send(to, message)?, buffer })
    }

    /// As [`recv`](Self::recv), in the background; the `count` elements come with [`Work::wait`].
    ///
    /// # Errors
    /// If the receive cannot be issued; see [`ErrorKind`].
    pub fn recv_async<T: Element + Plain + Default>(
        &self,
        count: usize,
        from: impl Into<Option<u32>>,
        tag: i64,
    ) -> Result<Work<T>> {
        let buffer = Region::own(vec![T::default(); count]);
        let message = MessageRequest::new(T::DTYPE, count, buffer.region().clone()).tag(tag);
        Ok(Work { pending: self.submit_recv(from, message)?, buffer })
    }

    /// Sends a message and returns at once. Its region must not be touched until it is over.
    ///
    /// # Errors
    /// If it cannot be issued; see [`ErrorKind`].
    pub fn submit_send(&self, to: u32, message: MessageRequest) -> Result<Pending> {
        self.exchange(ToOrFrom::To(to), message, false)
    }

    /// Receives a message from a rank, or from any, and returns at once. Its region must not be touched until it is over; then
    /// [`Pending::source`] says from whom it came.
    ///
    /// # Errors
    /// If it cannot be issued; see [`ErrorKind`].
    pub fn submit_recv(&self, from: impl Into<Option<u32>>, message: MessageRequest) -> Result<Pending> {
        self.exchange(ToOrFrom::From(from.into()), message, false)
    }

    fn exchange(&self, to_or_from: ToOrFrom, message: MessageRequest, waits: bool) -> Result<Pending> {
        self.check_usable()?;
        let at = |error: Error| error.at(self.fabric.job.rank);
        let MessageRequest { envelope, region, timeout } = message;
        let (expected, actual) = (envelope.bytes().unwrap_or(usize::MAX), region.len());
        if expected != actual {
            let buffer = "the message's buffer";
            return Err(at(Error::new(ErrorKind::BufferSize { buffer, expected, actual })));
        }
        let peers = match to_or_from {
            ToOrFrom::To(peer) | ToOrFrom::From(Some(peer)) => peer..peer.saturating_add(1),
            ToOrFrom::From(None) => 0..self.size(),
        };
        if matches!(to_or_from, ToOrFrom::From(_)) && !region.is_writable() {
            return Err(at(Error::unsupported("the buffer of a receive can only be read")));
        }
        for peer in peers {
            self.open_channel(peer).map_err(at)?;
        }
        let called = Called::new(envelope, region, timeout.unwrap_or_else(|| self.timeout()));
        let node = &self.fabric.node;
        let completion =
            node.exchange(waits, |engine| engine.exchange(self.group.number, to_or_from, called));
        Ok(self.pending(completion.map_err(at)?))
    }

    /// Makes the groups that carry messages between this rank and another one, if they are not there.
    fn open_channel(&self, peer: Rank) -> Result<()> {
        let (me, group) = (self.rank(), self.group.number);
        if peer >= self.size() {
            let last = self.size() - 1;
            let problem = format_args!("rank {peer} is no rank of the group: they are 0 to {last}");
            return Err(Error::unsupported(problem));
        }
        let mut channels = self.group.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if peer == me || channels.contains(&peer) || !self.takes_calls() {
            return Ok(());
        }
        let pair = [me.min(peer), me.max(peer)];
        let members = pair.map(|rank| self.group.members[rank as usize]);
        let make = |what: &str, from: Rank, to: Rank| self.make_carrier(what, (from, to), members);
        let channel = Channel {
            records_to: make("records", me, peer)?,
            records_from: make("records", peer, me)?,
            to: make("messages", me, peer)?,
            from: make("messages", peer, me)?,
        };
        self.fabric.node.with(|engine| engine.messages.add_channel(group, (me, peer), channel));
        channels.insert(peer);
        Ok(())
    }

    /// Makes one group of two.
    fn make_carrier(&self, what: &str, (from, to): (Rank, Rank), members: [MemberId; 2]) -> Result<u32> {
        let fabric: &Arc<_> = &self.fabric;
        let name = format!("{what} of group {:08x} from {from} to {to}", self.group.number);
        let number = group::number_of(&name, &members);
        if fabric.node.with(|engine| engine.has_had_group(number)) {
            return Err(Error::config("the name of a group", "it meets another one: choose other names"));
        }
        let in_job = |rank: Rank| fabric.job.roster.rank_of(self.group.members[rank as usize]);
        let carries = in_job(from).zip(in_job(to));
        let place = Rank::from(self.rank() > from.min(to));
        let settings = settings_of(fabric, number, (place, &members), members.to_vec());
        fabric.node.with(|engine| engine.out.observer.name_group(number, &name));
        make_known(fabric, Settings { carries, ..settings });
        Ok(number)
    }
}
