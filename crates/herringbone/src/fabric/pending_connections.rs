//! Callers that have not proved themselves yet: none has a thread, each has a bounded place, and strangers are evicted
//! first.

use super::greet::{self, DEADLINE, GreetError};
use crate::core::session::handshake::{Claim, LEAST_BYTES, Policy, Server};
use std::{
    cmp::Reverse,
    collections::BTreeMap,
    fmt,
    io::{self, Read, Write},
    net::{IpAddr, Ipv6Addr},
    time::Instant,
};

/// How many callers may be in their handshake at once.
pub(super) const PLACES: usize = 256;
/// How many of them may come from one place.
pub(super) const OF_ONE_ORIGIN: usize = PLACES / 2;
/// How many there may be where descriptors run short.
pub(super) const FEW: usize = 8;

/// Where a caller comes from, as far as others are held against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallerOrigin {
    Address(IpAddr),
    /// A process of this host.
    Process(u32),
}

impl CallerOrigin {
    /// Of an IPv6 address the network counts: whoever has one address there has many.
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                CallerOrigin::Address(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into())
            }
            address => CallerOrigin::Address(address),
        }
    }
}

impl fmt::Display for CallerOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallerOrigin::Address(address) => address.fmt(f),
            CallerOrigin::Process(number) => write!(f, "process {number}"),
        }
    }
}

/// A connection that is not authenticated yet. Its cost does not depend on what it sends.
pub(super) struct PendingConnection<S> {
    pub(super) stream: S,
    pub(super) origin: CallerOrigin,
    came: Instant,
    /// This side of the handshake, once the caller has said something.
    server: Option<Box<Server>>,
}

impl<S: Read + Write> PendingConnection<S> {
    pub(super) fn new(stream: S, origin: CallerOrigin, came: Instant) -> Self {
        Self { stream, origin, came, server: None }
    }

    /// Takes what has arrived, and answers it. Never waits, and takes nothing that follows the handshake. Returns its claim
    /// once it has proved that it knows the token.
    pub(super) fn receive(&mut self, token: &[u8], policy: Policy) -> Result<Option<Claim>, GreetError> {
        loop {
            match self.receive_once(token, policy) {
                Ok(None) => {}
                Err(GreetError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(GreetError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                proved_or_failed => return proved_or_failed,
            }
        }
    }

    fn receive_once(&mut self, token: &[u8], policy: Policy) -> Result<Option<Claim>, GreetError> {
        let mut room = [0; 256];
        let wants = self.server.as_ref().map_or(LEAST_BYTES, |server| server.wants()).min(room.len());
        let got = self.stream.read(&mut room[..wants])?;
        if got == 0 {
            return Err(GreetError::Closed);
        }
        let server = match &mut self.server {
            Some(server) => server,
            none => none.insert(Box::new(Server::new(token, greet::nonce()?, policy))),
        };
        let received = server.receive(&room[..got]);
        if let Some(bytes) = server.transmit() {
            // A new connection takes that much at once.
            self.stream.write_all(&bytes).map_err(|_| GreetError::Closed)?;
        }
        Ok(received?.done)
    }

    fn is_interrupted(&self) -> bool {
        self.server.as_ref().is_some_and(|server| server.is_interrupted())
    }
}

/// Pending connections, numbered in the order of coming, and how many there are of each origin.
pub(super) struct PendingConnections<S> {
    present: BTreeMap<u64, PendingConnection<S>>,
    crowds: BTreeMap<CallerOrigin, usize>,
    came: u64,
}

impl<S: Read + Write> PendingConnections<S> {
    pub(super) fn new() -> Self {
        Self { present: BTreeMap::new(), crowds: BTreeMap::new(), came: 0 }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut PendingConnection<S>> {
        self.present.get_mut(&number)
    }

    /// Takes a connection in; returns its number.
    pub(super) fn insert(&mut self, pending: PendingConnection<S>) -> u64 {
        self.came += 1;
        *self.crowds.entry(pending.origin).or_default() += 1;
        self.present.insert(self.came, pending);
        self.came
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<PendingConnection<S>> {
        let pending = self.present.remove(&number)?;
        if let Some(crowd) = self.crowds.get_mut(&pending.origin) {
            *crowd -= 1;
            if *crowd == 0 {
                self.crowds.remove(&pending.origin);
            }
        }
        Some(pending)
    }

    /// The connection to drop so that one more may come from `origin`, where there are so many places.
    pub(super) fn eviction_for(&self, origin: CallerOrigin, places: usize) -> Option<u64> {
        if self.crowds.get(&origin).is_some_and(|crowd| *crowd >= OF_ONE_ORIGIN.min(places)) {
            return self.first_to_evict(|pending| pending.origin == origin);
        }
        (self.present.len() >= places).then(|| self.first_to_evict(|_| true)).flatten()
    }

    /// Which is dropped first: of those of whose origin there are most, one that has stopped within a message, the oldest. Ranks say
    /// each message in one piece, so they are passed over while there are others.
    fn first_to_evict(&self, which: impl Fn(&PendingConnection<S>) -> bool) -> Option<u64> {
        let candidates = self.present.iter().filter(|(_, pending)| which(pending));
        let key = |(number, pending): &(&u64, &PendingConnection<S>)| {
            (Reverse(self.crowds[&pending.origin]), !pending.is_interrupted(), **number)
        };
        candidates.min_by_key(key).map(|(number, _)| *number)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.present.len()
    }

    /// A connection to drop if the process lacks descriptors.
    pub(super) fn any_eviction(&self) -> Option<u64> {
        self.first_to_evict(|_| true)
    }

    /// Who has had all the time that a handshake may take.
    pub(super) fn late(&self, now: Instant) -> Vec<u64> {
        let late =
            self.present.iter().take_while(|(_, pending)| now.duration_since(pending.came) >= DEADLINE);
        late.map(|(number, _)| *number).collect()
    }
}
