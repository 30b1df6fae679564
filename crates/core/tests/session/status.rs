use crate::{call, crc32c};
use herringbone_core::session::{
    control::{ControlError, Decoder, MESSAGE_BYTES, Message},
    fence::Member,
    membership::MemberId,
    status::{
        Activity, GROUPS, GroupStatus, InFlight, JOBS, JobStatus, LINKS, LinkStatus, OPERATIONS, ServedJob,
        Status, WAITS, Way,
    },
};
use proptest::{collection::vec, option, prelude::*};

fn any_text() -> impl Strategy<Value = String> {
    "[ -~äπ]{0,40}"
}

fn any_group() -> impl Strategy<Value = GroupStatus> {
    let numbers = (any::<(u32, u32, u32)>(), option::of(any::<u64>()), option::of(any::<u64>()));
    (numbers, any_text(), option::of(any_text())).prop_map(
        |(((group, ranks, generation), next, over), name, lost)| GroupStatus {
            group,
            name,
            ranks,
            generation,
            next,
            over,
            lost,
        },
    )
}

fn any_operation() -> impl Strategy<Value = InFlight> {
    let waits = vec(any::<u32>().prop_map(MemberId::new), 0..5);
    (any::<(u32, u64, bool)>(), option::of(any::<u64>()), any_text(), waits).prop_map(
        |((group, age, runs), sequence, name, waits)| InFlight { group, sequence, name, age, runs, waits },
    )
}

fn any_link() -> impl Strategy<Value = LinkStatus> {
    let way = prop_oneof![
        Just(Way::Wanted),
        Just(Way::Shm),
        Just(Way::Tcp),
        any_text().prop_map(|reason| Way::Lost { reason })
    ];
    (any::<(u32, u64, u64)>(), way).prop_map(|((to, sent, received), way)| LinkStatus {
        to: MemberId::new(to),
        way,
        sent,
        received,
    })
}

fn any_job_status() -> impl Strategy<Value = JobStatus> {
    let lists = (vec(any_group(), 0..4), vec(any_operation(), 0..4), vec(any_link(), 0..4));
    (any::<(u64, u64, u64, [u32; 3])>(), lists).prop_map(
        |((epoch, moment, issued, unlisted), (groups, operations, links))| JobStatus {
            epoch,
            moment,
            issued,
            groups,
            operations,
            links,
            unlisted,
        },
    )
}

/// What processes say of themselves.
pub(crate) fn any_status() -> impl Strategy<Value = Message> {
    let job = (any::<(u64, u32)>(), option::of(any_job_status()))
        .prop_map(|((job, world), job_status)| ServedJob { job, world, job_status });
    let activity = prop_oneof![
        vec(any::<u32>(), 0..5).prop_map(|missing| Activity::Forms { missing }),
        option::of(any_job_status()).prop_map(Activity::Works),
        (any::<(u64, u32)>(), vec(job, 0..3)).prop_map(|((served, unlisted), jobs)| Activity::Serves {
            served,
            jobs,
            unlisted
        }),
    ];
    (any::<u32>(), any_text(), activity)
        .prop_map(|(process, host, activity)| Message::Status(Status { process, host, activity }))
}

fn works(job_status: JobStatus) -> Message {
    Message::Status(Status {
        process: 7,
        host: "here".to_owned(),
        activity: Activity::Works(Some(job_status)),
    })
}

fn decoded(body: &[u8]) -> Result<Option<Message>, ControlError> {
    let mut bytes = [(body.len() as u32).to_le_bytes(), crc32c(body).to_le_bytes()].concat();
    bytes.extend(crc32c(&bytes).to_le_bytes());
    bytes.extend(body);
    let mut decoder = Decoder::new(crc32c);
    decoder.push(&bytes);
    decoder.next_message()
}

/// The longest lists fit into one message, with the longest texts.
#[test]
fn the_longest_answer_can_be_sent() {
    let text = "x".repeat(256);
    let (lost, name) = (Some(text.clone()), text.clone());
    let group = GroupStatus { group: 1, name, ranks: 2, generation: 3, next: Some(4), over: Some(3), lost };
    let (way, to) = (Way::Lost { reason: text.clone() }, MemberId::new(3));
    let waits = vec![to; WAITS];
    let operation = InFlight { group: 1, sequence: Some(4), name: text, age: 5, runs: true, waits };
    let job_status = |parts: usize| JobStatus {
        groups: vec![group.clone(); GROUPS / parts],
        operations: vec![operation.clone(); OPERATIONS / parts],
        links: vec![LinkStatus { to, way: way.clone(), sent: 1, received: 2 }; LINKS / parts],
        ..JobStatus::default()
    };
    let job = ServedJob { job: 1, world: 2, job_status: Some(job_status(JOBS)) };
    let activity = Activity::Serves { served: 64, jobs: vec![job; JOBS], unlisted: 0 };
    let serves = Message::Status(Status { process: 1, host: "here".to_owned(), activity });
    for message in [works(job_status(1)), serves] {
        let bytes = message.encode(crc32c).expect("it is within its bounds");
        assert!(bytes.len() > MESSAGE_BYTES / 2, "{} bytes are no test of it", bytes.len());
        assert_eq!(decoded(&bytes[12..]), Ok(Some(message)));
    }
}

#[test]
fn what_is_no_status_says_why() {
    let reason = |body: &[u8]| match decoded(body) {
        Err(ControlError::Malformed { number: 22, reason }) => reason,
        other => panic!("{body:?} gave {other:?}"),
    };
    let own = [&[22][..], &[7, 0, 0, 0], &[0, 0]].concat();
    assert_eq!(reason(&own), "it ends too early");
    assert_eq!(reason(&[&own[..], &[9]].concat()), "it does what this version does not know");
    let many = [&own[..], &[1], &u32::MAX.to_le_bytes()].concat();
    assert_eq!(reason(&many), "a list is too long");
    let link = LinkStatus { to: MemberId::new(1), way: Way::Tcp, sent: 0, received: 0 };
    let job_status = JobStatus { links: vec![link], ..JobStatus::default() };
    let mut body = works(job_status).encode(crc32c).unwrap().split_off(12);
    let way = body.len() - 12 - 16 - 1;
    assert_eq!(body[way], 3, "the way of the link");
    body[way] = 5;
    assert_eq!(reason(&body), "a link is made of what this version does not know");
}

#[test]
fn a_member_knows_its_last_operation_that_is_over() {
    let mut member = Member::new(1, 0, vec![0, 1]);
    assert_eq!((member.next(), member.over()), (0, None));
    for _ in 0..3 {
        member.issue(call()).unwrap();
    }
    assert_eq!((member.next(), member.over()), (3, None));
    member.complete(0, false);
    assert_eq!(member.over(), Some(0));
    member.complete(2, false);
    assert_eq!(member.over(), Some(2), "a later one may be over before");
    (3..1000).for_each(|number| {
        member.issue(call()).unwrap();
        member.complete(number, false);
    });
    member.issue(call()).unwrap();
    assert_eq!((member.next(), member.over()), (1001, Some(999)));
}
