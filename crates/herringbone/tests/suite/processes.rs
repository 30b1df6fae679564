//! 64 ranks that are processes of their own, over TCP: this binary, started again for each.
//!
//! A rank compares the messages that its engine counts with those of the schedule, by partner, and says what bits it has.

use herringbone::{
    Algorithm, Collective, Communicator, Config, ReduceOp, Sink, TraceEvent,
    core::{
        algorithm::Layout,
        group::{Group, merges},
        schedule::{Schedule, Step},
    },
};
use std::{
    collections::BTreeMap,
    env,
    io::Read,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

/// Absent in the tests' own process.
const PART: &str = "SUITE_RANK_OF_MANY";
/// A rank's line for the tests' own process begins with this.
const MARK: &str = "said: ";
/// A single stage, and several. The sizes of calls say which one a rule of the plan has them take.
const ALGORITHMS: [&str; 3] = ["radix", "radix(8,8)", "radix(4,4,4)"];
/// The elements of the first call, a multiple of nothing.
const COUNT: usize = 100_003;
/// So many more has each next call; the first ones are the same.
const MORE: usize = 64;
/// Several segments of each call.
const SEGMENT_BYTES: usize = 64 << 10;

fn count(call: usize) -> usize {
    COUNT + call * MORE
}

fn value(index: usize, rank: u32) -> f32 {
    ((index * 7 + rank as usize * 13) % 1009) as f32 / 17.0
}

/// A rule for the bytes of each call.
fn plan() -> String {
    let rule = |(call, algorithm): (usize, &str)| {
        format!("all_reduce:{}-{}:{algorithm}", 4 * count(call), 4 * count(call) + 1)
    };
    ALGORITHMS.into_iter().enumerate().map(rule).collect::<Vec<_>>().join(",")
}

/// The sum of all ranks' values in the order of the canonical tree.
fn canonical(index: usize, merges: &[u8]) -> f32 {
    let mut stack: Vec<f32> = Vec::new();
    for (rank, merges) in (0..).zip(merges) {
        let mut top = value(index, rank);
        for _ in 0..*merges {
            top += stack.pop().unwrap();
        }
        stack.push(top);
    }
    stack[0]
}

/// A number that stands for bits (FNV-1a, of words).
fn digest(values: impl Iterator<Item = f32>) -> u64 {
    values.fold(0xcbf2_9ce4_8422_2325, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn schedule(algorithm: &str, ranks: u32) -> Schedule {
    let algorithm: Algorithm = algorithm.parse().unwrap();
    let hosts = vec![0; ranks as usize];
    let layout = Layout { reducers: 0, hosts: &hosts, links: None };
    algorithm.schedule(Collective::AllReduce, &Group::of_size(ranks), &layout).unwrap()
}

/// How many messages there are in one direction, by the other rank.
type Partners = BTreeMap<u32, u32>;

/// The messages of a rank's program in one segment: those that it sends, and those that it takes.
fn planned(schedule: &Schedule, rank: u32) -> [Partners; 2] {
    let program = schedule.program(rank);
    let mut planned = [Partners::new(), Partners::new()];
    for step in program.steps() {
        if let Step::Send { to, .. } = *step {
            program.lanes(to).iter().for_each(|to| *planned[0].entry(*to).or_default() += 1);
        }
        program.received(step).for_each(|from| *planned[1].entry(from).or_default() += 1);
    }
    planned
}

/// What the engine counts of an operation.
#[derive(Clone, Debug, Default)]
struct Counted {
    messages: [Partners; 2],
    segments: u32,
}

#[derive(Debug, Default)]
struct CountingSink(Arc<Mutex<Counted>>);

impl Sink for CountingSink {
    fn event(&mut self, _now: Duration, event: &TraceEvent<'_>) {
        let (way, endpoint, segment) = match *event {
            TraceEvent::Sent { endpoint, segment, .. } => (0, endpoint, segment),
            TraceEvent::Received { endpoint, segment, .. } => (1, endpoint, segment),
            _ => return,
        };
        let mut counted = self.0.lock().unwrap();
        *counted.messages[way].entry(endpoint.number()).or_default() += 1;
        counted.segments = counted.segments.max(segment + 1);
    }
}

/// What a rank does: each call, whose messages are those of the schedule. Says of each call how many it sent in a segment, and its bits.
fn take_part() {
    let comm =
        Communicator::connect(Config::from_env().unwrap().segment_bytes(SEGMENT_BYTES)).expect("a group");
    for (call, algorithm) in ALGORITHMS.into_iter().enumerate() {
        let counted = Arc::default();
        let listener = comm.listen(Box::new(CountingSink(Arc::clone(&counted))));
        let mut values: Vec<f32> = (0..count(call)).map(|index| value(index, comm.rank())).collect();
        comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        comm.dismiss(listener);
        let Counted { messages, segments } = counted.lock().unwrap().clone();
        assert!(segments > 1, "{algorithm}: {segments} segment");
        let planned = planned(&schedule(algorithm, comm.size()), comm.rank());
        let in_all = planned.each_ref().map(|partners| {
            partners.iter().map(|(rank, messages)| (*rank, messages * segments)).collect::<Partners>()
        });
        assert_eq!(messages, in_all, "{algorithm}, rank {}: {segments} segments", comm.rank());
        let sent: u32 = planned[0].values().sum();
        println!("{MARK}{sent} {:x}", digest(values.into_iter().take(COUNT)));
    }
    comm.barrier().unwrap();
}

/// A rank's process, which ends with the test.
struct RankProcess(Child);

impl RankProcess {
    fn start(test: &str, rank: u32, ranks: u32, meet: &str) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(PART, "yes");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let settings = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", ranks.to_string()),
            ("STORE", meet.to_owned()),
            ("TRANSPORT", "tcp".to_owned()),
            ("PLAN", plan()),
            ("TOKEN", "the suite's".to_owned()),
            ("LOG", "off".to_owned()),
            ("FLIGHT", "off".to_owned()),
            ("TIMEOUT_S", "120".to_owned()),
        ];
        command.envs(settings.map(|(name, value)| (format!("HERRINGBONE_{name}"), value)));
        Self(command.spawn().unwrap())
    }

    /// What it has said, once it has ended well.
    fn said(&mut self) -> Vec<String> {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text.lines().filter_map(|line| Some(line.split_once(MARK)?.1.to_owned())).collect()
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// An address that no other test uses: loopback has 16 million.
fn meeting_place() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    format!("127.{}.{}.{next}:7071", process >> 8 & 255, process & 255)
}

/// Of equal nodes each message of a stage has all chunks for its receiver; of 63 and of 60 ranks messages are single chunks.
#[test]
fn processes_have_the_bits_and_the_messages_of_the_schedule() {
    const NAME: &str = "processes::processes_have_the_bits_and_the_messages_of_the_schedule";
    if env::var(PART).is_ok() {
        take_part();
        // The test harness would print its summary after the last line.
        std::process::exit(0);
    }
    for (ranks, each) in [(64, Some([126, 28, 18])), (63, None), (60, None)] {
        let merges = merges(&(0..ranks).collect::<Vec<u32>>());
        let expected = digest((0..COUNT).map(|index| canonical(index, &merges)));
        let meet = meeting_place();
        let mut processes: Vec<RankProcess> =
            (0..ranks).map(|rank| RankProcess::start(NAME, rank, ranks, &meet)).collect();
        for (rank, process) in (0..).zip(&mut processes) {
            let said = process.said();
            assert_eq!(said.len(), ALGORITHMS.len(), "rank {rank} of {ranks}: {said:?}");
            for ((call, algorithm), line) in ALGORITHMS.iter().enumerate().zip(said) {
                let sent: u32 = match each {
                    Some(each) => each[call],
                    None => planned(&schedule(algorithm, ranks), rank)[0].values().sum(),
                };
                assert_eq!(line, format!("{sent} {expected:x}"), "{algorithm}, rank {rank} of {ranks}");
            }
        }
    }
}
