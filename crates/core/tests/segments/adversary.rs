//! Executions of one operation on all its ranks, and an adversary that chooses which of them goes on, which message arrives and
//! which grant is heard.

use crate::noise::Random;
use herringbone_core::{
    execution::{
        Arrived, Execution, ExecutionProgress, Members, MessageClaim, MessagePlace, Participant, Rules,
        SegmentMessage, SegmentStep, SendDecision, Signal, Tally, Violation,
    },
    prepare::{Kind, Prepared},
    session::membership::MemberId,
};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

/// How many eager messages a link holds: few, so that there are often none.
const SLOTS: u16 = 2;

/// How the adversary chooses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whim {
    /// By chance.
    Any(u64),
    /// The first rank goes as far as it can before the next one, and word of grants comes last: they are as far apart as can be.
    First,
    /// The last rank goes first.
    Last,
}

/// What all ranks run.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    pub(crate) programs: Vec<Arc<Prepared>>,
    pub(crate) rules: Rules,
    /// Whether ranks send over links in turns: all messages of a window's segments to one rank before the first to the next. Ranks
    /// once did; with lots that are no part of the window some stood still for ever.
    pub(crate) in_turns: bool,
    pub(crate) whim: Whim,
}

/// What may happen next, first what the first rank does.
#[derive(Clone, Copy, Debug)]
enum Move {
    Start(usize),
    /// One of the instructions that are ready.
    Run(usize, usize),
    /// One of the messages that may leave.
    Leave(usize, usize),
    Arrive(Lane),
    Hear(Lane),
}

/// From a rank to a rank.
type Lane = (usize, usize);

#[derive(Debug)]
struct Member {
    execution: Execution,
    is_started: bool,
    /// Messages that may leave, and whether in an eager slot.
    going: Vec<(SegmentMessage, bool)>,
    turns: Option<Turns>,
    others: Others,
}

/// The other ranks, as a member sees them. Each has its rank for its identity.
#[derive(Debug, Default)]
pub(super) struct Others {
    pub(super) signals: Vec<(usize, Signal)>,
    /// Per rank: its free eager slots, and whether its messages here have taken all of its own.
    pub(super) free: Vec<u16>,
    pub(super) crowded: Vec<bool>,
}

impl Members for Others {
    fn is_away(&self, _: MemberId) -> bool {
        false
    }

    fn is_crowded(&self, member: MemberId) -> bool {
        self.crowded[member.number() as usize]
    }

    fn take_slot(&mut self, member: MemberId) -> bool {
        let free = &mut self.free[member.number() as usize];
        let is_free = *free > 0;
        *free -= u16::from(is_free);
        is_free
    }

    fn tell(&mut self, member: MemberId, signal: Signal) {
        self.signals.push((member.number() as usize, signal));
    }
}

/// A rank's sends over links, in the order of its program, once per window of segments.
#[derive(Debug)]
struct Turns {
    left: BTreeSet<(u32, u32, u32)>,
    numbers: Vec<Option<u32>>,
    depth: u32,
}

impl Turns {
    fn of(prepared: &Prepared) -> Self {
        let (mut numbers, mut number, mut last) = (vec![None; prepared.lanes.len()], 0, None);
        for (at, step) in (0..).zip(&prepared.steps) {
            let Kind::Send(send) = &step.kind else {
                // A turn ends where something is received before the next message.
                last = last.filter(|_| prepared.heads.iter().all(|head| head.step != at));
                continue;
            };
            for lane in send.lanes.clone().map(|lane| lane as usize) {
                let peer = prepared.lanes[lane].peer;
                number += u32::from(last != Some(peer));
                last = Some(peer);
                numbers[lane] = (!prepared.peers[peer as usize].shared).then_some(number);
            }
        }
        let (segments, depth) = (prepared.segments, prepared.depth);
        let turns = (0..).zip(&numbers).filter_map(|(lane, number)| Some((lane, (*number)?)));
        let left = turns.flat_map(|(lane, number)| {
            (0..segments).map(move |segment| (segment / depth * 1000 + number, segment, lane))
        });
        Self { left: left.collect(), numbers, depth }
    }

    fn key(&self, message: &SegmentMessage) -> Option<(u32, u32, u32)> {
        let (segment, lane) = (message.ready.segment, message.lane);
        let number = self.numbers[lane as usize]?;
        Some((segment / self.depth * 1000 + number, segment, lane))
    }

    fn has_come(&self, message: &SegmentMessage) -> bool {
        let of_turn = |key: (u32, u32, u32)| self.left.first().is_some_and(|first| first.0 == key.0);
        self.key(message).is_none_or(of_turn)
    }

    fn left(&mut self, message: &SegmentMessage) {
        self.key(message).map(|key| self.left.remove(&key));
    }
}

/// All ranks, and what is between them.
pub(crate) struct Adversary {
    members: Vec<Member>,
    data: BTreeMap<Lane, VecDeque<(SegmentMessage, bool)>>,
    /// Apart from data, which it overtakes.
    signals: BTreeMap<Lane, VecDeque<Signal>>,
    ahead: Vec<u32>,
}

/// How a trial ends badly.
#[derive(Debug)]
pub(crate) enum End {
    /// Ranks that never end, with the segments that they have begun and finished.
    #[expect(dead_code, reason = "shown by failing tests")]
    Stuck(Vec<(usize, u32, u32)>),
    /// A rank that was sent what it may not be sent.
    #[expect(dead_code, reason = "shown by failing tests")]
    Refused(usize, Violation),
    /// A message was written over one that its receiver had not read.
    Overwritten,
}

impl Trial {
    /// Runs all ranks to their end.
    pub(crate) fn run(&self) -> Result<(), End> {
        let mut chance = Random::new(if let Whim::Any(seed) = self.whim { seed } else { 0 });
        let mut all = Adversary::new(self, &mut chance);
        loop {
            let moves = all.moves();
            let next = match self.whim {
                _ if moves.is_empty() => break,
                Whim::Any(_) => moves[chance.below(moves.len())],
                Whim::First => moves[0],
                Whim::Last => *moves
                    .iter()
                    .max_by_key(|next| (!matches!(next, Move::Hear(_)), all.who(**next)))
                    .unwrap(),
            };
            all.go(next)?;
        }
        let stands = |(rank, member): (usize, &Member)| {
            let progress = member.execution.segment_progress();
            let is_running = member.execution.progress(&member.others) == ExecutionProgress::Running;
            is_running.then_some((rank, progress.begun, progress.finished))
        };
        let stuck: Vec<_> = all.members.iter().enumerate().filter_map(stands).collect();
        if stuck.is_empty() { Ok(()) } else { Err(End::Stuck(stuck)) }
    }
}

impl Adversary {
    fn new(trial: &Trial, chance: &mut Random) -> Self {
        let ids: Vec<_> = (0..trial.programs.len() as u32).map(MemberId::new).collect();
        let mut ahead = Vec::new();
        let member = |(me, prepared): (u32, &Arc<Prepared>)| {
            ahead.push(prepared.ahead(prepared.wanted_bytes(chance.below(2) == 1)));
            let me = Participant {
                is_worker: !prepared.is_reducer(me),
                in_place: true,
                ahead: ahead[me as usize],
                rules: trial.rules,
            };
            let ranks = ids.len();
            Member {
                execution: Execution::new(prepared.clone(), me, &ids, Tally::default()),
                is_started: false,
                going: Vec::new(),
                turns: trial.in_turns.then(|| Turns::of(prepared)),
                others: Others { signals: Vec::new(), free: vec![SLOTS; ranks], crowded: vec![false; ranks] },
            }
        };
        let members = (0..).zip(&trial.programs).map(member).collect();
        Self { members, data: BTreeMap::new(), signals: BTreeMap::new(), ahead }
    }

    fn who(&self, next: Move) -> usize {
        match next {
            Move::Start(rank) | Move::Run(rank, _) | Move::Leave(rank, _) => rank,
            Move::Arrive((_, to)) | Move::Hear((_, to)) => to,
        }
    }

    /// All that may happen next; grants that are heard last of all.
    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (rank, member) in self.members.iter().enumerate() {
            if !member.is_started {
                moves.push(Move::Start(rank));
                continue;
            }
            moves.extend((0..member.execution.ready()).map(|at| Move::Run(rank, at)));
            let may =
                |message: &SegmentMessage| member.turns.as_ref().is_none_or(|turns| turns.has_come(message));
            let going = member.going.iter().enumerate().filter(|(_, (message, _))| may(message));
            moves.extend(going.map(|(at, _)| Move::Leave(rank, at)));
            let to_it = self.data.iter().filter(|((_, to), sent)| *to == rank && !sent.is_empty());
            moves.extend(to_it.map(|(lane, _)| Move::Arrive(*lane)));
        }
        let heard = self
            .signals
            .iter()
            .filter(|((_, to), signals)| !signals.is_empty() && self.members[*to].is_started);
        moves.extend(heard.map(|(lane, _)| Move::Hear(*lane)));
        moves
    }

    fn go(&mut self, next: Move) -> Result<(), End> {
        let rank = self.who(next);
        match next {
            Move::Start(_) => self.start(rank),
            Move::Run(_, at) => self.step(rank, at)?,
            Move::Leave(_, at) => self.leave(rank, at),
            Move::Arrive(lane) => self.arrive(lane)?,
            Move::Hear(lane) => self.receive_signal(lane)?,
        }
        let Member { execution, others, .. } = &mut self.members[rank];
        if execution.ready() == 0 {
            execution.advance(others);
        }
        for (to, signal) in std::mem::take(&mut others.signals) {
            self.signals.entry((rank, to)).or_default().push_back(signal);
        }
        Ok(())
    }

    fn start(&mut self, rank: usize) {
        let is_full = |from: usize| {
            let eager = self.data.get(&(from, rank)).into_iter().flatten();
            eager.filter(|(_, eager)| *eager).count() >= usize::from(SLOTS)
        };
        let crowded = (0..self.members.len()).map(is_full).collect();
        let member = &mut self.members[rank];
        (member.others.crowded, member.is_started) = (crowded, true);
        member.execution.start(&mut member.others);
    }

    fn step(&mut self, rank: usize, at: usize) -> Result<(), End> {
        let Some(ready) = self.members[rank].execution.take(at) else { return Ok(()) };
        let prepared = self.members[rank].execution.prepared().clone();
        let Kind::Send(send) = &prepared.steps[ready.step as usize].kind else {
            self.members[rank].execution.complete(ready);
            return Ok(());
        };
        for lane in send.lanes.clone() {
            let peer = &prepared.peers[prepared.lanes[lane as usize].peer as usize];
            let reader = self.members[peer.rank as usize].execution.segment_progress();
            if peer.shared && reader.finished + self.ahead[rank] <= ready.segment {
                return Err(End::Overwritten);
            }
        }
        self.members[rank].execution.sends(ready);
        send.lanes.clone().for_each(|lane| self.offer(rank, SegmentMessage { ready, lane }));
        Ok(())
    }

    fn offer(&mut self, rank: usize, message: SegmentMessage) {
        let Member { execution, others, going, .. } = &mut self.members[rank];
        match execution.offer(message, others) {
            SendDecision::Go { eager } => going.push((message, eager)),
            SendDecision::Needless => drop(execution.handed_over(message.ready, 1)),
            SendDecision::Later => {}
        }
    }

    /// A message leaves: its source may be written again, if its receiver does not read it there.
    fn leave(&mut self, rank: usize, at: usize) {
        let member = &mut self.members[rank];
        let (message, eager) = member.going.remove(at);
        member.turns.iter_mut().for_each(|turns| turns.left(&message));
        member.execution.handed_over(message.ready, 1);
        let prepared = member.execution.prepared();
        let to = prepared.peers[prepared.lanes[message.lane as usize].peer as usize].rank as usize;
        self.data.entry((rank, to)).or_default().push_back((message, eager));
    }

    fn arrive(&mut self, lane @ (from, to): Lane) -> Result<(), End> {
        let sent = self.data.get_mut(&lane).and_then(VecDeque::pop_front);
        let Some((SegmentMessage { ready: SegmentStep { segment, .. }, lane }, eager)) = sent else {
            return Ok(());
        };
        let index = self.members[from].execution.prepared().lanes[lane as usize].index;
        let execution = &mut self.members[to].execution;
        let refused = |violation| End::Refused(to, violation);
        let peer = execution.prepared().peer(from as u32).expect("a partner");
        let wanted = &execution.prepared().peers[peer];
        let is_shared = wanted.shared;
        let head = &execution.prepared().heads[wanted.heads[usize::from(index)] as usize];
        let length = execution.prepared().bytes(head.run, segment, head.form) as u32;
        let head = execution.awaited(&MessageClaim { peer, index, segment, length }).map_err(refused)?;
        let place = match is_shared {
            true => Arrived::At(0),
            false => match execution.landing(segment, head).map_err(refused)? {
                MessagePlace::Output(_) => Arrived::Placed,
                MessagePlace::Staged(_) => Arrived::Staged,
            },
        };
        execution.arrive(segment, head, place).map_err(refused)?;
        if eager {
            self.members[from].others.free[to] += 1;
            self.retry(from);
        }
        Ok(())
    }

    fn retry(&mut self, rank: usize) {
        for message in self.members[rank].execution.take_blocked() {
            self.offer(rank, message);
        }
    }

    fn receive_signal(&mut self, lane @ (from, to): Lane) -> Result<(), End> {
        let signal = self.signals.get_mut(&lane).and_then(VecDeque::pop_front).expect("a word");
        let Member { execution, others, .. } = &mut self.members[to];
        let peer = execution.prepared().peer(from as u32).expect("a partner");
        execution.receive_signal(peer, signal, others).map_err(|violation| End::Refused(to, violation))?;
        self.retry(to);
        let Member { execution, others, .. } = &mut self.members[to];
        execution.begin(others);
        Ok(())
    }
}
