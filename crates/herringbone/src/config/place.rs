//! From the place that a launcher gives a process to the meeting of its ranks.

use super::{
    Config, Rendezvous,
    environment::Environment,
    launchers::{self, Assignment, RdzvHint},
    settings,
};
use crate::{
    Error, Result,
    core::session::formation::JobName,
    log,
    rendezvous::{MachineStore, Numbered, TorchrunStore},
};
use std::sync::{Arc, Once};

impl Environment {
    /// The launcher that is used and the place that it gives, in words; `None` if no launcher started this process.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if launchers contradict each other, or if one gives too little
    /// information.
    pub fn place(&self) -> Result<Option<String>> {
        Ok(launchers::find(self)?.map(|place| place.to_string()))
    }

    /// Where the ranks of a world meet.
    fn rendezvous(&self, place: &Assignment) -> Result<Rendezvous> {
        if let Some(address) = self.text(settings::STORE.name)? {
            return Ok(Rendezvous::Tcp(address.to_owned()));
        }
        if place.world <= 1 {
            return Ok(Rendezvous::Tcp("127.0.0.1:0".to_owned()));
        }
        if let (Some(host), Some(port)) = (self.text("MASTER_ADDR")?, self.text("MASTER_PORT")?) {
            let master = launchers::address(host, port);
            return match self.torchruns_attempt()? {
                Some(attempt) => {
                    let store = Arc::new(Numbered::new(TorchrunStore::new(master, attempt)));
                    Ok(Rendezvous::Store { store, host: Some(host.to_owned()) })
                }
                None => Ok(Rendezvous::Tcp(master)),
            };
        }
        let machine = match &place.rendezvous {
            RdzvHint::Address(address) => return Ok(Rendezvous::Tcp(address.clone())),
            RdzvHint::Machine(Some(job)) => MachineStore::of_job(job),
            RdzvHint::Machine(None) => MachineStore::of_starter(),
            RdzvHint::Unknown => {
                let problem = format_args!(
                    "set it to host:port of rank 0, or set MASTER_ADDR and MASTER_PORT, the same on every rank: {place}, and not \
                     where rank 0 is"
                );
                return Err(Error::config(settings::STORE.name, problem));
            }
        };
        Ok(Rendezvous::Store { store: Arc::new(Numbered::new(machine)), host: None })
    }

    /// Whether torchrun's own store listens at `MASTER_PORT`. With `TORCHELASTIC_USE_AGENT_STORE=False` rank 0 itself does.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a variable that is no text.
    pub fn has_torchruns_store(&self) -> Result<bool> {
        let is_torchruns = self.text("TORCHELASTIC_RUN_ID")?.is_some();
        Ok(is_torchruns && self.text(launchers::AGENT_STORE)?.is_none_or(|is| is == "True"))
    }

    /// What distinguishes an attempt of torchrun, if its own store listens at `MASTER_PORT`.
    fn torchruns_attempt(&self) -> Result<Option<String>> {
        let Some(run) = self.text("TORCHELASTIC_RUN_ID")? else { return Ok(None) };
        if !self.has_torchruns_store()? {
            return Ok(None);
        }
        let parts = ["TORCHELASTIC_RESTART_COUNT", "GROUP_WORLD_SIZE", "WORLD_SIZE"];
        let parts = parts.map(|name| self.text(name).map(Option::unwrap_or_default));
        Ok(Some(format!("{run}/{}", parts.into_iter().collect::<Result<Vec<_>>>()?.join("/"))))
    }
}

impl Config {
    /// The settings of the environment: the place that a launcher gives this process, and the table above. The log
    /// shows which launcher was used (`HERRINGBONE_LOG=info`), and warns if there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) for a value that makes no sense, for launchers that contradict each
    /// other, and for a rank without a place to meet.
    pub fn from_env() -> Result<Self> {
        let environment = Environment::of_process();
        // A place that cannot be read is an error below, to which a misspelt name may be the clue.
        let place = launchers::find(&environment);
        settings::check_on(
            place.as_ref().map_or(0, |place| place.as_ref().map_or(0, |place| place.rank)),
            &environment,
        )?;
        let place = place?;
        let config = Self::at(place.as_ref(), &environment)?;
        config.name_job_in_log();
        log_choice(place.as_ref(), &config.rendezvous, &environment)?;
        Ok(config)
    }

    /// The place of this process and the job's token. The other settings are not read, because one might be wrong.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env), for the place.
    pub fn place_from_env() -> Result<Self> {
        let environment = Environment::of_process();
        let Some(place) = launchers::find(&environment)? else {
            return Ok(Self::new(0, 1, Rendezvous::Tcp("127.0.0.1:0".to_owned())));
        };
        let config = Self::new(place.rank, place.world, environment.rendezvous(&place)?);
        // Without a token that can be read the others are told that the tokens differ.
        let config = config.token(environment.token().ok().flatten().unwrap_or_default());
        Ok(config.named_by(&environment))
    }

    /// With the names that the environment gives the job; without any if they cannot be read.
    #[must_use]
    pub fn named_by_env(self) -> Self {
        self.named_by(&Environment::of_process())
    }

    fn named_by(mut self, environment: &Environment) -> Self {
        self.job = self.names_in(environment).unwrap_or_default();
        self
    }

    /// The names that an environment gives the job.
    pub(super) fn names_in(&self, environment: &Environment) -> Result<Vec<JobName>> {
        // Where launchers contradict each other, whoever has found the place out says so.
        let place = launchers::find(environment).ok().flatten();
        let place = place.filter(|place| (place.rank, place.world) == (self.rank, self.world));
        launchers::names(environment, place.as_ref())
    }

    /// What is said of this process from now on has the job's name.
    pub(super) fn name_job_in_log(&self) {
        self.job.iter().take(1).for_each(|name| log::set_job(&name.name));
    }

    /// The same ranks of the same job at the same place, with the token, and all else as by default.
    pub(crate) fn bare(&self) -> Self {
        let config = Self::new(self.rank, self.world, self.rendezvous.clone());
        let config = config.token(self.token.clone().unwrap_or_default());
        Self { job: self.job.clone(), ..config }
    }

    pub(crate) fn from_environment(environment: &Environment) -> Result<Self> {
        Self::at(launchers::find(environment)?.as_ref(), environment)
    }

    fn at(place: Option<&Assignment>, environment: &Environment) -> Result<Self> {
        let (rank, world, rendezvous) = match place {
            Some(place) => (place.rank, place.world, environment.rendezvous(place)?),
            None => {
                let address = environment.text(settings::STORE.name)?.unwrap_or("127.0.0.1:0");
                (0, 1, Rendezvous::Tcp(address.to_owned()))
            }
        };
        Self::new(rank, world, rendezvous).with_environment(environment)
    }
}

static SAID: Once = Once::new();

/// Says once which launcher has started this process, where the program itself knows its place.
pub(super) fn log_launcher(rank: u32, environment: &Environment) {
    // Where launchers contradict each other, the program's word is there to overrule them.
    if let Ok(Some(place)) = launchers::find(environment) {
        SAID.call_once(|| {
            log::info(&format!("rank {rank}"), format_args!("{place}; the program sets where ranks meet"))
        });
    }
}

/// Says once which launcher counts, or that there is none.
fn log_choice(place: Option<&Assignment>, rendezvous: &Rendezvous, environment: &Environment) -> Result<()> {
    let Some(place) = place else {
        let missing_launcher = launchers::missing_launcher(environment)?.unwrap_or_else(|| {
            "start several with `herringbone launch -n 4 -- python train.py`, torchrun, mpirun or srun"
                .to_owned()
        });
        SAID.call_once(|| {
            log::warn(
                "rank 0",
                format_args!(
                    "no launcher has started this process, so it is a world of 1; {missing_launcher} (if 1 is right, \
                     set HERRINGBONE_RANK=0 and HERRINGBONE_WORLD_SIZE=1)"
                ),
            );
        });
        return Ok(());
    };
    SAID.call_once(|| {
        let who = format!("rank {}", place.rank);
        let local =
            place.local.map_or(String::new(), |(rank, size)| format!(", {rank} of {size} on this machine"));
        log::info(&who, format_args!("{place}{local}; {}", where_they_meet(rendezvous, place)));
    });
    Ok(())
}

fn where_they_meet(rendezvous: &Rendezvous, place: &Assignment) -> String {
    match rendezvous {
        _ if place.world == 1 => "it is alone".to_owned(),
        Rendezvous::Tcp(address) => format!("rank 0 listens at {address}"),
        Rendezvous::Store { host: Some(host), .. } => {
            format!("the ranks meet through torchrun's store on {host}")
        }
        Rendezvous::Store { host: None, .. } => "the ranks meet on this machine".to_owned(),
    }
}
