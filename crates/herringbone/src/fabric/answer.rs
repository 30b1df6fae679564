//! Answers to requests for this process's status, from its own state: no other process is asked.

use super::{
    Job,
    greet::{self, GreetError},
    recorder::{PATIENCE, flight_record_soon, soon},
};
use crate::{
    clock,
    core::{
        group::Rank,
        session::{
            control::{Message, StatusQuestion},
            flight::FlightRecord,
            handshake::{Claim, Identity},
            status::{Activity, JOBS, JobStatus, ServedJob, Status, TableServerStatus},
        },
    },
    engine::{flight::host_name, status::job_status},
    node::Node,
};
use std::{
    net::TcpStream,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long one connection may ask.
const CONVERSATION: Duration = Duration::from_secs(10);

/// Somebody who has proved that it knows the token, and asks.
#[derive(Debug)]
pub(crate) struct Inquiry {
    stream: TcpStream,
    claim: Claim,
}

/// What a reducer has to say, which may be a table server, too.
pub(crate) struct ReducerAnswer<'a> {
    /// How many jobs it has served since it began, the present ones included.
    pub(crate) served: u64,
    /// The present ones: each has a number, a world and an engine.
    pub(crate) present: Vec<(u64, u32, Arc<Node>)>,
    /// Asks for its tables, if it keeps any.
    pub(crate) tables: Box<dyn FnOnce() -> Option<TableServerStatus> + 'a>,
}

/// How an engine stands, where so many go into one answer; `None` if it is busy all the time.
pub(crate) fn job_status_soon(node: &Node, of: usize) -> Option<JobStatus> {
    soon(node, Instant::now() + PATIENCE, |engine| job_status(engine, of))
}

impl Inquiry {
    /// It waits at this connection.
    pub(crate) fn new(stream: TcpStream, claim: Claim) -> Self {
        Self { stream, claim }
    }

    /// A worker of a job answers.
    pub(crate) fn answer_of_worker(self, job: &Job, node: &Node) -> Result<(), GreetError> {
        self.answer(job.identity(), |question| match question {
            OwnQuestion::Status => {
                let epoch = job.roster.epoch();
                let job_status = job_status_soon(node, 1).map(|job_status| JobStatus { epoch, ..job_status });
                let roster = Message::Roster { job: job.id, roster: (*job.roster).clone() };
                vec![roster, status(Activity::Works(job_status))]
            }
            OwnQuestion::Flight => flights([flight_record_soon(node, job.identity())]),
        })
    }

    /// Rank 0 answers that it waits for others.
    pub(crate) fn answer_of_forming(self, own: Identity, missing: Vec<Rank>) -> Result<(), GreetError> {
        self.answer(own, |question| match question {
            OwnQuestion::Status => vec![status(Activity::Forms { missing: missing.clone() })],
            OwnQuestion::Flight => flights([]),
        })
    }

    /// A reducer answers, or a table server, which looks again for each question.
    pub(crate) fn answer_of_reducer<'a>(
        self,
        own: Identity,
        look: impl Fn() -> ReducerAnswer<'a>,
    ) -> Result<(), GreetError> {
        self.answer(own, |question| {
            let ReducerAnswer { served, mut present, tables } = look();
            let unlisted = present.len().saturating_sub(JOBS) as u32;
            present.truncate(JOBS);
            let of = present.len();
            match question {
                OwnQuestion::Status => {
                    let jobs = present.into_iter().map(|(job, world, node)| ServedJob {
                        job,
                        world,
                        job_status: job_status_soon(&node, of),
                    });
                    vec![status(Activity::Serves {
                        served,
                        jobs: jobs.collect(),
                        unlisted,
                        tables: tables(),
                    })]
                }
                OwnQuestion::Flight => flights(
                    present
                        .into_iter()
                        .map(|(job, world, node)| flight_record_soon(&node, Identity { job, world, ..own })),
                ),
            }
        })
    }

    /// Answers what it is asked, until the other end has gone or its time is over.
    fn answer(
        self,
        own: Identity,
        mut answer: impl FnMut(OwnQuestion) -> Vec<Message>,
    ) -> Result<(), GreetError> {
        let Self { mut stream, claim } = self;
        stream.set_nodelay(true)?;
        let mut channel = greet::channel(greet::welcome(&mut stream, claim, own)?);
        let (deadline, mut has_asked) = (Instant::now() + CONVERSATION, false);
        loop {
            let question = match greet::receive(&mut stream, &mut channel, deadline) {
                Ok(Message::Ask(question)) => question,
                Ok(_) => return Err(GreetError::Protocol("it did not ask anything")),
                Err(error) if error.is_end() => return Ok(()),
                Err(GreetError::Late) if has_asked => return Ok(()),
                Err(error) => return Err(error),
            };
            has_asked = true;
            let answers = match question {
                // Read as late as can be.
                StatusQuestion::Clock => vec![Message::Clock(clock::reading())],
                StatusQuestion::Status => answer(OwnQuestion::Status),
                StatusQuestion::Flight => answer(OwnQuestion::Flight),
            };
            for message in &answers {
                greet::send(&mut stream, &mut channel, message)?;
            }
        }
    }
}

/// What only this kind of process can answer.
#[derive(Clone, Copy)]
enum OwnQuestion {
    Status,
    Flight,
}

fn status(activity: Activity) -> Message {
    Message::Status(Status { process: std::process::id(), host: host_name(), activity })
}

/// The messages of an answer with these records. One that an engine has had no time for is left out.
fn flights(records: impl IntoIterator<Item = Option<FlightRecord>>) -> Vec<Message> {
    let records: Vec<FlightRecord> = records.into_iter().flatten().collect();
    if records.is_empty() {
        return vec![Message::Flight { record: None, more: 0 }];
    }
    let most = records.len() as u32;
    let of = |(record, more)| Message::Flight { record: Some(Box::new(record)), more };
    records.into_iter().zip((0..most).rev()).map(of).collect()
}
