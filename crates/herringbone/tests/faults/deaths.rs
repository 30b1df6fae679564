//! Processes that die: whoever is left hears of it at once, with a name.

use crate::{
    process::{Process, RankRole, end_well, processes},
    world::{Over, Together, check_sums, each, rendezvous_address, sum, world},
};
use herringbone::ErrorKind;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};
use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// An upper bound for a loaded machine; on an idle one survivors hear within milliseconds.
const AT_ONCE: Duration = Duration::from_secs(5);
const A_WHILE: Duration = Duration::from_millis(300);

/// Kills one rank of four in the middle of sums; returns how long the slowest survivor took to say who is lost.
fn kill(victim: u32, over: Over, keep_open: bool) -> Duration {
    let mut ranks = processes("loop", 4, over, &rendezvous_address(), &[]);
    std::thread::sleep(A_WHILE);
    let dead = ranks.remove(victim as usize);
    let copies = if keep_open { copies_of_descriptors(&dead) } else { Vec::new() };
    let killed = Instant::now();
    dead.signal(Signal::KILL);
    let mut slowest = Duration::ZERO;
    for survivor in &ranks {
        let (heard, text) = survivor.hear(Duration::from_secs(20));
        assert!(text.contains(&format!("rank {victim} is lost")), "{over:?}: {text}");
        let (_, after) = survivor.hear(AT_ONCE);
        assert!(after.contains(&format!("rank {victim} is lost")), "{over:?}: {after}");
        slowest = slowest.max(heard.duration_since(killed));
    }
    drop(copies);
    assert!(slowest < AT_ONCE, "{over:?}: it took {slowest:?}");
    assert!(end_well(ranks));
    slowest
}

/// What a forked child of a process would hold: its connections stay open after its death.
fn copies_of_descriptors(process: &Process) -> Vec<OwnedFd> {
    let handle = pidfd_open(process.id(), PidfdFlags::empty()).unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.id().as_raw_nonzero())).unwrap();
    let numbers = descriptors.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let copies: Vec<OwnedFd> = numbers
        .filter(|number| *number > 2)
        .filter_map(|number| pidfd_getfd(&handle, number, PidfdGetfdFlags::empty()).ok())
        .collect();
    assert!(!copies.is_empty(), "no descriptor of a child process can be copied here");
    copies
}

#[test]
fn a_killed_rank_is_named() {
    for over in [Over::Shm, Over::Tcp] {
        eprintln!("rank 3 killed over {over:?}: {:?}", kill(3, over, false));
    }
}

#[test]
fn a_killed_rank_is_named_by_those_who_only_send_to_it() {
    for over in [Over::Shm, Over::Tcp] {
        for what in ["send 4", "send 8192", "send 3000000"] {
            let mut ranks = processes(what, 3, over, &rendezvous_address(), &[]);
            std::thread::sleep(A_WHILE);
            ranks.pop().unwrap().signal(Signal::KILL);
            let killed = Instant::now();
            for survivor in &ranks {
                let (heard, text) = survivor.hear(Duration::from_secs(20));
                assert!(text.contains("rank 2 is lost"), "{what} over {over:?}: {text}");
                assert!(heard.duration_since(killed) < AT_ONCE, "{what} over {over:?}");
            }
        }
    }
}

#[test]
fn a_killed_rank_is_named_though_others_leave_because_of_it() {
    for over in [Over::Shm, Over::Tcp] {
        for (what, is_stuck) in [("leave 8192", false), ("leave 8192", false), ("leave 8000000", true)] {
            let mut ranks = processes(what, 5, over, &rendezvous_address(), &[]);
            std::thread::sleep(A_WHILE);
            let killed = ranks.remove(1);
            if is_stuck {
                // Large messages to it are under way, in part, when it dies.
                killed.signal(Signal::STOP);
                std::thread::sleep(A_WHILE);
            }
            killed.signal(Signal::KILL);
            for survivor in &ranks {
                let (_, text) = survivor.hear(Duration::from_secs(20));
                assert!(text.contains("rank 1 is lost"), "{what} over {over:?}: {text}");
            }
        }
    }
}

#[test]
fn a_killed_rank_is_named_though_rank_0_leaves() {
    for over in [Over::Shm, Over::Tcp] {
        let mut ranks = processes("pair", 3, over, &rendezvous_address(), &[]);
        std::thread::sleep(A_WHILE);
        let killed = Instant::now();
        ranks.pop().unwrap().signal(Signal::KILL);
        let (heard, text) = ranks[1].hear(Duration::from_secs(20));
        assert!(text.contains("rank 2 is lost"), "over {over:?}: {text}");
        assert!(heard.duration_since(killed) < AT_ONCE, "over {over:?}");
    }
}

#[test]
fn a_killed_rank_is_named_though_its_connections_stay_open() {
    eprintln!("rank 3 killed over Shm, its descriptors held: {:?}", kill(3, Over::Shm, true));
}

#[test]
fn a_killed_rank_0_is_named() {
    for over in [Over::Shm, Over::Tcp] {
        eprintln!("rank 0 killed over {over:?}: {:?}", kill(0, over, false));
    }
}

#[test]
fn a_stopped_rank_is_named() {
    let ranks = processes("loop", 3, Over::Shm, &rendezvous_address(), &[]);
    std::thread::sleep(A_WHILE);
    let stopped = Instant::now();
    ranks[1].signal(Signal::STOP);
    for survivor in [&ranks[0], &ranks[2]] {
        let (heard, text) = survivor.hear(Duration::from_secs(20));
        assert!(text.contains("rank 1 is lost"), "{text}");
        eprintln!("rank 1 stopped: {:?}", heard.duration_since(stopped));
    }
}

/// As where a virtual machine is suspended, or a container paused: nobody is to blame.
#[test]
fn a_job_that_stood_still_as_a_whole_goes_on() {
    let (reducers, addresses) = reducers();
    let ranks = processes("loop", 3, Over::Reducer, &rendezvous_address(), &addresses);
    let all = |signal| reducers.iter().chain(&ranks).for_each(|process| process.signal(signal));
    std::thread::sleep(A_WHILE);
    all(Signal::STOP);
    std::thread::sleep(Duration::from_secs(8));
    all(Signal::CONT);
    assert!(ranks[0].is_quiet(Duration::from_secs(2)));
    assert!(ranks[1..].iter().all(|rank| rank.is_quiet(Duration::ZERO)));
}

/// Two reducers, and where they listen.
fn reducers() -> (Vec<Process>, Vec<String>) {
    let part = |rank| RankRole {
        what: "reducer",
        rank,
        ranks: 2,
        over: Over::Tcp,
        meet: rendezvous_address(),
        reducers: Vec::new(),
    };
    let reducers: Vec<Process> = (0..2).map(|rank| Process::start(&part(rank))).collect();
    let addresses = reducers.iter().map(|reducer| reducer.hear(Duration::from_secs(20)).1).collect();
    (reducers, addresses)
}

#[test]
fn a_killed_or_stopped_rank_is_named_by_those_who_meet_it_at_reducers_only() {
    for (victim, signal) in [(1, Signal::KILL), (3, Signal::KILL), (0, Signal::KILL), (2, Signal::STOP)] {
        let (_reducers, addresses) = reducers();
        let mut ranks = processes("loop", 4, Over::Reducer, &rendezvous_address(), &addresses);
        std::thread::sleep(A_WHILE);
        let victims = ranks.remove(victim);
        let since = Instant::now();
        victims.signal(signal);
        let limit = if signal == Signal::STOP { 2 * AT_ONCE } else { AT_ONCE };
        for survivor in &ranks {
            let (heard, text) = survivor.hear(Duration::from_secs(30));
            assert!(text.contains(&format!("rank {victim} is lost")), "{signal:?}: {text}");
            assert!(heard.duration_since(since) < limit, "{signal:?}: {:?}", heard.duration_since(since));
        }
    }
}

/// A signal to reducers of a job, at a moment in the middle of its sums: all sums are right on all ranks, and none takes long.
fn lose_reducers(victims: &[usize], signal: Signal) {
    let (reducers, addresses) = reducers();
    let ranks = processes("through deaths", 3, Over::Reducer, &rendezvous_address(), &addresses);
    ranks.iter().for_each(|rank| assert_eq!(rank.hear(Duration::from_secs(20)).1, "summing"));
    for victim in victims {
        std::thread::sleep(A_WHILE);
        reducers[*victim].signal(signal);
    }
    for rank in &ranks {
        assert_eq!(rank.hear(Duration::from_secs(60)).1, "all sums are right");
    }
    assert!(end_well(ranks));
}

#[test]
fn a_killed_reducer_costs_no_call() {
    lose_reducers(&[1], Signal::KILL);
    lose_reducers(&[0, 1], Signal::KILL);
}

/// Its connections stay open, and take in what is sent to it.
#[test]
fn a_stopped_reducer_costs_no_call() {
    lose_reducers(&[0], Signal::STOP);
}

#[test]
fn processes_that_end_after_their_last_operation_harm_nobody() {
    for round in 0..10 {
        let over = Over::ALL[round % 2];
        let ranks = processes("once", 3, over, &rendezvous_address(), &[]);
        assert!(end_well(ranks), "{over:?}");
    }
}

#[test]
fn ranks_that_leave_after_their_last_operation_harm_nobody() {
    for over in Over::ALL {
        for _ in 0..20 {
            world(3, over, check_sums);
        }
    }
    for _ in 0..300 {
        let ranks: Vec<_> =
            herringbone::local(3).unwrap().into_iter().map(std::sync::Mutex::new).map(Some).collect();
        let ranks = std::sync::Mutex::new(ranks);
        each(3, |rank| {
            let comm = ranks.lock().unwrap()[rank as usize].take().unwrap().into_inner().unwrap();
            sum(&comm, 100).unwrap();
        });
    }
}

/// A rank that leaves while others still call is named by them.
#[test]
fn a_rank_that_leaves_early_is_named() {
    for over in Over::ALL {
        let (summed, informed) = (Together::new(3), Together::new(2));
        world(3, over, |comm| {
            check_sums(comm);
            summed.wait();
            if comm.rank() == 2 {
                comm.close().unwrap();
                return;
            }
            let error = (0..100).find_map(|_| sum(comm, 5000).err()).expect("a rank is missing");
            assert!(matches!(error.kind(), ErrorKind::PeerLost { ranks, .. } if ranks == &[2]), "{error}");
            let text = error.to_string();
            assert!(text.contains("rank 2 is lost") && text.contains("left"), "{text}");
            informed.wait();
        });
    }
}
