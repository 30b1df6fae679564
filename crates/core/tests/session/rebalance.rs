//! Members agree from which operation on plans take ports for something else: whatever the order of messages, however far some are
//! ahead, and whoever leaves, dies or loses a reducer meanwhile.

use crate::{a_roster, call, random::Rng};
use herringbone_core::{
    session::{
        control::{Death, Message},
        fence::{Directed, Member, NotIssued},
        group_state::{GroupState, Output, Outputs},
        hub::Hub,
        membership::MemberId,
        rebalance::{LEAD, LinkUse, PortOutcome, PortPledge, PortProposal, PortReport},
        recovery::{LostReducer, Suspect, successor_of},
    },
    topology::{Port, Ports},
    wire::{Fingerprint, digest},
};
use proptest::{collection::vec, option, prelude::*};
use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

const GROUP: u32 = 7;
const RANKS: u32 = 4;
const REDUCER: &str = "10.0.0.9:7070";
/// Bytes that each connection carries between two reports.
const BYTES: u64 = 10_000_000;

/// Messages of rebalancing.
pub(crate) fn any_rebalance() -> impl Strategy<Value = Message> {
    let link = any::<(u32, u64, u64)>().prop_map(|(peer, bytes, microseconds)| LinkUse {
        peer: MemberId::new(peer),
        bytes,
        microseconds,
    });
    let rate = || (0..u64::from(u32::MAX)).prop_map(|rate| rate * 1000);
    let port = (rate(), rate()).prop_map(|(out, into)| Port { out, into });
    prop_oneof![
        (any::<u32>(), any::<u64>(), vec(link, 0..5)).prop_map(|(group, microseconds, links)| {
            Message::PortReport(PortReport { group, microseconds, links })
        }),
        (any::<(u32, u32)>(), vec(port, 1..6)).prop_map(|((group, change), ports)| {
            Message::PortProposal(PortProposal { group, change, ports: Ports::new(ports, 0).unwrap() })
        }),
        any::<(u32, u32, u64)>().prop_map(|(group, change, bound)| Message::PortPledge(PortPledge {
            group,
            change,
            bound
        })),
        (any::<(u32, u32)>(), option::of(any::<u64>()))
            .prop_map(|((group, change), from)| Message::PortOutcome(PortOutcome { group, change, from })),
    ]
}

/// What a state wants done.
#[derive(Default)]
struct Collected(Vec<Message>);

impl Outputs for Collected {
    fn put(&mut self, _group: u32, output: Output) {
        if let Output::Tell(message) = output {
            self.0.push(message);
        }
    }
}

/// One member: its groups, the first of which others follow, and what plans take ports for in each of them.
struct Rank {
    groups: Vec<(u32, GroupState)>,
    ports: BTreeMap<u32, Ports>,
    /// What the next of its calls waits for ends some time.
    is_held: bool,
}

impl Rank {
    fn new(rank: u32) -> Self {
        let member = Member::new(GROUP, rank, (0..RANKS).collect());
        Self { groups: vec![(GROUP, GroupState::of_worker(member))], ports: BTreeMap::new(), is_held: false }
    }

    fn last(&mut self) -> &mut (u32, GroupState) {
        self.groups.last_mut().unwrap()
    }

    /// The group that takes the next call.
    fn current(&mut self) -> usize {
        let mut at = 0;
        while self.groups[at].1.successor().is_some() {
            at += 1;
        }
        at
    }
}

/// A job.
struct Job {
    rng: Rng,
    hub: Hub,
    ranks: BTreeMap<u32, Rank>,
    /// Messages on their way, in order.
    to_hub: BTreeMap<u32, VecDeque<Message>>,
    from_hub: BTreeMap<u32, VecDeque<Message>>,
    /// What each operation was issued as by the first member that did.
    issued: BTreeMap<u64, (u64, Fingerprint)>,
    slow: Option<u32>,
    /// From which operation on plans took ports for what.
    changes: BTreeMap<u64, u64>,
    waited: u64,
}

impl Job {
    fn new(seed: u64) -> Self {
        let mut hub = Hub::new(a_roster(RANKS, &[REDUCER.to_owned()]), Duration::ZERO);
        let members = (0..RANKS).collect();
        assert!(hub.receive(0, Message::GroupInfo { group: GROUP, generation: 0, members }).is_empty());
        Self {
            rng: Rng(seed),
            hub,
            ranks: (0..RANKS).map(|rank| (rank, Rank::new(rank))).collect(),
            to_hub: BTreeMap::new(),
            from_hub: BTreeMap::new(),
            issued: BTreeMap::new(),
            slow: None,
            changes: BTreeMap::new(),
            waited: 0,
        }
    }

    fn send(&mut self, sent: Vec<Directed>) {
        for Directed { to, message } in sent.into_iter().filter(|sent| self.ranks.contains_key(&sent.to)) {
            self.from_hub.entry(to).or_default().push_back(message);
        }
    }

    /// A member calls, if it may.
    fn call(&mut self, rank: u32) {
        let Some(member) = self.ranks.get_mut(&rank) else { return };
        let at = member.current();
        let (group, state) = &mut member.groups[at];
        if state.has_new_ports()
            && let Some(ports) = state.take_ports()
        {
            member.ports.insert(*group, ports.clone());
        }
        let plan = member.ports.get(group).map_or(0, |ports| digest(&ports.to_bytes()));
        let mut out = Collected::default();
        match state.issue(Fingerprint { plan, ..call() }, false, &mut out) {
            Ok(issued) => {
                member.is_held = false;
                let sequence = issued.fingerprint.sequence;
                let agreed = self.changes.range(..=sequence).next_back().map_or(0, |(_, plan)| *plan);
                assert_eq!(plan, agreed, "rank {rank}, operation {sequence}");
                let found = (issued.hash, issued.fingerprint);
                // In a group that has followed another one hashes begin anew, on all members alike.
                let first = *self.issued.entry(sequence).or_insert(found);
                assert_eq!(first, found, "rank {rank}, operation {sequence}: other ports than another rank");
                state.complete(sequence, false, &mut out);
            }
            Err(NotIssued::Frozen) => {
                member.is_held = true;
                self.waited += 1;
            }
            Err(other) => panic!("rank {rank}: {other:?}"),
        }
        self.to_hub.entry(rank).or_default().extend(out.0);
    }

    /// A member says what its connections have carried.
    fn report(&mut self, rank: u32) {
        let Some(member) = self.ranks.get_mut(&rank) else { return };
        let (group, _) = *member.last();
        let microseconds =
            |peer| if [Some(rank), Some(peer)].contains(&self.slow) { 500_000 } else { 50_000 };
        let peers = (0..RANKS).filter(|peer| *peer != rank);
        let link =
            |peer| LinkUse { peer: MemberId::new(peer), bytes: BYTES, microseconds: microseconds(peer) };
        let carried = PortReport { group, microseconds: 600_000, links: peers.map(link).collect() };
        self.to_hub.entry(rank).or_default().push_back(Message::PortReport(carried));
    }

    /// The next message on one of the connections arrives.
    fn deliver(&mut self) {
        let rank = self.rng.below(RANKS.into()) as u32;
        if self.rng.one_in(2) {
            if let Some(message) = self.to_hub.entry(rank).or_default().pop_front() {
                let sent = self.hub.receive(rank, message);
                self.send(sent);
            }
        } else if let Some(message) = self.from_hub.entry(rank).or_default().pop_front() {
            self.hear(rank, message);
        }
    }

    fn hear(&mut self, rank: u32, message: Message) {
        let Some(member) = self.ranks.get_mut(&rank) else { return };
        let mut out = Collected::default();
        let Some(number) = message.group() else { return };
        let Some(at) = member.groups.iter().position(|(group, _)| *group == number) else { return };
        let state = &mut member.groups[at].1;
        match &message {
            Message::PortOutcome(outcome) => {
                if let Some((from, ports)) = state.settle_ports(outcome) {
                    let plan = digest(&ports.to_bytes());
                    assert_eq!(*self.changes.entry(from).or_insert(plan), plan, "rank {rank}");
                    assert!(from >= state.next(), "rank {rank} has issued operation {from} before");
                }
            }
            Message::Recover { .. } => state.suspend(Vec::new(), &mut out),
            Message::Resume(resume) => {
                assert!(state.resume(resume));
                let (from, successor) = state.replaced().unwrap();
                assert_eq!(successor, successor_of(number));
                let new = Member::new(successor, rank, (0..RANKS).collect()).starting_at(from);
                let new = GroupState::of_worker(new).succeeding(state);
                member.groups.push((successor, new));
            }
            message => state.receive(message, &mut out),
        }
        self.to_hub.entry(rank).or_default().extend(out.0);
    }

    fn deliver_all(&mut self) {
        let is_quiet = |job: &Self| job.to_hub.values().chain(job.from_hub.values()).all(VecDeque::is_empty);
        while !is_quiet(self) {
            self.deliver();
        }
    }

    /// Members call and report in any order; one is up to so many calls ahead of another.
    fn run(&mut self, steps: u32, ahead: u64) {
        for _ in 0..steps {
            let rank = self.rng.below(RANKS.into()) as u32;
            let next = |member: &Rank| member.groups.iter().map(|(_, state)| state.next()).max().unwrap_or(0);
            let least = self.ranks.values().map(next).min().unwrap_or(0);
            match self.rng.below(8) {
                0 => self.report(rank),
                1 | 2 if self.ranks.get(&rank).is_some_and(|member| next(member) < least + ahead) => {
                    self.call(rank);
                }
                _ => self.deliver(),
            }
            if self.rng.one_in(600) {
                self.slow = self.rng.one_in(2).then(|| self.rng.below(RANKS.into()) as u32);
            }
        }
    }

    /// All that is on its way arrives, and then nobody waits.
    fn ends_well(&mut self) {
        self.deliver_all();
        let ranks: Vec<u32> = self.ranks.keys().copied().collect();
        for rank in ranks {
            self.call(rank);
            assert!(!self.ranks[&rank].is_held, "rank {rank} waits for an outcome that does not come");
        }
    }
}

#[test]
fn all_members_change_plans_at_the_same_operation() {
    let (mut changes, mut waited) = (0, 0);
    for seed in 0..200 {
        let mut job = Job::new(seed);
        let ahead = [1, 3, 2 * LEAD, 100][seed as usize % 4];
        job.run(8_000, ahead);
        job.ends_well();
        changes += job.changes.len();
        waited += job.waited;
    }
    assert!(changes > 400, "{changes} changes");
    assert!(waited > 0, "a member that is far ahead waits for the outcome");
}

/// The group goes on in another one, with what was agreed on, and changes again there.
#[test]
fn a_lost_reducer_meanwhile_changes_nothing_of_it() {
    let mut changes = 0;
    for seed in 0..200 {
        let mut job = Job::new(seed);
        job.run(1_000 + 10 * seed as u32, 8);
        let lost =
            LostReducer { id: MemberId::new(RANKS), address: REDUCER.to_owned(), reason: "gone".into() };
        let suspect = Suspect { group: GROUP, members: (0..RANKS).collect(), lost };
        let rank = job.rng.below(RANKS.into()) as u32;
        job.to_hub.entry(rank).or_default().push_back(Message::Suspect(suspect));
        let before = job.changes.len();
        // Hashes begin anew in the group that follows.
        job.deliver_all();
        let next = job.ranks.values().map(|member| member.groups[0].1.replaced().unwrap().0).max().unwrap();
        let first = job.ranks.values_mut().map(|member| member.last().1.next()).collect::<Vec<_>>();
        assert_eq!(first, vec![next; RANKS as usize], "seed {seed}");
        job.run(8_000, 8);
        job.ends_well();
        changes += job.changes.len() - before;
    }
    assert!(changes > 200, "{changes} changes in groups that follow others");
}

/// A proposal whose members are not all there comes to nothing, and nobody waits for it.
#[test]
fn who_leaves_or_dies_meanwhile_keeps_nobody_waiting() {
    let mut open = 0;
    for seed in 0..400 {
        let mut job = Job::new(seed);
        job.run(1_500, 100);
        job.slow = Some(0);
        let mut steps = 0;
        while !job.from_hub.values().flatten().any(|message| matches!(message, Message::PortProposal(_)))
            && steps < 5_000
        {
            job.run(1, 100);
            steps += 1;
        }
        for _ in 0..seed % 12 {
            job.deliver();
        }
        let gone = 1 + job.rng.below(u64::from(RANKS) - 1) as u32;
        open += u32::from(job.ranks.values().any(|member| member.groups[0].1.is_undecided()));
        // What it has said last still comes.
        let said = job.to_hub.remove(&gone).unwrap_or_default();
        for message in said {
            let sent = job.hub.receive(gone, message);
            job.send(sent);
        }
        job.ranks.remove(&gone);
        let sent = match seed % 3 {
            0 => job.hub.receive(gone, Message::Forget { group: GROUP }),
            1 => job.hub.leave(gone),
            _ => job.hub.lose(gone, &Death::Exited),
        };
        job.send(sent);
        job.ends_well();
        let changes = job.changes.len();
        job.run(4_000, 8);
        job.ends_well();
        assert_eq!(job.changes.len(), changes, "seed {seed}: ports change in a group that is not whole");
    }
    assert!(open > 100, "{open} members had pledged");
}

/// Without the hub nobody says what comes of a proposal: the group is over for those that have pledged.
#[test]
fn a_pledge_to_a_hub_that_is_gone_ends_the_group() {
    let ports = Ports::uniform(RANKS as usize, Port { out: 5_000_000, into: 5_000_000 });
    for outcome in [None, Some(None), Some(Some(LEAD))] {
        let mut state = Rank::new(1).groups.remove(0).1;
        let mut out = Collected::default();
        let proposal = PortProposal { group: GROUP, change: 1, ports: ports.clone() };
        state.receive(&Message::PortProposal(proposal), &mut out);
        assert_eq!(out.0, [Message::PortPledge(PortPledge { group: GROUP, change: 1, bound: LEAD })]);
        if let Some(from) = outcome {
            state.settle_ports(&PortOutcome { group: GROUP, change: 1, from });
        }
        state.lose_hub(&mut out);
        assert_eq!(state.failure().is_some(), outcome.is_none());
    }
}
