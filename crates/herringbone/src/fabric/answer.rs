//! Answers to requests for this process's status, from its own state: no other process is asked.

use super::{
    Job,
    greet::{self, GreetError},
};
use crate::{
    core::{
        group::Rank,
        session::{
            control::Message,
            handshake::{Claim, Identity},
            status::{Activity, JOBS, JobStatus, ServedJob, Status, TableServerStatus},
        },
    },
    engine::status::job_status,
    node::Node,
};
use std::{
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long an answer waits for an engine that another thread has.
const PATIENCE: Duration = Duration::from_millis(400);
/// How often it looks whether the engine is free.
const LOOK: Duration = Duration::from_micros(100);

/// Somebody who has proved that it knows the token, and asks.
#[derive(Debug)]
pub(crate) struct Inquiry {
    stream: TcpStream,
    claim: Claim,
}

/// What a reducer has to say, which may be a server of tables, too.
pub(crate) struct ReducerAnswer {
    /// How many jobs it has served since it began, the present ones included.
    pub(crate) served: u64,
    /// The present ones: each has a number, a world and an engine.
    pub(crate) present: Vec<(u64, u32, Arc<Node>)>,
    /// Its tables, if it keeps any.
    pub(crate) tables: Option<TableServerStatus>,
}

/// How an engine stands, where so many go into one answer; `None` if it is busy all the time.
pub(crate) fn job_status_soon(node: &Node, of: usize) -> Option<JobStatus> {
    let began = Instant::now();
    loop {
        let found = node.with_if_free(|engine| job_status(engine, of));
        if found.is_some() || began.elapsed() >= PATIENCE {
            return found;
        }
        std::thread::sleep(LOOK);
    }
}

impl Inquiry {
    /// It waits at this connection.
    pub(crate) fn new(stream: TcpStream, claim: Claim) -> Self {
        Self { stream, claim }
    }

    /// A worker of a job answers.
    pub(crate) fn answer_of_worker(self, job: &Job, node: &Node) -> Result<(), GreetError> {
        let epoch = job.roster.epoch();
        let job_status = job_status_soon(node, 1).map(|job_status| JobStatus { epoch, ..job_status });
        let roster = Message::Roster { job: job.id, roster: (*job.roster).clone() };
        self.answer(job.identity(), [roster], Activity::Works(job_status))
    }

    /// Rank 0 answers that it waits for others.
    pub(crate) fn answer_of_forming(self, own: Identity, missing: Vec<Rank>) -> Result<(), GreetError> {
        self.answer(own, [], Activity::Forms { missing })
    }

    /// A reducer answers, or a server of tables.
    pub(crate) fn answer_of_reducer(self, own: Identity, reducer: ReducerAnswer) -> Result<(), GreetError> {
        let ReducerAnswer { served, mut present, tables } = reducer;
        let unlisted = present.len().saturating_sub(JOBS) as u32;
        present.truncate(JOBS);
        let of = present.len();
        let jobs = present.into_iter().map(|(job, world, node)| ServedJob {
            job,
            world,
            job_status: job_status_soon(&node, of),
        });
        self.answer(own, [], Activity::Serves { served, jobs: jobs.collect(), unlisted, tables })
    }

    /// Says who answers, what comes before the status, and the status.
    fn answer<const N: usize>(
        self,
        own: Identity,
        before: [Message; N],
        activity: Activity,
    ) -> Result<(), GreetError> {
        let Self { mut stream, claim } = self;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let status = Status { process: std::process::id(), host, activity };
        let mut channel = greet::channel(greet::welcome(&mut stream, claim, own)?);
        for message in before.into_iter().chain([Message::Status(status)]) {
            greet::send(&mut stream, &mut channel, &message)?;
        }
        Ok(())
    }
}
