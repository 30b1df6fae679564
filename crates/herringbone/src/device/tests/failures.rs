//! What fails, on which ranks, and what the program hears of it.

use super::*;

#[test]
fn a_rank_that_ends_fails_the_call_and_no_stream_waits_for_ever() {
    for waits_for_values in [true, false] {
        on_ranks(
            2,
            11,
            |_| plain(waits_for_values),
            |rank| {
                let tensor = Tensor::new(700);
                rank.write(&tensor, &values(rank.communicator.rank(), 0, 700));
                if rank.communicator.rank() == 1 {
                    // It makes one call, and not the second.
                    rank.end(&rank.all_reduce(&tensor).unwrap()).unwrap();
                    rank.communicator.abort();
                    return;
                }
                rank.end(&rank.all_reduce(&tensor).unwrap()).unwrap();
                let pending = rank.all_reduce(&tensor).unwrap();
                if waits_for_values {
                    // The host does not wait. The stream does, and goes on.
                    let read = rank.wait_and_read(&pending, &tensor).unwrap();
                    rank.found(&read);
                    while !pending.is_done() {
                        thread::sleep(Duration::from_micros(100));
                    }
                    // Nobody has seen the error, so the next call tells it. That is made all the same.
                    let next = rank.all_reduce(&tensor).unwrap();
                    let error = next.earlier_failure().unwrap();
                    assert!(matches!(error.kind(), ErrorKind::PeerLost { .. }), "{error}");
                    assert!(error.to_string().contains("an earlier call has failed, all_reduce"), "{error}");
                    assert!(rank.end(&next).is_err());
                } else {
                    let error = pending.wait_on_stream(&rank.stream, LONG).unwrap().unwrap_err();
                    assert!(matches!(error.kind(), ErrorKind::PeerLost { .. }), "{error}");
                }
                assert!(
                    rank.end(&pending).is_err() && pending.result().is_some_and(|result| result.is_err())
                );
                let later = rank.all_reduce(&tensor).unwrap();
                assert!(rank.end(&later).is_err() && later.earlier_failure().is_none());
            },
        );
    }
}

#[test]
fn a_copy_that_fails_fails_the_call_on_its_rank_and_the_group_goes_on() {
    for number in [0, 1, 5, 9, 14, 19] {
        let fakes = |rank| FakeAccelerator::new(true, (rank == 1).then_some(PlantedFault::FailCopy(number)));
        on_ranks(2, number as u64, fakes, |rank| {
            let tensors = [Tensor::new(600), Tensor::new(100)];
            let pendings = tensors.each_ref().map(|tensor| rank.all_reduce(tensor).unwrap());
            for (pending, tensor) in pendings.iter().zip(&tensors) {
                // A failure that is known at once is returned, and a stream passes its wait if it comes later.
                if let Ok(read) = rank.wait_and_read(pending, tensor) {
                    rank.found(&read);
                }
            }
            let ends = pendings.each_ref().map(|pending| rank.end(pending));
            // The engine's failure also ends what is in flight beside the call.
            let is_planted = rank.communicator.rank() == 1;
            assert!(!is_planted || ends.iter().any(Result::is_err), "copy {number}: {ends:?}");
            let last = rank.all_reduce(&tensors[1]).unwrap();
            rank.end(&last).unwrap();
        });
    }
}

#[test]
fn a_rank_that_registers_no_memory_fails_the_call_on_all_ranks_at_once() {
    // Slots of the line, and memory of a call that is not cut.
    for (collective, numbers) in [(Collective::AllReduce, [700, 700]), (Collective::AllGather, [100, 200])] {
        let fakes =
            |rank| FakeAccelerator::new(true, (rank == 1).then_some(PlantedFault::FailRegistration(0)));
        on_ranks(2, 13, fakes, |rank| {
            let (input, output) = (Tensor::new(numbers[0]), Tensor::new(numbers[1]));
            let call =
                |output| rank.submit(request(collective, numbers[0]), Some(&input), Some(output)).unwrap();
            let output = if collective == Collective::AllGather { &output } else { &input };
            let began = Instant::now();
            let failed = call(output);
            let error = rank.end(&failed).unwrap_err();
            assert!(began.elapsed() < Duration::from_secs(10), "it took the timeout");
            if rank.communicator.rank() == 1 {
                assert!(error.to_string().contains("a fake registration: it was planted to fail"), "{error}");
                let waited = failed.wait_on_stream(&rank.stream, LONG);
                assert!(waited.is_some_and(|result| result.is_err()));
            } else {
                assert!(matches!(error.kind(), ErrorKind::Memory { rank: 1, .. }), "{error}");
            }
            // The group goes on, and so does the line, with memory that it has got since.
            let read = rank.wait_and_read(&call(output), output).unwrap();
            assert_eq!(rank.found(&read), vec![0.0; output.numbers]);
        });
    }
}

#[test]
fn a_stream_that_fails_behind_the_last_copy_fails_the_call_and_a_later_one_tells() {
    // The program's event, one for each copy, and two behind the last one: for streams that wait, and for the group.
    let fakes = |_| FakeAccelerator::new(true, Some(PlantedFault::FailEvent(4)));
    on_ranks(1, 6, fakes, |rank| {
        let tensor = Tensor::new(10);
        let failed = rank.all_reduce(&tensor).unwrap();
        let (sender, receiver) = mpsc::channel();
        failed.notify(sender, 0);
        receiver.recv_timeout(LONG).unwrap();
        let next = rank.all_reduce(&tensor).unwrap();
        let error = next.earlier_failure().expect("nobody has asked for the failure");
        assert!(error.to_string().contains("a fake event: it was planted to fail"), "{error}");
        rank.end(&next).unwrap();
        assert!(failed.wait_on_stream(&rank.stream, LONG).unwrap().is_err() && rank.end(&failed).is_err());
    });
}

#[test]
fn a_call_that_ends_because_another_has_failed_says_which() {
    // A copy out of the first call fails, and all slices of the second are on their way. So are those of the first that are behind.
    let fakes = |rank| FakeAccelerator::new(true, (rank == 1).then_some(PlantedFault::FailCopy(1)));
    on_ranks(2, 4, fakes, |rank| {
        let tensors = [Tensor::new(600), Tensor::new(100)];
        let pendings = tensors.each_ref().map(|tensor| rank.all_reduce(tensor).unwrap());
        let ends = pendings.each_ref().map(|pending| rank.end(pending));
        let first = ends[0].as_ref().unwrap_err().to_string();
        let is_planted = rank.communicator.rank() == 1;
        assert_eq!(first.contains("it was planted to fail"), is_planted, "{first}");
        if let Err(second) = &ends[1] {
            assert!(
                matches!(second.kind(), ErrorKind::Memory { rank: 1, ended_by: Some(_), .. }),
                "{second}"
            );
            let said = "of all_reduce of 64 f32, sum";
            assert!(second.to_string().contains(said), "{second}");
            assert!(second.to_string().contains("whose failure has ended this one"), "{second}");
        }
    });
}

#[test]
fn a_copy_without_an_event_is_over_once_its_stream_is_idle() {
    for waits_for_values in [true, false] {
        for record in 0..5 {
            let fakes = |_| FakeAccelerator::new(waits_for_values, Some(PlantedFault::FailRecord(record)));
            let hazards = on_ranks(1, record as u64, fakes, |rank| {
                let tensor = Tensor::new(10);
                // No copy in ends, if there is one.
                rank.fake.write(&rank.stream, &tensor.memory, bytes_of(&values(0, 0, 10))).unwrap();
                let key = LineKey { asking: rank.communicator.asking_line().unwrap(), has_messages: false };
                let inward = *rank.group.shared.line(key).unwrap().inward;
                rank.fake.rest(&[inward]);
                let pending = rank.all_reduce(&tensor).unwrap();
                if record > 0 {
                    assert!(pending.wait_for(Duration::from_millis(50)).is_none(), "a copy is on its way");
                }
                rank.fake.rest(&[]);
                let end = rank.end(&pending);
                // The call needs what comes behind the program's work, and what streams wait for.
                assert_eq!(end.is_err(), [0, 3].contains(&record), "record {record}: {end:?}");
                let read = rank.wait_and_read(&rank.all_reduce(&tensor).unwrap(), &tensor).unwrap();
                assert_eq!(rank.found(&read), values(0, 0, 10), "record {record}");
            });
            assert_eq!(hazards.concat(), Vec::<String>::new(), "record {record}");
        }
    }
}

#[test]
fn a_group_that_closes_while_copies_run_leaves_no_event() {
    let timeout = Duration::from_millis(200);
    let ranks = local_with(Config::new(0, 1, Rendezvous::Tcp(String::new())).timeout(timeout)).unwrap();
    let fake = plain(false);
    let stream = fake.stream().unwrap();
    let accelerator: Arc<dyn Accelerator> = fake.clone();
    let group = DeviceGroup::with_slices(ranks[0].clone(), accelerator, SMALL).unwrap();
    let rank = Rank { communicator: ranks[0].clone(), fake: fake.clone(), group, stream, seed: 0 };
    let pending = rank.all_reduce(&Tensor::new(10)).unwrap();
    drop(rank);
    assert!(pending.result().unwrap().is_err());
    drop(pending);
    assert_eq!(fake.in_use(), [0, 1]);
}

#[test]
fn calls_that_are_not_over_when_the_group_closes_have_failed_and_their_streams_go_on() {
    let ranks =
        local_with(Config::new(0, 2, Rendezvous::Tcp(String::new())).timeout(Duration::from_millis(200)));
    let ranks = ranks.unwrap();
    let fake = plain(true);
    let stream = fake.stream().unwrap();
    let mut group = DeviceGroup::with_slices(ranks[0].clone(), fake.clone(), SMALL).unwrap();
    let tensor = Tensor::new(10);
    let buffers =
        || StagedBuffers { input: Some(tensor.memory.clone()), output: Some(tensor.memory.clone()) };
    // The accelerator stands still, so the call never comes to the engine.
    let pending = group.submit(request(Collective::AllReduce, 10), buffers(), &stream).unwrap();
    assert!(pending.wait_on_stream(&stream, LONG).is_some_and(|result| result.is_ok()));
    group.close();
    assert!(pending.is_done() && pending.result().unwrap().is_err());
    fake.run();
    assert!(!fake.is_busy());
}

#[test]
fn a_call_in_slices_on_buffers_of_two_lengths_is_refused() {
    on_ranks(
        1,
        8,
        |_| plain(true),
        |rank| {
            let (short, long) = (Tensor::new(100), Tensor::new(200));
            for (input, output) in [(&short, &long), (&long, &short)] {
                let call = request(Collective::AllReduce, 100);
                let error = rank.submit(call, Some(input), Some(output)).err().unwrap();
                assert!(matches!(error.kind(), ErrorKind::BufferSize { .. }), "{error}");
            }
            rank.end(&rank.all_reduce(&long).unwrap()).unwrap();
        },
    );
}

#[test]
fn a_closed_group_refuses_calls() {
    on_ranks(
        1,
        3,
        |_| plain(false),
        |rank| {
            let (communicator, fake) = (rank.communicator.clone(), rank.fake.clone());
            let accelerator: Arc<dyn Accelerator> = fake.clone();
            let group = DeviceGroup::with_slices(communicator.clone(), accelerator, SMALL).unwrap();
            let mut closed = Rank { communicator, stream: fake.stream().unwrap(), fake, group, seed: 0 };
            closed.group.close();
            let tensor = Tensor::new(700);
            let call = request(Collective::AllReduce, tensor.numbers);
            let error = closed.submit(call, Some(&tensor), Some(&tensor)).err().unwrap();
            assert!(matches!(error.kind(), ErrorKind::Closed), "{error}");
        },
    );
}
