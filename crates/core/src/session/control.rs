//! The language of control connections, and of [control frames](crate::wire::Kind::Control).
//!
//! A message is a prefix of twelve bytes, then the body: a byte that names the message, then its fields, little-endian.
//! The prefix is the length (u32), the CRC32C of the body (u32), and the CRC32C of the eight bytes before (u32).
//! `length` is the length of the body. The prefix has its own checksum, so a damaged length is noticed at once and no
//! side waits for missing bytes. On a control connection both are mixed with the message's
//! [seal](super::handshake::Seals); see [`ControlChannel`].
//!
//! The protocol is used only after the [handshake](super::handshake). A message has at most [`MESSAGE_BYTES`], a text
//! 256 bytes and no control characters, a list 65,536 items. Memory grows with the arrived bytes, not with announced
//! lengths. Damage, and bytes that make no message, are errors and never panics.

mod channel;
mod groups;

pub use channel::{ControlChannel, Decoder};
pub use groups::{Decision, Dispute, Introduction, Ordinal, PlanInfo, REPORTED, Report, Waiting};

use super::{
    cause::Cause,
    close_check::{CloseQuestion, Confirmation},
    codec::{Malformed, Reader, TooLong, Writer},
    flight::FlightRecord,
    formation::{Decline, Join},
    membership::Roster,
    parameters::Parameters,
    rebalance::{PortOutcome, PortPledge, PortProposal, PortReport},
    recovery::{Grow, Held, Resume, Suspect},
    refusal::Refusal,
    status::{ClockReading, Status},
    stragglers::Late,
    survivors::{Shrink, Shrunk},
};
use crate::group::Rank;
use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

/// The longest message, without its prefix.
pub const MESSAGE_BYTES: usize = 1 << 20;

const PREFIX_BYTES: usize = 12;

/// A message on a control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// A rank wants to take part. To rank 0.
    Join(Join),
    /// A rank does not take part. To rank 0.
    Decline(Decline),
    /// All members are there. From rank 0.
    Roster {
        /// The job: a random number, which keeps jobs with the same token apart.
        job: u64,
        /// Everyone.
        roster: Roster,
    },
    /// The members of another epoch. From rank 0.
    Members(Roster),
    /// A reducer wants to be used. To rank 0, or to another reducer, which answers with the hubs of its jobs.
    Enlist {
        /// Its address: a `host:port`. An unspecified host means the address from which it connects.
        address: String,
    },
    /// The answer to that.
    Enlisted {
        /// Other addresses to ask: the hubs of the answering reducer's jobs. None from a hub.
        hubs: Vec<String>,
    },
    /// The address of a job's hub. From the hub to a reducer.
    Hub {
        /// As `host:port`.
        address: String,
    },
    /// A group could use more reducers than it does. To the hub; see [`recovery`](super::recovery).
    Grow(Grow),
    /// The parameters of a group: from rank 0 after the roster, and to a reducer before the group's [`Introduction`].
    Parameters {
        /// The group; 0 for the group of all ranks.
        group: u32,
        /// The parameters.
        parameters: Box<Parameters>,
    },
    /// The receiver is not allowed to take part.
    Refuse(Refusal),
    /// The sender is alive.
    Heartbeat,
    /// A rank has died.
    Dead {
        /// The rank.
        rank: Rank,
        /// How that is known.
        death: Death,
    },
    /// A rank has left in order.
    Leave {
        /// The rank.
        rank: Rank,
    },
    /// A rank has waited for a while; see [`fence`](super::fence).
    Waiting(Waiting),
    /// Ranks have not called an operation in which others wait. From the hub.
    Late(Late),
    /// Whether all members of a group have made the same calls as a rank that leaves it. To the hub, and from it to the members; see
    /// [`close_check`](super::close_check).
    Confirm(CloseQuestion),
    /// The answer to that. To the hub, and from it to the rank that has asked.
    Confirmed(Confirmation),
    /// Something went wrong in a group. To the hub.
    Dispute(Dispute),
    /// The generation is over: stop, and report. From the hub.
    Fence {
        /// The group.
        group: u32,
        /// The generation that ends.
        generation: u32,
        /// The first cause; the decision can have more information.
        cause: Cause,
        /// The group's name, for members that have not made it.
        ordinal: Option<Ordinal>,
    },
    /// The answer to a fence. To the hub.
    Report(Report),
    /// The end of a fence. From the hub.
    Decide(Decision),
    /// A reducer that an operation needs is gone. To the hub; see [`recovery`](super::recovery).
    Suspect(Suspect),
    /// The reducers of a group change: operations with reducers stand still from now on. From the hub.
    Recover {
        /// The group.
        group: u32,
    },
    /// The answer to that. To the hub.
    Held(Held),
    /// How operations with reducers are finished without. From the hub.
    Resume(Resume),
    /// The facts about a group that a reducer needs before its first operation.
    Introduce(Introduction),
    /// The inputs of a plan. To a reducer, before the first operation of the plan.
    Planned(PlanInfo),
    /// The members of a group: to the hub, which is not necessarily one of them.
    GroupInfo {
        /// The group.
        group: u32,
        /// Its generation.
        generation: u32,
        /// Its members, ascending.
        members: Vec<Rank>,
    },
    /// The sender takes no part in a group any more. To the hub, and to reducers that know of it. From the hub: no
    /// member does.
    Forget {
        /// The group.
        group: u32,
    },
    /// The sender asks to continue with the survivors of a group. To the hub; see [`survivors`](super::survivors).
    Shrink(Shrink),
    /// The sender no longer waits for that. To the hub.
    Unshrink {
        /// The group.
        group: u32,
    },
    /// The decision about that. From the hub.
    Shrunk(Shrunk),
    /// The traffic of the sender's connections. To the hub; see [`rebalance`](super::rebalance).
    PortReport(PortReport),
    /// The ports of hosts that plans should use. From the hub.
    PortProposal(PortProposal),
    /// The answer to that. To the hub.
    PortPledge(PortPledge),
    /// The decision about that. From the hub.
    PortOutcome(PortOutcome),
    /// The name of the sender's job from launchers or users; empty if there is none. To a reducer, before anything
    /// else.
    JobName(String),
    /// The sender leaves in order and sends nothing after this; a reducer finishes the operations that it has begun.
    Bye,
    /// The sender asks. On a connection whose [purpose](super::handshake::Purpose::Status) that is, again and again.
    Ask(StatusQuestion),
    /// How the sender stands; the end of the answer to [`StatusQuestion::Status`].
    Status(Status),
    /// The sender's clocks; the answer to [`StatusQuestion::Clock`].
    Clock(ClockReading),
    /// The sender's last calls in a job; the answer to [`StatusQuestion::Flight`].
    Flight {
        /// The record; a process that is in no job has none.
        record: Option<Box<FlightRecord>>,
        /// How many more come: a reducer has one of each of its jobs.
        more: u32,
    },
}

/// A question to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StatusQuestion {
    /// How it stands. A worker of a job that has formed answers with its roster first.
    Status = 1,
    /// Its clocks.
    Clock = 2,
    /// Its last calls.
    Flight = 3,
}

/// How it is known that a rank has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Death {
    /// Its process has ended, as its host reports.
    Exited,
    /// Its connection ended, and it takes no new one.
    Unreachable,
    /// It has not been heard of for this long.
    Silent {
        /// In milliseconds.
        milliseconds: u64,
    },
    /// It broke the protocol, so its later messages are ignored.
    Protocol,
    /// It is alive, and has given up the sender of this message.
    GaveUp,
}

impl Death {
    /// Whether its process is gone for certain. Otherwise it might be alive, beyond a broken network.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Death::Silent { .. } | Death::GaveUp)
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Death::Exited => f.write_str("the process ended"),
            Death::Unreachable => f.write_str("the connection ended and no new one can be made"),
            Death::Silent { milliseconds } => {
                write!(f, "silent for {}.{} s", milliseconds / 1000, milliseconds / 100 % 10)
            }
            Death::Protocol => f.write_str("it broke the protocol: run the same release on all ranks"),
            Death::GaveUp => {
                f.write_str("it has given this rank up, because it had not heard from it for too long")
            }
        }
    }
}

/// Why bytes are no message. The stream has no next message to find: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// The message differs from the one that its sender wrote.
    #[error(
        "a control message was damaged on the way: its CRC32C is {found:08x}, and it carries {claimed:08x}"
    )]
    Checksum {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum in the message.
        claimed: u32,
    },
    /// The message is longer than any that this version knows.
    #[error("a control message of {length} bytes; at most {MESSAGE_BYTES} are allowed")]
    Length {
        /// The announced length.
        length: u32,
    },
    /// The message's fields do not fit its format.
    #[error(
        "a control message (number {number}) cannot be read: {reason}; run one release on all ranks, and if they do, report it as a bug"
    )]
    Malformed {
        /// The byte that names the message; 0 if even that is missing.
        number: u8,
        /// The problem.
        reason: &'static str,
    },
}

impl Message {
    /// Whether ranks take it from rank 0 only, which sends it to others and gets it from none.
    pub fn is_the_hubs(&self) -> bool {
        matches!(
            self,
            Message::Members(_)
                | Message::Late(_)
                | Message::Fence { .. }
                | Message::Decide(_)
                | Message::Recover { .. }
                | Message::Resume(_)
                | Message::Shrunk(_)
                | Message::PortProposal(_)
                | Message::PortOutcome(_)
        )
    }

    /// The group that it is about, if it is a message between members and the hub about a group.
    pub fn group(&self) -> Option<u32> {
        Some(match self {
            Message::GroupInfo { group, .. }
            | Message::Fence { group, .. }
            | Message::Recover { group }
            | Message::Forget { group } => *group,
            Message::Waiting(waiting) => waiting.group,
            Message::Late(late) => late.group,
            Message::Confirm(question) => question.group,
            Message::Confirmed(confirmation) => confirmation.group,
            Message::Dispute(dispute) => dispute.group,
            Message::Report(report) => report.group,
            Message::Decide(decision) => decision.group,
            Message::Suspect(suspect) => suspect.group,
            Message::Grow(grow) => grow.group,
            Message::Held(held) => held.group,
            Message::Resume(resume) => resume.group,
            Message::PortReport(carried) => carried.group,
            Message::PortProposal(proposal) => proposal.group,
            Message::PortPledge(pledge) => pledge.group,
            Message::PortOutcome(outcome) => outcome.group,
            _ => return None,
        })
    }

    /// The message as bytes, prefix included.
    ///
    /// # Errors
    /// If a text, a list or the whole is longer than the receiver accepts. Examples are an address of over 256 bytes, and
    /// a world too large for a roster with all addresses.
    pub fn encode(&self, crc: impl Fn(&[u8]) -> u32) -> Result<Vec<u8>, TooLong> {
        let mut to = Writer::default();
        self.write(&mut to);
        let body = to.finish(MESSAGE_BYTES)?;
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + body.len());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc(&body).to_le_bytes());
        let sum = crc(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.extend_from_slice(&body);
        Ok(bytes)
    }

    fn write(&self, to: &mut Writer) {
        to.u8(self.number());
        match self {
            Message::Join(join) => join.write(to),
            Message::Decline(decline) => decline.write(to),
            Message::Roster { job, roster } => {
                to.u64(*job);
                roster.write(to);
            }
            Message::Parameters { group, parameters } => {
                to.u32(*group);
                parameters.write(to);
            }
            Message::Refuse(refusal) => refusal.write(to),
            Message::Heartbeat | Message::Bye => {}
            Message::Dead { rank, death } => {
                to.u32(*rank);
                death.write(to);
            }
            Message::Leave { rank } => to.u32(*rank),
            Message::Forget { group } => to.u32(*group),
            Message::Waiting(waiting) => waiting.write(to),
            Message::Dispute(dispute) => dispute.write(to),
            Message::Fence { group, generation, cause, ordinal } => {
                to.u32(*group);
                to.u32(*generation);
                cause.write(to);
                to.option(ordinal.as_ref(), Ordinal::write);
            }
            Message::Report(report) => report.write(to),
            Message::Suspect(suspect) => suspect.write(to),
            Message::Grow(grow) => grow.write(to),
            Message::Members(roster) => roster.write(to),
            Message::Shrink(shrink) => shrink.write(to),
            Message::Shrunk(shrunk) => shrunk.write(to),
            Message::Late(late) => late.write(to),
            Message::Confirm(question) => question.write(to),
            Message::Confirmed(confirmation) => confirmation.write(to),
            Message::Enlist { address } | Message::Hub { address } => to.text("an address", address),
            Message::JobName(name) => to.text("a job's name", name),
            Message::Enlisted { hubs } => {
                to.list("the list of hubs", hubs, |to, address| to.text("an address", address));
            }
            Message::Recover { group } | Message::Unshrink { group } => to.u32(*group),
            Message::Held(held) => held.write(to),
            Message::Resume(resume) => resume.write(to),
            Message::PortReport(carried) => carried.write(to),
            Message::PortProposal(proposal) => proposal.write(to),
            Message::PortPledge(pledge) => pledge.write(to),
            Message::PortOutcome(outcome) => outcome.write(to),
            Message::Introduce(introduction) => introduction.write(to),
            Message::Planned(planned) => planned.write(to),
            Message::Decide(decision) => decision.write(to),
            Message::Status(status) => status.write(to),
            Message::Ask(question) => to.u8(*question as u8),
            Message::Clock(clock) => clock.write(to),
            Message::Flight { record, more } => {
                to.option(record.as_deref(), |to, record| record.write(to));
                to.u32(*more);
            }
            Message::GroupInfo { group, generation, members } => {
                to.u32(*group);
                to.u32(*generation);
                to.ranks(members);
            }
        }
    }

    fn number(&self) -> u8 {
        match self {
            Message::Join(_) => 1,
            Message::Roster { .. } => 2,
            Message::Refuse(_) => 3,
            Message::Heartbeat => 4,
            Message::Dead { .. } => 5,
            Message::Leave { .. } => 6,
            Message::Waiting(_) => 7,
            Message::Dispute(_) => 8,
            Message::Fence { .. } => 9,
            Message::Report(_) => 10,
            Message::Decide(_) => 11,
            Message::GroupInfo { .. } => 12,
            Message::Bye => 13,
            Message::Introduce(_) => 14,
            Message::Forget { .. } => 15,
            Message::Parameters { .. } => 16,
            Message::Planned(_) => 17,
            Message::Suspect(_) => 18,
            Message::Recover { .. } => 19,
            Message::Held(_) => 20,
            Message::Resume(_) => 21,
            Message::Enlist { .. } => 23,
            Message::Enlisted { .. } => 24,
            Message::Hub { .. } => 25,
            Message::Grow(_) => 26,
            Message::Members(_) => 27,
            Message::Shrink(_) => 28,
            Message::Unshrink { .. } => 29,
            Message::Shrunk(_) => 30,
            Message::Late(_) => 31,
            Message::Confirm(_) => 32,
            Message::Confirmed(_) => 33,
            Message::Status(_) => 22,
            Message::Ask(_) => 34,
            Message::Clock(_) => 35,
            Message::Flight { .. } => 36,
            Message::JobName(_) => 37,
            Message::Decline(_) => 38,
            Message::PortReport(_) => 39,
            Message::PortProposal(_) => 40,
            Message::PortPledge(_) => 41,
            Message::PortOutcome(_) => 42,
        }
    }

    fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader(body);
        let message = Self::read(&mut from)?;
        from.finish()?;
        Ok(message)
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Message::Join(Join::read(from)?),
            2 => Message::Roster { job: from.u64()?, roster: Roster::read(from)? },
            3 => Message::Refuse(Refusal::read(from)?),
            4 => Message::Heartbeat,
            5 => Message::Dead { rank: from.u32()?, death: Death::read(from)? },
            6 => Message::Leave { rank: from.u32()? },
            7 => Message::Waiting(Waiting::read(from)?),
            8 => Message::Dispute(Dispute::read(from)?),
            9 => Message::Fence {
                group: from.u32()?,
                generation: from.u32()?,
                cause: Cause::read(from)?,
                ordinal: from.option(Ordinal::read)?,
            },
            10 => Message::Report(Report::read(from)?),
            11 => Message::Decide(Decision::read(from)?),
            12 => Message::GroupInfo { group: from.u32()?, generation: from.u32()?, members: from.ranks()? },
            13 => Message::Bye,
            14 => Message::Introduce(Introduction::read(from)?),
            15 => Message::Forget { group: from.u32()? },
            16 => Message::Parameters { group: from.u32()?, parameters: Box::new(Parameters::read(from)?) },
            17 => Message::Planned(PlanInfo::read(from)?),
            18 => Message::Suspect(Suspect::read(from)?),
            19 => Message::Recover { group: from.u32()? },
            20 => Message::Held(Held::read(from)?),
            21 => Message::Resume(Resume::read(from)?),
            23 => Message::Enlist { address: from.text()? },
            24 => Message::Enlisted { hubs: from.list(Reader::text)? },
            25 => Message::Hub { address: from.text()? },
            26 => Message::Grow(Grow::read(from)?),
            27 => Message::Members(Roster::read(from)?),
            28 => Message::Shrink(Shrink::read(from)?),
            29 => Message::Unshrink { group: from.u32()? },
            30 => Message::Shrunk(Shrunk::read(from)?),
            31 => Message::Late(Late::read(from)?),
            32 => Message::Confirm(CloseQuestion::read(from)?),
            33 => Message::Confirmed(Confirmation::read(from)?),
            22 => Message::Status(Status::read(from)?),
            34 => Message::Ask(StatusQuestion::read(from)?),
            35 => Message::Clock(ClockReading::read(from)?),
            36 => Message::Flight {
                record: from.option(|from| FlightRecord::read(from).map(Box::new))?,
                more: from.u32()?,
            },
            37 => Message::JobName(from.text()?),
            38 => Message::Decline(Decline::read(from)?),
            39 => Message::PortReport(PortReport::read(from)?),
            40 => Message::PortProposal(PortProposal::read(from)?),
            41 => Message::PortPledge(PortPledge::read(from)?),
            42 => Message::PortOutcome(PortOutcome::read(from)?),
            _ => return Err(Malformed("its number is unknown")),
        })
    }
}

impl StatusQuestion {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let code = from.u8()?;
        let known = [StatusQuestion::Status, StatusQuestion::Clock, StatusQuestion::Flight];
        let known = known.into_iter().find(|question| *question as u8 == code);
        known.ok_or(Malformed("a question that this version does not know"))
    }
}

impl Death {
    fn write(&self, to: &mut Writer) {
        match self {
            Death::Exited => to.u8(1),
            Death::Unreachable => to.u8(2),
            Death::Silent { milliseconds } => {
                to.u8(3);
                to.u64(*milliseconds);
            }
            Death::Protocol => to.u8(4),
            Death::GaveUp => to.u8(5),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Death::Exited,
            2 => Death::Unreachable,
            3 => Death::Silent { milliseconds: from.u64()? },
            4 => Death::Protocol,
            5 => Death::GaveUp,
            _ => return Err(Malformed("its kind of death is unknown")),
        })
    }
}
