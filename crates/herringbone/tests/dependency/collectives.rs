//! Collectives as operations: they overlap, and all ranks issue them alike.

use herringbone::{
    Communicator, ReduceOp,
    dependency::{DependencyEngine, EngineBuffer},
};
use std::{thread, time::Duration};

/// Each rank's buffers are ready in another order, and every all-reduce meets its own.
#[test]
fn ranks_issue_in_the_order_of_pushes_whatever_is_ready_first() {
    each_of(3, |communicator| {
        let engine = DependencyEngine::new(4).unwrap();
        let rank = u64::from(communicator.rank());
        let buffers: Vec<_> =
            (0..24_u64).map(|at| EngineBuffer::new(vec![0_u64; 100 + at as usize], engine.var())).collect();
        for (at, buffer) in (0..).zip(&buffers) {
            let own = buffer.clone();
            let fill = move || {
                thread::sleep(Duration::from_micros((at * 7 + rank * 13) % 5 * 200));
                own.values().fill(at * 10 + rank);
                Ok(())
            };
            engine.push(fill, &[], &[buffer.variable()], (at as i32 * 5) % 7).unwrap();
        }
        for buffer in &buffers {
            engine.all_reduce(communicator, buffer, ReduceOp::Sum, 0).unwrap();
        }
        for (at, buffer) in (0..).zip(&buffers) {
            engine.wait(buffer.variable()).unwrap();
            assert!(buffer.values().iter().all(|value| *value == 3 * at * 10 + 3), "buffer {at}");
        }
    });
}

/// A collective that is skipped spoils the communicator, so that no later one meets another rank's earlier one.
#[test]
fn a_skipped_collective_skips_the_later_ones() {
    each_of(2, |communicator| {
        let engine = DependencyEngine::new(2).unwrap();
        let buffers = [(); 2].map(|()| EngineBuffer::new(vec![1_f32; 8], engine.var()));
        engine.push(|| Err("no".into()), &[], &[buffers[0].variable()], 0).unwrap();
        for buffer in &buffers {
            engine.all_reduce(communicator, buffer, ReduceOp::Sum, 0).unwrap();
        }
        assert!(engine.wait(buffers[1].variable()).unwrap_err().to_string().ends_with("failed: no"));
        assert!(engine.wait_all().is_err());
        engine.all_reduce(communicator, &buffers[1], ReduceOp::Sum, 0).unwrap();
        engine.wait(buffers[1].variable()).unwrap();
        assert_eq!(*buffers[1].values(), [2.0; 8]);
    });
}

fn each_of(ranks: u32, run: impl Fn(&Communicator) + Sync) {
    let ranks = herringbone::local(ranks).unwrap();
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> =
            ranks.into_iter().map(|communicator| scope.spawn(move || run(&communicator))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
