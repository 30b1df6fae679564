//! Worlds of threads, each rank with a communicator of its own over real connections.

use herringbone::{
    Communicator, Config, Error, ErrorKind, ReduceOp, Rendezvous, Transport,
    core::algorithm::Algorithm,
    server::{Server, ServerOptions, Stop},
};
use std::{
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The token of worlds that have one.
pub(crate) const TOKEN: &str = "a token of the tests";
/// No case may take longer; one that does has hung.
const HUNG: Duration = Duration::from_secs(60);

/// How ranks are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Shm,
    Tcp,
    /// TCP, and one reducer for large messages.
    Reducer,
}

impl Over {
    pub(crate) const ALL: [Over; 3] = [Over::Shm, Over::Tcp, Over::Reducer];

    pub(crate) fn set(self, config: Config) -> Config {
        config.transport(if self == Over::Shm { Transport::Shm } else { Transport::Tcp })
    }
}

/// A place to meet that no other test uses, in this process or another: loopback has 16 million addresses.
pub(crate) fn rendezvous_address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::SeqCst));
    format!("127.{}.{}.{}:7070", process >> 8 & 255, process & 255, next)
}

/// Ends the whole test binary if what it guards hangs.
pub(crate) struct Watchdog(Arc<AtomicBool>);

impl Watchdog {
    pub(crate) fn over(what: &str) -> Self {
        let (done, what) = (Arc::new(AtomicBool::new(false)), what.to_owned());
        let seen = done.clone();
        std::thread::spawn(move || {
            let began = Instant::now();
            while !seen.load(Ordering::SeqCst) {
                if began.elapsed() > HUNG {
                    eprintln!("{what} hangs");
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        Self(done)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Where threads wait for each other without the group, so that an operation is over everywhere before the next one
/// goes wrong: an error fails whatever is under way.
pub(crate) struct Together {
    ranks: u32,
    came: Mutex<u32>,
    changed: Condvar,
}

impl Together {
    pub(crate) fn new(ranks: u32) -> Self {
        Self { ranks, came: Mutex::default(), changed: Condvar::new() }
    }

    #[track_caller]
    pub(crate) fn wait(&self) {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        let until = came.next_multiple_of(self.ranks);
        self.changed.notify_all();
        let (_came, waited) =
            self.changed.wait_timeout_while(came, Duration::from_secs(20), |came| *came < until).unwrap();
        assert!(!waited.timed_out(), "not all ranks came");
    }
}

/// A reducer on a thread.
pub(crate) struct Reducer {
    pub(crate) address: String,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl Reducer {
    pub(crate) fn start() -> Self {
        let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
        options.token = Some(TOKEN.to_owned());
        let server = Server::bind(options).unwrap();
        let (address, stop) = (server.address().to_string(), server.stop());
        Self { address, stop, thread: Some(std::thread::spawn(move || server.run())) }
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        self.stop.stop();
        self.thread.take().map(JoinHandle::join);
    }
}

/// Runs each rank's part on a thread; what they return, by rank.
pub(crate) fn each<T: Send>(ranks: u32, part: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                scope.spawn({
                    let part = &part;
                    move || part(rank)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Forms a world of threads and runs `body` on each rank; what they return, by rank.
pub(crate) fn world<T: Send>(ranks: u32, over: Over, body: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
    let _watchdog = Watchdog::over(&format!("a world of {ranks} over {over:?}"));
    let reducer = (over == Over::Reducer).then(Reducer::start);
    let address = rendezvous_address();
    each(ranks, |rank| {
        let mut config = Config::new(rank, ranks, Rendezvous::Tcp(address.clone()));
        config = over.set(config).timeout(Duration::from_secs(20)).token(TOKEN);
        if let Some(reducer) = &reducer {
            config = through(config, &reducer.address);
        }
        body(&Communicator::connect(config).unwrap())
    })
}

/// All all-reduces go through this reducer.
pub(crate) fn through(config: Config, reducer: &str) -> Config {
    config.reducers(vec![reducer.to_owned()]).algorithm(Algorithm::ReductionServer)
}

/// Sizes of a single message, of several, and of several segments.
const COUNTS: [usize; 3] = [3, 5000, 100_000];

/// Whether the group works: sums of all sizes, each checked.
#[track_caller]
pub(crate) fn check_sums(comm: &Communicator) {
    for count in COUNTS {
        if let Err(error) = sum(comm, count) {
            panic!("the group does not work: {error}");
        }
    }
}

/// One all-reduce, checked.
#[track_caller]
pub(crate) fn sum(comm: &Communicator, count: usize) -> Result<(), Error> {
    let mut values: Vec<f32> = (0..count).map(|at| ((comm.rank() + 1) as usize * (at % 17)) as f32).collect();
    comm.all_reduce(&mut values, ReduceOp::Sum)?;
    let total = (comm.size() * (comm.size() + 1) / 2) as usize;
    assert!(values.iter().enumerate().all(|(at, value)| *value == (total * (at % 17)) as f32));
    Ok(())
}

/// Brings ranks back together after an error that a rank may see at its next call only: barriers until one succeeds.
/// All errors on the way, with the `first` call's, have to satisfy `is_it`, and there has to be one.
#[track_caller]
pub(crate) fn settle(
    comm: &Communicator,
    first: Result<(), Error>,
    is_it: impl Fn(&ErrorKind) -> bool,
) -> Error {
    let mut failure = None;
    let mut result = first;
    for _ in 0..8 {
        match (result, failure.is_some()) {
            (Ok(()), true) => return failure.expect("checked above"),
            (Ok(()), false) => {}
            (Err(error), _) => {
                assert!(is_it(error.kind()), "{error}");
                failure = Some(error);
            }
        }
        result = comm.barrier();
    }
    panic!("rank {} does not come to terms with the others; its last error: {failure:?}", comm.rank());
}
