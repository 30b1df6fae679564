//! The data of a data connection: the frame's header and the fingerprint of an operation.
//!
//! A frame is a [`Header`] of 64 bytes, then, if a flag is set, a [`Fingerprint`] of 52 bytes, then `length` bytes of
//! payload. All numbers are little-endian.
//!
//! ```text
//!  0 magic "Hrb"   3 version   4 kind   5 flags   6 zero    7 stream   8 group u32   12 generation u32
//! 16 sequence u64                                24 segment u32       28 index u16  30 credits u16
//! 32 length u32   36 zero (4 bytes)              40 rolling hash u64
//! 48 payload CRC u32   52 whole part u64         60 header CRC u32
//! ```
//!
//! The header's CRC covers its first 60 bytes, the fingerprint has a CRC of its own, and the payload's CRC covers the
//! payload alone. So each part is checked before the next one is read. All three are CRC32C. The caller computes them
//! with the machine's instruction (see [`Checksum`]). On a socket the CRCs of the header and of the fingerprint are
//! mixed with the frame's [seal](crate::session::handshake::Seals).

use crate::{
    codec::{Codec, CodecCode},
    collective::Collective,
    element::{DType, ReduceOp},
};
use alloc::vec::Vec;
use core::fmt;

/// A function that computes CRC32C (Castagnoli, as in iSCSI, RFC 3720): the check value of `123456789` is `e3069283`.
pub type Checksum = fn(&[u8]) -> u32;

/// How long an encoded [`Header`] is, in bytes.
pub const HEADER_BYTES: usize = 64;

/// How long an encoded [`Fingerprint`] is, in bytes.
pub const FINGERPRINT_BYTES: usize = 52;

const MAGIC: [u8; 3] = *b"Hrb";
const VERSION: u8 = 1;
const HEADER_CRC_AT: usize = 60;
const FINGERPRINT_CRC_AT: usize = 48;

const EAGER: u8 = 1 << 0;
const FINGERPRINT: u8 = 1 << 1;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The next message of a lane.
    Data = 1,
    /// The receiver's permission to send: it is done with [`Header::segment`] segments of the operation.
    Grant = 2,
    /// Eager slots of the lane's connection are free again; see [`Header::credits`].
    Credit = 3,
    /// The operation is stable: every worker holds the whole result.
    Stable = 4,
    /// The payload is a [control message](crate::session::control).
    Control = 5,
    /// A worker asks a server of [tables](crate::table) for something; [`Header::sequence`] is the request's number.
    Request = 6,
    /// The answer to the request of the same number.
    Answer = 7,
}

/// The head of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// Whether the payload takes one of the connection's eager slots, not a granted one.
    pub eager: bool,
    /// Whether a [`Fingerprint`] follows the header: to a reducer, with every message of an operation's first segment.
    pub fingerprint: bool,
    /// Which of the connections between two ranks; 0 if there is one.
    pub stream: u8,
    /// The group, by its number within the job.
    pub group: u32,
    /// How many fences the sender has seen in this group.
    pub generation: u32,
    /// The operation, counted from 0 within the group.
    pub sequence: u64,
    /// The segment of the operation that the message belongs to.
    pub segment: u32,
    /// Which message of the lane, counted from 0 within the segment.
    pub index: u16,
    /// How many eager slots the sender has emptied since its last report. Any kind of frame can return some.
    pub credits: u16,
    /// How many bytes of payload follow. The receiver knows the length, or its maximum if it is [coded](crate::codec),
    /// and reserves nothing because of it.
    pub length: u32,
    /// The sender's rolling hash after this operation; see [`roll`].
    pub hash: u64,
    /// The CRC32C of the payload; 0 if there is none.
    pub payload_crc: u32,
    /// How many elements the sender has for the receiver in all segments, if [parts](crate::collective::UnevenParts)
    /// can differ.
    pub whole: u64,
}

/// Why bytes are no frame. The stream has no next frame to find: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header differs from the one that its sender wrote.
    #[error("a frame's header is damaged: its CRC32C is {found:08x}, and it carries {claimed:08x}")]
    HeaderChecksum {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum in the header.
        claimed: u32,
    },
    /// The fingerprint differs from the one that its sender wrote.
    #[error("an operation's fingerprint is damaged: its CRC32C is {found:08x}, and it carries {claimed:08x}")]
    FingerprintChecksum {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum in the fingerprint.
        claimed: u32,
    },
    /// Not a frame of ours.
    #[error("not a frame of Herringbone: it starts with {found:02x?}")]
    Magic {
        /// Its first bytes.
        found: [u8; 3],
    },
    /// A frame of another version than the handshake agreed on.
    #[error("a frame of version {found}, but this connection speaks version {VERSION}")]
    Version {
        /// The frame's version.
        found: u8,
    },
    /// A kind of frame that this version does not have.
    #[error("a frame of an unknown kind ({found})")]
    Kind {
        /// Its number.
        found: u8,
    },
    /// Flags or reserved bytes that this version does not have.
    #[error("a frame with unknown flags ({flags:#04x}) or with something in reserved bytes")]
    Features {
        /// The flags.
        flags: u8,
    },
}

impl Header {
    /// A header without payload, credits or fingerprint, to be completed with `..`.
    pub fn new(kind: Kind, group: u32, generation: u32, sequence: u64) -> Self {
        Self {
            kind,
            eager: false,
            fingerprint: false,
            stream: 0,
            group,
            generation,
            sequence,
            segment: 0,
            index: 0,
            credits: 0,
            length: 0,
            hash: 0,
            payload_crc: 0,
            whole: 0,
        }
    }

    /// The header as bytes.
    pub fn encode(&self, crc: impl Fn(&[u8]) -> u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = VERSION;
        bytes[4] = self.kind as u8;
        bytes[5] = self.flags();
        bytes[7] = self.stream;
        put(&mut bytes, 8, self.group.to_le_bytes());
        put(&mut bytes, 12, self.generation.to_le_bytes());
        put(&mut bytes, 16, self.sequence.to_le_bytes());
        put(&mut bytes, 24, self.segment.to_le_bytes());
        put(&mut bytes, 28, self.index.to_le_bytes());
        put(&mut bytes, 30, self.credits.to_le_bytes());
        put(&mut bytes, 32, self.length.to_le_bytes());
        put(&mut bytes, 40, self.hash.to_le_bytes());
        put(&mut bytes, 48, self.payload_crc.to_le_bytes());
        put(&mut bytes, 52, self.whole.to_le_bytes());
        let sum = crc(&bytes[..HEADER_CRC_AT]);
        put(&mut bytes, HEADER_CRC_AT, sum.to_le_bytes());
        bytes
    }

    /// Reads a header. The checksum is checked first, so every later error is the sender's doing, not the network's.
    pub fn decode(bytes: &[u8; HEADER_BYTES], crc: impl Fn(&[u8]) -> u32) -> Result<Self, WireError> {
        let (found, claimed) = (crc(&bytes[..HEADER_CRC_AT]), u32::from_le_bytes(get(bytes, HEADER_CRC_AT)));
        if found != claimed {
            return Err(WireError::HeaderChecksum { found, claimed });
        }
        if bytes[..3] != MAGIC {
            return Err(WireError::Magic { found: get(bytes, 0) });
        }
        if bytes[3] != VERSION {
            return Err(WireError::Version { found: bytes[3] });
        }
        let kind = Kind::from_code(bytes[4]).ok_or(WireError::Kind { found: bytes[4] })?;
        let flags = bytes[5];
        let header = Self {
            kind,
            eager: flags & EAGER != 0,
            fingerprint: flags & FINGERPRINT != 0,
            stream: bytes[7],
            group: u32::from_le_bytes(get(bytes, 8)),
            generation: u32::from_le_bytes(get(bytes, 12)),
            sequence: u64::from_le_bytes(get(bytes, 16)),
            segment: u32::from_le_bytes(get(bytes, 24)),
            index: u16::from_le_bytes(get(bytes, 28)),
            credits: u16::from_le_bytes(get(bytes, 30)),
            length: u32::from_le_bytes(get(bytes, 32)),
            hash: u64::from_le_bytes(get(bytes, 40)),
            payload_crc: u32::from_le_bytes(get(bytes, 48)),
            whole: u64::from_le_bytes(get(bytes, 52)),
        };
        let reserved = bytes[6] == 0 && bytes[36..40] == [0; 4];
        if flags != header.flags() || !reserved {
            return Err(WireError::Features { flags });
        }
        Ok(header)
    }

    fn flags(&self) -> u8 {
        let all = [(self.eager, EAGER), (self.fingerprint, FINGERPRINT)];
        all.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, flag)| flags | flag)
    }
}

impl Kind {
    fn from_code(code: u8) -> Option<Self> {
        use Kind::{Answer, Control, Credit, Data, Grant, Request, Stable};
        [Data, Grant, Credit, Stable, Control, Request, Answer].into_iter().find(|kind| *kind as u8 == code)
    }
}

/// An operation, by all properties on which its group's members must agree.
///
/// The numbers come from [`Collective::code`], [`DType::code`] and [`ReduceOp::code`]. A number that this version does
/// not know is still compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The operation, counted from 0 within the group.
    pub sequence: u64,
    /// The collective's code.
    pub collective: u8,
    /// The element type's code.
    pub dtype: u8,
    /// The reduce operation's code.
    pub op: u8,
    /// Which fold order is promised: 0 for the canonical tree, 1 for the schedule's own. [`AHEAD`](Self::AHEAD) of an operation that
    /// moves nothing: ranks compare a call there whose slices are operations of their own.
    pub order: u8,
    /// The collective's root; 0 if it has none.
    pub root: u32,
    /// How many elements the caller gave, or [`UNEVEN`](Self::UNEVEN).
    pub count: u64,
    /// The digest of the plan's inputs; see [`Basis`](crate::session::Basis).
    pub plan: u64,
    /// The caller's priority.
    pub priority: i32,
    /// The caller's number for the purpose of the operation; 0 if there is none.
    pub mark: u32,
    /// How messages are coded.
    pub codec: CodecCode,
}

impl Fingerprint {
    /// The count if parts differ in length: each rank knows its own, so ranks compare them message by message.
    pub const UNEVEN: u64 = u64::MAX;
    /// In place of the fold order of a [barrier](Self::runs) ahead of a call's slices.
    pub const AHEAD: u8 = 2;

    /// What runs: ahead of slices a barrier, else what was called.
    #[must_use]
    pub fn runs(self) -> Self {
        if self.order != Self::AHEAD {
            return self;
        }
        let collective = Collective::Barrier.code();
        Self {
            collective,
            dtype: DType::U8.code(),
            op: ReduceOp::Sum.code(),
            order: 0,
            root: 0,
            count: 0,
            ..self
        }
    }

    /// The fingerprint as bytes, its checksum included.
    pub fn encode(&self, crc: impl Fn(&[u8]) -> u32) -> [u8; FINGERPRINT_BYTES] {
        let mut bytes = [0; FINGERPRINT_BYTES];
        put(&mut bytes, 0, self.to_bytes());
        let sum = crc(&bytes[..FINGERPRINT_CRC_AT]);
        put(&mut bytes, FINGERPRINT_CRC_AT, sum.to_le_bytes());
        bytes
    }

    /// Reads a fingerprint. Damage is the only error: unknown codes are kept, to be compared and shown.
    pub fn decode(bytes: &[u8; FINGERPRINT_BYTES], crc: impl Fn(&[u8]) -> u32) -> Result<Self, WireError> {
        let found = crc(&bytes[..FINGERPRINT_CRC_AT]);
        let claimed = u32::from_le_bytes(get(bytes, FINGERPRINT_CRC_AT));
        if found != claimed {
            return Err(WireError::FingerprintChecksum { found, claimed });
        }
        Ok(Self::from_bytes(&get(bytes, 0)))
    }

    /// The names of the fields in which two fingerprints differ, in the order in which people ask for them. Plans of
    /// different calls differ because of these, and are not named.
    pub fn difference(&self, other: &Self) -> Vec<&'static str> {
        let call = |of: &Self| (of.collective, of.root, of.count, of.dtype, of.op, of.order, of.codec);
        let fields = [
            ("collective", self.collective != other.collective),
            ("root", self.root != other.root),
            ("count", self.count != other.count),
            ("element type", self.dtype != other.dtype),
            ("reduce operation", self.op != other.op),
            ("slices", (self.order == Self::AHEAD) != (other.order == Self::AHEAD)),
            ("fold order", self.order != other.order && ![self.order, other.order].contains(&Self::AHEAD)),
            ("plan", self.plan != other.plan && call(self) == call(other)),
            ("priority", self.priority != other.priority),
            ("mark", self.mark != other.mark),
            ("compression", self.codec != other.codec),
            ("sequence", self.sequence != other.sequence),
        ];
        fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    /// The same for an error that a person reads. It names all ranks by their numbers in the job: `members` has the
    /// number of each of the group's ranks.
    #[must_use]
    pub fn in_job(self, members: &[u32]) -> Self {
        let root = Collective::from_code(self.collective, self.root).and_then(Collective::root);
        let named = root.and_then(|root| members.get(root as usize).copied());
        Self { root: named.unwrap_or(self.root), ..self }
    }

    /// Whether a worker that has completed it knows that all others have called it, and that they agree about all of it.
    pub fn hears_all(&self, worker: u32) -> bool {
        let Self { collective, root, .. } = self.runs();
        let collective = Collective::from_code(collective, root);
        self.count != Self::UNEVEN && collective.is_some_and(|collective| collective.hears_all(worker))
    }

    /// The call, without the operation's number: `all_reduce of 1000 f32, sum`.
    pub fn call(&self) -> impl fmt::Display {
        Call(self)
    }

    /// The bytes without a checksum, for messages that have one of their own.
    pub(crate) fn to_bytes(self) -> [u8; FINGERPRINT_CRC_AT] {
        let mut bytes = [0; FINGERPRINT_CRC_AT];
        put(&mut bytes, 0, self.sequence.to_le_bytes());
        put(&mut bytes, 8, [self.collective, self.dtype, self.op, self.order]);
        put(&mut bytes, 12, self.root.to_le_bytes());
        put(&mut bytes, 16, self.count.to_le_bytes());
        put(&mut bytes, 24, self.plan.to_le_bytes());
        put(&mut bytes, 32, self.priority.to_le_bytes());
        put(&mut bytes, 36, self.mark.to_le_bytes());
        put(&mut bytes, 40, self.codec.number.to_le_bytes());
        put(&mut bytes, 44, self.codec.parameter.to_le_bytes());
        bytes
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote.
    pub(crate) fn from_bytes(bytes: &[u8; FINGERPRINT_CRC_AT]) -> Self {
        let [collective, dtype, op, order] = get(bytes, 8);
        Self {
            sequence: u64::from_le_bytes(get(bytes, 0)),
            collective,
            dtype,
            op,
            order,
            root: u32::from_le_bytes(get(bytes, 12)),
            count: u64::from_le_bytes(get(bytes, 16)),
            plan: u64::from_le_bytes(get(bytes, 24)),
            priority: i32::from_le_bytes(get(bytes, 32)),
            mark: u32::from_le_bytes(get(bytes, 36)),
            codec: CodecCode {
                number: u32::from_le_bytes(get(bytes, 40)),
                parameter: u32::from_le_bytes(get(bytes, 44)),
            },
        }
    }
}

impl fmt::Display for Fingerprint {
    /// As the caller would say it: `all_reduce of 1000 f32, sum (operation 17)`, `broadcast of 8 u8 from rank 2, priority 1
    /// (operation 3)`, `barrier (operation 4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call().fmt(f)?;
        if self.priority != 0 {
            write!(f, ", priority {}", self.priority)?;
        }
        if self.mark != 0 {
            write!(f, ", mark {:08x}", self.mark)?;
        }
        write!(f, " (operation {})", self.sequence)
    }
}

struct Call<'a>(&'a Fingerprint);

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &Fingerprint { collective, dtype, op, order, root, count, codec, .. } = self.0;
        let Some(known) = Collective::from_code(collective, root) else {
            return write!(f, "unknown collective {collective}");
        };
        f.write_str(known.name())?;
        if known == Collective::Barrier {
            return Ok(());
        }
        match count {
            Fingerprint::UNEVEN => f.write_str(" of uneven parts of ")?,
            count => write!(f, " of {count} ")?,
        }
        name_or_code(f, DType::from_code(dtype).map(DType::name), "type", dtype)?;
        if known.folds() {
            f.write_str(", ")?;
            name_or_code(f, ReduceOp::from_code(op).map(ReduceOp::name), "operation", op)?;
        }
        match Codec::from_code(codec) {
            Some(Codec::Plain) => {}
            Some(known) => write!(f, ", compressed with {known}")?,
            None => write!(f, ", compressed with unknown codec {}", codec.number)?,
        }
        match known {
            Collective::Reduce { root } | Collective::Gather { root } => write!(f, " to rank {root}"),
            Collective::Broadcast { root } | Collective::Scatter { root } => {
                write!(f, " from rank {root}")
            }
            _ => Ok(()),
        }?;
        if order == Fingerprint::AHEAD { f.write_str(", in slices") } else { Ok(()) }
    }
}

fn name_or_code(
    f: &mut fmt::Formatter<'_>,
    name: Option<&'static str>,
    what: &'static str,
    code: u8,
) -> fmt::Result {
    match name {
        Some(name) => f.write_str(name),
        None => write!(f, "unknown {what} {code}"),
    }
}

/// The rolling hash over all operations issued so far, `previous` being the hash before this one; 0 before the first.
///
/// The six words of the fingerprint go through the finalizer of SplitMix64 (Steele, Lea and Flood 2014) one after the
/// other. Each round is a bijection of the state for a given word and of the word for a given state. So two histories
/// that differ in one word of one operation never have the same hash afterwards, even if many equal operations follow.
/// Any other two histories collide with a probability of about 2^-64. It guards against mistakes, not against enemies.
pub fn roll(previous: u64, next: &Fingerprint) -> u64 {
    let bytes = next.to_bytes();
    bytes.chunks(8).fold(previous, absorb)
}

/// A 64-bit hash of bytes; made like [`roll`].
pub fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(bytes.len() as u64, absorb)
}

fn absorb(state: u64, chunk: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..chunk.len()].copy_from_slice(chunk);
    mix(state, u64::from_le_bytes(word))
}

/// A round of [`roll`]: for a given word a bijection of the state, and for a given state one of the word.
pub(crate) fn mix(state: u64, word: u64) -> u64 {
    let mut state = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
    state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    core::array::from_fn(|offset| bytes[at + offset])
}
