use super::*;
use crate::{
    core::session::{
        Refusal, Role,
        handshake::{Client, Expected, Hello, Identity, Purpose, Versions},
    },
    fabric::{dial, greet, pending_connections::OF_ONE_ORIGIN},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    io::{Read, Write},
    sync::atomic::AtomicBool,
    thread,
};

const TOKEN: &[u8] = b"a token";
const HELLO: &[u8] = b"\xa8HRB\x01\0";
const POLICY: Policy = Policy { versions: Versions::CURRENT, job: None, world: None };
/// How long the first operation of a rank may be kept up, whoever else calls. It takes milliseconds, and who is kept out waits for
/// a handshake's `DEADLINE`; what lies between is margin for a busy machine.
const PROMPT: Duration = Duration::from_secs(4);

fn identity(rank: u32) -> Identity {
    Identity { role: Role::Worker, job: 1, rank, world: 1000, incarnation: 1 }
}

/// An acceptor at loopback, and a thread that serves it until it is dropped.
struct TestAcceptor {
    there: String,
    closed: Arc<AtomicBool>,
    serves: Option<thread::JoinHandle<()>>,
}

impl TestAcceptor {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap().to_string();
        let mut acceptor = Acceptor::new("a test", listener, TOKEN, POLICY).unwrap();
        let closed = Arc::new(AtomicBool::new(false));
        let serves = thread::spawn({
            let closed = closed.clone();
            move || serve(&mut acceptor, || closed.load(Ordering::SeqCst))
        });
        Self { there, closed, serves: Some(serves) }
    }

    fn call(&self, from: &str) -> TcpStream {
        dial::dial(&self.there, Some(from.parse().unwrap()), |_| Ok(())).unwrap()
    }

    /// A rank's call, to the end of its handshake, again while it is not heard; how long that took.
    fn rank(&self, from: &str) -> Duration {
        let began = Instant::now();
        let hello = Hello { identity: identity(1), purpose: Purpose::Join, versions: Versions::CURRENT };
        let expected = Expected { role: Role::Worker, rank: Some(0), incarnation: None };
        while let Err(error) = greet::greet(&mut self.call(from), hello, expected, TOKEN) {
            assert!(error.may_pass(), "{error}");
            thread::sleep(Duration::from_millis(20));
        }
        began.elapsed()
    }
}

impl Drop for TestAcceptor {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        self.serves.take().map(thread::JoinHandle::join);
    }
}

/// Welcomes whoever proves itself.
fn serve<L: Listen>(acceptor: &mut Acceptor<L>, is_over: impl Fn() -> bool) {
    while !is_over() {
        let mut waiting = [PollFd::from_borrowed_fd(acceptor.fd(), PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        rustix::event::poll(&mut waiting, Some(&limit)).unwrap();
        for (caller, claim) in acceptor.serve() {
            acceptor.spawn_handler(caller, claim, |mut caller, claim| {
                greet::welcome(&mut caller, claim, identity(0)).map(drop)
            });
        }
    }
}

/// Whether the other side hangs up, after a moment to do so.
fn is_over(stream: &TcpStream) -> bool {
    stream.limit(Duration::from_millis(300)).unwrap();
    // What was sent and not read is answered by a reset.
    !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Proves itself, and hangs up before it is let in.
fn prove_and_leave(there: &str) {
    let mut stream = dial::dial(there, None, |_| Ok(())).unwrap();
    let hello = Hello { identity: identity(1), purpose: Purpose::Data, versions: Versions::CURRENT };
    let expected = Expected { role: Role::Worker, rank: Some(0), incarnation: None };
    let mut client = Client::new(hello, expected, TOKEN, greet::nonce().unwrap());
    stream.write_all(&client.transmit().unwrap()).unwrap();
    let proof = loop {
        let mut bytes = vec![0; client.wants()];
        let got = stream.read(&mut bytes).unwrap();
        assert!(client.receive(&bytes[..got]).unwrap().done.is_none());
        if let Some(proof) = client.transmit() {
            break proof;
        }
    };
    stream.write_all(&proof).unwrap();
}

#[test]
fn a_caller_that_has_gone_is_not_let_in() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap().to_string();
    let mut acceptor = Acceptor::new("a test", listener, TOKEN, POLICY).unwrap();
    let caller = thread::spawn(move || prove_and_leave(&there));
    let (mut stream, claim) = loop {
        if let Some(proven) = acceptor.serve().into_iter().next() {
            break proven;
        }
        thread::sleep(Duration::from_millis(1));
    };
    caller.join().unwrap();
    let ended = greet::welcome(&mut stream, claim, identity(0));
    assert!(ended.as_ref().is_err_and(greet::GreetError::is_end), "{ended:?}");
}

#[test]
fn silent_connections_make_room_for_ranks() {
    let acceptor = TestAcceptor::new();
    let before = threads();
    let silent: Vec<TcpStream> = (0..OF_ONE_ORIGIN + 10).map(|_| acceptor.call("127.0.0.1")).collect();
    assert!(silent[..10].iter().all(is_over), "the oldest go");
    assert_eq!(threads(), before, "nobody who has not proved itself has a thread");
    for _ in 0..4 {
        assert!(acceptor.rank("127.0.0.1") < PROMPT);
    }
    assert!(!is_over(&silent[OF_ONE_ORIGIN]), "one place is enough for ranks that come one by one");
}

#[test]
fn the_address_with_most_connections_loses_one() {
    let acceptor = TestAcceptor::new();
    let single = acceptor.call("127.0.0.2");
    let of = |from: &str, count| (0..count).map(|_| acceptor.call(from)).collect::<Vec<_>>();
    let (many, more) = (of("127.0.0.3", OF_ONE_ORIGIN - 2), of("127.0.0.4", OF_ONE_ORIGIN));
    let _last = of("127.0.0.5", 1);
    assert!(acceptor.rank("127.0.0.2") < PROMPT);
    assert!(!is_over(&single), "the oldest, but the only one of its address");
    assert!(is_over(&more[0]) && !is_over(&many[0]));
}

#[test]
fn who_stops_within_a_message_goes_before_those_who_say_nothing() {
    let acceptor = TestAcceptor::new();
    let silent = acceptor.call("127.0.0.1");
    let mut halves: Vec<TcpStream> = (1..OF_ONE_ORIGIN).map(|_| acceptor.call("127.0.0.1")).collect();
    halves.iter_mut().for_each(|half| half.write_all(HELLO).unwrap());
    assert!(!is_over(&silent));
    assert!(acceptor.rank("127.0.0.1") < PROMPT);
    assert!(!is_over(&silent), "it came first");
    assert!(is_over(&halves[0]) && !is_over(&halves[OF_ONE_ORIGIN - 2]));
}

#[test]
fn half_a_hello_a_thousand_times_keeps_no_rank_out() {
    let acceptor = TestAcceptor::new();
    let mut halves = Vec::new();
    for round in 0..1000 {
        let mut half = acceptor.call("127.0.0.1");
        // It may have had to go in the meantime.
        let _cut = half.write_all(HELLO);
        halves.push(half);
        if round % 250 == 249 {
            let took = acceptor.rank("127.0.0.1");
            assert!(took < PROMPT, "after {round}: {took:?}");
        }
    }
    assert!(halves.iter().filter(|half| !is_gone(half)).count() <= OF_ONE_ORIGIN);
}

fn is_gone(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    !matches!(stream.peek(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

#[test]
fn connections_that_drip_keep_no_rank_out() {
    let acceptor = TestAcceptor::new();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut dripping: Vec<TcpStream> = (0..256).map(|_| acceptor.call("127.0.0.1")).collect();
            for at in 0.. {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                for stream in &mut dripping {
                    if stream.write_all(&[HELLO[at % HELLO.len()]]).is_err() {
                        *stream = acceptor.call("127.0.0.1");
                    }
                }
                thread::sleep(Duration::from_millis(200));
            }
        });
        thread::sleep(Duration::from_millis(500));
        let took: Vec<Duration> = (0..20).map(|_| acceptor.rank("127.0.0.1")).collect();
        stop.store(true, Ordering::SeqCst);
        assert!(took.iter().all(|took| *took < PROMPT), "{took:?}");
    });
}

#[test]
fn a_handshake_has_one_deadline_however_much_is_said() {
    let acceptor = TestAcceptor::new();
    let (mut slow, began) = (acceptor.call("127.0.0.1"), Instant::now());
    // A byte at a time, of a message that does not end so soon.
    let hello = [HELLO, &[0xf8, 0x03], &[0; 1000]].concat();
    let said = hello.iter().take_while(|byte| {
        thread::sleep(Duration::from_millis(200));
        slow.write_all(&[**byte]).is_ok() && !is_gone(&slow)
    });
    let (a_second, margin) = (5, 2);
    assert!(said.count() < margin * a_second * DEADLINE.as_secs() as usize, "{:?}", began.elapsed());
}

#[test]
fn a_process_of_this_host_gets_so_many_places_and_no_thread() {
    let name = format!("herringbone-test-acceptor-{}", std::process::id());
    let mut acceptor =
        Acceptor::new("a test", socket::listen_abstract(name.as_bytes()).unwrap(), TOKEN, POLICY).unwrap();
    let (before, mut open) = (threads(), Vec::new());
    for _ in 0..1000 {
        open.push(socket::connect_abstract(name.as_bytes()).unwrap());
        assert!(acceptor.serve().is_empty());
    }
    assert_eq!(threads(), before);
    assert_eq!(acceptor.pending_connections.len(), OF_ONE_ORIGIN);
    let gone = |stream: &&UnixStream| matches!(io::Read::read(&mut &**stream, &mut [0]), Ok(0));
    assert_eq!(open.iter().filter(gone).count(), 1000 - OF_ONE_ORIGIN);
}

/// What a test's second process is told: it lowers a limit of the whole process, or is another user's.
const ALONE: &str = "ACCEPTOR_TEST_ALONE";

/// A second process, for this test alone.
fn again(test: &str, value: &str) -> std::process::Command {
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", &format!("fabric::acceptor::tests::{test}")]).env(ALONE, value);
    again
}

#[test]
fn another_users_process_is_not_heard_at_a_socket_of_the_host() {
    if let Ok(name) = std::env::var(ALONE) {
        let mut call = socket::connect_abstract(name.as_bytes()).unwrap();
        call.set_blocking().unwrap();
        call.limit(Duration::from_secs(10)).unwrap();
        assert_eq!(io::Read::read(&mut call, &mut [0]).unwrap(), 0, "its call is ended");
        return;
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root starts processes of other users");
        return;
    }
    let name = format!("herringbone-test-user-{}", std::process::id());
    let listener = socket::listen_abstract(name.as_bytes()).unwrap();
    let mut acceptor = Acceptor::new("a test", listener, TOKEN, POLICY).unwrap();
    let test = "another_users_process_is_not_heard_at_a_socket_of_the_host";
    let mut command = again(test, &name);
    let mut stranger = std::os::unix::process::CommandExt::uid(&mut command, 65_534).spawn().unwrap();
    let mut most = 0;
    let ended = loop {
        assert!(acceptor.serve().is_empty());
        most = most.max(acceptor.pending_connections.len());
        if let Some(ended) = stranger.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(ended.success());
    assert_eq!(most, 0, "it has no place");
}

/// Without a token the handshake proves nothing: the kernel says whose process calls, and whose is called.
#[test]
fn without_a_token_another_users_process_takes_no_part() {
    let hello = Hello { identity: identity(1), purpose: Purpose::Join, versions: Versions::CURRENT };
    let expected = Expected { role: Role::Worker, rank: Some(0), incarnation: None };
    let greet_at = |there: &str| {
        greet::greet(&mut dial::dial(there, None, |_| Ok(())).unwrap(), hello, expected, b"").unwrap_err()
    };
    if let Ok(there) = std::env::var(ALONE) {
        let refused = greet_at(&there);
        let refusal = Refusal::User { ours: 0, theirs: 1_000_001 };
        assert!(
            matches!(&refused, GreetError::Handshake(HandshakeError::Refused(why)) if *why == refusal),
            "{refused}"
        );
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap().to_string();
    let mut acceptor = Acceptor::new("a test", listener, b"", POLICY).unwrap();
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root starts processes of other users");
        return;
    }
    let mut command = again("without_a_token_another_users_process_takes_no_part", &there);
    let mut stranger = std::os::unix::process::CommandExt::uid(&mut command, 1_000_001).spawn().unwrap();
    let ended = loop {
        assert!(acceptor.serve().is_empty());
        if let Some(ended) = stranger.try_wait().unwrap() {
            break ended;
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert!(ended.success());
}

#[test]
fn at_the_limit_of_descriptors_jobs_have_some_left_and_nothing_spins() {
    if std::env::var(ALONE).is_ok() {
        return run_out_of_descriptors();
    }
    let test = "at_the_limit_of_descriptors_jobs_have_some_left_and_nothing_spins";
    assert!(again(test, "lower the limit").status().unwrap().success());
}

fn run_out_of_descriptors() {
    const LIMIT: u64 = 260;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = listener.local_addr().unwrap();
    let mut acceptor = Acceptor::new("a test", listener, TOKEN, POLICY).unwrap();
    let callers: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(there).unwrap()).collect();
    let late = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let before = getrlimit(Resource::Nofile);
    let limit = rustix::process::Rlimit { current: Some(LIMIT), ..before };
    rustix::process::setrlimit(Resource::Nofile, limit).unwrap();

    let looks = looks_within(&mut acceptor, Duration::from_millis(500));
    assert!(looks < 100, "{looks} looks");
    assert_eq!(
        acceptor.pending_connections.len(),
        FEW,
        "strangers have few places where descriptors are few"
    );
    assert_eq!(callers.iter().filter(|caller| is_gone(caller)).count(), callers.len() - FEW);

    let mut files = open_all();
    assert!(files.len() > 30, "{} are left to those that are there", files.len());
    late.connect(&there.into()).unwrap();
    let looks = looks_within(&mut acceptor, Duration::from_millis(500));
    assert!(acceptor.said && looks < 100, "{looks} looks");
    assert!(acceptor.pending_connections.len() < FEW, "a pending connection has made way");

    while let Some(number) = acceptor.pending_connections.any_eviction() {
        acceptor.send_away(number, None);
    }
    files.extend(open_all());
    drop(files.pop());
    let another = TcpStream::connect(there).unwrap();
    let looks = looks_within(&mut acceptor, Duration::from_secs(1));
    assert!(acceptor.pending_connections.len() == 0 && looks < 100, "{looks} looks");
    drop(files);
    looks_within(&mut acceptor, Duration::from_millis(500));
    assert_eq!(acceptor.pending_connections.len(), 1, "it is heard once there is a descriptor for it");
    drop(another);
}

fn open_all() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/").ok()).collect()
}

/// How often an acceptor that is served for so long has something to do.
fn looks_within(acceptor: &mut Acceptor<TcpListener>, time: Duration) -> u32 {
    let (until, looks) = (Instant::now() + time, std::cell::Cell::new(0));
    serve(acceptor, || {
        looks.set(looks.get() + 1);
        Instant::now() >= until
    });
    looks.get()
}
