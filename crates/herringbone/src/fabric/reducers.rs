//! Connecting to reducers to see whether they run, and accepting reducers that connect by themselves.

use super::{
    Job,
    command::{Command, Commands},
    dial,
    greet::{self, GreetError},
};
use crate::{
    config::check_exposure,
    core::session::{
        Refusal, Role,
        control::{ControlChannel, Message},
        handshake::{Claim, Expected, HandshakeError, Hello, Identity, Purpose, Versions},
    },
};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr, TcpStream},
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

/// How long a world that forms waits for the answers of reducers once all its ranks are there.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// After how long a reducer that is waited for is worth a line.
const WORTH_A_WARNING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// Calls a reducer. Returns its life if it is there.
pub(crate) fn call(address: &str, from: Option<IpAddr>, token: &[u8]) -> Result<u64, GreetError> {
    let mut stream = dial::dial(address, from, |there| check_exposure(there, str::from_utf8(token).ok()))?;
    let identity = Identity { role: Role::Worker, job: 0, rank: 0, world: 1, incarnation: 0 };
    let hello = Hello { identity, purpose: Purpose::Greeting, versions: Versions::CURRENT };
    let expected = Expected { role: Role::Reducer, rank: None, incarnation: None };
    greet::greet(&mut stream, hello, expected, token).map(|established| established.other.incarnation)
}

/// What to do about a reducer that could not be greeted.
fn remedy(error: &GreetError) -> &'static str {
    match error {
        GreetError::Handshake(HandshakeError::Refused(Refusal::Token) | HandshakeError::Unproven)
        | GreetError::Unprotected(_) => "",
        GreetError::Handshake(HandshakeError::Refused(Refusal::NoRoom { .. })) => {
            "raise its limits, or use another"
        }
        GreetError::Handshake(_) | GreetError::Protocol(_) => "correct HERRINGBONE_REDUCERS",
        GreetError::Io(_) | GreetError::Late | GreetError::Closed => {
            "start herringbone serve there, or correct HERRINGBONE_REDUCERS"
        }
        GreetError::Unshared(_) | GreetError::UnsharedThere => "",
    }
}

/// Why a reducer cannot be used, and what to do, for people.
fn problem(error: &GreetError) -> String {
    match remedy(error) {
        "" => error.to_string(),
        remedy => format!("{error}; {remedy}"),
    }
}

/// What an address has answered: the life of the reducer there, or why there is none.
type Answer = Result<u64, GreetError>;

/// Calls the reducers that the settings name while a world forms.
pub(crate) struct Greetings {
    answers: mpsc::Receiver<(String, Answer)>,
    /// The last answer of each address, if it has answered at all.
    known: BTreeMap<String, Option<Answer>>,
    patient: bool,
    began: Instant,
}

impl Greetings {
    /// Begins to call them. One that is not there is called again: until the deadline if they are all needed (`patient`).
    pub(crate) fn begin(
        addresses: &[String],
        from: Option<IpAddr>,
        token: &[u8],
        patient: bool,
        deadline: Instant,
    ) -> Self {
        let (sender, answers) = mpsc::channel();
        let mut known: BTreeMap<String, Option<Answer>> =
            addresses.iter().map(|address| (address.clone(), None)).collect();
        for (address, answer) in &mut known {
            let (address, token, sender) = (address.clone(), token.to_vec(), sender.clone());
            let until_it_answers = move || loop {
                let answer = call(&address, from, &token);
                let ends = is_final(&answer) || Instant::now() >= deadline;
                // Nobody listens any more once the world has formed.
                if sender.send((address.clone(), answer)).is_err() || ends {
                    return;
                }
                std::thread::sleep(PAUSE);
            };
            let thread = std::thread::Builder::new().name("herringbone-greet".to_owned());
            *answer = thread.spawn(until_it_answers).err().map(|error| Err(GreetError::Io(error)));
        }
        Self { answers, known, patient, began: Instant::now() }
    }

    /// Who is not there, and why, now that all ranks are. An address that has not answered by then is not there either.
    pub(crate) fn end(mut self, deadline: Instant) -> Vec<(String, String)> {
        let last = if self.patient { deadline } else { deadline.min(Instant::now() + LAST_WAIT) };
        let waits = Instant::now();
        let mut warned = !self.patient;
        while !self.known.values().all(|answer| answer.as_ref().is_some_and(is_final)) {
            let left = last.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left.min(LAST_WAIT)) {
                Ok((address, answer)) => drop(self.known.insert(address, Some(answer))),
                Err(mpsc::RecvTimeoutError::Timeout) if !left.is_zero() => {}
                // Time is up, or nobody calls any more.
                Err(_) => break,
            }
            if waits.elapsed() >= WORTH_A_WARNING && !std::mem::replace(&mut warned, true) {
                for (address, reason) in self.away() {
                    let what =
                        format_args!("waiting for the reducer at {address}, which is forced: {reason}");
                    crate::log::warn("rank 0", what);
                }
            }
        }
        let late = self.answers.try_iter().map(|(address, answer)| (address, Some(answer)));
        self.known.extend(late);
        self.away()
    }

    /// Who cannot be used, and why. A process that is named twice is used once.
    fn away(&self) -> Vec<(String, String)> {
        let mut lives = BTreeMap::<u64, &String>::new();
        let mut away = Vec::new();
        for (address, answer) in &self.known {
            match answer {
                None => away.push((address.clone(), self.silence())),
                Some(Err(error)) => away.push((address.clone(), problem(error))),
                Some(Ok(life)) => match lives.get(life) {
                    Some(first) => {
                        away.push((address.clone(), format!("it is the reducer at {first}: name it once")))
                    }
                    None => drop(lives.insert(*life, address)),
                },
            }
        }
        away
    }

    /// Why an address that has not answered yet cannot be used.
    fn silence(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64();
        format!(
            "it has not answered for {seconds:.1} s: either nothing reaches it, or another program listens there; start \
             herringbone serve there, or correct HERRINGBONE_REDUCERS"
        )
    }
}

/// Whether calling again would not change an answer.
fn is_final(answer: &Answer) -> bool {
    answer.as_ref().map_or_else(|error| !error.may_pass(), |_| true)
}

/// Connects to a reducer on a separate thread, and reports the outcome.
pub(super) fn look_for(job: &Job, commands: &Arc<Commands>, address: String) {
    let (from, token) = (job.from, job.token.clone());
    let (answer, named) = (commands.clone(), address.clone());
    let look = move || {
        let life = call(&address, from, &token).ok();
        answer.send(Command::Greeted { address, life });
    };
    if std::thread::Builder::new().name("herringbone-greet".to_owned()).spawn(look).is_err() {
        commands.send(Command::Greeted { address: named, life: None });
    }
}

/// A reducer calls rank 0 by itself: it is called back, and then used.
pub(super) fn enlist(
    job: &Job,
    commands: &Commands,
    mut stream: TcpStream,
    claim: Claim,
) -> Result<(), GreetError> {
    let who = claim.hello().identity;
    if job.rank != 0 || who.role != Role::Reducer {
        greet::refuse(&mut stream, claim, &Refusal::Unexpected { role: who.role, rank: who.rank });
        return Ok(());
    }
    let mut channel = greet::channel(greet::welcome(&mut stream, claim, job.identity())?);
    let address = receive_address(&mut stream, &mut channel)?;
    let answer = match call(&address, job.from, &job.token) {
        Ok(life) => {
            commands.send(Command::Greeted { address, life: Some(life) });
            Message::Enlisted { hubs: Vec::new() }
        }
        Err(error) => {
            let reason = format!("rank 0 called back: {}", problem(&error));
            Message::Refuse(Refusal::NoReducer { address, reason })
        }
    };
    greet::send(&mut stream, &mut channel, &answer)
}

/// The address at which a reducer that calls listens.
pub(crate) fn receive_address(
    stream: &mut TcpStream,
    channel: &mut ControlChannel,
) -> Result<String, GreetError> {
    let Message::Enlist { address } = greet::receive(stream, channel, Instant::now() + greet::DEADLINE)?
    else {
        return Err(GreetError::Protocol("it did not send its address"));
    };
    Ok(match address.parse::<SocketAddr>() {
        Ok(listens) if listens.ip().is_unspecified() => {
            SocketAddr::new(stream.peer_addr()?.ip(), listens.port()).to_string()
        }
        _ => address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        collections::BTreeSet,
        io::{Read, Write},
        net::TcpListener,
    };

    /// What is wrong with each of these addresses, for a world that waits for them no longer than this.
    fn away(addresses: &[String], patient: bool, wait: Duration) -> BTreeMap<String, String> {
        let deadline = Instant::now() + wait;
        Greetings::begin(addresses, None, b"", patient, deadline).end(deadline).into_iter().collect()
    }

    #[test]
    fn an_address_that_says_nothing_is_no_reducer() {
        let silent = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let addresses = silent.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
        for patient in [false, true] {
            let away = away(&addresses, patient, Duration::from_millis(100));
            assert_eq!(away.keys().collect::<BTreeSet<_>>(), addresses.iter().collect::<BTreeSet<_>>());
            for reason in away.values() {
                let is_reported = reason.starts_with("it has not answered for ");
                assert!(is_reported && reason.ends_with("correct HERRINGBONE_REDUCERS"), "{reason}");
            }
        }
    }

    #[test]
    fn an_address_that_speaks_another_protocol_is_no_reducer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert_ne!(stream.read(&mut [0; 256]).unwrap(), 0);
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
        });
        let away = away(&[address.clone(), address.clone()], false, Duration::from_secs(30));
        server.join().unwrap();
        assert!(away.len() == 1 && away[&address].ends_with("correct HERRINGBONE_REDUCERS"), "{away:?}");
    }
}
