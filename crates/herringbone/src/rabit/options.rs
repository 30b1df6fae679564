//! The options of programs with recovery.

use crate::{
    Error, Result,
    config::settings::PROGRESS_FILE,
    core::replay::{ReplayRules, ReplaySettings},
};
use std::{env, path::PathBuf, time::Duration};

/// The options of programs with recovery, in RABIT's units. The same on all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RabitOptions {
    /// On about how many ranks a result is kept once all ranks have passed it: 5.
    pub global_replica: u32,
    /// On how many other ranks a local model is kept: 2.
    pub local_replica: u32,
    /// How long ranks wait for a process to be started again: 30 minutes.
    pub recovery_timeout: Duration,
    /// How many bytes of results a rank keeps without a warning: 1 GiB.
    pub kept_warning: u64,
}

impl Default for RabitOptions {
    fn default() -> Self {
        let ReplaySettings { global_replica, local_replica, .. } = ReplaySettings::default();
        let recovery_timeout = Duration::from_secs(1800);
        Self { global_replica, local_replica, recovery_timeout, kept_warning: 1 << 30 }
    }
}

impl RabitOptions {
    /// The defaults, or the values of environment variables with the names of RABIT's arguments.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a value that cannot be used.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::default();
        for name in ARGUMENTS {
            if let Some(value) = env::var(name).ok().filter(|value| !value.is_empty()) {
                options.set(name, &value)?;
            }
        }
        Ok(options)
    }

    /// The same with RABIT's arguments, `name=value` each: `rabit_global_replica`, `rabit_local_replica` and `rabit_timeout_sec`. Others
    /// are the program's.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a value that cannot be used.
    pub fn with_arguments<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        for argument in arguments {
            if let Some((name, value)) = argument.split_once('=').filter(|(name, _)| ARGUMENTS.contains(name))
            {
                self.set(name, value)?;
            } else if let Some(name) = unknown_option(argument) {
                crate::log::warn(
                    "rabit",
                    format_args!(
                        "{name} is no option, and is not read: the options are {}",
                        ARGUMENTS.join(", ")
                    ),
                );
            }
        }
        Ok(self)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let number = value.parse::<u32>().ok().filter(|number| *number > 0 || name == LOCAL_REPLICA);
        let Some(number) = number else {
            return Err(Error::config(name, format!("{value:?} is no whole number from 1")));
        };
        match name {
            GLOBAL_REPLICA => self.global_replica = number,
            LOCAL_REPLICA => self.local_replica = number,
            _ => self.recovery_timeout = Duration::from_secs(u64::from(number)),
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> ReplaySettings {
        ReplaySettings {
            global_replica: self.global_replica,
            local_replica: self.local_replica,
            rules: ReplayRules::DEFAULT,
        }
    }
}

const GLOBAL_REPLICA: &str = "rabit_global_replica";
const LOCAL_REPLICA: &str = "rabit_local_replica";
const ARGUMENTS: [&str; 3] = [GLOBAL_REPLICA, LOCAL_REPLICA, "rabit_timeout_sec"];

/// What RABIT reads, and has no meaning here.
const OTHERS_OF_RABIT: [&str; 17] = [
    "rabit_tracker_uri",
    "rabit_tracker_port",
    "rabit_task_id",
    "rabit_slave_port",
    "rabit_num_trial",
    "rabit_world_size",
    "rabit_hadoop_mode",
    "rabit_reduce_ring_mincount",
    "rabit_reduce_buffer",
    "rabit_tree_reduce_minsize",
    "rabit_bootstrap_cache",
    "rabit_debug",
    "rabit_timeout",
    "rabit_enable_tcp_no_delay",
    "rabit_stop_process",
    "rabit_recover_info",
    "rabit_env",
];

/// The name of an argument that looks like an option and is none.
fn unknown_option(argument: &str) -> Option<&str> {
    let name = argument.split_once('=')?.0;
    let is_known = ARGUMENTS.contains(&name) || OTHERS_OF_RABIT.contains(&name);
    (name.starts_with("rabit_") && !is_known).then_some(name)
}

/// How many processes of this rank came before this one, as launchers of RABIT's programs say.
pub(super) fn attempt() -> u32 {
    env::var("DMLC_NUM_ATTEMPT").ok().and_then(|attempt| attempt.parse().ok()).unwrap_or(0)
}

/// Where to write the version, for the launcher.
pub(super) fn progress_file() -> Option<PathBuf> {
    env::var_os(PROGRESS_FILE.name).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_options_are_seen_and_those_of_rabit_are_not() {
        assert_eq!(unknown_option("rabit_local_replicas=1"), Some("rabit_local_replicas"));
        for other in
            ["rabit_local_replica=1", "rabit_tracker_uri=host", "--rabit_local_replicas=1", "rabit_data.bin"]
        {
            assert_eq!(unknown_option(other), None, "{other}");
        }
    }
}
