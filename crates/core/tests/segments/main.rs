//! What the proof promises about deadlock, tried: random schedules that `verify` accepts never deadlock, however many
//! segments they are cut into and however few messages a lane holds.
//!
//! The schedules are noise around a group of one worker, whose all-reduce is only to finish its own input. What they
//! fold does not matter; who waits for whom does.

mod noise;
mod simulation;

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    group::Group,
    schedule::Schedule,
    verify::{VerifyError, verify},
};
use noise::noise;
use simulation::{Execution, Simulation};

#[test]
fn what_is_proved_never_deadlocks() {
    let (mut proved, mut proved_serial, mut refused) = (0, 0, 0);
    let mut serial_only = [0, 0];
    let mut lost_at_once = 0;
    for seed in 0..8000 {
        let schedule = noise(seed);
        let serial = [1, 2].map(|credit| Execution { credit, ..Execution::SERIAL });
        let serial = serial.map(|execution| Simulation::completes(&schedule, execution));
        let cut = [1, 2].map(|credit| Execution { credit, ..Execution::CUT });
        let cut = cut.map(|execution| Simulation::completes(&schedule, execution));
        let at_once = Execution { at_once: true, ..Execution::CUT };
        let at_once = Simulation::completes(&schedule, at_once);
        match verify(schedule, Collective::AllReduce, &Group::of_size(1)) {
            Ok(schedule) => {
                assert_eq!(cut, [true; 2], "seed {seed} deadlocks\n{}", schedule.schedule());
                assert_eq!(schedule.serial(), serial[0], "seed {seed}\n{}", schedule.schedule());
                proved += 1;
                proved_serial += usize::from(serial[0]);
                lost_at_once += usize::from(!at_once);
            }
            Err(VerifyError::Deadlock { .. }) => {
                refused += 1;
                for credit in 0..2 {
                    serial_only[credit] += usize::from(serial[credit] && !cut[credit]);
                }
            }
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    println!("{proved} proved, {proved_serial} of them serial; {refused} refused as deadlocks");
    println!("serial with 1, 2 messages a lane, but no longer when cut: {serial_only:?}");
    println!(
        "proved, but not for executors that hold back a send until all its lanes have room: {lost_at_once}"
    );
    assert!(proved_serial > 2000 && proved > proved_serial + 1000 && refused > 2000);
    assert!(serial_only.iter().all(|schedules| *schedules > 500) && lost_at_once > 0);
}

/// Rank 0 may only overwrite s0 once rank 1 has taken it, and rank 1 may only take it once something has come that
/// rank 0 sends after overwriting it. In program order a lane that holds the one message hides this; of a message
/// that is cut, no lane need hold all.
#[test]
fn a_proof_of_program_order_would_not_do() {
    let text = "schedule workers=1 reducers=3 cut=even:1
        rank 0
            slots acc acc acc
            fold c0 s0 = u0
            send s0 -> 1 2
            send s0 -> 1            # taken by rank 1 last
            recv c0 s0 <- 2
            recv c0 s1 <- 2         # all of the message before it has been received
            send s1 -> 3
            finish c0 u0 = u0
        rank 1
            slots acc
            recv c0 s0 <- 0
            recv c0 s0 <- 3
            recv c0 s0 <- 0
        rank 2
            slots acc
            recv c0 s0 <- 0
            send s0 -> 0
            send s0 -> 0
        rank 3
            slots acc
            recv c0 s0 <- 0
            send s0 -> 1";
    let schedule = Schedule::parse(text).unwrap();
    assert!(Simulation::completes(&schedule, Execution::SERIAL));
    assert!(!Simulation::completes(&schedule, Execution::CUT));
    let refused = verify(schedule, Collective::AllReduce, &Group::of_size(1));
    assert!(matches!(refused, Err(VerifyError::Deadlock { .. })), "{refused:?}");
}

/// More than is proved of every schedule: the library's also complete if a send waits until all its lanes have room,
/// as where one write in shared memory has many readers.
#[test]
fn the_librarys_sends_may_go_to_all_at_once() {
    let collectives = [
        Collective::AllReduce,
        Collective::Reduce { root: 1 },
        Collective::Broadcast { root: 1 },
        Collective::ReduceScatter,
        Collective::AllGather,
        Collective::Gather { root: 1 },
        Collective::Scatter { root: 1 },
        Collective::AllToAll,
        Collective::Barrier,
    ];
    let algorithms = Algorithm::all().map(|algorithm| algorithm.to_string());
    let others = [
        "radix(2,2,2)",
        "radix(4,2)",
        "radix(16;2,2,2)",
        "hierarchical(radix,doubling)",
        "hierarchical(radix,reduction_server)",
    ];
    let others = others.map(String::from);
    let mut tried = 0;
    // Hosts of three are pieces, which only matters to who follows hosts.
    for (workers, each) in (2..=12).flat_map(|workers| [(workers, 2), (workers, 3)]) {
        let hosts: Vec<u32> = (0..workers).map(|rank| rank / each).collect();
        let layout = Layout { reducers: 2, hosts: &hosts, links: None };
        for name in algorithms.iter().chain(&others).filter(|name| each == 2 || name.starts_with("hier")) {
            let algorithm: Algorithm = name.parse().unwrap();
            for collective in collectives {
                let schedule = algorithm.schedule(collective, &Group::of_size(workers), &layout);
                let Ok(schedule) = schedule else { continue };
                let at_once = [1, 2].map(|credit| Execution { credit, at_once: true, ..Execution::CUT });
                let verified = verify(schedule, collective, &Group::of_size(workers)).unwrap();
                for execution in at_once.into_iter().chain([Execution::WINDOWS]) {
                    let completes = Simulation::completes(verified.schedule(), execution);
                    assert!(completes, "{name} {collective} {workers} {execution:?}, hosts {hosts:?}");
                }
                tried += 1;
            }
        }
    }
    println!("{tried} schedules");
    assert!(tried > 200, "{tried}");
}

/// The window keeps a message from the slot of an earlier one: each message of the segments in flight has a slot of its own.
#[test]
fn windows_keep_messages_from_slots_that_are_in_use() {
    let mut without_grants = 0;
    for workers in 2..=12 {
        for algorithm in Algorithm::all() {
            let group = Group::of_size(workers);
            let layout = Layout { reducers: 2, hosts: &[], links: None };
            let schedule = algorithm.schedule(Collective::AllReduce, &group, &layout);
            let Ok(schedule) = schedule else { continue };
            assert_eq!(Simulation::overwrites(&schedule, Execution::WINDOWS), 0, "{algorithm} {workers}");
            let alone = Execution { granted: false, ..Execution::WINDOWS };
            without_grants += Simulation::overwrites(&schedule, alone);
        }
    }
    assert!(without_grants > 0, "this model cannot see what grants are for");
}
