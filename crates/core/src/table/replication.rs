//! Which server has a range, and how its copies keep up: tables that survive their servers.
//!
//! The servers of a parameter server are a world of their own. An [`Epoch`] has the processes in it, and a [`Tenure`]
//! the owner and the copies of each range. An owner executes requests. It sends no result before all copies that hold
//! the range whole have the request in the same epoch. If a server is lost, the remaining servers form the next epoch.
//! [`TableNode`] is the state machine of one server.
//!
//! * **Which servers continue** is decided by an [`Election`](crate::session::election::Election): the servers that
//!   have met continue only if they outnumber the silent ones. A server whose process has certainly ended is not
//!   included. This is certain if its connection ended within a second of the last sign of life, and it had not
//!   announced that it gives this server up.
//! * **An epoch is settled once all its servers have promised it.** A server that promises gives up the servers that
//!   are not in it, and tells them so. From then on it acknowledges nothing to an owner that is not in the epoch. An
//!   epoch that might be settled is remembered: the next one needs a majority in it, too.
//! * **A server that was restarted**, or finds that others have continued without it, joins in a new epoch. It gets an
//!   image of each range that it is to hold, and takes its own ranges back.
//!
//! This is primary-backup replication with views, as in Oki and Liskov, "Viewstamped Replication" (PODC 1988). It has
//! the majority rule of this engine's elections, with which two servers survive the death of one.

mod agreement;
mod epoch;
mod log;
mod message;
mod node;
mod ranges;
mod search;
mod state;

pub use epoch::{
    CopyPlace, Epoch, EpochId, HeldRange, SERVERS_MOST, ServerLife, SettledEpoch, Tenure, lay_out,
};
pub use log::RangeLog;
pub use message::{Candidacy, ImagePart, PEER_BYTES, PeerMessage};
pub use node::SILENCE_MILLISECONDS;
pub use ranges::RangeProgress;
pub use state::{NodeOutput, SentImage, TableNode};
