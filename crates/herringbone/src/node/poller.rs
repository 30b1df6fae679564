//! The poller: it tells which sockets have something to read, or take something again, and that the bell was rung.

use crate::{
    core::session::membership::MemberId,
    engine::{Engine, outbox::Interest},
    sys::doorbell::Bell,
    transport::endpoint::Link,
};
use rustix::event::epoll;
use std::{io, mem::MaybeUninit, os::fd::OwnedFd, time::Duration};

/// The bell's number, which is that of no endpoint.
const BELL: u64 = u64::MAX;
/// How many events one look may find.
const EVENTS: usize = 64;

/// Watches an engine's sockets, and a bell.
#[derive(Debug)]
pub(super) struct Poller(OwnedFd);

/// A socket that is ready: its endpoint, whether it takes something, and whether it has something to read.
type Ready = (MemberId, (bool, bool));

impl Poller {
    pub(super) fn new(bell: &Bell) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poller, bell.fd(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self(poller))
    }

    /// Watches what the engine wants watched.
    pub(super) fn watch(&self, engine: &mut Engine) {
        while !engine.runtime.out.interests.is_empty() {
            for interest in std::mem::take(&mut engine.runtime.out.interests) {
                self.apply_interest(interest, engine);
            }
        }
    }

    fn apply_interest(&self, interest: Interest, engine: &mut Engine) {
        // A link without a descriptor is nothing to watch.
        let fd = |endpoint: MemberId| match &engine.runtime.links.endpoints[endpoint].link {
            Link::Tcp(link) => link.fd(),
            _ => None,
        };
        match interest {
            Interest::New(endpoint) => {
                let Some(fd) = fd(endpoint) else { return };
                let data = epoll::EventData::new_u64(u64::from(endpoint.number()));
                if let Err(error) = epoll::add(&self.0, fd, data, epoll::EventFlags::IN) {
                    engine.unwatched(endpoint, &error.into());
                }
            }
            Interest::Room { endpoint, wanted } => {
                let Some(fd) = fd(endpoint) else { return };
                let mut flags = epoll::EventFlags::IN;
                flags.set(epoll::EventFlags::OUT, wanted);
                let data = epoll::EventData::new_u64(u64::from(endpoint.number()));
                // A socket that the poller does not know any more is about to be reported as broken.
                let _gone = epoll::modify(&self.0, fd, data, flags);
            }
            Interest::Gone(link) => {
                // The descriptor closes right after this.
                let _gone = link.fd().map(|fd| epoll::delete(&self.0, fd));
            }
        }
    }

    /// Serves the sockets that are ready now. Returns whether anything moved.
    pub(super) fn serve_ready(&self, engine: &mut Engine) -> bool {
        if engine.runtime.links.sockets == 0 {
            return false;
        }
        self.watch(engine);
        // An interrupted look is taken again in the next turn.
        self.wait(Duration::ZERO, |events| serve(engine, events)).unwrap_or(false)
    }

    /// Sleeps until a socket is ready, or the bell is rung, but not longer than this. Returns the sockets that are ready, and
    /// whether the bell was rung; nothing if the sleep was interrupted.
    pub(super) fn sleep(&self, limit: Duration) -> Option<(Vec<Ready>, bool)> {
        let found = |events: &[epoll::Event]| {
            let rung = events.iter().any(|event| event.data.u64() == BELL);
            (events.iter().filter_map(ready).collect(), rung)
        };
        self.wait(limit, found).ok()
    }

    fn wait<R>(&self, limit: Duration, f: impl FnOnce(&[epoll::Event]) -> R) -> io::Result<R> {
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let (tv_sec, tv_nsec) = (limit.as_secs() as i64, i64::from(limit.subsec_nanos()));
        let (events, _) =
            epoll::wait(&self.0, &mut room[..], Some(&rustix::time::Timespec { tv_sec, tv_nsec }))?;
        Ok(f(events))
    }
}

/// Has the engine read and write the sockets that are ready. Returns whether anything moved.
fn serve(engine: &mut Engine, events: &[epoll::Event]) -> bool {
    let mut moved = false;
    for (endpoint, (room, readable)) in events.iter().filter_map(ready) {
        moved |= engine.serve(endpoint, room, readable);
    }
    moved
}

fn ready(event: &epoll::Event) -> Option<Ready> {
    let (flags, endpoint) = (event.flags, MemberId::new(u32::try_from(event.data.u64()).ok()?));
    Some((endpoint, (flags.contains(epoll::EventFlags::OUT), flags.intersects(!epoll::EventFlags::OUT))))
}
