//! Letting connections in: each handshake on a short-lived thread, only so many at a time, strangers logged once.

use super::greet::{self, GreetError};
use crate::core::session::handshake::HandshakeError;
use std::{
    collections::BTreeSet,
    net::{IpAddr, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// How many connections may be in their handshake at once.
const PENDING: usize = 64;
/// How many strangers' addresses are remembered, to be logged once each.
const STRANGERS: usize = 256;

/// A limit on handshakes under way, and a memory of strangers.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    who: Arc<str>,
    pending: Arc<AtomicUsize>,
    strangers: Arc<Mutex<BTreeSet<IpAddr>>>,
}

impl Door {
    /// `who` is what this process is called in its log.
    pub(crate) fn new(who: &str) -> Self {
        Self { who: who.into(), pending: Arc::default(), strangers: Arc::default() }
    }

    /// Runs `admit` for a new connection on a thread of its own; drops the connection if too many are pending.
    pub(crate) fn enter(
        &self,
        stream: TcpStream,
        admit: impl FnOnce(TcpStream) -> Result<(), GreetError> + Send + 'static,
    ) {
        if self.pending.fetch_add(1, Ordering::SeqCst) >= PENDING {
            self.pending.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        let from = stream.peer_addr().map(|address| address.ip()).ok();
        let door = self.clone();
        let spawned = std::thread::Builder::new().name("herringbone-door".to_owned()).spawn(move || {
            let result = stream.set_nonblocking(false).map_err(GreetError::Io).and_then(|()| admit(stream));
            if let (Err(error), Some(from)) = (result, from) {
                door.turned_away(from, &error);
            }
            door.pending.fetch_sub(1, Ordering::SeqCst);
        });
        if spawned.is_err() {
            self.pending.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn turned_away(&self, from: IpAddr, error: &GreetError) {
        let notable = matches!(
            error,
            GreetError::Handshake(HandshakeError::NotHerringbone(_) | HandshakeError::Refusing(_))
                | GreetError::Handshake(HandshakeError::Malformed { .. } | HandshakeError::TooLong { .. })
                | GreetError::Late
        );
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if notable && strangers.len() < STRANGERS && strangers.insert(from) {
            crate::log::warn(
                &self.who,
                format_args!("a connection from {from} was dropped: {error} (said once per address)"),
            );
        }
    }
}

/// Accepts what is waiting at a listener.
pub(crate) fn accept_all(listener: &std::net::TcpListener, mut each: impl FnMut(TcpStream)) {
    while let Ok((stream, _)) = listener.accept() {
        each(stream);
    }
}

/// Prepares an admitted connection for frames.
pub(crate) fn into_link(stream: TcpStream) -> Result<crate::transport::tcp::TcpLink, GreetError> {
    crate::sys::socket::tune_tcp(&stream, SILENCE)?;
    stream.set_nonblocking(true)?;
    Ok(crate::transport::tcp::TcpLink::new(crate::sys::fork::Guarded::new(stream.into())?))
}

/// How long unacknowledged data may hang before the kernel gives a connection up.
pub(crate) const SILENCE: std::time::Duration = std::time::Duration::from_secs(6);

const _: () = assert!(greet::DEADLINE.as_secs() < SILENCE.as_secs());
