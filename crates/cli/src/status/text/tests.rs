use super::*;
use herringbone::core::session::membership::Process;
use herringbone::status::{Answer, AskError, GroupStatus, Identity, Role, Roster, Status};
use herringbone_admin::ask::AnswerPair;
use std::time::Duration;

const JOB: u64 = 0x2a;

fn roster() -> Roster {
    let process = |rank| Process { address: format!("10.0.0.{rank}:7"), host: 1, incarnation: rank };
    Roster::founded((0..3).map(process).collect(), &["10.0.0.9:7070".to_owned()]).unwrap()
}

fn id(number: u32) -> MemberId {
    MemberId::new(number)
}

fn link(to: u32, sent: u64, received: u64) -> LinkStatus {
    LinkStatus { to: id(to), way: Way::Tcp, sent, received }
}

/// A rank that has called this many operations and waits for these in the last.
fn job_status(next: u64, waits: &[u32], links: Vec<LinkStatus>) -> JobStatus {
    let (name, over) = ("world".to_owned(), next.checked_sub(2));
    let group = GroupStatus { group: 0, name, ranks: 3, generation: 0, next: Some(next), over, lost: None };
    let operation = InFlight {
        group: 0,
        sequence: Some(next - 1),
        name: format!("all_reduce of 8 f32, sum (operation {})", next - 1),
        age: 3210,
        runs: true,
        waits: waits.iter().copied().map(id).collect(),
    };
    let operations = if waits.is_empty() { Vec::new() } else { vec![operation] };
    JobStatus {
        moment: 2_000_000,
        issued: next,
        groups: vec![group],
        operations,
        links,
        ..JobStatus::default()
    }
}

fn asked(number: u32, heard: Result<(Activity, Option<Activity>), AskError>) -> AskedMember {
    let roster = roster();
    let member = roster.member(id(number)).unwrap();
    let answer = |activity| Answer {
        identity: Identity { role: member.role, job: JOB, rank: number, world: 3, incarnation: 5 },
        roster: None,
        status: Status { process: 100 + number, host: "here".to_owned(), activity },
    };
    let heard = heard.map(|(now, before)| AnswerPair { answer: answer(now), before: before.map(answer) });
    let (name, address) = (roster.name(id(number)), member.address.clone());
    AskedMember { name, role: Some(member.role), id: Some(id(number)), address, heard }
}

fn works(now: JobStatus, before: Option<JobStatus>) -> Result<(Activity, Option<Activity>), AskError> {
    Ok((Activity::Works(Some(now)), before.map(|before| Activity::Works(Some(before)))))
}

fn reduces(job_status: JobStatus) -> Result<(Activity, Option<Activity>), AskError> {
    let job = ServedJob { job: JOB, world: 3, job_status: Some(job_status) };
    Ok((Activity::Serves { served: 4, jobs: vec![job], unlisted: 0, tables: None }, None))
}

fn lines(members: Vec<AskedMember>) -> Vec<String> {
    let round = Round { job: JOB, roster: Some(roster()), members, silent_for: None };
    page(&round).lines().map(str::to_owned).collect()
}

/// Rank 2 is stopped: the reducer waits for it, and the others for the reducer.
#[test]
fn a_member_that_does_not_answer_is_shown_with_those_who_wait_for_it() {
    let before = JobStatus { moment: 1_500_000, ..job_status(18, &[3], vec![link(3, 1_000, 2_000)]) };
    let shown = lines(vec![
        asked(0, works(job_status(18, &[3], vec![link(3, 2_501_000, 2_000)]), Some(before))),
        asked(1, works(job_status(18, &[3], vec![link(3, 7, 8)]), None)),
        asked(2, Err(AskError::Silent(Duration::from_secs(1)))),
        asked(3, reduces(job_status(18, &[2], vec![link(0, 2_000, 2_501_000), link(2, 7, 30)]))),
    ]);
    let expected = [
        "job 000000000000002a: 3 workers, 1 reducer, epoch 0; 3 of 4 members answer",
        "",
        " member                 process   does                                       for  waits for",
        "─────────────────────────────────────────────────────────────────────────────────────────────────────────",
        " rank 0                 here:100  all_reduce of 8 f32, sum (operation 17)  3.2 s  reducer 10.0.0.9:7070",
        " rank 1                 here:101  all_reduce of 8 f32, sum (operation 17)  3.2 s  reducer 10.0.0.9:7070",
        " rank 2                           no answer for 1 s: stopped, or cut off?",
        " reducer 10.0.0.9:7070  here:103  all_reduce of 8 f32, sum (operation 17)  3.2 s  rank 2",
        "",
        "rank 2 keeps reducer 10.0.0.9:7070 waiting in all_reduce #17, for 3.2 s: it does not answer",
        "reducer 10.0.0.9:7070 keeps ranks 0, 1 waiting in all_reduce #17, for 3.2 s",
        "",
        " from                   to                     by        rate    bytes",
        "────────────────────────────────────────────────────────────────────────",
        " rank 0                 reducer 10.0.0.9:7070  TCP  5.00 MB/s  2.50 MB",
        " reducer 10.0.0.9:7070  rank 0                 TCP             2.00 kB",
        // What a silent one has sent, its receiver says.
        " rank 2                 reducer 10.0.0.9:7070  TCP                30 B",
        " reducer 10.0.0.9:7070  rank 1                 TCP                 8 B",
        " rank 1                 reducer 10.0.0.9:7070  TCP                 7 B",
        " reducer 10.0.0.9:7070  rank 2                 TCP                 7 B",
        "",
        " reducer        job       workers here  operations  received     sent",
        "───────────────────────────────────────────────────────────────────────",
        " 10.0.0.9:7070  this one        2 of 3  18 (1 now)   2.50 MB  2.01 kB",
    ];
    assert!(shown == expected, "{shown:#?}");
}

/// All members have the same of it: one says it.
#[test]
fn ports_that_plans_follow_are_shown_once() {
    let line = "plans follow the ports of hosts: rank 2's carries 0.20 out and 0.21 in, from operation 9 on";
    let with_ports =
        || works(JobStatus { ports: Some(line.to_owned()), ..job_status(18, &[], Vec::new()) }, None);
    let shown = lines(vec![asked(0, with_ports()), asked(1, with_ports()), asked(2, with_ports())]);
    assert_eq!(shown.iter().filter(|shown| *shown == line).count(), 1, "{shown:#?}");
}

#[test]
fn who_has_not_called_is_told_from_who_waits() {
    let shown = lines(vec![
        asked(0, works(job_status(18, &[1, 2], Vec::new()), None)),
        asked(1, works(job_status(18, &[2], Vec::new()), None)),
        asked(2, works(job_status(17, &[], Vec::new()), None)),
    ]);
    let said: Vec<&String> = shown.iter().filter(|line| line.contains(" keeps ")).collect();
    assert_eq!(
        said,
        [
            "rank 2 keeps ranks 0, 1 waiting in all_reduce #17, for 3.2 s: it has not called it",
            "rank 1 keeps rank 0 waiting in all_reduce #17, for 3.2 s",
        ]
    );
    assert!(shown.iter().any(|line| line.contains("nothing since operation 15")), "{shown:#?}");
}

#[test]
fn a_job_that_forms_says_who_is_missing() {
    let mut member = asked(0, Ok((Activity::Forms { missing: vec![1, 2] }, None)));
    member.id = None;
    let round = Round { job: 0, roster: None, members: vec![member], silent_for: None };
    let shown = page(&round);
    assert!(shown.starts_with("a job of 3 ranks is forming: ranks 1, 2 are missing\n"), "{shown}");
    assert!(shown.contains("waits for the other ranks"), "{shown}");
}

#[test]
fn bytes_have_three_digits() {
    let said = [0.0, 999.0, 1_000.0, 12_345.0, 999_600.0, 155e6, 1.2345e9].map(quantity);
    assert_eq!(said, ["0 B", "999 B", "1.00 kB", "12.3 kB", "1.00 MB", "155 MB", "1.23 GB"]);
}

#[test]
fn the_object_says_the_same() {
    let members = vec![
        asked(0, works(job_status(18, &[2], vec![link(2, 5, 6)]), None)),
        asked(2, Err(AskError::Silent(Duration::from_secs(1)))),
    ];
    let round = Round { job: JOB, roster: Some(roster()), members, silent_for: None };
    let object = crate::status::json::object(&round);
    assert_eq!(
        (&object["job"], &object["epoch"], &object["world"]),
        (&"000000000000002a".into(), &0.into(), &3.into())
    );
    assert_eq!(object["members"][0]["operations"][0]["waits_for"][0], "rank 2");
    assert_eq!(object["members"][0]["links"][0]["sent"], 5);
    assert_eq!(object["members"][1]["answers"], false);
    assert_eq!(object["waits"][0]["for"], "rank 2");
    assert_eq!(object["waits"][0]["by"][0], "rank 0");
    assert_eq!(object["waits"][0]["why"], "it does not answer");
    assert_eq!(round.members[0].role, Some(Role::Worker));
}
