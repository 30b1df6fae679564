//! Asking the members of a job, all at once.

use crate::failure::Failure;
use herringbone::status::{
    Activity, Answer, AskError, JobStatus, LinkStatus, MemberId, Role, Roster, TableServerStatus, ask,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// How long a member has to answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after its first answer a member is asked again, to see how fast what moves.
const BETWEEN: Duration = Duration::from_millis(500);
/// How many members are asked at once.
const AT_ONCE: usize = 128;
/// How many workers may stand in for those that were named.
const SUBSTITUTES: usize = 8;

/// Whom to ask, and what was last heard.
pub(super) struct Asker {
    addresses: Vec<String>,
    /// Some workers of the job: whoever answers now may be stopped when it is looked again.
    substitutes: Vec<String>,
    token: Option<String>,
    before: BTreeMap<String, Answer>,
}

/// What came of asking everybody once.
pub(super) struct Round {
    pub(super) job: u64,
    /// The job's members; unknown of a job that forms, and of a reducer's.
    pub(super) roster: Option<Roster>,
    pub(super) members: Vec<AskedMember>,
}

/// A process, and what came of asking it.
pub(super) struct AskedMember {
    /// What it is called: its rank, or a reducer's address.
    pub(super) name: String,
    pub(super) role: Role,
    pub(super) id: Option<MemberId>,
    pub(super) address: String,
    pub(super) heard: Result<AnswerPair, AskError>,
}

/// An answer, and the one before it.
pub(super) struct AnswerPair {
    pub(super) answer: Answer,
    pub(super) before: Option<Answer>,
}

impl Asker {
    pub(super) fn new(addresses: Vec<String>, token: Option<String>) -> Self {
        Self { addresses, substitutes: Vec::new(), token, before: BTreeMap::new() }
    }

    /// Asks each member, and `twice` those that answer, a moment later. Else what they said in the last round came before.
    pub(super) fn ask_all(&mut self, twice: bool) -> Result<Round, Failure> {
        let (address, first) = self.first()?;
        let job = first.identity.job;
        if let (None, Some(tables)) = (&first.roster, tables_of(&first)) {
            let members = self.table_servers(tables);
            return Ok(Round { job, roster: None, members });
        }
        let Some(roster) = first.roster.clone() else {
            let member = self.of_one(address, first, twice);
            return Ok(Round { job, roster: None, members: vec![member] });
        };
        self.substitutes = substitutes(&roster);
        let members = self.each(roster.members(), |member| {
            let ask = || ask(&member.address, self.token.as_deref(), Some(job), PATIENCE);
            let before = self.before.get(&member.address).cloned();
            AskedMember {
                name: roster.name(member.id),
                role: member.role,
                id: Some(member.id),
                address: member.address.clone(),
                heard: heard(ask, before, twice),
            }
        });
        let answers =
            members.iter().filter_map(|member| member.heard.as_ref().ok().map(|heard| (member, heard)));
        self.before = answers.map(|(member, heard)| (member.address.clone(), heard.answer.clone())).collect();
        Ok(Round { job, roster: Some(roster), members })
    }

    /// All servers of tables that the first one names, or that are named to this command.
    fn table_servers(&self, tables: &TableServerStatus) -> Vec<AskedMember> {
        let addresses = if tables.servers.is_empty() { &self.addresses } else { &tables.servers };
        self.each(addresses, |address| AskedMember {
            name: address.clone(),
            role: Role::TableServer,
            id: None,
            address: address.clone(),
            heard: heard(|| ask(address, self.token.as_deref(), None, PATIENCE), None, false),
        })
    }

    /// The process that has answered is all there is to be asked.
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
        AskedMember { name, role, id: None, address, heard: Ok(AnswerPair { answer, before }) }
    }

    /// The first answer of those that are named, who are all asked at once: of one that knows the job's members, if any does.
    fn first(&self) -> Result<(String, Answer), Failure> {
        let (sender, receiver) = channel();
        for address in self.addresses.iter().chain(&self.substitutes) {
            let (address, token, sender) = (address.clone(), self.token.clone(), sender.clone());
            let asks = move || {
                let answer = ask(&address, token.as_deref(), None, PATIENCE);
                // Nobody listens any more once another has answered.
                let _unheard = sender.send((address, answer));
            };
            let thread = thread::Builder::new().name("hb-status".to_owned()).spawn(asks);
            thread.map_err(Failure::system("cannot start a thread"))?;
        }
        drop(sender);
        let (mut problems, mut others) = (Vec::new(), None);
        for (address, answer) in receiver {
            match answer {
                Ok(answer) if answer.roster.is_some() => return Ok((address, answer)),
                Ok(answer) => others = others.or(Some((address, answer))),
                Err(error) => problems.push((address, error)),
            }
        }
        others.ok_or_else(|| unanswered(&problems))
    }

    /// Does something with each member, many at once; what comes of it, in their order.
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

/// Why nobody has answered, and what to do.
fn unanswered(problems: &[(String, AskError)]) -> Failure {
    let texts: Vec<String> =
        problems.iter().map(|(address, problem)| format!("{address}: {problem}")).collect();
    let hint = match problems.first() {
        Some((_, AskError::Token(_))) => {
            "a torch job whose ranks have no token draws a key that nobody else knows: start it with HERRINGBONE_TOKEN"
        }
        Some((_, AskError::Silent(_))) => {
            "name another member's ADDR:PORT: what others wait for, each of them says"
        }
        _ => "pass a member's ADDR:PORT; rank 0 logs its own with HERRINGBONE_LOG=info",
    };
    Failure::Unanswered { problem: texts.join("\n"), hint }
}

impl AskedMember {
    /// How it stands in a job: in its own, or in one that it reduces for.
    pub(super) fn job_status(&self, job: u64) -> Option<&JobStatus> {
        in_job(&self.heard.as_ref().ok()?.answer, job)
    }

    /// How it stood in a job when it was asked before, in the same life.
    pub(super) fn stood(&self, job: u64) -> Option<&JobStatus> {
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

/// Bytes in a second that were sent and received on a link since it was asked before.
pub(super) fn rates(link: &LinkStatus, now: &JobStatus, before: Option<&JobStatus>) -> Option<[f64; 2]> {
    let before = before?;
    let seconds = now.moment.checked_sub(before.moment).filter(|passed| *passed > 0)? as f64 / 1e6;
    let (sent, received) = before.link(link.to).map_or((0, 0), |earlier| (earlier.sent, earlier.received));
    let moved = [link.sent.saturating_sub(sent), link.received.saturating_sub(received)];
    Some(moved.map(|bytes| bytes as f64 / seconds))
}
