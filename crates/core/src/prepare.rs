//! Preparing: from a verified schedule to one rank's program.

mod compile;
pub mod cutting;
mod direct;
mod program;

pub use cutting::TooManySegments;
pub use program::{
    Call, Fold, Head, Kind, Loc, Operand, Outbound, Peer, Prepared, PreparedStep, Send, Sizing, Staged,
};

use self::{
    compile::Compiler,
    cutting::{Extent, Medium, Room, SegmentTiming, Segmentation, segmentation},
    program::PerSegment,
};
use crate::{
    collective::{Collective, UnevenParts, Viewpoint},
    schedule::{Form, Program, Step},
    verify::Verified,
};
use alloc::vec::Vec;

/// The ranks that `program` exchanges messages with, ascending.
pub fn partners(program: &Program) -> Vec<u32> {
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

/// Compiles rank `me`'s program of a schedule. `parts` are this rank's parts, if they can differ. `shared` has the
/// ranks with a link through shared memory at this moment.
///
/// # Errors
/// [`TooManySegments`] if its segments could not be counted.
pub fn prepare(
    verified: &Verified,
    program: &Program,
    me: u32,
    call: Call,
    parts: Option<&UnevenParts>,
    sizing: Sizing,
    shared: impl Fn(u32) -> bool,
) -> Result<Prepared, TooManySegments> {
    let schedule = verified.schedule();
    if parts.is_none() {
        cutting::is_addressable(&call, verified.group())?;
    }
    let cut = schedule.cut();
    let medium = Medium::of(schedule.reducers(), sizing);
    let is_coded = cut.is_coded();
    let load = verified.cost().worker;
    let mut room = Room::of(load, cut, &call, sizing.most_staged);
    let timing = SegmentTiming::of(&verified.cost());
    let at = Viewpoint { cut, workers: schedule.workers(), worker: me };
    let sizes = call.lengths(parts);
    let inputs = if me < schedule.workers() { verified.group().inputs_of(me).len() as u32 } else { 1 };
    let (input, output) = cutting::buffers(at, call.collective, &sizes, inputs);
    let mut extent = Extent::of(at, &sizes, &input, &output, call.collective);
    if schedule.side_by_side() {
        (extent, room) = (extent.of_messages(&load, cut, call.count), room.of_messages(&load, cut, &call));
    }
    let mut segmentation = segmentation(extent, cut, &call, sizing.segment_bytes, medium, timing, room)?;
    let per_segment = match schedule.side_by_side() {
        true => PerSegment::SideBySide(segmentation.side_by_side(cut, &call)),
        false => PerSegment::new(cut, segmentation.segments, segmentation.elements, segmentation.grain),
    };
    let Segmentation { elements, segments, depth, lead, .. } = segmentation;
    let forms = if is_coded { [Form::Coded, Form::CodedResult] } else { [Form::Acc, Form::Plain] };
    let [one, other] = forms.map(|form| call.bytes(elements, form) * load.longest as usize);
    let message_bytes = one.max(other);
    let (gives, takes) = (segments, segments);
    let peer = |rank| Peer { rank, heads: Vec::new(), sends: 0, gives, takes, shared: shared(rank) };
    let peers = partners(program).into_iter().map(peer).collect();
    let eager = parts.is_none() && segments == 1 && message_bytes <= cutting::eager_bytes(medium);
    let prepared = Prepared {
        call,
        workers: schedule.workers(),
        steps: Vec::new(),
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
        input,
        output,
        per_segment,
    };
    let direct = if medium == Medium::Memory { direct::sends(schedule, program, me) } else { Vec::new() };
    let contributors = verified.group().contributors();
    let results =
        if medium == Medium::Links { received_in_place(call.collective, program) } else { Vec::new() };
    let mut prepared = Compiler::new(prepared, program, direct, results, contributors).compile(program, me);
    if parts.is_some() {
        limit(&mut prepared);
    }
    Ok(prepared)
}

/// The steps that receive something into the user's buffer, whose place is free by then.
fn received_in_place(collective: Collective, program: &Program) -> Vec<u32> {
    match collective {
        Collective::AllReduce | Collective::Broadcast { .. } => direct::results(program),
        Collective::Gather { .. } | Collective::Scatter { .. } | Collective::AllToAll => {
            direct::parts(program)
        }
        _ => Vec::new(),
    }
}

/// Notes with which peers messages go in fewer segments than there are, where parts differ.
fn limit(prepared: &mut Prepared) {
    for at in 0..prepared.peers.len() {
        let chunks = prepared.peers[at].heads.iter().map(|head| prepared.heads[*head as usize].run.first);
        let gives = chunks.map(|chunk| prepared.segments_of(chunk)).max();
        prepared.peers[at].gives = gives.unwrap_or(0);
    }
    for at in 0..prepared.steps.len() {
        let Kind::Send(send) = &prepared.steps[at].kind else { continue };
        let takes = prepared.segments_of(send.from.run().first);
        for lane in send.lanes.clone() {
            let peer = prepared.lanes[lane as usize].peer;
            prepared.peers[peer as usize].takes = takes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        algorithm::{Algorithm, Layout},
        element::{DType, ReduceOp},
        group::Group,
        schedule::{ChunkRun, Cut, Origin, Place, ProgramBuilder, Schedule},
        verify::{VerifyError, verify},
    };

    /// What every rank needs for an all-reduce over links, of which some are to ranks of its own host.
    fn needed(
        algorithm: &str,
        hosts: &[u32],
        call: Call,
        preferred: usize,
        most_staged: usize,
    ) -> Vec<usize> {
        let (algorithm, group): (Algorithm, _) =
            (algorithm.parse().unwrap(), Group::of_size(hosts.len() as u32));
        let schedule =
            algorithm.schedule(call.collective, &group, &Layout { reducers: 0, hosts, links: None }).unwrap();
        let verified = verify(schedule, call.collective, &group).unwrap();
        let sizing =
            Sizing { hosts: hosts.len() as u32, shared: false, segment_bytes: preferred, most_staged };
        let needed = |me: u32| {
            let program = verified.schedule().program(me);
            let here = |rank: u32| hosts[rank as usize] == hosts[me as usize];
            let prepared = prepare(&verified, &program, me, call, None, sizing, here).unwrap();
            prepared.staging_bytes(prepared.depth)
        };
        (0..group.size()).map(needed).collect()
    }

    #[test]
    fn the_last_of_a_broadcast_receive_it_in_place() {
        let group = Group::of_size(3);
        let call = Call::new(Collective::Broadcast { root: 0 }, DType::U8, ReduceOp::Sum, 9 << 20);
        let schedule = Algorithm::Tree.schedule(
            call.collective,
            &group,
            &Layout { reducers: 0, hosts: &[], links: None },
        );
        let verified = verify(schedule.unwrap(), call.collective, &group).unwrap();
        let sizing = Sizing { hosts: 3, shared: false, segment_bytes: 0, most_staged: 3 << 20 };
        let staged = |me| {
            let program = verified.schedule().program(me);
            let prepared = prepare(&verified, &program, me, call, None, sizing, |_| false).unwrap();
            prepared.staging_bytes(prepared.depth)
        };
        assert_eq!([0, 1, 2].map(staged), [0; 3]);
    }

    #[test]
    fn what_has_more_segments_than_can_be_counted_is_refused() {
        let group = Group::of_size(2);
        let sizing = Sizing { hosts: 2, shared: false, segment_bytes: 0, most_staged: 56 << 20 };
        let segments = |collective, count, parts: Option<&UnevenParts>| {
            let algorithm = Algorithm::OneShot.schedule(collective, &group, &Layout::default());
            let verified = verify(algorithm.unwrap(), collective, &group).unwrap();
            let call = Call::new(collective, DType::F32, ReduceOp::Sum, count);
            let program = verified.schedule().program(0);
            let prepared = prepare(&verified, &program, 0, call, parts, sizing, |_| false)?;
            for chunk in 0..prepared.chunks() {
                let last = prepared.elements(ChunkRun::one(chunk), prepared.segments - 1);
                assert_eq!(last.end, prepared.whole(chunk).end, "{collective}");
            }
            Ok::<u32, TooManySegments>(prepared.segments)
        };
        for collective in [Collective::AllReduce, Collective::AllGather, Collective::AllToAll] {
            assert!(segments(collective, 1 << 44, None).is_ok());
            // The numbers of segments of most are multiples of 2^32; bytes of the last do not fit a word.
            for count in [1 << 49, 1 << 51, 1 << 58, 1 << 60, Call::UNEVEN] {
                let refused = segments(collective, count, None).unwrap_err().to_string();
                assert!(refused.contains("too many for one operation"), "{collective} {count}: {refused}");
            }
        }
        let parts = |most| UnevenParts::new(Collective::AllGather, 2, 0, &[4], &[4, most]).unwrap();
        assert!(segments(Collective::AllGather, Call::UNEVEN, Some(&parts(1 << 44))).is_ok());
        for most in [1 << 49, (1 << 49) + 1, 1 << 58] {
            let refused = segments(Collective::AllGather, Call::UNEVEN, Some(&parts(most)));
            assert_eq!(refused, Err(TooManySegments { elements: most }));
        }
    }

    #[test]
    fn what_goes_over_links_fits_the_memory_of_every_rank() {
        let kinds =
            [(DType::F32, ReduceOp::Sum), (DType::Bf16, ReduceOp::Sum), (DType::I8, ReduceOp::Average)];
        let names = [
            "radix",
            "radix(2,2,2)",
            "radix(4,2)",
            "doubling",
            "one_shot",
            "star",
            "tree",
            "ring",
            "chain",
            "trees(throughput)",
        ];
        let layouts =
            [&[0, 1][..], &[0, 0, 1], &[0, 0, 0, 0, 1, 1], &[0, 1, 2, 3, 4, 5, 6], &[0, 0, 1, 1, 2, 2, 3, 3]];
        for (hosts, name) in layouts.into_iter().flat_map(|hosts| names.map(|name| (hosts, name))) {
            for ((dtype, op), count) in
                kinds.into_iter().flat_map(|kind| [100_003, 12 << 20].map(|count| (kind, count)))
            {
                let call = Call::new(Collective::AllReduce, dtype, op, count);
                for (preferred, most) in
                    [(0, 3_670_016), (0, 7_340_032), (1 << 20, 3_670_016), (8 << 20, 58_720_256)]
                {
                    let needed = needed(name, hosts, call, preferred, most);
                    let label =
                        format!("{name} on {hosts:?}, {count} {dtype}, {preferred} preferred, {most} there");
                    assert!(needed.iter().all(|bytes| *bytes <= most), "{label}: {needed:?}");
                    assert!(needed.iter().any(|bytes| *bytes > 0), "{label}: nothing is staged");
                }
            }
        }
    }

    /// All chunks go in as many segments, whatever their lengths, and each takes as much memory as is its own.
    #[test]
    fn chunks_by_shares_go_in_the_same_segments_and_fit_the_memory() {
        let kinds =
            [(DType::F32, ReduceOp::Sum), (DType::Bf16, ReduceOp::Sum), (DType::I8, ReduceOp::Average)];
        let cases = [
            ("weighted(radix,16x3,1)", &[0, 1, 2, 3][..]),
            ("weighted(radix,1,16,0,3)", &[0, 1, 2, 3]),
            ("weighted(radix(2,2),16,1,9,0,3)", &[0, 1, 2, 3, 4]),
            ("weighted(hierarchical,16,2,0,1,3,1)", &[0, 0, 1, 1, 2, 2]),
        ];
        for (((name, hosts), (dtype, op)), count) in cases
            .into_iter()
            .flat_map(|case| kinds.map(|kind| (case, kind)))
            .flat_map(|case| [0, 17, 100_003, 12 << 20].map(|count| (case, count)))
        {
            let call = Call::new(Collective::AllReduce, dtype, op, count);
            for (preferred, most) in [(0, 3_670_016), (0, 7_340_032), (1 << 20, 3_670_016)] {
                let needed = needed(name, hosts, call, preferred, most);
                let label = format!("{name}, {count} {dtype}, {preferred} preferred, {most} there");
                assert!(needed.iter().all(|bytes| *bytes <= most), "{label}: {needed:?}");
                let is_staged = needed.iter().any(|bytes| *bytes > 0);
                assert!(count == 0 || is_staged, "{label}: nothing is staged");
            }
        }
    }

    /// Segments of chunks by shares are as long as the chunks say, on whole grains, and end where these end.
    #[test]
    fn segments_of_chunks_by_shares_are_proportional() {
        let (group, count) = (Group::of_size(4), 1 << 20);
        let algorithm: Algorithm = "weighted(radix,16x2,8,1)".parse().unwrap();
        let schedule = algorithm.schedule(Collective::AllReduce, &group, &Layout::default()).unwrap();
        let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
        let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
        let sizing = Sizing { hosts: 4, shared: false, segment_bytes: 1 << 20, most_staged: 56 << 20 };
        let program = verified.schedule().program(0);
        let prepared = prepare(&verified, &program, 0, call, None, sizing, |_| false).unwrap();
        assert!(prepared.segments > 1);
        let mut at = 0;
        for (chunk, weight) in [16, 16, 8, 1].into_iter().enumerate() {
            let length = count * weight / 41 / prepared.segments as usize;
            for segment in 0..prepared.segments {
                let elements = prepared.elements(ChunkRun::one(chunk as u32), segment);
                assert_eq!(elements.start, at, "chunk {chunk}");
                let is_last = segment + 1 == prepared.segments;
                assert!(is_last || elements.len().abs_diff(length) <= 32, "{elements:?} for {length}");
                assert!(elements.end == count || elements.end % 16 == 0, "{elements:?}");
                at = elements.end;
            }
        }
        assert_eq!(at, count);
    }

    /// A schedule of programs, and what becomes of it.
    fn counted(
        workers: u32,
        collective: Collective,
        programs: Vec<ProgramBuilder>,
    ) -> Result<Prepared, VerifyError> {
        let programs = programs.into_iter().map(ProgramBuilder::build).collect();
        let schedule = Schedule::listed(workers, Cut::Even { chunks: 1 }, programs);
        let verified = verify(schedule, collective, &Group::of_size(workers))?;
        let sizing = Sizing { hosts: 2, shared: false, segment_bytes: 0, most_staged: usize::MAX };
        let call = Call::new(collective, DType::F32, ReduceOp::Sum, 1);
        Ok(prepare(&verified, &verified.schedule().program(0), 0, call, None, sizing, |_| false).unwrap())
    }

    /// A worker that sends so many messages to a reducer, which answers once.
    fn on_one_lane(messages: usize) -> Result<Prepared, VerifyError> {
        let (mut worker, mut reducer) = (ProgramBuilder::new(), ProgramBuilder::new());
        let (own, other, kept) = (worker.slot(Form::Acc), worker.slot(Form::Acc), reducer.slot(Form::Acc));
        worker.fold(0, &[(0, Origin::At(Place::User(0)))], own, false);
        for _ in 0..messages {
            worker.send(own, [1]);
            reducer.recv(0, 0, kept);
        }
        reducer.send(kept, [0]);
        worker.recv(1, 0, other);
        worker.fold(0, &[(0, Origin::At(Place::User(0)))], Place::User(0), true);
        counted(1, Collective::AllReduce, vec![worker, reducer])
    }

    fn to_many(receivers: u32) -> Result<Prepared, VerifyError> {
        let mut programs = vec![ProgramBuilder::new()];
        programs[0].send(Place::User(0), 1..=receivers);
        programs.resize_with(receivers as usize + 1, || {
            let mut program = ProgramBuilder::new();
            program.recv(0, 0, Place::User(0));
            program
        });
        counted(receivers + 1, Collective::Broadcast { root: 0 }, programs)
    }

    /// A step that waits for so many readers of what it overwrites.
    fn after_many(readers: usize) -> Result<Prepared, VerifyError> {
        let mut program = ProgramBuilder::new();
        let (read, copy) = (program.slot(Form::Acc), program.slot(Form::Acc));
        let input = [(0, Origin::At(Place::User(0)))];
        program.fold(0, &input, read, false);
        for _ in 0..readers {
            program.copy(read, copy);
        }
        program.fold(0, &input, read, false).fold(0, &input, Place::User(0), true);
        counted(1, Collective::AllReduce, vec![program])
    }

    /// Messages of a lane, receivers of a send and what a step waits for are counted in 16 bits: what is proved fits them.
    #[test]
    fn as_much_is_proved_as_is_counted() {
        let most = u16::MAX;
        let refused = |tried: Result<Prepared, VerifyError>| {
            let error = tried.unwrap_err().to_string();
            String::from(error.split_once(". Take").expect("what to do").0)
        };
        let too_many = |what: &str| {
            format!(
                "the schedule is too large to prove: too many {what}: 65536, and at most 65535 are counted"
            )
        };
        let lane = on_one_lane(most.into()).unwrap();
        assert_eq!((lane.peers[0].sends, lane.lanes.last().unwrap().index), (most, most - 1));
        assert_eq!(refused(on_one_lane(65536)), too_many("messages from rank 0 to rank 1"));
        assert_eq!(to_many(most.into()).unwrap().lanes.len(), most.into());
        assert_eq!(refused(to_many(65536)), too_many("receivers of rank 0's step 0"));
        assert_eq!(after_many(usize::from(most) - 1).unwrap().waits.into_iter().max(), Some(most));
        let waits = "steps and messages before rank 0's step 65536";
        assert_eq!(refused(after_many(most.into())), too_many(waits));
    }
}
