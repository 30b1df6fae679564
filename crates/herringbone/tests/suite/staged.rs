//! The staging memory that operations take is what a simulation of their schedule says.

use super::world::{Transport, World};
use herringbone::{
    Algorithm, Collective, DType, ReduceOp,
    core::{
        algorithm::Layout,
        group::Group,
        prepare::{Call, Sizing},
        simulate::{Costs, Rig, Workload, simulate},
        verify::verify,
    },
};

/// The most that a rank needs by the simulation, with all ranks on one host or each on its own.
fn predicted(algorithm: &str, ranks: u32, count: usize, shared: bool) -> u64 {
    let (algorithm, group): (Algorithm, _) = (algorithm.parse().unwrap(), Group::of_size(ranks));
    let hosts: Vec<u32> = (0..ranks).map(|rank| if shared { 0 } else { rank }).collect();
    let layout = Layout { reducers: 0, hosts: &hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout).unwrap();
    let verified = verify(schedule, Collective::AllReduce, &group).unwrap();
    let machine = Rig::with_ports(hosts, 1_250_000_000, 0, Costs::DEFAULT);
    let call = Call::new(Collective::AllReduce, DType::F32, ReduceOp::Sum, count);
    let sizing = Sizing {
        hosts: if shared { 1 } else { ranks },
        shared,
        segment_bytes: 0,
        most_staged: Workload::STAGED,
    };
    let work =
        Workload { verified: &verified, call, sizing, operations: 1, at_once: 1, parts: None, segments: 0 };
    simulate(&work, &machine, &mut |_| ()).unwrap().staged
}

#[test]
fn operations_take_as_much_staging_memory_as_simulations_say() {
    for (transport, shared) in [(Transport::Tcp, false), (Transport::Shm, true)] {
        for (algorithm, ranks) in [("radix", 2), ("radix", 3), ("radix(2,2)", 4), ("ring", 3), ("tree", 4)] {
            let count = (3 << 20) / 4;
            // A world has the default staging memory.
            let taken = World::new(ranks, transport).forced(algorithm).run(|comm| {
                comm.all_reduce(&mut vec![1_f32; count], ReduceOp::Sum).unwrap();
                comm.stats().most_staged
            });
            let most = taken.iter().copied().max().unwrap();
            let said = predicted(algorithm, ranks, count, shared);
            assert_eq!(most, said, "{algorithm} among {ranks} over {transport:?}: {taken:?}");
        }
    }
}
