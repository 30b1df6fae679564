//! How a process joins a job, and how it continues after a loss: with the surviving ranks, or with new processes for the lost ones.

use crate::{
    Communicator, Error, Result, assembly,
    communicator::shrink::{self, Agreed},
    config::{Config, Rendezvous, Trees, WaitLimits},
    core::{group::Rank, plan::Guidance, session::survivors::Shrink},
    fabric::{
        Fabric,
        decline::{self, Meeting},
        election::{self, Elected},
        formation,
    },
    status::{self, Activity},
};
use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

/// How long the survivors may take to meet after they have agreed to continue.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the place where rank 0 was is asked for those who want to join.
const ASK: Duration = Duration::from_millis(500);

/// Where the survivors meet: at this rank, which is the new hub, or at another one.
enum NewHub {
    Here { listener: TcpListener, address: SocketAddr },
    At(String),
}

impl Communicator {
    /// Joins the job that the environment describes; see [`Config`] for the variables. A process without any is a job of one.
    ///
    /// # Errors
    /// [`ErrorKind::Config`](crate::ErrorKind::Config), [`ErrorKind::Rendezvous`](crate::ErrorKind::Rendezvous) or
    /// [`ErrorKind::Auth`](crate::ErrorKind::Auth).
    pub fn from_env() -> Result<Self> {
        match Config::from_env() {
            Ok(config) => Self::connect(config),
            Err(error) => {
                if let Ok(place) = Config::place_from_env() {
                    Self::decline(&place, &error);
                }
                Err(error)
            }
        }
    }

    /// Reports to the other ranks of `config`'s job that this rank does not come, because its settings cannot be used.
    /// They get the same error at once, and not one about a missing rank after their timeouts. Rank 0 tells all others;
    /// another rank tells rank 0, which passes it on. Returns after five seconds at the latest.
    /// [`from_env`](Self::from_env) and [`connect`](Self::connect) do this themselves; it is for programs that read a
    /// [`Config`] by themselves.
    pub fn decline(config: &Config, why: &Error) {
        decline::tell(config, why);
    }

    /// Joins the job that `config` describes; returns when all ranks are there.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env).
    pub fn connect(config: Config) -> Result<Self> {
        Self::meet(&config, Meeting::First)
    }

    /// As [`connect`](Self::connect), for ranks of a job that has run before, such as ranks that a launcher's new plan
    /// names. If one of them cannot use its settings, rank 0 logs that and waits for another process in its place.
    /// `connect` would end with that rank's error.
    ///
    /// # Errors
    /// As [`from_env`](Self::from_env). [`ErrorKind::Config`](crate::ErrorKind::Config) is only about this rank's own settings.
    pub fn connect_again(config: Config) -> Result<Self> {
        Self::meet(&config, Meeting::Again)
    }

    fn meet(config: &Config, meeting: Meeting) -> Result<Self> {
        let of_files = |()| match meeting {
            Meeting::First => config.check_files(),
            // A job that goes on with fewer ranks leaves them out.
            Meeting::Again => Ok(()),
        };
        if let Err(error) = config.check().and_then(of_files) {
            Self::decline(config, &error);
            return Err(error.at(config.rank));
        }
        assembly::over(config, config, formation::form(config, meeting)?)
    }

    /// A group of the surviving ranks, after a [loss](crate::ErrorKind::PeerLost) or for any other reason. All live ranks call
    /// this and get the same group, in which ranks keep their order and are numbered from 0. This group takes
    /// no more calls, and its operations in flight end.
    ///
    /// A member whose process has ended, or that has left, is not included. A silent member can be alive on the other
    /// side of a network split, so the others continue only if they outnumber the silent ones. Rank 0 of the job
    /// decides who has survived. If it is lost itself, the lowest survivor takes over: the job re-forms, and all its
    /// other groups end.
    ///
    /// # Errors
    /// [`ErrorKind::PeerLost`](crate::ErrorKind::PeerLost) if the survivors cannot continue, or are fewer than `least`;
    /// [`ErrorKind::Timeout`](crate::ErrorKind::Timeout) if not all that live called this in time.
    pub fn shrink(&self, least: u32, timeout: Option<Duration>) -> Result<Self> {
        self.check_open("shrink")?;
        let timeout = timeout.unwrap_or(self.timeout());
        let deadline = Instant::now() + timeout;
        let (fabric, group) = self.parts();
        let next = match shrink::agree(fabric, group, least, timeout)? {
            Agreed::On { number, rank, members, completed } => {
                if rank == 0 {
                    assembly::say_left_out(&fabric.settings.guidance, members.len() as u32);
                }
                Self::group(fabric.clone(), number, rank, members, self.timeout()).after(completed)
            }
            Agreed::Without { shrink, gone } => self.without_hub(&shrink, &gone, timeout, deadline)?,
        };
        group.residuals.say_all_dropped(fabric.job.rank);
        Ok(next)
    }

    /// As [`shrink`](Self::shrink), when rank 0 is lost.
    fn without_hub(
        &self,
        request: &Shrink,
        gone: &BTreeMap<Rank, bool>,
        timeout: Duration,
        deadline: Instant,
    ) -> Result<Self> {
        let (fabric, me) = (self.parts().0, self.parts().0.job.rank);
        let at = |error: Error| error.about(me, "shrink");
        let Some(config) = &fabric.origin else {
            return Err(at(shrink::lost(vec![0], "only rank 0 knows the survivors".to_owned())));
        };
        loop {
            let found = election::election(&fabric.job, &fabric.commands, request.clone(), gone, deadline);
            let found = found.map_err(|error| at(Error::io("looking for the surviving ranks", error)))?;
            let (left, completed, new_hub) = match found {
                Elected::First { left, completed, listener, address } => {
                    (left, completed, NewHub::Here { listener, address })
                }
                Elected::Follows { left, completed, hub } => (left, completed, NewHub::At(hub)),
                Elected::Not(outcome) => return Err(at(shrink::refused(outcome, &request.members))),
                Elected::Late { missing } => return Err(at(shrink::late(me, timeout, &missing))),
            };
            match regather(fabric, config, &left, new_hub, deadline) {
                Ok(comm) => {
                    fabric.abandon();
                    return Ok(self.with_its_timeout(comm).after(completed));
                }
                // One of them was lost meanwhile: who is left is found out again.
                Err(error) if Instant::now() < deadline => {
                    crate::log::warn(
                        &format!("rank {me}"),
                        format_args!(
                            "another rank was lost meanwhile, so the remaining ranks are looked for again: {error}"
                        ),
                    );
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Re-forms the whole job, with new processes for the lost ranks. All live ranks call this. The new processes join
    /// as their predecessors did, with the same rank, size and meeting place. It waits for all, for `timeout` at most.
    /// All groups of the job end. A new process has none of the others' state: broadcast it.
    ///
    /// If it fails, the group is closed, and this can be called again.
    ///
    /// # Errors
    /// As [`connect`](Self::connect): rank 0's names the ranks that did not come. [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for
    /// ranks that are threads of one process.
    pub fn replace(&self, timeout: Option<Duration>) -> Result<Self> {
        let origin = self.dissolve("replace")?;
        let timeout = timeout.unwrap_or(self.timeout());
        let next = Config { waits: WaitLimits { timeout, ..origin.waits }, ..origin.clone() };
        let world = formation::form(&next, Meeting::Again)?;
        Ok(self.with_its_timeout(assembly::over(&origin, &origin, world)?))
    }

    /// The job again with some of its first ranks, ascending, after [`replace`](Self::replace) has failed because new processes
    /// did not come. All of them call this, with the same ranks. The first of them has to be able to listen at the job's place
    /// to meet.
    ///
    /// # Errors
    /// As [`replace`](Self::replace); [`ErrorKind::Config`](crate::ErrorKind::Config) unless this process's first rank is one
    /// of them.
    pub fn regather(&self, ranks: &[u32], timeout: Option<Duration>) -> Result<Self> {
        let origin = self.dissolve("regather")?;
        let Some(rank) = ranks.iter().position(|rank| *rank == origin.rank) else {
            let problem =
                format!("rank {} is not one of them: only the ranks in the list call this", origin.rank);
            return Err(Error::config("ranks to regather", problem).about(origin.rank, "regather"));
        };
        let waits = WaitLimits { timeout: timeout.unwrap_or(self.timeout()), ..origin.waits };
        let next = Config {
            rank: rank as Rank,
            world: ranks.len() as u32,
            waits,
            trees: origin.trees.among(ranks),
            ..origin.clone()
        };
        let world = formation::form(&next, Meeting::Again)?;
        Ok(self.with_its_timeout(assembly::over(&Config { waits: origin.waits, ..next }, &origin, world)?))
    }

    /// What comes after this group has its timeout, which the program may have set since it joined.
    fn with_its_timeout(&self, next: Self) -> Self {
        next.set_timeout(self.timeout());
        next
    }

    /// Ends all groups, so that the job can form anew; returns what this process was first started with.
    fn dissolve(&self, operation: &'static str) -> Result<Config> {
        let fabric = self.parts().0;
        let Some(origin) = &fabric.origin else {
            let problem = "ranks that are threads of one process are not replaced: start the program again";
            return Err(Error::unsupported(problem).about(fabric.job.rank, operation));
        };
        if !fabric.is_dissolving() {
            self.check_open(operation)?;
        }
        fabric.dissolve();
        self.parts().1.residuals.say_all_dropped(fabric.job.rank);
        Ok((**origin).clone())
    }

    /// How many operations of the group before this one all ranks of this one have completed, if this one came of
    /// [`shrink`](Self::shrink). These are all operations before the first that the loss ended on any rank.
    pub fn completed_before(&self) -> Option<u64> {
        self.parts().1.completed_before.get().copied()
    }

    /// The same communicator, with the number of operations that all ranks completed in the group before it.
    fn after(self, completed: u64) -> Self {
        self.parts().1.completed_before.get_or_init(|| completed);
        self
    }

    /// The lost ranks whose new processes wait to join: with all of them there, [`replace`](Self::replace) does not
    /// wait. Only rank 0 of the job knows, which is also rank 0 of the group of all survivors; elsewhere the list is
    /// empty.
    pub fn newcomers(&self) -> Vec<u32> {
        let fabric = self.parts().0;
        let knows = fabric.job.rank == 0 && self.check_open("newcomers").is_ok();
        let Some(origin) = fabric.origin.as_ref().filter(|_| knows) else { return Vec::new() };
        if origin.rank == 0 {
            return fabric.commands.newcomers();
        }
        // They come to the place where rank 0 was, and a new one gathers them there.
        let Rendezvous::Tcp(address) = &origin.rendezvous else { return Vec::new() };
        match status::ask(address, origin.token.as_deref(), None, ASK).map(|answer| answer.status.activity) {
            Ok(Activity::Forms { missing }) => {
                (0..origin.world).filter(|rank| !missing.contains(rank)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Forms the job of the survivors at the new hub.
fn regather(
    fabric: &Fabric,
    config: &Config,
    left: &[Rank],
    new_hub: NewHub,
    deadline: Instant,
) -> Result<Communicator> {
    let (job, settings) = (&fabric.job, &fabric.settings);
    let rank = left.iter().position(|rank| *rank == job.rank);
    let rank =
        rank.ok_or_else(|| shrink::lost(vec![job.rank], "the other ranks continue without it".to_owned()))?;
    let mut next = Config {
        rank: rank as Rank,
        world: left.len() as u32,
        // Where they meet is known without it.
        rendezvous: Rendezvous::Tcp(String::new()),
        token: String::from_utf8(job.token.clone()).ok().filter(|token| !token.is_empty()),
        reducers: Vec::new(),
        guidance: Guidance::clone(&settings.guidance),
        transport: settings.transport,
        fold_order: Some(settings.parameters.order),
        trees: Trees {
            wiring: settings.parameters.wiring.among(left),
            bound: Some(settings.parameters.tree_bound),
            ..Trees::default()
        },
        waits: WaitLimits {
            timeout: RENDEZVOUS_TIMEOUT.min(deadline.saturating_duration_since(Instant::now())),
            ..config.waits
        },
        ..config.clone()
    };
    let world = match new_hub {
        NewHub::Here { listener, address } => {
            next.reducers = job.roster.reducers().map(|reducer| reducer.address.clone()).collect();
            formation::form_at(&next, listener, address)?
        }
        NewHub::At(hub) => {
            next.rendezvous = Rendezvous::Tcp(hub);
            formation::form(&next, Meeting::Again)?
        }
    };
    next.waits = config.waits;
    assembly::over(&next, config, world)
}
