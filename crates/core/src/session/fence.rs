//! How a group comes back into step after something went wrong.
//!
//! Members number their operations for themselves: a rank's n-th call in a group is operation n. When they disagree
//! about one, or one fails somewhere, the group's **generation** ends, by a protocol between each [`Member`] and the
//! [hub](super::hub::Hub), which is rank 0 of the job (without it the job ends):
//!
//! ```text
//! member    Dispute      something went wrong: a frame's hash differs, a timeout, a lost reducer
//! hub       Fence        once per generation, to all members: stop
//! member    Report       the number of its next operation, below which number its calls have to fail, its last operations
//! hub       Decide       once all live members have reported: the highest of these numbers, and why
//! ```
//!
//! After the decision every operation below that number has failed on every member on which it had not been completed,
//! also where it has not been called yet: that call fails when it comes, and takes its number. A member that had
//! completed all of its own learns of it at its next call; that one takes its number too, so it fails on all the others
//! as well. Thus a rank's n-th call is operation n whatever happens, and ranks that go on after the error stay in step.
//! Frames of the old generation are discarded, those of the next one held until the decision arrives. The rolling hash
//! starts again.
//!
//! A disagreement is usually found by a frame whose rolling hash differs from the receiver's. Where no frame flows (two
//! ranks that each wait for the other's broadcast) it is found by waiting: a member that has waited for
//! [`WAITING_MILLISECONDS`] says so to the hub, and again every [`WAITING_AGAIN_MILLISECONDS`]. The hub compares those
//! who wait in the same operation, and asks others to look into their history; see
//! [`Hub::receive`](super::hub::Hub::receive).
//!
//! A group to which programs give no name has one by its [`Ordinal`](super::control::Ordinal): its members, and how many groups of
//! just these each of them has made before. Where a member's call to make one fails, its count stays behind the others'. They
//! find out as they wait in the group for their timeout: the fence tells the member the ordinal, and it counts on from there.
//! The group is over on those who have made it, so that all make the next one, under the same ordinal.
//!
//! All of it relies on connections that keep the order of their messages, and on nothing else: no clock is read here.
//! A process that does not report is either alive, and its control thread will, or it will be declared dead.

mod fences;
mod history;
mod member;

pub(super) use fences::Fences;
pub use fences::{Directed, HubState};
pub use member::{Action, Admission, Check, Issued, Member, NotIssued, Phase, Settled};

/// How long a member waits before it first tells the hub what it is waiting for.
pub const WAITING_MILLISECONDS: u64 = 50;

/// How long it waits from then on before it tells the hub again.
pub const WAITING_AGAIN_MILLISECONDS: u64 = 1_000;

/// How many operations back a member remembers; further if they are open.
pub const REMEMBERED: usize = 1_024;
