//! Worlds whose ranks are threads of this process, over any transport, with any number of reducers.

use herringbone::{
    Algorithm, Communicator, Config, Rendezvous, Store, StoreError, Transport as Forced, local_with,
    server::{Server, ServerOptions, Stop},
};
use std::{
    collections::BTreeMap,
    panic::resume_unwind,
    sync::{Arc, Condvar, Mutex},
    thread::{self, JoinHandle},
    time::Duration,
};

/// How long anything in a world may take: a rank that panics or hangs fails the others, and none waits for ever.
const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "the suite's";

/// How the ranks of a world talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Transport {
    /// Shared memory without rendezvous: [`herringbone::local`].
    Local,
    /// Shared memory, as between processes of one host.
    Shm,
    /// Sockets.
    Tcp,
}

/// A world that has not formed yet.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) size: u32,
    pub(crate) transport: Transport,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) reducers: Vec<String>,
    pub(crate) segment_bytes: usize,
    pub(crate) staging_bytes: usize,
}

impl World {
    pub(crate) fn new(size: u32, transport: Transport) -> Self {
        let staging_bytes = 64 << 20;
        Self { size, transport, algorithm: None, reducers: Vec::new(), segment_bytes: 0, staging_bytes }
    }

    pub(crate) fn forced(mut self, algorithm: &str) -> Self {
        self.algorithm = Some(algorithm.parse().expect("the name of an algorithm"));
        self
    }

    pub(crate) fn reducers(mut self, reducers: &[String]) -> Self {
        self.reducers = reducers.to_vec();
        self
    }

    pub(crate) fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    pub(crate) fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Forms the world and runs `body` once per rank; gives what they returned, in rank order. Ranks leave together:
    /// a rank that leaves ends the group for those that have yet to issue what it took part in.
    ///
    /// # Panics
    /// If a rank does; after all of them have ended.
    pub(crate) fn run<R: Send>(&self, body: impl Fn(&Communicator) -> R + Sync) -> Vec<R> {
        match self.transport {
            Transport::Local => {
                let ranks = local_with(self.config(0, Rendezvous::Tcp(String::new()))).expect("local ranks");
                self.on_threads(ranks.into_iter().map(|comm| move || comm).collect(), body)
            }
            Transport::Shm | Transport::Tcp => {
                let store = Arc::new(Memory::default());
                let connect = |rank| {
                    let config = self.config(rank, Rendezvous::Store { store: store.clone(), host: None });
                    move || Communicator::connect(config).expect("the world forms")
                };
                self.on_threads((0..self.size).map(connect).collect(), body)
            }
        }
    }

    fn on_threads<R: Send>(
        &self,
        ranks: Vec<impl FnOnce() -> Communicator + Send>,
        body: impl Fn(&Communicator) -> R + Sync,
    ) -> Vec<R> {
        let outcomes: Vec<_> = thread::scope(|scope| {
            let body = &body;
            let threads: Vec<_> =
                ranks.into_iter().map(|connect| scope.spawn(move || live(connect(), body))).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
        if failed > 0 {
            eprintln!("{failed} ranks failed in {self:?}");
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic))).collect()
    }

    fn config(&self, rank: u32, rendezvous: Rendezvous) -> Config {
        let config = Config::new(rank, self.size, rendezvous)
            .timeout(LIMIT)
            .token(TOKEN)
            .segment_bytes(self.segment_bytes)
            .staging_bytes(self.staging_bytes)
            .reducers(self.reducers.clone());
        let config = match self.transport {
            Transport::Local => config,
            Transport::Shm => config.transport(Forced::Shm),
            Transport::Tcp => config.transport(Forced::Tcp),
        };
        match &self.algorithm {
            // Buffers of tests are small, and trees are to be many.
            Some(algorithm) => config.algorithm(algorithm.clone()).tree_array_bound(0),
            None => config,
        }
    }
}

fn live<R>(comm: Communicator, body: impl Fn(&Communicator) -> R) -> R {
    body(&comm)
}

/// A store that threads share.
#[derive(Default)]
struct Memory {
    values: Mutex<BTreeMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl Store for Memory {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.values.lock().unwrap().insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>, StoreError> {
        let values = self.values.lock().unwrap();
        let (values, _) =
            self.changed.wait_timeout_while(values, timeout, |values| !values.contains_key(key)).unwrap();
        values.get(key).cloned().ok_or(StoreError::Timeout)
    }
}

/// Reducers that run until they are dropped.
pub(crate) struct Reducers {
    addresses: Vec<String>,
    running: Vec<(Stop, JoinHandle<()>)>,
}

impl Reducers {
    pub(crate) fn start(count: usize) -> Self {
        let mut reducers = Self { addresses: Vec::new(), running: Vec::new() };
        for _ in 0..count {
            let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
            options.token = Some(TOKEN.to_owned());
            options.jobs = 1024; // A job is kept for a while after its end, and worlds here are short.
            options.staging_bytes = 64 << 20;
            let server = Server::bind(options).expect("a reducer");
            reducers.addresses.push(server.address().to_string());
            let stop = server.stop();
            reducers.running.push((stop, thread::spawn(move || server.run())));
        }
        reducers
    }

    /// The addresses of the first `count`.
    pub(crate) fn first(&self, count: usize) -> &[String] {
        &self.addresses[..count]
    }
}

impl Drop for Reducers {
    fn drop(&mut self) {
        self.running.iter().for_each(|(stop, _)| stop.stop());
        for (_, thread) in self.running.drain(..) {
            if thread.join().is_err() {
                eprintln!("a reducer panicked");
            }
        }
    }
}
