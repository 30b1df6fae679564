//! Settings: built in a program, or read from the environment.

mod admin;
mod bytes;
#[expect(clippy::disallowed_methods, reason = "it is what reads the environment")]
mod environment;
mod exposure;
mod interface;
mod launchers;
mod listening;
mod nccl;
mod nearest;
mod place;
mod reading;
mod route;
pub mod settings;
mod streams;
mod transport;
mod trees;

pub use admin::AdminSettings;
pub use exposure::check_exposure;
pub use nccl::{NcclInterface, NcclNetwork};
pub use nearest::{UnknownName, nearest as nearest_name, parse_algorithm};
pub use reading::{token_from_env, token_from_file, token_of_listener, token_openness, transport_from_env};
pub(crate) use route::on_the_way_to;
pub use route::{Route, is_own_address, route_to};
pub use transport::Transport;
pub(crate) use trees::{Trees, host_name};

use crate::{
    Error, Result,
    core::{
        algorithm::{Algorithm, Layout, ScheduleFile, Unsupported},
        collective::Collective,
        group::{FoldOrder, Group},
        plan::Guidance,
        session::{FileText, PARAMETERS_BYTES, PlanText, formation::JobName, is_unseen},
        topology::{LinkMatrix, Ports},
    },
    rendezvous::Store,
};
use interface::Interfaces;
use settings::Bytes;
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

/// The longest name of an algorithm that rank 0 tells the others.
const ALGORITHM_CHARACTERS: usize = 16 << 10;

/// How the ranks find each other.
#[derive(Clone)]
pub enum Rendezvous {
    /// Rank 0 listens at this `host:port`, the others connect to it.
    Tcp(String),
    /// Rank 0's address, and a key for this job alone if no token is set, travel through a store that all ranks have. A
    /// token that is set does not.
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

/// The settings of a communicator. [`Config::from_env`] reads the launchers' variables; the methods override them.
///
#[doc = include_str!("config/settings.md")]
///
/// A variable with an empty value is treated as not set. Names that look like a setting's and are none are warned
/// about. `herringbone settings` shows the values in use; [`settings`](crate::settings) has the same as data.
#[derive(Clone)]
pub struct Config {
    pub(crate) rank: u32,
    pub(crate) world: u32,
    pub(crate) rendezvous: Rendezvous,
    pub(crate) token: Option<String>,
    pub(crate) reducers: Vec<String>,
    /// What decides the choice of algorithms beside sizes.
    pub(crate) guidance: Guidance,
    pub(crate) fold_order: Option<FoldOrder>,
    pub(crate) transport: Option<Transport>,
    pub(crate) interfaces: Option<Interfaces>,
    pub(crate) waits: WaitLimits,
    pub(crate) staging_bytes: usize,
    pub(crate) segment_bytes: usize,
    pub(crate) manual_progress: bool,
    /// What the job is called, in the order in which the names count.
    pub(crate) job: Vec<JobName>,
    pub(crate) trees: Trees,
}

const STAGING_BYTES: usize = 64 << 20;
const STAGING_LIMITS: (usize, usize) = (4 << 20, 64 << 30);
const SEGMENT_LIMITS: (usize, usize) = (4 << 10, 8 << 20);
/// How many segments the staging memory has room for at the least: those in flight.
const SEGMENTS: usize = crate::core::session::lane::LEAST_DEPTH as usize;
/// How long a process waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitLimits {
    /// Until an operation, or the forming of the group, has to be over.
    pub(crate) timeout: Duration,
    /// For a sign of life of another rank.
    pub(crate) patience: Duration,
}

/// How long another rank may be silent at the least: signs of life come every second, and may be held up on their way.
const PATIENCE: Duration = Duration::from_secs(6);

impl Default for WaitLimits {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30 * 60), patience: PATIENCE }
    }
}

impl Config {
    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> u32 {
        self.world
    }

    /// Rank `rank` of `world`, which meet at `rendezvous`; everything else has its default, and the environment is not
    /// read.
    pub fn new(rank: u32, world: u32, rendezvous: Rendezvous) -> Self {
        Self {
            rank,
            world,
            rendezvous,
            token: None,
            reducers: Vec::new(),
            guidance: Guidance::default(),
            fold_order: None,
            transport: None,
            interfaces: None,
            waits: WaitLimits::default(),
            staging_bytes: STAGING_BYTES,
            segment_bytes: 0,
            manual_progress: false,
            job: Vec::new(),
            trees: Trees::default(),
        }
    }

    /// The job's token: any text, of 16 characters or more if other hosts are reached. An empty text means no token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into()).filter(|token| !token.is_empty());
        self
    }

    /// The reducers, each `host:port`. Rank 0's list is used; the other ranks can leave theirs out.
    pub fn reducers(mut self, reducers: Vec<String>) -> Self {
        self.reducers = reducers;
        self
    }

    /// The job has no name, whatever launchers call it: ranks of several launchers' jobs meet, at a place that only they know.
    pub fn nameless(mut self) -> Self {
        self.job.clear();
        self
    }

    /// The job's name: any text of at most 128 bytes. A rank with another name than the ranks that it meets is refused.
    /// It overrides the launchers' names for the job.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        let source = settings::JOB.name;
        self.job.retain(|name| name.source != source);
        self.job.insert(0, JobName { source: source.to_owned(), name: name.into() });
        self
    }

    /// Forces the all-reduce's algorithm.
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.guidance.forced = Some(algorithm);
        self
    }

    /// Rules for sizes, an algorithm, constants of the machines. Rank 0's are used; the other ranks can leave theirs
    /// out.
    pub fn guidance(mut self, guidance: Guidance) -> Self {
        self.guidance = guidance;
        self
    }

    /// The source of the order of sums. Rank 0's choice is used; the other ranks can leave theirs out.
    pub fn fold_order(mut self, order: FoldOrder) -> Self {
        self.fold_order = Some(order);
        self
    }

    /// The links between all ranks, in their order: plans then use slow links less, and trees follow the links. Rank
    /// 0's are used; the other ranks can leave theirs out.
    pub fn links(mut self, links: LinkMatrix) -> Self {
        self.trees = self.trees.with(Trees { wiring: links.into(), ..Trees::default() });
        self
    }

    /// The ports of the ranks' hosts, by rank: plans then give a slow port less to carry. Rank 0's are used; the other
    /// ranks can leave theirs out.
    pub fn ports(mut self, ports: Ports) -> Self {
        self.trees.wiring.ports = Some(ports);
        self
    }

    /// The ranks [measure](crate::measure) the links between them, and the ports of their hosts, once all are there.
    /// Rank 0's choice is used.
    pub fn measure_links(mut self) -> Self {
        self.trees = self.trees.with(Trees::measured());
        self
    }

    /// Links and ports are taken as equal, whatever the environment has about them.
    pub fn without_links(mut self) -> Self {
        self.trees = self.trees.with(Trees::default());
        self
    }

    /// Whether plans follow the ports of hosts while the job runs. A host whose port becomes slow then folds less of
    /// large all-reduces, and as much as before once the port is fast again. Results stay the same, to the bit. Rank
    /// 0's choice is used.
    pub fn rebalance(mut self, on: bool) -> Self {
        self.trees.measuring.while_running = on;
        self
    }

    /// Up to this number of elements one tree carries the whole buffer, if trees are forced. Rank 0's choice is used.
    pub fn tree_array_bound(mut self, elements: u64) -> Self {
        self.trees.bound = Some(elements);
        self
    }

    /// Forces the transport between processes.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = Some(transport);
        self
    }

    /// The network interface whose address this worker listens at, tells the others and calls from; in the notation of
    /// `HERRINGBONE_IFNAME`.
    pub fn interfaces(mut self, names: impl Into<String>) -> Self {
        self.interfaces = Some(Interfaces::new(settings::IFNAME.name, names));
        self
    }

    /// The timeout of operations, and of forming the group.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.waits.timeout = timeout;
        self
    }

    /// The longest silence before this rank treats another one as lost: 6 seconds, or more if ranks get little time of
    /// their processors. After half of it a warning names that rank.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.waits.patience = patience;
        self
    }

    /// Bytes of staging memory: 4 MiB to 64 GiB.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging_bytes = bytes;
        self
    }

    /// Bytes of a pipelining segment over the whole buffer: 4 KiB to 8 MiB, and at most a quarter of the staging memory; 0
    /// leaves the choice to the engine.
    pub fn segment_bytes(mut self, bytes: usize) -> Self {
        self.segment_bytes = bytes;
        self
    }

    /// Makes the program drive operations that no thread waits for. Without a background thread, they move only in
    /// [`Communicator::progress`](crate::Communicator::progress) and while the program waits for one of them. This is
    /// for programs with a loop of their own, which then also decide on which thread, and how often, the engine works.
    ///
    /// From submitting an operation until it is over, progress has to be called again and again: other ranks need this
    /// one's part of it. Between operations nothing has to be called. Connections and deaths of other ranks are still
    /// watched by a thread, which moves no data.
    ///
    /// ```
    /// # fn main() -> Result<(), herringbone::Error> {
    /// use herringbone::{Config, ReduceOp, Rendezvous};
    /// let config = Config::new(0, 2, Rendezvous::Tcp(String::new())).manual_progress(true);
    /// let ranks = herringbone::local_with(config)?;
    /// let begun: Result<Vec<_>, _> =
    ///     ranks.iter().map(|comm| comm.all_reduce_async(vec![1.0_f32; 3], ReduceOp::Sum)).collect();
    /// let works = begun?;
    /// while !works.iter().all(|work| work.is_done()) {
    ///     for comm in &ranks {
    ///         comm.progress();
    ///     }
    /// }
    /// for work in works {
    ///     assert_eq!(work.wait()?, [2.0; 3]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn manual_progress(mut self, manual: bool) -> Self {
        self.manual_progress = manual;
        self
    }

    /// Whether it can be used, as far as this process can tell before it meets the others.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), which names the setting, the problem and the remedy;
    /// [`ErrorKind::Auth`](crate::ErrorKind::Auth) for reducers that others reach without a token.
    pub fn check(&self) -> Result<()> {
        if self.world == 0 || self.rank >= self.world {
            let problem = format!(
                "rank {} of a world of {}: ranks are 0 to the world's size - 1",
                self.rank, self.world
            );
            return Err(Error::config("RANK, WORLD_SIZE", problem));
        }
        if self.waits.patience < PATIENCE {
            let problem = format!(
                "{} s is too short, because heartbeats come every second and can be delayed: write 6 or more",
                self.waits.patience.as_secs_f64()
            );
            return Err(Error::config(settings::PATIENCE_S.name, problem));
        }
        check_sizes(self.staging_bytes, self.segment_bytes)?;
        self.check_algorithm()?;
        self.check_reducers()?;
        self.check_job()?;
        // Ranks that are threads of one process have no address to meet at.
        if let Rendezvous::Tcp(store) = &self.rendezvous
            && !store.is_empty()
            && !is_address(store)
        {
            return Err(Error::config(
                settings::STORE.name,
                format_args!("{store:?} is not host:port; write it as 10.0.0.1:29400 (ports to 65535)"),
            ));
        }
        self.local_address(Ipv4Addr::LOCALHOST.into()).map(drop)
    }

    /// Whether the job's name can be told to others.
    fn check_job(&self) -> Result<()> {
        let setting = settings::JOB;
        let Some(JobName { name, .. }) = self.job.iter().find(|name| name.source == setting.name) else {
            return Ok(());
        };
        if !name.is_empty() && name.len() <= launchers::NAME_BYTES && !name.contains(is_unseen) {
            return Ok(());
        }
        let problem = format!(
            "{name:?} cannot be used; it must be {}, on one line and without invisible characters",
            setting.values
        );
        Err(Error::config(setting.name, problem))
    }

    /// Whether there is a group that can do it by the forced algorithm, and whether its name can be told.
    fn check_algorithm(&self) -> Result<()> {
        let Some(algorithm) = &self.guidance.forced else { return Ok(()) };
        let refuse = |problem: &dyn fmt::Display| Err(Error::config(settings::ALGORITHM.name, problem));
        if algorithm.to_string().len() > ALGORITHM_CHARACTERS {
            return refuse(&format_args!(
                "a name of more than {ALGORITHM_CHARACTERS} characters: give fewer factors or shares"
            ));
        }
        let (group, layout) = (Group::of_size(4), Layout { reducers: 1, hosts: &[0, 0, 1, 1], links: None });
        let possible =
            |algorithm: &Algorithm| algorithm.schedule(Collective::AllReduce, &group, &layout).map(drop);
        let tried = match (possible(algorithm), algorithm.plain()) {
            // Only the job knows how many owners it has.
            (Err(Unsupported::Shares { .. }), Algorithm::Weighted { plain, .. }) => possible(plain),
            (tried, _) => tried,
        };
        tried.or_else(|reason| refuse(&reason))
    }

    fn check_reducers(&self) -> Result<()> {
        check_addresses(settings::REDUCERS.name, &self.reducers)?;
        self.check_room()?;
        for reducer in &self.reducers {
            // Rank 0's token is everybody's; names are looked up, and checked, when they are called.
            if let (0, Ok(address)) = (self.rank, reducer.parse()) {
                check_exposure(address, self.token.as_deref())?;
            }
        }
        Ok(())
    }

    /// Whether the schedules of files are of as many ranks as the job, which begins.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for one that is not.
    pub(crate) fn check_files(&self) -> Result<()> {
        let known = |file: &ScheduleFile| Some((file.path().to_owned(), file.known()?.workers()));
        let mut files = self.guidance.rules.files().filter_map(known);
        let Some((path, ranks)) = files.find(|(_, ranks)| *ranks != self.world) else { return Ok(()) };
        let problem = format!(
            "{path}: its schedule is of {ranks} ranks, and the job has {}. Take a schedule of that many, such as herringbone search \
             finds for their topology, or leave the rule out",
            self.world
        );
        Err(Error::config(settings::PLAN.name, problem))
    }

    /// What rank 0 tells all ranks of the plan that was written.
    pub(crate) fn plan_text(&self) -> PlanText {
        let rules = &self.guidance.rules;
        let text =
            |file: &ScheduleFile| Some(FileText { text: file.text()?.to_owned(), digest: file.digest()? });
        PlanText { rules: rules.texts(), files: rules.files().filter_map(text).collect() }
    }

    /// Whether the reducers' addresses fit the message in which rank 0 tells all ranks the job's parameters, beside its other
    /// parts. Some bytes stay free for those that have no list.
    fn check_room(&self) -> Result<()> {
        const OTHERS: usize = 1 << 10;
        let text = |text: &str| text.len() + size_of::<u16>();
        let rules: usize = self.guidance.rules.texts().iter().map(|rule| text(rule)).sum();
        let forced = self.guidance.forced.as_ref().map_or(0, |forced| text(&forced.to_string()));
        let taken =
            OTHERS + self.trees.wiring.bytes() + rules + forced + size_of_val(&self.guidance.numbers()[..]);
        let room = PARAMETERS_BYTES.saturating_sub(taken);
        let sums = self.reducers.iter().scan(0, |sum, address| {
            *sum += text(address);
            Some(*sum)
        });
        let fit = sums.take_while(|sum| *sum <= room).count();
        if fit == self.reducers.len() {
            return Ok(());
        }
        let problem = format_args!(
            "it names {} reducers, and only the first {fit} fit the message that tells all ranks of them, which has at most \
             {PARAMETERS_BYTES} bytes: name fewer, or by shorter names",
            self.reducers.len()
        );
        Err(Error::config(settings::REDUCERS.name, problem))
    }

    /// The address of the interface that is asked for; `None` if none is. `usual` is the address that this process has
    /// on its way to rank 0.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if there is no such interface.
    pub(crate) fn local_address(&self, usual: IpAddr) -> Result<Option<IpAddr>> {
        match &self.interfaces {
            // Whoever meets at loopback is on one host, of which other libraries' settings say nothing.
            Some(interfaces) if !(interfaces.is_borrowed() && usual.is_loopback()) => {
                interfaces.address(&interface::present()?, usual).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Whether each of a setting's addresses is one, and is there once.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config).
pub(crate) fn check_addresses(setting: &str, addresses: &[String]) -> Result<()> {
    let refuse = |problem: String| Err(Error::config(setting, problem));
    for (at, address) in addresses.iter().enumerate() {
        if !is_address(address) || address.len() > 256 {
            return refuse(format!(
                "{address:?} is not host:port; write them as 10.0.0.5:7070,10.0.0.6:7070 (ports to 65535)"
            ));
        }
        if addresses[..at].contains(address) {
            return refuse(format!("{address} is listed twice: list each address once"));
        }
    }
    Ok(())
}

/// Whether staging memory and segments have sizes that work, alone and together; 0 leaves a segment's to the engine.
pub(crate) fn check_sizes(staging: usize, segment: usize) -> Result<()> {
    let within = |setting: &settings::Setting, bytes: usize, (least, most): (usize, usize), or: &str| {
        let problem = || format!("{} is not between {} and {}{or}", Bytes(bytes), Bytes(least), Bytes(most));
        if (least..=most).contains(&bytes) { Ok(()) } else { Err(Error::config(setting.name, problem())) }
    };
    within(&settings::STAGING_BYTES, staging, STAGING_LIMITS, "")?;
    if segment == 0 {
        return Ok(());
    }
    within(&settings::SLICE_BYTES, segment, SEGMENT_LIMITS, ", nor 0, which leaves it to the transport")?;
    if segment > staging / SEGMENTS {
        let problem = format!(
            "{SEGMENTS} segments of {} do not fit into the staging memory of {}: set it to {} or less, or \
             HERRINGBONE_STAGING_BYTES to {} or more, on every rank",
            Bytes(segment),
            Bytes(staging),
            Bytes(staging / SEGMENTS),
            Bytes(segment * SEGMENTS)
        );
        return Err(Error::config(settings::SLICE_BYTES.name, problem));
    }
    Ok(())
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

/// Whether this is `host:port`, of which the host is a name, an address, or an IPv6 address in brackets.
fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let is_host = match bare {
            Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
            None => {
                !host.is_empty() && !host.contains([':', '[', ']']) && !host.contains(char::is_whitespace)
            }
        };
        is_host && port.parse::<u16>().is_ok()
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ErrorKind,
        core::session::{Parameters, control::Message},
    };

    #[test]
    fn more_reducers_than_a_message_takes_are_refused_with_how_many_fit() {
        let config = |count: usize| {
            let reducers: Vec<String> = (0..count).map(|at| format!("127.0.0.1:{}", 10_000 + at)).collect();
            Config::new(0, 2, Rendezvous::Tcp("127.0.0.1:1".to_owned())).reducers(reducers)
        };
        let text = config(4200).check().unwrap_err().to_string();
        assert!(text.contains("HERRINGBONE_REDUCERS: it names 4200 reducers, and only the first "), "{text}");
        let fit =
            text.split("the first ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok()).unwrap();
        config(fit).check().unwrap();
        assert!(config(fit + 1).check().is_err());
        let parameters = Box::new(Parameters { reducers: config(fit).reducers, ..Parameters::default() });
        let message = Message::Parameters { group: 0, parameters };
        message.encode(|_| 0).expect("as many as are said to fit do");
    }

    #[test]
    fn addresses_are_a_host_and_a_port() {
        for right in ["10.0.0.5:7070", "reducer-1.example:1", "localhost:65535", "[::1]:7070", "[fe80::2]:80"]
        {
            assert!(is_address(right), "{right}");
        }
        let wrong =
            ["", "host", ":7070", "host:", "host:70700", "::1:7070", "[host]:1", "[]:1", "a:1 b:2", "a b:1"];
        for wrong in wrong {
            assert!(!is_address(wrong), "{wrong}");
        }
        let lists = [vec!["a:1 b:2"], vec!["a:1", "a:1"]];
        for (list, problem) in
            lists.into_iter().zip(["a:1 b:2\" is not host:port; write them", "a:1 is listed twice"])
        {
            let reducers = list.into_iter().map(str::to_owned).collect::<Vec<_>>();
            let config = Config::new(0, 1, Rendezvous::Tcp(String::new())).reducers(reducers);
            assert!(config.check().unwrap_err().to_string().contains(problem));
        }
        let far =
            Config::new(0, 1, Rendezvous::Tcp(String::new())).reducers(vec!["192.0.2.1:7070".to_owned()]);
        assert!(matches!(far.check().unwrap_err().kind(), ErrorKind::Auth { .. }));
        assert!(far.token("a token of the tests").check().is_ok());
        let config = Config::new(0, 2, Rendezvous::Tcp("localhost".to_owned()));
        assert!(
            config
                .check()
                .unwrap_err()
                .to_string()
                .contains("HERRINGBONE_STORE: \"localhost\" is not host:port")
        );
    }

    #[test]
    fn sizes_are_checked_alone_and_together() {
        let cases: [(usize, usize, Option<&[&str]>); 8] = [
            (64 << 20, 0, None),
            (4 << 20, 1 << 20, None),
            (4 << 20, 4 << 10, None),
            (1, 0, Some(&["HERRINGBONE_STAGING_BYTES: 1 is not between 4M and 64G"])),
            (65 << 30, 0, Some(&["65G is not between"])),
            (64 << 20, 1, Some(&["HERRINGBONE_SLICE_BYTES: 1 is not between 4K and 8M, nor 0, which"])),
            (64 << 20, 16 << 20, Some(&["16M is not between"])),
            (
                4 << 20,
                2 << 20,
                Some(&["HERRINGBONE_SLICE_BYTES: 4 segments of 2M", "1M or less", "to 8M or more"]),
            ),
        ];
        for (staging, segment, expected) in cases {
            match (check_sizes(staging, segment), expected) {
                (Ok(()), None) => {}
                (Err(error), Some(parts)) => {
                    assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
                }
                (result, _) => panic!("{staging} and {segment}: {result:?}"),
            }
        }
    }

    #[test]
    fn an_interface_counts_unless_it_is_borrowed_and_rank_0_is_at_loopback() {
        let config = Config::new(0, 2, Rendezvous::Tcp(String::new()));
        let (here, there) = (Ipv4Addr::LOCALHOST.into(), "192.0.2.1".parse().unwrap());
        assert_eq!(config.local_address(there).unwrap(), None);
        let ours = config.clone().interfaces("=lo");
        assert_eq!(ours.local_address(there).unwrap(), Some(here));
        let missing = config.clone().interfaces("no such interface").check().unwrap_err().to_string();
        assert!(missing.contains("HERRINGBONE_IFNAME") && missing.contains("lo (127.0.0.1"), "{missing}");
        let mut borrowed = config;
        borrowed.interfaces = Some(Interfaces::new("NCCL_SOCKET_IFNAME", "no such interface"));
        assert_eq!(borrowed.local_address(here).unwrap(), None);
        let error = borrowed.local_address(there).unwrap_err().to_string();
        assert!(error.contains("NCCL_SOCKET_IFNAME"), "{error}");
    }
}
