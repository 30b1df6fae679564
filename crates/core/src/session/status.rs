//! The status that a process reports when it is asked.
//!
//! A process answers for itself alone, from its present state. It asks no other process, so none can keep it from
//! answering. A worker of a job sends its [`Roster`](super::membership::Roster) before, so that a client of one member
//! knows the others. Lists are cut, and have the number of items that were left out.

use super::{
    codec::{Malformed, Reader, Writer},
    membership::MemberId,
};
use crate::group::Rank;
use alloc::{string::String, vec::Vec};

mod tables;

pub use tables::{HotKey, RangeStatus, TABLE_WORKERS, TABLES, TableServerStatus, TableStatus, TableWorker};

/// How many jobs a reducer lists.
pub const JOBS: usize = 64;
/// How many groups a process lists.
pub const GROUPS: usize = 256;
/// How many operations a process lists.
pub const OPERATIONS: usize = 64;
/// How many links a process lists.
pub const LINKS: usize = 2048;
/// How many members are named that an operation waits for.
pub const WAITS: usize = 256;

/// A process's status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its number on its host.
    pub process: u32,
    /// The name of its host.
    pub host: String,
    /// Its activity.
    pub activity: Activity,
}

/// The clocks of a process at one moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockReading {
    /// The monotonic clock, since its host has started. All moments that a process tells are of it.
    pub monotonic: u64,
    /// The wall clock, since 1970.
    pub realtime: u64,
}

/// The activity of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Rank 0 waits for these ranks, before there is a job.
    Forms {
        /// The ranks that have not come, ascending.
        missing: Vec<Rank>,
    },
    /// It is a worker of a job. Nothing is known if its engine was busy all the time.
    Works(Option<JobStatus>),
    /// It is a reducer, a table server, or both.
    Serves {
        /// How many jobs it has served since it began, the present ones included.
        served: u64,
        /// The present ones.
        jobs: Vec<ServedJob>,
        /// How many more there are.
        unlisted: u32,
        /// Its tables, if it keeps any. Nothing is known if it was busy all the time.
        tables: Option<TableServerStatus>,
    },
}

/// A job that a reducer serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedJob {
    /// Its number.
    pub job: u64,
    /// The number of workers, by its settings.
    pub world: u32,
    /// How it stands here. Nothing is known if its engine was busy all the time.
    pub job_status: Option<JobStatus>,
}

/// How a process stands in a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobStatus {
    /// The roster's epoch.
    pub epoch: u64,
    /// The moment that this is about, in microseconds from some start that all moments of the process share.
    pub moment: u64,
    /// How many operations were begun here, of all groups.
    pub issued: u64,
    /// Its groups.
    pub groups: Vec<GroupStatus>,
    /// The operations whose callers wait, and on a reducer all that run; the oldest first.
    pub operations: Vec<InFlight>,
    /// The links that were made, are wanted or are lost.
    pub links: Vec<LinkStatus>,
    /// How many groups, operations and links more there are.
    pub unlisted: [u32; 3],
    /// The ports of hosts that a group's plans use, as a sentence without a full stop, if they have
    /// [followed](super::rebalance) the ports. If several groups have, this is the one with the lowest number.
    pub ports: Option<String>,
}

/// How a group stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// Its number; 0 is the group of all ranks.
    pub group: u32,
    /// Its name.
    pub name: String,
    /// How many ranks it has.
    pub ranks: u32,
    /// How many fences it has had.
    pub generation: u32,
    /// The number of the operation that is called next here. Nothing is called on a reducer.
    pub next: Option<u64>,
    /// The number of the last operation that is over for its caller.
    pub over: Option<u64>,
    /// Why it cannot continue, if it cannot.
    pub lost: Option<String>,
}

/// An operation that is under way, or a message that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The number of its group.
    pub group: u32,
    /// How many operations of its group were called before it; a message that waits for its other end has no number.
    pub sequence: Option<u64>,
    /// Its description, as in errors.
    pub name: String,
    /// How long ago it was called, in milliseconds.
    pub age: u64,
    /// Whether it has begun. One that has not waits for links, memory or an older operation.
    pub runs: bool,
    /// The members for which it waits, the first 256 of them.
    pub waits: Vec<MemberId>,
}

/// How a link stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// The member at its other end.
    pub to: MemberId,
    /// Its medium.
    pub way: Way,
    /// Payload bytes sent on it so far.
    pub sent: u64,
    /// Payload bytes received on it so far.
    pub received: u64,
}

/// The medium of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is being made.
    Wanted,
    /// Shared memory.
    Shm,
    /// A connection.
    Tcp,
    /// It is gone.
    Lost {
        /// Why.
        reason: String,
    },
}

impl ClockReading {
    pub(super) fn write(self, to: &mut Writer) {
        to.u64(self.monotonic);
        to.u64(self.realtime);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { monotonic: from.u64()?, realtime: from.u64()? })
    }

    /// The wall clock at a moment of the monotonic one, if it has not been set since.
    pub fn realtime_at(self, monotonic: u64) -> u64 {
        self.realtime.saturating_add(monotonic).saturating_sub(self.monotonic)
    }
}

impl JobStatus {
    /// The link to a member, if there is one.
    pub fn link(&self, to: MemberId) -> Option<&LinkStatus> {
        self.links.iter().find(|link| link.to == to)
    }

    /// A group.
    pub fn group(&self, number: u32) -> Option<&GroupStatus> {
        self.groups.iter().find(|group| group.group == number)
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.epoch);
        to.u64(self.moment);
        to.u64(self.issued);
        to.list("the list of groups", &self.groups, |to, group| group.write(to));
        to.list("the list of operations", &self.operations, |to, operation| operation.write(to));
        to.list("the list of links", &self.links, |to, link| link.write(to));
        self.unlisted.iter().for_each(|count| to.u32(*count));
        to.option(self.ports.as_ref(), |to, ports| to.cut_text(ports));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            epoch: from.u64()?,
            moment: from.u64()?,
            issued: from.u64()?,
            groups: from.list(GroupStatus::read)?,
            operations: from.list(InFlight::read)?,
            links: from.list(LinkStatus::read)?,
            unlisted: [from.u32()?, from.u32()?, from.u32()?],
            ports: from.option(Reader::text)?,
        })
    }
}

impl Status {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u32(self.process);
        to.cut_text(&self.host);
        match &self.activity {
            Activity::Forms { missing } => {
                to.u8(1);
                to.ranks(missing);
            }
            Activity::Works(job_status) => {
                to.u8(2);
                to.option(job_status.as_ref(), |to, job_status| job_status.write(to));
            }
            Activity::Serves { served, jobs, unlisted, tables } => {
                to.u8(3);
                to.u64(*served);
                to.list("the list of jobs", jobs, |to, job| {
                    to.u64(job.job);
                    to.u32(job.world);
                    to.option(job.job_status.as_ref(), |to, job_status| job_status.write(to));
                });
                to.u32(*unlisted);
                to.option(tables.as_ref(), |to, tables| tables.write(to));
            }
        }
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (process, host) = (from.u32()?, from.text()?);
        let activity = match from.u8()? {
            1 => Activity::Forms { missing: from.ranks()? },
            2 => Activity::Works(from.option(JobStatus::read)?),
            3 => {
                let job = |from: &mut Reader<'_>| {
                    let (job, world) = (from.u64()?, from.u32()?);
                    Ok(ServedJob { job, world, job_status: from.option(JobStatus::read)? })
                };
                Activity::Serves {
                    served: from.u64()?,
                    jobs: from.list(job)?,
                    unlisted: from.u32()?,
                    tables: from.option(TableServerStatus::read)?,
                }
            }
            _ => return Err(Malformed("it does what this version does not know")),
        };
        Ok(Self { process, host, activity })
    }
}

impl GroupStatus {
    fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.cut_text(&self.name);
        to.u32(self.ranks);
        to.u32(self.generation);
        to.option(self.next.as_ref(), |to, next| to.u64(*next));
        to.option(self.over.as_ref(), |to, over| to.u64(*over));
        to.option(self.lost.as_ref(), |to, lost| to.cut_text(lost));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, name, ranks, generation) = (from.u32()?, from.text()?, from.u32()?, from.u32()?);
        let (next, over) = (from.option(Reader::u64)?, from.option(Reader::u64)?);
        Ok(Self { group, name, ranks, generation, next, over, lost: from.option(Reader::text)? })
    }
}

impl InFlight {
    fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.option(self.sequence.as_ref(), |to, sequence| to.u64(*sequence));
        to.cut_text(&self.name);
        to.u64(self.age);
        to.option(self.runs.then_some(&()), |_, ()| {});
        to.list("the list of members waited for", &self.waits, |to, id| id.write(to));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (group, sequence, name) = (from.u32()?, from.option(Reader::u64)?, from.text()?);
        let (age, runs) = (from.u64()?, from.option(|_| Ok(()))?.is_some());
        Ok(Self { group, sequence, name, age, runs, waits: from.list(MemberId::read)? })
    }
}

impl LinkStatus {
    fn write(&self, to: &mut Writer) {
        self.to.write(to);
        match &self.way {
            Way::Wanted => to.u8(1),
            Way::Shm => to.u8(2),
            Way::Tcp => to.u8(3),
            Way::Lost { reason } => {
                to.u8(4);
                to.cut_text(reason);
            }
        }
        to.u64(self.sent);
        to.u64(self.received);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let to = MemberId::read(from)?;
        let way = match from.u8()? {
            1 => Way::Wanted,
            2 => Way::Shm,
            3 => Way::Tcp,
            4 => Way::Lost { reason: from.text()? },
            _ => return Err(Malformed("a link is made of what this version does not know")),
        };
        Ok(Self { to, way, sent: from.u64()?, received: from.u64()? })
    }
}
