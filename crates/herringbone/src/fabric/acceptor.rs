//! Accepting connections: one thread accepts them and reads all handshakes; only an authenticated connection gets a thread of its own.
//!
//! A connection that sends nothing costs its caller nothing. So the number of pending connections is bounded, in all
//! and for each [origin](pending_connections::CallerOrigin). If all places are taken, a new connection replaces the
//! connection that is least likely a rank's.

use super::{
    greet::{self, DEADLINE, GreetError, Stream},
    owner,
    pending_connections::{CallerOrigin, FEW, PLACES, PendingConnection, PendingConnections},
};
use crate::{
    config::WaitLimits,
    core::session::handshake::{Claim, HandshakeError, Keys, Policy, Purpose},
    sys::{fork::Guarded, peer, socket},
};
use rustix::{
    event::epoll,
    io::Errno,
    net::SocketFlags,
    process::{Resource, getrlimit},
};
use std::{
    collections::BTreeSet,
    io,
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// How many callers that have proved themselves may be being let in at once.
const THREADS: usize = 64;
/// How many connections are accepted before the pending ones are read again.
const AT_ONCE: usize = 32;
/// How many callers may wait to be accepted.
const BACKLOG: i32 = 1024;
/// How many descriptors are left to connections under way, where there are enough.
const RESERVE: u64 = 64;
/// How long nobody is accepted after there was no descriptor for one.
const CLOSED: Duration = Duration::from_millis(100);
/// How many strangers are remembered, to be logged once each.
const STRANGERS: usize = 256;

/// The listener's number, which is no pending connection's.
const LISTENER: u64 = 0;

/// What others call at.
pub(crate) trait Listen: AsFd {
    type Caller: Accepted;
}

/// A connection that has been accepted.
pub(crate) trait Accepted: From<OwnedFd> + AsFd + Stream + Send + 'static {
    /// Where it comes from; `None` if nobody from there is let in.
    fn origin(&self) -> Option<CallerOrigin>;
    fn set_blocking(&self) -> io::Result<()>;
}

impl Listen for TcpListener {
    type Caller = TcpStream;
}

impl Listen for UnixListener {
    type Caller = UnixStream;
}

impl<L: Listen> Listen for &L {
    type Caller = L::Caller;
}

impl<L: Listen + 'static> Listen for Guarded<L> {
    type Caller = L::Caller;
}

impl Accepted for TcpStream {
    fn origin(&self) -> Option<CallerOrigin> {
        // One that has gone already comes from nowhere.
        self.peer_addr().ok().map(|address| CallerOrigin::of(address.ip()))
    }

    fn set_blocking(&self) -> io::Result<()> {
        self.set_nonblocking(false)
    }
}

impl Accepted for UnixStream {
    fn origin(&self) -> Option<CallerOrigin> {
        let owner = peer::peer_owner(self).ok()?;
        owner::may_call(owner.user, rustix::process::geteuid().as_raw())
            .then_some(CallerOrigin::Process(owner.process))
    }

    fn set_blocking(&self) -> io::Result<()> {
        self.set_nonblocking(false)
    }
}

/// A listener, and the connections to it that are not authenticated yet.
pub(crate) struct Acceptor<L: Listen> {
    who: Arc<str>,
    listener: L,
    token: Vec<u8>,
    policy: Policy,
    poller: OwnedFd,
    pending_connections: PendingConnections<L::Caller>,
    /// Since when nobody is accepted, if so.
    closed: Option<Instant>,
    /// Whether it was said that there is no descriptor for callers.
    said: bool,
    threads: Arc<AtomicUsize>,
    rejected: Rejected,
}

/// The callers that were rejected, so that each address is logged once.
#[derive(Clone, Debug, Default)]
struct Rejected(Arc<Mutex<BTreeSet<CallerOrigin>>>);

impl<L: Listen> Acceptor<L> {
    /// `who` is what this process is called in its log.
    pub(crate) fn new(who: &str, listener: L, token: &[u8], policy: Policy) -> io::Result<Self> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        epoll::add(&poller, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        Ok(Self {
            who: who.into(),
            listener,
            token: token.to_vec(),
            policy,
            poller,
            pending_connections: PendingConnections::new(),
            closed: None,
            said: false,
            threads: Arc::default(),
            rejected: Rejected::default(),
        })
    }

    /// What a poller finds readable when there is something to [serve](Self::serve).
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    /// The listener, without those who have called.
    pub(crate) fn into_listener(self) -> L {
        self.listener
    }

    /// Hears who is here, accepts who waits, and sends away who has had time enough; to be called ten times a second or more.
    /// Returns who has proved itself. Never waits.
    pub(crate) fn serve(&mut self) -> Vec<(L::Caller, Claim)> {
        let mut proved = Vec::new();
        for number in self.pending_connections.late(Instant::now()) {
            self.send_away(number, Some(GreetError::Late));
        }
        if self.closed.is_some_and(|since| since.elapsed() >= CLOSED) {
            self.closed = None;
            self.arm_listener(epoll::EventFlags::IN);
        }
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; PLACES + 1];
        let at_once = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted look finds nothing, and the next one all.
        let ready: Vec<u64> = match epoll::wait(&self.poller, &mut room[..], Some(&at_once)) {
            Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
            Err(_) => Vec::new(),
        };
        ready
            .iter()
            .filter(|number| **number != LISTENER)
            .for_each(|number| self.receive(*number, &mut proved));
        if ready.contains(&LISTENER) {
            let _more = (0..AT_ONCE).all(|_| self.accept(&mut proved));
        }
        proved
    }

    /// Lets a caller in, or tells it why not, on a thread of its own.
    pub(crate) fn spawn_handler(
        &self,
        caller: L::Caller,
        claim: Claim,
        admit: impl FnOnce(L::Caller, Claim) -> Result<(), GreetError> + Send + 'static,
    ) {
        if self.threads.fetch_add(1, Ordering::SeqCst) >= THREADS {
            // It calls again.
            self.threads.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let (who, threads, rejected) = (self.who.clone(), self.threads.clone(), self.rejected.clone());
        let spawned = std::thread::Builder::new().name("herringbone-accept".to_owned()).spawn(move || {
            let origin = caller.origin();
            let prepared = caller.set_blocking().and_then(|()| caller.limit(DEADLINE));
            let result = prepared.map_err(GreetError::Io).and_then(|()| admit(caller, claim));
            if let (Err(error), Some(origin)) = (result, origin) {
                rejected.log_rejection(&who, origin, &error);
            }
            threads.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Accepts one caller. Returns whether there may be another.
    fn accept(&mut self, proved: &mut Vec<(L::Caller, Claim)>) -> bool {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let caller = match rustix::net::accept_with(&self.listener, flags) {
            Ok(caller) => caller,
            Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                return self.has_no_descriptor(error);
            }
            // It has gone already.
            Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return true,
            Err(_) => return false,
        };
        let places = if is_last_but(RESERVE, &caller) { FEW } else { PLACES };
        let caller = L::Caller::from(caller);
        let Some(origin) = caller.origin() else { return true };
        while let Some(number) = self.pending_connections.eviction_for(origin, places) {
            self.send_away(number, None);
        }
        let number = self.pending_connections.insert(PendingConnection::new(caller, origin, Instant::now()));
        let Some(pending) = self.pending_connections.get_mut(number) else { return true };
        let data = epoll::EventData::new_u64(number);
        if epoll::add(&self.poller, &pending.stream, data, epoll::EventFlags::IN).is_err() {
            drop(self.pending_connections.remove(number));
            return true;
        }
        // Who calls mostly says at once who it is.
        self.receive(number, proved);
        true
    }

    fn receive(&mut self, number: u64, proved: &mut Vec<(L::Caller, Claim)>) {
        let Some(pending) = self.pending_connections.get_mut(number) else { return };
        match pending.receive(&self.token, self.policy) {
            Ok(None) => {}
            Ok(Some(claim)) => {
                // A rank that makes a link in a job that has formed names its life, which is a secret of members.
                let is_member = self.policy.job.is_some() && claim.hello().purpose == Purpose::Data;
                let is_unproven = self.token.is_empty() && !is_member;
                let is_checked = is_unproven.then(|| owner::check(pending.stream.owner()));
                let Some(mut pending) = self.dismiss(number) else { return };
                if let Some(Err(refusal)) = is_checked {
                    greet::refuse(&mut pending.stream, claim, &refusal);
                    let error = HandshakeError::Refusing(refusal).into();
                    return self.rejected.log_rejection(&self.who, pending.origin, &error);
                }
                proved.push((pending.stream, claim));
            }
            Err(error) => self.send_away(number, Some(error)),
        }
    }

    /// Removes a pending connection.
    fn dismiss(&mut self, number: u64) -> Option<PendingConnection<L::Caller>> {
        let pending = self.pending_connections.remove(number)?;
        // A forked child may hold the connection, too: closing it here would not have the poller forget it.
        let _forgotten = epoll::delete(&self.poller, &pending.stream);
        Some(pending)
    }

    fn send_away(&mut self, number: u64, why: Option<GreetError>) {
        if let (Some(pending), Some(error)) = (self.dismiss(number), why) {
            self.rejected.log_rejection(&self.who, pending.origin, &error);
        }
    }

    /// There is no descriptor for a caller. A pending connection gives its own up, or nobody is accepted for a while. Returns whether to
    /// go on at once.
    fn has_no_descriptor(&mut self, error: Errno) -> bool {
        if !std::mem::replace(&mut self.said, true) {
            let what = format!(
                "no more connections can be taken: {}; raise the limit of open files (ulimit -n). Existing connections stay open",
                io::Error::from(error)
            );
            crate::log::warn(&self.who, what);
        }
        if let Some(number) = self.pending_connections.any_eviction() {
            self.send_away(number, None);
            return true;
        }
        self.closed = Some(Instant::now());
        self.arm_listener(epoll::EventFlags::empty());
        false
    }

    fn arm_listener(&self, flags: epoll::EventFlags) {
        // It was added when the acceptor was made.
        let _modified =
            epoll::modify(&self.poller, &self.listener, epoll::EventData::new_u64(LISTENER), flags);
    }
}

/// Whether a descriptor that was just opened shows that not many more can be: the lowest free number is taken first.
fn is_last_but(reserve: u64, descriptor: &OwnedFd) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return false };
    descriptor.as_raw_fd() as u64 + reserve.min(limit / 4) >= limit
}

impl Rejected {
    fn log_rejection(&self, who: &str, origin: CallerOrigin, error: &GreetError) {
        let notable = matches!(
            error,
            GreetError::Handshake(HandshakeError::NotHerringbone(_) | HandshakeError::Refusing(_))
                | GreetError::Handshake(HandshakeError::Malformed { .. } | HandshakeError::TooLong { .. })
                | GreetError::Late
        );
        let mut rejected = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notable && rejected.len() < STRANGERS && rejected.insert(origin) {
            let what =
                format_args!("a connection from {origin} was dropped: {error} (logged once per address)");
            crate::log::warn(who, what);
        }
    }
}

/// Prepares an admitted connection for frames.
pub(crate) fn into_link(
    stream: TcpStream,
    keys: Keys,
    patience: Duration,
) -> Result<crate::transport::tcp::TcpLink, GreetError> {
    socket::tune_tcp(&stream, unacknowledged(patience))?;
    stream.set_nonblocking(true)?;
    Ok(crate::transport::tcp::TcpLink::new(Guarded::new(stream.into())?, keys))
}

/// How long unacknowledged data may hang before the kernel gives a connection up.
pub(crate) const SILENCE: Duration = Duration::from_millis(5200);

/// As [`SILENCE`], between ranks of this patience: a bit less than that.
pub(crate) fn unacknowledged(patience: Duration) -> Duration {
    SILENCE + patience.saturating_sub(WaitLimits::default().patience)
}

const _: () = assert!(DEADLINE.as_millis() < SILENCE.as_millis());

#[cfg(test)]
mod tests;
