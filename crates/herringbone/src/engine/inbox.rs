//! Incoming data: checked against the agreements, then handed to its operation, or kept until that begins.

use super::{
    Engine, begin,
    early::{Content, Parked},
    group::Group,
    groups::Verdict,
    introduced,
    outbox::{Deferred, Event},
    runtime::Runtime,
};
use crate::{
    core::{
        execution::Arrived,
        session::{
            Cause,
            control::{Decoder, Message},
            lane::EAGER_BYTES,
            membership::MemberId,
        },
        wire::{Fingerprint, Header, Kind},
    },
    sys::span::Span,
    transport::{
        Broken, Destination, Inbox, endpoint::Endpoint, endpoint::Link, frame::Body, shm::Source,
        ticket::OpKey,
    },
};
use std::time::Duration;

/// The largest control message on a data link.
const CONTROL_BYTES: usize = 128 << 10;

impl Engine {
    /// Takes in what a local rank has sent. Returns whether there was anything.
    pub(super) fn receive_shared(&mut self, index: MemberId) -> bool {
        self.receive_from(index, Source::Lane) | self.receive_from(index, Source::Board)
    }

    fn receive_from(&mut self, index: MemberId, source: Source) -> bool {
        let mut moved = false;
        loop {
            let result = match self.runtime.links.endpoints[index].peek(source) {
                Ok(None) => return moved,
                Ok(Some((header, body))) => {
                    self.frame(index, &header, body.map_or(Content::None, Content::Shared))
                }
                Err(reason) => Err(reason),
            };
            moved = true;
            self.runtime.links.endpoints[index].take(source);
            if let Err(reason) = result {
                self.runtime.out.push(Deferred::Broken { endpoint: index, reason });
                return moved;
            }
        }
    }

    /// Reads a socket. Returns whether there was anything.
    pub(super) fn receive_socket(&mut self, index: MemberId) -> bool {
        let Link::Tcp(link) = &mut self.runtime.links.endpoints[index].link else { return false };
        let Some(mut incoming) = link.take_incoming() else { return false };
        let result = incoming.receive(&mut Reading { engine: self, endpoint: index });
        if let Link::Tcp(link) = &mut self.runtime.links.endpoints[index].link {
            link.put_back(incoming);
        }
        match result {
            Ok(moved) => {
                if moved {
                    self.runtime.links.endpoints[index].silence = Duration::ZERO;
                }
                moved
            }
            Err(reason) => {
                self.runtime.out.push(Deferred::Broken { endpoint: index, reason });
                true
            }
        }
    }

    /// One frame.
    fn frame(&mut self, index: MemberId, header: &Header, content: Content) -> Result<(), Broken> {
        if self.runtime.links.endpoints[index].returned(header.credits) {
            self.retry(index);
        }
        match header.kind {
            Kind::Credit => return Ok(()),
            Kind::Data if matches!(content, Content::Skipped) => {
                self.runtime.links.endpoints[index].emptied(header.eager);
                return Ok(());
            }
            Kind::Control => {
                if let Content::Bytes(bytes) = content {
                    self.receive_control(index, &bytes);
                }
                return Ok(());
            }
            Kind::Data | Kind::Grant | Kind::Stable => {}
            Kind::Request | Kind::Answer => return Err(Broken::Protocol("a request for a table, in a job")),
        }
        match self.judge(header) {
            Verdict::Deliver(key) if self.disagrees(index, key, header) => {}
            Verdict::Deliver(key) => self.deliver(index, key, header, content)?,
            Verdict::Park => return self.park(index, *header, content),
            Verdict::NotRunning | Verdict::Discard => {}
        }
        self.runtime.links.endpoints[index].emptied(header.eager);
        Ok(())
    }

    /// What to do with a frame.
    fn judge(&mut self, header: &Header) -> Verdict {
        let Runtime { links, groups, out, .. } = &mut self.runtime;
        match groups.judge(header, links.rank, out) {
            Verdict::NotRunning if self.runtime.backlog.has(header.group, header.sequence) => Verdict::Park,
            Verdict::Deliver(key) if self.stands_still(header.group, key) => Verdict::Discard,
            verdict => verdict,
        }
    }

    /// Whether nothing of an operation changes any more, as its group has lost a reducer.
    fn stands_still(&self, group: u32, key: OpKey) -> bool {
        self.recoveries.have_begun()
            && self.runtime.groups.get(group).is_some_and(|group| group.state.holds_still())
            && self.runtime.ops.get(key).is_some_and(|operation| operation.with_reducers())
    }

    /// Whether a message says another length of its part than this rank expects. If so, the group is to be fenced.
    fn disagrees(&mut self, index: MemberId, key: OpKey, header: &Header) -> bool {
        let Runtime { links, groups, ops, out, .. } = &mut self.runtime;
        let Some(operation) = ops.get(key).filter(|_| header.kind == Kind::Data) else { return false };
        let Some((sent, expected)) = operation.disagrees(index, header) else { return false };
        if let Some(from) = links.endpoints[index].rank
            && let Some(Group { state, .. }) = groups.get_mut(operation.id.group)
            && let Some(operation) = state.issued(operation.id.fingerprint.sequence).copied()
        {
            state.dispute(Cause::Uneven { operation, from, to: links.rank, sent, expected }, out);
        }
        true
    }

    /// A frame whose operation runs.
    fn deliver(
        &mut self,
        index: MemberId,
        key: OpKey,
        header: &Header,
        content: Content,
    ) -> Result<(), Broken> {
        let Runtime { links, ops, out, .. } = &mut self.runtime;
        let Some((operation, mut io)) = ops.running(key, links, out) else { return Ok(()) };
        if header.kind == Kind::Data {
            let (segment, endpoint) = (io.staging.segment(), &io.endpoints[index]);
            let (is_mapped, eager) = (operation.is_mapped(), operation.prepared().eager);
            let length = header.length as usize;
            operation.arrive(index, header, |place| {
                // What goes straight into the user's buffer has no place there.
                fetch(content, length, || segment.span(place..place + length), endpoint, is_mapped, eager)
            })?;
            operation.inspect(index, header, &io)?;
            io.observer.received(&operation.id, header.segment, index, &io.endpoints[index], length);
        } else {
            operation.receive_signal(index, header, &mut io)?;
        }
        self.runtime.out.push(Deferred::Run(key));
        Ok(())
    }

    /// A frame whose operation has not begun.
    fn park(&mut self, index: MemberId, header: Header, content: Content) -> Result<(), Broken> {
        let Runtime { links, ops, backlog, out, .. } = &mut self.runtime;
        backlog.park(index, header, content, links)?;
        out.finished |= backlog.is_called(header.group);
        if self.messages.serves(header.group) {
            out.push(Deferred::Served(header.group));
        }
        if header.eager && links.endpoints[index].is_crowded() {
            for key in ops.table.keys() {
                let Some((operation, mut io)) = ops.running(key, links, out) else { continue };
                operation.open_to(index, &mut io);
            }
        }
        Ok(())
    }

    /// Looks again at frames that came early.
    pub(super) fn redeliver(&mut self, early: Vec<Parked>) {
        for Parked { endpoint, mut header, body } in early {
            self.runtime.links.endpoints[endpoint].parked -= u16::from(header.eager);
            header.credits = 0;
            if let Err(reason) = self.frame(endpoint, &header, body) {
                self.runtime.out.push(Deferred::Broken { endpoint, reason });
            }
        }
    }

    /// Tries again to send what waited for eager slots, as far as they go.
    fn retry(&mut self, index: MemberId) {
        let Runtime { links, ops, out, .. } = &mut self.runtime;
        while let Some(key) = links.endpoints[index].next_in_line() {
            let Some((operation, mut io)) = ops.running(key, links, out) else { continue };
            if operation.is_blocked_on(index) {
                operation.retry(&mut io);
                out.push(Deferred::Run(key));
            }
        }
    }

    /// A reducer tells this rank what went wrong in a group, which is for the hub, or that it ends.
    fn receive_control(&mut self, index: MemberId, bytes: &[u8]) {
        let mut decoder = Decoder::new(crc32c::crc32c);
        decoder.push(bytes);
        match decoder.next_message() {
            Ok(Some(message @ Message::Dispute(_))) => self.runtime.out.events.push(Event::ToHub(message)),
            Ok(Some(Message::Bye)) if self.runtime.links.endpoints[index].is_reducer() => self.drains(index),
            _ => {}
        }
    }

    /// A worker tells a reducer of a group, of its next generation, of a plan, or that it needs the group no more.
    fn instructed(&mut self, worker: MemberId, bytes: &[u8]) -> Result<(), Broken> {
        let mut decoder = Decoder::new(crc32c::crc32c);
        decoder.push(bytes);
        match decoder.next_message() {
            Ok(Some(Message::Parameters { group, parameters })) => {
                self.runtime.groups.learn_parameters(group, *parameters)
            }
            Ok(Some(Message::Introduce(group))) => {
                self.runtime.links.endpoints.meet(&group.members);
                introduced::join(&mut self.runtime, worker, &group)
            }
            Ok(Some(Message::Planned(planned))) => {
                self.runtime.groups.learn_plan(&self.runtime.links.endpoints[worker].name, &planned)
            }
            Ok(Some(Message::Forget { group })) => {
                introduced::dropped_by(&mut self.runtime, worker, group);
                Ok(())
            }
            Ok(Some(Message::Hub { address })) => {
                self.runtime.links.hub = Some(address);
                Ok(())
            }
            Ok(Some(Message::JobName(name))) => {
                self.runtime.links.job.get_or_insert(name);
                Ok(())
            }
            Ok(Some(Message::Bye)) => {
                self.runtime.links.endpoints[worker].drains = true;
                Ok(())
            }
            _ => Err(Broken::Protocol("a message that is not for reducers")),
        }
    }

    /// What a reducer is told about an operation by a worker's first message.
    fn announced(&mut self, worker: MemberId, header: &Header, sent: &Fingerprint) -> Result<(), Broken> {
        let Runtime { links, groups, out, .. } = &mut self.runtime;
        match groups.announced(links.endpoints[worker].rank.unwrap_or_default(), header, sent, out)? {
            true => begin::begin_sent(&mut self.runtime, header, *sent),
            false => Ok(()),
        }
    }
}

/// Where the payload of an operation's message is, of so many bytes, after it was copied to its place `to` in my staging memory if it
/// has to be.
fn fetch<'a>(
    content: Content,
    bytes: usize,
    to: impl FnOnce() -> Span<'a>,
    endpoint: &Endpoint,
    is_mapped: bool,
    eager: bool,
) -> Result<Arrived, Broken> {
    let outside = Broken::Protocol("a message outside its segment");
    match content {
        Content::Shared(Body::At(at) | Body::Direct(at)) if endpoint.payload(at, bytes).is_none() => {
            Err(outside)
        }
        Content::Shared(Body::At(at)) => Ok(Arrived::At(at)),
        Content::Shared(Body::Direct(at)) => Ok(Arrived::Direct(at)),
        Content::Shared(Body::Placed) if is_mapped => Ok(Arrived::Placed),
        // Others have no place here, or only once it is known that nobody needs what is there.
        Content::Shared(Body::Carried(_)) | Content::Bytes(_) if !eager => {
            Err(Broken::Protocol("an eager message of an operation that has none"))
        }
        Content::Shared(Body::Carried(at)) => {
            to().copy_from(endpoint.payload(at, bytes).ok_or(outside)?);
            Ok(Arrived::Staged)
        }
        Content::Bytes(payload) if payload.len() == bytes => {
            to().write(&payload);
            Ok(Arrived::Staged)
        }
        Content::InPlace => Ok(Arrived::Staged),
        Content::Placed => Ok(Arrived::Placed),
        _ => Err(Broken::Protocol("a message without its payload")),
    }
}

/// The engine while one of its links is being read.
struct Reading<'a> {
    engine: &'a mut Engine,
    endpoint: MemberId,
}

impl Inbox for Reading<'_> {
    fn admit(&mut self, header: &Header, fingerprint: Option<&Fingerprint>) -> Result<Destination, Broken> {
        let length = header.length as usize;
        match header.kind {
            Kind::Control if length <= CONTROL_BYTES => return Ok(Destination::Owned(vec![0; length])),
            Kind::Data => {}
            _ if length == 0 => return Ok(Destination::Skip),
            _ => return Err(Broken::Protocol("a payload for a message that has none")),
        }
        if let (Some(sent), true) = (fingerprint, self.engine.reduces) {
            self.engine.announced(self.endpoint, header, sent)?;
        }
        match self.engine.judge(header) {
            Verdict::Deliver(key) if self.engine.disagrees(self.endpoint, key, header) => {
                Ok(Destination::Skip)
            }
            Verdict::Deliver(key) => match self.engine.runtime.ops.get(key) {
                Some(operation) => operation.place(self.endpoint, header),
                None => Ok(Destination::Skip),
            },
            Verdict::Park if header.eager && length <= EAGER_BYTES => Ok(Destination::Owned(vec![0; length])),
            Verdict::Park => Err(Broken::Protocol("a large message without a grant")),
            Verdict::NotRunning | Verdict::Discard => Ok(Destination::Skip),
        }
    }

    fn with<R>(
        &self,
        destination: &mut Destination,
        length: usize,
        f: impl FnOnce(Option<Span<'_>>) -> R,
    ) -> R {
        let ops = &self.engine.runtime.ops;
        match destination {
            Destination::Staged(at) => f(Some(ops.staging.segment().span(*at..*at + length))),
            Destination::User { op, range } => {
                let access = ops.get(*op).and_then(|operation| operation.user(true));
                f(access.as_ref().map(|access| access.span().slice(range.clone())))
            }
            Destination::Owned(bytes) => f(Some(Span::of(bytes))),
            Destination::Skip => f(None),
        }
    }

    fn arrived(&mut self, header: &Header, destination: Destination) -> Result<(), Broken> {
        let content = match destination {
            Destination::Staged(_) => Content::InPlace,
            Destination::User { .. } => Content::Placed,
            Destination::Owned(bytes) if header.kind == Kind::Control && self.engine.reduces => {
                self.engine.instructed(self.endpoint, &bytes)?;
                Content::None
            }
            Destination::Owned(bytes) => Content::Bytes(bytes),
            Destination::Skip if header.kind == Kind::Data => Content::Skipped,
            Destination::Skip => Content::None,
        };
        // At once: a second message in its place is refused, also behind it in the same read.
        self.engine.frame(self.endpoint, header, content)
    }

    fn matters(&self, header: &Header) -> bool {
        !self.engine.runtime.groups.is_over(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else up to 4 KiB that a rank sends would be written to memory that is no message's.
    #[test]
    fn an_eager_message_has_no_place_in_an_operation_that_has_none() {
        let endpoint = Endpoint::new("rank 1".to_owned(), Some(1));
        for eager in [false, true] {
            let mut place = [0; 4];
            let content = Content::Bytes(vec![7; 4]);
            let arrived = fetch(content, 4, || Span::of(&mut place), &endpoint, false, eager);
            assert_eq!(arrived.is_ok(), eager);
            assert_eq!(place, [if eager { 7 } else { 0 }; 4]);
        }
    }
}
