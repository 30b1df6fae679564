//! Waits of streams: each one is needed, and one that is left out is found.

use super::*;

/// Numbers of the three tensors of a call each. The first has more slices than there are slots.
const NUMBERS: [usize; 3] = [1000, 900, 300];

/// What the program's streams wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitsFor {
    Values,
    Events,
}

/// Makes a call on each tensor, by a stream of its own, so that what one stream knows of a call says nothing about another call.
///
/// Every wait is needed in every order. The program sees to it that its streams wait as `waits_for` says, and that a slot is taken
/// again while the copy that leaves it is under way.
fn program(rank: &Rank, waits_for: WaitsFor) {
    let me = rank.communicator.rank();
    let fake = &rank.fake;
    let streams = NUMBERS.map(|_| fake.stream().unwrap());
    let tensors = NUMBERS.map(Tensor::new);
    fake.rest(&streams);
    let submit = |number: usize| {
        let (stream, tensor) = (&streams[number], &tensors[number]);
        let values = bytes_of(&values(me, number, tensor.numbers));
        fake.write(stream, &tensor.memory, values).unwrap();
        let collective = if number == 2 { Collective::Broadcast { root: 1 } } else { Collective::AllReduce };
        let call = request(collective, tensor.numbers);
        rank.submit_on(stream, call, Some(tensor), Some(tensor)).unwrap()
    };
    let pendings = [0, 1, 2].map(submit);
    if waits_for == WaitsFor::Events {
        // No copy in ends until a copy out waits for one.
        let inward: Vec<DeviceStream> = rank.group.streams().into_iter().skip(1).step_by(2).collect();
        fake.rest(&inward);
        let began = Instant::now();
        while fake.counts()[0] < 2 {
            assert!(began.elapsed() < LONG, "no slot is taken again");
            thread::sleep(Duration::from_micros(100));
        }
        fake.rest(&[]);
        for pending in &pendings {
            rank.end(pending).unwrap();
        }
    }
    let reads: Vec<FakeRead> = (0..3)
        .map(|number| {
            pendings[number].wait_on_stream(&streams[number], LONG).unwrap().unwrap();
            fake.read(&streams[number], &tensors[number].memory).unwrap()
        })
        .collect();
    fake.rest(&[]);
    for (read, pending) in reads.iter().zip(&pendings) {
        rank.found(read);
        rank.end(pending).unwrap();
    }
}

#[test]
fn each_wait_that_is_left_out_is_found() {
    type Plant = fn(usize) -> PlantedFault;
    let plants: [(WaitsFor, Plant, usize, usize); 3] = [
        // The producers, at least one slot, and the program's streams.
        (WaitsFor::Events, PlantedFault::IgnoreEvent, 0, 7),
        (WaitsFor::Values, PlantedFault::IgnoreEvent, 0, 3),
        (WaitsFor::Values, PlantedFault::IgnoreValue, 1, 3),
    ];
    for (waits_for, plant, kind, at_least) in plants {
        for number in 0..16 {
            let planted = FakeAccelerator::new(true, Some(plant(number)));
            let fakes = |rank| if rank == 0 { planted.clone() } else { plain(true) };
            let hazards = on_ranks(2, number as u64, fakes, |rank| program(rank, waits_for));
            let waits = planted.counts();
            assert!(waits[kind] >= at_least, "{waits_for:?}: there are {waits:?} waits and copies");
            let is_found = !hazards[0].is_empty();
            assert_eq!(is_found, number < waits[kind], "{waits_for:?}, {:?} of {waits:?}", plant(number));
            assert_eq!(hazards[1], Vec::<String>::new(), "{waits_for:?}, {:?}", plant(number));
        }
    }
}

#[test]
fn a_call_ends_while_the_program_waits_for_the_whole_device() {
    let hazards = on_ranks(
        2,
        9,
        |_| plain(false),
        |rank| {
            let tensors = [Tensor::new(2000), Tensor::new(700)];
            let pendings: Vec<StagedPending> = (0..2)
                .map(|number| {
                    let tensor = &tensors[number];
                    rank.write(tensor, &values(rank.communicator.rank(), number, tensor.numbers));
                    rank.all_reduce(tensor).unwrap()
                })
                .collect();
            for (number, (pending, tensor)) in pendings.iter().zip(&tensors).enumerate() {
                let read = rank.wait_and_read(pending, tensor).unwrap();
                rank.fake.synchronize();
                assert_eq!(rank.found(&read), summed(2, number, tensor.numbers));
                rank.end(pending).unwrap();
            }
        },
    );
    assert_eq!(hazards.concat(), Vec::<String>::new());
}
