//! Operations with names: any order over any transport, what rests and wakes, and what is fused.

use crate::world::{Transport, World};
use herringbone::{
    Communicator, DType, NamedController, NamedFailure, NamedOptions, NamedSubmission, NamedWork, ReduceOp,
    Region,
    core::{
        codec::Codec,
        named::{NamedCall, NamedGroup, NamedKind, NamedRequest, SHUT_DOWN},
    },
};
use std::time::Duration;

const TRANSPORTS: [Transport; 3] = [Transport::Local, Transport::Shm, Transport::Tcp];

/// A tensor of f32 that is summed.
fn sum(name: &str, region: &Region, group: Option<NamedGroup>) -> NamedSubmission {
    let call = NamedCall {
        kind: NamedKind::AllReduce,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        shape: vec![region.len() as u64 / 4],
        root: 0,
        prescale: 1.0,
        postscale: 1.0,
        codec: Codec::Plain,
    };
    let request = NamedRequest { name: name.to_owned(), call, group, priority: 0 };
    NamedSubmission {
        request,
        input: region.clone(),
        output: Some(region.clone()),
        splits: None,
        residuals: None,
    }
}

fn counter(controller: &NamedController, name: &str) -> u64 {
    controller.counters().into_iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| count)
}

/// Submits tensors in an order of the rank's own, waits for them, and compares their sums.
fn step(comm: &Communicator, controller: &NamedController, step: usize) {
    let (rank, size) = (comm.rank() as usize, comm.size() as usize);
    let order = (0..12).map(|at| (5 * at + 7 * rank + step) % 12);
    let mut running = Vec::new();
    for number in order {
        let values: Vec<f32> = (0..50 * number + 1).map(|at| (at * (rank + 1)) as f32).collect();
        let buffer = Region::own(values);
        let work = controller.submit(sum(&format!("tensor {number}"), buffer.region(), None)).unwrap();
        running.push((buffer, work));
    }
    for (buffer, work) in running {
        work.wait().unwrap();
        let ranks: usize = (1..=size).sum();
        let expected = |at: usize| (at * ranks) as f32;
        assert!(buffer.take().iter().enumerate().all(|(at, value)| *value == expected(at)));
    }
}

#[test]
fn any_order_has_the_same_sums_over_any_transport() {
    for (size, transport) in
        TRANSPORTS.into_iter().flat_map(|transport| [1, 2, 4].map(|size| (size, transport)))
    {
        let sent = World::new(size, transport).run(|comm| {
            let controller = NamedController::new(comm, &NamedOptions::default()).unwrap();
            let mut sent = Vec::new();
            for number in 0..6 {
                step(comm, &controller, number);
                if number == 2 {
                    // All of them rest, and are woken again.
                    std::thread::sleep(Duration::from_millis(30));
                }
                sent.push(counter(&controller, "bytes_to_coordinator"));
            }
            controller.shut_down();
            sent
        });
        assert!(sent.iter().flatten().all(|bytes| *bytes == sent[0][0]), "{transport:?} {size} {sent:?}");
    }
}

#[test]
fn controllers_of_one_communicator_do_not_meet() {
    World::new(3, Transport::Local).run(|comm| {
        let controllers = [(); 3].map(|()| NamedController::new(comm, &NamedOptions::default()).unwrap());
        let pairs = comm.rank() < 2;
        let pair = pairs.then(|| comm.subgroup("pair", &[0, 1]).unwrap());
        let of_pair = pair.as_ref().map(|pair| NamedController::new(pair, &NamedOptions::default()).unwrap());
        let submit = |controller: &NamedController| {
            let buffer = Region::own(vec![1.0f32; 3]);
            let work = controller.submit(sum("same name", buffer.region(), None)).unwrap();
            (buffer, work)
        };
        let many = controllers.each_ref().map(submit);
        let own = of_pair.as_ref().map(submit);
        let check = |(buffer, work): (herringbone_sys::region::Owned<f32>, NamedWork), ranks: f32| {
            work.wait().unwrap();
            assert_eq!(buffer.take(), [ranks; 3]);
        };
        many.into_iter().for_each(|one| check(one, 3.0));
        own.into_iter().for_each(|one| check(one, 2.0));
    });
}

#[test]
fn what_is_queued_at_a_shutdown_fails_on_all_ranks() {
    World::new(3, Transport::Shm).run(|comm| {
        let controller = NamedController::new(comm, &NamedOptions::default()).unwrap();
        let buffer = Region::own(vec![1.0f32; 3]);
        let name = if comm.rank() == 1 { "one" } else { "other" };
        let work = controller.submit(sum(name, buffer.region(), None)).unwrap();
        if comm.rank() == 2 {
            controller.shut_down();
        }
        let is_shut_down =
            |failure: NamedFailure| matches!(failure, NamedFailure::Text(text) if text == SHUT_DOWN);
        assert!(is_shut_down(work.wait().unwrap_err()));
        let late = controller.submit(sum("late", buffer.region(), None));
        assert!(is_shut_down(late.unwrap_err()));
        controller.shut_down();
    });
}

/// Fused into one operation, or at the same time as others, the tensors of a group have the bits that they have alone.
#[test]
fn groups_run_as_one_operation() {
    World::new(4, Transport::Shm).run(|comm| {
        let options = NamedOptions { cycle: Duration::from_millis(5), ..NamedOptions::default() };
        let controller = NamedController::new(comm, &options).unwrap();
        let values = |number: usize| -> Vec<f32> {
            let count = [1000, 50_000, 7, 40_000, 300][number];
            (0..count).map(|at| 1.0 / (at * 7 + number * 3 + comm.rank() as usize + 1) as f32).collect()
        };
        let mut alone: Vec<Vec<f32>> = (0..5).map(values).collect();
        alone.iter_mut().for_each(|values| comm.all_reduce(values, ReduceOp::Sum).unwrap());
        for round in 0..3 {
            let group = NamedGroup { name: "all".to_owned(), members: 5 };
            let buffers: Vec<_> = (0..5).map(|number| Region::own(values(number))).collect();
            let submit = |(number, buffer): (usize, &herringbone_sys::region::Owned<f32>)| {
                controller.submit(sum(&number.to_string(), buffer.region(), Some(group.clone()))).unwrap()
            };
            let works: Vec<_> = buffers.iter().enumerate().map(submit).collect();
            works.into_iter().for_each(|work| drop(work.wait().unwrap()));
            assert_eq!(counter(&controller, "fused_tensors"), 5 * (round + 1));
            let together: Vec<Vec<f32>> = buffers.into_iter().map(|buffer| buffer.take()).collect();
            assert_eq!(together, alone);
        }
    });
}
