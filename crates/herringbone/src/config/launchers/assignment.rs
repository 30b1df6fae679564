//! The assignment of a launcher: a process's place in its job, and the place where the ranks can meet.

use crate::{Error, Result, config::environment::Environment};
use std::fmt;

/// A process's place in its job, as a launcher says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    /// The launcher's name, for people.
    pub(crate) launcher: &'static str,
    pub(crate) rank: u32,
    pub(crate) world: u32,
    /// The rank among those of this machine, and how many these are, where the launcher says so.
    pub(crate) local: Option<(u32, u32)>,
    /// The variables that say so, with their values: rank and size first.
    pub(super) said: Vec<(&'static str, String)>,
    /// How the launcher itself may have been started by another one.
    pub(super) nesting: Nesting,
    pub(crate) rendezvous: RdzvHint,
    /// What the launcher calls this one start of ranks, with the variable that says so.
    pub(super) job: Option<(&'static str, String)>,
}

/// How many processes of another launcher may stand behind a launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nesting {
    /// One, or as many as there are ranks.
    Plain,
    /// One for each of this many machines.
    Groups(u32),
    /// One for each machine that its daemons run on. That is not told, but there are no more than ranks.
    Daemons,
}

/// Where the ranks of a launcher can meet, as far as its variables say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RdzvHint {
    /// Nowhere: somebody has to set an address.
    Unknown,
    /// Rank 0 can listen at this `host:port`.
    Address(String),
    /// All ranks are on this machine. The text names the job, and `None` the process that started its ranks.
    Machine(Option<String>),
}

/// What one launcher's variables say.
pub(super) enum Detection {
    Place(Assignment),
    /// The launcher was there, and does not say enough; the error says what to set.
    Lacking(Error),
}

impl Assignment {
    /// As two variables say it.
    pub(super) fn new(
        launcher: &'static str,
        rank_name: &'static str,
        rank: u32,
        world_name: &'static str,
        world: u32,
    ) -> Self {
        let said = vec![(rank_name, rank.to_string()), (world_name, world.to_string())];
        let (nesting, rendezvous) = (Nesting::Plain, RdzvHint::Unknown);
        Self { launcher, rank, world, local: None, said, nesting, rendezvous, job: None }
    }

    /// Checks that another launcher, which comes later in the order, says the same or has started this one. If it says
    /// the same and knows where to meet, it is believed.
    pub(super) fn compare(&mut self, other: Assignment) -> Result<()> {
        if (self.rank, self.world) == (other.rank, other.world) {
            if self.rendezvous == RdzvHint::Unknown {
                self.rendezvous = other.rendezvous;
            }
            return Ok(());
        }
        let started = match self.nesting {
            // One process of another launcher has started this one.
            _ if other.world == 1 => true,
            Nesting::Groups(groups) => groups == other.world,
            Nesting::Daemons => {
                let is_on_one_machine = self.local.is_some_and(|(_, size)| size == self.world);
                !is_on_one_machine && other.world <= self.world
            }
            Nesting::Plain => false,
        };
        if started { Ok(()) } else { Err(self.contradicted(&other.to_string())) }
    }

    /// The error of two sources that do not agree.
    pub(super) fn contradicted(&self, other: &str) -> Error {
        let problem = format!(
            "{self}, but {other}: start the program with one launcher, unset the variables of the other one, or set \
             HERRINGBONE_RANK and HERRINGBONE_WORLD_SIZE, which override both"
        );
        Error::config(self.said[0].0, problem)
    }
}

impl fmt::Display for Assignment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { launcher, rank, world, said, .. } = self;
        let said: Vec<String> = said.iter().map(|(name, value)| format!("{name}={value}")).collect();
        write!(f, "{launcher} sets rank {rank} of {world} ({})", said.join(", "))
    }
}

/// A variable's number.
pub(super) fn number(environment: &Environment, name: &str, values: &str) -> Result<Option<u32>> {
    let Some(text) = environment.text(name)? else { return Ok(None) };
    let wrong = |_| Error::config(name, format_args!("{text:?} cannot be used; it must be {values}"));
    text.trim().parse().map(Some).map_err(wrong)
}

pub(super) const COUNT: &str = "a number";

/// The first of these variables that holds a number.
pub(super) fn first_number(
    environment: &Environment,
    names: &[&'static str],
) -> Result<Option<(&'static str, u32)>> {
    for name in names {
        if let Some(found) = number(environment, name, COUNT)? {
            return Ok(Some((name, found)));
        }
    }
    Ok(None)
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn address(host: &str, port: impl fmt::Display) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}
