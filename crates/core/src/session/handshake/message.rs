//! The messages of a handshake, and how they are found in a stream.

use super::{
    super::{
        Role,
        codec::{Malformed, Reader, Writer},
    },
    HandshakeError,
};
use crate::group::Rank;
use alloc::vec::Vec;
use core::{fmt, mem};

const MAGIC: [u8; 4] = *b"\xa8HRB";
pub(super) const PREFIX_BYTES: usize = 8;
pub(super) const BODY_BYTES: usize = 1024 - PREFIX_BYTES;

pub(super) const HELLO: u8 = 1;
pub(super) const CHALLENGE: u8 = 2;
pub(super) const PROOF: u8 = 3;
pub(super) const WELCOME: u8 = 4;
pub(super) const REFUSE: u8 = 5;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Purpose {
    /// To take part in a world that forms.
    Join = 1,
    /// To exchange [control messages](crate::session::control).
    Control = 2,
    /// To exchange [frames](crate::wire).
    Data = 3,
    /// To hand over a shared-memory segment.
    Segment = 4,
}

/// The protocol versions that a process speaks, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Versions {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

/// Who a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// What it is in the job.
    pub role: Role,
    /// The job; 0 as long as it has not been told, which is allowed for [`Purpose::Join`] only.
    pub job: u64,
    /// Its rank; a reducer's is its place in the list of reducers.
    pub rank: Rank,
    /// How many ranks of its role it was told there are.
    pub world: u32,
    /// Its life: a random number, drawn anew whenever a process starts.
    pub incarnation: u64,
}

/// What a client says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// Who it is.
    pub identity: Identity,
    /// What it wants.
    pub purpose: Purpose,
    /// What it speaks.
    pub versions: Versions,
}

/// The beginning of what a stranger sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    bytes: [u8; PREFIX_BYTES],
    length: usize,
}

/// Puts the prefix in front of a body.
///
/// # Panics
/// If the body is too long. None is: they have fixed sizes, or texts that are cut.
pub(super) fn message(kind: u8, body: Writer) -> Vec<u8> {
    let body = body.finish(BODY_BYTES).expect("the bodies of handshake messages are short");
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[kind, 0]);
    bytes.extend_from_slice(&(body.len() as u16).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// The kind of a whole message.
pub(super) fn kind(message: &[u8]) -> u8 {
    message[MAGIC.len()]
}

/// Collects one message at a time, and never more than one.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    held: Vec<u8>,
    /// Set at the end, in success or failure: what arrives then is not this machine's.
    pub(super) over: bool,
}

impl Assembler {
    /// Takes what belongs to the next message: how much that was, and the message once it is whole, prefix included.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Vec<u8>>), HandshakeError> {
        let mut rest = bytes;
        while !self.over {
            let wanted = self.wanted()?;
            let part = &rest[..rest.len().min(wanted - self.held.len())];
            rest = &rest[part.len()..];
            self.held.extend_from_slice(part);
            let magic = self.held.len().min(MAGIC.len());
            if self.held[..magic] != MAGIC[..magic] {
                self.over = true;
                return Err(HandshakeError::NotHerringbone(Seen::new(&self.held)));
            }
            if self.held.len() < wanted {
                break;
            }
            if self.held.len() == self.wanted()? {
                return Ok((bytes.len() - rest.len(), Some(mem::take(&mut self.held))));
            }
        }
        Ok((bytes.len() - rest.len(), None))
    }

    /// How long the message is, or its prefix while that is not there.
    fn wanted(&mut self) -> Result<usize, HandshakeError> {
        let Some([.., zero, low, high]) = self.held.first_chunk::<PREFIX_BYTES>() else {
            return Ok(PREFIX_BYTES);
        };
        let length = u16::from_le_bytes([*low, *high]);
        if *zero != 0 {
            self.over = true;
            return Err(HandshakeError::Malformed { reason: "its prefix is not of this version" });
        }
        if usize::from(length) > BODY_BYTES {
            self.over = true;
            return Err(HandshakeError::TooLong { length });
        }
        Ok(PREFIX_BYTES + usize::from(length))
    }
}

impl Seen {
    fn new(held: &[u8]) -> Self {
        let length = held.len().min(PREFIX_BYTES);
        let mut bytes = [0; PREFIX_BYTES];
        bytes[..length].copy_from_slice(&held[..length]);
        Self { bytes, length }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes[..self.length].escape_ascii())
    }
}

impl Purpose {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let code = from.u8()?;
        let all = [Purpose::Join, Purpose::Control, Purpose::Data, Purpose::Segment];
        all.into_iter().find(|purpose| *purpose as u8 == code).ok_or(Malformed("its purpose is unknown"))
    }
}

impl Versions {
    /// What this release speaks. Since version 2 reducers show their workers that they live, since version 3 they are told
    /// the workers' hosts, and since version 4 the fold order. Version 5 has members with identities, and tells each group's
    /// parameters and plans.
    pub const CURRENT: Versions = Versions { min: 5, max: 5 };

    /// The newest version that both sides speak.
    pub fn agree(self, other: Versions) -> Option<u16> {
        let newest = self.max.min(other.max);
        (self.contain(newest) && other.contain(newest)).then_some(newest)
    }

    pub(super) fn contain(self, version: u16) -> bool {
        (self.min..=self.max).contains(&version)
    }

    pub(in super::super) fn write(self, to: &mut Writer) {
        to.u16(self.min);
        to.u16(self.max);
    }

    pub(in super::super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { min: from.u16()?, max: from.u16()? })
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max - self.min.min(self.max) {
            0 => write!(f, "version {}", self.max),
            _ => write!(f, "versions {} to {}", self.min, self.max),
        }
    }
}

impl Identity {
    pub(super) fn write(&self, to: &mut Writer) {
        self.role.write(to);
        to.u64(self.job);
        to.u32(self.rank);
        to.u32(self.world);
        to.u64(self.incarnation);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (role, job, rank, world) = (Role::read(from)?, from.u64()?, from.u32()?, from.u32()?);
        Ok(Self { role, job, rank, world, incarnation: from.u64()? })
    }
}

impl Hello {
    pub(super) fn write(&self, to: &mut Writer) {
        self.versions.write(to);
        to.u8(self.purpose as u8);
        self.identity.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (versions, purpose) = (Versions::read(from)?, Purpose::read(from)?);
        Ok(Self { versions, purpose, identity: Identity::read(from)? })
    }
}
