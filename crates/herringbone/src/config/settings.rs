//! Every variable of the environment that Herringbone reads, as data: what [`Config`](crate::Config) reads,
//! `herringbone settings` prints, the documentation shows and misspelt names are compared with.

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
    /// What it decides.
    pub meaning: &'static str,
    /// What it may hold, with the unit where there is one.
    pub values: &'static str,
    /// What counts where neither it nor a fallback is set, in words.
    pub default: &'static str,
    /// Variables of others that count where it is not set, the first that is set first. Each is a list whose values
    /// are joined by colons.
    pub fallbacks: &'static [&'static [&'static str]],
    /// Who reads it.
    pub readers: &'static [Reader],
    /// Whether nobody may be shown what it holds.
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
        "which rank this process is; set with HERRINGBONE_WORLD_SIZE",
        "0 to the world's size - 1",
        "0",
        WORKER,
    )
};
pub(crate) const WORLD_SIZE: Setting = Setting {
    fallbacks: &[&["WORLD_SIZE"]],
    ..setting("HERRINGBONE_WORLD_SIZE", "how many ranks there are", "a number from 1", "1", WORKER)
};
pub(crate) const STORE: Setting = Setting {
    fallbacks: &[&["MASTER_ADDR", "MASTER_PORT"]],
    ..setting(
        "HERRINGBONE_STORE",
        "where rank 0 listens; under torchrun, and under any launcher on one machine, it is not needed",
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
    "where the reducers listen: rank 0's list, which others may leave out",
    "host:port,...",
    "none",
    WORKERS,
);
pub(crate) const TABLES: Setting = setting(
    "HERRINGBONE_TABLES",
    "where the servers of tables listen: the same list on all workers, in the same order",
    "host:port,...",
    "none",
    WORKERS,
);
pub(crate) const TIMELINE: Setting = setting(
    "HERRINGBONE_TIMELINE",
    "where each process writes a timeline of what it does; herringbone trace merge makes one of all",
    "a folder, which is made if it is missing",
    "none: no timeline is written",
    ALL_READERS,
);
pub(crate) const ALGORITHM: Setting = setting(
    "HERRINGBONE_ALGORITHM",
    "forces the all-reduce's algorithm; rank 0's choice, which others may leave out",
    "a name that herringbone verify shows, like radix or radix(8,8)",
    "chosen by size",
    WORKERS,
);
pub(crate) const PLAN: Setting = setting(
    "HERRINGBONE_PLAN",
    "which algorithm for which sizes of which collective, the end of a range not in it; where a rule speaks it counts more than \
     HERRINGBONE_ALGORITHM; file=PATH takes the schedule of a file, which rank 0 reads: files have at most 512 KiB, all together; rank \
     0's counts, and others may leave it out",
    "rules, like all_reduce:0-64K:doubling,64K-inf:radix or all_reduce:64K-inf:file=found.txt",
    "chosen by size",
    WORKERS,
);
pub(crate) const CALIBRATION: Setting = setting(
    "HERRINGBONE_CALIBRATION",
    "constants of the machines, by which times are predicted and algorithms chosen; rank 0's counts, and others may leave it out",
    "a file of constants, as herringbone simulate --constants prints them",
    "none: sizes and round trips decide",
    WORKERS,
);
pub(crate) const FOLD_ORDER: Setting = setting(
    "HERRINGBONE_FOLD_ORDER",
    "which order numbers are added in: ranks: the same whatever the hosts; hosts: each host's first, so that one of 3, 5, 6, ... \
     ranks sends one sum; sites: each site's first, and in it each host's, so that a site sends one sum; these need consecutive ranks on \
     each host and site, and sites a topology that names them; rank 0's counts",
    "ranks, hosts or sites",
    "ranks",
    WORKERS,
);
pub(crate) const TOPOLOGY: Setting = setting(
    "HERRINGBONE_TOPOLOGY",
    "the ports of hosts and the links between all ranks, in their order or by the names of their hosts: plans then spare slow ones; \
     rank 0's counts, and others may leave it out",
    "a file that herringbone topo reads, FILE#NAME, or measure: the ranks measure both when the job starts",
    "none: ports and links count as alike",
    WORKERS,
);
pub(crate) const REBALANCE: Setting = setting(
    "HERRINGBONE_REBALANCE",
    "whether plans follow the ports of hosts while the job runs: a host whose port becomes slow folds less of large all-reduces, and \
     as much as before once it is fast again; rank 0's counts, and others may leave it out",
    "0 or 1",
    "0",
    WORKERS,
);
pub(crate) const TREE_ARRAY_BOUND: Setting = setting(
    "HERRINGBONE_TREE_ARRAY_BOUND",
    "up to how many elements one tree carries the whole buffer, where trees are forced; rank 0's counts",
    "a number of elements, like 10000000 or 1e7",
    "10000000",
    WORKERS,
);
pub(crate) const REPLACE: Setting = setting(
    "HERRINGBONE_REPLACE",
    "a backend of torch.distributed in whose place Herringbone is, so that programs need no edit; torch's own is then \
     `torch-gloo`",
    "gloo",
    "none",
    &[Reader::Torch],
);
pub(crate) const COMPRESSION: Setting = setting(
    "HERRINGBONE_COMPRESSION",
    "compresses the gradients of DistributedDataParallel, with feedback, where the program has registered no hook of its own; \
     the same on all ranks",
    "bf16, fp16, int8, onebit:THRESHOLD, twobit:THRESHOLD, sign, topk:SHARE, randomk:SHARE, threshold:THRESHOLD, exact, none, or \
     auto (which needs HERRINGBONE_CALIBRATION)",
    "none",
    &[Reader::Torch],
);
pub(crate) const TRANSPORT: Setting = setting(
    "HERRINGBONE_TRANSPORT",
    "forces the transport between processes; a server of tables with tcp shares no memory with workers",
    "shm or tcp",
    "shm within a host",
    ALL_READERS,
);
pub(crate) const IFNAME: Setting = Setting {
    fallbacks: &[&["GLOO_SOCKET_IFNAME"], &["NCCL_SOCKET_IFNAME"]],
    ..setting(
        "HERRINGBONE_IFNAME",
        "the network interface whose address a worker listens at, tells the others and calls from; the fallbacks do \
         not count where rank 0 is at loopback; the plug-in for NCCL offers all that are chosen, and Gloo's variable is not for it",
        "names or their beginnings, eth0,ib; whole names, =eth0; all but, ^docker or ^=eth0",
        "on the way to rank 0",
        &[Reader::Worker, Reader::Torch, Reader::Nccl],
    )
};
pub(crate) const NCCL_STREAMS: Setting = Setting {
    fallbacks: &[&["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"]],
    ..setting(
        "HERRINGBONE_NCCL_STREAMS",
        "how many TCP streams each connection of the plug-in for NCCL has; the receiver's number is used; the product of NCCL's two \
         variables is used if both are set",
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
        "the job's name, the same on every rank: a rank with another one is refused, so that two jobs with one address and \
         one token do not mix",
        "any text of at most 128 bytes",
        "what the launcher calls its start of ranks, or none: any job will do",
        WORKERS,
    )
};
pub(crate) const TIMEOUT_S: Setting = setting(
    "HERRINGBONE_TIMEOUT_S",
    "how long an operation, or the forming of the group, may take; torch passes its own",
    "seconds above 0",
    "1800",
    WORKER,
);
pub(crate) const PATIENCE_S: Setting = setting(
    "HERRINGBONE_PATIENCE_S",
    "how long a rank may be silent until this one takes it for lost; a warning comes after half of it; raise it on all ranks \
     where they get little time of their processors",
    "seconds, 6 or more",
    "6",
    WORKER,
);
pub(crate) const STAGING_BYTES: Setting = setting(
    "HERRINGBONE_STAGING_BYTES",
    "memory of each process for slots; the smallest of all ranks counts",
    "bytes, 4M to 64G",
    "64M",
    WORKERS,
);
pub(crate) const SLICE_BYTES: Setting = setting(
    "HERRINGBONE_SLICE_BYTES",
    "bytes of the buffer that one segment of the pipeline takes, with two to sixteen of them in flight; the smallest of all \
     ranks counts",
    "bytes, 4K to 8M, and at most a quarter of the staging memory; 0: by transport",
    "by transport",
    WORKERS,
);
pub(crate) const PROGRESS_FILE: Setting = setting(
    "HERRINGBONE_PROGRESS_FILE",
    "where a program writes a decimal number at each checkpoint, another one each time, and `complete` once a rank \
     that starts again would need the others (RABIT's interface: at the end; elastic averaging: once the ranks have \
     met): only failures since the last new number count against the launcher's --max-attempts, and a rank that \
     fails after all others have succeeded with `complete` ends the job",
    "a path, as herringbone launch --max-attempts sets it",
    "none: nobody reads it",
    WORKERS,
);
pub(crate) const FLIGHT: Setting = setting(
    crate::flight::VARIABLE,
    "what the names of the files begin with into which a rank writes its last calls after an error; its rank follows. Ranks of torch take TORCH_FR_DUMP_TEMP_FILE if it is not set. If this is set, a reducer that loses a worker writes what it did last, to a file beside those whose name begins with reducer_",
    "a path, or off",
    "a folder of the user's below the one for temporary files",
    ALL_READERS,
);
pub(crate) const FLIGHT_SIGNAL: Setting = setting(
    crate::flight::SIGNAL_VARIABLE,
    "whether a rank writes its last calls when it gets SIGUSR1, too",
    "0 or 1",
    "0",
    WORKERS,
);
pub(crate) const LOG: Setting = setting(
    crate::log::VARIABLE,
    "how much is logged: to the program's logger, or else to standard error; info: what a job is made of, which ranks and \
     reducers come and leave",
    "off, error, warn, info or debug",
    "the level of the program's logger, or else warn; of herringbone serve: info",
    ALL_READERS,
);
pub(crate) const LOG_FORMAT: Setting = setting(
    crate::log::FORMAT_VARIABLE,
    "the form of log lines on standard error; json: an object on each line, with the keys time, level, target, who, rank, job, \
     peer and message",
    "text or json",
    "text",
    ALL_READERS,
);
pub(crate) const ADMIN: Setting = setting(
    "HERRINGBONE_ADMIN",
    "where each process answers over HTTP how it and its job stand: a live page, metrics for Prometheus, health; ranks of one host \
     add their number among them to the port, and 0 is any free port: the log says which",
    "ADDR:PORT, like 127.0.0.1:9464",
    "none: nobody is answered",
    ALL_READERS,
);
pub(crate) const ADMIN_TOKEN: Setting = Setting {
    secret: true,
    ..setting(
        "HERRINGBONE_ADMIN_TOKEN",
        "what a program sends to HERRINGBONE_ADMIN as `Authorization: Bearer`; it must not be the job's token, because HTTP is not \
         encrypted",
        "any text, of 16 characters or more where other hosts are answered",
        "none: loopback only",
        ALL_READERS,
    )
};
pub(crate) const METRICS_FILE: Setting = setting(
    "HERRINGBONE_METRICS_FILE",
    "where each process writes its metrics every 15 seconds, for the node exporter's textfile collector",
    "a directory",
    "none",
    ALL_READERS,
);

/// All settings, in the order of the documentation.
pub const ALL: [&Setting; 33] = [
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
    /// What `environment` holds for it, and in which variables; `None` if the default counts. It is not checked whether
    /// that can be used.
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
            format_args!("{:?} cannot be used; it may be {}", found.text, self.values),
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

/// The names that begin like a setting's, or nearly so, in whatever case, and are none, in the order of the alphabet.
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

/// Checks what concerns every kind of process: the values of `HERRINGBONE_LOG` and `HERRINGBONE_LOG_FORMAT`, and the names in the
/// environment. A name that is no setting's is worth a warning, once per process.
///
/// [`Config::from_env`](crate::Config::from_env) and [`with_env`](crate::Config::with_env) do this, where only rank 0 warns; a
/// program that only runs a reducer calls it.
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
                "HERRINGBONE_LOG: \"loud\" cannot be used; it may be off, error, warn, info or debug"
            ),
            "{text}"
        );
        for level in ["", "off", "warn", "info", "debug", "trace", "INFO", "error", "warning"] {
            checked(level).unwrap();
        }
    }
}
