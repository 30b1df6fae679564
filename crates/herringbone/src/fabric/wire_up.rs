//! Sharing memory with a host-mate: segments and bells change hands over a unix socket, and both ends check them.

use super::{
    Job,
    greet::{DEADLINE, GreetError},
};
use crate::{
    sys::{doorbell::Bell, segment::Segment, socket},
    transport::{
        endpoint::Link,
        layout::{self, Layout},
        shm::ShmLink,
    },
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};

/// What a process shows to its host-mates.
pub(crate) struct Mapping {
    pub(crate) segment: Arc<Segment>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) layout: Layout,
    /// The ranks of the host, ascending.
    pub(crate) mates: Vec<u32>,
    /// Whether processes may share memory at all.
    pub(crate) allowed: bool,
}

const YES: [u8; 1] = *b"+";
const NO: [u8; 1] = *b"-";

impl Mapping {
    /// The position of a rank among the host's ranks.
    pub(crate) fn position(&self, rank: u32) -> Option<usize> {
        self.mates.binary_search(&rank).ok()
    }

    /// Whether a rank claims to share this host's memory, and may.
    pub(crate) fn reaches(&self, rank: u32) -> bool {
        self.allowed && self.position(rank).is_some()
    }

    /// A link to a rank whose segment and bell are at hand.
    pub(crate) fn link(&self, job: &Job, rank: u32, segment: Arc<Segment>, bell: Arc<Bell>) -> Option<Link> {
        let (own, mate) = (self.position(job.rank)?, self.position(rank)?);
        Some(Link::Shm(ShmLink::new(&self.segment, segment, self.layout, own, mate, bell)))
    }

    /// Exchanges segments over a connection whose handshake is done; both ends get a link, or neither.
    pub(crate) fn exchange(&self, job: &Job, rank: u32, stream: &mut UnixStream) -> Result<Link, GreetError> {
        socket::pass_fds(&*stream, &YES, &[self.segment.fd(), self.bell.fd()])?;
        let mut byte = [0];
        wait_readable(stream)?;
        let (got, descriptors) = socket::receive_fds(&*stream, &mut byte, 2)?;
        let link = match (got, <[_; 2]>::try_from(descriptors)) {
            (1, Ok([segment, bell])) => self.checked(job, rank, segment, bell),
            _ => None,
        };
        stream.write_all(if link.is_some() { &YES } else { &NO })?;
        stream.read_exact(&mut byte)?;
        match link {
            Some(link) if byte == YES => Ok(link),
            _ => Err(GreetError::Protocol("its memory cannot be shared")),
        }
    }

    fn checked(
        &self,
        job: &Job,
        rank: u32,
        segment: std::os::fd::OwnedFd,
        bell: std::os::fd::OwnedFd,
    ) -> Option<Link> {
        let segment = Segment::attach(segment).ok()?;
        let incarnation = job.incarnation_of(rank)?;
        if !layout::is_stamped(&segment, self.layout, job.id, rank, incarnation) {
            return None;
        }
        self.link(job, rank, Arc::new(segment), Arc::new(Bell::from_fd(bell).ok()?))
    }
}

/// Waits until there is something to receive: descriptors are received without blocking.
fn wait_readable(stream: &UnixStream) -> Result<(), GreetError> {
    let limit = rustix::time::Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    // Whoever is stopped and goes on waits anew: a stop is no fault of the other end.
    let readable = rustix::io::retry_on_intr(|| {
        rustix::event::poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&limit))
    });
    match readable {
        Ok(0) => Err(GreetError::Late),
        Ok(_) => Ok(()),
        Err(error) => Err(GreetError::Io(error.into())),
    }
}
