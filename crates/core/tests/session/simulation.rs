//! A group whose members disagree, give up and die, while every message takes as long as it likes.

use crate::{a_hub, call, crc32c};
use herringbone_core::{
    collective::Collective,
    session::{
        Cause, Mismatch,
        control::{Death, Decision, Decoder, Message},
        fence::{Action, Admission, Check, Issued, Member, NotIssued, Settled},
        hub::Hub,
    },
    wire::Fingerprint,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

const GROUP: u32 = 5;
const HUB: u32 = u32::MAX;
const ALL_REDUCE: u8 = 1;
const REDUCE: u8 = 2;
const BROADCAST: u8 = 3;

/// How a run goes wrong. "One in" 0 means never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) members: u32,
    /// How many operations the members are to get through.
    pub(crate) operations: u64,
    /// How many may be open at once.
    pub(crate) width: usize,
    /// One in so many calls is another one than it should be.
    pub(crate) mistakes: u64,
    /// At one in so many calls the rank gives up on an operation.
    pub(crate) timeouts: u64,
    /// Whether a rank dies.
    pub(crate) death: bool,
}

/// The numbers of SplitMix64: the same everywhere.
#[derive(Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % limit
    }

    pub(crate) fn one_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
enum Packet {
    Frame { from: u32, issued: Issued },
    Control(Vec<u8>),
}

/// An operation that a rank has issued, and whose frames it still needs.
struct Operation {
    needs: BTreeSet<u32>,
    rounds: u32,
}

/// How a rank's caller learnt of one decision.
struct News {
    settled: Settled,
    /// An operation of the generation had failed before.
    ahead: bool,
    /// The numbers of the calls that failed afterwards.
    numbered: Vec<u64>,
    /// Calls that failed and took no number.
    bare: u32,
    /// Whether it was learnt when the group was closed.
    closed: bool,
}

struct Process {
    member: Member,
    alive: bool,
    open: BTreeMap<u64, Operation>,
    /// Frames that came before their operation or generation.
    early: Vec<(u32, Issued)>,
    news: Vec<News>,
    ahead: bool,
    issued: Vec<u64>,
    /// Whether it leaves, and waits for the others' answer.
    asks: bool,
}

impl Process {
    /// How its caller has learnt of a decision.
    fn news_of(&mut self, cause: &Arc<Cause>) -> &mut News {
        let same = |news: &&mut News| Arc::ptr_eq(&news.settled.cause, cause);
        self.news.iter_mut().find(same).expect("a call fails for a decision")
    }
}

pub(crate) struct Simulation {
    trouble: Trouble,
    rng: Rng,
    hub: Hub,
    processes: Vec<Process>,
    links: BTreeMap<(u32, u32), VecDeque<Packet>>,
    /// Who issued what, by generation and number.
    log: BTreeMap<(u32, u64), Vec<(u32, Fingerprint)>>,
    pub(crate) decisions: Vec<Decision>,
    /// Grows with everything that brings the group forward.
    progress: u64,
}

impl Simulation {
    pub(crate) fn new(seed: u64, trouble: Trouble) -> Self {
        let members: Vec<u32> = (0..trouble.members).collect();
        let process = |rank| Process {
            member: Member::new(GROUP, rank, members.clone()),
            alive: true,
            open: BTreeMap::new(),
            early: Vec::new(),
            news: Vec::new(),
            ahead: false,
            issued: Vec::new(),
            asks: false,
        };
        let mut hub = a_hub();
        let info = Message::GroupInfo { group: GROUP, generation: 0, members: members.clone() };
        assert!(hub.receive(0, info).is_empty());
        Self {
            trouble,
            rng: Rng(seed),
            hub,
            processes: members.iter().map(|rank| process(*rank)).collect(),
            links: BTreeMap::new(),
            log: BTreeMap::new(),
            decisions: Vec::new(),
            progress: 0,
        }
    }

    /// Runs until every rank has got through its operations, or the group is over.
    pub(crate) fn run(&mut self) {
        let mut stuck = (0, 0);
        let death = 20 + self.rng.below(200);
        for turn in 0_u64.. {
            if self.trouble.death && turn == death {
                self.kill();
            }
            let busy: Vec<(u32, u32)> =
                self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends).collect();
            let callers = self.callers();
            if !busy.is_empty() && (callers.is_empty() || self.rng.below(3) > 0) {
                let link = self.rng.pick(&busy);
                self.deliver(link);
            } else if !callers.is_empty() {
                let rank = self.rng.pick(&callers);
                self.call(rank);
            } else if self.processes.iter().all(|process| !process.alive || process.open.is_empty()) {
                break;
            }
            if busy.is_empty() {
                self.wait();
                stuck = if stuck.0 == self.progress { (stuck.0, stuck.1 + 1) } else { (self.progress, 0) };
                assert!(stuck.1 < 100, "nothing moves any more");
            }
        }
    }

    fn callers(&self) -> Vec<u32> {
        let Trouble { operations, width, .. } = self.trouble;
        let may_call = |process: &Process| {
            let over = process.news.last().is_some_and(|news| news.settled.cause.is_final());
            process.alive && !over && process.member.next() < operations && process.open.len() < width
        };
        (0..self.trouble.members).filter(|rank| may_call(&self.processes[*rank as usize])).collect()
    }

    /// What every rank should call next.
    fn script(&self, sequence: u64) -> Fingerprint {
        let root = (sequence / 3 % u64::from(self.trouble.members)) as u32;
        let collective = [ALL_REDUCE, BROADCAST, ALL_REDUCE, REDUCE, BROADCAST][sequence as usize % 5];
        let root = if collective == ALL_REDUCE { 0 } else { root };
        Fingerprint { collective, root, ..call() }
    }

    fn call(&mut self, rank: u32) {
        let mut wanted = self.script(self.processes[rank as usize].member.next());
        if self.rng.one_in(self.trouble.mistakes) {
            let root = self.rng.below(u64::from(self.trouble.members)) as u32;
            wanted = match self.rng.below(4) {
                0 => Fingerprint { count: 1001, ..wanted },
                1 => Fingerprint { op: 4, ..wanted },
                2 => Fingerprint { collective: BROADCAST, root, ..wanted },
                _ => Fingerprint { collective: REDUCE, root, ..wanted },
            };
        }
        self.try_call(rank, wanted);
        if self.rng.one_in(self.trouble.timeouts) {
            self.give_up(rank);
        }
    }

    /// The operation, if the call became one.
    fn try_call(&mut self, rank: u32, wanted: Fingerprint) -> Option<Issued> {
        let process = &mut self.processes[rank as usize];
        match process.member.issue(wanted) {
            Ok(issued) => {
                process.issued.push(issued.fingerprint.sequence);
                let key = (issued.generation, issued.fingerprint.sequence);
                self.log.entry(key).or_default().push((rank, issued.fingerprint));
                self.begin(rank, issued);
                Some(issued)
            }
            Err(NotIssued::Frozen) => None,
            Err(NotIssued::Failed(cause)) => {
                process.news_of(&cause).bare += 1;
                self.progress += 1;
                None
            }
            Err(NotIssued::Counted(issued, cause)) => {
                process.news_of(&cause).numbered.push(issued.fingerprint.sequence);
                self.progress += 1;
                None
            }
        }
    }

    fn begin(&mut self, rank: u32, issued: Issued) {
        let others: BTreeSet<u32> = (0..self.trouble.members).filter(|other| *other != rank).collect();
        let root = issued.fingerprint.root;
        let (to, needs) = match (issued.fingerprint.collective, root == rank) {
            (BROADCAST, true) => (others, BTreeSet::new()),
            (BROADCAST, false) => (BTreeSet::new(), [root].into()),
            (REDUCE, true) => (BTreeSet::new(), others),
            (REDUCE, false) => ([root].into(), BTreeSet::new()),
            _ => (others.clone(), others),
        };
        for other in to {
            self.links.entry((rank, other)).or_default().push_back(Packet::Frame { from: rank, issued });
        }
        let process = &mut self.processes[rank as usize];
        process.open.insert(issued.fingerprint.sequence, Operation { needs, rounds: 0 });
        self.progress += 1;
        self.finish_if_complete(rank, issued.fingerprint.sequence);
        self.look_again(rank);
    }

    fn finish_if_complete(&mut self, rank: u32, sequence: u64) {
        let process = &mut self.processes[rank as usize];
        if process.open.get(&sequence).is_some_and(|operation| operation.needs.is_empty()) {
            process.open.remove(&sequence);
            let own = *process.member.issued(sequence).expect("it is not that far back");
            let collective = Collective::from_code(own.collective, own.root).unwrap();
            process.member.complete(sequence, collective.hears_all(rank));
            self.progress += 1;
        }
        self.answer(rank);
    }

    /// Answers what others ask that leave.
    fn answer(&mut self, rank: u32) {
        while let Some(answer) = self.processes[rank as usize].member.next_answer() {
            self.tell_hub(rank, Some(answer));
        }
    }

    fn look_again(&mut self, rank: u32) {
        for (from, issued) in std::mem::take(&mut self.processes[rank as usize].early) {
            self.frame(rank, from, issued);
        }
    }

    fn frame(&mut self, rank: u32, from: u32, theirs: Issued) {
        let process = &mut self.processes[rank as usize];
        let sequence = theirs.fingerprint.sequence;
        match process.member.admit(theirs.generation) {
            Admission::Discard => return,
            Admission::Hold => return process.early.push((from, theirs)),
            Admission::Accept => {}
        }
        match process.member.check(sequence, theirs.hash) {
            Check::NotYet => process.early.push((from, theirs)),
            Check::Match => {
                if let Some(operation) = process.open.get_mut(&sequence) {
                    assert!(operation.needs.remove(&from), "equal histories send equal frames");
                }
                self.finish_if_complete(rank, sequence);
            }
            Check::Differs => {
                let cause = process.member.mismatch(from, theirs.fingerprint);
                let dispute = process.member.dispute(cause);
                self.tell_hub(rank, dispute);
            }
            Check::Forgotten => panic!("operation {sequence} is not that far back"),
        }
    }

    fn tell_hub(&mut self, rank: u32, message: Option<Message>) {
        if let Some(message) = message {
            self.send(rank, HUB, &message);
        }
    }

    fn send(&mut self, from: u32, to: u32, message: &Message) {
        let bytes = message.encode(crc32c).unwrap();
        self.links.entry((from, to)).or_default().push_back(Packet::Control(bytes));
    }

    fn deliver(&mut self, link: (u32, u32)) {
        let (from, to) = link;
        let packet = self.links.get_mut(&link).and_then(VecDeque::pop_front).unwrap();
        if to != HUB && !self.processes[to as usize].alive {
            return;
        }
        match packet {
            Packet::Frame { from, issued } => self.frame(to, from, issued),
            Packet::Control(bytes) => {
                let mut decoder = Decoder::new(crc32c);
                decoder.push(&bytes);
                let message = decoder.next_message().unwrap().unwrap();
                if to == HUB { self.at_hub(from, message) } else { self.at_member(to, message) }
            }
        }
    }

    fn at_hub(&mut self, from: u32, message: Message) {
        for directed in self.hub.receive(from, message) {
            self.send(HUB, directed.to, &directed.message);
        }
    }

    fn at_member(&mut self, rank: u32, message: Message) {
        let process = &mut self.processes[rank as usize];
        if let Message::Dead { rank: dead, .. } = message {
            let dispute = process.member.dispute(Cause::PeerLost { ranks: vec![dead] });
            return self.tell_hub(rank, dispute);
        }
        match process.member.receive(&message) {
            None => {
                process.asks &= process.member.question().is_some();
                self.answer(rank);
            }
            Some(Action::Send(message)) => self.tell_hub(rank, Some(message)),
            Some(Action::Settled(settled)) => {
                let Message::Decide(decision) = message else { panic!("only a decision settles") };
                assert_eq!(settled.fails_open, !process.open.is_empty(), "rank {rank}");
                process.open.clear();
                let ahead = std::mem::take(&mut process.ahead);
                process.news.push(News { settled, ahead, numbered: Vec::new(), bare: 0, closed: false });
                process.asks = false;
                match self.decisions.get(decision.generation as usize) {
                    Some(known) => assert_eq!(*known, decision),
                    None => self.decisions.push(decision),
                }
                self.progress += 1;
                self.look_again(rank);
            }
        }
    }

    /// Everybody who waits says so.
    fn wait(&mut self) {
        for rank in 0..self.trouble.members {
            let Process { member, alive, open, .. } = &mut self.processes[rank as usize];
            if let Some((sequence, operation)) = open.first_key_value()
                && *alive
            {
                let message = member.waiting(*sequence, operation.rounds);
                open.first_entry().unwrap().get_mut().rounds += 1;
                self.tell_hub(rank, message);
            }
        }
    }

    fn give_up(&mut self, rank: u32) {
        let process = &mut self.processes[rank as usize];
        let Some((sequence, operation)) = process.open.pop_first() else { return };
        process.ahead = true;
        process.member.fail(sequence);
        let cause = Cause::Timeout {
            rank,
            operation: Fingerprint { sequence, ..call() },
            milliseconds: 1,
            waiting_for: operation.needs.into_iter().collect(),
        };
        let dispute = process.member.dispute(cause);
        self.tell_hub(rank, dispute);
    }

    /// One rank other than the hub's dies. What it has said still arrives; the hub learns of it, and tells.
    fn kill(&mut self) {
        let dead = 1 + self.rng.below(u64::from(self.trouble.members) - 1) as u32;
        self.processes[dead as usize].alive = false;
        for directed in self.hub.lose(dead, &Death::Exited) {
            self.send(HUB, directed.to, &directed.message);
        }
        for rank in (0..self.trouble.members).filter(|rank| *rank != dead) {
            self.send(HUB, rank, &Message::Dead { rank: dead, death: Death::Exited });
        }
    }

    /// All ranks close the group, some of them late, and make no other call. Each gets an answer.
    pub(crate) fn close(&mut self) {
        let mut open: Vec<u32> = (0..self.trouble.members).collect();
        loop {
            let busy: Vec<(u32, u32)> =
                self.links.iter().filter(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends).collect();
            if !open.is_empty() && (busy.is_empty() || self.rng.one_in(10)) {
                let rank = open.swap_remove(self.rng.below(open.len() as u64) as usize);
                let question = self.processes[rank as usize].member.question();
                self.processes[rank as usize].asks = question.is_some();
                self.tell_hub(rank, question.map(Message::Confirm));
            } else if busy.is_empty() {
                break;
            } else {
                let link = self.rng.pick(&busy);
                self.deliver(link);
            }
        }
        for process in &mut self.processes {
            assert!(!process.asks, "it was not answered");
            while let Some(cause) = process.member.take_unreported() {
                let mut news = process.news.iter_mut();
                let news =
                    news.find(|news| Arc::ptr_eq(&news.settled.cause, &cause)).expect("it was decided");
                assert!(!std::mem::replace(&mut news.closed, true), "it is told once");
            }
        }
    }

    /// One more call, the same on every rank, brings the last news and ends in step: same number, generation, history.
    pub(crate) fn check_alignment(&mut self) {
        let mut last = Vec::new();
        for rank in 0..self.trouble.members {
            let issued = loop {
                let wanted = self.script(self.processes[rank as usize].member.next());
                if let Some(issued) = self.try_call(rank, wanted) {
                    break issued;
                }
            };
            last.push(issued);
        }
        assert!(last.iter().all(|issued| *issued == last[0]), "out of step: {last:?}");
        assert_eq!(last[0].generation as usize, self.decisions.len());
    }

    /// Each rank heard of each decision, in a call that took its number; each number was taken once.
    pub(crate) fn check_news(&self) {
        for (rank, process) in self.processes.iter().enumerate().filter(|(_, process)| process.alive) {
            assert_eq!(process.news.len(), self.decisions.len(), "rank {rank}");
            let mut taken = process.issued.clone();
            for (news, decision) in process.news.iter().zip(&self.decisions) {
                assert_eq!(*news.settled.cause, decision.cause);
                let heard = news.ahead || news.settled.fails_open || !news.numbered.is_empty() || news.closed;
                assert!(heard && news.bare == 0, "rank {rank}, {decision:?}");
                assert!(news.numbered.iter().all(|sequence| *sequence < decision.next));
                taken.extend(&news.numbered);
            }
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..process.member.next()), "rank {rank} skipped a number");
        }
    }

    /// How many ranks have learnt of something only when they closed the group.
    pub(crate) fn learnt_at_the_end(&self) -> usize {
        self.processes.iter().filter(|process| process.news.iter().any(|news| news.closed)).count()
    }

    /// Every rank has been told of the death, and is told again whenever it calls.
    pub(crate) fn check_death(&mut self) {
        let dead = self.processes.iter().position(|process| !process.alive).unwrap() as u32;
        for rank in (0..self.trouble.members).filter(|rank| *rank != dead) {
            let member = &mut self.processes[rank as usize].member;
            for _ in 0..2 {
                let Err(NotIssued::Failed(cause)) = member.issue(call()) else {
                    panic!("rank {rank} goes on")
                };
                assert_eq!(*cause, Cause::PeerLost { ranks: vec![dead] });
            }
            assert_eq!(member.generation() as usize, self.decisions.len());
        }
    }

    /// No disagreement went unnoticed, no decision was made for nothing, and each names who did what.
    pub(crate) fn check_decisions(&self) {
        let differ = |issued: &[(u32, Fingerprint)]| issued.iter().any(|(_, one)| *one != issued[0].1);
        let mut disputed: BTreeMap<u32, u64> = BTreeMap::new();
        for ((generation, sequence), _) in self.log.iter().filter(|(_, issued)| differ(issued)) {
            disputed.entry(*generation).or_insert(*sequence);
        }
        for (generation, sequence) in &disputed {
            let decision = self.decisions.get(*generation as usize);
            assert!(decision.is_some(), "operation {sequence} differs in generation {generation}, unnoticed");
        }
        for decision in &self.decisions {
            let Cause::Mismatch(mismatch) = &decision.cause else { continue };
            assert_eq!(disputed.get(&decision.generation), Some(&mismatch.sequence), "{mismatch}");
            let mut named = Vec::new();
            for variant in &mismatch.variants {
                named.extend(variant.ranks.iter().map(|rank| (*rank, variant.fingerprint)));
            }
            let mut issued = self.log[&(decision.generation, mismatch.sequence)].clone();
            named.sort_unstable_by_key(|(rank, _)| *rank);
            issued.sort_unstable_by_key(|(rank, _)| *rank);
            assert!(named == issued || mismatch.variants.len() == Mismatch::VARIANTS, "{mismatch}");
        }
    }
}
