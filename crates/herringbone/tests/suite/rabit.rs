//! The calls of programs that continue where they were, while nobody is lost: processes that are lost are in `python/tests`.

use crate::world::{Transport, World};
use herringbone::{
    Collective, DType, Error, ErrorKind, ReduceOp, Region,
    core::replay::ReplayError,
    rabit::{Rabit, RabitCollective, RabitModels, RabitOptions, RabitSlice},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

fn over_all(body: impl Fn(Rabit) + Sync) {
    for world in
        [World::new(1, Transport::Local), World::new(3, Transport::Local), World::new(4, Transport::Tcp)]
    {
        world.run(|comm| body(Rabit::over(comm.clone(), RabitOptions::default()).unwrap()));
    }
}

fn problem(error: &Error) -> &ReplayError {
    match error.kind() {
        ErrorKind::Replay { problem } => problem,
        _ => panic!("{error}"),
    }
}

#[test]
fn calls_give_the_results_of_the_engine() {
    over_all(|mut rabit| {
        let (rank, size) = (u64::from(rabit.rank()), u64::from(rabit.size()));
        assert_eq!(rabit.load_checkpoint().unwrap(), None);
        let mut values = vec![0_u64; 1000];
        rabit.all_reduce_prepared(&mut values, ReduceOp::Sum, |values| values.fill(rank)).unwrap();
        assert_eq!(values, vec![size * (size - 1) / 2; 1000]);
        rabit.all_reduce(&mut [0.5_f32; 0], ReduceOp::Max).unwrap();
        let mut most = [rank as f64, -(rank as f64)];
        rabit.all_reduce(&mut most, ReduceOp::Max).unwrap();
        assert_eq!(most, [size as f64 - 1.0, 0.0]);
        let root = rabit.size() - 1;
        let mut text = if rabit.rank() == root { b"from the root".to_vec() } else { vec![1; 99] };
        rabit.broadcast_bytes(&mut text, root).unwrap();
        assert_eq!(text, b"from the root");
        let mut all = vec![0_u64; size as usize];
        rabit.all_gather(&[rank * 10], &mut all).unwrap();
        assert_eq!(all, (0..size).map(|rank| rank * 10).collect::<Vec<_>>());
        assert!(rabit.kept_bytes() >= 8000);
        rabit.checkpoint(*b"model").unwrap();
        assert_eq!((rabit.version(), rabit.kept_bytes()), (1, 0));
        let models = RabitModels { version: 1, global: b"model".to_vec(), local: None };
        assert_eq!(rabit.load_checkpoint().unwrap(), Some(models));
        rabit.finalize().unwrap();
    });
}

/// Gathers slices of a buffer: rank r's is as long as `lengths[r]`, and they are in the order of `order`.
fn gathered(
    rabit: &mut Rabit,
    lengths: &[usize],
    order: &[usize],
    previous: usize,
) -> Result<Vec<u8>, Error> {
    let rank = rabit.rank() as usize;
    let begin = order.iter().take_while(|other| **other != rank).map(|other| lengths[*other]).sum();
    let mut buffer = vec![99_u8; lengths.iter().sum()];
    buffer[begin..begin + lengths[rank]].fill(rank as u8);
    let slice = RabitSlice { begin, bytes: lengths[rank], previous };
    let owned = Region::own(buffer);
    let call = RabitCollective {
        collective: Collective::AllGather,
        dtype: DType::U8,
        count: 0,
        op: ReduceOp::Sum,
        input: owned.region().clone(),
        output: owned.region().clone(),
        slice: Some(slice),
        place: 0,
    };
    if rabit.begin(&call)? {
        rabit.finish(&call)?;
    }
    Ok(owned.take())
}

#[test]
fn slices_of_all_lengths_are_gathered_where_they_are() {
    over_all(|mut rabit| {
        let size = rabit.size() as usize;
        let before = (rabit.rank() as usize + size - 1) % size;
        let forward: Vec<usize> = (0..size).collect();
        let turned: Vec<usize> = (0..size).map(|at| (at + size - 1) % size).collect();
        for lengths in [vec![8; size], (0..size).map(|rank| 1000 * (rank % 3)).collect(), vec![0; size]] {
            for order in [&forward, &turned] {
                let all = gathered(&mut rabit, &lengths, order, lengths[before]).unwrap();
                let expected = order.iter().flat_map(|rank| vec![*rank as u8; lengths[*rank]]);
                assert_eq!(all, expected.collect::<Vec<_>>());
            }
        }
        // All ranks get the same error, and the group stays usable.
        let error = gathered(&mut rabit, &vec![4; size], &forward, 5).unwrap_err();
        assert!(error.to_string().contains("as the length of rank"), "{error}");
        assert_eq!(gathered(&mut rabit, &vec![4; size], &forward, 4).unwrap().len(), 4 * size);
        rabit.finalize().unwrap();
    });
}

#[test]
fn checkpoints_have_what_was_given_and_lazy_ones_ask_for_it() {
    over_all(|mut rabit| {
        let mine = vec![rabit.rank() as u8; 1 + rabit.rank() as usize];
        rabit.checkpoint_local(*b"one", mine.clone()).unwrap();
        let models = rabit.load_checkpoint().unwrap().unwrap();
        assert_eq!((models.global, models.local), (b"one".to_vec(), Some(mine)));
        let saves = Arc::new(AtomicUsize::new(0));
        let counted = saves.clone();
        rabit
            .lazy_checkpoint(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                Ok(b"two".to_vec())
            })
            .unwrap();
        assert_eq!(saves.load(Ordering::SeqCst), 0);
        assert_eq!(rabit.load_checkpoint().unwrap().unwrap().global, b"two");
        assert_eq!((rabit.version(), saves.load(Ordering::SeqCst)), (2, 1));
        rabit.finalize().unwrap();
    });
}

#[test]
fn what_cannot_be_replayed_is_refused_by_name() {
    over_all(|mut rabit| {
        rabit.load_checkpoint().unwrap();
        let part = Region::own(vec![0_i64; 5]);
        let whole = Region::own(vec![1_i64; 5 * rabit.size() as usize]);
        let call = RabitCollective {
            collective: Collective::ReduceScatter,
            dtype: DType::I64,
            count: 5,
            op: ReduceOp::Sum,
            input: whole.region().clone(),
            output: part.region().clone(),
            slice: None,
            place: 0,
        };
        let error = rabit.begin(&call).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("reduce_scatter"), "{error}");
        rabit.all_reduce(&mut [1_i64], ReduceOp::Sum).unwrap();
        let error = rabit.load_checkpoint().unwrap_err();
        assert_eq!(problem(&error), &ReplayError::LateLoad { rank: rabit.rank(), version: 0, calls: 1 });
        rabit.finalize().unwrap();
    });
}

/// Else the outer call would run without being kept, and a process that starts again would get the inner one's result for it.
#[test]
fn a_call_while_another_one_waits_for_its_input_is_refused() {
    over_all(|mut rabit| {
        rabit.load_checkpoint().unwrap();
        let memory = Region::own(vec![1_i64; 3]);
        let call = RabitCollective {
            collective: Collective::AllReduce,
            dtype: DType::I64,
            count: 3,
            op: ReduceOp::Sum,
            input: memory.region().clone(),
            output: memory.region().clone(),
            slice: None,
            place: 0,
        };
        assert!(rabit.begin(&call).unwrap());
        rabit.all_reduce(&mut [1_i64; 3], ReduceOp::Sum).unwrap();
        let error = rabit.finish(&call).unwrap_err();
        assert!(error.to_string().contains("must make no call of its own"), "{error}");
        // One that was begun in vain is begun again.
        assert!(rabit.begin(&call).unwrap() && rabit.begin(&call).unwrap());
        rabit.finish(&call).unwrap();
        assert_eq!(memory.take(), vec![i64::from(rabit.size()); 3]);
        rabit.finalize().unwrap();
    });
}

#[test]
fn checkpoints_that_do_not_fit_each_other_fail_on_all_ranks() {
    World::new(3, Transport::Local).run(|comm| {
        let mut rabit = Rabit::over(comm.clone(), RabitOptions::default()).unwrap();
        let error = match rabit.rank() {
            2 => rabit.checkpoint(*b"global"),
            _ => rabit.checkpoint_local(*b"global", *b"local"),
        };
        assert_eq!(problem(&error.unwrap_err()), &ReplayError::UnlikeLocals { with: 0, without: 2 });
    });
    World::new(2, Transport::Local).run(|comm| {
        let mut rabit = Rabit::over(comm.clone(), RabitOptions::default()).unwrap();
        rabit.load_checkpoint().unwrap();
        if rabit.rank() == 0 {
            rabit.broadcast(&mut [7], 0).unwrap();
        }
        let error = rabit.checkpoint(*b"global").unwrap_err();
        assert!(!error.to_string().is_empty());
    });
}

#[test]
fn unlike_calls_are_named_as_the_program_makes_them() {
    World::new(2, Transport::Local).run(|comm| {
        let mut rabit = Rabit::over(comm.clone(), RabitOptions::default()).unwrap();
        rabit.load_checkpoint().unwrap();
        let error = match rabit.rank() {
            0 => rabit.checkpoint(*b"global"),
            _ => rabit.all_reduce(&mut [1_i64; 3], ReduceOp::Sum),
        };
        let text = error.unwrap_err().to_string();
        assert!(text.contains("rank 0 called checkpoint, rank 1 called all_reduce of 3 i64, sum"), "{text}");
    });
    World::new(2, Transport::Local).run(|comm| {
        let mut rabit = Rabit::over(comm.clone(), RabitOptions::default()).unwrap();
        let error = match rabit.rank() {
            0 => rabit.finalize(),
            _ => rabit.all_reduce(&mut [1_i64; 3], ReduceOp::Sum),
        };
        let text = error.unwrap_err().to_string();
        assert!(text.contains("rank 0 called finalize, rank 1 called all_reduce of 3 i64, sum"), "{text}");
    });
}

#[test]
fn options_come_from_arguments_with_names_of_rabit() {
    let options = RabitOptions::default();
    let given =
        ["rabit_global_replica=3", "rabit_local_replica=0", "rabit_timeout_sec=7", "other=1", "--flag"];
    let given = options.clone().with_arguments(given).unwrap();
    assert_eq!((given.global_replica, given.local_replica, given.recovery_timeout.as_secs()), (3, 0, 7));
    for wrong in ["rabit_global_replica=0", "rabit_global_replica=many", "rabit_timeout_sec=-1"] {
        let error = options.clone().with_arguments([wrong]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Config { .. }), "{error}");
    }
}
