//! Another process, as an engine sees it: its link, and what is owed on it.

use crate::{
    core::{session::lane::Credits, wire::Header},
    sys::{segment::Segment, span::Span},
    transport::{Outgoing, Payload, shm::Body, shm::ShmLink, tcp::TcpLink},
};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// How many eager messages may lie at their receiver, per link and direction.
pub(crate) const EAGER_SLOTS: u16 = 64;

/// How messages travel to an endpoint.
#[derive(Debug)]
pub(crate) enum Link {
    /// Nobody has needed it yet.
    None,
    /// It is being made.
    Wanted,
    Shm(ShmLink),
    Tcp(TcpLink),
    /// A socket link that is being read from, in the meantime.
    Busy,
    /// It is broken, or its process is gone; what that process left in shared memory can still be read.
    Lost {
        reason: String,
        left: Option<Arc<Segment>>,
    },
}

/// A worker or a reducer that this process exchanges messages with.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// What people call it: "rank 3", or a reducer's address.
    pub(crate) name: String,
    pub(crate) link: Link,
    pub(crate) is_reducer: bool,
    /// Groups that a reducer has been told of, with their generation.
    pub(crate) introduced: BTreeSet<(u32, u32)>,
    credits: Credits,
    /// Eager messages that lie here because their operation has not begun.
    pub(crate) parked: u16,
    /// Whether its process is gone for good.
    pub(crate) dead: bool,
    /// When it left in order: what it sent before still counts.
    pub(crate) left: Option<Instant>,
}

impl Endpoint {
    pub(crate) fn new(name: String, is_reducer: bool) -> Self {
        Self {
            name,
            link: Link::None,
            is_reducer,
            introduced: BTreeSet::new(),
            credits: Credits::new(EAGER_SLOTS),
            parked: 0,
            dead: false,
            left: None,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.link, Link::Shm(_) | Link::Tcp(_) | Link::Busy)
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.link, Link::Lost { .. })
    }

    /// Whether nothing can be sent to it any more, and nobody there waits for it.
    pub(crate) fn is_away(&self) -> bool {
        self.is_lost() || self.left.is_some() && !self.is_up()
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.link, Link::Shm(_))
    }

    /// A new link starts with all eager slots free.
    pub(crate) fn connect(&mut self, link: Link) {
        (self.link, self.credits) = (link, Credits::new(EAGER_SLOTS));
        self.introduced.clear();
    }

    /// Ends the link; what lies in shared memory stays readable.
    pub(crate) fn lose(&mut self, reason: String) {
        let left = match &self.link {
            Link::Shm(link) => Some(link.segment().clone()),
            Link::Lost { left, .. } => left.clone(),
            _ => None,
        };
        self.link = Link::Lost { reason, left };
    }

    /// Takes one of the eager slots at the receiver.
    pub(crate) fn take_eager(&mut self) -> bool {
        self.credits.take()
    }

    /// The receiver has emptied eager slots.
    pub(crate) fn returned(&mut self, credits: u16) -> bool {
        self.credits.returned(credits);
        credits > 0
    }

    /// An eager slot here is empty again. Returns whether the sender should be told now rather than with the next frame.
    pub(crate) fn owe(&mut self) -> bool {
        self.credits.owe()
    }

    /// Whether the sender may be unable to send eager messages because of what is parked here.
    pub(crate) fn is_crowded(&self) -> bool {
        self.credits.is_crowded(self.parked)
    }

    fn stamp(&mut self, header: &mut Header) {
        header.credits = self.credits.settle();
    }

    /// Sends a frame without payload, ahead of data.
    pub(crate) fn notice(&mut self, mut header: Header) {
        self.stamp(&mut header);
        match &mut self.link {
            Link::Shm(link) => link.send(&header, None),
            Link::Tcp(link) => {
                let (fingerprint, payload) = (None, Payload::None);
                link.send(Outgoing { header, fingerprint, payload, priority: 0, done: None }, true);
            }
            _ => {}
        }
    }

    /// Sends a message through shared memory.
    pub(crate) fn send_shared(&mut self, mut header: Header, body: Option<Body>) {
        self.stamp(&mut header);
        if let Link::Shm(link) = &mut self.link {
            link.send(&header, body);
        }
    }

    /// Puts a message in line for the socket.
    pub(crate) fn send_stream(&mut self, mut frame: Outgoing) {
        self.stamp(&mut frame.header);
        if let Link::Tcp(link) = &mut self.link {
            link.send(frame, false);
        }
    }

    /// A payload that lies with its sender.
    pub(crate) fn payload(&self, at: usize, bytes: usize) -> Option<Span<'_>> {
        match &self.link {
            Link::Shm(link) => link.payload(at, bytes),
            Link::Lost { left: Some(segment), .. } => {
                let end = at.checked_add(bytes)?;
                (end <= segment.len()).then(|| segment.span(at..end))
            }
            _ => None,
        }
    }
}
