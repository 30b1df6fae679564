//! What each process of a job says of itself, whatever the others do.

use crate::world::{Over, TOKEN, Together, check_sums, sum, world};
use herringbone::{
    Communicator,
    status::{
        Activity, Answer, AskError, FlightCall, FlightRecord, FlightState, JobStatus, MemberId, Way, ask,
        ask_clock, ask_flight,
    },
};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(5);

fn asked(comm: &Communicator) -> Answer {
    let address = comm.address().expect("a process of a job listens");
    ask(address, Some(TOKEN), None, SOON).unwrap()
}

fn job_status(answer: &Answer) -> &JobStatus {
    match &answer.status.activity {
        Activity::Works(Some(job_status)) => job_status,
        other => panic!("{other:?}"),
    }
}

/// Waits until a rank's answer is as it should be: another thread may not have come so far.
fn awaited(comm: &Communicator, is_it: impl Fn(&JobStatus) -> bool) -> Answer {
    let answer = || asked(comm);
    let soon = (0..500).map(|_| answer()).find(|answer| {
        std::thread::sleep(Duration::from_millis(10));
        is_it(job_status(answer))
    });
    soon.unwrap_or_else(|| panic!("{:?}", asked(comm)))
}

#[test]
fn ranks_say_what_moved_between_them_and_where_they_are() {
    for over in Over::ALL {
        let all = Together::new(3);
        let answers = world(3, over, |comm| {
            check_sums(comm);
            let pair = (comm.rank() < 2).then(|| comm.subgroup("pair", &[0, 1]).unwrap());
            pair.iter().for_each(|pair| sum(pair, 5000).unwrap());
            all.wait();
            let answer = asked(comm);
            all.wait();
            answer
        });
        for (rank, answer) in (0..).zip(&answers) {
            let roster = answer.roster.as_ref().unwrap();
            assert_eq!((answer.identity.rank, roster.world()), (rank, 3));
            assert_eq!(answer.status.process, std::process::id());
            let job_status = job_status(answer);
            let group = job_status.group(0).unwrap();
            assert_eq!((&*group.name, group.ranks, group.next, group.over), ("world", 3, Some(3), Some(2)));
            assert_eq!(job_status.groups.iter().any(|group| group.name == "pair"), rank < 2);
            assert_eq!(job_status.operations, [], "nothing is under way");
            for link in job_status.links.iter().filter(|link| !roster.is_reducer(link.to)) {
                let expected = if over == Over::Shm { Way::Shm } else { Way::Tcp };
                assert_eq!(link.way, expected);
                let other = answers[link.to.index()].clone();
                let back = self::job_status(&other).link(MemberId::new(rank)).unwrap();
                assert_eq!((link.sent, link.received), (back.received, back.sent), "{over:?}");
            }
            let moved: u64 = job_status.links.iter().map(|link| link.sent + link.received).sum();
            assert!(moved > 100_000, "{over:?}: {moved} bytes");
        }
    }
}

#[test]
fn who_waits_says_for_whom_and_in_what() {
    let all = Together::new(3);
    world(3, Over::Shm, |comm| {
        check_sums(comm);
        all.wait();
        let late = comm.rank() == 2;
        let work =
            (!late).then(|| comm.all_reduce_async(vec![1.0_f32; 100], herringbone::ReduceOp::Sum).unwrap());
        let received = (comm.rank() == 1).then(|| comm.recv_async::<u8>(3, 2, 9).unwrap());
        if late {
            let answer = asked(comm);
            let group = job_status(&answer).group(0).unwrap();
            assert_eq!((group.next, &*job_status(&answer).operations), (Some(3), &[][..]));
        } else {
            let count = 1 + comm.rank() as usize;
            let answer = awaited(comm, |job_status| {
                job_status.operations.len() == count
                    && job_status
                        .operations
                        .iter()
                        .all(|under_way| under_way.waits.contains(&MemberId::new(2)))
            });
            let operations = &job_status(&answer).operations;
            let names: Vec<&str> = operations.iter().map(|under_way| &*under_way.name).collect();
            assert!(names.contains(&"all_reduce of 100 f32, sum (operation 3)"), "{names:?}");
            let message = operations.iter().find(|under_way| under_way.sequence.is_none());
            assert_eq!(message.is_some(), comm.rank() == 1);
            assert!(
                message.is_none_or(|message| message.name == "recv of 3 u8 with tag 9 from rank 2"),
                "{names:?}"
            );
        }
        all.wait();
        if late {
            comm.all_reduce(&mut [1.0_f32; 100], herringbone::ReduceOp::Sum).unwrap();
            comm.send(&[1_u8, 2, 3], 1, 9).unwrap();
        }
        if let Some(work) = work {
            assert_eq!(work.wait().unwrap(), [3.0; 100]);
        }
        if let Some(received) = received {
            assert_eq!(received.wait().unwrap(), [1, 2, 3]);
        }
    });
}

#[test]
fn another_job_or_another_token_gets_no_answer() {
    world(1, Over::Shm, |comm| {
        let (address, job) = (comm.address().unwrap(), asked(comm).identity.job);
        assert!(ask(address, Some(TOKEN), Some(job), SOON).is_ok());
        let refused = ask(address, Some(TOKEN), Some(job ^ 1), SOON).unwrap_err();
        assert!(
            matches!(&refused, AskError::Stranger(why) if why.contains("reached a process of job")),
            "{refused}"
        );
        let refused = ask(address, Some("another token"), None, SOON).unwrap_err();
        assert!(matches!(refused, AskError::Token(_)), "{refused}");
    });
}

#[test]
fn a_process_tells_its_clocks_again_and_again() {
    world(1, Over::Shm, |comm| {
        let clocks = ask_clock(comm.address().unwrap(), Some(TOKEN), None, 8, SOON).unwrap();
        assert_eq!((clocks.identity.rank, clocks.samples.len()), (0, 8));
        for sample in &clocks.samples {
            let there = sample.clock.monotonic;
            assert!((sample.sent..=sample.received).contains(&there), "one host has one clock: {sample:?}");
            let off = sample.offset().unsigned_abs();
            assert!(off <= sample.round_trip() / 2 + 1, "{sample:?}");
        }
        let best = clocks.best().unwrap().round_trip();
        assert!(clocks.samples.iter().all(|sample| sample.round_trip() >= best));
    });
}

fn record(comm: &Communicator) -> FlightRecord {
    let mut answer = ask_flight(comm.address().unwrap(), Some(TOKEN), None, SOON).unwrap();
    assert_eq!(answer.records.len(), 1);
    answer.records.remove(0)
}

#[test]
fn a_process_tells_what_it_has_called() {
    let all = Together::new(2);
    world(2, Over::Shm, |comm| {
        let pair = comm.subgroup("pair", &[0, 1]).unwrap();
        sum(&pair, 5000).unwrap();
        all.wait();
        let record = record(comm);
        assert_eq!((record.rank, record.world, record.process), (comm.rank(), 2, std::process::id()));
        let group = record.groups.iter().find(|group| group.name == "pair").unwrap();
        assert_eq!((&*group.ranks, group.over), (&[0, 1][..], Some(0)));
        let operation = record.operations.iter().find(|operation| operation.group == group.group).unwrap();
        assert_eq!(operation.state, FlightState::Done);
        let FlightCall::Collective { call, algorithm } = &operation.call else { panic!("{operation:?}") };
        assert_eq!((call.count, call.sequence), (5000, 0));
        assert!(!algorithm.is_empty());
        assert!(operation.issued <= operation.ended.unwrap());
        assert!(operation.ended.unwrap() <= record.clock.monotonic);
        all.wait();
    });
}
