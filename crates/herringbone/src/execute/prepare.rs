//! One rank's program for one kind of call: a flat array of instructions with resolved places and predecessor counts,
//! made once. Running it copies the counts; no closure or queue per variable is involved.

use super::{
    compile::Compiler,
    cutting::{self, Medium, Room, Segmentation, segmentation},
    direct,
};
use crate::core::{
    collective::Collective,
    element::{DType, ReduceOp},
    schedule::{Chunk, Form, Program, Step},
    session::turns::{self, Turns},
    verify::Verified,
};
use std::{collections::BTreeSet, ops::Range};

/// What is asked for, as far as the program depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) count: usize,
}

impl Call {
    pub(super) fn width(&self, form: Form) -> usize {
        match form {
            Form::Plain => self.dtype.bytes(),
            Form::Acc => self.dtype.accumulator(self.op).bytes(),
        }
    }
}

/// How a group's operations are cut into segments; the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizing {
    /// How many hosts the members have: what they send leaves by as many links.
    pub(crate) hosts: u32,
    /// Whether all members share one host's memory; of no matter where reducers take part.
    pub(crate) shared: bool,
    /// The user's wish for a segment's bytes over the whole buffer, 0 for the default.
    pub(crate) segment_bytes: usize,
    /// The most staging memory that an operation gets on any rank.
    pub(crate) most_staged: usize,
}

impl Sizing {
    /// How many hosts there are, where each member's is given.
    pub(crate) fn distinct(hosts: &[u32]) -> u32 {
        hosts.iter().collect::<BTreeSet<_>>().len() as u32
    }
}

/// Where a chunk's segment lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loc {
    Input(Chunk),
    Output(Chunk),
    /// A stretch of the stage's staging memory.
    Staged {
        chunk: Chunk,
        offset: usize,
    },
}

/// One message of mine to one rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outbound {
    pub(crate) peer: u32,
    pub(crate) index: u16,
    /// The head whose fold's result this message carries back to who sent it.
    pub(crate) answers: Option<u32>,
    /// The number of its turn, if it has to wait for one.
    pub(crate) turn: Option<u32>,
}

/// One source of a fold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    At { loc: Loc, form: Form, merges: u8 },
    Head { head: u32, merges: u8 },
}

/// One message that I receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) instr: u32,
    /// Who sends it: a position among [`Prepared::peers`].
    pub(crate) peer: u32,
    /// Which of that rank's messages it is.
    pub(crate) index: u16,
    pub(crate) chunk: Chunk,
    pub(crate) form: Form,
    /// Where it is kept in the stage's staging memory, when it does not stay with its sender.
    pub(crate) offset: usize,
    /// Whether it has no place there, as its place in the user's buffer is free whenever it comes.
    pub(crate) placed: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Send(Send),
    Recv { head: u32, into: Loc },
    Fold(Fold),
    Copy { from: Loc, into: Loc, form: Form },
}

/// A message for one rank or several.
#[derive(Clone, Debug)]
pub(crate) struct Send {
    pub(crate) from: Loc,
    pub(crate) form: Form,
    /// To whom: positions among [`Prepared::lanes`].
    pub(crate) lanes: Range<u32>,
    /// Where in the stage's staging memory shared-memory receivers find it, if it is not there already.
    pub(crate) copy: Option<usize>,
    /// Whether the fold that makes the message puts it there.
    pub(crate) folded: bool,
    /// Whether they may find it in the user's buffer instead, because its result is what overwrites it.
    pub(crate) direct: bool,
}

/// Partial sums that become one.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// Positions among [`Prepared::operands`].
    pub(crate) operands: Range<u32>,
    pub(crate) into: Loc,
    pub(crate) form: Form,
    pub(crate) finish: bool,
    /// The first instruction that sends the result: where its receivers look for it, it is put at once.
    pub(crate) sent_by: Option<u32>,
}

/// One instruction: a step with resolved places.
#[derive(Clone, Debug)]
pub(crate) struct Instr {
    pub(crate) kind: Kind,
    /// The instructions that wait for this one.
    pub(crate) next: Range<u32>,
}

/// A rank that I exchange messages with in this program.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Its position in the roster.
    pub(crate) rank: u32,
    /// The heads of its messages to me, by index.
    pub(crate) heads: Vec<u32>,
    /// How many messages I send it per segment.
    pub(crate) sends: u16,
    /// Whether we share memory.
    pub(crate) shared: bool,
}

/// One rank's program for one kind of call, ready to run.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) call: Call,
    pub(crate) workers: u32,
    pub(crate) instrs: Vec<Instr>,
    /// Per instruction: how many instructions and messages it waits for.
    pub(crate) waits: Vec<u16>,
    pub(crate) next: Vec<u32>,
    pub(crate) operands: Vec<Operand>,
    pub(crate) lanes: Vec<Outbound>,
    pub(crate) heads: Vec<Head>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) segments: u32,
    /// How many segments may be in flight.
    pub(crate) depth: u32,
    /// How many of them a rank begins that has to copy its messages to where host-mates find them, and for how many there has
    /// to be memory.
    pub(crate) lead: u32,
    pub(crate) stage_bytes: usize,
    /// Whether messages are [eager](cutting::EAGER_BYTES).
    pub(crate) eager: bool,
    /// The order in which messages leave over links, if there is one.
    pub(crate) turns: Option<Turns>,
    /// The order in which messages arrive over links, where ranks clear each other's turns.
    pub(crate) arrivals: Option<Turns>,
    /// Per chunk: its elements in the input and in the output, empty where the buffer does not have it.
    pub(super) input: Vec<Range<usize>>,
    pub(super) output: Vec<Range<usize>>,
    /// Elements per chunk and segment.
    pub(super) per_segment: usize,
}

impl Prepared {
    /// The send that an instruction is.
    pub(crate) fn send(&self, instr: u32) -> &Send {
        match &self.instrs[instr as usize].kind {
            Kind::Send(send) => send,
            kind => unreachable!("only sends have lanes: {kind:?}"),
        }
    }

    /// Bytes of staging memory for so many segments in flight.
    pub(crate) fn staging_bytes(&self, segments: u32) -> usize {
        self.stage_bytes * segments as usize
    }

    /// How many segments a rank has in flight at most, if there is memory for them. One that copies what host-mates
    /// read has fewer than one whose buffer they can reach.
    pub(crate) fn ahead(&self, is_mapped: bool) -> u32 {
        if self.is_in_memory() && !is_mapped { self.lead } else { self.depth }
    }

    /// The position of a rank among [`Self::peers`], if it is one.
    pub(super) fn peer(&self, rank: u32) -> Option<usize> {
        self.peers.binary_search_by_key(&rank, |peer| peer.rank).ok()
    }

    /// Whether all messages are read where they lie.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.peers.iter().all(|peer| peer.shared)
    }

    pub(crate) fn width(&self, form: Form) -> usize {
        self.call.width(form)
    }

    /// The bytes of a chunk's segment within the input buffer.
    pub(crate) fn input(&self, chunk: Chunk, segment: u32) -> Range<usize> {
        self.slice(&self.input[chunk as usize], segment, self.width(Form::Plain))
    }

    /// The bytes of a chunk's segment within the output buffer.
    pub(crate) fn output(&self, chunk: Chunk, segment: u32) -> Range<usize> {
        self.slice(&self.output[chunk as usize], segment, self.width(Form::Plain))
    }

    /// How many bytes a chunk's segment has in a form.
    pub(crate) fn bytes(&self, chunk: Chunk, segment: u32, form: Form) -> usize {
        let whole = if self.input[chunk as usize].is_empty() { &self.output } else { &self.input };
        self.slice(&whole[chunk as usize], segment, self.width(form)).len()
    }

    fn slice(&self, whole: &Range<usize>, segment: u32, width: usize) -> Range<usize> {
        let from = (whole.start + self.per_segment * segment as usize).min(whole.end);
        let to = (from + self.per_segment).min(whole.end);
        from * width..to * width
    }
}

/// The ranks that `program` exchanges messages with, ascending.
pub(crate) fn partners(program: &Program) -> Vec<u32> {
    let mut ranks = Vec::new();
    for step in program.steps() {
        ranks.extend(program.received(step));
        if let Step::Send { to, .. } = *step {
            ranks.extend(program.lanes(to));
        }
    }
    ranks.sort_unstable();
    ranks.dedup();
    ranks
}

/// Whether every rank sends as much as every other. Where one has more to send than others, as the root of a broadcast, they
/// would wait for their turns.
fn all_send_alike(collective: Collective) -> bool {
    matches!(collective, Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather)
}

/// The turns in which rank `me` receives, and how often ranks change to another one in a lap, if the call is large enough for
/// turns to be cleared. Where partial sums are wider than results both halves differ, and wait for each other in many turns.
fn cleared(verified: &Verified, me: u32, call: Call, memories: &[u32]) -> Option<(Turns, usize)> {
    let cut = verified.schedule().cut();
    let ends = (0..cut.chunks()).map(|chunk| cut.range(chunk, call.count, call.dtype.bytes()).end);
    let bytes = ends.max().unwrap_or(0) * call.width(Form::Plain);
    let alike = call.width(Form::Plain) == call.width(Form::Acc);
    let most = cutting::most_changes(bytes).min(if alike { usize::MAX } else { cutting::FEW_CHANGES });
    let mates = |one: u32, other: u32| memories[one as usize] == memories[other as usize];
    if most > 0 { turns::arrivals(verified, me, mates, most) } else { None }
}

/// Compiles rank `me`'s program of a schedule. `memories` tells which workers share one; `shared` says with which ranks there
/// is a link through it now.
pub(crate) fn prepare(
    verified: &Verified,
    program: &Program,
    me: u32,
    call: Call,
    (sizing, memories): (Sizing, &[u32]),
    shared: impl Fn(u32) -> bool,
) -> Prepared {
    let schedule = verified.schedule();
    let cut = schedule.cut();
    let medium = match (schedule.reducers() > 0, sizing.shared) {
        (true, _) if schedule.reducers() < sizing.hosts => Medium::FewReducers,
        (true, _) => Medium::Reducers,
        (false, true) => Medium::Memory,
        (false, false) => Medium::Links,
    };
    let over_links = medium == Medium::Links;
    let in_turns = over_links && all_send_alike(call.collective) && verified.sends_in_order();
    let arrivals = in_turns.then(|| cleared(verified, me, call, memories)).flatten();
    let medium = match &arrivals {
        Some((_, changes)) if *changes > cutting::FEW_CHANGES => Medium::LongTurns,
        _ => medium,
    };
    let room = Room { chunks: verified.cost().worker.kept as usize, bytes: sizing.most_staged };
    let Segmentation { elements: per_segment, segments, depth, lead } =
        segmentation(cut, &call, sizing.segment_bytes, medium, room);
    let message_bytes = per_segment * call.width(Form::Acc).max(call.width(Form::Plain));
    let peer = |rank| Peer { rank, heads: Vec::new(), sends: 0, shared: shared(rank) };
    let peers = partners(program).into_iter().map(peer).collect();
    let (input, output) = cutting::buffers(cut, &call, me);
    let eager = segments == 1 && message_bytes <= cutting::eager_bytes(medium);
    let lap_bytes = message_bytes * cut.chunks() as usize * depth as usize;
    // A user's wish for segments, or little memory, can make a lap shorter than the call allows.
    let arrivals = arrivals.filter(|(_, changes)| *changes <= cutting::most_changes(lap_bytes));
    let prepared = Prepared {
        call,
        workers: schedule.workers(),
        instrs: Vec::new(),
        waits: Vec::new(),
        next: Vec::new(),
        operands: Vec::new(),
        lanes: Vec::new(),
        heads: Vec::new(),
        peers,
        segments,
        depth,
        lead,
        stage_bytes: 0,
        eager,
        turns: (in_turns && !eager).then(Turns::default),
        arrivals: arrivals.map(|(turns, _)| turns),
        input,
        output,
        per_segment,
    };
    let direct = if medium == Medium::Memory { direct::sends(schedule, program, me) } else { Vec::new() };
    let results = match call.collective {
        Collective::AllReduce | Collective::Broadcast { .. } if over_links => direct::results(program),
        _ => Vec::new(),
    };
    Compiler::new(prepared, program, cut.chunks(), direct, results).compile(program, me)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{
        algorithm::{Algorithm, Layout},
        group::Group,
        verify::verify,
    };

    /// What every rank needs for an all-reduce over links, of which some are to ranks of its own host.
    fn needed(algorithm: &str, hosts: &[u32], call: Call, wish: usize, most_staged: usize) -> Vec<usize> {
        let (algorithm, group): (Algorithm, _) =
            (algorithm.parse().unwrap(), Group::of_size(hosts.len() as u32));
        let schedule = algorithm.schedule(call.collective, &group, &Layout { reducers: 0, hosts }).unwrap();
        let verified = verify(schedule, call.collective, &group).unwrap();
        let sizing = Sizing { hosts: hosts.len() as u32, shared: false, segment_bytes: wish, most_staged };
        let needed = |me: u32| {
            let program = verified.schedule().program(me);
            let here = |rank: u32| hosts[rank as usize] == hosts[me as usize];
            let prepared = prepare(&verified, &program, me, call, (sizing, hosts), here);
            prepared.staging_bytes(prepared.depth)
        };
        (0..group.size()).map(needed).collect()
    }

    /// The turns of rank 0's messages, where all ranks have hosts of their own or one.
    fn turns(algorithm: &str, collective: Collective, count: usize, shared: bool) -> Vec<Option<u32>> {
        let (algorithm, group): (Algorithm, _) = (algorithm.parse().unwrap(), Group::of_size(4));
        let layout = Layout { reducers: 2, hosts: &[] };
        let schedule = algorithm.schedule(collective, &group, &layout).unwrap();
        let verified = verify(schedule, collective, &group).unwrap();
        let call = Call { collective, dtype: DType::F32, op: ReduceOp::Sum, count };
        let sizing = Sizing { hosts: 4, shared, segment_bytes: 0, most_staged: usize::MAX };
        let program = verified.schedule().program(0);
        let memories = if shared { [0; 4] } else { [0, 1, 2, 3] };
        let prepared = prepare(&verified, &program, 0, call, (sizing, &memories), |_| shared);
        prepared.lanes.iter().map(|lane| lane.turn).collect()
    }

    #[test]
    fn messages_take_turns_where_all_send_alike_over_links() {
        let all_reduce = |algorithm, count, shared| turns(algorithm, Collective::AllReduce, count, shared);
        // Two chunks to one partner, one to the other; then their results back.
        let halves = [0, 0, 1, 2, 3, 3].map(Some);
        assert_eq!(all_reduce("radix(2,2)", 1 << 20, false), halves);
        assert_eq!(all_reduce("radix", 1 << 20, false), [0, 1, 2, 3, 4, 5].map(Some));
        assert_eq!(all_reduce("radix(2,2)", 1 << 20, true), [None; 6]);
        assert_eq!(all_reduce("radix(2,2)", 64, false), [None; 6]);
        assert!(all_reduce("reduction_server", 1 << 20, false).iter().all(Option::is_none));
        let broadcast = turns("tree", Collective::Broadcast { root: 0 }, 1 << 20, false);
        assert!(broadcast.len() > 1 && broadcast.iter().all(Option::is_none), "{broadcast:?}");
    }

    #[test]
    fn the_last_of_a_broadcast_receive_it_in_place() {
        let group = Group::of_size(3);
        let call = Call {
            collective: Collective::Broadcast { root: 0 },
            dtype: DType::U8,
            op: ReduceOp::Sum,
            count: 9 << 20,
        };
        let schedule = Algorithm::Tree.schedule(call.collective, &group, &Layout { reducers: 0, hosts: &[] });
        let verified = verify(schedule.unwrap(), call.collective, &group).unwrap();
        let sizing = Sizing { hosts: 3, shared: false, segment_bytes: 0, most_staged: 3 << 20 };
        let staged = |me| {
            let program = verified.schedule().program(me);
            let prepared = prepare(&verified, &program, me, call, (sizing, &[0, 1, 2]), |_| false);
            prepared.staging_bytes(prepared.depth)
        };
        assert_eq!([0, 1, 2].map(staged), [0; 3]);
    }

    #[test]
    fn who_changes_partners_often_takes_long_turns_where_they_can_be_long() {
        let lap = |hosts: u32, dtype, count| {
            let (algorithm, group): (Algorithm, _) = ("radix".parse().unwrap(), Group::of_size(hosts));
            let layout = Layout { reducers: 0, hosts: &[] };
            let call = Call { collective: Collective::AllReduce, dtype, op: ReduceOp::Sum, count };
            let schedule = algorithm.schedule(call.collective, &group, &layout).unwrap();
            let verified = verify(schedule, call.collective, &group).unwrap();
            let sizing = Sizing { hosts, shared: false, segment_bytes: 0, most_staged: usize::MAX };
            let memories: Vec<u32> = (0..hosts).collect();
            let of = |me| {
                let program = verified.schedule().program(me);
                let prepared = prepare(&verified, &program, me, call, (sizing, &memories), |_| false);
                let bytes = prepared.per_segment * 4 * hosts as usize * prepared.depth as usize;
                let staged = prepared.staging_bytes(prepared.depth);
                assert!(staged <= 16 << 20, "four at once, but {staged} bytes each");
                prepared.arrivals.map(|_| bytes >> 20)
            };
            let laps: Vec<Option<usize>> = (0..hosts).map(of).collect();
            assert!(laps.iter().all(|lap| *lap == laps[0]), "{laps:?}");
            laps[0]
        };
        let large = 25 << 18;
        assert!(lap(3, DType::F32, large).is_some_and(|mebibytes| mebibytes < 7));
        for count in [15, 20, 25, 33, 45, 49, 60, 100, 1000].map(|mebibytes: usize| mebibytes << 18) {
            for hosts in [5, 6, 7] {
                let lap = lap(hosts, DType::F32, count);
                assert!(
                    lap.is_some_and(|mebibytes| (10..15).contains(&mebibytes)),
                    "{hosts}, {count}: {lap:?}"
                );
            }
        }
        // Too short, too many changes, and partial sums that are wider than results.
        assert_eq!(lap(7, DType::F32, 3 << 18), None);
        assert_eq!(lap(9, DType::F32, large), None);
        assert_eq!(lap(7, DType::Bf16, large), None);
    }

    #[test]
    fn what_goes_over_links_fits_the_memory_of_every_rank() {
        let kinds =
            [(DType::F32, ReduceOp::Sum), (DType::Bf16, ReduceOp::Sum), (DType::I8, ReduceOp::Average)];
        let names = ["radix", "radix(2,2,2)", "radix(4,2)", "doubling", "one_shot", "star", "tree", "ring"];
        let layouts =
            [&[0, 1][..], &[0, 0, 1], &[0, 0, 0, 0, 1, 1], &[0, 1, 2, 3, 4, 5, 6], &[0, 0, 1, 1, 2, 2, 3, 3]];
        for (hosts, name) in layouts.into_iter().flat_map(|hosts| names.map(|name| (hosts, name))) {
            for ((dtype, op), count) in
                kinds.into_iter().flat_map(|kind| [100_003, 12 << 20].map(|count| (kind, count)))
            {
                let call = Call { collective: Collective::AllReduce, dtype, op, count };
                for (wish, most) in
                    [(0, 3_670_016), (0, 7_340_032), (1 << 20, 3_670_016), (8 << 20, 58_720_256)]
                {
                    let needed = needed(name, hosts, call, wish, most);
                    let label = format!("{name} on {hosts:?}, {count} {dtype}, {wish} wished, {most} there");
                    assert!(needed.iter().all(|bytes| *bytes <= most), "{label}: {needed:?}");
                    assert!(needed.iter().any(|bytes| *bytes > 0), "{label}: nothing is staged");
                }
            }
        }
    }
}
