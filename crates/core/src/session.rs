//! The messages of processes besides data, as state machines without I/O.
//!
//! Bytes and messages go in; bytes, messages and decisions come out. Sockets, clocks and random numbers belong to the caller.
//! The modules, in the order in which a process meets them:
//!
//! * [`handshake`] proves the job's token on every connection.
//! * [`formation`] gathers the ranks into a [roster](membership).
//! * [`control`] is the language of control connections.
//! * [`lane`] carries the messages of schedules.
//! * [`mailbox`] matches messages between two ranks with receives.
//! * [`fence`] brings a group back into step after a disagreement.
//! * [`close_check`] finds such a disagreement before a rank leaves a group.
//! * [`recovery`] finishes the operations of a lost reducer.
//! * [`group_state`] is the state of one process in a group, with all of these.
//! * [`rebalance`] gives a host that became slow less to carry.
//! * [`pool`] decides which reducers are used.
//! * [`survivors`] decides which ranks continue after a death.
//! * [`election`] lets ranks find each other if the hub died.
//! * [`stragglers`] names the ranks that are late for a call.
//! * [`status`] reports the state of a process.
//! * [`flight`] has its last calls.
//!
//! On rank 0 a [`hub`] makes the decisions for all; a [`watch`] makes the decisions of each rank's control thread.

mod basis;
mod cause;
pub mod close_check;
mod codec;
pub mod control;
pub mod election;
pub mod fence;
pub mod flight;
pub mod formation;
pub mod group_state;
pub mod handshake;
pub mod hub;
pub mod lane;
pub mod mailbox;
pub mod membership;
mod parameters;
pub mod pool;
pub mod rebalance;
pub mod recovery;
mod refusal;
mod rules;
mod seen;
pub mod status;
pub mod stragglers;
pub mod survivors;
mod versions;
pub mod watch;

pub use basis::{Basis, CutBy, Difference, Machines, Summary};
pub use cause::{Cause, Mismatch, Variant};
pub use codec::TooLong;
pub(crate) use codec::{Malformed, Reader, Writer};
pub use parameters::{
    FILES_BYTES, FileText, MEASURE, Measuring, PARAMETERS_BYTES, Parameters, PlanText, TREE_BOUND,
};
pub use refusal::Refusal;
pub use rules::GroupRules;
pub use seen::is_unseen;

use crate::group::Rank;
use core::fmt;

/// The role of a process in a job. Codes above these are free for roles to come; a version that does not know one
/// refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Role {
    /// It has data.
    Worker = 1,
    /// It has none, and folds for the workers.
    Reducer = 2,
    /// It keeps [tables](crate::table).
    TableServer = 3,
}

impl Role {
    fn write(self, to: &mut codec::Writer) {
        to.u8(self as u8);
    }

    fn read(from: &mut codec::Reader<'_>) -> Result<Self, codec::Malformed> {
        let code = from.u8()?;
        let known =
            [Role::Worker, Role::Reducer, Role::TableServer].into_iter().find(|role| *role as u8 == code);
        known.ok_or(codec::Malformed(
            "a role that this version does not know: install the same release everywhere",
        ))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Role::Worker => "worker",
            Role::Reducer => "reducer",
            Role::TableServer => "table server",
        })
    }
}

/// Ranks as people read them: `rank 3`, `ranks 0, 2-5, 9`, with runs drawn together and a long list cut short.
///
/// The ranks are expected to ascend.
#[derive(Clone, Copy, Debug)]
pub struct Ranks<'a>(pub &'a [Rank]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RUNS_SHOWN: usize = 8;
        f.write_str(match self.0.len() {
            0 => return f.write_str("no rank"),
            1 => "rank",
            _ => "ranks",
        })?;
        let follows = |a: &Rank, b: &Rank| a.checked_add(1) == Some(*b);
        let mut shown = 0;
        for (number, run) in self.0.chunk_by(follows).enumerate().take(RUNS_SHOWN) {
            let (first, last) = (run[0], run[run.len() - 1]);
            let separator = if number == 0 { " " } else { ", " };
            match run.len() {
                1 => write!(f, "{separator}{first}")?,
                2 => write!(f, "{separator}{first}, {last}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            shown += run.len();
        }
        match self.0.len() - shown {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}
