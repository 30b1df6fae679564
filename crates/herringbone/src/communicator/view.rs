//! How a job stands, for code that only looks at it, such as a page of metrics: it keeps nothing alive.

use super::Communicator;
use crate::{
    core::session::{
        membership::Roster,
        status::{GroupStatus, JobStatus},
    },
    engine::status::{group_status, job_status},
    fabric::recorder,
    node::Node,
    transport::stats::Stats,
};
use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::Instant,
};

/// A process's place in a job, for observers. It does not keep the job from ending.
#[derive(Clone)]
pub struct JobView {
    node: Weak<Node>,
    place: Arc<JobPlace>,
    token: Arc<str>,
    /// The number of the group of all ranks, or of those that are left.
    whole: Arc<AtomicU32>,
}

/// A process's place in a job; it does not change while the job lasts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobPlace {
    /// The number of the job.
    pub job: u64,
    /// The launchers' names for the job, beginning with the one that is used.
    pub names: Vec<String>,
    /// This process's rank in the job.
    pub rank: u32,
    /// Its rank on its host.
    pub local_rank: u32,
    /// The address where it listens, as `host:port`, for `herringbone status`. Ranks that are threads do not listen.
    pub address: Option<String>,
    /// The job's members.
    pub roster: Arc<Roster>,
}

/// How a process stands in a job at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobFigures {
    /// Its counters since the job formed.
    pub stats: Stats,
    /// Its groups, the operations under way, its links.
    pub status: JobStatus,
    /// The group of all ranks, or of the ranks that [shrank](crate::Communicator::shrink) or lost a reducer since;
    /// `None` before the group exists.
    pub whole: Option<GroupStatus>,
    /// Bytes of staging memory that operations have now.
    pub staged: u64,
    /// Bytes of staging memory.
    pub staging: u64,
}

impl JobView {
    /// This process's place in the job of a communicator, for observers.
    pub fn of(communicator: &Communicator) -> Self {
        let fabric = &communicator.fabric;
        let job = &fabric.job;
        let locals = job.locals();
        let place = JobPlace {
            job: job.id,
            names: job.names.iter().map(|name| name.name.clone()).collect(),
            rank: job.rank,
            local_rank: locals.iter().position(|local| *local == job.me).unwrap_or_default() as u32,
            address: communicator.address().map(str::to_owned),
            roster: job.roster.clone(),
        };
        let token = String::from_utf8_lossy(&job.token).into();
        Self {
            node: Arc::downgrade(&fabric.node),
            place: Arc::new(place),
            token,
            whole: fabric.whole().clone(),
        }
    }

    /// The place of this process in the job.
    pub fn place(&self) -> &JobPlace {
        &self.place
    }

    /// The job's token, with which its members are asked; this can be a token that was drawn for this job alone. `None`
    /// if it has none.
    pub fn token(&self) -> Option<&str> {
        Some(&*self.token).filter(|token| !token.is_empty())
    }

    /// Whether this process has left the job, or is a forked child of a member.
    pub fn is_over(&self) -> bool {
        self.node().is_none()
    }

    /// Whether it is the same place, seen by another handle.
    pub fn is_same(&self, other: &Self) -> bool {
        self.node.ptr_eq(&other.node)
    }

    /// How this process stands; `None` if it has left, or if other threads have the engine for 0.4 s on end.
    pub fn figures(&self) -> Option<JobFigures> {
        let node = self.node()?;
        let mut figures = recorder::soon(&node, Instant::now() + recorder::PATIENCE, |engine| {
            let staging = &engine.runtime.ops.staging;
            let (staged, staging) = (staging.in_use() as u64, staging.bytes() as u64);
            let whole = group_status(engine, engine.current(self.whole.load(Ordering::SeqCst)));
            JobFigures { stats: engine.counted(), status: job_status(engine, 1), whole, staged, staging }
        })?;
        figures.stats.waiting = node.waited();
        figures.status.epoch = self.place.roster.epoch();
        Some(figures)
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.upgrade().filter(|node| !node.is_forked() && !node.is_closing())
    }
}

impl fmt::Debug for JobView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobView").field("place", &self.place).finish_non_exhaustive()
    }
}
