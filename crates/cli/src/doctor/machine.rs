//! Limits, memory and the scheduler, from the kernel's files.

use super::finding::{Finding, Remedy, by_root};
use rustix::fs::{MemfdFlags, StatVfs, ftruncate, memfd_create, statvfs};
use std::fs;
use std::path::PathBuf;

/// Where a process's limits stand, below the root.
const LIMITS: &str = "proc/self/limits";
const AUTOGROUP: &str = "proc/sys/kernel/sched_autogroup_enabled";
const SHARED_MEMORY: &str = "dev/shm";
const INFINIBAND: &str = "sys/class/infiniband";

/// Open files that a rank needs in addition to its connections, for Python, torch and the engine.
const OWN_FILES: u64 = 128;
/// Open files for each other rank: a connection for control, one for data, and what is shared within a host.
const FILES_PER_RANK: u64 = 4;
/// Fewer open files are too few for a small job, and for one of a few hundred ranks.
const FEWEST_FILES: u64 = 256;
const USUAL_FILES: u64 = 1024;
/// What a rank maps at the least: its staging memory (4M to 64G, usually 64M) and its rings.
const MAPPED: u64 = 1 << 30;
/// With less of it, torch's data loaders with workers die of a bus error.
const LOADERS: u64 = 256 << 20;

/// The files of a machine, below a root.
pub(super) struct HostFiles {
    root: PathBuf,
}

/// A limit of this process: its present value, and how far it can be raised. `None` is unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    soft: Option<u64>,
    hard: Option<u64>,
}

impl HostFiles {
    pub(super) fn this() -> Self {
        Self { root: PathBuf::from("/") }
    }

    pub(super) fn check(&self) -> Vec<Finding> {
        let limits = fs::read_to_string(self.root.join(LIMITS)).unwrap_or_default();
        let mut findings = vec![
            descriptors(limit(&limits, "Max open files")),
            address_space(limit(&limits, "Max address space")),
            locked_memory(limit(&limits, "Max locked memory"), self.root.join(INFINIBAND).exists()),
            shared_memory(),
        ];
        let dev_shm = statvfs(self.root.join(SHARED_MEMORY));
        findings.push(device(dev_shm.ok().as_ref().map(space)));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        findings.push(autogroup(fs::read_to_string(self.root.join(AUTOGROUP)).ok().as_deref(), cores));
        findings
    }
}

/// A line of the kernel's table of limits; `None` if it is not there.
fn limit(table: &str, name: &str) -> Option<Limit> {
    let line = table.lines().find_map(|line| line.strip_prefix(name))?;
    let mut fields = line.split_whitespace().map(|field| match field {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    });
    Some(Limit { soft: fields.next()??, hard: fields.next()?? })
}

const UNKNOWN: &str = "this kernel does not show the limit";

fn descriptors(limit: Option<Limit>) -> Finding {
    const CHECK: &str = "open files";
    // Ranks raise their limit to this one.
    let Some(Limit { hard, .. }) = limit else { return Finding::ok(CHECK, UNKNOWN) };
    let Some(hard) = hard else { return Finding::ok(CHECK, "the number of open files is unlimited") };
    let ranks = hard.saturating_sub(OWN_FILES) / FILES_PER_RANK;
    let says = format!("a process can have {hard} files open, enough for a job of about {ranks} ranks");
    let remedy = Remedy::new(
        "this raises it for this shell and its children; to make it permanent, set LimitNOFILE=65536 in the systemd unit, \
         --ulimit nofile=65536 for docker run, or nofile in /etc/security/limits.conf",
        by_root("prlimit --pid $$ --nofile=65536:65536"),
    );
    match hard {
        USUAL_FILES.. => Finding::ok(CHECK, says),
        FEWEST_FILES.. => Finding::warning(CHECK, says, remedy),
        _ => Finding::wrong(
            CHECK,
            format!("a process can have {hard} files open, which is too few for a rank with torch"),
            remedy,
        ),
    }
}

fn address_space(limit: Option<Limit>) -> Finding {
    const CHECK: &str = "address space";
    let remedy = || unlimited(limit, 'v', "as");
    match limit.and_then(|limit| limit.soft) {
        None if limit.is_none() => Finding::ok(CHECK, UNKNOWN),
        None => Finding::ok(CHECK, "mapped memory is unlimited"),
        Some(bytes) if bytes >= MAPPED => Finding::warning(
            CHECK,
            format!(
                "a process can map {}, so buffers of Communicator.empty might be ordinary memory",
                size(bytes)
            ),
            remedy(),
        ),
        Some(bytes) => Finding::wrong(
            CHECK,
            format!("a process can map {}, which is too little for shared memory between ranks", size(bytes)),
            remedy(),
        ),
    }
}

/// Raises a limit of this shell, by the letter of `ulimit` or, beyond the hard limit, by the name of `prlimit`.
fn unlimited(limit: Option<Limit>, letter: char, name: &str) -> Remedy {
    let prose = "this raises it for this shell and its children";
    match limit {
        Some(Limit { hard: Some(_), .. }) => {
            Remedy::new(prose, by_root(&format!("prlimit --pid $$ --{name}=unlimited:unlimited")))
        }
        _ => Remedy::new(prose, format!("ulimit -S -{letter} unlimited")),
    }
}

/// The engine locks no memory. Libraries for InfiniBand in the same process can.
fn locked_memory(limit: Option<Limit>, has_infiniband: bool) -> Finding {
    const CHECK: &str = "locked memory";
    match limit {
        None => Finding::ok(CHECK, UNKNOWN),
        Some(Limit { soft: None, .. }) => Finding::ok(CHECK, "locked memory is unlimited"),
        Some(Limit { soft: Some(bytes), .. }) if has_infiniband => Finding::warning(
            CHECK,
            format!(
                "a process can lock {}; Herringbone locks none, but NCCL over InfiniBand in the same process needs more",
                size(bytes)
            ),
            unlimited(limit, 'l', "memlock"),
        ),
        Some(Limit { soft: Some(bytes), .. }) => {
            Finding::ok(CHECK, format!("a process can lock {}; Herringbone locks none", size(bytes)))
        }
    }
}

/// Ranks of a host share memory files without a name, which are not in /dev/shm.
fn shared_memory() -> Finding {
    const CHECK: &str = "shared memory";
    let made = memfd_create("herringbone-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .and_then(|file| ftruncate(&file, MAPPED));
    match made {
        Ok(()) => Finding::ok(CHECK, "processes on this host can share memory (memfd)"),
        Err(error) => Finding::warning(
            CHECK,
            format!("the system does not let processes share memory: {error}; ranks on this host use TCP"),
            Remedy::new(
                "to silence the warning in the log, set this on every rank",
                "export HERRINGBONE_TRANSPORT=tcp",
            ),
        ),
    }
}

/// Bytes in all, and free for this user.
fn space(of: &StatVfs) -> (u64, u64) {
    (of.f_blocks.saturating_mul(of.f_frsize), of.f_bavail.saturating_mul(of.f_frsize))
}

/// Herringbone does not use it, but torch does.
fn device(space: Option<(u64, u64)>) -> Finding {
    const CHECK: &str = "/dev/shm";
    let Some((all, free)) = space else {
        return Finding::warning(
            CHECK,
            "/dev/shm is missing; torch's data loaders with workers need it, Herringbone does not",
            Remedy::new(
                "in a container: docker run --shm-size=8g",
                by_root("mkdir -p /dev/shm") + " && " + &by_root("mount -t tmpfs -o size=8G tmpfs /dev/shm"),
            ),
        );
    };
    let (all, left) = (size(all), size(free));
    if free < LOADERS {
        let says = format!(
            "{left} of {all} are free: torch's data loaders with workers can die of a bus error; Herringbone needs none"
        );
        let remedy = Remedy::new(
            "enlarge it, or remove files from it; in a container: docker run --shm-size=8g",
            by_root("mount -o remount,size=8G /dev/shm"),
        );
        return Finding::warning(CHECK, says, remedy);
    }
    Finding::ok(CHECK, format!("{left} of {all} are free, for data loaders; Herringbone needs none"))
}

fn autogroup(text: Option<&str>, cores: usize) -> Finding {
    const CHECK: &str = "autogroup";
    match text.map(str::trim) {
        None => Finding::ok(CHECK, "this kernel has no autogroups"),
        Some("0") => Finding::ok(CHECK, "off: the kernel shares cores among ranks"),
        Some(_) => Finding::warning(
            CHECK,
            format!(
                "on: with more ranks than cores ({cores} here) small all-reduces take nearly twice as long"
            ),
            Remedy::new(
                "turn it off until the next boot",
                by_root("sysctl -w kernel.sched_autogroup_enabled=0"),
            ),
        ),
    }
}

/// Bytes for people.
fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match UNITS.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        Some((shift, unit)) => format!("{:.1} {unit}", bytes as f64 / (1_u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{Ok, Warning, Wrong};
    use super::*;

    const TABLE: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max open files            200                  220                  files
Max locked memory         65536                65536                bytes
Max address space         unlimited            unlimited            bytes
";

    fn finite(soft: u64, hard: u64) -> Option<Limit> {
        Some(Limit { soft: Some(soft), hard: Some(hard) })
    }

    #[test]
    fn limits_are_read_from_the_kernels_table() {
        assert_eq!(limit(TABLE, "Max open files"), finite(200, 220));
        assert_eq!(limit(TABLE, "Max address space"), Some(Limit { soft: None, hard: None }));
        assert_eq!(limit(TABLE, "Max processes"), None);
    }

    /// A machine whose files say that much is wrong with it.
    #[test]
    fn a_machine_is_judged_by_its_files() {
        let root = std::env::temp_dir().join(format!("herringbone-doctor-{}", std::process::id()));
        for (path, text) in [(LIMITS, TABLE), (AUTOGROUP, "1\n"), ("sys/class/infiniband/mlx5_0", "")] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let findings = HostFiles { root: root.clone() }.check();
        fs::remove_dir_all(&root).unwrap();
        let level = |check| findings.iter().find(|finding| finding.check == check).unwrap().level;
        let levels = ["open files", "address space", "locked memory", "/dev/shm", "autogroup"].map(level);
        assert_eq!(levels, [Wrong, Ok, Warning, Warning, Warning], "{findings:?}");
    }

    #[test]
    fn files_count_as_far_as_ranks_may_raise_the_limit() {
        let said = |soft, hard| {
            let finding = descriptors(finite(soft, hard));
            (finding.level, finding.remedy.map(|remedy| remedy.command).unwrap_or_default())
        };
        assert_eq!(said(65_536, 65_536).0, Ok);
        assert_eq!(said(64, 1 << 20).0, Ok);
        for (hard, expected) in [(512, Warning), (64, Wrong)] {
            let (level, command) = said(64, hard);
            assert!(level == expected && command.contains("--nofile="), "{command}");
        }
    }

    #[test]
    fn memory_is_judged_by_how_much_there_is() {
        assert_eq!(device(Some((64 << 20, 64 << 20))).level, Warning);
        assert_eq!(device(Some((8 << 30, 8 << 30))).level, Ok);
        assert_eq!(device(Some((8 << 30, 1 << 20))).level, Warning, "it is full");
        assert_eq!(address_space(finite(512 << 20, 512 << 20)).level, Wrong);
        assert_eq!(address_space(finite(8 << 30, 8 << 30)).level, Warning);
        assert_eq!(locked_memory(finite(65_536, 65_536), false).level, Ok);
        assert_eq!([size(5), size(64 << 10), size(3 << 29)], ["5 B", "64.0 KiB", "1.5 GiB"]);
    }

    #[test]
    fn autogroup_may_be_on_off_or_unknown() {
        assert_eq!([None, Some("0\n"), Some("1\n")].map(|text| autogroup(text, 2).level), [Ok, Ok, Warning]);
    }
}
