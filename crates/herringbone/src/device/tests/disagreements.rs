//! Ranks that make different calls: all are told, and their next calls meet.

use super::*;

/// Makes both calls at once, of which ranks disagree about the first, and then one more.
fn program(rank: &Rank, collective: Collective, numbers: usize) {
    let me = rank.communicator.rank();
    let (wrong, right) = (Tensor::new(numbers), Tensor::new(700));
    let first = rank.submit(request(collective, numbers), Some(&wrong), Some(&wrong)).unwrap();
    rank.write(&right, &values(me, 1, 700));
    let second = rank.all_reduce(&right).unwrap();
    let failure = rank.end(&first).unwrap_err();
    assert!(matches!(failure.kind(), ErrorKind::Mismatch { .. }), "{failure}");
    let failure = failure.to_string();
    for length in [128, 192].map(|length| format!("of {length} f32")) {
        assert!(failure.contains(&length), "{failure}");
    }
    assert!(failure.contains("in slices"), "{failure}");
    let read = rank.wait_and_read(&second, &right).unwrap();
    assert_eq!(rank.found(&read), summed(2, 1, 700), "{collective:?}");
    for tensor in 2..4 {
        rank.write(&right, &values(me, tensor, 700));
        let read = rank.wait_and_read(&rank.all_reduce(&right).unwrap(), &right).unwrap();
        assert_eq!(rank.found(&read), summed(2, tensor, 700), "{collective:?}");
    }
}

#[test]
fn ranks_that_disagree_about_a_length_in_slices_are_told_and_their_next_calls_meet() {
    let collectives = [
        Collective::AllReduce,
        Collective::Reduce { root: 0 },
        Collective::Reduce { root: 1 },
        Collective::Broadcast { root: 0 },
        Collective::Broadcast { root: 1 },
    ];
    for (seed, collective) in (20..).zip(collectives) {
        // Two slices here, three there.
        let lengths = [128, 192];
        let numbers = |rank: &Rank| lengths[rank.communicator.rank() as usize];
        on_ranks(2, seed, |_| plain(true), |rank| program(rank, collective, numbers(rank)));
    }
}

#[test]
fn ranks_with_calls_in_another_order_are_told_and_their_next_calls_meet() {
    // One slice and three, in both orders; both without a copy that fails, and with one.
    for fault in [None, Some(PlantedFault::FailCopy(1))] {
        let fakes = |rank| FakeAccelerator::new(true, fault.filter(|_| rank == 1));
        on_ranks(2, 31, fakes, |rank| {
            let me = rank.communicator.rank();
            let tensors = if me == 0 { [10, 192] } else { [192, 10] }.map(Tensor::new);
            let pendings = tensors.each_ref().map(|tensor| rank.all_reduce(tensor).unwrap());
            for pending in &pendings {
                assert!(rank.end(pending).is_err());
            }
            let tensor = Tensor::new(700);
            for number in 2..4 {
                rank.write(&tensor, &values(me, number, 700));
                let read = rank.wait_and_read(&rank.all_reduce(&tensor).unwrap(), &tensor).unwrap();
                assert_eq!(rank.found(&read), summed(2, number, 700));
            }
        });
    }
}

#[test]
fn a_rank_without_memory_for_a_call_fails_it_on_all_and_the_next_call_is_as_any() {
    for (seed, collective) in (40..).zip([Collective::AllReduce, Collective::Broadcast { root: 0 }]) {
        for numbers in [10, 192] {
            on_ranks(
                2,
                seed,
                |_| plain(true),
                |rank| {
                    let me = rank.communicator.rank();
                    let lacking = DeviceMemory::of_host(Region::lacking(numbers * 4));
                    let tensor = match me {
                        1 => Tensor { memory: lacking, numbers },
                        _ => Tensor::new(numbers),
                    };
                    assert!(rank.fake.read(&rank.stream, &tensor.memory).is_err() == (me == 1));
                    let call = request(collective, numbers);
                    let pending = rank.submit(call, Some(&tensor), Some(&tensor)).unwrap();
                    let end = rank.end(&pending);
                    let right = Tensor::new(700);
                    // Nobody hears of one slice whose root has sent it before the other rank says that it lacks memory.
                    let has_sent =
                        matches!(collective, Collective::Broadcast { .. }) && numbers == 10 && me == 0;
                    if !has_sent {
                        let error = end.unwrap_err();
                        assert!(matches!(error.kind(), ErrorKind::Memory { rank: 1, .. }), "{error}");
                    }
                    if numbers == 192 {
                        rank.write(&right, &values(me, 1, 700));
                        let read = rank.wait_and_read(&rank.all_reduce(&right).unwrap(), &right).unwrap();
                        assert_eq!(rank.found(&read), summed(2, 1, 700), "{collective:?}");
                    }
                },
            );
        }
    }
}
