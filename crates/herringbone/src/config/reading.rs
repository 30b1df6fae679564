//! Reading a configuration from the environment.

use super::{
    Config, Rendezvous, Transport, Trees,
    bytes::Bytes,
    environment::Environment,
    interface::Interfaces,
    launchers,
    nearest::{UnknownName, parse_algorithm},
    route::is_own_address,
    settings::{self, Setting},
};
use crate::{
    Algorithm, Error, Result,
    core::{
        algorithm::ScheduleFile,
        group::FoldOrder,
        plan::{
            Guidance, PlanRules,
            files::{self, FileProblem},
        },
        prepare::Sizing,
        session::{FILES_BYTES, MEASURE},
        simulate::Calibration,
        topology::{self, Wiring},
    },
    tcp_table::variable_of_listener,
    user_file::{FileError, read_user_file, read_user_text},
};
use std::{
    collections::BTreeSet,
    fmt, fs,
    net::ToSocketAddrs,
    os::unix::fs::MetadataExt,
    str::FromStr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

impl Environment {
    /// Its problems: each setting that cannot be used by itself, or otherwise the contradictions between them. Names
    /// that are no settings are [`settings::unknown`].
    pub fn problems(&self) -> Vec<Error> {
        let alone = |setting: &Setting| {
            let names = setting.fallbacks.iter().flat_map(|names| names.iter()).chain([&setting.name]);
            let environment = self.only(names.copied());
            Config::new(0, 1, Rendezvous::Tcp(String::new())).with_environment(&environment)?.check()
        };
        let each = settings::ALL.iter().map(|setting| alone(setting));
        let problems: Vec<Error> =
            each.chain([settings::check_values(self)]).filter_map(Result::err).collect();
        if problems.is_empty() {
            let together = Config::from_environment(self).and_then(|config| config.check());
            return together.err().into_iter().collect();
        }
        problems
    }

    /// The algorithm that `HERRINGBONE_ALGORITHM` forces.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for an unknown name.
    pub fn algorithm(&self) -> Result<Option<Algorithm>> {
        let Some(found) = settings::ALGORITHM.find(self)? else { return Ok(None) };
        let wrong = |error| Error::config(&found.variable, error);
        parse_algorithm(&found.text).map(Some).map_err(wrong)
    }

    /// The transport of `HERRINGBONE_TRANSPORT`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a name that is none.
    pub(crate) fn transport(&self) -> Result<Option<Transport>> {
        let Some(found) = settings::TRANSPORT.find(self)? else { return Ok(None) };
        found.text.parse().map(Some).map_err(|error: UnknownName| Error::config(&found.variable, error))
    }

    /// The rules of `HERRINGBONE_PLAN`, whose files are not read yet.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for invalid rules, with the place.
    pub fn plan(&self) -> Result<Option<PlanRules>> {
        let Some(found) = settings::PLAN.find(self)? else { return Ok(None) };
        PlanRules::parse(&found.text).map(Some).map_err(|error| Error::config(&found.variable, error))
    }

    /// The same with the schedules of the files that they name, as rank 0 of a job reads and proves them.
    ///
    /// # Errors
    /// Also for a file that cannot be read, and for a schedule that is not proved.
    pub fn plan_with_files(&self) -> Result<Option<PlanRules>> {
        let mut bytes = 0;
        let mut read = |file: &ScheduleFile| {
            let path = file.path();
            let wrong =
                |why: &dyn fmt::Display| Error::config(settings::PLAN.name, format_args!("{path}: {why}"));
            let text = read_user_file(path, FILES_BYTES as u64).map_err(|error| match error {
                FileError::Large(_) => wrong(&format_args!(
                    "it has more than {FILES_BYTES} bytes, which the schedules of a plan have at most, all together; take one of \
                     fewer chunks"
                )),
                other => wrong(&format_args!("{other}; name a file on rank 0's machine that herringbone search has written")),
            })?;
            let text = String::from_utf8(text).map_err(|_| wrong(&FileError::NotText))?;
            let found = files::proved(file, &text).map_err(|problem| wrong(&problem))?;
            bytes += found.text().map_or(0, str::len);
            match bytes > FILES_BYTES {
                true => Err(wrong(&FileProblem::TooLong { bytes: bytes as u64 })),
                false => Ok(found),
            }
        };
        self.plan()?.map(|rules| rules.with_files(&mut read)).transpose()
    }

    /// The constants in the file that `HERRINGBONE_CALIBRATION` names.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a file that cannot be read, with the line of the error.
    pub fn calibration(&self) -> Result<Option<Calibration>> {
        let Some(found) = settings::CALIBRATION.find(self)? else { return Ok(None) };
        let path = found.text.as_str();
        let wrong = |why: &dyn fmt::Display| Error::config(&found.variable, format_args!("{path}: {why}"));
        let text = read_user_text(path).map_err(|error| wrong(&error))?;
        Calibration::parse(&text).map(Some).map_err(|error| wrong(&error))
    }

    /// The fold order of `HERRINGBONE_FOLD_ORDER`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for an invalid value.
    pub fn fold_order(&self) -> Result<Option<FoldOrder>> {
        let Some(found) = settings::FOLD_ORDER.find(self)? else { return Ok(None) };
        let unknown = |_| UnknownName::none_of(&found.text, &FoldOrder::ALL.map(FoldOrder::name));
        found.text.trim().parse().map(Some).map_err(|error| Error::config(&found.variable, unknown(error)))
    }

    /// The links between ranks, and the ports of hosts, in the file that `HERRINGBONE_TOPOLOGY` names, or in one topology of it, as
    /// `FILE#NAME`.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a file that cannot be read, with line and column if it is no
    /// topology, and for links that only the ranks of a job can measure.
    pub fn wiring(&self) -> Result<Wiring> {
        let Some(trees) = self.trees()? else { return Ok(Wiring::default()) };
        match trees.measuring.at_start {
            false => Ok(trees.wiring),
            true => Err(Error::config(
                settings::TOPOLOGY.name,
                "the ranks of a job measure their links, and there is no job here; name the file that herringbone topo --measure \
                 --json has written in one",
            )),
        }
    }

    /// Up to how many elements one tree carries the whole buffer, if `HERRINGBONE_TREE_ARRAY_BOUND` is set.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a value that is no number of elements.
    pub fn tree_bound(&self) -> Result<Option<u64>> {
        Ok(self.parsed(&settings::TREE_ARRAY_BOUND)?.map(|Elements(bound)| bound))
    }

    /// The settings for the choice of algorithms.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for one that cannot be read.
    pub fn guidance(&self) -> Result<Guidance> {
        Ok(Guidance {
            latency: None,
            rules: self.plan_with_files()?.unwrap_or_default(),
            forced: self.algorithm()?,
            calibration: self.calibration()?,
            tree_bound: self.tree_bound()?,
        })
    }

    /// How a job with these settings cuts its calls, whose workers are on these hosts, one number for each.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for sizes that cannot be.
    pub fn sizing(&self, hosts: &[u32]) -> Result<Sizing> {
        let hosts = Sizing::distinct(hosts);
        let staging = self.bytes(&settings::STAGING_BYTES)?.unwrap_or(super::STAGING_BYTES);
        let segment_bytes = self.bytes(&settings::SLICE_BYTES)?.unwrap_or_default();
        Ok(Sizing { hosts, shared: hosts == 1, segment_bytes, most_staged: Sizing::most_staged(staging) })
    }

    /// What `HERRINGBONE_TOPOLOGY` says of the links.
    pub(crate) fn trees(&self) -> Result<Option<Trees>> {
        let Some(found) = settings::TOPOLOGY.find(self)? else { return Ok(None) };
        if found.text.trim() == MEASURE {
            return Ok(Some(Trees::measured()));
        }
        let (path, name) = match found.text.rsplit_once('#') {
            Some((path, name)) => (path, Some(name)),
            None => (found.text.as_str(), None),
        };
        let wrong = |why: &dyn fmt::Display| Error::config(&found.variable, format_args!("{path}: {why}"));
        let text = read_user_text(path).map_err(|error| wrong(&error))?;
        let topology = topology::read(&text, name).map_err(|error| wrong(&error))?;
        let wiring = Wiring::of(&topology).map_err(|error| wrong(&error))?;
        let name = |node: usize| topology.nodes()[node].name.clone();
        let nodes = topology.ranks().into_iter().map(name).collect();
        Ok(Some(Trees { wiring, nodes, ..Trees::default() }))
    }

    /// A setting's value in the form that it has to have.
    fn parsed<T: FromStr>(&self, setting: &Setting) -> Result<Option<T>> {
        let Some(found) = setting.find(self)? else { return Ok(None) };
        found.text.trim().parse().map(Some).map_err(|_| setting.refuse(&found))
    }

    /// The items of a list that a setting holds, if it is set.
    pub(crate) fn listed(&self, setting: &Setting) -> Result<Option<Vec<String>>> {
        let items = |text: &str| {
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
        };
        Ok(setting.find(self)?.map(|found| items(&found.text)))
    }

    /// A number of bytes that a setting holds.
    fn bytes(&self, setting: &Setting) -> Result<Option<usize>> {
        let Some(found) = setting.find(self)? else { return Ok(None) };
        found.text.parse().map(|Bytes(bytes)| Some(bytes)).map_err(|_| setting.refuse(&found))
    }

    /// The job's token.
    pub(crate) fn token(&self) -> Result<Option<String>> {
        match (settings::TOKEN.find(self)?, settings::TOKEN_FILE.find(self)?) {
            (Some(_), Some(_)) => {
                Err(Error::config(settings::TOKEN.name, "HERRINGBONE_TOKEN_FILE is set too: set one of them"))
            }
            (Some(token), None) => Ok(Some(token.text)),
            (None, Some(path)) => token_in(&path.text, settings::TOKEN_FILE.name).map(Some),
            (None, None) => Ok(None),
        }
    }
}

/// A number of elements: `10000000` or `1e7`.
struct Elements(u64);

impl FromStr for Elements {
    type Err = ();

    fn from_str(text: &str) -> std::result::Result<Self, ()> {
        if let Ok(elements) = text.parse() {
            return Ok(Self(elements));
        }
        let number: f64 = text.parse().map_err(drop)?;
        // Up to here each whole number has its own float.
        let is_whole = (0.0..=9e15).contains(&number) && number.fract() == 0.0;
        is_whole.then_some(Self(number as u64)).ok_or(())
    }
}

impl Config {
    /// The settings for the choice of algorithms.
    pub fn guided_by(&self) -> &Guidance {
        &self.guidance
    }

    /// Whether reducers were named.
    pub fn has_reducers(&self) -> bool {
        !self.reducers.is_empty()
    }

    /// As [`from_env`](Self::from_env), for a worker that meets no other one: the address of rank 0 can be unknown.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a value that makes no sense.
    pub fn worker_from_env() -> Result<Self> {
        let environment = Environment::of_process();
        let said: (Option<u32>, Option<u32>) =
            (environment.parsed(&settings::RANK)?, environment.parsed(&settings::WORLD_SIZE)?);
        match said {
            (Some(rank), Some(world)) => Self::new(rank, world, Rendezvous::Tcp(String::new())).with_env(),
            _ => Self::from_env(),
        }
    }

    /// Takes over from the environment all but the rank, the world's size and the rendezvous.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a value that makes no sense.
    pub fn with_env(self) -> Result<Self> {
        let environment = Environment::of_process();
        settings::check_on(self.rank, &environment)?;
        let config = self.with_environment(&environment)?;
        config.name_job_in_log();
        super::place::log_launcher(config.rank, &environment);
        Ok(config)
    }

    /// As [`with_env`](Self::with_env), from an environment, and without a word in the log of names that are no settings.
    ///
    /// # Errors
    /// As `with_env`, except for settings of the log and of pages.
    pub fn with_environment(mut self, environment: &Environment) -> Result<Self> {
        self.token = environment.token()?;
        if let Some(reducers) = environment.listed(&settings::REDUCERS)? {
            self.reducers = reducers;
        } else if let reducers @ [_, ..] = &launchers::reducers(environment)?[..] {
            self.reducers = reducers.to_vec();
        }
        self.job = self.names_in(environment)?;
        self.guidance.forced = environment.algorithm()?.or(self.guidance.forced);
        // Rank 0 reads files for all.
        let rules = if self.rank == 0 { environment.plan_with_files()? } else { environment.plan()? };
        self.guidance.rules = rules.unwrap_or(self.guidance.rules);
        self.guidance.calibration = environment.calibration()?.or(self.guidance.calibration);
        self.fold_order = environment.fold_order()?.or(self.fold_order);
        if let Some(trees) = environment.trees()? {
            self.trees = self.trees.with(trees);
        }
        self.trees.bound = environment.tree_bound()?.or(self.trees.bound);
        if let Some(found) = settings::REBALANCE.find(environment)? {
            self.trees.measuring.while_running = match &*found.text {
                "0" | "1" => found.text == "1",
                _ => return Err(settings::REBALANCE.refuse(&found)),
            };
        }
        self.transport = environment.transport()?.or(self.transport);
        if let Some(names) = settings::IFNAME.find(environment)? {
            self.interfaces = Some(Interfaces::new(names.variable, names.text));
        }
        if let Some(Seconds(timeout)) = environment.parsed(&settings::TIMEOUT_S)? {
            self.waits.timeout = timeout;
        }
        if let Some(Seconds(patience)) = environment.parsed(&settings::PATIENCE_S)? {
            self.waits.patience = patience;
        }
        if let Some(bytes) = environment.bytes(&settings::STAGING_BYTES)? {
            self.staging_bytes = bytes;
        }
        if let Some(bytes) = environment.bytes(&settings::SLICE_BYTES)? {
            self.segment_bytes = bytes;
        }
        Ok(self)
    }
}

/// Seconds above 0, with a fraction if need be.
struct Seconds(Duration);

impl FromStr for Seconds {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let seconds: f64 = text.parse().map_err(|_| ())?;
        let duration = Duration::try_from_secs_f64(seconds).map_err(|_| ())?;
        if duration.is_zero() { Err(()) } else { Ok(Self(duration)) }
    }
}

/// The job's token from `HERRINGBONE_TOKEN` or the file that `HERRINGBONE_TOKEN_FILE` names.
///
/// # Errors
/// If both are set, or the file cannot be read or is empty.
pub fn token_from_env() -> Result<Option<String>> {
    Environment::of_process().token()
}

/// The transport that `HERRINGBONE_TRANSPORT` forces; `None` if it forces none.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) if it is no transport's name.
pub fn transport_from_env() -> Result<Option<Transport>> {
    Environment::of_process().transport()
}

/// The token that a file holds, without white space around it.
///
/// # Errors
/// If the file cannot be read or is empty.
pub fn token_from_file(path: &str) -> Result<String> {
    token_in(path, "the token's file")
}

/// The token of the job of the process that listens at `host:port`. It is found only if that is a process of this user
/// and host that was started with the token in its environment.
pub fn token_of_listener(address: &str) -> Option<String> {
    let mut there =
        address.to_socket_addrs().ok()?.filter(|there| is_own_address(there.ip()).unwrap_or(false));
    there.find_map(|there| {
        let value =
            |name| variable_of_listener(there, name)?.into_string().ok().filter(|text| !text.is_empty());
        value(settings::TOKEN.name).or_else(|| token_from_file(&value(settings::TOKEN_FILE.name)?).ok())
    })
}

/// The token that a file holds, which is called `name` in errors.
fn token_in(path: &str, name: &str) -> Result<String> {
    let problem = |problem: &dyn fmt::Display| Error::config(name, format_args!("{path}: {problem}"));
    let text = read_user_text(path).map_err(|error| problem(&error))?;
    if let Some(open) = token_openness(path)
        && is_first_warning(path)
    {
        crate::log::warn("settings", format_args!("{name}: {open}"));
    }
    match text.trim() {
        "" => Err(problem(&"the file is empty")),
        token => Ok(token.to_owned()),
    }
}

/// Whether this process has not warned of a file yet: a rank reads its token for its place, and again for its settings.
fn is_first_warning(path: &str) -> bool {
    static WARNED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned())
}

/// Why a token's file keeps no secret, if every user of this machine can read or change it.
pub fn token_openness(path: &str) -> Option<String> {
    let mode = fs::metadata(path).ok()?.mode() & 0o777;
    let what = match mode & 0o007 {
        0 | 0o001 => return None,
        others if others & 0o002 != 0 => "change",
        _ => "read",
    };
    Some(format!(
        "every user can {what} {path} (mode {mode:03o}), so the token is no secret: chmod 600 {path}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use std::{
        collections::BTreeMap,
        ffi::OsString,
        os::unix::{ffi::OsStringExt, fs::PermissionsExt},
    };

    #[cfg(feature = "topology-readers")]
    const TOPOLOGY: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../testdata/topologies/link_matrices.json#derived_nvswitch8_uniform"
    );

    #[cfg(feature = "topology-readers")]
    #[test]
    fn a_topology_that_cannot_be_used_is_named_with_its_place() {
        let folder = std::env::temp_dir().join(format!("herringbone-topology-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("links.csv");
        let path = path.to_str().unwrap();
        for (text, said) in [("0,1\n1", "line 2, column 1"), ("0,0\n0,0\n", "from rank 0 to rank 1")] {
            fs::write(path, text).unwrap();
            let error = config(&[("HERRINGBONE_TOPOLOGY", path)]).err().unwrap().to_string();
            assert!(error.contains(said) && error.contains("HERRINGBONE_TOPOLOGY"), "{error}");
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!(config(&[("HERRINGBONE_TOPOLOGY", path)]).is_err());
    }

    fn config(set: &[(&str, &str)]) -> Result<Config> {
        Config::from_environment(&Environment::of(set.iter().copied()))
    }

    #[cfg(feature = "topology-readers")]
    #[test]
    fn all_that_is_set_is_taken_over() {
        let config = config(&[
            ("HERRINGBONE_RANK", "1"),
            ("HERRINGBONE_WORLD_SIZE", "2"),
            ("HERRINGBONE_STORE", "host:7"),
            ("HERRINGBONE_TOKEN", "secret"),
            ("HERRINGBONE_REDUCERS", "a:1, b:2,"),
            ("HERRINGBONE_ALGORITHM", "radix(8,8)"),
            ("HERRINGBONE_FOLD_ORDER", "hosts"),
            ("HERRINGBONE_TOPOLOGY", TOPOLOGY),
            ("HERRINGBONE_TREE_ARRAY_BOUND", "1e3"),
            ("HERRINGBONE_TRANSPORT", "tcp"),
            ("HERRINGBONE_IFNAME", "eth0"),
            ("HERRINGBONE_TIMEOUT_S", " 1.5 "),
            ("HERRINGBONE_STAGING_BYTES", "16M"),
            ("HERRINGBONE_SLICE_BYTES", "256k"),
            ("RANK", "ignored"),
        ])
        .unwrap();
        assert_eq!((config.rank, config.world), (1, 2));
        assert!(matches!(&config.rendezvous, Rendezvous::Tcp(address) if address == "host:7"));
        assert_eq!(config.token.as_deref(), Some("secret"));
        assert_eq!(config.reducers, ["a:1", "b:2"]);
        assert_eq!(config.guidance.forced, Some(Algorithm::radix(vec![8, 8])));
        assert_eq!((config.fold_order, config.transport), (Some(FoldOrder::Hosts), Some(Transport::Tcp)));
        assert_eq!((config.trees.wiring.size(), config.trees.bound), (Some(8), Some(1000)));
        assert_eq!(config.interfaces, Some(Interfaces::new("HERRINGBONE_IFNAME", "eth0")));
        assert_eq!(config.waits.timeout, Duration::from_millis(1500));
        assert_eq!((config.staging_bytes, config.segment_bytes), (16 << 20, 256 << 10));
    }

    #[test]
    fn launchers_say_who_and_where_and_nothing_is_a_job_of_one() {
        let alone = config(&[("HERRINGBONE_RANK", ""), ("WORLD_SIZE", "")]).unwrap();
        assert_eq!((alone.rank, alone.world), (0, 1));
        let place = [("RANK", "2"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "7")];
        let launched = config(&place).unwrap();
        assert_eq!((launched.rank, launched.world), (2, 4));
        assert!(matches!(&launched.rendezvous, Rendezvous::Tcp(address) if address == "[::1]:7"));
        assert!(config(&place[..3]).unwrap_err().to_string().contains("or set MASTER_ADDR and MASTER_PORT"));
        assert!(config(&place[..1]).unwrap_err().to_string().contains("set both RANK and WORLD_SIZE"));
    }

    #[test]
    fn wrong_values_are_refused_with_what_would_be_right() {
        let cases: [(&str, &str, &[&str]); 14] = [
            ("HERRINGBONE_ALGORITHM", "rign", &["\"rign\"", "reduction_server", "did you mean ring?"]),
            ("HERRINGBONE_TRANSPORT", "tpc", &["\"tpc\" is not one of shm, tcp", "did you mean tcp?"]),
            (
                "HERRINGBONE_FOLD_ORDER",
                "host",
                &["\"host\" is not one of ranks, hosts", "did you mean hosts?"],
            ),
            ("HERRINGBONE_TIMEOUT_S", "0", &["\"0\"", "seconds above 0"]),
            ("HERRINGBONE_TIMEOUT_S", "1e99", &["seconds above 0"]),
            ("HERRINGBONE_TIMEOUT_S", "soon", &["\"soon\"", "seconds above 0"]),
            ("HERRINGBONE_STAGING_BYTES", "lots", &["\"lots\"", "4M to 64G"]),
            ("HERRINGBONE_STAGING_BYTES", "64X", &["\"64X\"", "4M to 64G"]),
            ("HERRINGBONE_SLICE_BYTES", "-1", &["\"-1\"", "4K to 8M"]),
            ("HERRINGBONE_TOKEN_FILE", "no/such/file", &["no/such/file"]),
            (
                "HERRINGBONE_TREE_ARRAY_BOUND",
                "1.5",
                &["\"1.5\"", "a number of elements, like 10000000 or 1e7"],
            ),
            ("HERRINGBONE_TREE_ARRAY_BOUND", "-1", &["\"-1\"", "a number of elements"]),
            ("RANK", "first", &["\"first\"", "0 to the world's size - 1"]),
            ("HERRINGBONE_WORLD_SIZE", "-2", &["\"-2\"", "a number from 1"]),
        ];
        for (name, value, parts) in cases {
            let mut set = vec![("RANK", "0"), ("WORLD_SIZE", "1")];
            if name == "HERRINGBONE_WORLD_SIZE" {
                set.push(("HERRINGBONE_RANK", "0"));
            }
            set.retain(|(other, _)| *other != name);
            set.push((name, value));
            let error = config(&set).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Config { setting, .. } if setting == name), "{error}");
            assert!(
                parts.iter().all(|part| error.to_string().contains(part)),
                "{error} does not say {parts:?}"
            );
        }
    }

    #[test]
    fn a_token_comes_from_one_place() {
        let both = [("HERRINGBONE_TOKEN", "a"), ("HERRINGBONE_TOKEN_FILE", "b")];
        assert!(config(&both).unwrap_err().to_string().contains("set one of them"));
    }

    #[test]
    fn a_tokens_file_that_everybody_may_read_is_warned_about() {
        let file = std::env::temp_dir().join(format!("herringbone-token-{}", std::process::id()));
        fs::write(&file, "a token of the tests").unwrap();
        let path = file.to_str().unwrap();
        for (mode, warning) in [
            (0o600, None),
            (0o440, None),
            (0o644, Some("read")),
            (0o604, Some("read")),
            (0o666, Some("change")),
        ] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let expected =
                warning.map(|what| format!("every user can {what} {path} (mode {mode:03o}), so the token"));
            let said = token_openness(path);
            assert_eq!(said.is_some(), expected.is_some(), "{mode:o}");
            assert!(
                said.iter().zip(expected).all(|(said, expected)| said.starts_with(&expected)),
                "{said:?}"
            );
            assert_eq!(token_from_file(path).unwrap(), "a token of the tests");
        }
        assert!(!is_first_warning(path), "each file is warned about once");
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_by_name() {
        let name = "HERRINGBONE_TRANSPORT";
        let environment = Environment(BTreeMap::from([(name.to_owned(), OsString::from_vec(vec![0xff]))]));
        let error = Config::from_environment(&environment).unwrap_err();
        assert!(error.to_string().contains(name) && error.to_string().contains("UTF-8"), "{error}");
        assert!(!format!("{:?}", Environment::of([("HERRINGBONE_TOKEN", "secret")])).contains("secret"));
    }
}
