//! Ranks that are threads, each with a simulated accelerator whose streams move in an order that a seed draws.

use super::{
    fake::{FakeAccelerator, FakeRead, PlantedFault},
    *,
};
use crate::{
    Collective, Config, DType, ErrorKind, MessageRequest, ReduceOp, Region, Rendezvous, Request, local_with,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

mod disagreements;
mod failures;
mod waits;

/// Bytes of a slice: a buffer of some hundred numbers has more slices than there are slots.
const SMALL: usize = 256;
const LONG: Duration = Duration::from_secs(60);

/// A rank, its accelerator and the program's stream there.
struct Rank {
    communicator: Communicator,
    fake: Arc<FakeAccelerator>,
    group: DeviceGroup,
    stream: DeviceStream,
    seed: u64,
}

/// A tensor of the accelerator.
struct Tensor {
    memory: DeviceMemory,
    numbers: usize,
}

impl Tensor {
    fn new(numbers: usize) -> Self {
        Self { memory: DeviceMemory::of_host(Region::zeroed(numbers * 4)), numbers }
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn request(collective: Collective, numbers: usize) -> StagedCall {
    let nothing = Region::zeroed(0);
    StagedCall::Collective(
        Request::new(collective, DType::F32, numbers, nothing.clone(), nothing).op(ReduceOp::Sum),
    )
}

/// A number for an element that each rank and tensor has others of; sums of a few are exact.
fn value(rank: u32, tensor: usize, element: usize) -> f32 {
    (rank as usize * 1000 + tensor * 100 + element % 97) as f32
}

fn values(rank: u32, tensor: usize, numbers: usize) -> Vec<f32> {
    (0..numbers).map(|element| value(rank, tensor, element)).collect()
}

fn summed(ranks: u32, tensor: usize, numbers: usize) -> Vec<f32> {
    (0..numbers).map(|element| (0..ranks).map(|rank| value(rank, tensor, element)).sum()).collect()
}

impl Rank {
    fn submit(
        &self,
        call: StagedCall,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
    ) -> Result<StagedPending> {
        self.submit_on(&self.stream, call, input, output)
    }

    fn submit_on(
        &self,
        stream: &DeviceStream,
        call: StagedCall,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
    ) -> Result<StagedPending> {
        let memory = |tensor: Option<&Tensor>| tensor.map(|tensor| tensor.memory.clone());
        self.group.submit(call, StagedBuffers { input: memory(input), output: memory(output) }, stream)
    }

    fn all_reduce(&self, tensor: &Tensor) -> Result<StagedPending> {
        self.submit(request(Collective::AllReduce, tensor.numbers), Some(tensor), Some(tensor))
    }

    /// The program writes values.
    fn write(&self, tensor: &Tensor, values: &[f32]) {
        self.fake.write(&self.stream, &tensor.memory, bytes_of(values)).unwrap();
    }

    /// The program's stream waits for the result, and reads it.
    fn wait_and_read(&self, pending: &StagedPending, tensor: &Tensor) -> Result<FakeRead> {
        pending.wait_on_stream(&self.stream, LONG).expect("it is queued in time")?;
        Ok(self.fake.read(&self.stream, &tensor.memory).unwrap())
    }

    /// What a read has found once the stream comes there.
    fn found(&self, read: &FakeRead) -> Vec<f32> {
        let began = Instant::now();
        loop {
            if let Some(bytes) = read.bytes() {
                return bytes.chunks(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect();
            }
            assert!(began.elapsed() < LONG, "the stream waits for ever (seed {})", self.seed);
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn end(&self, pending: &StagedPending) -> Result<()> {
        pending.wait_for(LONG).unwrap_or_else(|| panic!("it never ends (seed {})", self.seed))
    }
}

/// Runs the program on each of some ranks, whose accelerators move by themselves. Returns the hazards of each.
fn on_ranks(
    size: u32,
    seed: u64,
    fakes: impl Fn(u32) -> Arc<FakeAccelerator> + Sync,
    program: impl Fn(&Rank) + Sync,
) -> Vec<Vec<String>> {
    let config = Config::new(0, size, Rendezvous::Tcp(String::new())).timeout(Duration::from_secs(20));
    let ranks = local_with(config).unwrap();
    let (fakes, program) = (&fakes, &program);
    thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .into_iter()
            .map(|communicator| {
                scope.spawn(move || {
                    let fake = fakes(communicator.rank());
                    let accelerator: Arc<dyn Accelerator> = fake.clone();
                    let group = DeviceGroup::with_slices(communicator.clone(), accelerator, SMALL).unwrap();
                    let stream = fake.stream().unwrap();
                    let rank = Rank { communicator, fake: fake.clone(), group, stream, seed };
                    let (over, moving) = (AtomicBool::new(false), fake.clone());
                    thread::scope(|scope| {
                        scope.spawn(|| move_by(&moving, seed, &over));
                        let _end = SetOnDrop(&over);
                        program(&rank);
                        drop(rank);
                        assert_eq!(fake.in_use()[0], 0, "an event is not released (seed {seed})");
                    });
                    fake.hazards()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Also where the program panics.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets streams go on in an order that a seed draws.
fn move_by(fake: &FakeAccelerator, seed: u64, over: &AtomicBool) {
    let mut drawn = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while !over.load(Ordering::Relaxed) {
        // Xorshift.
        drawn ^= drawn << 13;
        drawn ^= drawn >> 7;
        drawn ^= drawn << 17;
        if !fake.step(drawn) || drawn.is_multiple_of(5) {
            thread::sleep(Duration::from_micros(20));
        }
    }
}

fn plain(waits_for_values: bool) -> Arc<FakeAccelerator> {
    FakeAccelerator::new(waits_for_values, None)
}

#[test]
fn all_reduces_of_any_length_see_what_the_stream_has_written() {
    for (seed, waits_for_values) in (0..6).zip([true, false].into_iter().cycle()) {
        let hazards = on_ranks(
            2,
            seed,
            |_| plain(waits_for_values),
            |rank| {
                let lengths = [0, 1, 64, 65, 700, 2000];
                let tensors: Vec<Tensor> = lengths.into_iter().map(Tensor::new).collect();
                let mut pendings = Vec::new();
                for (number, tensor) in tensors.iter().enumerate() {
                    rank.write(tensor, &values(rank.communicator.rank(), number, tensor.numbers));
                    pendings.push(rank.all_reduce(tensor).unwrap());
                }
                for (number, (pending, tensor)) in pendings.iter().zip(&tensors).enumerate() {
                    let read = rank.wait_and_read(pending, tensor).unwrap();
                    assert_eq!(
                        rank.found(&read),
                        summed(2, number, tensor.numbers),
                        "seed {seed}, tensor {number}"
                    );
                    rank.end(pending).unwrap();
                    assert!(pending.is_done() && pending.result().is_some_and(|result| result.is_ok()));
                }
            },
        );
        assert_eq!(hazards, [Vec::<String>::new(), Vec::new()], "seed {seed}");
    }
}

#[test]
fn calls_on_one_tensor_follow_each_other_though_nobody_waits_between() {
    for seed in 0..4 {
        let hazards = on_ranks(
            3,
            seed,
            |_| plain(true),
            |rank| {
                let tensor = Tensor::new(700);
                rank.write(&tensor, &values(rank.communicator.rank(), 1, 700));
                let first = rank.all_reduce(&tensor).unwrap();
                let second = rank.all_reduce(&tensor).unwrap();
                let read = rank.wait_and_read(&second, &tensor).unwrap();
                let thrice: Vec<f32> = summed(3, 1, 700).into_iter().map(|sum| sum * 3.0).collect();
                assert_eq!(rank.found(&read), thrice, "seed {seed}");
                rank.end(&first).unwrap();
                rank.end(&second).unwrap();
            },
        );
        assert_eq!(hazards.concat(), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_call_on_a_whole_tensor_follows_the_calls_on_all_its_parts() {
    // The first part takes the engine much longer than the second, which starts behind it and ends before it.
    let (long, short) = (1 << 21, 16);
    let hazards = on_ranks(
        2,
        2,
        |_| plain(false),
        |rank| {
            let me = rank.communicator.rank();
            let (given, whole, both) =
                (Tensor::new(long), Tensor::new(long + short), Tensor::new(2 * (long + short)));
            let part = |from: usize, numbers: usize| Tensor {
                memory: whole.memory.part(from * 4..(from + numbers) * 4),
                numbers,
            };
            let (first, second) = (part(0, long), part(long, short));
            rank.write(&given, &values(me, 0, long));
            rank.write(&second, &values(me, 1, short));
            let calls = [
                rank.submit(request(Collective::AllToAll, long / 2), Some(&given), Some(&first)),
                rank.all_reduce(&second),
                rank.submit(request(Collective::AllGather, long + short), Some(&whole), Some(&both)),
            ]
            .map(Result::unwrap);
            let read = rank.wait_and_read(&calls[2], &both).unwrap();
            let half = |of: usize, rank: u32| values(rank, 0, long)[of * long / 2..][..long / 2].to_vec();
            let expected = |of: usize| [half(of, 0), half(of, 1), summed(2, 1, short)].concat();
            assert!(rank.found(&read) == [expected(0), expected(1)].concat());
            for call in &calls {
                rank.end(call).unwrap();
            }
        },
    );
    assert_eq!(hazards.concat(), Vec::<String>::new());
}

#[test]
fn all_collectives_and_messages_pass_the_host() {
    let hazards = on_ranks(
        2,
        7,
        |_| plain(true),
        |rank| {
            let (me, other) = (rank.communicator.rank(), 1 - rank.communicator.rank());
            let (mine, both) = (values(me, 0, 300), [values(0, 0, 300), values(1, 0, 300)].concat());
            let (small, out, large) = (Tensor::new(300), Tensor::new(300), Tensor::new(600));
            let check =
                |call: StagedCall, input: Option<&Tensor>, output: Option<&Tensor>, expected: &[f32]| {
                    rank.write(&small, &mine);
                    rank.write(&large, &both);
                    let pending = rank.submit(call, input, output).unwrap();
                    let tensor = output.or(input).unwrap();
                    let read = rank.wait_and_read(&pending, tensor).unwrap();
                    assert_eq!(rank.found(&read), expected, "{pending:?}");
                    rank.end(&pending).unwrap();
                };
            let sum = summed(2, 0, 300);
            check(
                request(Collective::Broadcast { root: 1 }, 300),
                Some(&small),
                Some(&small),
                &values(1, 0, 300),
            );
            let reduced = if me == 0 { &sum } else { &mine };
            check(request(Collective::Reduce { root: 0 }, 300), Some(&small), Some(&small), reduced);
            check(request(Collective::AllGather, 300), Some(&small), Some(&large), &both);
            let twice: Vec<f32> = both.iter().map(|value| value * 2.0).collect();
            let place = me as usize * 300;
            check(
                request(Collective::ReduceScatter, 300),
                Some(&large),
                Some(&out),
                &twice[place..place + 300],
            );
            let root = (me == 0).then_some(&large);
            check(request(Collective::Scatter { root: 0 }, 300), root, Some(&out), &both[place..place + 300]);
            check(
                request(Collective::Gather { root: 0 }, 300),
                Some(&small),
                root,
                if me == 0 { &both } else { &mine },
            );
            let exchanged = Tensor::new(600);
            let expected = [&both[place..place + 300], &both[place..place + 300]].concat();
            check(request(Collective::AllToAll, 300), Some(&large), Some(&exchanged), &expected);
            let message = || MessageRequest::new(DType::F32, 300, Region::zeroed(0)).tag(3);
            // The program does not wait before it writes the next values, so it sends other memory.
            let given = Tensor::new(300);
            rank.write(&given, &mine);
            let sent =
                rank.submit(StagedCall::Send { to: other, message: message() }, Some(&given), None).unwrap();
            check(
                StagedCall::Receive { from: None, message: message() },
                None,
                Some(&out),
                &values(other, 0, 300),
            );
            rank.end(&sent).unwrap();
        },
    );
    assert_eq!(hazards.concat(), Vec::<String>::new());
}

#[test]
fn a_message_passes_a_collective_that_its_receiver_has_not_called() {
    on_ranks(
        2,
        3,
        |_| plain(true),
        |rank| {
            let (big, small) = (Tensor::new(2000), Tensor::new(10));
            let message = MessageRequest::new(DType::F32, 10, Region::zeroed(0));
            rank.write(&small, &values(rank.communicator.rank(), 2, 10));
            let pending = if rank.communicator.rank() == 0 {
                let pending = rank.all_reduce(&big).unwrap();
                let sent = rank.submit(StagedCall::Send { to: 1, message }, Some(&small), None).unwrap();
                rank.end(&sent).unwrap();
                pending
            } else {
                let got =
                    rank.submit(StagedCall::Receive { from: Some(0), message }, None, Some(&small)).unwrap();
                let read = rank.wait_and_read(&got, &small).unwrap();
                let pending = rank.all_reduce(&big).unwrap();
                assert_eq!(rank.found(&read), values(0, 2, 10));
                rank.end(&got).unwrap();
                assert_eq!(got.source(), Some(0));
                pending
            };
            rank.end(&pending).unwrap();
        },
    );
}

#[test]
fn a_stream_that_is_captured_for_a_graph_is_refused() {
    on_ranks(
        1,
        0,
        |_| plain(true),
        |rank| {
            rank.fake.set_capturing(&rank.stream, true);
            let error = rank.all_reduce(&Tensor::new(10)).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Unsupported { .. }), "{error}");
            assert!(error.to_string().contains("outside of the capture"), "{error}");
            rank.fake.set_capturing(&rank.stream, false);
            rank.end(&rank.all_reduce(&Tensor::new(10)).unwrap()).unwrap();
        },
    );
}

#[test]
fn the_streams_of_a_group_that_is_over_serve_the_next_one() {
    on_ranks(
        1,
        5,
        |_| plain(false),
        |rank| {
            let run = || {
                let (communicator, fake) = (rank.communicator.clone(), rank.fake.clone());
                let accelerator: Arc<dyn Accelerator> = fake.clone();
                let group = DeviceGroup::with_slices(communicator.clone(), accelerator, SMALL).unwrap();
                let rank = Rank { communicator, fake, group, stream: rank.stream, seed: rank.seed };
                rank.end(&rank.all_reduce(&Tensor::new(700)).unwrap()).unwrap();
                let mut streams = rank.group.streams();
                streams.sort();
                streams
            };
            assert_eq!([run(), run()], [run(), run()]);
            assert_eq!(rank.fake.in_use()[1], 1, "only the program's stream is left");
        },
    );
}
