//! Which ranks live, which have left, and the hub's messages: the decisions of a control thread, without connections or
//! a clock.
//!
//! A [`Watch`] is given events, with the time, and leaves [`Effect`]s. The control thread carries them out over its
//! connections and on its engine; so does the world of the tests, in virtual time.

mod changes;
mod effect;
mod leaving;

pub use effect::{Effect, GroupEvent, ShrinkAnswer};

use super::{
    Cause,
    control::{Death, Message},
    fence::Directed,
    hub::Hub,
    membership::{MemberId, Roster},
    survivors::Shrink,
};
use crate::group::Rank;
use alloc::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    format,
    string::String,
    sync::Arc,
    vec::Vec,
};
use core::{fmt, mem, time::Duration};

/// How often time is looked at.
pub const TICK: Duration = Duration::from_millis(100);
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A pause between two looks at time that is worth a warning: this process did not run.
const STOOD_STILL: Duration = Duration::from_secs(2);
/// How long rank 0 may take to hear a rank's goodbye.
const PARTING: Duration = Duration::from_secs(1);
/// How long a broken link between workers may be the first sign of a death.
const BROKEN_FOR: Duration = Duration::from_millis(500);

/// A rank with which there is a control connection.
#[derive(Debug)]
struct Peer {
    heard: Duration,
    suspected: bool,
}

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// In order.
    Left,
    /// Its process is gone for certain.
    Died,
    /// It might be alive beyond a broken network.
    Silent,
}

/// How long a process waits for other ranks.
#[derive(Clone, Copy, Debug)]
pub struct RankPatience {
    /// After this silence a rank is dead, and after half of it suspected, in a warning.
    pub silence: Duration,
    /// How long rank 0 stays for the others when it leaves.
    pub linger: Duration,
}

impl RankPatience {
    /// What is worth a warning.
    fn half(self) -> Duration {
        self.silence / 2
    }
}

/// A process that leaves.
#[derive(Debug)]
struct Leaving {
    since: Duration,
    /// Whether a line has said that rank 0 waits for others to leave.
    warned: bool,
}

/// One process's view of the others. Times are since any start that is the same for all calls.
#[derive(Debug)]
pub struct Watch {
    me: Rank,
    roster: Arc<Roster>,
    /// On rank 0.
    hub: Option<Hub>,
    /// All others on rank 0, rank 0 elsewhere; those that are there.
    peers: BTreeMap<Rank, Peer>,
    gone: BTreeMap<Rank, PeerEnd>,
    /// The groups of which this rank waits to go on with those that are left.
    shrinking: BTreeSet<u32>,
    /// Links between workers that broke, why if this end knows it, and since when.
    broken: Vec<(MemberId, Option<Cause>, Duration)>,
    beat: Duration,
    /// When time was last looked at.
    ticked: Duration,
    leaving: Option<Leaving>,
    patience: RankPatience,
    effects: VecDeque<Effect>,
}

impl Watch {
    /// The watch of rank `me`, with its control connections.
    pub fn new(
        me: Rank,
        roster: Arc<Roster>,
        peers: impl IntoIterator<Item = Rank>,
        patience: RankPatience,
        now: Duration,
    ) -> Self {
        let peer = |rank| (rank, Peer { heard: now, suspected: false });
        Self {
            me,
            hub: (me == 0).then(|| Hub::new(roster.clone(), now)),
            roster,
            peers: peers.into_iter().map(peer).collect(),
            gone: BTreeMap::new(),
            shrinking: BTreeSet::new(),
            broken: Vec::new(),
            beat: now,
            ticked: now,
            leaving: None,
            patience,
            effects: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The hub, on rank 0.
    pub fn hub(&self) -> Option<&Hub> {
        self.hub.as_ref()
    }

    /// The ranks that are gone, and how.
    pub fn gone(&self) -> impl Iterator<Item = (Rank, PeerEnd)> {
        self.gone.iter().map(|(rank, gone)| (*rank, *gone))
    }

    fn groups(&mut self, event: GroupEvent) {
        self.effects.push_back(Effect::Groups(event));
    }

    fn log(&mut self, warns: bool, peer: Option<Rank>, line: String) {
        self.effects.push_back(Effect::Log { warns, peer, line });
    }

    fn send(&mut self, to: Rank, message: Message) {
        if self.peers.contains_key(&to) {
            self.effects.push_back(Effect::Send(Directed { to, message }));
        }
    }

    fn worker(&self, rank: Rank) -> Option<MemberId> {
        self.roster.worker(rank).map(|worker| worker.id)
    }

    fn is_gone(&self, worker: MemberId) -> bool {
        self.roster.rank_of(worker).is_some_and(|rank| self.gone.contains_key(&rank))
    }

    /// Something has come from a rank.
    pub fn heard(&mut self, rank: Rank, now: Duration) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            (peer.heard, peer.suspected) = (now, false);
        }
    }

    /// A rank's message.
    pub fn message(&mut self, from: Rank, message: Message) {
        match message {
            Message::Heartbeat => {}
            Message::Bye => {
                self.disconnect(from);
                self.left(from);
                self.lose_hub(from);
            }
            Message::Dead { rank, .. } | Message::Leave { rank } if self.worker(rank).is_none() => {
                let world = self.roster.world();
                self.broke_protocol(
                    from,
                    format_args!("it reported the end of rank {rank} in a job of {world} ranks"),
                );
            }
            Message::Dead { rank, .. } if rank == self.me => {
                self.disconnect(from);
                self.died(from, Death::GaveUp);
            }
            Message::Dead { rank, death } => self.died(rank, death),
            Message::Leave { rank } => self.left(rank),
            message if from == 0 && self.hub.is_none() => self.receive_from_hub(message),
            message if message.is_the_hubs() => {
                self.broke_protocol(from, "it sent a decision, which only rank 0 makes");
            }
            message => self.at_hub(from, message),
        }
    }

    /// A message for the hub: dealt with here if this is it, else sent there.
    pub fn tell_hub(&mut self, message: Message) {
        if let Message::Shrink(Shrink { group, .. }) | Message::Unshrink { group } = message
            && !self.shrinks(group)
        {
            return;
        }
        if self.hub.is_some() {
            self.at_hub(self.me, message);
        } else {
            self.send(0, message);
        }
    }

    fn at_hub(&mut self, from: Rank, message: Message) {
        if let Some(hub) = &mut self.hub {
            let directed = hub.receive(from, message);
            self.direct(directed);
        }
    }

    fn direct(&mut self, messages: Vec<Directed>) {
        for Directed { to, message } in messages {
            if to == self.me { self.receive_from_hub(message) } else { self.send(to, message) }
        }
    }

    fn receive_from_hub(&mut self, message: Message) {
        match message {
            Message::Shrunk(shrunk) => self.shrunk(shrunk),
            Message::Members(roster) => self.members(roster),
            message if message.group().is_some() => self.groups(GroupEvent::FromHub(message)),
            _ => {}
        }
    }

    fn disconnect(&mut self, rank: Rank) {
        if self.peers.remove(&rank).is_some() {
            self.effects.push_back(Effect::Disconnect(rank));
        }
    }

    /// A rank's connection is broken.
    pub fn unreachable(&mut self, rank: Rank) {
        if self.peers.contains_key(&rank) {
            self.disconnect(rank);
            self.died(rank, Death::Unreachable);
            self.lose_hub(rank);
        }
    }

    /// The connection with rank 0 is over, which had left as a rank and decided on: nobody decides any more.
    fn lose_hub(&mut self, rank: Rank) {
        if rank == 0 && self.gone.get(&0) == Some(&PeerEnd::Left) && self.leaving.is_none() {
            self.shrink_without_hub();
            self.groups(GroupEvent::NoHub);
        }
    }

    /// Nothing comes through to a rank any more. It might be alive.
    pub fn cut_off(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get(&rank) {
            let milliseconds = self.ticked.saturating_sub(peer.heard).as_millis() as u64;
            self.disconnect(rank);
            self.died(rank, Death::Silent { milliseconds });
            self.lose_hub(rank);
        }
    }

    /// A rank's message is none that it can send: its connection is of no use any more. No other rank is harmed.
    fn broke_protocol(&mut self, from: Rank, how: impl fmt::Display) {
        let advice = "run one release on all ranks, and if they do, report it as a bug";
        self.log(true, Some(from), format!("rank {from} broke the protocol: {how}; {advice}"));
        self.disconnect(from);
        self.died(from, Death::Protocol);
    }

    /// A rank has died, as far as anybody knows: everybody hears of it, once. By rank 0 even while it leaves: it stays to tell.
    fn died(&mut self, rank: Rank, death: Death) {
        self.lost(rank, death, if death.is_certain() { PeerEnd::Died } else { PeerEnd::Silent });
    }

    fn lost(&mut self, rank: Rank, death: Death, how: PeerEnd) {
        if death == Death::Exited
            && let Some(gone) = self.gone.get_mut(&rank)
        {
            *gone = PeerEnd::Died;
        }
        let leaves = self.leaving.is_some() && self.hub.is_none();
        if self.gone.contains_key(&rank) || rank == self.me || leaves {
            return;
        }
        let Some(worker) = self.worker(rank) else { return };
        self.gone.insert(rank, how);
        if how == PeerEnd::Silent {
            // If it lives, it is not to take the end of its connection for this rank's death.
            self.send(rank, Message::Dead { rank, death });
        }
        self.disconnect(rank);
        self.log(true, Some(rank), format!("rank {rank} is lost: {death}"));
        self.spread(rank, &Message::Dead { rank, death });
        let hub_is_gone = rank == 0 || self.is_alone();
        if hub_is_gone {
            self.shrink_without_hub();
        }
        self.groups(GroupEvent::PeerDied { worker, death, hub_is_gone });
        if let Some(hub) = &mut self.hub {
            let directed = hub.lose(rank, &death);
            self.direct(directed);
        }
    }

    /// Whether rank 0 is gone: nobody can say any more which ranks live.
    fn is_alone(&self) -> bool {
        self.hub.is_none() && self.peers.is_empty()
    }

    /// A rank has left in order.
    fn left(&mut self, rank: Rank) {
        if self.gone.contains_key(&rank) || rank == self.me {
            return;
        }
        let Some(worker) = self.worker(rank) else { return };
        self.gone.insert(rank, PeerEnd::Left);
        self.spread(rank, &Message::Leave { rank });
        self.groups(GroupEvent::PeerLeft(worker));
        if let Some(hub) = &mut self.hub {
            let directed = hub.leave(rank);
            self.direct(directed);
        }
    }

    /// The hub tells all others; any other rank tells the hub.
    fn spread(&mut self, about: Rank, message: &Message) {
        let others: Vec<Rank> = self.peers.keys().copied().filter(|rank| *rank != about).collect();
        others.into_iter().for_each(|to| self.send(to, message.clone()));
    }

    /// The process of a local rank has ended; `said_goodbye` if it left word of that in its memory.
    pub fn ended(&mut self, rank: Rank, said_goodbye: bool) {
        if said_goodbye { self.left(rank) } else { self.died(rank, Death::Exited) }
    }

    /// The engine needs a link to this member.
    pub fn wants_link(&mut self, endpoint: MemberId) {
        // The lower of two ranks calls; workers call reducers.
        if self.roster.is_reducer(endpoint) || Some(endpoint) > self.worker(self.me) {
            self.effects.push_back(Effect::Connect(endpoint));
        }
    }

    /// A link broke. If this end knows more of it than the other, `cause` makes a cause of the ranks at the other end and at this one.
    pub fn link_broke(
        &mut self,
        endpoint: MemberId,
        cause: impl FnOnce(Rank, Rank) -> Option<Cause>,
        reason: impl fmt::Display,
        now: Duration,
    ) {
        if self.roster.member(endpoint).is_none() || self.is_gone(endpoint) {
            return;
        }
        if self.leaving.is_none() {
            let name = self.roster.name(endpoint);
            self.log(false, self.roster.rank_of(endpoint), format!("lost the link to {name}: {reason}"));
        }
        if let Some(from) = self.roster.rank_of(endpoint) {
            self.broken.push((endpoint, cause(from, self.me), now));
        }
    }

    /// Time has passed. Called about ten times a second.
    pub fn tick(&mut self, now: Duration) {
        let late = now.saturating_sub(mem::replace(&mut self.ticked, now)).saturating_sub(TICK);
        self.extend_deadlines(late, now);
        self.look_at_links(now);
        if now.saturating_sub(self.beat) >= HEARTBEAT {
            self.beat = now;
            self.spread(self.me, &Message::Heartbeat);
        }
        self.check_silence(now);
        if let Some(hub) = self.hub.as_mut().filter(|_| self.leaving.is_none()) {
            self.effects.extend(hub.due(now).into_iter().map(Effect::Probe));
        }
    }

    /// Groups fail over links between workers that have been broken for a while: the ranks at their ends live, or this would be known.
    /// The end that has seen damage knows the reason. The other one only sees that its connection was closed.
    fn look_at_links(&mut self, now: Duration) {
        let is_due = |since: Duration| now.saturating_sub(since) >= BROKEN_FOR;
        let due: Vec<(MemberId, Option<Cause>, Duration)> =
            self.broken.extract_if(.., |(_, cause, since)| cause.is_some() || is_due(*since)).collect();
        for (endpoint, cause, _) in due {
            let Some(rank) = self.roster.rank_of(endpoint).filter(|rank| !self.gone.contains_key(rank))
            else {
                continue;
            };
            if self.is_alone() {
                // A link alone does not say whether the other end lives.
                self.lost(rank, Death::Unreachable, PeerEnd::Silent);
                continue;
            }
            let cause = cause.unwrap_or(Cause::LinkLost { from: rank, to: self.me });
            self.groups(GroupEvent::LinkBroke { endpoint, cause });
        }
    }

    /// This process looks at the time late: it, or the whole machine, had no processor for a while. What others said meanwhile
    /// may be on its way yet, and they may have had none either. So only time in which this process ran counts as silence.
    fn extend_deadlines(&mut self, late: Duration, now: Duration) {
        if late >= STOOD_STILL {
            let seconds = late.as_secs();
            let risk = "other ranks might have declared it dead meanwhile";
            self.log(
                true,
                None,
                format!("this process stood still for {seconds} s (stopped, or without a processor): {risk}"),
            );
        }
        for peer in self.peers.values_mut() {
            peer.heard = now.min(peer.heard + late);
        }
    }

    fn check_silence(&mut self, now: Duration) {
        let (mut dead, mut suspected) = (Vec::new(), Vec::new());
        for (rank, peer) in &mut self.peers {
            let silence = now.saturating_sub(peer.heard);
            if silence >= self.patience.silence {
                dead.push((*rank, silence.as_millis() as u64));
            } else if silence >= self.patience.half() && !peer.suspected {
                peer.suspected = true;
                suspected.push((*rank, silence.as_secs()));
            }
        }
        for (rank, seconds) in suspected {
            self.log(true, Some(rank), format!("rank {rank} has been silent for {seconds} s"));
        }
        for (rank, milliseconds) in dead {
            self.died(rank, Death::Silent { milliseconds });
            // Rank 0 may have left as a rank before, and have decided on until it hung.
            self.disconnect(rank);
            self.lose_hub(rank);
        }
    }
}
