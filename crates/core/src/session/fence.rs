//! How a group comes back into step after something went wrong.
//!
//! Each member numbers its own operations: a rank's n-th call in a group is operation n. If members disagree about an
//! operation, or one fails somewhere, the group's **generation** ends. The protocol is between each [`Member`] and the
//! [hub](super::hub::Hub), which is rank 0 of the job. Without rank 0 the job ends.
//!
//! ```text
//! member    Dispute      something went wrong: a frame's hash differs, a timeout, a lost reducer
//! hub       Fence        once per generation, to all members: stop
//! member    Report       the number of its next operation, below which number its calls have to fail, its last operations
//! hub       Decide       once all live members have reported: the highest of these numbers, and why
//! ```
//!
//! After the decision every operation below that number has failed on every member that had not completed it. If a
//! member has not called it yet, that call fails when it comes, and takes its number. A member that had completed all
//! its operations learns of the decision at its next call. That call takes its number too, so it also fails on all
//! other members. So a rank's n-th call is operation n in every case, and ranks that continue after the error stay in
//! step. Frames of the old generation are discarded, and frames of the next one are held until the decision arrives.
//! The rolling hash starts again.
//!
//! A disagreement is usually found by a frame whose rolling hash differs from the receiver's. If no frame flows,
//! because two ranks each wait for the other's broadcast for example, it is found by waiting. A member that has waited
//! for [`WAITING_MILLISECONDS`] reports this to the hub, and again every [`WAITING_AGAIN_MILLISECONDS`]. The hub
//! compares the members that wait in the same operation, and asks others to look into their history; see
//! [`Hub::receive`](super::hub::Hub::receive).
//!
//! A group without a name from the program is named by its [`Ordinal`](super::control::Ordinal): its members, and how
//! many groups of exactly these members each of them has made before. If a member's call to make a group fails, its
//! number is behind the others'. The members find out when the others' wait in the group times out: the fence gives the
//! member the ordinal, and it continues from that number. The group is over on the members that have made it, so all
//! make the next one, under the same ordinal.
//!
//! All of it relies on connections that keep the order of their messages, and on nothing else: no clock is read here.
//! A process that does not report is either alive, and its control thread will, or it will be declared dead.

mod fences;
mod history;
mod member;

pub(super) use fences::Fences;
pub use fences::{Directed, HubState};
pub use member::{Action, Admission, Check, Issued, Member, NotIssued, Phase, Settled};

/// How long a member waits before it first reports its waiting to the hub.
pub const WAITING_MILLISECONDS: u64 = 50;

/// How long it waits from then on before it tells the hub again.
pub const WAITING_AGAIN_MILLISECONDS: u64 = 1_000;

/// How many operations back a member remembers; further if they are open.
pub const REMEMBERED: usize = 1_024;
