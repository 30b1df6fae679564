//! How ranks continue when the hub is lost: the survivors call the lowest of them at its usual port.
//!
//! An [`Election`](crate::core::session::election::Election) decides; here are its connections and its clock. The old
//! world stays as it is until the next one has formed, so no rank takes another for dead that has only continued.

use super::{
    Job,
    acceptor::SILENCE,
    arrival::Arrival,
    command::Commands,
    dial,
    greet::{self, GreetError},
};
use crate::{
    config::check_exposure,
    core::{
        group::Rank,
        session::{
            Refusal, Role,
            control::{ControlChannel, Message},
            election::Election,
            handshake::{Claim, Expected, Purpose},
            survivors::{Shrink, ShrinkOutcome, Shrunk},
        },
    },
};
use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::{Duration, Instant},
};

const LOOK: Duration = Duration::from_millis(10);
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often this rank asks anew who is known to be gone.
const ASK: Duration = Duration::from_millis(50);
/// How long too many have to be silent until that is the answer: their deaths may become known.
const GRACE: Duration = Duration::from_millis(1500);

/// What comes of the search for the others. All that go on have completed so many operations of the group.
pub(crate) enum Elected {
    /// These go on, ascending. This rank is the first of them, and the others come to where it listens now.
    First { left: Vec<Rank>, completed: u64, listener: TcpListener, address: SocketAddr },
    /// These go on, ascending, and the first of them listens there.
    Follows { left: Vec<Rank>, completed: u64, hub: String },
    /// This rank does not go on.
    Not(ShrinkOutcome),
    /// It is too late. These may live and did not come; unknown where others decide.
    Late { missing: Vec<Rank> },
}

/// What a call was answered with.
enum Answered {
    Not,
    Lives,
    Decided(Shrunk, String),
}

/// One rank's search for the others.
struct Search<'a> {
    job: &'a Job,
    commands: &'a Commands,
    election: Election,
    here: BTreeMap<Rank, (TcpStream, ControlChannel)>,
    began: Instant,
    deadline: Instant,
    /// What comes of calls, and where threads that call put it.
    answers: mpsc::Receiver<(Rank, Answered)>,
    answer: mpsc::Sender<(Rank, Answered)>,
}

/// Finds out with the others who goes on with a group, until `deadline`.
///
/// # Errors
/// If there is no port to be had.
pub(crate) fn election(
    job: &Job,
    commands: &Commands,
    own: Shrink,
    gone: &BTreeMap<Rank, bool>,
    deadline: Instant,
) -> std::io::Result<Elected> {
    let group = own.group;
    let arrivals = commands.expect_arrivals();
    let election = Election::new(job.rank, own, gone);
    let (began, here, (answer, answers)) = (Instant::now(), BTreeMap::new(), mpsc::channel());
    let mut search = Search { job, commands, election, here, began, deadline, answers, answer };
    let found = search.run(&arrivals, group);
    commands.expect_no_arrivals();
    found
}

impl Search<'_> {
    fn run(&mut self, arrivals: &mpsc::Receiver<Arrival>, group: u32) -> std::io::Result<Elected> {
        let (mut beat, mut asked, mut unsure) = (Instant::now(), Instant::now(), None);
        loop {
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                let gone = self.commands.known_to_be_gone(self.election.request());
                gone.iter().for_each(|gone| self.election.learn(gone));
            }
            for Arrival { rank, stream, channel, request } in arrivals.try_iter() {
                // One that is not let in hears that its call ends, and looks again.
                if self.election.comes(rank, &request) {
                    self.here.insert(rank, (stream, channel));
                }
            }
            if let Ok((rank, answered)) = self.answers.recv_timeout(LOOK)
                && let Some(found) = self.answered(rank, answered)
            {
                return Ok(found);
            }
            let is_due = beat.elapsed() >= HEARTBEAT;
            if is_due {
                beat = Instant::now();
            }
            self.look_after_those_here(is_due);
            let now = self.now();
            self.election.to_call(now).into_iter().for_each(|rank| self.call(rank));
            match self.election.outcome() {
                Some(ShrinkOutcome::NoMajority { .. })
                    if unsure.get_or_insert_with(Instant::now).elapsed() < GRACE => {}
                Some(outcome) => return self.decided(group, outcome),
                None => unsure = None,
            }
            if Instant::now() >= self.deadline {
                // Only the one that decides knows who came.
                let missing = if self.election.decides() { self.election.missing() } else { Vec::new() };
                return Ok(Elected::Late { missing });
            }
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn answered(&mut self, rank: Rank, answered: Answered) -> Option<Elected> {
        let now = self.now();
        match answered {
            Answered::Not => self.election.failed(rank, now),
            Answered::Lives => self.election.lives(rank, now),
            Answered::Decided(Shrunk { outcome: ShrinkOutcome::Continue(left), completed, .. }, hub) => {
                return Some(Elected::Follows { left, completed, hub });
            }
            Answered::Decided(shrunk, _) => return Some(Elected::Not(shrunk.outcome)),
        }
        None
    }

    /// Those that wait here hear a sign of life, and are let go if they wait no longer.
    fn look_after_those_here(&mut self, beat: bool) {
        let election = &mut self.election;
        self.here.retain(|rank, (stream, channel)| {
            let has_ended = stream.set_nonblocking(true).is_ok()
                && match stream.peek(&mut [0]) {
                    Ok(bytes) => bytes == 0,
                    Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
                };
            let stays = stream.set_nonblocking(false).is_ok()
                && !has_ended
                && (!beat || greet::send(stream, channel, &Message::Heartbeat).is_ok());
            if !stays {
                election.withdraws(*rank);
            }
            stays
        });
    }

    fn call(&self, rank: Rank) {
        let request = (rank < self.job.rank).then(|| self.election.request());
        let (job, deadline, answers) = (self.job.clone(), self.deadline, self.answer.clone());
        let ask = move || {
            let answered = call(&job, rank, request, deadline);
            // Nobody hears it once the search is over.
            let _unheard = answers.send((rank, answered));
        };
        if std::thread::Builder::new().name("herringbone-election".to_owned()).spawn(ask).is_err() {
            let _unheard = self.answer.send((rank, Answered::Not));
        }
    }

    /// Tells those that are here, and listens for them if they go on.
    fn decided(&mut self, group: u32, outcome: ShrinkOutcome) -> std::io::Result<Elected> {
        let own = self.job.roster.member(self.job.me);
        let own = own.and_then(|member| member.address.parse::<SocketAddr>().ok());
        let own = own.ok_or_else(|| std::io::Error::other("this rank listens nowhere"))?;
        let listener = TcpListener::bind(SocketAddr::new(own.ip(), 0))?;
        let address = listener.local_addr()?;
        let completed = self.election.completed();
        let shrunk = Message::Shrunk(Shrunk { group, outcome: outcome.clone(), completed });
        let hub = Message::Hub { address: address.to_string() };
        for (stream, channel) in self.here.values_mut() {
            // Whoever does not hear it does not come, and the others wait for it in vain.
            let _unheard =
                greet::send(stream, channel, &shrunk).and_then(|()| greet::send(stream, channel, &hub));
        }
        Ok(match outcome {
            ShrinkOutcome::Continue(left) => Elected::First { left, completed, listener, address },
            outcome => Elected::Not(outcome),
        })
    }
}

/// Calls a rank: a lower one with a request, of which it hears what comes; a higher one only to see whether it lives.
fn call(job: &Job, rank: Rank, request: Option<Shrink>, deadline: Instant) -> Answered {
    let Some(member) = job.roster.worker(rank) else { return Answered::Not };
    let expected = Expected { role: Role::Worker, rank: Some(rank), incarnation: member.incarnation };
    let may_call = |there| check_exposure(there, str::from_utf8(&job.token).ok());
    let Ok(mut stream) = dial::dial(&member.address, job.from, may_call) else { return Answered::Not };
    let established = match greet::greet(&mut stream, job.hello(Purpose::Election), expected, &job.token) {
        Ok(established) => established,
        Err(GreetError::Closed) => return Answered::Lives,
        Err(_) => return Answered::Not,
    };
    let Some(request) = request else { return Answered::Lives };
    let mut channel = greet::channel(established);
    match receive_outcome(&mut stream, &mut channel, request, deadline) {
        Ok((shrunk, hub)) => Answered::Decided(shrunk, hub),
        Err(GreetError::Late) => Answered::Not,
        // It died, or the others are to come elsewhere: the next call tells.
        Err(_) => Answered::Lives,
    }
}

fn receive_outcome(
    stream: &mut TcpStream,
    channel: &mut ControlChannel,
    request: Shrink,
    deadline: Instant,
) -> Result<(Shrunk, String), GreetError> {
    greet::send(stream, channel, &Message::Shrink(request))?;
    let patience = || deadline.min(Instant::now() + SILENCE);
    let shrunk = loop {
        match greet::receive(stream, channel, patience())? {
            Message::Heartbeat => {}
            Message::Shrunk(shrunk) => break shrunk,
            _ => return Err(GreetError::Protocol("it did not name the survivors")),
        }
    };
    match greet::receive(stream, channel, patience())? {
        Message::Hub { address } => Ok((shrunk, address)),
        _ => Err(GreetError::Protocol("it did not send its address")),
    }
}

/// Lets a rank in that calls to go on. If this one does not look for others yet, the call ends, and the other tries again.
pub(super) fn admit(
    job: &Job,
    commands: &Commands,
    mut stream: TcpStream,
    claim: Claim,
) -> Result<(), GreetError> {
    let who = claim.hello().identity;
    let is_of_it = job.roster.worker(who.rank).and_then(|worker| worker.incarnation) == Some(who.incarnation);
    if who.role != Role::Worker || !is_of_it {
        greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
        return Ok(());
    }
    let Some(arrivals) = commands.arrivals() else { return Ok(()) };
    let mut channel = greet::channel(greet::welcome(&mut stream, claim, job.identity())?);
    match greet::receive(&mut stream, &mut channel, Instant::now() + greet::DEADLINE) {
        Ok(Message::Shrink(request)) => {
            // Nobody takes it in once the search is over: then its call ends.
            let _unheard = arrivals.send(Arrival { rank: who.rank, stream, channel, request });
            Ok(())
        }
        // It only wanted to see whether this rank lives.
        Err(GreetError::Closed) => Ok(()),
        Ok(_) => Err(GreetError::Protocol("it did not ask for the election of a hub")),
        Err(error) => Err(error),
    }
}
