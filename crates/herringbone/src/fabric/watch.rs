//! Which ranks live, which have left, and what the hub says: what a control thread decides, without connections or a clock.
//!
//! A [`Watch`] is told what happened, with the time, and leaves [`Instruction`]s. The control thread carries them out over its
//! connections and on its engine; so does the world of the tests, in virtual time.

mod changes;
mod leaving;

use super::{
    center::Center,
    instruction::{Deed, Instruction},
};
use crate::{
    clock::Moment,
    core::{
        group::Rank,
        session::{
            Cause,
            control::{Death, Message},
            fence::Directed,
            membership::{MemberId, Roster},
        },
    },
    engine::outbox::Event,
    transport::Broken,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

/// How often time is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(100);
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
    heard: Moment,
    suspected: bool,
}

/// How a rank went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone {
    /// In order.
    Left,
    /// Its process is gone for certain.
    Died,
    /// It may live beyond a broken network.
    Silent,
}

/// How long a process waits for other ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankPatience {
    /// After this silence a rank is dead, and after half of it suspected, in a warning.
    pub(crate) silence: Duration,
    /// How long rank 0 stays for the others when it leaves.
    pub(crate) linger: Duration,
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
    since: Moment,
    /// Whether it was said that rank 0 waits for others to leave.
    warned: bool,
}

/// One process's view of the others.
#[derive(Debug)]
pub(crate) struct Watch {
    me: Rank,
    roster: Arc<Roster>,
    /// On rank 0.
    hub: Option<Center>,
    /// All others on rank 0, rank 0 elsewhere; those that are there.
    peers: BTreeMap<Rank, Peer>,
    gone: BTreeMap<Rank, Gone>,
    /// The groups of which this rank waits to go on with those that are left.
    shrinking: BTreeSet<u32>,
    /// Links between workers that broke, why, and when.
    broken: Vec<(MemberId, Broken, Moment)>,
    beat: Moment,
    /// When time was last looked at.
    ticked: Moment,
    leaving: Option<Leaving>,
    patience: RankPatience,
    orders: VecDeque<Instruction>,
}

impl Watch {
    /// The watch of rank `me`, with its control connections.
    pub(crate) fn new(
        me: Rank,
        roster: Arc<Roster>,
        peers: impl IntoIterator<Item = Rank>,
        patience: RankPatience,
        now: Moment,
    ) -> Self {
        let peer = |rank| (rank, Peer { heard: now, suspected: false });
        Self {
            me,
            hub: (me == 0).then(|| Center::new(&roster, now)),
            roster,
            peers: peers.into_iter().map(peer).collect(),
            gone: BTreeMap::new(),
            shrinking: BTreeSet::new(),
            broken: Vec::new(),
            beat: now,
            ticked: now,
            leaving: None,
            patience,
            orders: VecDeque::new(),
        }
    }

    /// The next thing to do.
    pub(crate) fn next_order(&mut self) -> Option<Instruction> {
        self.orders.pop_front()
    }

    fn order(&mut self, deed: Deed) {
        self.orders.push_back(Instruction::Do(deed));
    }

    fn say(&mut self, to: Rank, message: Message) {
        if self.peers.contains_key(&to) {
            self.orders.push_back(Instruction::Say { to, message });
        }
    }

    fn name(&self) -> String {
        format!("rank {}", self.me)
    }

    fn worker(&self, rank: Rank) -> Option<MemberId> {
        self.roster.worker(rank).map(|worker| worker.id)
    }

    fn is_gone(&self, worker: MemberId) -> bool {
        self.roster.rank_of(worker).is_some_and(|rank| self.gone.contains_key(&rank))
    }

    /// Something has come from a rank.
    pub(crate) fn heard(&mut self, rank: Rank, now: Moment) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            (peer.heard, peer.suspected) = (now, false);
        }
    }

    /// A rank's message.
    pub(crate) fn message(&mut self, from: Rank, message: Message) {
        #[cfg(any(test, feature = "simulator"))]
        crate::seen::control(self.role(), &message);
        match message {
            Message::Heartbeat => {}
            Message::Bye => {
                self.part(from);
                self.left(from);
                self.lose_hub(from);
            }
            Message::Dead { rank, .. } | Message::Leave { rank } if self.worker(rank).is_none() => {
                let world = self.roster.world();
                let told = format_args!("it told of the end of rank {rank}, and the job has {world} ranks");
                self.broke_protocol(from, told);
            }
            Message::Dead { rank, .. } if rank == self.me => {
                self.part(from);
                self.died(from, Death::GaveUp);
            }
            Message::Dead { rank, death } => self.died(rank, death),
            Message::Leave { rank } => self.left(rank),
            message if from == 0 && self.hub.is_none() => match message {
                Message::Members(roster) => self.told_roster(roster),
                message => self.hub_says(message),
            },
            message if message.is_the_hubs() => self.broke_protocol(from, "it decided as only rank 0 does"),
            message => self.at_hub(from, message),
        }
    }

    #[cfg(any(test, feature = "simulator"))]
    fn role(&self) -> &'static str {
        match (self.hub.is_some(), self.leaves()) {
            (true, false) => "rank 0",
            (false, false) => "rank",
            (true, true) => "rank 0 leaves",
            (false, true) => "rank leaves",
        }
    }

    /// A message for the hub: dealt with here if this is it, else sent there.
    pub(crate) fn tell_hub(&mut self, message: Message) {
        if self.hub.is_some() {
            self.at_hub(self.me, message);
        } else {
            self.say(0, message);
        }
    }

    fn at_hub(&mut self, from: Rank, message: Message) {
        if let Some(hub) = &mut self.hub {
            let roster = hub.without_accused(&message, (&self.roster, self.ticked));
            let directed = hub.receive(from, message);
            self.direct(directed);
            roster.into_iter().for_each(|roster| self.renew(roster));
        }
    }

    fn direct(&mut self, messages: Vec<Directed>) {
        for Directed { to, message } in messages {
            if to == self.me { self.hub_says(message) } else { self.say(to, message) }
        }
    }

    fn hub_says(&mut self, message: Message) {
        let group = match &message {
            Message::Fence { group, .. } => *group,
            Message::Decide(decision) => decision.group,
            Message::Recover { group } => *group,
            Message::Resume(resume) => resume.group,
            Message::Waiting(waiting) => waiting.group,
            Message::Late(late) => late.group,
            Message::Confirm(question) => question.group,
            Message::Confirmed(told) => told.group,
            Message::Forget { group } => return self.order(Deed::LeftByAll(*group)),
            Message::Shrunk(shrunk) => return self.shrunk(shrunk.clone()),
            _ => return,
        };
        self.order(Deed::Tell { group, message });
    }

    fn part(&mut self, rank: Rank) {
        if self.peers.remove(&rank).is_some() {
            self.orders.push_back(Instruction::Part(rank));
        }
    }

    /// A rank's connection is broken.
    pub(crate) fn unreachable(&mut self, rank: Rank) {
        if self.peers.contains_key(&rank) {
            self.part(rank);
            self.died(rank, Death::Unreachable);
            self.lose_hub(rank);
        }
    }

    /// The connection with rank 0 is over, which had left as a rank and decided on: nobody decides any more.
    fn lose_hub(&mut self, rank: Rank) {
        if rank == 0 && self.gone.get(&0) == Some(&Gone::Left) && self.leaving.is_none() {
            self.shrink_without_hub();
            self.order(Deed::WithoutHub);
        }
    }

    /// Nothing comes through to a rank any more. It may live.
    pub(crate) fn cut_off(&mut self, rank: Rank) {
        if let Some(peer) = self.peers.get(&rank) {
            let milliseconds = self.ticked.since(peer.heard).as_millis() as u64;
            self.part(rank);
            self.died(rank, Death::Silent { milliseconds });
            self.lose_hub(rank);
        }
    }

    /// A rank's message is none that it can send: its connection is of no use any more. No other rank is harmed.
    fn broke_protocol(&mut self, from: Rank, how: impl fmt::Display) {
        let what = format_args!("rank {from} broke the protocol: {how}; run the same release on all ranks");
        crate::log::warn(&self.name(), what);
        self.part(from);
        self.died(from, Death::Protocol);
    }

    /// A rank has died, as far as anybody knows: everybody is told, once. By rank 0 also while it leaves: it stays to tell.
    fn died(&mut self, rank: Rank, death: Death) {
        self.lost(rank, death, if death.is_certain() { Gone::Died } else { Gone::Silent });
    }

    fn lost(&mut self, rank: Rank, death: Death, how: Gone) {
        if death == Death::Exited
            && let Some(gone) = self.gone.get_mut(&rank)
        {
            *gone = Gone::Died;
        }
        let leaves = self.leaving.is_some() && self.hub.is_none();
        if self.gone.contains_key(&rank) || rank == self.me || leaves {
            return;
        }
        let Some(worker) = self.worker(rank) else { return };
        self.gone.insert(rank, how);
        if how == Gone::Silent {
            // If it lives, it is not to take the end of its connection for this rank's death.
            self.say(rank, Message::Dead { rank, death });
        }
        self.part(rank);
        crate::log::info(&self.name(), format_args!("rank {rank} is lost: {death}"));
        self.spread(rank, &Message::Dead { rank, death });
        let hub_is_gone = rank == 0 || self.is_alone();
        if hub_is_gone {
            self.shrink_without_hub();
        }
        self.order(Deed::Lose { worker, death, hub_is_gone });
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
        self.gone.insert(rank, Gone::Left);
        self.spread(rank, &Message::Leave { rank });
        self.order(Deed::Leave(worker));
        if let Some(hub) = &mut self.hub {
            let directed = hub.leave(rank);
            self.direct(directed);
        }
    }

    /// The hub tells all others; any other rank tells the hub.
    fn spread(&mut self, about: Rank, message: &Message) {
        let others: Vec<Rank> = self.peers.keys().copied().filter(|rank| *rank != about).collect();
        others.into_iter().for_each(|to| self.say(to, message.clone()));
    }

    /// The process of a local rank has ended; `said_goodbye` if it left word of that in its memory.
    pub(crate) fn ended(&mut self, rank: Rank, said_goodbye: bool) {
        if said_goodbye { self.left(rank) } else { self.died(rank, Death::Exited) }
    }

    /// The engine asks for something.
    pub(crate) fn event(&mut self, event: Event, now: Moment) {
        match event {
            // The lower of two ranks calls; workers call reducers.
            Event::Want(endpoint)
                if self.roster.is_reducer(endpoint) || Some(endpoint) > self.worker(self.me) =>
            {
                self.orders.push_back(Instruction::Link(endpoint));
            }
            Event::Want(_) => {}
            Event::Broken { endpoint, reason } => self.link_broke(endpoint, &reason, now),
            Event::ToHub(message) => self.tell_hub(message),
        }
    }

    fn link_broke(&mut self, endpoint: MemberId, reason: &Broken, now: Moment) {
        if self.roster.member(endpoint).is_none() {
            return;
        }
        if !self.is_gone(endpoint) && self.leaving.is_none() {
            let name = self.roster.name(endpoint);
            crate::log::info(&self.name(), format_args!("lost the link to {name}: {reason}"));
        }
        if !self.roster.is_reducer(endpoint) && !self.is_gone(endpoint) {
            self.broken.push((endpoint, reason.clone(), now));
        }
    }

    /// A link could not be made.
    pub(crate) fn no_link(&mut self, endpoint: MemberId, problem: String, now: Moment) {
        let name = self.roster.name(endpoint);
        crate::log::warn(&self.name(), format_args!("no link to {name}: {problem}"));
        self.order(Deed::NoLink { endpoint, problem: problem.clone() });
        if !self.roster.is_reducer(endpoint) {
            self.broken.push((endpoint, Broken::Io(problem), now));
        }
    }

    /// Time has passed. Called about ten times a second.
    pub(crate) fn tick(&mut self, now: Moment) {
        let late = now.since(std::mem::replace(&mut self.ticked, now)).saturating_sub(TICK);
        self.excuse(late, now);
        // The end that has seen the damage knows the reason. The other one only sees that its connection was closed.
        let patience = |reason: &Broken| match reason {
            Broken::Corrupt | Broken::Coded { .. } => Duration::ZERO,
            _ => BROKEN_FOR,
        };
        let late = self.broken.extract_if(.., |(_, reason, since)| now.since(*since) >= patience(reason));
        let late: Vec<(MemberId, Broken)> = late.map(|(endpoint, reason, _)| (endpoint, reason)).collect();
        for (endpoint, reason) in late {
            let Some(rank) = self.roster.rank_of(endpoint).filter(|rank| !self.gone.contains_key(rank))
            else {
                continue;
            };
            if self.is_alone() {
                // A link alone does not say whether the other end lives.
                self.lost(rank, Death::Unreachable, Gone::Silent);
                continue;
            }
            let (from, to) = (rank, self.me);
            let cause = match reason {
                Broken::Corrupt => Cause::Corrupt { from, to },
                Broken::Coded { codec, problem } => {
                    Cause::Protocol { from, to, problem: format!("{problem} ({codec})") }
                }
                _ => Cause::LinkLost { from, to },
            };
            self.order(Deed::DisputeAllWith { endpoint, cause });
        }
        if now.since(self.beat) >= HEARTBEAT {
            self.beat = now;
            self.orders.push_back(Instruction::Beat);
        }
        self.listen_for_silence(now);
        if let Some(hub) = self.hub.as_mut().filter(|_| self.leaving.is_none()) {
            self.orders.extend(hub.due(now).into_iter().map(Instruction::Greet));
        }
    }

    /// This process looks at the time late: it, or the whole machine, had no processor for a while. What others said meanwhile
    /// may be on its way yet, and they may have had none either. So only time in which this process ran counts as silence.
    fn excuse(&mut self, late: Duration, now: Moment) {
        if late >= STOOD_STILL {
            let seconds = late.as_secs();
            let what = format_args!("this process stood still for {seconds} s: others may have given it up");
            crate::log::warn(&self.name(), what);
        }
        for peer in self.peers.values_mut() {
            peer.heard = now.min(peer.heard + late);
        }
    }

    fn listen_for_silence(&mut self, now: Moment) {
        let (mut dead, name) = (Vec::new(), self.name());
        for (rank, peer) in &mut self.peers {
            let silence = now.since(peer.heard);
            if silence >= self.patience.silence {
                dead.push((*rank, silence.as_millis() as u64));
            } else if silence >= self.patience.half() && !peer.suspected {
                peer.suspected = true;
                let seconds = silence.as_secs();
                crate::log::warn(&name, format_args!("rank {rank} has been silent for {seconds} s"));
            }
        }
        dead.into_iter().for_each(|(rank, milliseconds)| self.died(rank, Death::Silent { milliseconds }));
    }
}
