//! The reports of ranks to each other when their group is formed.

use super::{ReplayPoint, ReplaySettings};
use crate::{
    group::Rank,
    session::{Malformed, Reader, Writer},
};
use alloc::vec::Vec;

/// Of how many calls of a version a rank may keep the results: more are not read.
const MOST_RESULTS: u64 = 1 << 22;

/// The longest standing, in bytes.
const STANDING_BYTES: usize = 64 << 20;

/// A call before the first checkpoint was loaded: its place in the program's text, and how many calls this process made
/// there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallSite {
    /// A hash of the place; 0 if it is not known.
    pub place: u64,
    /// How many calls from there came before it.
    pub nth: u32,
}

/// Results that a rank keeps: of calls of one kind that follow each other, and all of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultRun {
    /// The first call.
    pub first: ReplayPoint,
    /// How many calls.
    pub count: u64,
    /// The [kind](super::ReplayCall::Collective) of these calls.
    pub kind: u64,
    /// How many bytes each result has.
    pub bytes: u64,
}

impl ResultRun {
    /// The call after the last.
    pub(super) fn next(&self) -> ReplayPoint {
        ReplayPoint { call: self.first.call.saturating_add(self.count), ..self.first }
    }

    pub(super) fn has(&self, point: ReplayPoint) -> bool {
        self.first <= point && point < self.next()
    }
}

/// A rank's copy of the model that all have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldGlobal {
    /// Nothing.
    Absent,
    /// Its bytes.
    Stored {
        /// How many.
        bytes: u64,
    },
    /// The program's own, of unknown size.
    Lazy,
}

/// A local model that a rank keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLocal {
    /// Whose it is.
    pub owner: Rank,
    /// How many bytes it has.
    pub bytes: u64,
}

/// A rank's models of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldModels {
    /// The model that all have.
    pub global: HeldGlobal,
    /// The local models, by owner.
    pub locals: Vec<HeldLocal>,
    /// Whether ranks have local models at all.
    pub has_local: bool,
}

/// How far a rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPosition {
    /// How many checkpoints it has.
    pub version: u32,
    /// How many calls of this version it has made, and has the results of.
    pub calls: u64,
    /// How many calls this version has, if it knows.
    pub closes_at: Option<u64>,
    /// Whether its program has loaded the checkpoint, if only to see that there is none.
    pub has_loaded: bool,
    /// The results that it keeps.
    pub results: Vec<ResultRun>,
    /// The checkpoint with which its version began.
    pub current: HeldModels,
    /// Its models of the next one, if it is in that checkpoint.
    pub pending: Option<HeldModels>,
}

/// A result of a call before the first checkpoint was loaded, as a rank keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldBootstrap {
    /// Which call.
    pub site: CallSite,
    /// The [kind](super::ReplayCall::Collective) of the call.
    pub kind: u64,
    /// How many bytes its result has.
    pub bytes: u64,
}

/// The items and the progress of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayStanding {
    /// Its [`global_replica`](ReplaySettings::global_replica).
    pub global_replica: u32,
    /// Its [`local_replica`](ReplaySettings::local_replica).
    pub local_replica: u32,
    /// None of a process that has just started.
    pub position: Option<ReplayPosition>,
    /// The results of calls before a checkpoint was loaded, in the order of the calls.
    pub bootstrap: Vec<HeldBootstrap>,
}

/// The contribution of a rank to a checkpoint. All ranks gather these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointOffer {
    /// How many calls its version has had.
    pub calls: u64,
    /// How many bytes its local model has; none if there is none.
    pub local: Option<u64>,
}

impl CheckpointOffer {
    /// How many bytes it takes.
    pub const BYTES: usize = 17;

    /// As it travels.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.calls.to_le_bytes());
        bytes[8] = u8::from(self.local.is_some());
        bytes[9..].copy_from_slice(&self.local.unwrap_or(0).to_le_bytes());
        bytes
    }

    /// The offer that came as these bytes.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(number)
        };
        Self { calls: number(0), local: (bytes[8] != 0).then(|| number(9)) }
    }
}

impl ReplayStanding {
    /// The standing of a process that has just started.
    pub fn of_new(settings: &ReplaySettings) -> Self {
        let ReplaySettings { global_replica, local_replica, .. } = *settings;
        Self { global_replica, local_replica, position: None, bootstrap: Vec::new() }
    }

    /// Its bytes on the wire. `None` if the rank keeps the results of more calls than fit: some four million of a
    /// version.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let results = self.position.iter().flat_map(|position| &position.results).map(|run| run.count);
        if results.sum::<u64>() > MOST_RESULTS {
            return None;
        }
        let mut to = Writer::default();
        to.u32(self.global_replica);
        to.u32(self.local_replica);
        to.option(self.position.as_ref(), write_position);
        write_all(&mut to, &self.bootstrap, |to, held| {
            to.u64(held.site.place);
            to.u32(held.site.nth);
            to.u64(held.kind);
            to.u64(held.bytes);
        });
        to.finish(STANDING_BYTES).ok()
    }

    /// The standing that came as these bytes, if they are one.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut from = Reader(bytes);
        let read = |from: &mut Reader<'_>| {
            let (global_replica, local_replica) = (from.u32()?, from.u32()?);
            let position = from.option(read_position)?;
            let bootstrap = read_all(from, 28, |from| {
                let site = CallSite { place: from.u64()?, nth: from.u32()? };
                Ok(HeldBootstrap { site, kind: from.u64()?, bytes: from.u64()? })
            })?;
            Ok::<_, Malformed>(Self { global_replica, local_replica, position, bootstrap })
        };
        let standing = read(&mut from).ok()?;
        from.finish().ok().map(|()| standing)
    }
}

fn write_all<T>(to: &mut Writer, items: &[T], write: impl Fn(&mut Writer, &T)) {
    to.u64(items.len() as u64);
    items.iter().for_each(|item| write(to, item));
}

/// Reads a list whose items have at least so many bytes each.
fn read_all<T>(
    from: &mut Reader<'_>,
    least: u64,
    read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let count = from.u64()?;
    if count > from.0.len() as u64 / least {
        return Err(Malformed("it ends too early"));
    }
    (0..count).map(|_| read(from)).collect()
}

fn write_point(to: &mut Writer, point: ReplayPoint) {
    to.u32(point.version);
    to.u64(point.call);
}

fn read_point(from: &mut Reader<'_>) -> Result<ReplayPoint, Malformed> {
    Ok(ReplayPoint { version: from.u32()?, call: from.u64()? })
}

fn write_position(to: &mut Writer, position: &ReplayPosition) {
    to.u32(position.version);
    to.u64(position.calls);
    to.option(position.closes_at.as_ref(), |to, calls| to.u64(*calls));
    to.bool(position.has_loaded);
    write_all(to, &position.results, |to, run| {
        write_point(to, run.first);
        to.u64(run.count);
        to.u64(run.kind);
        to.u64(run.bytes);
    });
    write_models(to, &position.current);
    to.option(position.pending.as_ref(), write_models);
}

fn read_position(from: &mut Reader<'_>) -> Result<ReplayPosition, Malformed> {
    let position = ReplayPosition {
        version: from.u32()?,
        calls: from.u64()?,
        closes_at: from.option(Reader::u64)?,
        has_loaded: from.bool()?,
        results: read_all(from, 36, |from| {
            let (first, count) = (read_point(from)?, from.u64()?);
            let (kind, bytes) = (from.u64()?, from.u64()?);
            first.call.checked_add(count).ok_or(Malformed("more calls than there are numbers"))?;
            Ok(ResultRun { first, count, kind, bytes })
        })?,
        current: read_models(from)?,
        pending: from.option(read_models)?,
    };
    let counts = position.results.iter().map(|run| run.count);
    match counts.fold(0, u64::saturating_add) <= MOST_RESULTS {
        true => Ok(position),
        false => Err(Malformed("more results than are kept of a version")),
    }
}

fn write_models(to: &mut Writer, models: &HeldModels) {
    match models.global {
        HeldGlobal::Absent => to.u8(0),
        HeldGlobal::Stored { bytes } => {
            to.u8(1);
            to.u64(bytes);
        }
        HeldGlobal::Lazy => to.u8(2),
    }
    write_all(to, &models.locals, |to, local| {
        to.u32(local.owner);
        to.u64(local.bytes);
    });
    to.bool(models.has_local);
}

fn read_models(from: &mut Reader<'_>) -> Result<HeldModels, Malformed> {
    let global = match from.u8()? {
        0 => HeldGlobal::Absent,
        1 => HeldGlobal::Stored { bytes: from.u64()? },
        2 => HeldGlobal::Lazy,
        _ => return Err(Malformed("a model that is neither there nor not")),
    };
    let locals = read_all(from, 12, |from| Ok(HeldLocal { owner: from.u32()?, bytes: from.u64()? }))?;
    Ok(HeldModels { global, locals, has_local: from.bool()? })
}
