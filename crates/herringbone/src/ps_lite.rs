//! Jobs that start by ps-lite's lines: servers and workers of [tables](crate::table) that find each other through a scheduler.
//!
//! The scheduler is a table server with one small table, and all servers and workers are members of that table.
//! Member `n` has number `n`, which no two live processes can have. A server pushes its address; a pull returns once
//! all have come. Later all servers wait for a second step that workers never end. It is over when the last worker has
//! left, or is lost and given up.
//!
//! So the token, the handshake and the patience are the tables'. The variables, roles and order of numbers are
//! ps-lite's (`src/van.cc`, `src/postoffice.cc`). Its messages are others.

#[cfg(test)]
mod tests;

use crate::{
    Config, Error, ErrorKind, Rendezvous, Result,
    config::{on_the_way_to, resolve, settings::Environment},
    core::{
        element::DType,
        session::status::{TableStatus, TableWorker},
        table::{Consistency, OptimizerKind, OptimizerSpec, TableError, TableSpec, WORKERS_MOST},
    },
    server::{Server, ServerOptions, Stop},
    table::{ParameterServer, RETURN, RemoteTable, TableOptions},
};
use std::{
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// The scheduler's table.
const NODES: &str = "ps-lite nodes";
/// A row of it: how many bytes an address has, and these, each in an element.
const WIDTH: usize = 256;
/// How much memory the scheduler's tables may take up.
const MEMORY: u64 = 64 << 20;
/// How often the scheduler looks whether all have gone, and a process whether a number is free.
const LOOK: Duration = Duration::from_millis(50);

/// The role of a process in a job of ps-lite: `DMLC_ROLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PsLiteRole {
    /// It tells servers and workers of each other.
    Scheduler,
    /// It keeps tables.
    Server,
    /// It trains.
    Worker,
}

/// A process's part in a job, by ps-lite's variables.
#[derive(Clone, Debug)]
pub struct PsLiteLine {
    /// `DMLC_ROLE`.
    pub role: PsLiteRole,
    /// `DMLC_NUM_WORKER`.
    pub workers: u32,
    /// `DMLC_NUM_SERVER`.
    pub servers: u32,
    /// The scheduler's host, `DMLC_PS_ROOT_URI`.
    pub host: String,
    /// Its port, `DMLC_PS_ROOT_PORT`.
    pub port: u16,
    /// A worker's rank, if `DMLC_WORKER_ID` sets it; otherwise the scheduler gives ranks in the order of arrival.
    pub rank: Option<u32>,
    /// The address of a server: `DMLC_NODE_HOST`. `None`: at its address on the way to the scheduler.
    pub own_host: Option<IpAddr>,
    /// At which port: `PORT`. 0: any free one.
    pub own_port: u16,
    /// How long the others wait for a worker whose connection has ended without a goodbye: `PS_HEARTBEAT_TIMEOUT` in seconds. 10 s if it
    /// is not set or 0.
    pub patience: Duration,
}

/// A worker's place in a job of ps-lite. Dropping it says goodbye; when all workers have done so, the servers and the
/// scheduler end.
#[derive(Debug)]
pub struct PsLiteWorker {
    rank: u32,
    workers: u32,
    servers: Vec<String>,
    _member: Member,
}

/// A process that the scheduler knows. What it leaves last is the connection.
#[derive(Debug)]
struct Member {
    number: u32,
    nodes: Arc<RemoteTable>,
    _connection: ParameterServer,
}

impl PsLiteLine {
    /// The part that the environment sets; `None` without `DMLC_ROLE`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] if a variable is missing or cannot be.
    pub fn from_env() -> Result<Option<Self>> {
        Self::read(&Environment::of_process())
    }

    fn read(environment: &Environment) -> Result<Option<Self>> {
        let role = match environment.text("DMLC_ROLE")? {
            None => return Ok(None),
            Some("scheduler") => PsLiteRole::Scheduler,
            Some("server") => PsLiteRole::Server,
            Some("worker") => PsLiteRole::Worker,
            Some(other) => {
                let problem = format!("{other:?} is none of scheduler, server and worker");
                return Err(Error::config("DMLC_ROLE", problem));
            }
        };
        let workers = needed(environment, "DMLC_NUM_WORKER")?;
        let servers = needed(environment, "DMLC_NUM_SERVER")?;
        for (name, count) in [("DMLC_NUM_WORKER", workers), ("DMLC_NUM_SERVER", servers)] {
            if count == 0 || count > WORKERS_MOST / 2 {
                let most = WORKERS_MOST / 2;
                return Err(Error::config(name, format!("{count}: a job has 1 to {most} of them")));
            }
        }
        let rank = match parsed(environment, "DMLC_WORKER_ID")? {
            None => parsed(environment, "DMLC_TASK_ID")?,
            rank => rank,
        };
        let rank = rank.filter(|_| role == PsLiteRole::Worker);
        if let Some(rank) = rank.filter(|rank| *rank >= workers) {
            return Err(Error::config(
                "DMLC_WORKER_ID",
                format!("{rank} of {workers} workers: they count from 0"),
            ));
        }
        let patience = parsed::<u32>(environment, "PS_HEARTBEAT_TIMEOUT")?.filter(|seconds| *seconds > 0);
        Ok(Some(Self {
            role,
            workers,
            servers,
            host: needed(environment, "DMLC_PS_ROOT_URI")?,
            port: needed(environment, "DMLC_PS_ROOT_PORT")?,
            rank,
            own_host: parsed(environment, "DMLC_NODE_HOST")?,
            own_port: parsed(environment, "PORT")?.unwrap_or(0),
            patience: Duration::from_secs(patience.unwrap_or(10).into()),
        }))
    }

    fn root(&self) -> Result<SocketAddr> {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        resolve("DMLC_PS_ROOT_URI", &format!("{host}:{}", self.port))
    }

    /// The scheduler's part: it returns when all workers and servers have come and gone.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] and [`ErrorKind::Auth`] if it cannot listen there. [`ErrorKind::Rendezvous`] if not all have
    /// come within the timeout of `config`, or if a server is lost that workers need. The token of `config` is used,
    /// too. Then the job is over for all.
    pub fn schedule(&self, config: &Config) -> Result<()> {
        let serving = RunningServer::begin(self, self.root()?, config, MEMORY)?;
        let (began, mut have_come) = (Instant::now(), false);
        loop {
            std::thread::sleep(LOOK);
            let Some(status) = serving.server.tables() else { continue };
            let nodes = status.tables.into_iter().find(|table| table.name == NODES);
            if let Some(lost) = nodes.as_ref().and_then(|nodes| self.lost_server(nodes)) {
                return Err(self.lost(lost));
            }
            let (present, steps) = nodes.map_or((0, 0), |nodes| (nodes.present, nodes.version));
            have_come |= steps > 0;
            if have_come && present == 0 {
                return Ok(());
            }
            if !have_come && began.elapsed() > config.waits.timeout {
                return Err(self.not_all(&format!("{present} of them are here")));
            }
        }
    }

    /// A server that has left before all workers have: their leaving is what ends the second step. Only of the nodes that a status lists.
    fn lost_server(&self, nodes: &TableStatus) -> Option<u32> {
        let is_lost = |node: &&TableWorker| node.worker < self.servers && node.has_left;
        nodes.workers.iter().filter(|_| nodes.version < 2).find(is_lost).map(|node| node.worker)
    }

    fn lost(&self, server: u32) -> Error {
        Error::rendezvous(format!(
            "server {server} of {} was lost with its rows: start the whole job again",
            self.servers
        ))
    }

    /// A server's part: it keeps tables, with the usual options, until all workers have gone.
    ///
    /// # Errors
    /// [`ErrorKind::Rendezvous`] if not all come within the timeout of `config`, or if the scheduler is lost;
    /// [`ErrorKind::Io`] and [`ErrorKind::Auth`] if it cannot listen. The token of `config` is used, too.
    pub fn serve(&self, config: &Config) -> Result<()> {
        let host = self.own_host.map_or_else(|| on_the_way_to(&self.host), Ok)?;
        let usual = TableOptions::default().memory_bytes;
        let serving = RunningServer::begin(self, SocketAddr::from((host, self.own_port)), config, usual)?;
        let member = self.enter(config, 0..self.servers)?;
        if member.nodes.step() > 0 {
            return Err(self.lost(member.number));
        }
        member.nodes.push(
            &[u64::from(member.number)],
            &written(&serving.server.address().to_string()),
            false,
        )?;
        self.addresses(&member)?;
        // This step no worker ends, so it is over when they are gone.
        member.nodes.end_step()?;
        loop {
            match member.nodes.pull_range(0, &mut [0.0_f64; WIDTH]) {
                Ok(()) => return Ok(()),
                Err(error) if matches!(error.kind(), ErrorKind::Timeout { .. }) => {}
                Err(error) => return Err(without_scheduler(error)),
            }
        }
    }

    /// A worker's part: it gets its rank and the servers' addresses once all have come. A worker that replaces a lost
    /// one has its rank.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn join(&self, config: &Config) -> Result<PsLiteWorker> {
        let numbers = match self.rank {
            Some(rank) => self.servers + rank..self.servers + rank + 1,
            None => self.servers..self.servers + self.workers,
        };
        let member = self.enter(config, numbers)?;
        if member.nodes.step() == 0 {
            member.nodes.end_step()?;
        }
        let (servers, rank) = (self.addresses(&member)?, member.number - self.servers);
        // They have been there, so one that does not answer is lost: nobody calls it until a call's timeout.
        let own = Config::new(rank, self.workers, Rendezvous::Tcp(String::new())).timeout(self.patience);
        let own = own.token(config.token.clone().unwrap_or_default());
        ParameterServer::connect(&own, &servers).map_err(|error| {
            Error::rendezvous(format!("a server of the job is lost: start the whole job again ({error})"))
        })?;
        Ok(PsLiteWorker { rank, workers: self.workers, servers, _member: member })
    }

    /// Takes the first of some numbers that no process has that lives. Who was killed and comes back at once may meet the connection
    /// that it had, so all are tried again for some time.
    fn enter(&self, config: &Config, numbers: std::ops::Range<u32>) -> Result<Member> {
        let (members, root) = (self.servers + self.workers, self.root()?.to_string());
        let spec = TableSpec {
            dtype: DType::F64,
            sparse: true,
            optimizer: OptimizerSpec::of(OptimizerKind::Assign),
            consistency: Consistency::Sync,
            ..TableSpec::new(u64::from(self.servers), WIDTH as u32)
        };
        let began = Instant::now();
        while began.elapsed() < RETURN {
            for number in numbers.clone() {
                let own = Config::new(number, members, Rendezvous::Tcp(String::new()));
                let own = own.token(config.token.clone().unwrap_or_default()).timeout(config.waits.timeout);
                let connection = ParameterServer::connect(&own, std::slice::from_ref(&root))?;
                match connection.table_within(NODES, spec.clone(), Duration::ZERO) {
                    Ok(nodes) => return Ok(Member { number, nodes, _connection: connection }),
                    Err(error) if is_taken(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            std::thread::sleep(LOOK);
        }
        let what = match numbers.len() {
            1 => "another process is".to_owned(),
            count => format!("{count} other processes are"),
        };
        let (workers, servers) = (self.workers, self.servers);
        let problem =
            format!("{what} there in place of this one: the job has {workers} workers and {servers} servers");
        Err(Error::rendezvous(problem))
    }

    /// Where the servers are, once all members have come.
    fn addresses(&self, member: &Member) -> Result<Vec<String>> {
        let mut rows = vec![0.0; self.servers as usize * WIDTH];
        member.nodes.pull_range(0, &mut rows).map_err(|error| match error.kind() {
            ErrorKind::Timeout { after, .. } => self.not_all(&format!("within {after:?}")),
            _ => without_scheduler(error),
        })?;
        let addresses: Option<Vec<String>> = rows.chunks_exact(WIDTH).map(read).collect();
        addresses.ok_or_else(|| self.not_all("a server is lost: start the whole job again"))
    }

    fn not_all(&self, how: &str) -> Error {
        let Self { workers, servers, host, port, .. } = self;
        Error::rendezvous(format!(
            "not all of {workers} workers and {servers} servers have come to the scheduler at {host}:{port}: {how}"
        ))
    }
}

impl PsLiteWorker {
    /// Its rank among the workers.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many workers there are.
    pub fn workers(&self) -> u32 {
        self.workers
    }

    /// The table servers, for [`ParameterServer::connect`].
    pub fn servers(&self) -> &[String] {
        &self.servers
    }
}

/// A server that runs until this is dropped.
struct RunningServer {
    server: Arc<Server>,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
}

impl RunningServer {
    fn begin(line: &PsLiteLine, listen: SocketAddr, config: &Config, memory_bytes: u64) -> Result<Self> {
        let tables = Some(TableOptions {
            memory_bytes,
            patience: Some(line.patience),
            transport: config.transport,
            ..TableOptions::default()
        });
        let options = ServerOptions { token: config.token.clone(), tables, ..ServerOptions::new(listen) };
        let server = Arc::new(Server::bind(options)?);
        let (running, stop) = (server.clone(), server.stop());
        let thread = std::thread::Builder::new().name("hb-server".to_owned()).spawn(move || running.run());
        let thread = thread.map_err(|error| Error::io("starting a thread", error))?;
        Ok(Self { server, stop, thread: Some(thread) })
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to say.
            let _ended = thread.join();
        }
    }
}

/// An error of a call to the scheduler. If that is lost, so is the job.
fn without_scheduler(error: Error) -> Error {
    match error.kind() {
        ErrorKind::TableServerLost { address, reason } => Error::rendezvous(format!(
            "the scheduler at {address} is lost ({reason}): look at its error, if it has one, and start the whole job again"
        )),
        _ => error,
    }
}

fn is_taken(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Table { problem: TableError::Twice { .. }, .. })
}

fn parsed<T: FromStr>(environment: &Environment, name: &str) -> Result<Option<T>> {
    let parse = |text: &str| {
        let wrong = |_| Error::config(name, format!("{text:?} is not what ps-lite writes there"));
        text.trim().parse().map_err(wrong)
    };
    environment.text(name)?.map(parse).transpose()
}

fn needed<T: FromStr>(environment: &Environment, name: &str) -> Result<T> {
    let missing = "it is not set: ps-lite's lines set DMLC_ROLE, DMLC_NUM_WORKER, DMLC_NUM_SERVER, DMLC_PS_ROOT_URI and \
                   DMLC_PS_ROOT_PORT";
    parsed(environment, name)?.ok_or_else(|| Error::config(name, missing))
}

/// A text as a row.
fn written(text: &str) -> Vec<f64> {
    let bytes = text.bytes().take(WIDTH - 1).map(f64::from);
    let mut row: Vec<f64> = std::iter::once(text.len().min(WIDTH - 1) as f64).chain(bytes).collect();
    row.resize(WIDTH, 0.0);
    row
}

/// The text in a row; `None` if there is none.
fn read(row: &[f64]) -> Option<String> {
    let length = row.first().map_or(0, |length| *length as usize);
    let bytes = row.get(1..1 + length)?.iter().map(|byte| *byte as u8).collect();
    String::from_utf8(bytes).ok().filter(|text| !text.is_empty())
}
