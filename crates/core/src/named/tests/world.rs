//! Ranks that submit, join and shut down at any time, while their agreements go on.
//!
//! As in the engine, a rank that rests comes to an agreement only if it has news, or if it gets the message of another rank
//! that has come. These messages take any time.

use super::{Rng, call, in_group, request, settings};
use crate::{
    element::DType,
    group::Rank,
    named::{NamedCall, NamedDecision, NamedKind, NamedRequest, Negotiator, SubmitError, encode_answers},
};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const NAMES: usize = 8;
/// The last of the names are a group.
const GROUPED: usize = 3;

/// How far a rank is in its agreement.
#[derive(Debug)]
enum At {
    Outside,
    Called(Vec<u8>),
    /// It has the combined bits, and hands over its list.
    Agreed(Vec<u8>),
    /// Rank 0 has answered, if there was anything to answer.
    Answered(Option<Vec<u8>>),
}

struct Simulated {
    negotiator: Negotiator,
    at: At,
    /// Which agreement is the next.
    next: u64,
    /// The last one of which a message has come.
    called: Option<u64>,
    /// What it is going to submit, and when it joins.
    plan: VecDeque<Option<NamedRequest>>,
    queued: BTreeMap<String, NamedCall>,
    has_joined: bool,
    /// Whether it has joined with some tensors of the group only.
    splits_group: bool,
    decisions: Vec<NamedDecision>,
    /// How many it has submitted, and how many have ended.
    counts: (usize, usize),
    is_over: bool,
}

struct World {
    ranks: Vec<Simulated>,
    /// Messages under way: to which rank, of which agreement.
    messages: Vec<(usize, u64)>,
    negotiates: Option<bool>,
    rng: Rng,
}

fn is_grouped(name: &str) -> bool {
    name[1..].parse::<usize>().unwrap() >= NAMES - GROUPED
}

/// What a rank does: names in its own order, some missing, some wrong, and perhaps a join.
fn plan(rng: &mut Rng, calm: bool) -> VecDeque<Option<NamedRequest>> {
    let mut plan = VecDeque::new();
    for step in 0..4 {
        let mut names: Vec<usize> = (0..NAMES).collect();
        for at in (1..names.len()).rev() {
            names.swap(at, rng.below(at + 1));
        }
        for number in names {
            if !calm && rng.chance(3) {
                continue;
            }
            let kinds =
                [NamedKind::AllReduce, NamedKind::AllReduce, NamedKind::AllGather, NamedKind::Broadcast];
            let changes = u64::from(number == 1 && step == 2);
            let mut call = call(kinds[number % 4], &[number as u64 + 1 + changes, 2]);
            if call.kind == NamedKind::AllGather {
                call.shape[0] = rng.below(3) as u64;
            }
            if !calm && rng.chance(3) {
                call.dtype = DType::F64;
            }
            let plain = request(&format!("n{number}"), call);
            let is_grouped = number >= NAMES - GROUPED;
            plan.push_back(Some(if is_grouped { in_group("g", GROUPED as u32, plain) } else { plain }));
        }
    }
    plan
}

impl World {
    fn new(size: u32, seed: u64, capacity: usize, calm: bool) -> Self {
        let mut rng = Rng(seed);
        let rank = |rank, rng: &mut Rng| Simulated {
            negotiator: Negotiator::new(rank, size, settings(capacity)),
            at: At::Outside,
            next: 0,
            called: None,
            plan: plan(rng, calm),
            queued: BTreeMap::new(),
            has_joined: false,
            splits_group: false,
            decisions: Vec::new(),
            counts: (0, 0),
            is_over: false,
        };
        let ranks = (0..size).map(|number| rank(number, &mut rng)).collect();
        let mut world = Self { ranks, messages: Vec::new(), negotiates: None, rng };
        if !calm && world.rng.chance(50) {
            // They join at different points; all do, so the join ends.
            for rank in &mut world.ranks {
                let at = world.rng.below(rank.plan.len() + 1);
                rank.plan.insert(at, None);
            }
        }
        world
    }

    /// Does anything that can happen. Returns whether there was anything.
    fn step(&mut self) -> bool {
        let mut can: Vec<(usize, u8)> = Vec::new();
        let all_called = self.ranks.iter().all(|rank| matches!(rank.at, At::Called(_)));
        let all_agreed = self.ranks.iter().all(|rank| matches!(rank.at, At::Agreed(_)));
        for (number, rank) in self.ranks.iter().enumerate().filter(|(_, rank)| !rank.is_over) {
            if rank.can_submit() {
                can.push((number, 0));
            }
            match rank.at {
                At::Outside if rank.negotiator.has_news() || rank.called == Some(rank.next) => {
                    can.push((number, 1))
                }
                At::Answered(_) => can.push((number, 2)),
                _ => {}
            }
        }
        if all_called || all_agreed {
            can.push((0, 3));
        }
        can.extend((0..self.messages.len()).map(|message| (message, 4)));
        if can.is_empty() {
            return false;
        }
        match can[self.rng.below(can.len())] {
            (rank, 0) => self.ranks[rank].submit(),
            (rank, 1) => self.call(rank),
            (rank, 2) => self.decide(rank),
            (_, 3) if all_called => self.combine(),
            (_, 3) => self.answer(),
            (message, _) => {
                let (to, agreement) = self.messages.swap_remove(message);
                let rank = &mut self.ranks[to];
                assert!(agreement <= rank.next + 1, "nobody is further ahead of a rank");
                rank.called = rank.called.max(Some(agreement));
            }
        }
        true
    }

    fn call(&mut self, number: usize) {
        let rank = &mut self.ranks[number];
        let bits = rank.negotiator.call(Duration::ZERO);
        let agreement = rank.next;
        rank.at = At::Called(bits);
        let others = (0..self.ranks.len()).filter(|other| *other != number);
        self.messages.extend(others.map(|other| (other, agreement)));
    }

    fn decide(&mut self, number: usize) {
        self.ranks[number].decide();
        let Some(decision) = self.ranks[number].decisions.last() else { return };
        let run = decision.batches.iter().flatten().map(|response| &response.name);
        let ended = run.chain(decision.failed.iter().map(|(name, _)| name));
        let grouped = ended.filter(|name| is_grouped(name)).count();
        let is_whole = grouped == 0 || grouped == GROUPED;
        assert!(
            is_whole || self.ranks.iter().any(|rank| rank.splits_group),
            "a group is run all or none: {decision:?}"
        );
    }

    fn combine(&mut self) {
        let mut combined: Vec<u8> = Vec::new();
        for rank in &self.ranks {
            let At::Called(bits) = &rank.at else { panic!("all have called") };
            combined.resize(bits.len(), 0);
            combined.iter_mut().zip(bits).for_each(|(all, own)| *all |= own);
        }
        let mut said = BTreeSet::new();
        for rank in &mut self.ranks {
            let lists = rank.negotiator.agreed(&combined).lists;
            let list = rank.negotiator.own_list().to_vec();
            assert!(lists.is_some() || list.is_empty());
            said.insert(lists);
            rank.at = At::Agreed(list);
        }
        assert_eq!(said.len(), 1, "{said:?}");
        self.negotiates = said.pop_first().map(|lists| lists.is_some());
    }

    fn answer(&mut self) {
        let answers = self.negotiates.take().unwrap_or_default().then(|| {
            let lists: Vec<Vec<u8>> = self.ranks.iter().map(Simulated::list).collect();
            let coordinator = self.ranks[0].negotiator.coordinator().unwrap();
            for (rank, list) in (0..).zip(&lists) {
                coordinator.receive(rank as Rank, list, Duration::ZERO).unwrap();
            }
            encode_answers(&coordinator.answer())
        });
        for rank in &mut self.ranks {
            rank.at = At::Answered(answers.clone());
        }
    }
}

impl Simulated {
    fn list(&self) -> Vec<u8> {
        let At::Agreed(list) = &self.at else { panic!("all have agreed") };
        list.clone()
    }

    fn can_submit(&self) -> bool {
        match self.plan.front() {
            Some(Some(request)) => !self.has_joined && !self.queued.contains_key(&request.name),
            Some(None) => !self.has_joined,
            None => false,
        }
    }

    fn submit(&mut self) {
        match self.plan.pop_front() {
            Some(Some(request)) => {
                self.negotiator.submit(request.clone(), Duration::ZERO).unwrap();
                let again = self.negotiator.submit(request.clone(), Duration::ZERO);
                assert_eq!(again, Err(SubmitError::Duplicate));
                self.queued.insert(request.name, request.call);
                self.counts.0 += 1;
            }
            _ => {
                let grouped = self.queued.keys().filter(|name| is_grouped(name)).count();
                self.splits_group |= grouped != 0 && grouped != GROUPED;
                self.negotiator.join().unwrap();
                self.has_joined = true;
            }
        }
    }

    fn decide(&mut self) {
        let At::Answered(answers) = std::mem::replace(&mut self.at, At::Outside) else { return };
        let decision = self.negotiator.decide(answers.as_deref()).unwrap();
        self.next += 1;
        let run = decision.batches.iter().flatten();
        for response in run.clone() {
            match self.queued.remove(&response.name) {
                Some(own) => {
                    self.counts.1 += 1;
                    assert_eq!((own.kind, own.dtype), (response.call.kind, response.call.dtype));
                    assert!(own.kind == NamedKind::AllGather || own.shape == response.call.shape);
                }
                None => {
                    assert!(self.has_joined, "{} is run, and this rank has not submitted it", response.name)
                }
            }
        }
        for (name, _) in &decision.failed {
            self.counts.1 += usize::from(self.queued.remove(name).is_some());
        }
        self.has_joined &= decision.joined.is_none();
        self.is_over |= decision.shuts_down;
        self.decisions.push(decision);
    }
}

/// Runs a world until nothing happens any more, then shuts it down. Returns how much was run, and how much had failed.
fn run(size: u32, seed: u64, capacity: usize, calm: bool) -> (usize, usize) {
    let mut world = World::new(size, seed, capacity, calm);
    let mut steps = 0;
    while world.step() {
        steps += 1;
        assert!(steps < 1_000_000, "it does not come to rest");
    }
    // What is left was not submitted by some rank, or waits for others of its group.
    let is_everywhere =
        |name: &String| world.ranks.iter().all(|rank| rank.has_joined || rank.queued.contains_key(name));
    for rank in &world.ranks {
        let left: Vec<&String> = rank.queued.keys().filter(|name| is_everywhere(name)).collect();
        let is_whole = left.iter().any(|name| !is_grouped(name)) || left.len() == GROUPED;
        assert!(!is_whole, "{left:?} wait at all ranks");
        assert!(!calm || (rank.queued.is_empty() && rank.plan.is_empty()));
        assert_eq!(rank.counts.0 - rank.counts.1, rank.queued.len());
    }
    let last = world.rng.below(size as usize);
    world.ranks[last].negotiator.shut_down();
    while world.step() {}
    assert!(world.ranks.iter().all(|rank| rank.is_over), "all ranks shut down");
    let first = &world.ranks[0].decisions;
    for rank in &world.ranks {
        assert_eq!(&rank.decisions, first, "all ranks decide the same");
    }
    let run = first.iter().flat_map(|decision| &decision.batches).map(Vec::len).sum();
    (run, first.iter().map(|decision| decision.failed.len()).sum())
}

#[test]
fn all_ranks_run_the_same_in_the_same_order_and_no_wake_up_is_lost() {
    let (mut ran, mut failed) = (0, 0);
    for seed in 0..2000 {
        let (size, capacity) = (1 + seed as u32 % 8, [4, 0, 64, 6][seed as usize / 8 % 4]);
        let (more_ran, more_failed) = run(size, seed, capacity, false);
        ran += more_ran;
        failed += more_failed;
    }
    assert!(ran > 5_000 && failed > 500, "{ran} {failed}");
}

#[test]
fn what_all_ranks_submit_is_run_to_the_last() {
    for seed in 0..400 {
        let (size, capacity) = (1 + seed as u32 % 8, [4, 0, 64, 6][seed as usize / 8 % 4]);
        let (ran, failed) = run(size, seed, capacity, true);
        assert!((ran, failed) == (4 * NAMES, 0) || failed > 0, "{ran} {failed}");
    }
}

/// Once the cache knows what is done, nothing goes to rank 0.
#[test]
fn a_steady_state_sends_nothing_but_bits() {
    let mut world = World::new(4, 7, 64, true);
    let steady = |number: usize| request(&format!("n{number}"), call(NamedKind::AllReduce, &[4]));
    let mut sent = Vec::new();
    for round in 0..5 {
        for (rank, simulated) in world.ranks.iter_mut().enumerate() {
            simulated.plan =
                (0..NAMES - GROUPED).map(|at| Some(steady((at + rank) % (NAMES - GROUPED)))).collect();
        }
        while world.step() {}
        let counters = world.ranks[3].negotiator.counters();
        assert_eq!(counters.responses, (round + 1) * (NAMES - GROUPED) as u64);
        sent.push((counters.bytes_to_coordinator, counters.uncached_requests));
    }
    assert!(sent[0].0 > 0 && sent.iter().all(|later| *later == sent[0]), "{sent:?}");
}
