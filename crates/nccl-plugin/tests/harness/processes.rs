//! Processes that sum over the plug-in as NCCL's ring does, and what the environment decides. A process is this test again, with
//! a variable that says what it is to do; it talks with the test over its standard input and output.

use crate::net::{LONG, Net, Pointer, logged, pattern};
use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    ptr,
    sync::mpsc::{Receiver, channel},
    thread,
    time::Instant,
};

/// The variable that says what a process is to do.
const PART: &str = "NCCL_PLUGIN_TEST_PART";
/// What lines that are for the test begin with: the test's own harness prints others.
const MARK: &str = "said: ";
/// Elements of each rank: more than a piece for each stream and rank, and no multiple of anything.
const ELEMENTS: usize = 300_007;

/// A process.
struct Part {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Part {
    fn begin(what: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "processes::part", "--nocapture", "--test-threads=1"]);
        for name in ["HERRINGBONE_IFNAME", "HERRINGBONE_NCCL_STREAMS", "NCCL_SOCKET_IFNAME"] {
            command.env_remove(name);
        }
        command.env(PART, what).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, line)) = line.split_once(MARK) {
                    let _nobody_listens = send.send(line.to_owned());
                }
            }
        });
        Self { child, stdin, lines }
    }

    fn hear(&mut self) -> String {
        self.lines.recv_timeout(LONG).expect("a process says what is expected, in time")
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _is_over = self.child.kill();
        self.child.wait().unwrap();
    }
}

fn say(line: &str) {
    println!("\n{MARK}{line}");
}

fn heard() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// What a process does: nothing in the test's own.
#[test]
fn part() {
    match env::var(PART).as_deref().map(|part| part.split(' ').collect::<Vec<_>>()) {
        Err(_) => (),
        Ok(part) if part[0] == "ring" => {
            let [version, rank, ranks, rounds] = [1, 2, 3, 4].map(|at| part[at].parse().unwrap());
            ring(version as u32, rank, ranks, rounds);
        }
        Ok(part) if part[0] == "init" => {
            let code = Net::open(12).init();
            say(&format!("{code} {}", logged().join(" | ")));
        }
        Ok(_) => descriptors(),
    }
}

/// The ends of a ring that one process has.
struct Ring {
    net: Net,
    rank: usize,
    ranks: usize,
    to: Pointer,
    from: Pointer,
}

impl Ring {
    fn join(version: u32, rank: usize, ranks: usize) -> Self {
        let net = Net::ready(version);
        let mut handle = [0; 128];
        let (_, listener) = net.listen(0, &mut handle);
        say(&handle.map(|byte| format!("{byte:02x}")).concat());
        let line = heard();
        let mut next = [0; 128];
        for (at, byte) in next.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&line[2 * at..2 * at + 2], 16).unwrap();
        }
        let (mut to, mut from): (Pointer, Pointer) = (ptr::null_mut(), ptr::null_mut());
        while to.is_null() || from.is_null() {
            if to.is_null() {
                to = net.connect(0, &mut next).1;
            }
            if from.is_null() {
                from = net.accept(listener).1;
            }
        }
        Self { net, rank, ranks, to, from }
    }

    /// Sends some elements on and receives others. The code of what fails.
    fn shift(&self, sent: &[i64], received: &mut [i64]) -> Result<(), i32> {
        let bytes = |count: usize| count * size_of::<i64>();
        let (code, receive) =
            self.net.receive(self.from, received.as_mut_ptr().cast(), bytes(received.len()));
        let (send_code, send) = self.net.send(self.to, sent.as_ptr().cast(), bytes(sent.len()));
        let mut open = vec![receive, send];
        let mut failed = [code, send_code].into_iter().find(|code| *code != 0);
        while failed.is_none() && !open.is_empty() {
            open.retain(|request| match self.net.test(*request) {
                (0, None) => true,
                (0, Some(_)) => false,
                (code, _) => {
                    failed = Some(code);
                    true
                }
            });
        }
        failed.map_or(Ok(()), Err)
    }

    fn chunk(&self, index: usize) -> std::ops::Range<usize> {
        let each = ELEMENTS.div_ceil(self.ranks);
        let index = index % self.ranks;
        (index * each).min(ELEMENTS)..((index + 1) * each).min(ELEMENTS)
    }

    /// Sums over all ranks: each adds its part to what comes, and the sums go round once more.
    fn all_reduce(&self, values: &mut [i64]) -> Result<(), i32> {
        let (ranks, rank) = (self.ranks, self.rank);
        for step in 0..2 * (ranks - 1) {
            let (out, into) = (self.chunk(rank + 2 * ranks - step), self.chunk(rank + 2 * ranks - step - 1));
            let mut received = vec![0; into.len()];
            self.shift(&values[out], &mut received)?;
            let is_sum = step < ranks - 1;
            for (value, other) in values[into].iter_mut().zip(received) {
                *value = if is_sum { *value + other } else { other };
            }
        }
        Ok(())
    }
}

/// The input of a rank.
fn input(rank: usize, round: usize) -> Vec<i64> {
    let bytes = pattern(rank * 100 + round, ELEMENTS);
    bytes.into_iter().map(|byte| i64::from(byte) << rank).collect()
}

fn ring(version: u32, rank: usize, ranks: usize, rounds: usize) {
    let ring = Ring::join(version, rank, ranks);
    for round in 0..rounds {
        let mut values = input(rank, round);
        if let Err(code) = ring.all_reduce(&mut values) {
            say(&format!("failed {code}"));
            return;
        }
        let mut sum = vec![0; ELEMENTS];
        for other in 0..ranks {
            for (sum, value) in sum.iter_mut().zip(input(other, round)) {
                *sum += value;
            }
        }
        assert!(values == sum, "the sum of round {round} is wrong");
        if round == 0 {
            say("summed");
        }
    }
    assert_eq!((ring.net.close("closeSend", ring.to), ring.net.close("closeRecv", ring.from)), (0, 0));
    say("done");
}

/// Processes that have each other's handles.
fn ring_of(
    ranks: usize,
    rounds: usize,
    version: impl Fn(usize) -> u32,
    environment: &[(&str, &str)],
) -> Vec<Part> {
    let part = |rank| Part::begin(&format!("ring {} {rank} {ranks} {rounds}", version(rank)), environment);
    let mut parts: Vec<Part> = (0..ranks).map(part).collect();
    let handles: Vec<String> = parts.iter_mut().map(Part::hear).collect();
    for (rank, part) in parts.iter_mut().enumerate() {
        part.tell(&handles[(rank + 1) % ranks]);
    }
    parts
}

#[test]
fn rings_of_two_to_eight_processes_sum_exactly() {
    for (ranks, streams) in [(2, "1"), (3, "3"), (4, "4"), (5, "16"), (6, "2"), (7, "5"), (8, "64")] {
        let environment = [("NCCL_SOCKET_IFNAME", "lo"), ("HERRINGBONE_NCCL_STREAMS", streams)];
        // Ranks with NCCLs of several ages understand each other.
        let parts = ring_of(ranks, 2, |rank| [8, 10, 11, 12][rank % 4], &environment);
        for mut part in parts {
            assert_eq!([part.hear(), part.hear()], ["summed", "done"], "{ranks} ranks");
            assert!(part.child.wait().unwrap().success());
        }
    }
}

#[test]
fn a_process_that_is_killed_is_an_error_of_its_neighbours() {
    let mut parts = ring_of(3, 1_000_000, |_| 12, &[("NCCL_SOCKET_IFNAME", "=lo")]);
    for part in &mut parts {
        assert_eq!(part.hear(), "summed");
    }
    parts[1].child.kill().unwrap();
    let begin = Instant::now();
    for rank in [0, 2] {
        let remote = crate::abi::constant("ncclRemoteError");
        assert_eq!(parts[rank].hear(), format!("failed {remote}"), "rank {rank}");
    }
    assert!(begin.elapsed() < LONG);
}

/// The code of init and the log of a process with this environment.
fn init(environment: &[(&str, &str)]) -> (String, String) {
    let line = Part::begin("init", environment).hear();
    let (code, log) = line.split_once(' ').unwrap();
    (code.to_owned(), log.to_owned())
}

#[test]
fn the_environment_chooses_interfaces_and_streams() {
    let own =
        [("HERRINGBONE_IFNAME", "=lo"), ("NCCL_SOCKET_IFNAME", "none"), ("HERRINGBONE_NCCL_STREAMS", "7")];
    let (code, log) = init(&own);
    assert!(code == "0" && log.contains("over TCP: [0] lo 127.0.0.1, 7 streams"), "{code} {log}");
    let nccls = [("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_SOCKET_NTHREADS", "2"), ("NCCL_NSOCKS_PERTHREAD", "3")];
    let (code, log) = init(&nccls);
    assert!(code == "0" && log.contains("[0] lo 127.0.0.1, 6 streams"), "{code} {log}");
    let usage = crate::abi::constant("ncclInvalidUsage").to_string();
    for (wrong, said) in [
        (("NCCL_SOCKET_IFNAME", "none"), "NCCL_SOCKET_IFNAME: \"none\" leaves no interface"),
        (("HERRINGBONE_NCCL_STREAMS", "0"), "HERRINGBONE_NCCL_STREAMS: \"0\""),
    ] {
        let (code, log) = init(&[wrong]);
        assert!(code == usage && log.starts_with("WARN ") && log.contains(said), "{code} {log}");
    }
}

/// Makes and closes connections, and says how many descriptors were open before and after.
fn descriptors() {
    let open = || fs::read_dir("/proc/self/fd").unwrap().count();
    let connect = || {
        let pair = crate::net::Pair::new(12);
        let mut into = [0; 4];
        pair.wait_all(&[pair.receive(&mut into), pair.send(b"data")]);
        pair.close();
    };
    connect();
    let before = open();
    (0..20).for_each(|_| connect());
    say(&format!("{before} {}", open()));
}

#[test]
fn closed_comms_leave_no_descriptor() {
    let line = Part::begin("descriptors", &[]).hear();
    let (before, after) = line.split_once(' ').unwrap();
    assert_eq!(before, after);
}
