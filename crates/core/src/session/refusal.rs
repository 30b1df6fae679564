//! Why a process was not let in.

use super::{
    Role,
    codec::{Malformed, Reader, Writer},
    versions::Versions,
};
use crate::group::Rank;
use alloc::{string::String, vec::Vec};

/// How many ranks a refusal names: it must fit a [handshake](super::handshake) message, whatever it says.
const RANKS_SENT: usize = 200;

/// Why a process was refused, in words for the people who started it.
///
/// It travels to the refused process, so its text names both sides neutrally. It is never authenticated: believe it as
/// far as giving up this connection goes. Its texts are sent up to 256 bytes each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The two sides hold different tokens, or one holds none.
    #[error("the job tokens differ: give every worker and reducer the same HERRINGBONE_TOKEN")]
    Token,
    /// The two sides have no protocol version in common.
    #[error("no common protocol version: {theirs} connected to {ours}; install the same release everywhere")]
    Version {
        /// The versions of the refusing side.
        ours: Versions,
        /// The versions of the refused side.
        theirs: Versions,
    },
    /// The refused side is of another job.
    #[error("job {theirs:016x} reached a process of job {ours:016x}: check addresses and ports")]
    Job {
        /// The refusing side's job.
        ours: u64,
        /// The refused side's job.
        theirs: u64,
    },
    /// The two sides were started as parts of two jobs.
    #[error(
        "rank {rank} is of the job {theirs} and has met the job {ours}, which has the same address and token. Give each job a \
         port of its own (HERRINGBONE_STORE or MASTER_PORT), or, if both are one job, the same HERRINGBONE_JOB to all ranks"
    )]
    OtherJob {
        /// The refused rank.
        rank: Rank,
        /// The job of the refusing side, as its launcher calls it.
        ours: String,
        /// The job of the refused side, as its launcher calls it.
        theirs: String,
    },
    /// A rank was taken before.
    #[error(
        "two processes have rank {rank}, at {first} and at {second}: give each process a rank of its own"
    )]
    DuplicateRank {
        /// The rank.
        rank: Rank,
        /// The process that came first.
        first: String,
        /// The process that came second, and was refused.
        second: String,
    },
    /// A rank that the world does not have.
    #[error("there is no rank {rank} in a world of {world}: ranks are 0 to the world's size - 1")]
    RankOutOfRange {
        /// The rank.
        rank: Rank,
        /// The size of the world.
        world: u32,
    },
    /// The two sides have different sizes of the world.
    #[error(
        "rank {rank} has a world of {theirs}, and other ranks have {ours}: give every process the same WORLD_SIZE, or, for two \
         groups over one torch store, each group its own PrefixStore"
    )]
    World {
        /// The refused rank.
        rank: Rank,
        /// The value of the refusing side.
        ours: u32,
        /// The value of the refused side.
        theirs: u32,
    },
    /// A setting that all ranks must share differs.
    #[error("rank {rank} has {name} = {theirs}, rank 0 has {ours}: set it to the same on every rank")]
    Setting {
        /// The refused rank.
        rank: Rank,
        /// The setting.
        name: String,
        /// Rank 0's value.
        ours: String,
        /// The refused rank's value.
        theirs: String,
    },
    /// Two builds of the software cut messages by different constants.
    #[error(
        "rank {rank} runs a build that cuts messages otherwise ({theirs}) than rank 0's ({ours}): install the same \
         release everywhere"
    )]
    Build {
        /// The refused rank.
        rank: Rank,
        /// The limits of rank 0's build.
        ours: String,
        /// The limits of the refused rank's build.
        theirs: String,
    },
    /// The two sides belong to two users of a host, and no token proves that both are of one job.
    #[error(
        "a process of user {theirs} reached one of user {ours}, but a job without a token has one user. Run all as one user, or \
         give every worker and reducer the same HERRINGBONE_TOKEN"
    )]
    User {
        /// The user of the refusing side, as it sees it.
        ours: u32,
        /// The user of the refused side, as the other one sees it.
        theirs: u32,
    },
    /// No more connections, groups or memory for this one.
    #[error("no room: {what} is limited to {limit} here")]
    NoRoom {
        /// The thing without room.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The refusing side knows of no such process.
    #[error("{role} {rank} is not expected here: check that it was started for this job")]
    Unexpected {
        /// Its role.
        role: Role,
        /// Its rank.
        rank: Rank,
    },
    /// Not everybody came in time.
    #[error("{} did not come in time; look at their logs, or raise the timeout", super::Ranks(.missing))]
    Absent {
        /// The missing ranks, ascending; the first 200 of them are sent.
        missing: Vec<Rank>,
    },
    /// A forced algorithm needs a reducer that cannot be used.
    #[error("the reducer at {address} cannot be used, and HERRINGBONE_ALGORITHM needs it: {reason}")]
    NoReducer {
        /// The address where it should listen.
        address: String,
        /// The problem, and what to do.
        reason: String,
    },
    /// Rank 0 has a setting that it cannot use, so the job does not start.
    #[error("rank 0 cannot use {setting}: {problem}")]
    Unusable {
        /// The setting.
        setting: String,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// Another rank than rank 0 has a setting that it cannot use, so the job does not start.
    #[error("rank {rank} cannot use {setting}: {problem}")]
    UnusableAt {
        /// That rank.
        rank: Rank,
        /// The setting.
        setting: String,
        /// The problem, and how to fix it.
        problem: String,
    },
    /// The process at this address was started again since its address was learnt.
    #[error("{role} {rank} was started again: re-form the job to include it")]
    Restarted {
        /// Its role.
        role: Role,
        /// Its rank.
        rank: Rank,
    },
}

/// A refusal of a rank, of which there are texts.
fn about(to: &mut Writer, code: u8, rank: Rank, texts: &[&str]) {
    to.u8(code);
    to.u32(rank);
    texts.iter().for_each(|text| to.cut_text(text));
}

impl Refusal {
    pub(super) fn write(&self, to: &mut Writer) {
        match self {
            Refusal::Token => to.u8(1),
            Refusal::Version { ours, theirs } => {
                to.u8(2);
                ours.write(to);
                theirs.write(to);
            }
            Refusal::Job { ours, theirs } => {
                to.u8(3);
                to.u64(*ours);
                to.u64(*theirs);
            }
            Refusal::DuplicateRank { rank, first, second } => {
                about(to, 4, *rank, &[first, second]);
            }
            Refusal::RankOutOfRange { rank, world } => {
                to.u8(5);
                to.u32(*rank);
                to.u32(*world);
            }
            Refusal::World { rank, ours, theirs } => {
                to.u8(6);
                to.u32(*rank);
                to.u32(*ours);
                to.u32(*theirs);
            }
            Refusal::Setting { rank, name, ours, theirs } => {
                about(to, 7, *rank, &[name, ours, theirs]);
            }
            Refusal::NoRoom { what, limit } => {
                to.u8(8);
                to.cut_text(what);
                to.u64(*limit);
            }
            Refusal::Unexpected { role, rank } => {
                to.u8(9);
                role.write(to);
                to.u32(*rank);
            }
            Refusal::Restarted { role, rank } => {
                to.u8(10);
                role.write(to);
                to.u32(*rank);
            }
            Refusal::Build { rank, ours, theirs } => {
                about(to, 12, *rank, &[ours, theirs]);
            }
            Refusal::NoReducer { address, reason } => write_texts(to, 13, [address, reason]),
            Refusal::OtherJob { rank, ours, theirs } => {
                about(to, 14, *rank, &[ours, theirs]);
            }
            Refusal::User { ours, theirs } => {
                to.u8(16);
                to.u32(*ours);
                to.u32(*theirs);
            }
            Refusal::Unusable { setting, problem } => write_texts(to, 15, [setting, problem]),
            Refusal::UnusableAt { rank, setting, problem } => {
                about(to, 17, *rank, &[setting, problem]);
            }
            Refusal::Absent { missing } => {
                to.u8(11);
                to.ranks(&missing[..missing.len().min(RANKS_SENT)]);
            }
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Refusal::Token,
            2 => Refusal::Version { ours: Versions::read(from)?, theirs: Versions::read(from)? },
            3 => Refusal::Job { ours: from.u64()?, theirs: from.u64()? },
            4 => Refusal::DuplicateRank { rank: from.u32()?, first: from.text()?, second: from.text()? },
            5 => Refusal::RankOutOfRange { rank: from.u32()?, world: from.u32()? },
            6 => Refusal::World { rank: from.u32()?, ours: from.u32()?, theirs: from.u32()? },
            7 => Refusal::Setting {
                rank: from.u32()?,
                name: from.text()?,
                ours: from.text()?,
                theirs: from.text()?,
            },
            8 => Refusal::NoRoom { what: from.text()?, limit: from.u64()? },
            9 => Refusal::Unexpected { role: Role::read(from)?, rank: from.u32()? },
            10 => Refusal::Restarted { role: Role::read(from)?, rank: from.u32()? },
            11 => Refusal::Absent { missing: from.ranks()? },
            12 => Refusal::Build { rank: from.u32()?, ours: from.text()?, theirs: from.text()? },
            15 => Refusal::Unusable { setting: from.text()?, problem: from.text()? },
            17 => Refusal::UnusableAt { rank: from.u32()?, setting: from.text()?, problem: from.text()? },
            16 => Refusal::User { ours: from.u32()?, theirs: from.u32()? },
            13 => Refusal::NoReducer { address: from.text()?, reason: from.text()? },
            14 => Refusal::OtherJob { rank: from.u32()?, ours: from.text()?, theirs: from.text()? },
            _ => return Err(Malformed("its refusal is unknown")),
        })
    }
}

/// A kind of refusal that has nothing but texts.
fn write_texts(to: &mut Writer, kind: u8, texts: [&str; 2]) {
    to.u8(kind);
    texts.into_iter().for_each(|text| to.cut_text(text));
}
