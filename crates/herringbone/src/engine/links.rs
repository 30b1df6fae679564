//! The links of an engine: made, served, broken.

use super::{
    group::Group,
    outbox::{Deferred, Event, Interest, Outbox},
};
use crate::{
    Error, ErrorKind,
    clock::Moment,
    core::{
        group::{Group as FoldGroup, Rank},
        session::{
            Basis, Cause,
            control::{Dispute, Introduction, Message, PlanInfo},
            group_state::ReducerUse,
            membership::MemberId,
            recovery::{Grow, LostReducer, Suspect},
        },
        wire::{Header, Kind},
    },
    execute::issue::PlanKey,
    sys::doorbell,
    transport::{
        Broken,
        endpoint::{Endpoints, Introduced, Link, send_control},
        layout,
        shm::Board,
        tcp::Memory,
    },
};
use std::{collections::BTreeSet, fmt, sync::atomic::Ordering, time::Duration};

/// Of how many lost ranks an error says where they were.
const NAMED: usize = 4;
/// Why a reducer that ends in order is not used any more.
pub(super) const DRAINS: &str = "it was told to end";
/// How much silence one look adds at most: this process may have stood still as well.
const STOOD_STILL: Duration = Duration::from_millis(200);

/// The other processes, and the links to them.
#[derive(Debug)]
pub(crate) struct Links {
    pub(super) me: MemberId,
    /// My rank in the job, as errors and causes name it. A reducer has none, and nothing that it says names one.
    pub(super) rank: Rank,
    pub(crate) endpoints: Endpoints,
    /// The endpoints to which there is a link, ascending.
    pub(super) linked: Vec<MemberId>,
    /// How many of the links are sockets.
    pub(crate) sockets: usize,
    /// Counts changes of links, so that programs are compiled for the links there are.
    pub(super) changes: u64,
    /// What is written once for all local ranks.
    pub(super) board: Board,
    /// Where the job's hub listens, as far as a reducer was told.
    pub(crate) hub: Option<String>,
    /// What the job is called, as far as a reducer was told.
    pub(crate) job: Option<String>,
    /// The endpoints that have left, in the order in which they did.
    pub(super) left: Vec<MemberId>,
    /// When reducers' silence was last looked at, while it counts.
    looked: Option<Moment>,
}

impl Links {
    pub(super) fn new(me: MemberId, endpoints: Endpoints) -> Self {
        Self {
            me,
            rank: endpoints[me].rank.unwrap_or_default(),
            endpoints,
            linked: Vec::new(),
            sockets: 0,
            changes: 0,
            board: Board::default(),
            hub: None,
            job: None,
            left: Vec::new(),
            looked: None,
        }
    }

    /// The ranks of those members that are workers.
    pub(super) fn ranks(&self, members: &[MemberId]) -> Vec<Rank> {
        members.iter().filter_map(|id| self.endpoints.get(*id)?.rank).collect()
    }

    /// That ranks are lost, and where the processes of the first few listened: so a person finds their hosts and logs.
    pub(super) fn lost(&self, ranks: &[Rank], reason: impl fmt::Display) -> Error {
        let place = |rank: &Rank| {
            let address = self.endpoints.worker(*rank)?.address.as_deref()?;
            Some(format!("rank {rank} was the process at {address}"))
        };
        let places: Vec<String> = ranks.iter().take(NAMED).filter_map(place).collect();
        let more = if ranks.len() > NAMED { ", ..." } else { "" };
        let places =
            if places.is_empty() { String::new() } else { format!(" ({}{more})", places.join(", ")) };
        Error::new(ErrorKind::PeerLost { ranks: ranks.to_vec(), reason: format!("{reason}{places}") })
    }

    /// Hands to links what is queued for them: a little to each in turn, and not all ranks to the same one first, so that
    /// no link is flooded while others are idle.
    pub(super) fn flush(&mut self, memory: &mut impl Memory, out: &mut Outbox) -> bool {
        let (mut moved, mut unannounced) = (false, false);
        let links = self.linked.len();
        for at in 0..links {
            let Some(&index) = self.linked.get((at + self.me.index()) % links) else { continue };
            match &mut self.endpoints[index].link {
                Link::Shm(link) => {
                    moved |= link.flush();
                    unannounced |= link.is_unannounced();
                }
                Link::Tcp(link) if link.has_room && !link.is_flushed() => {
                    moved |= self.flush_socket(index, memory, out);
                }
                _ => {}
            }
        }
        if unannounced {
            self.announce();
        }
        moved
    }

    /// Wakes local ranks that sleep and were sent something: one fence for all of them.
    fn announce(&mut self) {
        doorbell::published();
        for index in &self.linked {
            if let Link::Shm(link) = &mut self.endpoints[*index].link {
                link.announce();
            }
        }
    }

    /// Whether there are links through memory.
    pub(super) fn are_local(&self) -> bool {
        self.linked.len() > self.sockets
    }

    /// Whether a link has not taken all that is queued for it.
    pub(super) fn has_unsent(&self) -> bool {
        self.linked.iter().any(|index| match &self.endpoints[*index].link {
            Link::Tcp(link) => !link.is_flushed(),
            Link::Shm(link) => !link.is_flushed(),
            _ => false,
        })
    }

    /// Writes to a socket what it takes. Returns whether anything moved.
    pub(super) fn flush_socket(
        &mut self,
        index: MemberId,
        memory: &mut impl Memory,
        out: &mut Outbox,
    ) -> bool {
        let endpoint = &mut self.endpoints[index];
        let result = endpoint.flush_stream(memory, |token| out.push(Deferred::HandedOver(token)));
        let Link::Tcp(link) = &mut endpoint.link else { return false };
        let had_watch = std::mem::replace(&mut link.watched, !link.has_room);
        if link.watched != had_watch {
            out.interests.push(Interest::Room { endpoint: index, wanted: link.watched });
        }
        result.unwrap_or_else(|reason| {
            out.push(Deferred::Broken { endpoint: index, reason });
            true
        })
    }

    /// Puts a new link in place. If there was one, it is broken already.
    pub(super) fn connect(&mut self, index: MemberId, link: Link, out: &mut Outbox) {
        match &link {
            Link::Tcp(_) => {
                out.interests.push(Interest::New(index));
                self.sockets += 1;
                out.observer.stats.connections += 1;
            }
            Link::Shm(link) => self.board.read_by(link),
            _ => {}
        }
        self.endpoints[index].connect(link);
        self.changes += 1;
        if let Err(at) = self.linked.binary_search(&index) {
            self.linked.insert(at, index);
        }
    }

    /// Drops a link that is of no use any more. Messages that are still queued on it count as sent, and so do later ones.
    /// Returns whether it was not dropped before.
    pub(super) fn drop_link(&mut self, index: MemberId, reason: &Broken, out: &mut Outbox) -> bool {
        let endpoint = &mut self.endpoints[index];
        if endpoint.is_lost() {
            return false;
        }
        if endpoint.is_shared() {
            self.board.close();
        }
        if let Some(mut link) = endpoint.lose(reason.to_string()) {
            self.sockets -= 1;
            link.give_up().into_iter().for_each(|token| out.push(Deferred::HandedOver(token)));
            out.interests.push(Interest::Gone(link));
        }
        self.linked.retain(|at| *at != index);
        self.changes += 1;
        true
    }

    /// Whether all links to these endpoints are up, or are not needed any more. Asks for those that are not. Fails with a
    /// reducer that is lost.
    pub(super) fn are_up(&mut self, partners: &[MemberId], out: &mut Outbox) -> Result<bool, MemberId> {
        let (mut up, mut lost) = (true, None);
        for &index in partners {
            let endpoint = &mut self.endpoints[index];
            match &endpoint.link {
                Link::Lost { .. } if endpoint.is_reducer() => lost = Some(index),
                _ if endpoint.left.is_some() => {}
                Link::Lost { .. } if endpoint.dead => up = false,
                Link::None | Link::Lost { .. } => {
                    endpoint.link = Link::Wanted;
                    out.events.push(Event::Want(index));
                    up = false;
                }
                Link::Wanted => up = false,
                Link::Shm(_) | Link::Tcp(_) => {}
            }
        }
        lost.map_or(Ok(up), Err)
    }

    /// Tells reducers what a group is and uses, before its first message to them, and what a plan is made from, before its
    /// first operation.
    pub(super) fn introduce(&mut self, group: &Group, plan: PlanKey) {
        let Some(planned) = group.planned(plan).filter(|_| !group.reduces()) else { return };
        let (generation, plan) = (group.state.generation(), planned.fingerprint.plan);
        for (position, index) in group.settings.servers().iter().enumerate() {
            let endpoint = &mut self.endpoints[*index];
            let before = endpoint.introduced.remove(&group.settings.id);
            if !endpoint.is_up() {
                continue;
            }
            if before.is_none() {
                let parameters = Box::new(group.settings.parameters.without_files());
                send_control(endpoint, &Message::Parameters { group: group.settings.id, parameters });
            }
            let before = before.filter(|introduced| introduced.generation == generation);
            if before.is_none() {
                send_control(endpoint, &Message::Introduce(introduction(group, position as u32)));
            }
            let mut introduced = before.unwrap_or(Introduced { generation, plans: BTreeSet::new() });
            if introduced.plans.insert(plan) {
                let basis = Basis::clone(&planned.basis);
                let planned = PlanInfo { group: group.settings.id, generation, basis };
                send_control(endpoint, &Message::Planned(planned));
            }
            endpoint.introduced.insert(group.settings.id, introduced);
        }
    }

    /// Tells reducers that nothing more comes of a group.
    pub(super) fn forget(&mut self, group: u32) {
        for endpoint in self.endpoints.iter_mut() {
            if endpoint.introduced.remove(&group).is_some() {
                send_control(endpoint, &Message::Forget { group });
            }
        }
    }

    /// Sends a frame without meaning on every socket that has nothing to carry. One that is full shows no life either, but its
    /// other end has something to read.
    pub(super) fn show_life(&mut self) {
        for index in &self.linked {
            let endpoint = &mut self.endpoints[*index];
            if matches!(&endpoint.link, Link::Tcp(link) if link.is_flushed()) {
                endpoint.notice(Header::new(Kind::Credit, 0, 0, 0));
            }
        }
    }

    /// For how long reducers have been silent since this was last asked, while it counts (`counts`).
    pub(super) fn silent_for(&mut self, now: Moment, counts: bool) -> Duration {
        let before = std::mem::replace(&mut self.looked, counts.then_some(now));
        before.map_or(Duration::ZERO, |before| now.since(before).min(STOOD_STILL))
    }

    /// A reducer is of no use to a group any more: its ranks go on without, if they have not agreed on that before.
    pub(super) fn suspect(&self, group: &Group, index: MemberId, reason: &str, out: &mut Outbox) {
        let uses_it = group.settings.servers().contains(&index);
        if group.state.reducers() == ReducerUse::InUse && uses_it {
            let reason = reason.to_owned();
            let address = self.endpoints[index].name.clone();
            let (group, members) = (group.settings.id, group.settings.ranks.clone());
            let lost = LostReducer { id: index, address, reason };
            out.events.push(Event::ToHub(Message::Suspect(Suspect { group, members, lost })));
        }
    }

    /// Tells the lowest worker of a group that can be reached what went wrong in a generation of it.
    pub(super) fn tell_worker(&mut self, group: &Group, generation: u32, cause: Cause) {
        let Group { settings, .. } = group;
        let is_up = |member: &MemberId| self.endpoints[*member].is_up();
        if let Some(lowest) = settings.members().iter().copied().find(is_up) {
            let (group, members) = (settings.id, settings.ranks.clone());
            let dispute = Dispute { group, generation, members, cause, ordinal: None };
            send_control(&mut self.endpoints[lowest], &Message::Dispute(dispute));
        }
    }

    /// Asks for the reducers that a group could use and does not, if this rank is the one to ask.
    pub(super) fn grow(&self, group: &Group, out: &mut Outbox) {
        let Group { settings, .. } = group;
        let is_whole = group.state.reducers() == ReducerUse::InUse;
        if !is_whole || settings.me != 0 || settings.serves.is_some() {
            return;
        }
        let is_new = |id: &MemberId| {
            let endpoint = &self.endpoints[*id];
            let is_there = !endpoint.is_lost() && !endpoint.drains;
            endpoint.is_reducer() && is_there && !settings.servers().contains(id)
        };
        let reducers: Vec<MemberId> = self.endpoints.ids().filter(is_new).collect();
        if !reducers.is_empty() {
            let grow = Grow { group: settings.id, members: settings.ranks.clone(), reducers };
            out.events.push(Event::ToHub(Message::Grow(grow)));
        }
    }

    /// Why there is no link to an endpoint.
    pub(super) fn why_lost(&self, index: MemberId) -> &str {
        match &self.endpoints[index].link {
            Link::Lost { reason, .. } => reason,
            _ => "it cannot be reached",
        }
    }

    /// The endpoints of a group to which there is no link yet, though one is wanted.
    pub(super) fn wanted<'a>(&'a self, group: &'a Group) -> impl Iterator<Item = MemberId> + 'a {
        let wanted = |index: &MemberId| matches!(self.endpoints[*index].link, Link::Wanted);
        group.settings.ids.iter().copied().filter(wanted)
    }

    /// Whether a local rank has left word in shared memory that it leaves in order: its process may have ended before its
    /// goodbye has come by way of the hub.
    pub(crate) fn has_said_goodbye(&self, index: MemberId) -> bool {
        let segment = match &self.endpoints[index].link {
            Link::Shm(link) => link.segment(),
            Link::Lost { left: Some(segment), .. } => segment,
            _ => return false,
        };
        layout::goodbye(segment).load(Ordering::Acquire) != 0
    }

    /// An endpoint has left in order.
    pub(super) fn leave(&mut self, index: MemberId, now: Moment) {
        if self.endpoints[index].left.replace(now).is_none() {
            self.left.push(index);
        }
    }

    /// The endpoints that have left, in the order in which they did, and since when.
    pub(super) fn left(&self) -> impl Iterator<Item = (MemberId, Moment)> {
        self.left.iter().filter_map(|index| Some((*index, self.endpoints[*index].left?)))
    }

    /// Says on all sockets that nothing more will come.
    pub(crate) fn hang_up(&mut self) {
        for endpoint in self.endpoints.iter() {
            if let Link::Tcp(link) = &endpoint.link {
                link.hang_up();
            }
        }
    }

    /// Whether all sockets have been closed from the other end too.
    pub(crate) fn is_hung_up(&self) -> bool {
        self.endpoints.iter().all(|endpoint| !matches!(endpoint.link, Link::Tcp(_)))
    }
}

/// What the reducer at a position is told of a group.
fn introduction(group: &Group, reducer: u32) -> Introduction {
    let settings = &group.settings;
    Introduction {
        group: settings.id,
        generation: group.state.generation(),
        epoch: settings.epoch,
        members: settings.members().to_vec(),
        reducer,
        reducers: settings.reducers(),
        hosts: settings.hosts.clone(),
        fold: FoldGroup::clone(&settings.sums.fold),
        parameters: settings.parameters.digest(),
    }
}
