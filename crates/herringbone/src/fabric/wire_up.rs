//! Sharing memory with a local rank: segments and bells change hands over a unix socket, and both ends check them.

use super::{
    Job,
    greet::{DEADLINE, GreetError},
};
use crate::{
    core::session::membership::MemberId,
    error::remedy,
    log::{Level, LogRecord},
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
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// What a process shows to its local ranks.
pub(crate) struct Mapping {
    pub(crate) segment: Arc<Segment>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) layout: Layout,
    /// The workers of the host, ascending.
    pub(crate) locals: Vec<MemberId>,
    /// Whether processes may share memory at all.
    pub(crate) allowed: bool,
    /// Whether it was said that a local rank's memory cannot be had.
    pub(crate) lacks: AtomicBool,
}

const YES: [u8; 1] = *b"+";
const NO: [u8; 1] = *b"-";

impl Mapping {
    /// The position of a worker among those of the host.
    pub(crate) fn position(&self, local: MemberId) -> Option<usize> {
        self.locals.binary_search(&local).ok()
    }

    /// Whether a worker claims to share this host's memory, and may.
    pub(crate) fn reaches(&self, local: MemberId) -> bool {
        self.allowed && self.position(local).is_some()
    }

    /// A link to a worker whose segment and bell are at hand.
    pub(crate) fn link(
        &self,
        job: &Job,
        local: MemberId,
        segment: Arc<Segment>,
        bell: Arc<Bell>,
    ) -> Option<Link> {
        let (own, local) = (self.position(job.me)?, self.position(local)?);
        Some(Link::Shm(ShmLink::new(&self.segment, segment, self.layout, own, local, bell)))
    }

    /// Exchanges segments over a connection whose handshake is done; both ends get a link, or neither.
    pub(crate) fn exchange(
        &self,
        job: &Job,
        local: MemberId,
        stream: &mut UnixStream,
    ) -> Result<Link, GreetError> {
        socket::pass_fds(&*stream, &YES, &[self.segment.fd(), self.bell.fd()])?;
        let mut byte = [0];
        wait_readable(stream)?;
        let link = match socket::receive_fds(&*stream, &mut byte, 2).map(|(_, fds)| <[_; 2]>::try_from(fds)) {
            Ok(Ok([segment, bell])) => self.checked(job, local, segment, bell),
            Ok(Err(_)) => Err(GreetError::Protocol("it did not pass its memory")),
            Err(error) => Err(GreetError::Io(error)),
        };
        stream.write_all(if link.is_ok() { &YES } else { &NO })?;
        // The other end's answer is read in any case: if it found this end closed, it would blame the connection.
        let answered = stream.read_exact(&mut byte);
        let link = link?;
        answered?;
        if byte == YES { Ok(link) } else { Err(GreetError::UnsharedThere) }
    }

    /// Says, the first time, that messages to a local rank go over TCP, why, and what to do. The other end knows its own
    /// reasons.
    pub(crate) fn explain_lack(&self, job: &Job, local: MemberId, error: &GreetError) {
        let remedy = match error {
            GreetError::Io(error) => remedy(error),
            _ => "",
        };
        let what = format_args!(
            "{} is on this host, but its memory cannot be shared, so messages to it take several times as long, \
             over TCP: {error}{remedy}",
            job.roster.name(local)
        );
        let (who, peer) = (format!("rank {}", job.rank), job.roster.name(local));
        // Whoever goes away meanwhile has no memory to share, which is no news of this host.
        let is_quiet = matches!(error, GreetError::UnsharedThere) || error.is_end();
        let is_known = is_quiet || self.lacks.swap(true, Ordering::Relaxed);
        let level = if is_known { Level::Info } else { Level::Warn };
        LogRecord::new(level, &who).peer(&peer).say(what);
    }

    fn checked(
        &self,
        job: &Job,
        local: MemberId,
        segment: std::os::fd::OwnedFd,
        bell: std::os::fd::OwnedFd,
    ) -> Result<Link, GreetError> {
        let segment = Segment::attach(segment).map_err(|error| GreetError::Unshared(error.to_string()))?;
        let incarnation = job.incarnation_of(local);
        let is_its = |incarnation| layout::is_stamped(&segment, self.layout, job.id, local, incarnation);
        let link = match incarnation.is_some_and(is_its) {
            true => self.link(job, local, Arc::new(segment), Arc::new(Bell::from_fd(bell)?)),
            false => None,
        };
        link.ok_or(GreetError::Protocol("its memory is laid out in another way: run one build on all ranks"))
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
