//! A connection on which requests and answers travel: frames of the same link that schedules use.
//!
//! A payload has at most [`PAYLOAD_BYTES`], and its reader has a place for it, so nothing is granted. A request is
//! executed, kept or refused as soon as it is read, and an answer's place exists before its request is sent. So a
//! connection can always be drained.

use super::spare;
use crate::{
    core::{
        table::{PAYLOAD_BYTES, replication::PEER_BYTES},
        wire::{Fingerprint, Header, Kind},
    },
    sys::span::Span,
    transport::{
        Broken, Destination, Inbox, Outgoing, Payload,
        tcp::{Memory, TcpLink},
        ticket::Token,
    },
};
use std::{os::fd::BorrowedFd, sync::Arc};

/// One end of a connection for requests and answers.
#[derive(Debug)]
pub(super) struct MessageLink {
    link: TcpLink,
    /// What this end reads, and what it sends.
    reads: Kind,
    sends: Kind,
    /// The most bytes of a payload.
    most: usize,
    /// How many bytes were put in line and not told to be gone.
    queued: usize,
}

/// A payload that has come whole and undamaged.
#[derive(Debug)]
pub(super) struct ReceivedPayload {
    /// The number of its request.
    pub(super) number: u64,
    pub(super) payload: Vec<u8>,
}

impl MessageLink {
    /// A worker's end, where answers come.
    pub(super) fn of_worker(link: TcpLink) -> Self {
        Self { link, reads: Kind::Answer, sends: Kind::Request, most: PAYLOAD_BYTES, queued: 0 }
    }

    /// A server's end, where requests come.
    pub(super) fn of_server(link: TcpLink) -> Self {
        Self { link, reads: Kind::Request, sends: Kind::Answer, most: PAYLOAD_BYTES, queued: 0 }
    }

    /// An end of a connection between servers.
    pub(super) fn of_peer(link: TcpLink) -> Self {
        Self { link, reads: Kind::Request, sends: Kind::Request, most: PEER_BYTES, queued: 0 }
    }

    /// What a poller watches, if it can.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.fd()
    }

    /// Puts a payload in line.
    pub(super) fn send(&mut self, number: u64, payload: Vec<u8>) {
        self.put_in_line(number, Payload::Owned(payload));
    }

    /// Puts a payload in line that the caller keeps, too.
    pub(super) fn send_kept(&mut self, number: u64, payload: &Arc<Vec<u8>>) {
        self.put_in_line(number, Payload::Kept(payload.clone()));
    }

    fn put_in_line(&mut self, number: u64, payload: Payload) {
        let header = Header { length: payload.len() as u32, ..Header::new(self.sends, 0, 0, number) };
        self.queued += payload.len();
        self.link.send(Outgoing { header, fingerprint: None, payload, priority: 0, done: None }, false);
    }

    /// About how many bytes are in line.
    pub(super) fn queued(&self) -> usize {
        self.queued
    }

    /// Writes what the socket takes. Returns whether all is written.
    ///
    /// # Errors
    /// If the connection is of no use any more.
    pub(super) fn flush(&mut self) -> Result<bool, Broken> {
        self.link.has_room = true;
        while self.link.has_room && !self.link.is_flushed() {
            self.link.flush(&mut Payloads, || 0, |_: Token| {})?;
        }
        let is_flushed = self.link.is_flushed();
        if is_flushed {
            self.queued = 0;
        }
        Ok(is_flushed)
    }

    /// Reads what has come, up to a turn.
    ///
    /// # Errors
    /// If the connection is of no use any more.
    pub(super) fn receive(&mut self, into: &mut Vec<ReceivedPayload>) -> Result<(), Broken> {
        let Some(mut incoming) = self.link.take_incoming() else { return Ok(()) };
        let result = incoming.receive(&mut Arrivals { reads: self.reads, most: self.most, into });
        self.link.put_back(incoming);
        result.map(drop)
    }
}

/// Where payloads are found: all are their frames' own.
struct Payloads;

impl Memory for Payloads {
    fn with<R>(&self, payload: &Payload, f: impl FnOnce(Option<Span<'_>>) -> R) -> R {
        match payload {
            Payload::Owned(bytes) => f(Some(Span::of_shared(bytes))),
            Payload::Kept(bytes) => f(Some(Span::of_shared(bytes))),
            _ => f(Some(Span::of_shared(&[]))),
        }
    }

    fn checksum(&mut self, frame: &Outgoing) -> u32 {
        self.with(&frame.payload, |span| span.map_or(0, Span::crc32c))
    }

    fn spent(&mut self, payload: Payload) {
        if let Payload::Owned(bytes) = payload {
            spare::keep(bytes);
        }
    }
}

/// Where payloads go.
struct Arrivals<'a> {
    reads: Kind,
    most: usize,
    into: &'a mut Vec<ReceivedPayload>,
}

impl Inbox for Arrivals<'_> {
    fn admit(&mut self, header: &Header, fingerprint: Option<&Fingerprint>) -> Result<Destination, Broken> {
        if header.kind != self.reads || fingerprint.is_some() {
            return Err(Broken::Protocol("a frame that is neither a request nor an answer"));
        }
        match header.length as usize {
            length if (1..=self.most).contains(&length) => Ok(Destination::Owned(spare::buffer(length))),
            _ => Err(Broken::Protocol("a request or an answer of an impossible length")),
        }
    }

    fn with<R>(
        &self,
        destination: &mut Destination,
        _length: usize,
        f: impl FnOnce(Option<Span<'_>>) -> R,
    ) -> R {
        match destination {
            Destination::Owned(bytes) => f(Some(Span::of(bytes))),
            _ => f(None),
        }
    }

    fn arrived(&mut self, header: &Header, destination: Destination) -> Result<(), Broken> {
        if let Destination::Owned(payload) = destination {
            self.into.push(ReceivedPayload { number: header.sequence, payload });
        }
        Ok(())
    }

    fn matters(&self, _header: &Header) -> bool {
        true
    }
}
