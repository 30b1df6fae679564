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
    /// The versions of this release. Each version brought:
    ///
    /// * 2: reducers send heartbeats to their workers.
    /// * 3: reducers learn the workers' hosts.
    /// * 4: reducers learn the fold order.
    /// * 5: members have identities, and each group's parameters and plans are sent.
    /// * 6: the bytes after a handshake are bound to its connection.
    /// * 7: joining ranks send the names of their job. Parameters have the links between ranks and the settings for the choice of
    ///   algorithms. Ranks continue without the hub.
    /// * 8: messages can be coded, and fingerprints have the codec.
    /// * 9: tables on servers, whose workers can use shared memory.
    /// * 10: a list of keys is sent once over a connection, and then as a number. A refused push of a table withdraws no other push.
    ///   Ranges of a table have the number with which they were made.
    /// * 11: reducers learn the fold keys of a group, and the divisor of its averages.
    /// * 12: a status connection carries questions. Reducers learn the job's name, and that a worker leaves in order.
    /// * 13: parameters have the ports of hosts.
    /// * 14: parameters have the sites of hosts, and whether jobs follow ports that become slow. A message of an all-reduce in several
    ///   stages can have several chunks.
    /// * 15: the client of a connection that stays ends the handshake.
    pub const CURRENT: Versions = Versions { min: 15, max: 15 };

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
