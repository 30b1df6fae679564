//! The page for people: members, their calls, who waits for whom, and traffic.

use super::tables;
use super::words::{counted, quantity, shown};
use crate::table;
use herringbone::core::session::Ranks;
use herringbone::status::{Activity, InFlight, JobStatus, LinkStatus, MemberId, Role, ServedJob, Way};
use herringbone_admin::ask::{AskedMember, Round, rates};
use herringbone_admin::waits::{self, Wait, name, names};
use std::cmp::Reverse;
use std::fmt::Write;

/// How many lines say who waits for whom, and how many rows show links.
const LINES: usize = 16;

/// All of it.
pub(super) fn page(round: &Round) -> String {
    let mut page = head(round);
    page.push_str("\n\n");
    page.push_str(&members(round));
    let waits = waits::of(round);
    if !waits.is_empty() {
        page.push('\n');
    }
    for wait in waits.iter().take(LINES) {
        page.push_str(&sentence(round, wait));
        page.push('\n');
    }
    if waits.len() > LINES {
        page.push_str(&format!("and {} more members keep others waiting\n", waits.len() - LINES));
    }
    for part in
        [followed_ports(round), links(round), served(round)].into_iter().flatten().chain(tables::parts(round))
    {
        page.push('\n');
        page.push_str(&part);
    }
    page
}

/// What plans take the ports of hosts for, if they have followed them: all members say the same, so one is shown.
fn followed_ports(round: &Round) -> Option<String> {
    let mut statuses = round.members.iter().filter_map(|member| member.job_status(round.job));
    statuses.find_map(|status| Some(format!("{}\n", status.ports.as_ref()?)))
}

fn head(round: &Round) -> String {
    if let Some(silent) = round.silent_for {
        return format!("no answer for {:.1} s; asking again until Ctrl-C", silent.as_secs_f64());
    }
    let Some(roster) = &round.roster else {
        if let Some(head) = tables::head(round) {
            return head;
        }
        let activity = round.members.iter().filter_map(|member| member.heard.as_ref().ok()).next();
        return match activity.map(|heard| (&heard.answer.status.activity, heard.answer.identity.world)) {
            Some((Activity::Forms { missing }, world)) => {
                format!("a job of {} is forming: {} missing", counted(world as usize, "rank"), are(missing))
            }
            Some((Activity::Serves { jobs, served, .. }, _)) => {
                format!("a reducer: {} now, {served} since its start", counted(jobs.len(), "job"))
            }
            _ => "a process of a job".to_owned(),
        };
    };
    let answer = round.members.iter().filter(|member| member.heard.is_ok()).count();
    format!(
        "job {:016x}: {}, {}, epoch {}; {answer} of {} {}",
        round.job,
        counted(roster.world() as usize, "worker"),
        counted(roster.reducers().count(), "reducer"),
        roster.epoch(),
        counted(roster.members().len(), "member"),
        if roster.members().len() == 1 { "answers" } else { "answer" },
    )
}

fn are(missing: &[u32]) -> String {
    format!("{} {}", Ranks(missing), if missing.len() == 1 { "is" } else { "are" })
}

fn members(round: &Round) -> String {
    let columns = ["member", "process", "does", "for", "waits for"];
    shown(&table::text(&columns, &["for"], round.members.iter().map(|member| row(round, member))))
}

fn row(round: &Round, member: &AskedMember) -> [String; 5] {
    let called = match member.role {
        Some(role @ (Role::Reducer | Role::TableServer)) => format!("{role} {}", member.name),
        Some(Role::Worker) | None => member.name.clone(),
    };
    let heard = match &member.heard {
        Ok(heard) => heard,
        Err(error) => return [called, String::new(), error.to_string(), String::new(), String::new()],
    };
    let status = &heard.answer.status;
    let process = format!("{}:{}", status.host, status.process);
    let Some(job_status) = member.job_status(round.job) else {
        let does = match &status.activity {
            Activity::Forms { .. } => "waits for the other ranks".to_owned(),
            Activity::Serves { jobs, tables, .. } if round.roster.is_none() => {
                let tables = tables.as_ref().map_or("", |_| "keeps tables, ");
                format!("{tables}serves {}", counted(jobs.len(), "job"))
            }
            Activity::Serves { jobs, .. } if !jobs.iter().any(|served| served.job == round.job) => {
                "not called by a worker of this job".to_owned()
            }
            Activity::Serves { .. } | Activity::Works(_) => "no answer: its engine is busy".to_owned(),
        };
        return [called, process, does, String::new(), String::new()];
    };
    let Some(oldest) = job_status.operations.first() else {
        return [called, process, idle(job_status), String::new(), String::new()];
    };
    let more = job_status.operations.len() - 1 + job_status.unlisted[1] as usize;
    let group = match oldest.group {
        0 => String::new(),
        number => format!(" in {}", waits::group(round, number)),
    };
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    let does = format!("{}{group}{more}", oldest.name);
    [called, process, does, age(oldest.age), waits_for(round, oldest)]
}

fn waits_for(round: &Round, operation: &InFlight) -> String {
    match (operation.waits.is_empty(), operation.runs) {
        (false, _) => names(round, &operation.waits),
        (true, true) => String::new(),
        (true, false) => "memory, or an older operation".to_owned(),
    }
}

/// What is said of a process without an operation.
fn idle(job_status: &JobStatus) -> String {
    if let Some(lost) = job_status.groups.iter().find_map(|group| group.lost.as_ref()) {
        return format!("cannot continue: {lost}");
    }
    // After a change of members another group continues the first one, under its name.
    let name = job_status.group(0).map(|group| group.name.as_str());
    let world = job_status.groups.iter().rfind(|group| Some(group.name.as_str()) == name);
    match world.and_then(|group| group.over) {
        Some(over) => format!("nothing since operation {over}"),
        None if job_status.issued > 0 => {
            format!("nothing; {} before", counted(job_status.issued as usize, "operation"))
        }
        None => "nothing yet".to_owned(),
    }
}

fn age(milliseconds: u64) -> String {
    format!("{:.1} s", milliseconds as f64 / 1e3)
}

fn sentence(round: &Round, wait: &Wait<'_>) -> String {
    let InFlight { group, sequence, name: operation, age: since, .. } = wait.operation;
    let mut said = format!("{} keeps {} waiting in ", name(round, wait.on), names(round, &wait.by));
    match sequence {
        Some(sequence) => {
            let call = operation.split(' ').next().unwrap_or_default();
            let _whole = write!(said, "{call} #{sequence}");
        }
        None => said.push_str(operation),
    }
    if *group != 0 {
        let _whole = write!(said, " of {}", waits::group(round, *group));
    }
    if wait.more > 0 {
        let _whole = write!(said, " and {} more", wait.more);
    }
    let _whole = write!(said, ", for {}", age(*since));
    wait.why.map_or(said.clone(), |why| format!("{said}: {why}"))
}

/// A link in one direction.
struct Direction {
    from: String,
    to: String,
    by: String,
    rate: Option<f64>,
    bytes: u64,
}

fn links(round: &Round) -> Option<String> {
    let mut ways = Vec::new();
    for member in &round.members {
        let (Some(id), Some(job_status)) = (member.id, member.job_status(round.job)) else { continue };
        for link in &job_status.links {
            let rates = rates(link, job_status, member.stood(round.job));
            ways.push(way(id, link.to, link, rates.map(|rates| rates[0]), link.sent, round));
            // What comes from one that does not answer its receiver says.
            if job_status_of(round, link.to).is_none_or(|other| other.link(id).is_none()) {
                ways.push(way(link.to, id, link, rates.map(|rates| rates[1]), link.received, round));
            }
        }
    }
    if ways.is_empty() {
        return None;
    }
    ways.sort_by_key(|way| (Reverse(way.rate.map(|rate| rate as u64)), Reverse(way.bytes)));
    let columns = ["from", "to", "by", "rate", "bytes"];
    let rows = ways.iter().take(LINES).map(|Direction { from, to, by, rate, bytes }| {
        let rate = rate.map_or_else(String::new, |rate| format!("{}/s", quantity(rate)));
        [from.clone(), to.clone(), by.clone(), rate, quantity(*bytes as f64)]
    });
    let more = ways.len().saturating_sub(LINES);
    let rest = if more == 0 { String::new() } else { format!("{more} more, see --json\n") };
    Some(shown(&table::text(&columns, &["rate", "bytes"], rows)) + &rest)
}

fn job_status_of(round: &Round, id: MemberId) -> Option<&JobStatus> {
    round.members.iter().find(|member| member.id == Some(id))?.job_status(round.job)
}

fn way(
    from: MemberId,
    to: MemberId,
    link: &LinkStatus,
    rate: Option<f64>,
    bytes: u64,
    round: &Round,
) -> Direction {
    let by = match &link.way {
        Way::Wanted => "being made".to_owned(),
        Way::Shm => "shared memory".to_owned(),
        Way::Tcp => "TCP".to_owned(),
        Way::Lost { reason } => format!("lost: {reason}"),
    };
    Direction { from: name(round, from), to: name(round, to), by, rate, bytes }
}

/// The jobs of the reducers.
fn served(round: &Round) -> Option<String> {
    let columns = ["reducer", "job", "workers here", "operations", "received", "sent"];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for member in &round.members {
        let Ok(heard) = &member.heard else { continue };
        let Activity::Serves { jobs, unlisted, .. } = &heard.answer.status.activity else { continue };
        rows.extend(jobs.iter().map(|job| served_row(round, member, job).to_vec()));
        if *unlisted > 0 {
            rows.push(vec![member.name.clone(), format!("{unlisted} more")]);
        }
    }
    (!rows.is_empty()).then(|| shown(&table::text(&columns, &columns[2..], rows)))
}

fn served_row(round: &Round, member: &AskedMember, job: &ServedJob) -> [String; 6] {
    let number = match job.job == round.job {
        true => "this one".to_owned(),
        false => format!("{:016x}", job.job),
    };
    let Some(job_status) = &job.job_status else {
        let dash = || "?".to_owned();
        return [member.name.clone(), number, dash(), dash(), dash(), dash()];
    };
    let is_there = |link: &&LinkStatus| matches!(link.way, Way::Shm | Way::Tcp);
    let there = job_status.links.iter().filter(is_there).count();
    let sum = |of: fn(&LinkStatus) -> u64| quantity(job_status.links.iter().map(of).sum::<u64>() as f64);
    let under_way = job_status.operations.len() + job_status.unlisted[1] as usize;
    let operations = format!("{} ({under_way} now)", job_status.issued);
    let workers = format!("{there} of {}", job.world);
    [member.name.clone(), number, workers, operations, sum(|link| link.received), sum(|link| link.sent)]
}

#[cfg(test)]
mod tests;
