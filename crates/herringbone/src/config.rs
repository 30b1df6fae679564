//! Settings: built in a program, or read from the environment.

use crate::{Error, ErrorKind, Result, core::algorithm::Algorithm, rendezvous::Store};
use std::{env, fmt, fs, net::ToSocketAddrs, sync::Arc, time::Duration};

/// How messages travel between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Through shared memory; all ranks have to be on one host.
    Shm,
    /// Over TCP, even between ranks of one host.
    Tcp,
}

impl Transport {
    /// Its name in `HERRINGBONE_TRANSPORT`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Shm => "shm",
            Transport::Tcp => "tcp",
        }
    }
}

/// How the ranks find each other.
#[derive(Clone)]
pub enum Rendezvous {
    /// Rank 0 listens at this `host:port`, the others connect to it.
    Tcp(String),
    /// Rank 0's address, and a token if none is set, travel through a store that all ranks have.
    Store {
        /// The store.
        store: Arc<dyn Store>,
        /// The host of the store, from which the address to advertise follows; `None` for loopback.
        host: Option<String>,
    },
}

impl fmt::Debug for Rendezvous {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rendezvous::Tcp(address) => write!(f, "Tcp({address})"),
            Rendezvous::Store { host, .. } => write!(f, "Store {{ host: {host:?} }}"),
        }
    }
}

/// All that a communicator is formed from. [`Config::from_env`] reads what launchers set; the methods override it.
///
/// | variable | meaning | default |
/// |---|---|---|
/// | `HERRINGBONE_RANK`, `HERRINGBONE_WORLD_SIZE` | who this is, of how many | `RANK`, `WORLD_SIZE`, else a single process |
/// | `HERRINGBONE_STORE` | `host:port` where rank 0 listens | `MASTER_ADDR:MASTER_PORT`, except under torchrun |
/// | `HERRINGBONE_TOKEN`, `HERRINGBONE_TOKEN_FILE` | the job's secret, any text | none: loopback only |
/// | `HERRINGBONE_REDUCERS` | `host:port,...` of reducers; rank 0's list counts | none |
/// | `HERRINGBONE_ALGORITHM` | the all-reduce's algorithm | chosen by size |
/// | `HERRINGBONE_TRANSPORT` | `shm` or `tcp` between processes | shared memory where hosts share it |
/// | `HERRINGBONE_TIMEOUT_S` | seconds until a wait fails | 1800 |
/// | `HERRINGBONE_STAGING_BYTES` | memory for slots per process; the smallest of all ranks counts | 67108864 |
/// | `HERRINGBONE_SEGMENT_BYTES` | bytes per pipelining segment; the smallest of all ranks counts | by transport |
///
/// A variable that is set to nothing counts as not set.
#[derive(Clone)]
pub struct Config {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) token: Option<String>,
    pub(crate) reducers: Vec<String>,
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) transport: Option<Transport>,
    pub(crate) timeout: Duration,
    pub(crate) staging_bytes: usize,
    pub(crate) segment_bytes: usize,
}

const STAGING_BYTES: usize = 64 << 20;
const STAGING_LEAST: usize = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

fn var(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

fn number<T: std::str::FromStr>(name: &str) -> Result<Option<T>> {
    let Some(text) = var(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::config(name, format_args!("{text:?} is not a number that it can have"))),
    }
}

impl Config {
    /// Rank `rank` of `world`, which meet as `rendezvous` says; everything else as by default, not from the environment.
    pub fn new(rank: u32, world: u32, rendezvous: Rendezvous) -> Self {
        Self {
            rank,
            world,
            rendezvous,
            token: None,
            reducers: Vec::new(),
            algorithm: None,
            transport: None,
            timeout: TIMEOUT,
            staging_bytes: STAGING_BYTES,
            segment_bytes: 0,
        }
    }

    /// What the environment says; see the table above.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a value that makes no sense, and for a rank without a place to meet.
    pub fn from_env() -> Result<Self> {
        let pair = |rank: &str, world: &str| -> Result<Option<(u32, u32)>> {
            match (number(rank)?, number(world)?) {
                (Some(rank), Some(world)) => Ok(Some((rank, world))),
                (None, None) => Ok(None),
                _ => Err(Error::config(rank, format_args!("set both {rank} and {world}, or neither"))),
            }
        };
        let ours = pair("HERRINGBONE_RANK", "HERRINGBONE_WORLD_SIZE")?;
        let (rank, world) = match ours {
            Some(pair) => pair,
            None => pair("RANK", "WORLD_SIZE")?.unwrap_or((0, 1)),
        };
        let address = match var("HERRINGBONE_STORE") {
            Some(address) => address,
            None if world <= 1 => "127.0.0.1:0".to_owned(),
            None => master_address()?,
        };
        Self::new(rank, world, Rendezvous::Tcp(address)).with_env()
    }

    /// Takes over from the environment all but the rank, the world's size and the rendezvous.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] for a value that makes no sense.
    pub fn with_env(mut self) -> Result<Self> {
        self.token = token_from_env()?;
        if let Some(list) = var("HERRINGBONE_REDUCERS") {
            self.reducers =
                list.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect();
        }
        if let Some(name) = var("HERRINGBONE_ALGORITHM") {
            let algorithm = name.parse().map_err(|error| Error::config("HERRINGBONE_ALGORITHM", error))?;
            self.algorithm = Some(algorithm);
        }
        self.transport = match var("HERRINGBONE_TRANSPORT").as_deref() {
            None => None,
            Some("shm") => Some(Transport::Shm),
            Some("tcp") => Some(Transport::Tcp),
            Some(other) => {
                return Err(Error::config(
                    "HERRINGBONE_TRANSPORT",
                    format_args!("{other:?} is not one of shm, tcp"),
                ));
            }
        };
        if let Some(seconds) = number::<f64>("HERRINGBONE_TIMEOUT_S")? {
            let timeout = Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero());
            self.timeout = timeout
                .ok_or_else(|| Error::config("HERRINGBONE_TIMEOUT_S", "it must be above 0 seconds"))?;
        }
        if let Some(bytes) = number("HERRINGBONE_STAGING_BYTES")? {
            self.staging_bytes = bytes;
        }
        if let Some(bytes) = number("HERRINGBONE_SEGMENT_BYTES")? {
            self.segment_bytes = bytes;
        }
        Ok(self)
    }

    /// The job's token: any text that is not empty. Empty counts as none.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into()).filter(|token| !token.is_empty());
        self
    }

    /// The reducers, each `host:port`. Rank 0's list counts; the others may leave theirs out.
    pub fn reducers(mut self, reducers: Vec<String>) -> Self {
        self.reducers = reducers;
        self
    }

    /// Forces the all-reduce's algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Forces the transport between processes.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// How long an operation, or the forming of the group, may take.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Bytes of staging memory; at least 4 MiB.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Bytes of a pipelining segment over the whole buffer; 0 leaves the choice to the engine.
    pub fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.world == 0 || self.rank >= self.world {
            let problem = format!(
                "rank {} of a world of {}: ranks are 0 to the world's size - 1",
                self.rank, self.world
            );
            return Err(Error::config("RANK, WORLD_SIZE", problem));
        }
        if self.staging_bytes < STAGING_LEAST || self.staging_bytes > 1 << 36 {
            let problem = format!("{} is not between {STAGING_LEAST} and {}", self.staging_bytes, 1u64 << 36);
            return Err(Error::config("HERRINGBONE_STAGING_BYTES", problem));
        }
        if self.segment_bytes != 0 && !(4096..=8 << 20).contains(&self.segment_bytes) {
            let problem = format!("{} is not between 4096 and {}", self.segment_bytes, 8 << 20);
            return Err(Error::config("HERRINGBONE_SEGMENT_BYTES", problem));
        }
        for reducer in &self.reducers {
            let address = reducer
                .rsplit_once(':')
                .filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
            if address.is_none() || reducer.len() > 256 {
                return Err(Error::config(
                    "HERRINGBONE_REDUCERS",
                    format_args!("{reducer:?} is not host:port"),
                ));
            }
        }
        let twice =
            self.reducers.iter().enumerate().find(|(at, reducer)| self.reducers[..*at].contains(reducer));
        match twice {
            Some((_, reducer)) => {
                Err(Error::config("HERRINGBONE_REDUCERS", format_args!("{reducer} is there twice")))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("rank", &self.rank)
            .field("world", &self.world)
            .field("rendezvous", &self.rendezvous)
            .field("token", &self.token.as_ref().map(|_| "set"))
            .field("reducers", &self.reducers)
            .finish_non_exhaustive()
    }
}

fn master_address() -> Result<String> {
    if var("TORCHELASTIC_RUN_ID").is_some() {
        let problem = "torchrun itself listens on MASTER_PORT: set HERRINGBONE_STORE=host:port (a free port on rank 0's \
                       host), or use torch.distributed with backend \"herringbone\"";
        return Err(Error::config("HERRINGBONE_STORE", problem));
    }
    match (var("MASTER_ADDR"), var("MASTER_PORT")) {
        (Some(host), Some(port)) if host.contains(':') => Ok(format!("[{host}]:{port}")),
        (Some(host), Some(port)) => Ok(format!("{host}:{port}")),
        _ => Err(Error::config(
            "HERRINGBONE_STORE",
            "set it to host:port of rank 0, or set MASTER_ADDR and MASTER_PORT",
        )),
    }
}

/// The job's token from `HERRINGBONE_TOKEN` or the file that `HERRINGBONE_TOKEN_FILE` names.
///
/// # Errors
/// If both are set, or the file cannot be read or is empty.
pub fn token_from_env() -> Result<Option<String>> {
    match (var("HERRINGBONE_TOKEN"), var("HERRINGBONE_TOKEN_FILE")) {
        (Some(_), Some(_)) => {
            Err(Error::config("HERRINGBONE_TOKEN", "HERRINGBONE_TOKEN_FILE is set too: set one of them"))
        }
        (Some(token), None) => Ok(Some(token)),
        (None, Some(path)) => token_from_file(&path).map(Some),
        (None, None) => Ok(None),
    }
}

/// The token that a file holds, without white space around it.
///
/// # Errors
/// If the file cannot be read or is empty.
pub fn token_from_file(path: &str) -> Result<String> {
    let problem = |problem: &dyn fmt::Display| {
        Error::config("HERRINGBONE_TOKEN_FILE", format_args!("{path}: {problem}"))
    };
    let text = fs::read_to_string(path).map_err(|error| problem(&error))?;
    match text.trim() {
        "" => Err(problem(&"the file is empty")),
        token => Ok(token.to_owned()),
    }
}

/// The first address of a `host:port`.
pub(crate) fn resolve(setting: &str, address: &str) -> Result<std::net::SocketAddr> {
    let found = address
        .to_socket_addrs()
        .map_err(|error| Error::config(setting, format_args!("{address}: {error}")))?;
    let mut found: Vec<_> = found.collect();
    found.sort_by_key(std::net::SocketAddr::is_ipv6);
    let nothing = || Error::config(setting, format_args!("{address}: no such host"));
    found.first().copied().ok_or_else(nothing)
}

/// Whether a token is needed to use an address.
pub(crate) fn check_exposure(address: std::net::SocketAddr, token: Option<&str>) -> Result<()> {
    if token.is_some() || address.ip().is_loopback() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Auth {
        problem: format!("no job token is set, and {} is not loopback: anybody could join", address.ip()),
        hint: "set HERRINGBONE_TOKEN to the same secret text for every worker and reducer, for instance \
               HERRINGBONE_TOKEN=$(openssl rand -hex 32)",
    }))
}
