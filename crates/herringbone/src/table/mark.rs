//! The common settings of a group's servers, as a number that each one sends in its first message.

use super::options::TableGroup;
use crate::core::session::handshake::Identity;

/// The bits of a mark in which the number of copies is: there are at most 63.
const REPLICAS: u64 = 0xff;

/// How to mend it.
const REMEDY: &str = "give all servers the same --servers and --replicas";

impl TableGroup {
    /// A digest of the list of servers, and the number of copies: servers whose marks differ are of different groups. In first
    /// words it is where others have the [job](Identity::job).
    ///
    /// The digest is FNV-1a (Fowler, Noll and Vo): it finds mistakes, not forgeries, for whoever says it knows the token.
    pub(super) fn mark(&self) -> u64 {
        let bytes = self.servers.iter().flat_map(|server| server.bytes().chain([0]));
        let digest = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
        // 0 would be no group's.
        (digest | 1 << 63) & !REPLICAS | u64::from(self.replicas) & REPLICAS
    }

    /// Why another server is not of this group, if it is not.
    pub(super) fn difference(&self, there: &Identity) -> Option<String> {
        let (own, count) = (self.mark(), self.servers.len() as u32);
        let (ours, theirs) = (own & REPLICAS, there.job & REPLICAS);
        let what = match there.world {
            1 => "it was started without --servers".to_owned(),
            world if world != count => format!("its list has {world} servers, and this one's has {count}"),
            _ if ours != theirs => format!("it keeps {theirs} copies of each range, and this one {ours}"),
            _ if own != there.job => "its list names other servers, or the same in another order".to_owned(),
            _ => return None,
        };
        Some(format!("{what}: {REMEDY}"))
    }
}

/// Why two table servers are not of one group, as a worker sees it.
pub(super) fn disagreement(one: &str, other: &str) -> String {
    format!("{one} and {other} have different lists of servers, or numbers of copies: {REMEDY}")
}
