use crate::{call, crc32c};
use herringbone_core::session::{
    control::{ControlError, Decoder, MESSAGE_BYTES, Message},
    fence::Member,
    membership::MemberId,
    status::{
        Activity, GROUPS, GroupStatus, HotKey, InFlight, JOBS, JobStatus, LINKS, LinkStatus, OPERATIONS,
        RangeStatus, ServedJob, Status, TABLE_WORKERS, TABLES, TableServerStatus, TableStatus, TableWorker,
        WAITS, Way,
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
    (any::<(u64, u64, u64, [u32; 3])>(), lists, option::of(any_text())).prop_map(
        |((epoch, moment, issued, unlisted), (groups, operations, links), ports)| JobStatus {
            epoch,
            moment,
            issued,
            groups,
            operations,
            links,
            unlisted,
            ports,
        },
    )
}

fn any_table() -> impl Strategy<Value = TableStatus> {
    let worker = any::<(u32, u64, bool, bool)>().prop_map(|(worker, step, is_here, has_left)| TableWorker {
        worker,
        step,
        is_here,
        has_left,
    });
    let hot = any::<(u64, u32)>().prop_map(|(key, share)| HotKey { key, share });
    let lists = (vec(worker, 0..4), vec(hot, 0..4));
    (any_text(), any_text(), any::<(u32, u32, [u64; 6])>(), lists).prop_map(
        |(name, kind, (range, present, numbers), (workers, hot))| {
            let [keys, rows, bytes, version, waiting, not_numbers] = numbers;
            TableStatus {
                name,
                range,
                kind,
                keys,
                rows,
                bytes,
                version,
                waiting,
                not_numbers,
                present,
                workers,
                hot,
            }
        },
    )
}

fn any_table_server() -> impl Strategy<Value = TableServerStatus> {
    let range = (any::<(u32, u64)>(), option::of(any::<u32>()), vec(any::<u32>(), 0..4))
        .prop_map(|((range, unconfirmed), owner, copies)| RangeStatus { range, owner, copies, unconfirmed });
    let lists = (vec(any_text(), 0..4), vec(range, 0..4), vec(any_table(), 0..3));
    (any::<(u32, u32, u64, u64, u32)>(), lists).prop_map(
        |((place, replicas, used, limit, unlisted), (servers, ranges, tables))| TableServerStatus {
            place,
            servers,
            replicas,
            used,
            limit,
            ranges,
            tables,
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
        (any::<(u64, u32)>(), vec(job, 0..3), option::of(any_table_server())).prop_map(
            |((served, unlisted), jobs, tables)| Activity::Serves { served, jobs, unlisted, tables }
        ),
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
        // A reducer calls nothing.
        ports: (parts == 1).then(|| "x".repeat(256)),
        ..JobStatus::default()
    };
    let job = ServedJob { job: 1, world: 2, job_status: Some(job_status(JOBS)) };
    let table = TableStatus {
        name: "x".repeat(256),
        range: 1,
        kind: "x".repeat(256),
        keys: 1,
        rows: 1,
        bytes: 1,
        version: 1,
        waiting: 1,
        not_numbers: 1,
        present: 1,
        workers: vec![TableWorker { worker: 1, step: 1, is_here: true, has_left: false }; TABLE_WORKERS],
        hot: vec![HotKey { key: 1, share: 1 }; 8],
    };
    let range = RangeStatus { range: 1, owner: Some(2), copies: vec![1; 63], unconfirmed: 1 };
    let tables = TableServerStatus {
        servers: vec!["x".repeat(256); 64],
        ranges: vec![range; 64],
        tables: vec![table; TABLES],
        ..TableServerStatus::default()
    };
    let activity = Activity::Serves { served: 64, jobs: vec![job; JOBS], unlisted: 0, tables: Some(tables) };
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
    let way = body.len() - 1 - 12 - 16 - 1;
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
