//! The members of a job, epoch by epoch.
//!
//! A [`Roster`] is a value: joining and leaving make the roster of the next epoch and leave this one as it is. Members
//! have [identities](MemberId) that are never used again; a worker's rank is its place among the workers of an epoch.
//! All arithmetic about places is here: no other module compares an identity with a number of members.

use super::{
    Role,
    codec::{LIST_ITEMS, Malformed, Reader, Writer},
};
use crate::group::Rank;
use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// The most members that a roster has.
pub const MEMBERS: usize = LIST_ITEMS;

/// Which member of a job. No other member of the job ever has the same one, even after members have left. It is not a
/// rank: a rank is a place among the workers of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(u32);

impl MemberId {
    /// The identity of this number.
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number, as it travels.
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Its number, as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    pub(super) fn write(self, to: &mut Writer) {
        to.u32(self.0);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        from.u32().map(Self)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {}", self.0)
    }
}

/// A running process, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its address, as `host:port`; at most 256 bytes.
    pub address: String,
    /// Its host: the same number means the same running machine, as far as the process can tell. A hint: that two
    /// processes share memory is proven only by sharing it.
    pub host: u64,
    /// Its life: a new random number for each start of the process.
    pub incarnation: u64,
}

/// One process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its identity.
    pub id: MemberId,
    /// Its role.
    pub role: Role,
    /// Its address, as `host:port`.
    pub address: String,
    /// Its life. Unknown for a reducer until it answers, because only its address is known.
    pub incarnation: Option<u64>,
    /// Its host, as in [`Process::host`]; unknown likewise.
    pub host: Option<u64>,
}

/// The members of a job in one epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    epoch: u64,
    /// By identity, ascending. The workers among them are in the order of their ranks.
    members: Vec<Member>,
    /// The lowest number that no member has or had.
    unused: u32,
}

/// Members that make no roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RosterError {
    /// No member would have data.
    #[error("a roster without workers")]
    NoWorkers,
    /// The members are too many, or their numbers are used up.
    #[error("more members than a roster takes")]
    Full,
    /// Identities do not ascend, or one appears twice, or was not given out.
    #[error("a roster whose identities do not ascend")]
    Order,
    /// A worker is always known by its process.
    #[error("a roster with a worker of unknown host or incarnation")]
    UnknownWorker,
    /// The member does not exist.
    #[error("the roster has no such member")]
    NoSuchMember,
}

impl Roster {
    /// The first epoch of a job: workers by rank, then reducers, with only their addresses.
    ///
    /// # Errors
    /// Without workers, or with too many members.
    pub fn founded(workers: Vec<Process>, reducers: &[String]) -> Result<Self, RosterError> {
        let workers = workers.into_iter().map(|Process { address, host, incarnation }| {
            (Role::Worker, address, Some(incarnation), Some(host))
        });
        let reducers = reducers.iter().map(|address| (Role::Reducer, address.clone(), None, None));
        let members: Vec<Member> = (0..)
            .map(MemberId)
            .zip(workers.chain(reducers))
            .map(|(id, (role, address, incarnation, host))| Member { id, role, address, incarnation, host })
            .collect();
        let unused = u32::try_from(members.len()).map_err(|_| RosterError::Full)?;
        Self { epoch: 0, members, unused }.checked()
    }

    /// The next epoch, with one more member, which gets an identity of its own and, if it is a worker, the last rank.
    ///
    /// # Errors
    /// If there is no room for it, or it is a worker with an unknown property.
    pub fn with_joined(
        &self,
        role: Role,
        address: String,
        incarnation: Option<u64>,
        host: Option<u64>,
    ) -> Result<(Self, MemberId), RosterError> {
        let mut next = self.clone();
        let id = MemberId(self.unused);
        next.unused = self.unused.checked_add(1).ok_or(RosterError::Full)?;
        next.epoch += 1;
        next.members.push(Member { id, role, address, incarnation, host });
        Ok((next.checked()?, id))
    }

    /// The next epoch, without a member. Workers of higher ranks move down by one.
    ///
    /// # Errors
    /// If it is no member, or the last worker.
    pub fn without(&self, id: MemberId) -> Result<Self, RosterError> {
        let mut next = self.clone();
        next.members.remove(self.place(id).ok_or(RosterError::NoSuchMember)?);
        next.epoch += 1;
        next.checked()
    }

    fn checked(self) -> Result<Self, RosterError> {
        let Self { members, unused, .. } = &self;
        if members.len() > MEMBERS {
            return Err(RosterError::Full);
        }
        if self.workers().next().is_none() {
            return Err(RosterError::NoWorkers);
        }
        if self.workers().any(|worker| worker.incarnation.is_none() || worker.host.is_none()) {
            return Err(RosterError::UnknownWorker);
        }
        let ascend = members.is_sorted_by(|a, b| a.id < b.id);
        if !ascend || members.last().is_some_and(|last| last.id.0 >= *unused) {
            return Err(RosterError::Order);
        }
        Ok(self)
    }

    /// How many agreed changes there were before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Everybody, by identity.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The workers, by rank.
    pub fn workers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == Role::Worker)
    }

    /// The reducers, in the order in which schedules number them.
    pub fn reducers(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.role == Role::Reducer)
    }

    /// How many workers there are: ranks are below.
    pub fn world(&self) -> u32 {
        self.workers().count() as u32
    }

    /// A member.
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.place(id).map(|at| &self.members[at])
    }

    fn place(&self, id: MemberId) -> Option<usize> {
        self.members.binary_search_by_key(&id, |member| member.id).ok()
    }

    /// Whether a member is a reducer.
    pub fn is_reducer(&self, id: MemberId) -> bool {
        self.member(id).is_some_and(|member| member.role == Role::Reducer)
    }

    /// The worker of a rank.
    pub fn worker(&self, rank: Rank) -> Option<&Member> {
        self.workers().nth(rank as usize)
    }

    /// The rank of a worker.
    pub fn rank_of(&self, id: MemberId) -> Option<Rank> {
        self.workers().position(|worker| worker.id == id).map(|rank| rank as Rank)
    }

    /// The host of each worker, by rank; hosts are numbered in the order of their first ranks.
    pub fn hosts(&self) -> Vec<u32> {
        let mut numbers = BTreeMap::new();
        let number = |worker: &Member| {
            let next = numbers.len() as u32;
            *numbers.entry(worker.host).or_insert(next)
        };
        self.workers().map(number).collect()
    }

    /// The workers on a member's host, including itself, by rank: all that claim to share its memory.
    pub fn locals(&self, id: MemberId) -> Vec<MemberId> {
        let host = self.member(id).and_then(|member| member.host);
        let here = self.workers().filter(|worker| worker.host == host && host.is_some());
        here.map(|worker| worker.id).collect()
    }

    /// The name of a member for people: `rank 3`, or a reducer's address.
    pub fn name(&self, id: MemberId) -> String {
        match self.member(id) {
            Some(Member { role: Role::Reducer, address, .. }) => address.clone(),
            Some(_) => self.rank_of(id).map_or_else(|| id.to_string(), |rank| format!("rank {rank}")),
            None => id.to_string(),
        }
    }

    pub(super) fn write(&self, to: &mut Writer) {
        to.u64(self.epoch);
        to.u32(self.unused);
        to.list("the list of members", &self.members, |to, member| member.write(to));
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (epoch, unused, members) = (from.u64()?, from.u32()?, from.list(Member::read)?);
        Self { epoch, members, unused }.checked().map_err(|error| {
            Malformed(match error {
                RosterError::NoWorkers => "its roster has no workers",
                RosterError::Full => "its roster has too many members",
                RosterError::UnknownWorker => "its roster has a worker of unknown host or incarnation",
                RosterError::Order | RosterError::NoSuchMember => "its roster's identities do not ascend",
            })
        })
    }
}

impl Member {
    fn write(&self, to: &mut Writer) {
        self.id.write(to);
        self.role.write(to);
        to.text("an address", &self.address);
        to.option(self.incarnation.as_ref(), |to, incarnation| to.u64(*incarnation));
        to.option(self.host.as_ref(), |to, host| to.u64(*host));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (id, role, address) = (MemberId::read(from)?, Role::read(from)?, from.text()?);
        Ok(Self {
            id,
            role,
            address,
            incarnation: from.option(Reader::u64)?,
            host: from.option(Reader::u64)?,
        })
    }
}

impl Process {
    pub(super) fn write(&self, to: &mut Writer) {
        to.text("an address", &self.address);
        to.u64(self.host);
        to.u64(self.incarnation);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self { address: from.text()?, host: from.u64()?, incarnation: from.u64()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(rank: u64, host: u64) -> Process {
        Process { address: format!("10.0.0.{rank}:7"), host, incarnation: 100 + rank }
    }

    /// Three workers on two hosts, which are not in the order of their numbers, and two reducers.
    fn roster() -> Roster {
        let reducers = ["a:1", "b:2"].map(String::from);
        Roster::founded(
            [9, 4, 9].into_iter().zip(0..).map(|(host, rank)| process(rank, host)).collect(),
            &reducers,
        )
        .unwrap()
    }

    fn ids(members: impl IntoIterator<Item = u32>) -> Vec<MemberId> {
        members.into_iter().map(MemberId).collect()
    }

    #[test]
    fn places_follow_from_the_list_alone() {
        let roster = roster();
        assert_eq!((roster.epoch(), roster.world(), roster.members().len()), (0, 3, 5));
        assert_eq!(roster.worker(2).unwrap().incarnation, Some(102));
        assert_eq!(roster.worker(3), None, "a reducer has no rank");
        assert_eq!([1, 3].map(|id| roster.rank_of(MemberId(id))), [Some(1), None]);
        assert_eq!(roster.hosts(), [0, 1, 0]);
        assert_eq!(roster.locals(MemberId(2)), ids([0, 2]));
        assert_eq!(roster.locals(MemberId(3)), [], "nothing is known of a reducer's host");
        assert_eq!([0, 4, 5].map(|id| roster.name(MemberId(id))), ["rank 0", "b:2", "member 5"]);
        assert_eq!([2, 3, 5].map(|id| roster.is_reducer(MemberId(id))), [false, true, false]);
        let reducers: Vec<&Member> = roster.reducers().collect();
        assert!(reducers.iter().all(|reducer| reducer.incarnation.is_none() && reducer.host.is_none()));
    }

    #[test]
    fn identities_are_not_used_again() {
        let first = roster();
        let (joined, id) = first.with_joined(Role::Worker, "c:3".into(), Some(7), Some(4)).unwrap();
        assert_eq!((id, joined.epoch(), joined.rank_of(id)), (MemberId(5), 1, Some(3)));
        assert_eq!(joined.hosts(), [0, 1, 0, 1]);
        let left = joined.without(id).unwrap();
        assert_eq!((left.epoch(), left.members()), (2, first.members()));
        let (again, other) = left.with_joined(Role::Reducer, "c:3".into(), None, None).unwrap();
        assert_eq!((other, again.name(other)), (MemberId(6), "c:3".into()));
        assert_eq!(again.without(id), Err(RosterError::NoSuchMember));
        assert_eq!(first, roster(), "an epoch does not change");
    }

    #[test]
    fn those_behind_a_worker_that_leaves_move_down() {
        let left = roster().without(MemberId(0)).unwrap();
        assert_eq!(left.rank_of(MemberId(2)), Some(1));
        assert_eq!(left.hosts(), [0, 1]);
        assert_eq!(left.name(MemberId(1)), "rank 0");
        assert_eq!(left.reducers().map(|reducer| reducer.id).collect::<Vec<_>>(), ids([3, 4]));
        let last = left.without(MemberId(1)).unwrap();
        assert_eq!(last.without(MemberId(2)), Err(RosterError::NoWorkers));
    }

    #[test]
    fn what_makes_no_roster_is_refused() {
        assert_eq!(Roster::founded(Vec::new(), &["a:1".into()]), Err(RosterError::NoWorkers));
        let many = (0..MEMBERS as u64).map(|rank| process(rank, 0));
        let full = Roster::founded(many.collect(), &[]).unwrap();
        let one_more =
            |role, known: Option<u64>| full.with_joined(role, "a:1".into(), known, known).unwrap_err();
        assert_eq!(one_more(Role::Reducer, None), RosterError::Full);
        let unknown = roster().with_joined(Role::Worker, "a:1".into(), None, Some(1));
        assert_eq!(unknown.unwrap_err(), RosterError::UnknownWorker);
        let used_up = Roster { unused: u32::MAX, ..roster() };
        assert_eq!(
            used_up.with_joined(Role::Reducer, "a:1".into(), None, None).unwrap_err(),
            RosterError::Full
        );
    }

    fn decoded(roster: &Roster) -> Result<Roster, Malformed> {
        let mut to = Writer::default();
        roster.write(&mut to);
        let bytes = to.finish(1 << 20).unwrap();
        let mut from = Reader(&bytes);
        let read = Roster::read(&mut from)?;
        from.finish()?;
        Ok(read)
    }

    #[test]
    fn what_arrives_is_a_roster_or_refused() {
        let (joined, id) = roster().with_joined(Role::Worker, "c:3".into(), Some(7), Some(4)).unwrap();
        let left = joined.without(id).unwrap();
        assert_eq!(decoded(&left), Ok(left.clone()));
        let refused = |change: fn(&mut Roster)| {
            let mut changed = roster();
            change(&mut changed);
            decoded(&changed).unwrap_err().0
        };
        assert_eq!(refused(|roster| roster.members.swap(0, 1)), "its roster's identities do not ascend");
        assert_eq!(refused(|roster| roster.members[1].id.0 = 0), "its roster's identities do not ascend");
        assert_eq!(refused(|roster| roster.unused = 4), "its roster's identities do not ascend");
        assert_eq!(refused(|roster| drop(roster.members.drain(..3))), "its roster has no workers");
        let unknown = refused(|roster| roster.members[1].host = None);
        assert_eq!(unknown, "its roster has a worker of unknown host or incarnation");
    }
}
