//! What a defect of the engine does to a group, and what ranks hear that do not use the same parameters.

use super::{Communicator, lines::LineTurn};
use crate::{
    Collective, Config, DType, Error, ErrorKind, Region, Rendezvous, Request, Transport,
    core::{
        algorithm::Algorithm,
        element::ReduceOp,
        group::FoldOrder,
        plan::Guidance,
        session::{
            Parameters, Role,
            handshake::{Expected, Purpose},
            membership::{Process, Roster},
        },
    },
    fabric::{Shared, dial::dial, greet::greet},
    local,
    local::assemble_local,
    server::{Server, ServerOptions},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Barrier},
    time::{Duration, Instant},
};

/// Long before any timeout, which is half an hour, every rank is told which rank's engine panicked, in operations under way and in later ones.
#[test]
fn a_panic_in_an_engine_ends_the_group_on_all_ranks() {
    let (began, ranks, all) = (Instant::now(), local(3).unwrap(), Barrier::new(3));
    std::thread::scope(|scope| {
        for comm in ranks {
            let all = &all;
            scope.spawn(move || {
                if comm.rank() == 1 {
                    std::thread::sleep(Duration::from_millis(50));
                    let defect =
                        AssertUnwindSafe(|| comm.fabric.node.with(|_| panic!("a defect, for a test")));
                    assert!(catch_unwind(defect).is_err());
                }
                for _ in 0..2 {
                    let error = comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).unwrap_err();
                    let ErrorKind::Protocol { from, .. } = error.kind() else { panic!("{error}") };
                    assert_eq!(from, "rank 1", "{error}");
                }
                // Else one that leaves at once could be what the others hear of first.
                all.wait();
            });
        }
    });
    assert!(began.elapsed() < Duration::from_secs(60), "it takes milliseconds, the rest is margin");
}

/// All ranks are told which one lacks memory for its part, before any timeout, and the group goes on.
#[test]
fn a_lack_of_memory_fails_the_call_on_all_ranks_and_the_group_goes_on() {
    std::thread::scope(|scope| {
        for comm in local(3).unwrap() {
            scope.spawn(move || {
                let calls = [(Collective::AllReduce, false), (Collective::AllGather, true)];
                for ((collective, is_uneven), priority) in calls.into_iter().zip([0, 1]) {
                    if comm.rank() == 0 && priority == 0 {
                        // Longer than a fence waits for a rank that has not come to older operations.
                        std::thread::sleep(Duration::from_millis(1200));
                    }
                    let before = comm.all_reduce_async(vec![1.0_f32; 1000], ReduceOp::Sum).unwrap();
                    let lacks = comm.rank() == 1;
                    let memory = |elements: usize| {
                        if lacks { Region::lacking(1 << 49) } else { Region::zeroed(4 * elements) }
                    };
                    let elements = if is_uneven { 10 } else { 30 };
                    let request = Request::new(collective, DType::F32, 30, memory(elements), memory(30));
                    let request = if is_uneven { request.parts(&[10], &[10; 3]) } else { request };
                    let error = comm.execute(request.priority(priority)).unwrap_err();
                    let kind = ErrorKind::Memory { rank: 1, bytes: 1 << 49, ended_by: None };
                    assert_eq!(*error.kind(), kind, "{error}");
                    assert_eq!(before.wait().unwrap(), [3.0; 1000]);
                    let mut one = [1.0_f32; 1000];
                    comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
                    assert_eq!(one, [3.0; 1000]);
                }
                let call = comm.gather_async(vec![1.0_f32; 10], 0);
                assert_eq!(call.unwrap().wait().unwrap().len(), if comm.rank() == 0 { 30 } else { 0 });
            });
        }
    });
}

/// What ranks hear of an all-reduce; all of them stay until all have heard.
fn heard(ranks: Vec<Communicator>, count: usize) -> Vec<Error> {
    let all = Barrier::new(ranks.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks
            .iter()
            .map(|comm| {
                let all = &all;
                scope.spawn(move || {
                    let result = comm.all_reduce(&mut vec![1.0_f32; count], ReduceOp::Sum);
                    all.wait();
                    result.unwrap_err()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Three ranks of which the last one uses something else.
fn otherwise(change: fn(&mut Parameters)) -> Vec<Communicator> {
    let process = |incarnation| Process { address: String::new(), host: 0, incarnation };
    let roster = Roster::founded((1..4).map(process).collect(), &[]).unwrap();
    let shared = |rank| {
        let staging = 64 << 20;
        let mut parameters =
            Parameters { algorithm: Some("radix".to_owned()), staging, ..Parameters::default() };
        if rank == 2 {
            change(&mut parameters);
        }
        Shared {
            guidance: Arc::new(Guidance::of(&parameters).unwrap()),
            parameters: Arc::new(parameters),
            transport: None,
            timeout: Duration::from_secs(30),
            manual_progress: false,
        }
    };
    assemble_local(1, roster, shared).unwrap()
}

#[test]
fn ranks_that_use_other_parameters_are_told_which_and_whose() {
    type Change = fn(&mut Parameters);
    let digest = |texts: &[String]| crate::core::session::Summary::of_texts(texts).to_string();
    let (none, one) = (digest(&[]), digest(&["a:1".to_owned()]));
    let changes: [(&str, &str, Change); 6] = [
        ("radix", "tree", |other| other.algorithm = Some("tree".to_owned())),
        ("radix with fold order ranks", "radix with fold order hosts", |other| {
            other.order = FoldOrder::Hosts
        }),
        ("radix with shared memories 1 ", "radix with shared memories 3 ", |other| {
            other.transport = Some("tcp".to_owned());
        }),
        ("radix with slice bytes 0", "radix with slice bytes 65536", |other| other.segment = 65536),
        ("radix with staging bytes 58720256", "radix with staging bytes 29360128", |other| {
            other.staging /= 2;
        }),
        (&format!("radix with reducers {none}"), &format!("radix with reducers {one}"), |other| {
            other.reducers = vec!["a:1".to_owned()];
        }),
    ];
    for (theirs, own, change) in changes {
        for error in heard(otherwise(change), 1000) {
            let ErrorKind::Mismatch { calls, .. } = error.kind() else { panic!("{error}") };
            assert_eq!(calls.len(), 2, "{error}");
            // A rank that had not called it yet is not among those that did.
            let said = |of: &[u32], planned: &str| {
                let theirs = |(ranks, _): &&(Vec<u32>, String)| ranks.iter().all(|rank| of.contains(rank));
                let call = calls.iter().find(theirs).map(|(_, call)| call.as_str());
                call.is_some_and(|call| call.contains(&format!(" as {planned}")))
            };
            assert!(said(&[2], own) && said(&[0, 1], theirs), "{error}");
            assert!(error.to_string().contains("under the same settings"), "{error}");
        }
    }
}

/// Two ranks over TCP, and what they have done once: a rank has a link to the other.
fn pair() -> Vec<Communicator> {
    let meet = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = |rank| Config::new(rank, 2, Rendezvous::Tcp(meet.clone())).transport(Transport::Tcp);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Communicator::connect(config(1)).unwrap());
        let ranks = vec![Communicator::connect(config(0)).unwrap(), second.join().unwrap()];
        sum(&ranks);
        ranks
    })
}

#[test]
fn a_lost_rank_is_named_with_where_its_process_was() {
    let mut ranks = pair();
    let place = ranks[0].fabric.job.roster.worker(1).unwrap().address.clone();
    drop(ranks.pop());
    let error = ranks[0].barrier().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if ranks[..] == [1]), "{error}");
    assert!(error.to_string().contains(&format!("(rank 1 was the process at {place})")), "{error}");
}

fn sum(ranks: &[Communicator]) {
    std::thread::scope(|scope| {
        for comm in ranks {
            scope.spawn(move || {
                let mut values = [1.0_f32; 5000];
                comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                assert_eq!(values, [2.0; 5000]);
            });
        }
    });
}

#[test]
fn what_comes_after_a_group_has_the_timeout_that_was_set() {
    let ranks = pair();
    std::thread::scope(|scope| {
        for comm in &ranks {
            scope.spawn(move || {
                comm.set_timeout(Duration::from_secs(77));
                let again = comm.replace(Some(Duration::from_secs(20))).unwrap();
                assert_eq!(again.timeout(), Duration::from_secs(77));
                let again = again.regather(&[0, 1], Some(Duration::from_secs(20))).unwrap();
                assert_eq!(again.timeout(), Duration::from_secs(77));
            });
        }
    });
}

/// Else whoever knows a rank's life could take its place in a job that runs.
#[test]
fn a_second_link_to_a_rank_is_refused_while_the_first_is_up() {
    let ranks = pair();
    let job = &ranks[0].fabric.job;
    let other = job.roster.worker(1).unwrap();
    let expected = Expected { role: Role::Worker, rank: Some(1), incarnation: other.incarnation };
    for _ in 0..3 {
        let mut stream = dial(&other.address, None, |_| Ok(())).unwrap();
        let error = greet(&mut stream, job.hello(Purpose::Data), expected, &job.token).unwrap_err();
        assert!(error.may_pass() && error.to_string().contains("the number of links to rank 0"), "{error}");
    }
    sum(&ranks);
    // Rank 0 stays for the others when it leaves.
    ranks.into_iter().rev().for_each(drop);
}

/// As one of another build would do: it plans otherwise than the workers, who agree.
#[test]
fn a_reducer_that_plans_otherwise_is_lost_with_both_values() {
    let token = "a token of the tests";
    let mut options = ServerOptions::new("127.0.0.1:0".parse().unwrap());
    options.token = Some(token.to_owned());
    let server = Server::bind(options).unwrap();
    let (address, stop) = (server.address().to_string(), server.stop());
    let meet = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let config = |rank| {
        Config::new(rank, 2, Rendezvous::Tcp(meet.clone()))
            .token(token)
            .reducers(vec![address.clone()])
            .algorithm(Algorithm::ReductionServer)
    };
    std::thread::scope(|scope| {
        scope.spawn(|| server.run());
        let second = scope.spawn(|| Communicator::connect(config(1)).unwrap());
        let ranks = vec![Communicator::connect(config(0)).unwrap(), second.join().unwrap()];
        for comm in &ranks {
            comm.fabric.node.with(|engine| {
                let group = engine.runtime.groups.get_mut(0).unwrap();
                group.settings.sizing.segment_bytes = 65536;
            });
        }
        for error in heard(ranks.clone(), 100_000) {
            let ErrorKind::ReducerLost { address: lost, reason } = error.kind() else { panic!("{error}") };
            assert_eq!(*lost, address, "{error}");
            assert!(reason.contains("slice bytes 0 there and 65536 at rank "), "{error}");
        }
        let go_on = |comm: Communicator| scope.spawn(move || comm.barrier().unwrap());
        let going_on: Vec<_> = ranks.into_iter().map(go_on).collect();
        going_on.into_iter().for_each(|thread| thread.join().unwrap());
        stop.stop();
    });
}

/// Each rank runs its turns in another order, while the program makes calls of the same kind.
#[test]
fn calls_in_turns_match_whatever_runs_first() {
    let ranks = local(3).unwrap();
    std::thread::scope(|scope| {
        for comm in &ranks {
            scope.spawn(move || {
                let sum = |value: usize| {
                    let mut buffer = [value as f32; 100];
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).unwrap();
                    assert_eq!(buffer, [3.0 * value as f32; 100]);
                };
                let turns: Vec<_> = (0..6).map(|_| comm.turn().unwrap()).collect();
                let [line, other] = [comm.line().unwrap(), comm.line().unwrap()];
                assert!(turns[0].is_next() && !turns[1].is_next());
                std::thread::scope(|scope| {
                    for place in 0..6 {
                        let turn = &turns[(place * (1 + 4 * (comm.rank() as usize % 2)) + 5) % 6];
                        scope.spawn(move || {
                            turn.run(|| {
                                sum(turn.place as usize);
                                // What is asked for in a turn is a line of its own.
                                comm.turn().unwrap().run(|| sum(10));
                                sum(turn.place as usize + 1);
                            });
                            turn.end();
                        });
                    }
                    scope.spawn(|| line.run(|| (20..30).for_each(sum)));
                    scope.spawn(|| other.run(|| (30..40).for_each(sum)));
                    (40..60).for_each(sum);
                });
                assert!(turns.iter().all(LineTurn::is_next));
                drop((line, other, turns));
                comm.barrier().unwrap();
                comm.close().unwrap();
                let error = comm.turn().unwrap().run(|| comm.barrier()).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Closed), "{error}");
            });
        }
    });
}

/// Code that waits for a turn that never comes gets an error, and so does all that would not match other ranks' calls after it.
#[test]
fn a_turn_that_does_not_end_is_an_error_in_all_later_ones() {
    let comm = local(1).unwrap().remove(0);
    comm.set_timeout(Duration::from_millis(10));
    let [first, second, third] = [(); 3].map(|()| comm.turn().unwrap());
    for (turn, ends) in [(&second, &first), (&second, &second), (&third, &third)] {
        let error = turn.run(|| comm.barrier()).unwrap_err();
        assert!(error.to_string().contains("an earlier callback to return"), "{error}");
        // What was given up stays so.
        first.run(|| comm.barrier()).unwrap();
        ends.end();
    }
    comm.turn_apart().unwrap().run(|| comm.barrier()).unwrap();
    comm.barrier().unwrap();
}

/// Ranks whose last calls only send hear nothing of the others: they learn when they close their groups, each in another order, that
/// these calls differ.
#[test]
fn all_ranks_that_close_are_told_of_a_last_mismatch() {
    let is_mismatch = |result: Result<(), Error>| match result {
        Ok(()) => false,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
            assert!(error.to_string().contains("called broadcast of 20 u8 from rank"), "{error}");
            true
        }
    };
    std::thread::scope(|scope| {
        for comm in local(3).unwrap() {
            scope.spawn(move || {
                let me = comm.rank();
                let groups = ["one", "two"].map(|name| comm.subgroup(name, &[0, 1, 2]).unwrap());
                let differ = |group: &Communicator| {
                    group.barrier().unwrap();
                    is_mismatch(group.broadcast(&mut [me; 5], me))
                };
                let reported = groups.each_ref().map(differ);
                let in_turn = if me == 1 { [1, 0] } else { [0, 1] };
                for at in in_turn {
                    assert!(is_mismatch(groups[at].close()) | reported[at], "group {at}");
                    assert_eq!(groups[at].barrier().unwrap_err().kind(), &ErrorKind::Closed);
                    groups[at].close().unwrap();
                }
                let reported = differ(&comm);
                assert!(is_mismatch(comm.close()) | reported, "the group of all");
                comm.close().unwrap();
            });
        }
    });
}

/// Else the line is made after its group has ended, and what is called in it lasts for the timeout.
#[test]
fn an_abort_ends_calls_of_a_line_that_is_being_made() {
    let ranks = local(2).unwrap();
    for round in 0..400 {
        let part = ranks[0].subgroup(&format!("part {round}"), &[0, 1]).unwrap();
        let (turn, both) = (part.line().unwrap(), Barrier::new(2));
        let wait = |turns: usize| {
            both.wait();
            (0..turns * 50).for_each(|_| std::hint::spin_loop());
        };
        let called = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait(round % 20);
                part.abort();
            });
            wait(round / 20);
            let region = Region::zeroed(400);
            let request = Request::new(Collective::AllReduce, DType::F32, 100, region.clone(), region);
            turn.run(|| part.submit(request))
        });
        // The other rank makes no such call.
        let end =
            called.map_or_else(|error| Some(Err(error)), |pending| pending.wait_for(Duration::from_secs(30)));
        assert!(end.is_some_and(|result| result.is_err()), "round {round}: the call goes on");
    }
}
