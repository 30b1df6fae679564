//! Which messages need no memory of their own: a message can be read in its sender's buffer, or received into its
//! receiver's buffer.
//!
//! # Read in the sender's buffer
//! Between processes that share memory a message is in a slot of its sender. The user's buffer might be written again
//! by a later step, or by the user after the operation, while a slow receiver still reads. In one case neither can
//! happen: the chunk is overwritten by the receiver's own answer, made from this very message. Then the answer comes
//! after the last read, and the sender's operation does not end before the answer is there. So such a message need not
//! be copied, and its answer can be put straight into the chunk.
//!
//! # Received into the receiver's buffer
//! Over links a result is put where it belongs as it arrives, if the steps that read the input there are done. In one
//! case they are always done: the result is the last write to that place, and only one step uses the earlier data. That
//! step is a fold, a copy or a send to one rank. The result contains all inputs, so this rank's input has been sent,
//! and its receiver had all of it. The other case is a rank that only receives, such as the last rank in a broadcast.
//! Data that only moves, from one rank to one other, has a place that no other step touches.

use super::program::{Head, Prepared};
use crate::schedule::{Form, Origin, Place, Program, Schedule, Step};
use alloc::{vec, vec::Vec};

impl Prepared {
    /// Whether the answer to a message can overwrite that message. It has the same length, and its sender has no other
    /// message in the same step that might overlap it. This holds for all messages that are read in place. A frame's
    /// own claim is not trusted.
    pub fn may_be_direct(&self, head: &Head) -> bool {
        let heads = self.peers[head.peer as usize].heads.iter();
        let of_it = heads.filter(|other| self.heads[**other as usize].step == head.step);
        head.form == Form::Plain && of_it.count() == 1
    }
}

/// The steps of a program that are so for each of their chunks; `single` are those that are so chunk by chunk.
fn for_all_chunks(program: &Program, single: &[u32]) -> Vec<u32> {
    let mut at = 0;
    let is_so = |step: &u32| {
        let chunks = at..at + program.span(*step as usize);
        at = chunks.end;
        chunks.into_iter().all(|chunk| single.binary_search(&chunk).is_ok())
    };
    (0..program.steps().len() as u32).filter(is_so).collect()
}

/// The steps of rank `me`'s program that are such sends.
pub(super) fn sends(schedule: &Schedule, program: &Program, me: u32) -> Vec<u32> {
    if program.longest_span() > 1 {
        // What comes back may be of other chunks than what went.
        return Vec::new();
    }
    let steps = program.steps();
    let is_direct = |at: &u32| {
        let Step::Send { from: place @ Place::User(chunk), to } = steps[*at as usize] else { return false };
        let &[to] = program.lanes(to) else { return false };
        let mut later = steps[*at as usize + 1..].iter().filter(|step| touches(program, step, place));
        let answer = |step: &Step| matches!(*step, Step::Recv { lane, chunk: of, into } if (lane, of, into) == (to, chunk, place));
        to < schedule.workers()
            && later.next().is_some_and(answer)
            && later.next().is_none()
            && answers(&schedule.program(to), me, chunk)
    };
    (0..steps.len() as u32).filter(is_direct).collect()
}

/// The steps of an all-reduce's or a broadcast's program that receive a result whose place in the user's buffer is free by
/// then.
pub(super) fn results(program: &Program) -> Vec<u32> {
    for_all_chunks(program, &single_results(&program.chunk_by_chunk()))
}

fn single_results(program: &Program) -> Vec<u32> {
    let steps = program.steps();
    let only_receives = steps.iter().all(|step| matches!(step, Step::Recv { .. }));
    let by_chunk = Touching::of(program);
    let is_free = |at: &u32| {
        let Step::Recv { into: place @ Place::User(chunk), .. } = steps[*at as usize] else { return false };
        let mut touching = by_chunk.steps(chunk).iter().map(|at| (*at, &steps[*at as usize]));
        if only_receives {
            return touching.count() == 1;
        }
        let takes = |step: &Step| match *step {
            Step::Send { to, .. } => program.lanes(to).len() == 1,
            Step::Fold { into, .. } | Step::Copy { into, .. } => into != place,
            Step::Recv { .. } | Step::Encode { .. } | Step::Decode { .. } => false,
        };
        touching.next().is_some_and(|(_, step)| takes(step))
            && touching.next().is_some_and(|(next, _)| next == *at)
            && touching.all(|(_, step)| matches!(step, Step::Send { .. }))
    };
    (0..steps.len() as u32).filter(is_free).collect()
}

/// The steps of a program that receive a part into a place of the user's buffer that no other step touches.
pub(super) fn parts(program: &Program) -> Vec<u32> {
    let (steps, by_chunk) = (program.steps(), Touching::of(program));
    let is_free = |at: &u32| {
        let Step::Recv { into: Place::User(chunk), .. } = steps[*at as usize] else { return false };
        by_chunk.steps(chunk).len() == 1
    };
    (0..steps.len() as u32).filter(is_free).collect()
}

/// Which steps read or write which chunk of the user's buffer.
struct Touching {
    /// A chunk and a step, ascending, each once.
    pairs: Vec<(u32, u32)>,
    /// The steps of these.
    steps: Vec<u32>,
}

impl Touching {
    fn of(program: &Program) -> Self {
        let mut pairs = Vec::new();
        for (at, step) in (0..).zip(program.steps()) {
            let places = program.places(step).filter_map(|place| match place {
                Place::User(chunk) => Some((chunk, at)),
                Place::Slot(_) => None,
            });
            pairs.extend(places);
        }
        pairs.sort_unstable();
        pairs.dedup();
        let steps = pairs.iter().map(|(_, step)| *step).collect();
        Self { pairs, steps }
    }

    /// The steps that touch a chunk, in the program's order.
    fn steps(&self, chunk: u32) -> &[u32] {
        let first = self.pairs.partition_point(|(of, _)| *of < chunk);
        let end = self.pairs.partition_point(|(of, _)| *of <= chunk);
        &self.steps[first..end]
    }
}

/// Whether a step reads or writes a place.
fn touches(program: &Program, step: &Step, place: Place) -> bool {
    program.places(step).any(|touched| touched == place)
}

/// Whether a program sends `rank` for `chunk` exactly one message, made by a fold of the only one that it received from
/// `rank` for that chunk.
fn answers(program: &Program, rank: u32, chunk: u32) -> bool {
    let mut folded = None;
    let mut sent = Vec::new();
    for step in program.steps() {
        match *step {
            Step::Fold { chunk: of, from, into, finish } if of == chunk => {
                let heads = program
                    .sources(from)
                    .iter()
                    .filter(|source| matches!(source.from, Origin::Head { lane, .. } if lane == rank))
                    .count();
                match (heads, folded) {
                    (0, _) if folded != Some(into) => {}
                    (1, None) if finish && into == Place::User(chunk) => folded = Some(into),
                    _ => return false,
                }
            }
            Step::Recv { lane, chunk: of, into } if of == chunk && (lane == rank || folded == Some(into)) => {
                return false;
            }
            Step::Copy { into, .. } if folded == Some(into) => return false,
            Step::Send { from, to } if program.lanes(to).contains(&rank) => sent.push((from, folded)),
            _ => {}
        }
    }
    let carries = |(from, folded): &(Place, Option<Place>)| folded.is_some_and(|into| into == *from);
    folded.is_some() && sent.iter().filter(|(from, _)| *from == Place::User(chunk)).all(carries)
}

/// Per slot of a program: whether it is written after it was sent. Then it must not be read by a late receiver.
pub(super) fn rewritten_after_send(program: &Program) -> Vec<bool> {
    let program = &*program.chunk_by_chunk();
    let mut sent = vec![false; program.slots().len()];
    let mut rewritten = sent.clone();
    for step in program.steps() {
        match *step {
            Step::Send { from: Place::Slot(slot), .. } => sent[slot as usize] = true,
            Step::Recv { into: Place::Slot(slot), .. }
            | Step::Fold { into: Place::Slot(slot), .. }
            | Step::Copy { into: Place::Slot(slot), .. }
            | Step::Encode { into: Place::Slot(slot), .. }
            | Step::Decode { into: Place::Slot(slot), .. } => rewritten[slot as usize] |= sent[slot as usize],
            _ => {}
        }
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::{Call, Kind, Sizing, prepare};
    use crate::{
        algorithm::{Algorithm, Layout},
        collective::Collective,
        element::{DType, ReduceOp},
        group::Group,
        verify::verify,
    };

    /// How many direct sends each rank has.
    fn direct(algorithm: &str, collective: Collective, ranks: u32) -> Vec<usize> {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let layout = Layout { reducers: 0, hosts: &[], links: None };
        let schedule = algorithm.schedule(collective, &Group::of_size(ranks), &layout).unwrap();
        (0..ranks).map(|me| sends(&schedule, &schedule.program(me), me).len()).collect()
    }

    /// Per rank, for each of its messages from local ranks: whether the sender has it read in its buffer, and whether its answer
    /// may be put there.
    fn heads(algorithm: &str, dtype: DType, ranks: u32) -> Vec<(bool, bool)> {
        let (algorithm, group): (Algorithm, _) = (algorithm.parse().unwrap(), Group::of_size(ranks));
        let (collective, count) = (Collective::AllReduce, 1 << 20);
        let schedule =
            algorithm.schedule(collective, &group, &Layout { reducers: 0, hosts: &[], links: None }).unwrap();
        let verified = verify(schedule, collective, &group).unwrap();
        let call = Call::new(collective, dtype, ReduceOp::Sum, count);
        let sizing = Sizing { hosts: 1, shared: true, segment_bytes: 0, most_staged: usize::MAX };
        let prepared: Vec<_> = (0..ranks)
            .map(|me| {
                let program = verified.schedule().program(me);
                prepare(&verified, &program, me, call, None, sizing, |_| true).unwrap()
            })
            .collect();
        let mut found = Vec::new();
        for (me, of_me) in prepared.iter().enumerate() {
            for head in &of_me.heads {
                let sender = &prepared[of_me.peers[head.peer as usize].rank as usize];
                let goes = |lane: &u32| {
                    let to = &sender.lanes[*lane as usize];
                    sender.peers[to.peer as usize].rank as usize == me && to.index == head.index
                };
                let is_direct = sender.steps.iter().any(|step| {
                    matches!(&step.kind, Kind::Send(send) if send.direct && send.lanes.clone().any(|lane| goes(&lane)))
                });
                found.push((is_direct, of_me.may_be_direct(head)));
            }
        }
        found
    }

    #[test]
    fn answers_are_taken_where_they_can_be_put_and_nowhere_else() {
        for algorithm in ["radix", "tree", "doubling", "one_shot", "star", "radix(2,2)", "radix(2,2,2)"] {
            for dtype in [DType::F32, DType::Bf16] {
                for ranks in [2, 3, 4, 5, 8].into_iter().filter(|ranks| fits(algorithm, *ranks)) {
                    let heads = heads(algorithm, dtype, ranks);
                    assert!(heads.iter().all(|(is, may)| !is || *may), "{algorithm} {dtype} {ranks}");
                }
            }
        }
        let partial = heads("tree", DType::Bf16, 8);
        assert!(partial.iter().any(|(_, may)| !may), "sums of bf16 under way are f32");
    }

    fn fits(algorithm: &str, ranks: u32) -> bool {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let layout = Layout { reducers: 0, hosts: &[], links: None };
        algorithm.schedule(Collective::AllReduce, &Group::of_size(ranks), &layout).is_ok()
    }

    #[test]
    fn every_part_of_a_sharded_all_reduce_is_answered_by_its_owner() {
        for ranks in 2..9 {
            assert_eq!(
                direct("radix", Collective::AllReduce, ranks),
                vec![ranks as usize - 1; ranks as usize]
            );
        }
    }

    #[test]
    fn a_leaf_of_a_tree_is_answered_by_the_root_if_that_is_its_parent() {
        assert_eq!(direct("tree", Collective::AllReduce, 4), [0, 1, 0, 0]);
    }

    #[test]
    fn what_is_not_answered_by_its_reader_is_copied() {
        for algorithm in ["doubling", "one_shot", "radix(2,2)", "ring"] {
            assert_eq!(direct(algorithm, Collective::AllReduce, 4).iter().sum::<usize>(), 0, "{algorithm}");
        }
        assert_eq!(direct("radix", Collective::ReduceScatter, 4).iter().sum::<usize>(), 0);
        assert_eq!(direct("radix", Collective::AllGather, 4).iter().sum::<usize>(), 0);
    }

    /// How many results each rank receives into its buffer.
    fn received(algorithm: &str, ranks: u32) -> Vec<usize> {
        let algorithm: Algorithm = algorithm.parse().unwrap();
        let layout = Layout { reducers: 0, hosts: &[], links: None };
        let schedule = algorithm.schedule(Collective::AllReduce, &Group::of_size(ranks), &layout).unwrap();
        (0..ranks).map(|me| results(&schedule.program(me)).len()).collect()
    }

    #[test]
    fn results_are_received_in_place_where_one_message_or_sum_took_what_was_there() {
        assert_eq!(received("radix(2,2,2)", 8), [3; 8], "of one, two and four chunks");
        assert_eq!(received("radix", 7), [6; 7]);
        assert_eq!(received("tree", 4), [0, 1, 1, 1]);
        // There an input goes to several ranks, and any of them may be late.
        assert_eq!(received("one_shot", 4), [0; 4]);
    }

    #[test]
    fn a_place_that_is_read_twice_or_written_again_is_not_free() {
        let program = |steps: &str| {
            let text =
                format!("schedule workers=2 reducers=0 cut=even:2\nrank 0\n{steps}\nrank 1\n slots plain");
            results(&Schedule::parse(&text).unwrap().program(0))
        };
        let send = "send u0 -> 1";
        let recv = "recv c0 u0 <- 1";
        assert_eq!(program(&format!("slots plain\n{send}\n{recv}")), [1]);
        assert_eq!(program(&format!("slots plain\n{send}\n{recv}\n{send}")), [1]);
        assert_eq!(program(recv), [0], "a rank that only receives");
        assert_eq!(program(&format!("{recv}\n{recv}")), [] as [u32; 0]);
        assert_eq!(program(&format!("{recv}\nsend u1 -> 1")), [] as [u32; 0]);
        assert_eq!(program(&format!("slots plain\n{send}\n{send}\n{recv}")), [] as [u32; 0]);
        assert_eq!(program(&format!("slots plain\n{send}\n{recv}\n{recv}")), [] as [u32; 0]);
        assert_eq!(program("slots plain\nfold c0 u0 = u0\nrecv c0 u0 <- 1"), [] as [u32; 0]);
        assert_eq!(program("slots plain\nfold c0 s0 = u0\nrecv c0 u0 <- 1"), [1]);
    }
}
