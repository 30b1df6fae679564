//! How a reducer joins jobs whose settings do not name it: it calls rank 0, or asks another reducer for rank 0's
//! address.

use crate::{
    config::check_exposure,
    core::session::{
        Role,
        control::Message,
        handshake::{Expected, HandshakeError, Hello, Identity, Purpose, Versions},
    },
    fabric::{
        dial,
        greet::{self, GreetError},
    },
};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often each job is asked. Whoever uses this reducer already says nothing to it.
const AGAIN: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(50);
/// The most hubs that are asked for one address.
const HUBS: usize = 64;

/// The jobs that a reducer calls by itself.
#[derive(Debug)]
pub(super) struct Enlisting {
    /// Addresses of rank 0 or of reducers.
    at: Vec<String>,
    /// Where this reducer listens.
    address: SocketAddr,
    incarnation: u64,
    token: Vec<u8>,
    /// The outcome of the last connection to each address.
    said: Mutex<BTreeMap<String, String>>,
}

impl Enlisting {
    pub(super) fn new(at: Vec<String>, address: SocketAddr, incarnation: u64, token: &[u8]) -> Self {
        Self { at, address, incarnation, token: token.to_vec(), said: Mutex::default() }
    }

    /// Calls until it `is_over`.
    pub(super) fn run(&self, is_over: impl Fn() -> bool) {
        let mut last: Option<Instant> = None;
        while !self.at.is_empty() && !is_over() {
            if last.is_none_or(|last| last.elapsed() >= AGAIN) {
                self.at.iter().for_each(|address| self.enlist(address));
                last = Some(Instant::now());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn enlist(&self, address: &str) {
        match self.ask(address) {
            Ok((Role::Reducer, hubs)) => {
                let jobs = hubs.len();
                self.log_outcome(
                    address,
                    false,
                    format!("a reducer answers at {address}, which serves {jobs} jobs"),
                );
                for hub in hubs.into_iter().take(HUBS) {
                    let answer = self.ask(&hub).map(drop);
                    self.tell(&hub, answer);
                }
            }
            answer => self.tell(address, answer.map(drop)),
        }
    }

    fn tell(&self, hub: &str, answer: Result<(), GreetError>) {
        match answer {
            Ok(()) => self.log_outcome(hub, false, format!("takes part in the job of rank 0 at {hub}")),
            Err(error) => {
                let advice = match error.may_pass() {
                    true => "this reducer keeps calling",
                    false => "--join takes the address of a job's rank 0, or of another reducer",
                };
                self.log_outcome(hub, true, format!("takes no part in a job at {hub}: {error}; {advice}"));
            }
        }
    }

    /// Logs the outcome of a connection, if it differs from the last one.
    fn log_outcome(&self, address: &str, is_warning: bool, what: String) {
        let who = format!("reducer {}", self.address);
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() >= 4 * HUBS {
            said.clear();
        }
        if said.get(address) != Some(&what) {
            if is_warning {
                crate::log::warn(&who, &what)
            } else {
                crate::log::info(&who, &what)
            }
            said.insert(address.to_owned(), what);
        }
    }

    /// Asks a hub, or a reducer: what it is, and whom else to ask.
    fn ask(&self, address: &str) -> Result<(Role, Vec<String>), GreetError> {
        match self.ask_as(address, Role::Worker) {
            Err(GreetError::Handshake(HandshakeError::WrongPeer { found, .. }))
                if found.role == Role::Reducer =>
            {
                self.ask_as(address, Role::Reducer)
            }
            answer => answer,
        }
    }

    fn ask_as(&self, address: &str, role: Role) -> Result<(Role, Vec<String>), GreetError> {
        let may_call =
            |there| check_exposure(there, str::from_utf8(&self.token).ok().filter(|token| !token.is_empty()));
        let mut stream = dial::dial(address, None, may_call)?;
        let identity =
            Identity { role: Role::Reducer, job: 0, rank: 0, world: 1, incarnation: self.incarnation };
        let hello = Hello { identity, purpose: Purpose::Enlist, versions: Versions::CURRENT };
        let expected = Expected { role, rank: None, incarnation: None };
        let mut channel = greet::channel(greet::greet(&mut stream, hello, expected, &self.token)?);
        greet::send(&mut stream, &mut channel, &Message::Enlist { address: self.address.to_string() })?;
        // Rank 0 calls back before it answers.
        match greet::receive(&mut stream, &mut channel, Instant::now() + 2 * greet::DEADLINE)? {
            Message::Enlisted { hubs } => Ok((role, hubs)),
            Message::Refuse(refusal) => Err(HandshakeError::Refused(refusal).into()),
            _ => Err(GreetError::Protocol("it sent another message than the protocol expects")),
        }
    }
}
