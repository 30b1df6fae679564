//! The messages of the servers of a parameter server: the payloads of request frames between them.

use super::{
    super::{TableError, payload::PAYLOAD_BYTES},
    epoch::{Epoch, EpochId, HeldRange, ServerLife, SettledEpoch, server},
};
use crate::session::{Malformed, Reader, Writer};
use alloc::vec::Vec;

/// The most bytes of a payload between servers: an operation has its request's bytes, and the words around it.
pub const PEER_BYTES: usize = PAYLOAD_BYTES + (4 << 10);

/// A message from one server to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// A heartbeat with its state. Several times a second, and whenever the state changes.
    Standing {
        /// The last epoch that it is in and that it knows to be settled.
        epoch: Option<Epoch>,
        /// Whether it has promised epochs without knowing whether they are settled.
        is_unsure: bool,
        /// The epoch that it proposes: all others that it has proposed after `epoch` will never count.
        proposes: Option<EpochId>,
        /// The ranges that it holds whole.
        whole: Vec<u32>,
        /// The processes that it has a connection with, and signs of life.
        hears: Vec<ServerLife>,
    },
    /// To look for the others with it, for one is lost.
    Call {
        /// The last epoch that it knows to be settled.
        settled: EpochId,
    },
    /// It joins the lowest server that might be alive, which is to decide.
    Come(Candidacy),
    /// It no longer does.
    Withdraw,
    /// The sender might continue without the receiver.
    GiveUp,
    /// The next epoch. `bases` are all epochs in which the next one needs a majority.
    Propose {
        /// The epoch.
        epoch: Epoch,
        /// As far as the decider knows.
        bases: Vec<EpochId>,
    },
    /// It is in that epoch if that is settled.
    Promise {
        /// Which.
        id: EpochId,
        /// The ranges that it holds whole.
        held: Vec<HeldRange>,
    },
    /// It is not in that epoch.
    Refuse {
        /// Which.
        id: EpochId,
        /// The highest that it knows of.
        highest: EpochId,
    },
    /// The epoch is settled.
    Commit(SettledEpoch),
    /// An operation of a range, from its owner.
    Operate {
        /// The owner's epoch.
        epoch: EpochId,
        /// The range.
        range: u32,
        /// Its number.
        sequence: u64,
        /// How many all copies have.
        stable: u64,
        /// The operation.
        operation: Vec<u8>,
    },
    /// A copy has executed `sequence` operations.
    Executed {
        /// The copy's epoch.
        epoch: EpochId,
        /// The range.
        range: u32,
        /// How many.
        sequence: u64,
    },
    /// A piece of a range as it is, from its owner; in the first piece nothing but how many operations it has seen.
    Image {
        /// The owner's epoch.
        epoch: EpochId,
        /// The range.
        range: u32,
        /// The copy's next step.
        part: ImagePart,
        /// The piece.
        record: Vec<u8>,
    },
}

/// Which part of an image comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImagePart {
    /// The image begins: the copy forgets its data. The range has seen `sequence` operations.
    Begin {
        /// How many.
        sequence: u64,
    },
    /// One of its records.
    Record,
    /// All records have come.
    End,
    /// From now on the owner sends no result of an operation before this copy has the operation.
    Counted,
}

/// The contribution of a server that joins a decider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidacy {
    /// The last epoch that it knows to be settled.
    pub settled: Option<SettledEpoch>,
    /// Later epochs that might be settled.
    pub possible: Vec<Epoch>,
    /// The highest that it knows of.
    pub highest: EpochId,
    /// Processes of its epochs that have certainly ended, and had not given it up.
    pub dead: Vec<ServerLife>,
    /// Processes of its epochs that others have replaced.
    pub replaced: Vec<ServerLife>,
}

impl ImagePart {
    fn write(self, to: &mut Writer) {
        let (part, sequence) = match self {
            Self::Begin { sequence } => (1, sequence),
            Self::Record => (2, 0),
            Self::End => (3, 0),
            Self::Counted => (4, 0),
        };
        to.u8(part);
        to.u64(sequence);
    }
}

impl PeerMessage {
    /// Its payload.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        match self {
            Self::Standing { epoch, is_unsure, proposes, whole, hears } => {
                to.u8(1);
                to.option(epoch.as_ref(), |to, epoch| epoch.write(to));
                to.bool(*is_unsure);
                to.option(proposes.as_ref(), |to, id| id.write(to));
                to.ranks(whole);
                to.list("servers", hears, |to, process| process.write(to));
            }
            Self::Call { settled } => {
                to.u8(2);
                settled.write(&mut to);
            }
            Self::Come(candidacy) => {
                to.u8(3);
                candidacy.write(&mut to);
            }
            Self::Withdraw => to.u8(4),
            Self::GiveUp => to.u8(5),
            Self::Propose { epoch, bases } => {
                to.u8(6);
                epoch.write(&mut to);
                to.list("epochs", bases, |to, id| id.write(to));
            }
            Self::Promise { id, held } => {
                to.u8(7);
                id.write(&mut to);
                to.list("ranges", held, |to, held| held.write(to));
            }
            Self::Refuse { id, highest } => {
                to.u8(8);
                id.write(&mut to);
                highest.write(&mut to);
            }
            Self::Commit(settled) => {
                to.u8(9);
                settled.write(&mut to);
            }
            Self::Operate { epoch, range, sequence, stable, operation } => {
                to.u8(10);
                epoch.write(&mut to);
                to.u32(*range);
                to.u64(*sequence);
                to.u64(*stable);
                to.bytes(operation);
            }
            Self::Executed { epoch, range, sequence } => {
                to.u8(11);
                epoch.write(&mut to);
                to.u32(*range);
                to.u64(*sequence);
            }
            Self::Image { epoch, range, part, record } => {
                to.u8(12);
                epoch.write(&mut to);
                to.u32(*range);
                part.write(&mut to);
                to.bytes(record);
            }
        }
        to.into_bytes()
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// [`TableError::Malformed`].
    pub fn decode(payload: &[u8]) -> Result<Self, TableError> {
        let mut from = Reader(payload);
        let message = Self::read(&mut from).and_then(|message| from.finish().map(|()| message));
        message.map_err(|Malformed(what)| TableError::Malformed(what.into()))
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match from.u8()? {
            1 => Self::Standing {
                epoch: from.option(Epoch::read)?,
                is_unsure: from.bool()?,
                proposes: from.option(EpochId::read)?,
                whole: from.list(server)?,
                hears: from.list(ServerLife::read)?,
            },
            2 => Self::Call { settled: EpochId::read(from)? },
            3 => Self::Come(Candidacy::read(from)?),
            4 => Self::Withdraw,
            5 => Self::GiveUp,
            6 => Self::Propose { epoch: Epoch::read(from)?, bases: from.list(EpochId::read)? },
            7 => Self::Promise { id: EpochId::read(from)?, held: from.list(HeldRange::read)? },
            8 => Self::Refuse { id: EpochId::read(from)?, highest: EpochId::read(from)? },
            9 => Self::Commit(SettledEpoch::read(from)?),
            10 => Self::Operate {
                epoch: EpochId::read(from)?,
                range: server(from)?,
                sequence: from.u64()?,
                stable: from.u64()?,
                operation: rest(from),
            },
            11 => Self::Executed { epoch: EpochId::read(from)?, range: server(from)?, sequence: from.u64()? },
            12 => {
                let (epoch, range, part, sequence) =
                    (EpochId::read(from)?, server(from)?, from.u8()?, from.u64()?);
                let part = match part {
                    1 => ImagePart::Begin { sequence },
                    2 => ImagePart::Record,
                    3 => ImagePart::End,
                    4 => ImagePart::Counted,
                    _ => return Err(Malformed("an unknown part of an image")),
                };
                Self::Image { epoch, range, part, record: rest(from) }
            }
            _ => {
                return Err(Malformed(
                    "an unknown message between servers: install the same release everywhere",
                ));
            }
        })
    }
}

impl Candidacy {
    fn write(&self, to: &mut Writer) {
        to.option(self.settled.as_ref(), |to, settled| settled.write(to));
        to.list("epochs", &self.possible, |to, epoch| epoch.write(to));
        self.highest.write(to);
        for list in [&self.dead, &self.replaced] {
            to.list("servers", list, |to, process| process.write(to));
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            settled: from.option(SettledEpoch::read)?,
            possible: from.list(Epoch::read)?,
            highest: EpochId::read(from)?,
            dead: from.list(ServerLife::read)?,
            replaced: from.list(ServerLife::read)?,
        })
    }
}

/// All that is left.
fn rest(from: &mut Reader<'_>) -> Vec<u8> {
    core::mem::take(&mut from.0).to_vec()
}
