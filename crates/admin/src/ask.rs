//! Asks the members of a job, all at once.

use herringbone::status::{
    Activity, Answer, AskError, JobStatus, LinkStatus, MemberId, Role, Roster, TableServerStatus, ask,
};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

/// How long a member has to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after its first answer a member is asked again, to measure rates.
const BETWEEN: Duration = Duration::from_millis(500);
/// How many members are asked at once.
const AT_ONCE: usize = 128;
/// How many members a failure names.
const NAMED: usize = 16;
/// How many workers can stand in for the named ones.
const SUBSTITUTES: usize = 8;

/// Whom to ask, and the last answers.
#[derive(Debug)]
pub struct Asker {
    addresses: Vec<String>,
    /// Some workers of the job, or all table servers: the process that answers now might be stopped later.
    substitutes: Vec<String>,
    token: Option<String>,
    before: BTreeMap<String, Answer>,
    /// When a process last answered; at first, when this was made.
    last_heard: Instant,
}

/// The result of asking everybody once.
#[derive(Debug)]
pub struct Round {
    /// The number of the job.
    pub job: u64,
    /// The job's members; unknown while a job forms, and for a reducer's job.
    pub roster: Option<Roster>,
    /// The processes that were asked.
    pub members: Vec<AskedMember>,
    /// For how long no process has answered; `None` if one has.
    pub silent_for: Option<Duration>,
}

/// A process, and the result of asking it.
#[derive(Debug)]
pub struct AskedMember {
    /// Its name: the rank, or a reducer's address.
    pub name: String,
    /// Unknown until a process has answered at this address.
    pub role: Option<Role>,
    /// Its identity in the job, if the job's members are known.
    pub id: Option<MemberId>,
    /// Where it listens.
    pub address: String,
    /// Its answer, or why there is none.
    pub heard: Result<AnswerPair, AskError>,
}

/// Why no process answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The reason for each process.
    pub problem: String,
    /// What to do.
    pub hint: &'static str,
}

/// The first answer, and where it came from.
struct FirstAnswer {
    address: String,
    answer: Answer,
}

/// An answer, and the one before it.
#[derive(Debug)]
pub struct AnswerPair {
    /// The new one.
    pub answer: Answer,
    /// The one before it.
    pub before: Option<Answer>,
}

impl Asker {
    /// Asks for the job, or the table servers, at these addresses, `host:port`.
    pub fn new(addresses: Vec<String>, token: Option<String>) -> Self {
        Self {
            addresses,
            substitutes: Vec::new(),
            token,
            before: BTreeMap::new(),
            last_heard: Instant::now(),
        }
    }

    /// Sets the token of the next rounds. Returns whether it differs from the previous one.
    pub fn set_token(&mut self, token: Option<String>) -> bool {
        let is_new = self.token != token;
        self.token = token;
        is_new
    }

    /// Asks each member once. With `twice`, members that answer are asked again after a moment; without, the answer of the last round
    /// is the one before.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn ask_all(&mut self, twice: bool) -> io::Result<Round> {
        let mut round = match self.first()? {
            Ok(FirstAnswer { address, answer }) => self.ask_members(address, answer, twice),
            Err(members) => Round { job: 0, roster: None, members, silent_for: None },
        };
        match round.members.iter().any(|member| member.heard.is_ok()) {
            true => self.last_heard = Instant::now(),
            false => round.silent_for = Some(self.last_heard.elapsed()),
        }
        Ok(round)
    }

    fn ask_members(&mut self, address: String, first: Answer, twice: bool) -> Round {
        let (job, silent_for) = (first.identity.job, None);
        if let (None, Some(tables)) = (&first.roster, tables_of(&first)) {
            let members = self.table_servers(tables);
            self.substitutes.clone_from(&tables.servers);
            return Round { job, roster: None, members, silent_for };
        }
        let Some(roster) = first.roster.clone() else {
            let member = self.of_one(address, first, twice);
            return Round { job, roster: None, members: vec![member], silent_for };
        };
        self.substitutes = substitutes(&roster);
        let members = self.each(roster.members(), |member| {
            let ask = || ask(&member.address, self.token.as_deref(), Some(job), PATIENCE);
            let before = self.before.get(&member.address).cloned();
            AskedMember {
                name: roster.name(member.id),
                role: Some(member.role),
                id: Some(member.id),
                address: member.address.clone(),
                heard: heard(ask, before, twice),
            }
        });
        let answers =
            members.iter().filter_map(|member| member.heard.as_ref().ok().map(|heard| (member, heard)));
        self.before = answers.map(|(member, heard)| (member.address.clone(), heard.answer.clone())).collect();
        Round { job, roster: Some(roster), members, silent_for }
    }

    /// All table servers that the first one lists, or that this command was given.
    fn table_servers(&self, tables: &TableServerStatus) -> Vec<AskedMember> {
        let addresses = if tables.servers.is_empty() { &self.addresses } else { &tables.servers };
        self.each(addresses, |address| AskedMember {
            name: address.clone(),
            role: Some(Role::TableServer),
            id: None,
            address: address.clone(),
            heard: heard(|| ask(address, self.token.as_deref(), None, PATIENCE), None, false),
        })
    }

    /// Nobody but the process that has answered can be asked.
    fn of_one(&mut self, address: String, first: Answer, twice: bool) -> AskedMember {
        let role = first.identity.role;
        let name = if role == Role::Reducer { address.clone() } else { "rank 0".to_owned() };
        let before = if twice { Some(first.clone()) } else { self.before.remove(&address) };
        let answer = if twice && role == Role::Reducer {
            thread::sleep(BETWEEN);
            ask(&address, self.token.as_deref(), None, PATIENCE).unwrap_or(first)
        } else {
            first
        };
        self.before.insert(address.clone(), answer.clone());
        AskedMember { name, role: Some(role), id: None, address, heard: Ok(AnswerPair { answer, before }) }
    }

    /// Asks all given processes at once. Returns the first answer from one that knows the job's members, if any does, or else the
    /// reason why each does not answer.
    fn first(&self) -> io::Result<Result<FirstAnswer, Vec<AskedMember>>> {
        let (sender, receiver) = channel();
        let more = self.substitutes.iter().filter(|address| !self.addresses.contains(address));
        for address in self.addresses.iter().chain(more) {
            let (address, token, sender) = (address.clone(), self.token.clone(), sender.clone());
            let asks = move || {
                let answer = ask(&address, token.as_deref(), None, PATIENCE);
                // Once another process has answered, the receiver is gone.
                let _unheard = sender.send((address, answer));
            };
            thread::Builder::new().name("hb-status".to_owned()).spawn(asks)?;
        }
        drop(sender);
        let (mut silent, mut other) = (Vec::new(), None);
        for (address, answer) in receiver {
            match answer {
                Ok(answer) if answer.roster.is_some() => return Ok(Ok(FirstAnswer { address, answer })),
                Ok(answer) => other = other.or(Some(FirstAnswer { address, answer })),
                // Another process might listen at the address of a substitute.
                Err(error) if self.addresses.contains(&address) => {
                    silent.push(AskedMember {
                        name: address.clone(),
                        role: None,
                        id: None,
                        address,
                        heard: Err(error),
                    });
                }
                Err(_) => {}
            }
        }
        let at = |member: &AskedMember| self.addresses.iter().position(|address| *address == member.address);
        silent.sort_by_key(at);
        Ok(other.ok_or(silent))
    }

    /// Calls a function for each member, many at once. Returns the results in the members' order.
    fn each<M: Sync, T: Send>(&self, members: &[M], does: impl Fn(&M) -> T + Sync) -> Vec<T> {
        let next = AtomicUsize::new(0);
        let take = || {
            let mut done = Vec::new();
            while let at = next.fetch_add(1, Ordering::SeqCst)
                && let Some(member) = members.get(at)
            {
                done.push((at, does(member)));
            }
            done
        };
        let mut all: Vec<(usize, T)> = thread::scope(|scope| {
            let threads: Vec<_> = (0..members.len().min(AT_ONCE)).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        all.sort_by_key(|(at, _)| *at);
        all.into_iter().map(|(_, member)| member).collect()
    }
}

fn tables_of(answer: &Answer) -> Option<&TableServerStatus> {
    match &answer.status.activity {
        Activity::Serves { tables, .. } => tables.as_ref(),
        _ => None,
    }
}

/// Some workers, from all over the job.
fn substitutes(roster: &Roster) -> Vec<String> {
    let apart = (roster.world() as usize).div_ceil(SUBSTITUTES).max(1);
    roster.workers().step_by(apart).map(|worker| worker.address.clone()).collect()
}

fn heard(
    ask: impl Fn() -> Result<Answer, AskError>,
    before: Option<Answer>,
    twice: bool,
) -> Result<AnswerPair, AskError> {
    let answer = ask()?;
    if !twice {
        return Ok(AnswerPair { answer, before });
    }
    thread::sleep(BETWEEN);
    match ask() {
        Ok(later) => Ok(AnswerPair { answer: later, before: Some(answer) }),
        Err(_) => Ok(AnswerPair { answer, before: None }),
    }
}

impl Round {
    /// Whether no process answers and one at a given address refuses this command, so that asking again is useless.
    pub fn is_refused(&self) -> bool {
        let refuses = |error: &AskError| {
            matches!(error, AskError::Token(_) | AskError::Release(_) | AskError::Stranger(_))
        };
        self.silent_for.is_some() && self.roster.is_none() && self.problems().any(|(_, error)| refuses(error))
    }

    fn problems(&self) -> impl Iterator<Item = (&str, &AskError)> {
        self.members.iter().filter_map(|member| Some((&*member.address, member.heard.as_ref().err()?)))
    }

    /// If no process answers: why, and what to do.
    pub fn unanswered(&self) -> Option<Unanswered> {
        self.silent_for?;
        let mut texts: Vec<String> =
            self.problems().take(NAMED).map(|(address, problem)| format!("{address}: {problem}")).collect();
        if self.members.len() > NAMED {
            texts.push(format!("and {} more", self.members.len() - NAMED));
        }
        let hint = match self.problems().next() {
            Some((_, AskError::Token(_))) => {
                "set HERRINGBONE_TOKEN to the token of the job or of the table servers, or run this on one of their hosts as their user. A torch \
                 job that starts without a token draws a secret one, so no other process can ask it: start it with HERRINGBONE_TOKEN"
            }
            Some((_, AskError::Silent(_))) => {
                "pass the ADDR:PORT of another member: each reports whom the others wait for. With copies of tables, pass another table \
                 server"
            }
            _ => {
                "pass a member's ADDR:PORT; rank 0 logs its own with HERRINGBONE_LOG=info. For tables pass the address that \
                 `herringbone serve --tables` printed, or set HERRINGBONE_TABLES as for the workers"
            }
        };
        Some(Unanswered { problem: texts.join("\n"), hint })
    }
}

impl AskedMember {
    /// Its state in a job: its own, or one that it reduces for.
    pub fn job_status(&self, job: u64) -> Option<&JobStatus> {
        in_job(&self.heard.as_ref().ok()?.answer, job)
    }

    /// Its previous state in a job, if the process is the same.
    pub fn stood(&self, job: u64) -> Option<&JobStatus> {
        let AnswerPair { answer, before } = self.heard.as_ref().ok()?;
        let before = before.as_ref()?;
        let is_same = before.identity.incarnation == answer.identity.incarnation;
        in_job(before, job).filter(|_| is_same)
    }
}

fn in_job(answer: &Answer, job: u64) -> Option<&JobStatus> {
    match &answer.status.activity {
        Activity::Works(job_status) => job_status.as_ref(),
        Activity::Serves { jobs, .. } => jobs.iter().find(|served| served.job == job)?.job_status.as_ref(),
        Activity::Forms { .. } => None,
    }
}

/// Bytes per second sent and received on a link since the previous answer.
pub fn rates(link: &LinkStatus, now: &JobStatus, before: Option<&JobStatus>) -> Option<[f64; 2]> {
    let before = before?;
    let seconds = now.moment.checked_sub(before.moment).filter(|passed| *passed > 0)? as f64 / 1e6;
    let (sent, received) = before.link(link.to).map_or((0, 0), |earlier| (earlier.sent, earlier.received));
    let moved = [link.sent.saturating_sub(sent), link.received.saturating_sub(received)];
    Some(moved.map(|bytes| bytes as f64 / seconds))
}
