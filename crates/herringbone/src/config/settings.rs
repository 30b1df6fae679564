//! Every variable of the environment that Herringbone reads, as data. [`Config`](crate::Config) reads them,
//! `herringbone settings` and the documentation show them, and misspelt names are compared with them.

pub use super::{
    bytes::{Bytes, ParseBytesError},
    environment::{Environment, Found},
};

use super::listening::listen_address;
use super::nearest::{did_you_mean, nearest};
use super::streams::stream_count;
use crate::{Error, Result, core::codec::CodecChoice, log::LogFormat};
use std::{path::PathBuf, sync::Once};

/// A variable of the environment.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, which begins with `HERRINGBONE_`.
    pub name: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
    /// The valid values, with the unit if there is one.
    pub values: &'static str,
    /// The default, in words: the value if neither it nor a fallback is set.
    pub default: &'static str,
    /// Variables of other programs that are used if it is not set; the first one that is set wins. Each is a list whose
    /// values are joined by colons.
    pub fallbacks: &'static [&'static [&'static str]],
    /// The processes that read it.
    pub readers: &'static [Reader],
    /// Whether its value must not be shown.
    pub secret: bool,
}

/// A kind of process, as far as its settings go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A worker that is not started through torch.distributed: a Rust program, numpy, `herringbone bench`.
    Worker,
    /// A worker of torch.distributed, which itself knows ranks, store and timeout.
    Torch,
    /// A reducer: `herringbone serve`.
    Reducer,
    /// The plug-in for NCCL, in a process whose collectives are NCCL's.
    Nccl,
}

impl Reader {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Reader::Worker => "worker",
            Reader::Torch => "torch",
            Reader::Reducer => "reducer",
            Reader::Nccl => "nccl",
        }
    }
}

const WORKER: &[Reader] = &[Reader::Worker];
const WORKERS: &[Reader] = &[Reader::Worker, Reader::Torch];
const ALL_READERS: &[Reader] = &[Reader::Worker, Reader::Torch, Reader::Reducer];

const fn setting(
    name: &'static str,
    meaning: &'static str,
    values: &'static str,
    default: &'static str,
    readers: &'static [Reader],
) -> Setting {
    Setting { name, meaning, values, default, fallbacks: &[], readers, secret: false }
}

pub(crate) const RANK: Setting = Setting {
    fallbacks: &[&["RANK"]],
    ..setting(
        "HERRINGBONE_RANK",
        "this process's rank; set it with HERRINGBONE_WORLD_SIZE",
        "0 to the world's size - 1",
        "0",
        WORKER,
    )
};
pub(crate) const WORLD_SIZE: Setting = Setting {
    fallbacks: &[&["WORLD_SIZE"]],
    ..setting("HERRINGBONE_WORLD_SIZE", "the number of ranks", "a number from 1", "1", WORKER)
};
pub(crate) const STORE: Setting = Setting {
    fallbacks: &[&["MASTER_ADDR", "MASTER_PORT"]],
    ..setting(
        "HERRINGBONE_STORE",
        "rank 0's address; not needed under torchrun, or under any launcher on one machine",
        "host:port",
        "none",
        WORKER,
    )
};
pub(crate) const TOKEN: Setting = Setting {
    secret: true,
    ..setting(
        "HERRINGBONE_TOKEN",
        "the job's secret, the same for every worker and reducer",
        "any text, of 16 characters or more where other hosts are reached",
        "none: loopback only",
        ALL_READERS,
    )
};
pub(crate) const TOKEN_FILE: Setting = setting(
    "HERRINGBONE_TOKEN_FILE",
    "a file with the job's secret, instead of HERRINGBONE_TOKEN",
    "a path",
    "none",
    ALL_READERS,
);
pub(crate) const REDUCERS: Setting = setting(
    "HERRINGBONE_REDUCERS",
    "addresses of the reducers; rank 0's list is used, other ranks can omit it",
    "host:port,...",
    "none",
    WORKERS,
);
pub(crate) const TABLES: Setting = setting(
    "HERRINGBONE_TABLES",
    "addresses of the table servers: the same list in the same order on all workers",
    "host:port,...",
    "none",
    WORKERS,
);
pub(crate) const TIMELINE: Setting = setting(
    "HERRINGBONE_TIMELINE",
    "a folder to which each process writes its timeline; herringbone trace merge joins them",
    "a folder, which is made if it is missing",
    "none: no timeline is written",
    ALL_READERS,
);
pub(crate) const ALGORITHM: Setting = setting(
    "HERRINGBONE_ALGORITHM",
    "forces the algorithm of all-reduces; rank 0's value is used, other ranks can omit it",
    "a name that herringbone verify shows, like radix or radix(8,8)",
    "chosen by size",
    WORKERS,
);
pub(crate) const PLAN: Setting = setting(
    "HERRINGBONE_PLAN",
    "algorithms by collective and size; a range excludes its end. A matching rule overrides HERRINGBONE_ALGORITHM. file=PATH takes the \
     schedule of a file, which rank 0 reads; all files together have at most 512 KiB. Rank 0's value is used, other ranks can omit it",
    "rules, like all_reduce:0-64K:doubling,64K-inf:radix or all_reduce:64K-inf:file=found.txt",
    "chosen by size",
    WORKERS,
);
pub(crate) const CALIBRATION: Setting = setting(
    "HERRINGBONE_CALIBRATION",
    "measured constants of the machines, for predicting times and choosing algorithms; rank 0's value is used, other ranks can omit it",
    "a file of constants, as herringbone simulate --constants prints them",
    "none: sizes and round trips decide",
    WORKERS,
);
pub(crate) const FOLD_ORDER: Setting = setting(
    "HERRINGBONE_FOLD_ORDER",
    "the order in which numbers are added. ranks: the same for every layout of hosts. hosts: each host's ranks first, so that a host of \
     any number of ranks sends one sum. sites: each site's hosts first, so that a site sends one sum. hosts and sites need consecutive \
     ranks on each; sites also need a topology that names them. Rank 0's value is used",
    "ranks, hosts or sites",
    "ranks",
    WORKERS,
);
pub(crate) const TOPOLOGY: Setting = setting(
    "HERRINGBONE_TOPOLOGY",
    "ports of the hosts and links between all ranks, by rank or by host name, so that plans avoid slow ones. Rank 0's value is used, \
     other ranks can omit it. A KVStore of type device uses the links for its GPUs",
    "a file that herringbone topo reads, FILE#NAME, or measure: the ranks measure both when the job starts",
    "none: all ports and links are treated as equal",
    WORKERS,
);
pub(crate) const REBALANCE: Setting = setting(
    "HERRINGBONE_REBALANCE",
    "whether plans follow the ports of hosts during the job: a host whose port becomes slow folds less of large all-reduces until it is \
     fast again. Rank 0's value is used, other ranks can omit it",
    "0 or 1",
    "0",
    WORKERS,
);
pub(crate) const TREE_ARRAY_BOUND: Setting = setting(
    "HERRINGBONE_TREE_ARRAY_BOUND",
    "the largest buffer, in elements, that a single tree carries if trees are forced; rank 0's value is used",
    "a number of elements, like 10000000 or 1e7",
    "10000000",
    WORKERS,
);
pub(crate) const REPLACE: Setting = setting(
    "HERRINGBONE_REPLACE",
    "the backend of torch.distributed that Herringbone replaces, so that programs need no edit; torch's own becomes `torch-gloo`",
    "gloo",
    "none",
    &[Reader::Torch],
);
pub(crate) const COMPRESSION: Setting = setting(
    "HERRINGBONE_COMPRESSION",
    "the codec for the gradients of DistributedDataParallel, with error feedback, unless the program registers its own hook; the same on \
     all ranks",
    "bf16, fp16, int8, onebit:THRESHOLD, twobit:THRESHOLD, sign, topk:SHARE, randomk:SHARE, threshold:THRESHOLD, exact, none, or \
     auto (which needs HERRINGBONE_CALIBRATION)",
    "none",
    &[Reader::Torch],
);
pub(crate) const LOCAL_SUMS: Setting = setting(
    "HERRINGBONE_LOCAL_SUMS",
    "whether tensors of GPUs are summed on each host first, by a backend of torch, so that a host sends each value once; the same \
     on all ranks",
    "auto, off, nccl or gloo",
    "auto: by NCCL if all hosts have the same number of ranks, and each rank its own GPU",
    &[Reader::Torch],
);
pub(crate) const TRANSPORT: Setting = setting(
    "HERRINGBONE_TRANSPORT",
    "forces the transport between processes; with tcp a table server shares no memory with workers",
    "shm or tcp",
    "shm within a host",
    ALL_READERS,
);
pub(crate) const IFNAME: Setting = Setting {
    fallbacks: &[&["GLOO_SOCKET_IFNAME"], &["NCCL_SOCKET_IFNAME"]],
    ..setting(
        "HERRINGBONE_IFNAME",
        "the network interface of a worker, both for its address and for the connections that it opens. The fallbacks are ignored if rank \
         0 is on loopback. The plug-in for NCCL offers all matching interfaces and ignores Gloo's variable",
        "names or their beginnings, eth0,ib; whole names, =eth0; all but, ^docker or ^=eth0",
        "the one that reaches rank 0",
        &[Reader::Worker, Reader::Torch, Reader::Nccl],
    )
};
pub(crate) const NCCL_STREAMS: Setting = Setting {
    fallbacks: &[&["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"]],
    ..setting(
        "HERRINGBONE_NCCL_STREAMS",
        "TCP streams of each connection of the plug-in for NCCL; the receiver's number is used. If both of NCCL's variables are set, the \
         fallback is their product",
        "a number from 1 to 64",
        "16 on Amazon's cards, 4 on others",
        &[Reader::Nccl],
    )
};
pub(crate) const JOB: Setting = Setting {
    // The first one may be a text that says nothing, see `launchers/job.rs`.
    fallbacks: &[
        &["TORCHELASTIC_RUN_ID"],
        &["CLOUD_ML_JOB_ID"],
        &["SLURM_JOB_ID"],
        &["LSB_JOBID"],
        &["PBS_JOBID"],
    ],
    ..setting(
        "HERRINGBONE_JOB",
        "the job's name, the same on every rank; a rank with another name is refused, so that two jobs with one address and one token do \
         not mix",
        "any text of at most 128 bytes",
        "the launcher's name for this start, or none: any job is accepted",
        WORKERS,
    )
};
pub(crate) const TIMEOUT_S: Setting = setting(
    "HERRINGBONE_TIMEOUT_S",
    "the longest time for an operation, or for forming the group; torch passes its own",
    "seconds above 0",
    "1800",
    WORKER,
);
pub(crate) const PATIENCE_S: Setting = setting(
    "HERRINGBONE_PATIENCE_S",
    "the longest silence before this rank treats another one as lost; a warning comes after half of it. Raise it on all ranks if they get \
     little processor time",
    "seconds, 6 or more",
    "6",
    WORKER,
);
pub(crate) const STAGING_BYTES: Setting = setting(
    "HERRINGBONE_STAGING_BYTES",
    "memory of each process for slots; the smallest value of all ranks is used",
    "bytes, 4M to 64G",
    "64M",
    WORKERS,
);
pub(crate) const SLICE_BYTES: Setting = setting(
    "HERRINGBONE_SLICE_BYTES",
    "bytes of the buffer in one segment of the pipeline, which has two to sixteen segments in flight; the smallest value of all ranks is \
     used",
    "bytes, 4K to 8M, and at most a quarter of the staging memory; 0: by transport",
    "by transport",
    WORKERS,
);
pub(crate) const PROGRESS_FILE: Setting = setting(
    "HERRINGBONE_PROGRESS_FILE",
    "a file to which the program writes a new decimal number at each checkpoint. It writes `complete` once a restarted rank could not \
     continue without the others (RABIT's interface: at the end; elastic averaging: when the ranks have met). Only failures after the \
     last new number use up --max-attempts. If all other ranks have succeeded with `complete`, a failed rank ends the job",
    "a path; herringbone launch --max-attempts sets it",
    "none",
    WORKERS,
);
pub(crate) const FLIGHT: Setting = setting(
    crate::flight::VARIABLE,
    "the first part of the names of the files to which ranks write their last calls after an error; the rank follows. torch's ranks fall \
     back to TORCH_FR_DUMP_TEMP_FILE. If this is set, a reducer that loses a worker also writes its last operations, to a file in the \
     same folder whose name begins with reducer_",
    "a path, or off",
    "the user's folder within the folder for temporary files",
    ALL_READERS,
);
pub(crate) const FLIGHT_SIGNAL: Setting = setting(
    crate::flight::SIGNAL_VARIABLE,
    "whether SIGUSR1 also makes a rank write its last calls",
    "0 or 1",
    "0",
    WORKERS,
);
pub(crate) const LOG: Setting = setting(
    crate::log::VARIABLE,
    "the log level, of the program's logger or else of standard error; info includes the job's parts, and ranks and reducers that come \
     and leave",
    "off, error, warn, info or debug",
    "the level of the program's logger, or else warn; of herringbone serve: info",
    ALL_READERS,
);
pub(crate) const LOG_FORMAT: Setting = setting(
    crate::log::FORMAT_VARIABLE,
    "the form of log lines on standard error; json is one object per line with the keys time, level, target, who, rank, job, peer and \
     message",
    "text or json",
    "text",
    ALL_READERS,
);
pub(crate) const ADMIN: Setting = setting(
    "HERRINGBONE_ADMIN",
    "the address at which each process serves a live page, metrics for Prometheus and health over HTTP. Ranks of one host add their \
     number on that host to the port. 0 takes any free port, which the log shows",
    "ADDR:PORT, like 127.0.0.1:9464",
    "none: nothing is served",
    ALL_READERS,
);
pub(crate) const ADMIN_TOKEN: Setting = Setting {
    secret: true,
    ..setting(
        "HERRINGBONE_ADMIN_TOKEN",
        "the token that clients of HERRINGBONE_ADMIN send as `Authorization: Bearer`; not the job's token, because HTTP is not encrypted",
        "any text, of 16 characters or more where other hosts are answered",
        "none: loopback only",
        ALL_READERS,
    )
};
pub(crate) const METRICS_FILE: Setting = setting(
    "HERRINGBONE_METRICS_FILE",
    "a directory to which each process writes its metrics every 15 seconds, for the node exporter's textfile collector",
    "a directory",
    "none",
    ALL_READERS,
);

/// All settings, in the order of the documentation.
pub const ALL: [&Setting; 34] = [
    &REDUCERS,
    &TABLES,
    &TIMELINE,
    &TOKEN,
    &TOKEN_FILE,
    &ALGORITHM,
    &PLAN,
    &CALIBRATION,
    &FOLD_ORDER,
    &TOPOLOGY,
    &REBALANCE,
    &TREE_ARRAY_BOUND,
    &TRANSPORT,
    &REPLACE,
    &COMPRESSION,
    &LOCAL_SUMS,
    &IFNAME,
    &NCCL_STREAMS,
    &STORE,
    &RANK,
    &WORLD_SIZE,
    &JOB,
    &TIMEOUT_S,
    &PATIENCE_S,
    &STAGING_BYTES,
    &SLICE_BYTES,
    &PROGRESS_FILE,
    &LOG,
    &FLIGHT,
    &FLIGHT_SIGNAL,
    &LOG_FORMAT,
    &ADMIN,
    &ADMIN_TOKEN,
    &METRICS_FILE,
];

impl Setting {
    /// The value that `environment` has for it, and in which variables; `None` if the default is used. Whether the
    /// value is valid is not checked.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if it is not text.
    pub fn find(&self, environment: &Environment) -> Result<Option<Found>> {
        for names in std::iter::once(&[self.name][..]).chain(self.fallbacks.iter().copied()) {
            let values =
                names.iter().map(|name| environment.text(name)).collect::<Result<Option<Vec<_>>>>()?;
            if let Some(values) = values {
                return Ok(Some(Found { text: values.join(":"), variable: names.join(":") }));
            }
        }
        Ok(None)
    }

    /// What is wrong with a text that it cannot hold.
    pub(crate) fn refuse(&self, found: &Found) -> Error {
        Error::config(
            &found.variable,
            format_args!("{:?} cannot be used; it must be {}", found.text, self.values),
        )
    }
}

/// A name in an environment that looks like a setting's and is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is not a setting (`herringbone settings` lists them){}", did_you_mean(*.nearest))]
pub struct UnknownSetting {
    name: String,
    nearest: Option<&'static str>,
}

impl UnknownSetting {
    /// The name as it stands in the environment.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The setting that was probably meant, if one is near.
    pub fn nearest(&self) -> Option<&'static str> {
        self.nearest
    }
}

const PREFIX: &str = "HERRINGBONE_";
/// How many letters may be wrong in a name whose beginning is wrong, too.
const WRONG: usize = 2;

/// Whether a name could be within [`WRONG`] letters of a setting's: each of them takes at most one letter from the
/// prefix and moves the others on by at most one place. Comparing whole names costs some hundred times as much, and few
/// of an environment's names come so far.
fn begins_nearly(name: &str) -> bool {
    let mut missing = PREFIX.as_bytes().to_vec();
    for letter in name.bytes().take(PREFIX.len() + WRONG) {
        if let Some(at) = missing.iter().position(|wanted| *wanted == letter.to_ascii_uppercase()) {
            missing.swap_remove(at);
        }
    }
    missing.len() <= WRONG
}

/// The names that begin like a setting's, or nearly so, in whatever case, but are not settings, in the order of the
/// alphabet.
pub fn unknown(environment: &Environment) -> Vec<UnknownSetting> {
    let is_known = |name: &str| ALL.iter().any(|setting| setting.name == name);
    let judge = |name: &str| match name.strip_prefix(PREFIX) {
        Some(rest) => {
            let known = ALL.iter().filter_map(|setting| setting.name.strip_prefix(PREFIX));
            let found = nearest(rest, known);
            let nearest = ALL.iter().find(|setting| setting.name.strip_prefix(PREFIX) == found);
            Some(nearest.map(|setting| setting.name))
        }
        None => {
            let close = |setting: &&&Setting| strsim::osa_distance(name, setting.name) <= WRONG;
            ALL.iter().find(close).map(|setting| Some(setting.name))
        }
    };
    let others = environment.names().filter(|name| begins_nearly(name) && !is_known(name));
    others
        .filter_map(|name| {
            judge(&name.to_ascii_uppercase()).map(|nearest| UnknownSetting { name: name.to_owned(), nearest })
        })
        .collect()
}

/// Where this process is to write timelines, if it is. As what is logged, this is the process's and not a configuration's.
pub(crate) fn timeline_folder() -> Option<PathBuf> {
    let found = TIMELINE.find(&Environment::of_process()).ok().flatten()?;
    (!found.text.is_empty()).then(|| found.text.into())
}

/// Checks settings of every kind of process: the values of `HERRINGBONE_LOG` and `HERRINGBONE_LOG_FORMAT`, and the
/// names in the environment. A name that is no setting's causes a warning, once per process.
///
/// [`Config::from_env`](crate::Config::from_env) and [`with_env`](crate::Config::with_env) do this, and then only rank
/// 0 warns; a program that only runs a reducer calls it.
///
/// # Errors
/// [`ErrorKind::Config`](crate::ErrorKind::Config) for a wrong value.
pub fn check(environment: &Environment) -> Result<()> {
    check_on(0, environment)
}

/// [`check`] on a worker. Ranks mostly have the same environment, so one of them warns; to the others it is information.
pub(crate) fn check_on(rank: u32, environment: &Environment) -> Result<()> {
    static WARNED: Once = Once::new();
    check_values(environment)?;
    WARNED.call_once(|| {
        for name in unknown(environment) {
            match rank {
                0 => crate::log::warn("settings", name),
                _ => crate::log::info("settings", name),
            }
        }
    });
    Ok(())
}

/// The part of [`check`] that refuses values, without a warning of names.
pub(super) fn check_values(environment: &Environment) -> Result<()> {
    if let Some(found) = LOG.find(environment)?
        && crate::log::Level::named(&found.text).is_none()
    {
        return Err(LOG.refuse(&found));
    }
    if let Some(found) = LOG_FORMAT.find(environment)?
        && found.text.parse::<LogFormat>().is_err()
    {
        return Err(LOG_FORMAT.refuse(&found));
    }
    if let Some(found) = ADMIN.find(environment)?
        && listen_address(&found.text).is_none()
    {
        return Err(ADMIN.refuse(&found));
    }
    // NCCL's own variables are not ours to refuse to a worker that has nothing to do with NCCL.
    if let Some(found) = NCCL_STREAMS.find(environment)?
        && found.variable == NCCL_STREAMS.name
        && stream_count(&found.text).is_none()
    {
        return Err(NCCL_STREAMS.refuse(&found));
    }
    // A program of torch would read it when its first gradients are there.
    if let Some(found) = COMPRESSION.find(environment)? {
        let choice: Result<CodecChoice, _> = found.text.parse();
        choice.map_err(|error| Error::config(&found.variable, error))?;
    }
    if let Some(found) = FLIGHT_SIGNAL.find(environment)?.filter(|found| !matches!(&*found.text, "0" | "1")) {
        return Err(FLIGHT_SIGNAL.refuse(&found));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name that is no setting's: nothing in the tree may spell one out.
    fn wrong(rest: &str) -> String {
        format!("HERRINGBONE{rest}")
    }

    #[test]
    fn names_are_unique_and_texts_fit_tables() {
        for (at, setting) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.name != setting.name), "{}", setting.name);
            assert!(setting.name.starts_with("HERRINGBONE_") && !setting.readers.is_empty());
            let texts = [setting.meaning, setting.values, setting.default];
            assert!(texts.iter().all(|text| !text.is_empty() && !text.contains(['|', '\n'])), "{setting:?}");
        }
    }

    #[test]
    fn misspelt_names_are_found_with_what_was_meant() {
        let cases = [
            (wrong("_ALGORITM"), Some("HERRINGBONE_ALGORITHM")),
            (wrong("_TRANPSORT"), Some("HERRINGBONE_TRANSPORT")),
            (wrong("_TIMEOUT"), Some("HERRINGBONE_TIMEOUT_S")),
            (wrong("_REDUCER"), Some("HERRINGBONE_REDUCERS")),
            (wrong("_ALGO"), Some("HERRINGBONE_ALGORITHM")),
            (wrong("_STAGING"), Some("HERRINGBONE_STAGING_BYTES")),
            (wrong("_SLICE_BYTE"), Some("HERRINGBONE_SLICE_BYTES")),
            (wrong("_SEGMENT_BYTES"), None),
            (wrong("_COLOUR"), None),
            (wrong("_"), None),
            ("herringbone_rank".to_owned(), Some("HERRINGBONE_RANK")),
            ("Heringbone_Token".to_owned(), Some("HERRINGBONE_TOKEN")),
            ("HERINGBONE_TOKEN".to_owned(), Some("HERRINGBONE_TOKEN")),
            ("HERRINGBONE".to_owned() + "RANK", Some("HERRINGBONE_RANK")),
        ];
        for (name, nearest) in cases {
            let environment =
                Environment::of([(name.as_str(), "x"), ("HERRINGBONE_LOG", "off"), ("RANK", "0")]);
            assert_eq!(unknown(&environment), [UnknownSetting { name: name.clone(), nearest }]);
        }
        let name = wrong("_ALGORITM");
        let text = unknown(&Environment::of([(name.as_str(), "")]))[0].to_string();
        assert!(
            text.starts_with(&format!("{name} is not a setting ("))
                && text.ends_with("; did you mean HERRINGBONE_ALGORITHM?"),
            "{text}"
        );
        let usual = ["PATH", "RANK", "TOKEN", "HERRING_BONES", "GLOO_SOCKET_IFNAME"].map(|name| (name, "x"));
        assert_eq!(unknown(&Environment::of(usual)), []);
    }

    /// Every name that is two slips from a setting's is compared with it, and names that look like none are not.
    #[test]
    fn names_that_begin_otherwise_are_not_compared() {
        let slips = |name: &str| -> Vec<String> {
            let one = |at: usize| {
                let (before, letters) = (&name[..at], &name.as_bytes()[at..]);
                let [first, second] = [letters[0] as char, letters[1] as char];
                let (less, rest) = (&name[at + 1..], &name[at + 2..]);
                [
                    format!("{before}{less}"),
                    format!("{before}X{less}"),
                    format!("{before}X{first}{less}"),
                    format!("{before}{second}{first}{rest}"),
                ]
            };
            (0..name.len() - 1).flat_map(one).collect()
        };
        for name in slips(RANK.name).iter().flat_map(|once| slips(once)) {
            assert!(begins_nearly(&name) || strsim::osa_distance(&name, RANK.name) > WRONG, "{name}");
        }
        for name in ["", "PATH", "KUBERNETES_SERVICE_PORT_HTTPS", "NCCL_SOCKET_IFNAME", "TORCHELASTIC_RUN_ID"]
        {
            assert!(!begins_nearly(name), "{name}");
        }
    }

    #[test]
    fn fallbacks_count_in_order_and_whole() {
        let find = |setting: &Setting, set: &[(&'static str, &'static str)]| {
            let found = setting.find(&Environment::of(set.iter().copied())).unwrap();
            found.map(|found| (found.text, found.variable))
        };
        let pair = |text: &str, variable: &str| Some((text.to_owned(), variable.to_owned()));
        let (gloo, nccl) = (("GLOO_SOCKET_IFNAME", "g"), ("NCCL_SOCKET_IFNAME", "n"));
        assert_eq!(
            find(&IFNAME, &[nccl, gloo, ("HERRINGBONE_IFNAME", "h")]),
            pair("h", "HERRINGBONE_IFNAME")
        );
        assert_eq!(find(&IFNAME, &[nccl, gloo, ("HERRINGBONE_IFNAME", "")]), pair("g", "GLOO_SOCKET_IFNAME"));
        assert_eq!(find(&IFNAME, &[nccl]), pair("n", "NCCL_SOCKET_IFNAME"));
        assert_eq!(find(&IFNAME, &[]), None);
        assert_eq!(find(&STORE, &[("MASTER_ADDR", "a")]), None);
        let both = [("MASTER_ADDR", "a"), ("MASTER_PORT", "7")];
        assert_eq!(find(&STORE, &both), pair("a:7", "MASTER_ADDR:MASTER_PORT"));
    }

    #[test]
    fn a_wrong_level_of_the_log_is_refused() {
        let checked = |value: &str| check(&Environment::of([("HERRINGBONE_LOG", value)]));
        let text = checked("loud").unwrap_err().to_string();
        assert!(
            text.contains(
                "HERRINGBONE_LOG: \"loud\" cannot be used; it must be off, error, warn, info or debug"
            ),
            "{text}"
        );
        for level in ["", "off", "warn", "info", "debug", "trace", "INFO", "error", "warning"] {
            checked(level).unwrap();
        }
    }
}
