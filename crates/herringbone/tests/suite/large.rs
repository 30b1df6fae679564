//! Worlds of 64 ranks: how many connections they make, and how much memory they take.

use crate::world::{Transport, World};
use herringbone::{ReduceOp, Sink, TraceEvent};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex},
    time::Duration,
};

const RANKS: u32 = 64;
/// What a rank may take: of memory that others map, and of all.
const MOST_BYTES: u64 = 64 << 20;
/// The elements of the corpus' largest call.
const LARGEST: usize = 100_003;

/// In two rounds among eight a rank meets seven others in each, and nobody else.
#[test]
fn ranks_connect_only_to_those_whom_a_schedule_names() {
    let connections = World::new(RANKS, Transport::Tcp).forced("radix(8,8)").run(|comm| {
        for count in [1, 1000, LARGEST] {
            let mut values = vec![1_i32; count];
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert_eq!(values, vec![RANKS as i32; count]);
        }
        comm.stats().connections
    });
    assert_eq!(connections, [14; RANKS as usize]);
}

/// What a rank sends in one operation.
#[derive(Debug, Default)]
struct Sent {
    messages: u32,
    bytes: usize,
    segments: u32,
}

#[derive(Debug, Default)]
struct SentSink(Arc<Mutex<Sent>>);

impl Sink for SentSink {
    fn event(&mut self, _now: Duration, event: &TraceEvent<'_>) {
        if let TraceEvent::Sent { segment, bytes, .. } = *event {
            let mut sent = self.0.lock().unwrap();
            sent.messages += 1;
            sent.bytes += bytes;
            sent.segments = sent.segments.max(segment + 1);
        }
    }
}

/// In each segment a rank sends each peer of a stage one message in each half, though it has a chunk for each of 64 ranks; and
/// has the bits of a single stage.
#[test]
fn chunks_that_go_together_are_one_message() {
    let results = |algorithm: &str| {
        World::new(RANKS, Transport::Tcp).forced(algorithm).run(|comm| {
            let sent = Arc::default();
            let listener = comm.listen(Box::new(SentSink(Arc::clone(&sent))));
            let at = |index| ((index * 7 + comm.rank() as usize * 13) % 1009) as f32 / 17.0;
            let mut values: Vec<f32> = (0..LARGEST).map(at).collect();
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            comm.dismiss(listener);
            let bits: Vec<u32> = values.into_iter().map(f32::to_bits).collect();
            let Sent { messages, bytes, segments } = *sent.lock().unwrap();
            (bits, messages, bytes, segments)
        })
    };
    let single = results("radix");
    for (algorithm, each) in [("radix(8,8)", 28), ("radix(4,4,4)", 18)] {
        for (rank, (one, other)) in results(algorithm).iter().zip(&single).enumerate() {
            let (bits, messages, bytes, segments) = one;
            assert!(*bits == other.0, "{algorithm}, rank {rank}: other bits than a single stage");
            assert_eq!(*messages, each * segments, "{algorithm}, rank {rank}: {segments} segments");
            let least = 2 * (LARGEST / RANKS as usize * 63) * 4;
            assert!(bytes.abs_diff(least) < least / 20, "{algorithm}, rank {rank}: {bytes} B for {least}");
        }
    }
}

/// 4 to 14 segments are in flight, and begin in lots. Their number need not be a multiple of a lot.
#[test]
fn laps_of_any_number_of_segments_end() {
    const COUNT: usize = 6 << 20;
    for segment_bytes in [512 << 10, 576 << 10, 640 << 10, 768 << 10, 1 << 20, 1536 << 10] {
        for algorithm in ["radix", "radix(2,2)"] {
            World::new(4, Transport::Tcp).segment_bytes(segment_bytes).forced(algorithm).run(|comm| {
                let mut values: Vec<i32> = (0..COUNT as i32).collect();
                comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                let right = |(at, value): (i32, &i32)| *value == at.wrapping_mul(4);
                assert!((0..).zip(&values).all(right), "{algorithm}, segments of {segment_bytes}");
            });
        }
    }
}

/// The memory that ranks map together: bytes that were touched, of each segment that this process holds.
fn segments() -> Vec<u64> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let ours = descriptors.filter_map(|entry| {
        let path = entry.ok()?.path();
        let name = fs::read_link(&path).ok()?;
        name.to_str()?.starts_with("/memfd:herringbone").then(|| fs::metadata(path).ok())?
    });
    ours.map(|segment| segment.blocks() * 512).collect()
}

/// This process's memory, shared pages counted once.
fn memory() -> u64 {
    let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// With the settings' defaults.
#[test]
fn ranks_take_little_memory_each() {
    for algorithm in [None, Some("radix(8,8)"), Some("one_shot"), Some("star"), Some("tree")] {
        let world =
            algorithm.iter().fold(World::new(RANKS, Transport::Local), |world, name| world.forced(name));
        world.run(|comm| {
            let mut values = vec![1_i32; LARGEST];
            comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            comm.barrier().unwrap();
            if comm.rank() == 0 {
                let (touched, all) = (segments(), memory());
                assert!(touched.len() >= RANKS as usize, "{touched:?}");
                println!("{algorithm:?}: {:?} bytes at most, {all} in all", touched.iter().max());
                assert!(touched.iter().all(|bytes| *bytes <= MOST_BYTES), "{algorithm:?}: {touched:?}");
                assert!(all <= u64::from(RANKS) * MOST_BYTES, "{algorithm:?}: {all}");
            }
            comm.barrier().unwrap();
        });
    }
}
