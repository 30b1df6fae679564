//! The shared state of a server's threads.

use super::{link::MessageLink, tables::Reply};
use crate::{
    core::session::{handshake::Identity, status::TableServerStatus},
    sys::doorbell::Bell,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Mutex, MutexGuard, PoisonError, atomic::AtomicBool, mpsc::Sender},
};

/// What the threads of a server share.
pub(super) struct ServiceShared {
    pub(super) incarnation: u64,
    pub(super) arrivals: Mutex<Vec<TableArrival>>,
    /// Those who ask how this server stands.
    pub(super) inquiries: Mutex<Vec<Sender<TableServerStatus>>>,
    /// The servers that there is a connection with.
    pub(super) linked: Mutex<BTreeSet<u32>>,
    /// The processes of other servers that are well: the life of each, by its place.
    pub(super) heard: Mutex<BTreeMap<u32, u64>>,
    /// What threads have found that write to disk.
    pub(super) found: Mutex<Vec<FoundAnswer>>,
    pub(super) bell: Bell,
    pub(super) is_over: AtomicBool,
}

impl ServiceShared {
    /// Of a process with this incarnation. Nobody has come yet.
    pub(super) fn new(incarnation: u64) -> io::Result<Self> {
        Ok(Self {
            incarnation,
            arrivals: Mutex::default(),
            inquiries: Mutex::default(),
            linked: Mutex::default(),
            heard: Mutex::default(),
            found: Mutex::default(),
            bell: Bell::new()?,
            is_over: AtomicBool::new(false),
        })
    }
}

/// An answer that a thread has found.
pub(super) struct FoundAnswer {
    pub(super) range: u32,
    pub(super) reply: Reply,
}

/// One that has proved itself.
pub(super) struct TableArrival {
    pub(super) link: MessageLink,
    pub(super) who: Identity,
}

/// What a thread that panicked has left is used as it is.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
