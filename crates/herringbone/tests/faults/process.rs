//! Ranks and reducers that are processes of their own, so that they can be killed: this binary, started again.

use crate::world::{Over, TOKEN, check_sums, sum};
use herringbone::{
    Communicator, Config, ReduceOp,
    server::{Server, ServerOptions},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    time::{Duration, Instant},
};

/// What the process is to do; absent in the tests' own process.
const PART: &str = "FAULTS_PART";
/// Lines for the tests' own process begin with this.
const MARK: &str = "said: ";

/// After what a silent reducer is lost, and what a busy machine adds to a round of sums.
const SILENT: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_secs(5);

/// A process that takes a part.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<(Instant, String)>,
}

/// What a rank does.
#[derive(Clone, Debug)]
pub(crate) struct RankRole {
    /// "loop": sums until an error, says it, stays until it may end; "once": sums and leaves in order; "through deaths": sums
    /// for a while, whatever becomes of reducers; "reducer".
    pub(crate) what: &'static str,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) over: Over,
    pub(crate) meet: String,
    pub(crate) reducers: Vec<String>,
}

/// This binary once more, to take a part.
fn again(part: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "process::takes_its_part", "--nocapture"]).env(PART, part);
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

/// Takes a part that is a world by itself in a process of its own; whether that ended well.
pub(crate) fn alone(part: &str) -> bool {
    again(part).status().unwrap().success()
}

impl Process {
    pub(crate) fn start(part: &RankRole) -> Self {
        let over = match part.over {
            Over::Shm => "shm",
            Over::Tcp | Over::Reducer => "tcp",
        };
        let mut child = again(part.what)
            .env("HERRINGBONE_RANK", part.rank.to_string())
            .env("HERRINGBONE_WORLD_SIZE", part.ranks.to_string())
            .env("HERRINGBONE_TRANSPORT", over)
            .env("HERRINGBONE_STORE", &part.meet)
            .env("HERRINGBONE_REDUCERS", part.reducers.join(","))
            .env("HERRINGBONE_ALGORITHM", if part.reducers.is_empty() { "" } else { "reduction_server" })
            .env("HERRINGBONE_TOKEN", TOKEN)
            .env("HERRINGBONE_LOG", "off")
            .env("HERRINGBONE_TIMEOUT_S", "30")
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                match line.strip_prefix(MARK) {
                    Some(said) => drop(sender.send((Instant::now(), said.to_owned()))),
                    None => eprintln!("{line}"),
                }
            }
        });
        Self { child, lines }
    }

    /// The next thing it says, and when.
    #[track_caller]
    pub(crate) fn hear(&self, within: Duration) -> (Instant, String) {
        self.lines.recv_timeout(within).expect("a process ended or hangs without a word")
    }

    /// Whether it says nothing for so long.
    pub(crate) fn is_quiet(&self, during: Duration) -> bool {
        self.lines.recv_timeout(during) == Err(RecvTimeoutError::Timeout)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.id(), signal).unwrap();
    }

    pub(crate) fn id(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

/// Lets processes end, all at once, and waits for that; whether they ended well.
pub(crate) fn end_well(mut processes: Vec<Process>) -> bool {
    processes.iter_mut().for_each(|process| drop(process.child.stdin.take()));
    processes.iter_mut().all(|process| process.child.wait().unwrap().success())
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Starts a world of processes, each of which says "formed" once it has.
pub(crate) fn processes(
    what: &'static str,
    ranks: u32,
    over: Over,
    meet: &str,
    reducers: &[String],
) -> Vec<Process> {
    let part =
        |rank| RankRole { what, rank, ranks, over, meet: meet.to_owned(), reducers: reducers.to_vec() };
    let started: Vec<Process> = (0..ranks).map(|rank| Process::start(&part(rank))).collect();
    for process in &started {
        assert_eq!(process.hear(Duration::from_secs(30)).1, "formed");
    }
    started
}

fn say(what: impl std::fmt::Display) {
    eprintln!("{MARK}{what}");
}

/// In the tests' own process there is no part to take; in the others this is all that runs.
#[test]
fn takes_its_part() {
    let Ok(part) = env::var(PART) else {
        assert!(Config::from_env().is_ok_and(|config| format!("{config:?}").contains("rank: 0")));
        return;
    };
    match part.as_str() {
        "reducer" => reduce(),
        "loop" => sum_until_an_error(),
        "siege" => crate::strangers::siege(),
        "once" => sum_and_leave(),
        "through deaths" => sum_through_deaths(),
        "pair" => sum_in_a_pair(),
        other => match other.split_once(' ').map(|(what, bytes)| (what, bytes.parse().unwrap())) {
            Some(("send", bytes)) => send_to_a_sleeper(bytes),
            Some(("leave", bytes)) => broadcast_and_leave_after_an_error(bytes),
            _ => panic!("no such part: {other}"),
        },
    }
    // The test harness would print its summary after the last word.
    std::process::exit(0);
}

fn reduce() {
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    options.token = Some(TOKEN.to_owned());
    let server = Server::bind(options).unwrap();
    say(server.address());
    server.run();
}

fn form() -> Communicator {
    let comm = Communicator::from_env().unwrap();
    check_sums(&comm);
    say("formed");
    comm
}

fn sum_until_an_error() {
    let comm = form();
    let error = (0..).find_map(|round| sum(&comm, [5000, 1_000_000][round % 2]).err()).unwrap();
    say(&error);
    // What one rank had completed another may not have: barriers bring them together, where the group goes on.
    match (0..8).map(|_| comm.barrier()).find(Result::is_ok).unwrap_or_else(|| comm.barrier()) {
        Ok(()) => {
            (0..3).try_for_each(|_| comm.broadcast(&mut [comm.rank()], 0)).unwrap();
            say("the group works");
        }
        Err(error) => say(error),
    }
    // Who goes now is lost to those who have not heard yet.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Sums for some seconds through reducers, in place and beside, several at once, whatever becomes of the reducers.
fn sum_through_deaths() {
    let comm = form();
    say("summing");
    let twin = comm.subgroup("twin", &(0..comm.size()).collect::<Vec<u32>>()).unwrap();
    // Its ranks have other numbers than in the job.
    let last = (comm.rank() > 0).then(|| comm.subgroup("last", &[1, 2]).unwrap());
    let began = Instant::now();
    let mut slowest = Duration::ZERO;
    // All ranks end with the same round: the first rank says which.
    for round in 0u32.. {
        let since = Instant::now();
        let works: Vec<_> = [5_000, 1_000_000, 300_001]
            .map(|count| vec![comm.rank() + round; count])
            .into_iter()
            .map(|values| comm.all_reduce_async(values, ReduceOp::Sum).unwrap())
            .collect();
        let in_twin = twin.all_reduce_async(vec![round; 90_000], ReduceOp::Sum).unwrap();
        let in_last =
            last.as_ref().map(|last| last.all_reduce_async(vec![round; 600_000], ReduceOp::Sum).unwrap());
        // Groups that are made after a death, and not by all at one time.
        if round % 4 == 0 && comm.rank() < 2 {
            let pair = comm.subgroup(&format!("pair {round}"), &[0, 1]).unwrap();
            let mut values = vec![round + 1; 200_000];
            pair.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert!(values.iter().all(|sum| *sum == 2 * (round + 1)), "round {round}");
        }
        let mut beside = vec![0; 70_000];
        comm.all_reduce_into(&vec![round; 70_000], &mut beside, ReduceOp::Sum).unwrap();
        let ranks = comm.size();
        assert!(beside.iter().all(|sum| *sum == round * ranks), "round {round}");
        let expected = round * ranks + (0..ranks).sum::<u32>();
        if let Some(work) = in_last {
            assert!(work.wait().unwrap().iter().all(|sum| *sum == round * 2), "round {round}");
        }
        assert!(in_twin.wait().unwrap().iter().all(|sum| *sum == round * ranks), "round {round}");
        for work in works {
            assert!(work.wait().unwrap().iter().all(|sum| *sum == expected), "round {round}");
        }
        slowest = slowest.max(since.elapsed());
        let mut is_over = [u8::from(began.elapsed() > Duration::from_secs(6))];
        comm.broadcast(&mut is_over, 0).unwrap();
        if is_over == [1] {
            break;
        }
    }
    assert!(slowest < SILENT + MARGIN, "{slowest:?}");
    say("all sums are right");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// The last rank takes no part in the broadcasts of the others, which soon find no room at its end.
fn send_to_a_sleeper(bytes: usize) {
    let comm = form();
    if comm.rank() + 1 < comm.size() {
        let mut buffer = vec![1u8; bytes];
        say((0..).find_map(|_| comm.broadcast(&mut buffer, 0).err()).unwrap());
    }
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Who hears of a death first leaves while others wait for it.
fn broadcast_and_leave_after_an_error(bytes: usize) {
    // In one segment: all of it is on its way at once.
    let config = Config::from_env().unwrap().segment_bytes(8 << 20);
    let comm = Communicator::connect(config).unwrap();
    say("formed");
    let mut buffer = vec![1u8; bytes];
    say((0..).find_map(|round| comm.broadcast(&mut buffer, round % comm.size()).err()).unwrap());
}

/// Rank 0 leaves; the others go on without it, until an error.
fn sum_in_a_pair() {
    let comm = form();
    if comm.rank() > 0 {
        let pair = comm.subgroup("pair", &[1, 2]).unwrap();
        say((0..).find_map(|_| sum(&pair, 1000).err()).unwrap());
    }
}

fn sum_and_leave() {
    let comm = form();
    sum(&comm, 100_000).unwrap();
}
