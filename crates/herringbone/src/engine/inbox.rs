//! What arrives: checked against what was agreed, then handed to its operation, or kept until that begins.

use super::{Engine, Event, early::Parked, failure};
use crate::{
    core::{
        session::{
            Cause, Mismatch,
            control::{Decoder, Introduction, Message},
            fence::{Admission, Check},
            lane::EAGER_BYTES,
        },
        wire::{Fingerprint, Header, Kind},
    },
    engine::early::Content,
    execute::{io::Io, issue::Identity, room::Arrived},
    sys::span::Span,
    transport::{
        Broken, Destination, Inbox,
        endpoint::{Link, send_control},
        frame::Body,
        shm::Source,
        ticket::OpKey,
    },
};
use std::time::Duration;

/// The largest control message on a data link.
const CONTROL_BYTES: usize = 128 << 10;
/// More frames than this cannot be waiting for operations that this rank has not issued.
const PARKED_MOST: usize = u16::MAX as usize;

/// What to do with a frame.
enum Verdict {
    /// Its operation runs.
    Deliver(OpKey),
    /// It is early.
    Park,
    /// It belongs to something that is over.
    Discard,
}

impl Engine {
    /// Takes in what a host-mate has sent. Returns whether there was anything.
    pub(super) fn receive_shared(&mut self, index: u32) -> bool {
        self.receive_from(index, Source::Lane) | self.receive_from(index, Source::Board)
    }

    fn receive_from(&mut self, index: u32, source: Source) -> bool {
        let mut moved = false;
        loop {
            let result = match self.endpoints[index as usize].peek(source) {
                Ok(None) => return moved,
                Ok(Some((header, body))) => {
                    self.frame(index, &header, body.map_or(Content::None, Content::Shared))
                }
                Err(reason) => Err(reason),
            };
            moved = true;
            self.endpoints[index as usize].take(source);
            if let Err(reason) = result {
                self.broken(index, reason);
            }
        }
    }

    /// Reads a socket. Returns whether there was anything.
    pub(super) fn receive_socket(&mut self, index: u32) -> bool {
        let Link::Tcp(link) = &mut self.endpoints[index as usize].link else { return false };
        let Some(mut incoming) = link.take_incoming() else { return false };
        let mut reading = Reading { engine: self, endpoint: index, arrived: Vec::new() };
        let result = incoming.receive(&mut reading);
        let arrived = reading.arrived;
        if let Link::Tcp(link) = &mut self.endpoints[index as usize].link {
            link.put_back(incoming);
        }
        let result = arrived
            .into_iter()
            .try_for_each(|(header, content)| self.frame(index, &header, content))
            .and(result);
        match result {
            Ok(moved) => {
                if moved {
                    self.endpoints[index as usize].silence = Duration::ZERO;
                }
                moved
            }
            Err(reason) => {
                self.broken(index, reason);
                true
            }
        }
    }

    /// One frame.
    fn frame(&mut self, index: u32, header: &Header, content: Content) -> Result<(), Broken> {
        if self.endpoints[index as usize].returned(header.credits) {
            self.retry(index);
        }
        match header.kind {
            Kind::Credit => return Ok(()),
            Kind::Data if matches!(content, Content::Skipped) => {
                self.endpoints[index as usize].emptied(header.eager);
                return Ok(());
            }
            Kind::Control => {
                if let Content::Bytes(bytes) = content {
                    self.events.push(Event::Control { bytes });
                }
                return Ok(());
            }
            Kind::Data | Kind::Grant | Kind::Stable | Kind::Clear | Kind::Taken => {}
        }
        match self.judge(header) {
            Verdict::Deliver(key) => self.deliver(index, key, header, content),
            Verdict::Park => self.park(index, *header, content),
            Verdict::Discard => {
                self.endpoints[index as usize].emptied(header.eager);
                Ok(())
            }
        }
    }

    /// What a frame means to a group, by its generation, its number and the hash of all that was issued before.
    fn judge(&mut self, header: &Header) -> Verdict {
        let Some(group) = self.groups.get(&header.group) else {
            return if self.forgotten.contains(&header.group) { Verdict::Discard } else { Verdict::Park };
        };
        let early = if group.is_dropped { Verdict::Discard } else { Verdict::Park };
        if group.is_lost() {
            return Verdict::Discard;
        }
        match group.admission(header, self.reduces) {
            Admission::Accept => {}
            Admission::Hold => return early,
            Admission::Discard => return Verdict::Discard,
        }
        match group.check(header, self.reduces) {
            Check::Match => match group.operation(header.sequence) {
                Some(key) => Verdict::Deliver(key),
                None if self.is_queued(header) => Verdict::Park,
                None => Verdict::Discard,
            },
            Check::NotYet => early,
            Check::Forgotten => Verdict::Discard,
            Check::Differs => {
                let own = group.member.issued(header.sequence).map(|own| (self.me, *own));
                let cause = Cause::Mismatch(Mismatch::new(header.sequence, own));
                self.call_for_fence(header.group, cause);
                Verdict::Discard
            }
        }
    }

    fn is_queued(&self, header: &Header) -> bool {
        let wanted = (header.group, header.sequence);
        self.queue.iter().any(|queued| (queued.id.group, queued.id.fingerprint.sequence) == wanted)
    }

    fn deliver(&mut self, index: u32, key: OpKey, header: &Header, content: Content) -> Result<(), Broken> {
        let Some(operation) = self.ops.get_mut(key) else {
            self.endpoints[index as usize].emptied(header.eager);
            return Ok(());
        };
        if header.kind == Kind::Data {
            let length = header.length as usize;
            let (staging, endpoint) = (&self.staging, &self.endpoints[index as usize]);
            let (is_mapped, eager) = (operation.is_mapped(), operation.prepared.eager);
            operation.arrive(index, header, |place| {
                let to = || staging.segment().span(place..place + length);
                match content {
                    Content::Shared(Body::At(at) | Body::Direct(at))
                        if endpoint.payload(at, length).is_none() =>
                    {
                        Err(Broken::Protocol("a message outside its segment"))
                    }
                    Content::Shared(Body::At(at)) => Ok(Arrived::At(at)),
                    Content::Shared(Body::Direct(at)) => Ok(Arrived::Direct(at)),
                    Content::Shared(Body::Placed) if is_mapped => Ok(Arrived::Placed),
                    // Only eager messages have a place here.
                    Content::Shared(Body::Carried(_)) | Content::Bytes(_)
                        if !eager && endpoint.is_shared() =>
                    {
                        Err(Broken::Protocol("a message with its frame that should lie with its sender"))
                    }
                    Content::Shared(Body::Carried(at)) => {
                        let carried = endpoint.payload(at, length);
                        to().copy_from(carried.ok_or(Broken::Protocol("a message outside its segment"))?);
                        Ok(Arrived::Staged)
                    }
                    Content::Bytes(bytes) if bytes.len() == length => {
                        to().write(&bytes);
                        Ok(Arrived::Staged)
                    }
                    Content::InPlace => Ok(Arrived::Staged),
                    Content::Placed => Ok(Arrived::Placed),
                    _ => Err(Broken::Protocol("a message without its payload")),
                }
            })?;
            self.stats.received(&self.endpoints[index as usize], length);
        }
        let mut io = Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
        match header.kind {
            Kind::Data if operation.has_come(index, &mut io)? => drop(self.flush()),
            Kind::Data => {}
            _ => operation.hear(index, header, &mut io)?,
        }
        self.endpoints[index as usize].emptied(header.eager);
        self.run(key);
        Ok(())
    }

    fn park(&mut self, index: u32, header: Header, body: Content) -> Result<(), Broken> {
        if self.early.len() >= PARKED_MOST {
            return Err(Broken::Protocol("more early messages than there can be"));
        }
        // What goes with a frame stays in its place only as long as the frame.
        let body = match body {
            Content::Shared(Body::Carried(at)) => {
                let carried = self.endpoints[index as usize].payload(at, header.length as usize);
                Content::Bytes(carried.map(Span::to_vec).unwrap_or_default())
            }
            body => body,
        };
        self.early.park(Parked { endpoint: index, header, body });
        let endpoint = &mut self.endpoints[index as usize];
        endpoint.parked += u16::from(header.eager);
        if header.eager && endpoint.is_crowded() {
            for key in self.ops.keys() {
                let Some(operation) = self.ops.get_mut(key) else { continue };
                let mut io =
                    Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
                operation.open_to(index, &mut io);
            }
        }
        Ok(())
    }

    /// Looks again at frames that came early.
    pub(super) fn redeliver(&mut self, early: Vec<Parked>) {
        for Parked { endpoint, mut header, body } in early {
            self.endpoints[endpoint as usize].parked -= u16::from(header.eager);
            header.credits = 0;
            if let Err(reason) = self.frame(endpoint, &header, body) {
                self.broken(endpoint, reason);
            }
        }
    }

    /// Hands an operation that begins what came for it before.
    pub(super) fn redeliver_to(&mut self, id: &Identity) {
        if !self.early.is_empty() {
            let early = self.early.take(id.group, id.fingerprint.sequence, |parked| id.is_of(&parked.header));
            self.redeliver(early);
        }
    }

    /// Compares frames that came early with the operation that was just issued.
    pub(super) fn check_parked(&mut self, group: u32, sequence: u64, hash: u64) {
        let generation = self.groups.get(&group).map(|group| group.member.generation());
        let differs =
            |Parked { header, .. }: &Parked| header.hash != hash && Some(header.generation) == generation;
        if self.early.of(group, sequence).iter().any(differs) {
            let early = self.early.take(group, sequence, |_| true);
            self.redeliver(early);
        }
    }

    /// Tries again to send what waited for eager slots, as far as they go.
    fn retry(&mut self, index: u32) {
        while let Some(key) = self.endpoints[index as usize].next_in_line() {
            let Some(operation) = self.ops.get_mut(key) else { continue };
            if operation.is_blocked_on(index) {
                let mut io =
                    Io { endpoints: &mut self.endpoints, staging: &self.staging, stats: &mut self.stats };
                operation.retry(&mut io);
                self.run(key);
            }
        }
    }

    /// Tells reducers what a group is, before its first message to them.
    pub(super) fn introduce(&mut self, group: u32) {
        let Some(state) = self.groups.get(&group) else { return };
        let generation = state.member.generation();
        let (workers, reducers) = state.settings.roster.split_at(state.settings.workers as usize);
        for (position, index) in reducers.iter().enumerate().filter(|_| !self.reduces) {
            let endpoint = &mut self.endpoints[*index as usize];
            if !endpoint.is_up() || !endpoint.introduced.insert((group, generation)) {
                continue;
            }
            let message = Message::Introduce(Introduction {
                group,
                generation,
                members: workers.to_vec(),
                reducer: position as u32,
                reducers: reducers.len() as u32,
                hosts: state.settings.hosts.clone(),
                order: state.settings.order,
                forced: state.settings.forced.as_ref().map(ToString::to_string),
                segment: state.settings.sizing.segment_bytes as u64,
                most_staged: state.settings.sizing.most_staged as u64,
            });
            send_control(endpoint, &message);
        }
    }

    /// A worker tells a reducer of a group, of its next generation, or that it needs it no more.
    fn instructed(&mut self, worker: u32, bytes: &[u8]) -> Result<(), Broken> {
        let mut decoder = Decoder::new(crc32c::crc32c);
        decoder.push(bytes);
        match decoder.next_message() {
            Ok(Some(Message::Introduce(group))) => self.join_group(&group),
            Ok(Some(Message::Forget { group })) => {
                self.dropped_by(worker, group);
                Ok(())
            }
            _ => Err(Broken::Protocol("a message that is not for reducers")),
        }
    }

    /// Sends a control message on a data link.
    pub(crate) fn say(&mut self, index: u32, message: &Message) {
        send_control(&mut self.endpoints[index as usize], message);
        self.flush();
    }

    /// What a reducer is told about an operation by a worker's first message.
    fn announced(&mut self, header: &Header, told: &Fingerprint) -> Result<(), Broken> {
        let Some(group) = self.groups.get_mut(&header.group) else {
            return Err(Broken::Protocol("an operation of a group that was not introduced"));
        };
        let current = group.admission(header, true) == Admission::Accept;
        if group.is_lost() || !current || group.check(header, true) != Check::NotYet {
            return Ok(());
        }
        group.note_told(header, *told);
        self.begin_told(header.group, header.generation, header.hash, *told).map(drop)
    }
}

/// The engine while one of its links is being read.
struct Reading<'a> {
    engine: &'a mut Engine,
    endpoint: u32,
    arrived: Vec<(Header, Content)>,
}

impl Inbox for Reading<'_> {
    fn admit(&mut self, header: &Header, fingerprint: Option<&Fingerprint>) -> Result<Destination, Broken> {
        let length = header.length as usize;
        match header.kind {
            Kind::Control if length <= CONTROL_BYTES => return Ok(Destination::Owned(vec![0; length])),
            Kind::Data => {}
            _ if length == 0 => return Ok(Destination::Skip),
            _ => return Err(Broken::Protocol("a payload where there is none")),
        }
        if let (Some(told), true) = (fingerprint, self.engine.reduces) {
            self.engine.announced(header, told)?;
        }
        match self.engine.judge(header) {
            Verdict::Deliver(key) => match self.engine.ops.get(key) {
                Some(operation) => operation.place(self.endpoint, header),
                None => Ok(Destination::Skip),
            },
            Verdict::Park if header.eager && length <= EAGER_BYTES => Ok(Destination::Owned(vec![0; length])),
            Verdict::Park => Err(Broken::Protocol("a large message without a grant")),
            Verdict::Discard => Ok(Destination::Skip),
        }
    }

    fn with<R>(
        &self,
        destination: &mut Destination,
        length: usize,
        f: impl FnOnce(Option<Span<'_>>) -> R,
    ) -> R {
        match destination {
            Destination::Staged(at) => f(Some(self.engine.staging.segment().span(*at..*at + length))),
            Destination::User { op, range } => {
                let access = self.engine.ops.get(*op).and_then(|operation| operation.user(true));
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
        self.arrived.push((*header, content));
        Ok(())
    }

    fn matters(&self, header: &Header) -> bool {
        !failure::is_over(self.engine, header)
    }
}
