//! The transports of messages.

use super::UnknownName;
use std::str::FromStr;

/// How messages travel between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Through shared memory; all ranks have to be on one host.
    Shm,
    /// Over TCP, even between ranks of one host.
    Tcp,
}

impl Transport {
    /// Whether processes of a host share memory if this is forced on one of them.
    pub(crate) fn shares(forced: Option<Self>) -> bool {
        forced != Some(Self::Tcp)
    }

    /// Its name in `HERRINGBONE_TRANSPORT`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }
}

impl FromStr for Transport {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let all = [Transport::Shm, Transport::Tcp];
        let found = all.into_iter().find(|transport| transport.name() == text.trim());
        found.ok_or_else(|| UnknownName::none_of(text, &all.map(Transport::name)))
    }
}
