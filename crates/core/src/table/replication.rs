//! Which server has a range, and how its copies keep up: tables that survive their servers.
//!
//! The servers of a parameter server are a world of their own. An [`Epoch`] says which processes are in it, and a [`Tenure`] who has
//! each range: one owner, and copies. An owner executes requests, and tells nobody what came of one before all copies that hold
//! the range whole have it in the same epoch. If a server is lost, those that are left form the next epoch. [`TableNode`] is one
//! server's machine for it.
//!
//! * **Who goes on** is what an [`Election`](crate::session::election::Election) finds: those that have met go on only if they
//!   are more than those that are silent. A server whose process has certainly ended does not count. It is certain if its
//!   connection ended within a second of the last sign of life, and it had not said that it gives this one up.
//! * **An epoch counts once all its servers have promised it.** Who promises gives those up, aloud, that are not in it, and from
//!   then on acknowledges nothing to an owner that is not in it. An epoch that may or may not have come to count is kept in
//!   mind: the next one needs a majority in it, too.
//! * **A server that was started anew**, or finds that others have gone on without it, joins in a new epoch, gets an image of each range that it
//!   is to hold, and takes the ranges back that are its own.
//!
//! This is primary-backup replication with views, as in Oki and Liskov, "Viewstamped Replication" (PODC 1988), with the
//! majority rule of this engine's elections, under which two servers survive the death of one.

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
