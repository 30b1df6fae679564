//! The protocol versions that a process speaks.

use super::codec::{Malformed, Reader, Writer};
use core::fmt;

/// The protocol versions that a process speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

impl Versions {
    /// What this release speaks. Since version 2 reducers show their workers that they live, since version 3 they are told
    /// the workers' hosts, and since version 4 the fold order. Version 5 has members with identities, and tells each group's
    /// parameters and plans. Version 6 binds what follows a handshake to its connection. In version 7 ranks that join tell the
    /// names of their job, parameters tell the links between ranks and what decides the choice of algorithms, and ranks go on without the hub. In version 8 messages may be
    /// coded, and fingerprints say how. Version 9 has tables on servers, whose workers may go on through shared memory;
    /// in version 10 a list of keys goes once over a connection, and then by a number,
    /// a push of a table that is refused withdraws no other one, and ranges of a table say with which number they were made. In version 11
    /// reducers are told the fold keys of a group, and by what its averages divide. In version 12 a status connection carries questions,
    /// and reducers are told the job's name, and by a worker that leaves in order that it does. In version 13 parameters tell the
    /// ports of hosts. In version 14 parameters tell the sites of hosts and whether jobs follow ports that become slow, and a message of an
    /// all-reduce in several stages may be of several chunks.
    pub const CURRENT: Versions = Versions { min: 14, max: 14 };

    /// The newest version that both sides speak.
    pub fn agree(self, other: Versions) -> Option<u16> {
        let newest = self.max.min(other.max);
        (self.contain(newest) && other.contain(newest)).then_some(newest)
    }

    pub(super) fn contain(self, version: u16) -> bool {
        (self.min..=self.max).contains(&version)
    }

    pub(super) fn write(self, to: &mut Writer) {
        to.u16(self.min);
        to.u16(self.max);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { min: from.u16()?, max: from.u16()? })
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max - self.min.min(self.max) {
            0 => write!(f, "version {}", self.max),
            _ => write!(f, "versions {} to {}", self.min, self.max),
        }
    }
}
