//! How a world forms: rank 0 gathers the others.
//!
//! Every rank says in its [`Join`] what it was told; rank 0 lets it in or says why not, and when all are there, each
//! gets the same [`Roster`]. What ranks may have of their own is settled here, whatever the order in which they come:
//! the staging pool and the segment are the smallest that anybody has; the fold order, the
//! algorithm, the transport and the reducers are rank 0's, which the others either leave open or know.

use super::{
    codec::{Malformed, Reader, Writer},
    refusal::Refusal,
};
use crate::group::{FoldOrder, Rank};
use alloc::{collections::BTreeMap, format, string::String, vec::Vec};

/// One rank of a world, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its rank.
    pub rank: Rank,
    /// Where it listens, as `host:port`; at most 256 bytes.
    pub address: String,
    /// Its host: the same number means the same running machine, as far as the rank can tell. A hint: that two ranks
    /// share memory is proven only by sharing it.
    pub host: u64,
    /// Its life: a random number, drawn anew whenever the process starts.
    pub incarnation: u64,
}

/// What a rank would like the world to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The staging pool of a process, in bytes.
    pub staging: u64,
    /// The most that a segment of a message has, in bytes.
    pub segment: u64,
    /// Where fold keys come from, if it is not left to rank 0, or by rank 0 to the default.
    pub order: Option<FoldOrder>,
    /// The algorithm, if the choice is not left to the planner.
    pub algorithm: Option<String>,
    /// The transport, if it is not left to what is there.
    pub transport: Option<String>,
    /// Where the reducers listen.
    pub reducers: Vec<String>,
}

/// A rank's wish to take part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    /// Who it is.
    pub member: Member,
    /// How many ranks it was told there are.
    pub world: u32,
    /// What it would like.
    pub settings: Settings,
}

/// A world: who is in it, and what it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The job: a random number, which keeps jobs with the same token apart.
    pub job: u64,
    /// Everybody, by rank, without gaps.
    pub members: Vec<Member>,
    /// What all of them use.
    pub settings: Settings,
}

/// How far a formation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many ranks are missing; see [`Formation::missing`].
    Waiting(u32),
    /// Everybody is there; see [`Formation::roster`].
    Complete,
}

/// Rank 0's view of a world that forms.
#[derive(Clone, Debug)]
pub struct Formation {
    world: u32,
    settings: Settings,
    joined: BTreeMap<Rank, Joined>,
}

#[derive(Clone, Debug)]
struct Joined {
    member: Member,
    from: String,
    staging: u64,
    segment: u64,
}

impl Formation {
    /// Begins with rank 0 itself, whose word counts.
    ///
    /// # Errors
    /// If its rank is not one of its world's.
    pub fn new(own: Join) -> Result<Self, Refusal> {
        let Join { member, world, settings } = own;
        check_rank(member.rank, world)?;
        let (rank, from) = (member.rank, member.address.clone());
        let joined = Joined { member, from, staging: settings.staging, segment: settings.segment };
        Ok(Self { world, settings, joined: [(rank, joined)].into() })
    }

    /// A rank comes, over a connection from the address `from`. The same process may come again: its last word counts.
    ///
    /// # Errors
    /// A reason to send back; the formation is as before.
    pub fn join(&mut self, join: Join, from: &str) -> Result<Progress, Refusal> {
        let Join { member, world, settings } = join;
        let rank = member.rank;
        if world != self.world {
            return Err(Refusal::World { rank, ours: self.world, theirs: world });
        }
        check_rank(rank, world)?;
        if let Some(there) = self.joined.get(&rank)
            && there.member.incarnation != member.incarnation
        {
            return Err(Refusal::DuplicateRank { rank, first: there.from.clone(), second: from.into() });
        }
        self.settings.check(rank, &settings)?;
        let Settings { staging, segment, .. } = settings;
        self.joined.insert(rank, Joined { member, from: from.into(), staging, segment });
        Ok(self.progress())
    }

    /// A rank that had come is gone, and may come again as another process.
    pub fn withdraw(&mut self, rank: Rank, incarnation: u64) {
        if self.joined.get(&rank).is_some_and(|there| there.member.incarnation == incarnation) {
            self.joined.remove(&rank);
        }
    }

    /// Who has not come yet, ascending; shown with [`Ranks`](super::Ranks).
    pub fn missing(&self) -> Vec<Rank> {
        (0..self.world).filter(|rank| !self.joined.contains_key(rank)).collect()
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        match self.world - self.joined.len() as u32 {
            0 => Progress::Complete,
            missing => Progress::Waiting(missing),
        }
    }

    /// The world, once it is complete.
    pub fn roster(&self, job: u64) -> Option<Roster> {
        if self.progress() != Progress::Complete {
            return None;
        }
        let mut settings = self.settings.clone();
        for joined in self.joined.values() {
            settings.staging = settings.staging.min(joined.staging);
            settings.segment = settings.segment.min(joined.segment);
        }
        let members = self.joined.values().map(|joined| joined.member.clone()).collect();
        Some(Roster { job, members, settings })
    }
}

fn check_rank(rank: Rank, world: u32) -> Result<(), Refusal> {
    if rank < world { Ok(()) } else { Err(Refusal::RankOutOfRange { rank, world }) }
}

impl Settings {
    /// Whether `rank` may take part with what it would like, where these are rank 0's settings.
    fn check(&self, rank: Rank, theirs: &Settings) -> Result<(), Refusal> {
        let name = |value: &Option<String>| value.clone().unwrap_or_default();
        let must_agree = [
            (
                "HERRINGBONE_FOLD_ORDER",
                self.order.unwrap_or_default().name().into(),
                theirs.order.map_or("", FoldOrder::name).into(),
            ),
            ("HERRINGBONE_ALGORITHM", name(&self.algorithm), name(&theirs.algorithm)),
            ("HERRINGBONE_TRANSPORT", name(&self.transport), name(&theirs.transport)),
            ("HERRINGBONE_REDUCERS", self.reducers.join(","), theirs.reducers.join(",")),
        ];
        for (name, ours, theirs) in must_agree {
            if !theirs.is_empty() && theirs != ours {
                let (ours, theirs) = (quoted(&ours), quoted(&theirs));
                return Err(Refusal::Setting { rank, name: name.into(), ours, theirs });
            }
        }
        Ok(())
    }

    fn write(&self, to: &mut Writer) {
        to.u64(self.staging);
        to.u64(self.segment);
        to.option(self.order.as_ref(), |to, order| to.u8(order.code()));
        to.option(self.algorithm.as_ref(), |to, name| to.text("an algorithm's name", name));
        to.option(self.transport.as_ref(), |to, name| to.text("a transport's name", name));
        to.list("the list of reducers", &self.reducers, |to, address| {
            to.text("a reducer's address", address);
        });
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (staging, segment, order) = (from.u64()?, from.u64()?, from.option(fold_order)?);
        let (algorithm, transport) = (from.option(Reader::text)?, from.option(Reader::text)?);
        Ok(Self { staging, segment, order, algorithm, transport, reducers: from.list(Reader::text)? })
    }
}

/// A fold order that travels as its code.
pub(super) fn fold_order(from: &mut Reader<'_>) -> Result<FoldOrder, Malformed> {
    FoldOrder::from_code(from.u8()?).ok_or(Malformed("a fold order that is unknown"))
}

/// A setting as a refusal shows it: short enough to be sent.
fn quoted(value: &str) -> String {
    const SHOWN: usize = 60;
    match value.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("\"{}...\"", &value[..end]),
        None => format!("\"{value}\""),
    }
}

impl Member {
    fn write(&self, to: &mut Writer) {
        to.u32(self.rank);
        to.text("an address", &self.address);
        to.u64(self.host);
        to.u64(self.incarnation);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (rank, address) = (from.u32()?, from.text()?);
        Ok(Self { rank, address, host: from.u64()?, incarnation: from.u64()? })
    }
}

impl Join {
    pub(super) fn write(&self, to: &mut Writer) {
        self.member.write(to);
        to.u32(self.world);
        self.settings.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (member, world) = (Member::read(from)?, from.u32()?);
        Ok(Self { member, world, settings: Settings::read(from)? })
    }
}

impl Roster {
    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.job);
        to.list("the list of members", &self.members, |to, member| member.write(to));
        self.settings.write(to);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let job = from.u64()?;
        let members = from.list(Member::read)?;
        if members.is_empty() || members.iter().enumerate().any(|(at, member)| member.rank as usize != at) {
            return Err(Malformed("its members are not the ranks of a world"));
        }
        Ok(Self { job, members, settings: Settings::read(from)? })
    }
}
