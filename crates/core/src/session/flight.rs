//! The flight record: the last operations and messages of a process, and the state of each.
//!
//! A process always keeps it, and gives it to a process that [asks](super::control::StatusQuestion::Flight). Side by
//! side, the records of all ranks show which rank has called which operations. The name is from PyTorch's flight
//! recorder, which does the same.
//!
//! Moments are nanoseconds of the process's monotonic clock; the record has the values of both clocks when it was
//! taken. Lists are bounded, so that a record fits one message.

use super::{
    Role,
    codec::{Malformed, Reader, Writer},
    status::ClockReading,
};
use crate::{group::Rank, wire::Fingerprint};
use alloc::{string::String, vec::Vec};

/// How many operations a record has at most, and how many messages.
pub const KEPT: usize = 1024;
/// How many groups a record has at most.
pub const GROUPS: usize = 256;
/// How many ranks the groups of a record name at most, all together.
pub const RANKS: usize = 32_768;

/// How much is sent of the name of an algorithm, of an error's kind and of a group.
const ALGORITHM_BYTES: usize = 64;
const KIND_BYTES: usize = 32;
const NAME_BYTES: usize = 128;

/// The last operations of a process in one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightRecord {
    /// The job's number.
    pub job: u64,
    /// The role of the process there.
    pub role: Role,
    /// Its rank; 0 of a reducer.
    pub rank: Rank,
    /// How many workers the job has.
    pub world: u32,
    /// The process's number on its host.
    pub process: u32,
    /// The name of its host.
    pub host: String,
    /// Its release.
    pub version: String,
    /// When the record was taken.
    pub clock: ClockReading,
    /// How many operations were issued in the process's life here. At most the last [`KEPT`] are in the record.
    pub issued: u64,
    /// How many messages were posted.
    pub posted: u64,
    /// The groups of these operations and messages, and the current groups.
    pub groups: Vec<FlightGroup>,
    /// Operations and messages, in the order in which they were called.
    pub operations: Vec<FlightOperation>,
}

/// A group of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightGroup {
    /// Its number; 0 is the group of all ranks.
    pub group: u32,
    /// Its name, as the program calls it.
    pub name: String,
    /// The program's description of it; empty if there is none.
    pub description: String,
    /// Its ranks, by their numbers in the job, in the group's order. Empty if the record has no room for them, or if the group is
    /// over.
    pub ranks: Vec<Rank>,
    /// Its last operation that has ended here.
    pub over: Option<u64>,
    /// The kind of the error that ended the group, if one did.
    pub failure: Option<String>,
}

/// An operation, or a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightOperation {
    /// How many operations and messages were called before it in this process.
    pub number: u64,
    /// The number of its group.
    pub group: u32,
    /// How many fences the group had had.
    pub generation: u32,
    /// The call.
    pub call: FlightCall,
    /// How far it has come.
    pub state: FlightState,
    /// When it was called.
    pub issued: u64,
    /// When it began to run.
    pub began: Option<u64>,
    /// When it was over for its caller.
    pub ended: Option<u64>,
    /// Payload bytes that the process has sent for it.
    pub sent: u64,
    /// Payload bytes that it has received.
    pub received: u64,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlightCall {
    /// An operation of all ranks of the group.
    Collective {
        /// Its fingerprint; its sequence is the number of the operation in its group.
        call: Fingerprint,
        /// The algorithm that the plan chose.
        algorithm: String,
    },
    /// A message from one rank to another.
    Message {
        /// Whether this rank receives it. Else it sends it.
        receives: bool,
        /// The other rank, by its number in the group. A receive from any rank has none until its message has come.
        peer: Option<Rank>,
        /// The number that both sides give.
        tag: i64,
        /// How many messages the sender had sent to the receiver in the group before it. A receive has none until it has got a
        /// message.
        sequence: Option<u64>,
        /// The code of the elements' type.
        dtype: u8,
        /// How many elements there are.
        count: u64,
    },
}

/// How far an operation has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlightState {
    /// It waits for links, memory or an older operation; a message, for its other end.
    Queued,
    /// It runs.
    Running,
    /// It ended well.
    Done,
    /// It failed.
    Failed {
        /// The name of the error's kind.
        kind: String,
    },
}

impl FlightRecord {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.job);
        self.role.write(to);
        [self.rank, self.world, self.process].iter().for_each(|number| to.u32(*number));
        to.cut_text(&self.host);
        to.cut_text(&self.version);
        self.clock.write(to);
        to.u64(self.issued);
        to.u64(self.posted);
        to.list("the list of groups", &self.groups, |to, group| group.write(to));
        to.list("the list of operations", &self.operations, |to, operation| operation.write(to));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            job: from.u64()?,
            role: Role::read(from)?,
            rank: from.u32()?,
            world: from.u32()?,
            process: from.u32()?,
            host: from.text()?,
            version: from.text()?,
            clock: ClockReading::read(from)?,
            issued: from.u64()?,
            posted: from.u64()?,
            groups: from.list(FlightGroup::read)?,
            operations: from.list(FlightOperation::read)?,
        })
    }

    /// A group of the record.
    pub fn group(&self, number: u32) -> Option<&FlightGroup> {
        self.groups.iter().find(|group| group.group == number)
    }
}

impl FlightGroup {
    fn write(&self, to: &mut Writer) {
        to.u32(self.group);
        to.cut_text_to(NAME_BYTES, &self.name);
        to.cut_text_to(NAME_BYTES, &self.description);
        to.ranks(&self.ranks);
        to.option(self.over.as_ref(), |to, over| to.u64(*over));
        to.option(self.failure.as_ref(), |to, failure| to.cut_text_to(KIND_BYTES, failure));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            group: from.u32()?,
            name: from.text_to(NAME_BYTES)?,
            description: from.text_to(NAME_BYTES)?,
            ranks: from.ranks()?,
            over: from.option(Reader::u64)?,
            failure: from.option(|from| from.text_to(KIND_BYTES))?,
        })
    }
}

impl FlightOperation {
    fn write(&self, to: &mut Writer) {
        to.u64(self.number);
        to.u32(self.group);
        to.u32(self.generation);
        self.call.write(to);
        self.state.write(to);
        to.u64(self.issued);
        to.option(self.began.as_ref(), |to, began| to.u64(*began));
        to.option(self.ended.as_ref(), |to, ended| to.u64(*ended));
        to.u64(self.sent);
        to.u64(self.received);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            number: from.u64()?,
            group: from.u32()?,
            generation: from.u32()?,
            call: FlightCall::read(from)?,
            state: FlightState::read(from)?,
            issued: from.u64()?,
            began: from.option(Reader::u64)?,
            ended: from.option(Reader::u64)?,
            sent: from.u64()?,
            received: from.u64()?,
        })
    }
}

impl FlightCall {
    fn write(&self, to: &mut Writer) {
        match self {
            FlightCall::Collective { call, algorithm } => {
                to.u8(1);
                to.fingerprint(call);
                to.cut_text_to(ALGORITHM_BYTES, algorithm);
            }
            FlightCall::Message { receives, peer, tag, sequence, dtype, count } => {
                to.u8(2);
                to.bool(*receives);
                to.option(peer.as_ref(), |to, peer| to.u32(*peer));
                to.u64(tag.cast_unsigned());
                to.option(sequence.as_ref(), |to, sequence| to.u64(*sequence));
                to.u8(*dtype);
                to.u64(*count);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => FlightCall::Collective {
                call: from.fingerprint()?,
                algorithm: from.text_to(ALGORITHM_BYTES)?,
            },
            2 => FlightCall::Message {
                receives: from.bool()?,
                peer: from.option(Reader::u32)?,
                tag: from.u64()?.cast_signed(),
                sequence: from.option(Reader::u64)?,
                dtype: from.u8()?,
                count: from.u64()?,
            },
            _ => return Err(Malformed("a call of a kind that this version does not know")),
        })
    }
}

impl FlightState {
    fn write(&self, to: &mut Writer) {
        match self {
            FlightState::Queued => to.u8(1),
            FlightState::Running => to.u8(2),
            FlightState::Done => to.u8(3),
            FlightState::Failed { kind } => {
                to.u8(4);
                to.cut_text_to(KIND_BYTES, kind);
            }
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => FlightState::Queued,
            2 => FlightState::Running,
            3 => FlightState::Done,
            4 => FlightState::Failed { kind: from.text_to(KIND_BYTES)? },
            _ => return Err(Malformed("a state that this version does not know")),
        })
    }
}
