//! The staging memory that operations take is what a simulation of their schedule says.

use super::{
    parts::parts_of,
    world::{Transport, World},
};
use herringbone::{
    Algorithm, Collective, DType, ReduceOp, Region, Request,
    core::{
        algorithm::Layout,
        collective::UnevenParts,
        group::Group,
        prepare::Call,
        simulate::{Costs, Rig, Workload, simulate},
        verify::verify,
    },
};

/// A collective of f32, by an algorithm among so many ranks.
#[derive(Clone, Copy, Debug)]
struct Case {
    algorithm: &'static str,
    collective: Collective,
    ranks: u32,
    /// As [`Collective::input_elements`] counts them.
    count: usize,
    /// Or how many elements a rank has for each.
    parts: Option<fn(u32, u32) -> usize>,
}

/// Half of the parts are empty or short, and one has many segments.
fn differing(from: u32, to: u32) -> usize {
    match (from + 2 * to) % 4 {
        0 => 700_001,
        1 => 3,
        2 => 0,
        _ => 90_000,
    }
}

impl Case {
    const fn even(algorithm: &'static str, collective: Collective, ranks: u32) -> Self {
        Self { algorithm, collective, ranks, count: (3 << 20) / 4, parts: None }
    }

    const fn uneven(collective: Collective) -> Self {
        Self { parts: Some(differing), ..Self::even("one_shot", collective, 4) }
    }

    /// The lengths of a rank's parts, if they differ.
    fn lengths(&self, me: u32) -> Option<(Vec<usize>, Vec<usize>)> {
        self.parts.map(|lengths| parts_of(self.collective, self.ranks, me, lengths))
    }

    fn parts(&self, me: u32) -> Option<UnevenParts> {
        let (input, output) = self.lengths(me)?;
        Some(UnevenParts::new(self.collective, self.ranks, me, &input, &output).unwrap())
    }

    /// The most that a rank needs by the simulation, with all ranks on one host or each on its own.
    fn predicted(&self, shared: bool) -> u64 {
        let Self { collective, ranks, count, .. } = *self;
        let (algorithm, group): (Algorithm, _) = (self.algorithm.parse().unwrap(), Group::of_size(ranks));
        let hosts: Vec<u32> = (0..ranks).map(|rank| if shared { 0 } else { rank }).collect();
        let layout = Layout { reducers: 0, hosts: &hosts, links: None };
        let schedule = algorithm.schedule(collective, &group, &layout).unwrap();
        let verified = verify(schedule, collective, &group).unwrap();
        let machine = Rig::with_ports(hosts, 1_250_000_000, 0, Costs::DEFAULT);
        let parts: Option<Vec<_>> = (0..ranks).map(|me| self.parts(me)).collect();
        let count = if parts.is_some() { Call::UNEVEN } else { count };
        let call = Call::new(collective, DType::F32, ReduceOp::Sum, count);
        let sizing = Workload::sizing(&machine, &verified, 0);
        let parts = parts.as_deref();
        let work =
            Workload { verified: &verified, call, sizing, operations: 1, at_once: 1, parts, segments: 0 };
        simulate(&work, &machine, &mut |_| ()).unwrap().staged
    }

    /// The most that each rank takes. A world has the default staging memory.
    fn taken(&self, transport: Transport) -> Vec<u64> {
        let Self { collective, ranks, count, .. } = *self;
        World::new(ranks, transport).forced(self.algorithm).run(|comm| {
            let me = comm.rank();
            let (given, taken) = match self.parts(me) {
                Some(parts) => (parts.input_elements(), parts.output_elements()),
                None => (
                    collective.input_elements(ranks, me, count),
                    collective.output_elements(ranks, me, count),
                ),
            };
            let [given, taken] = [given, taken].map(|count| Region::own(vec![1_f32; count]));
            let (from, into) = (given.region().clone(), taken.region().clone());
            let request = Request::new(collective, DType::F32, count, from, into);
            comm.execute(match self.lengths(me) {
                Some((input, output)) => request.parts(&input, &output),
                None => request,
            })
            .unwrap();
            comm.stats().most_staged
        })
    }
}

#[test]
fn operations_take_as_much_staging_memory_as_simulations_say() {
    let (sum, root) = (Collective::AllReduce, 1);
    let cases = [
        Case::even("radix", sum, 2),
        Case::even("radix", sum, 3),
        Case::even("radix(2,2)", sum, 4),
        Case::even("ring", sum, 3),
        Case::even("tree", sum, 4),
        Case::even("tree", Collective::Reduce { root }, 4),
        Case::even("tree", Collective::Broadcast { root }, 4),
        Case::even("radix", Collective::ReduceScatter, 3),
        Case::even("radix", Collective::AllGather, 3),
        Case::even("one_shot", Collective::AllToAll, 3),
        Case::uneven(Collective::AllToAll),
        Case::uneven(Collective::AllGather),
        Case::uneven(Collective::Gather { root }),
        Case::uneven(Collective::Scatter { root }),
    ];
    for (transport, shared) in [(Transport::Tcp, false), (Transport::Shm, true)] {
        for case in cases {
            let taken = case.taken(transport);
            let most = taken.iter().copied().max().unwrap();
            assert_eq!(most, case.predicted(shared), "{case:?} over {transport:?}: {taken:?}");
        }
    }
}
