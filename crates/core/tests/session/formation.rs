use herringbone_core::group::FoldOrder;
use herringbone_core::session::{
    Measuring, Parameters, Ranks, Refusal,
    formation::{Formation, JobName, Join, Progress, Settings},
    membership::{MEMBERS, Process},
};
use herringbone_core::topology::{LinkMatrix, Port, Ports, Wiring};

fn settings() -> Settings {
    let reducers = vec!["10.0.0.9:7070".into()];
    Settings {
        staging: 64,
        segment: 8,
        order: None,
        algorithm: Some("ring".into()),
        transport: None,
        reducers,
        cutting: 5,
        wiring: Wiring::default(),
        measuring: Measuring::default(),
        tree_bound: None,
        plan: vec![],
        calibration: vec![],
    }
}

fn join(rank: u32) -> Join {
    let address = format!("10.0.0.{rank}:4000");
    let process = Process { address, host: u64::from(rank / 2), incarnation: 100 + u64::from(rank) };
    let settings =
        if rank == 0 { settings() } else { Settings { algorithm: None, reducers: vec![], ..settings() } };
    Join {
        rank,
        process,
        world: 4,
        settings: Box::new(settings),
        job: vec![],
        host_name: format!("host-{}", rank / 2),
    }
}

fn formation() -> Formation {
    Formation::new(join(0)).unwrap()
}

#[test]
fn a_world_forms_in_any_order() {
    let mut formation = formation();
    assert_eq!(formation.progress(), Progress::Waiting(3));
    assert_eq!(formation.join(join(3), "10.0.0.3:50000"), Ok(Progress::Waiting(2)));
    assert_eq!(Ranks(&formation.missing()).to_string(), "ranks 1, 2");
    assert_eq!(formation.found(77), None);
    let mut modest = join(1);
    (modest.settings.staging, modest.settings.segment) = (16, 9);
    modest.settings.algorithm = Some("ring".into());
    assert_eq!(formation.join(modest, "10.0.0.1:50000"), Ok(Progress::Waiting(1)));
    assert_eq!(formation.join(join(2), "10.0.0.2:50000"), Ok(Progress::Complete));

    let world = formation.found(77).unwrap();
    assert_eq!((world.job, world.roster.epoch(), world.roster.world()), (77, 0, 4));
    for (rank, worker) in (0..).zip(world.roster.workers()) {
        assert_eq!(worker.id.number(), rank);
        let Process { address, host, incarnation } = join(rank).process;
        assert_eq!(
            (&worker.address, worker.host, worker.incarnation),
            (&address, Some(host), Some(incarnation))
        );
    }
    let reducers: Vec<(u32, &str)> =
        world.roster.reducers().map(|reducer| (reducer.id.number(), reducer.address.as_str())).collect();
    assert_eq!(reducers, [(4, "10.0.0.9:7070")]);
    let expected = Parameters {
        algorithm: Some("ring".into()),
        segment: 8,
        staging: 16,
        reducers: settings().reducers,
        cutting: 5,
        tree_bound: 10_000_000,
        calibration: vec![],
        ..Parameters::default()
    };
    assert_eq!(world.parameters, expected, "the smallest sizes count");
}

#[test]
fn the_topology_is_rank_0s_where_others_leave_it_open() {
    let mut first = Join { world: 2, ..join(0) };
    (first.settings.wiring, first.settings.tree_bound) = (LinkMatrix::uniform(2, 3.0).into(), Some(5));
    let mut formation = Formation::new(first).unwrap();
    let mut second = Join { world: 2, ..join(1) };
    second.settings.wiring = LinkMatrix::uniform(2, 2.0).into();
    let refused = formation.join(second.clone(), "10.0.0.1:50000").unwrap_err();
    let Refusal::Setting { rank: 1, name, ours, theirs } = &refused else { panic!("{refused:?}") };
    assert!(name == "HERRINGBONE_TOPOLOGY" && ours != theirs, "{refused:?}");
    for wiring in [Wiring::default(), LinkMatrix::uniform(2, 3.0).into()] {
        second.settings.wiring = wiring;
        assert_eq!(formation.join(second.clone(), "10.0.0.1:50000"), Ok(Progress::Complete));
    }
    let parameters = formation.found(1).unwrap().parameters;
    assert_eq!((parameters.wiring, parameters.tree_bound), (LinkMatrix::uniform(2, 3.0).into(), 5));
}

#[test]
fn nobody_need_wish_for_a_segment() {
    let mut only = Join { world: 1, ..join(0) };
    only.settings.segment = u64::MAX;
    assert_eq!(Formation::new(only).unwrap().found(1).unwrap().parameters.segment, 0);
}

#[test]
fn the_fold_order_is_rank_0s_where_others_leave_it_open() {
    let mut first = Join { world: 2, ..join(0) };
    first.settings.order = Some(FoldOrder::Hosts);
    let mut formation = Formation::new(first).unwrap();
    let mut other = Join { world: 2, ..join(1) };
    other.settings.order = Some(FoldOrder::Ranks);
    let refusal = formation.join(other, "10.0.0.1:50000").unwrap_err().to_string();
    assert!(refusal.contains("_FOLD_ORDER = \"ranks\", rank 0 has \"hosts\""), "{refusal}");
    assert_eq!(formation.join(Join { world: 2, ..join(1) }, "10.0.0.1:50000"), Ok(Progress::Complete));
    assert_eq!(formation.found(1).unwrap().parameters.order, FoldOrder::Hosts);
}

#[test]
fn a_world_of_one_is_there_at_once() {
    let formation = Formation::new(Join { world: 1, ..join(0) }).unwrap();
    assert_eq!(formation.progress(), Progress::Complete);
    assert_eq!(formation.found(1).unwrap().roster.world(), 1);
    let nobody = Formation::new(Join { world: 0, ..join(0) });
    assert_eq!(nobody.unwrap_err(), Refusal::RankOutOfRange { rank: 0, world: 0 });
    let too_many = Formation::new(Join { world: MEMBERS as u32, ..join(0) });
    assert_eq!(too_many.unwrap_err().to_string(), "no room: the number of members is limited to 65536 here");
}

#[test]
fn a_second_claimant_is_refused_with_both_addresses() {
    let mut formation = formation();
    formation.join(join(2), "10.0.0.2:50000").unwrap();
    let mut second = join(2);
    second.process.incarnation += 1;
    let refusal = formation.join(second, "10.0.0.7:50001").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "two processes have rank 2, at 10.0.0.2:50000 and at 10.0.0.7:50001: give each process a rank of its own"
    );
    let mut second_zero = join(0);
    second_zero.process.incarnation += 1;
    let refusal = formation.join(second_zero, "10.0.0.7:50002").unwrap_err();
    assert!(matches!(refusal, Refusal::DuplicateRank { rank: 0, first, .. } if first == "10.0.0.0:4000"));
    assert_eq!(formation.missing(), [1, 3]);
}

#[test]
fn the_same_process_may_come_again() {
    let mut formation = formation();
    formation.join(join(2), "10.0.0.2:50000").unwrap();
    let mut moved = join(2);
    moved.process.address = "10.0.0.2:4001".into();
    assert_eq!(formation.join(moved, "10.0.0.2:50001"), Ok(Progress::Waiting(2)));
    formation.join(join(1), "10.0.0.1:50000").unwrap();
    formation.join(join(3), "10.0.0.3:50000").unwrap();
    assert_eq!(formation.found(1).unwrap().roster.worker(2).unwrap().address, "10.0.0.2:4001");
}

#[test]
fn a_rank_that_has_gone_makes_room() {
    let mut formation = formation();
    let mut small = join(2);
    small.settings.staging = 1;
    formation.join(small, "10.0.0.2:50000").unwrap();
    formation.withdraw(2, 999);
    assert_eq!(formation.missing(), [1, 3], "another life of rank 2 has gone, not this one");
    formation.withdraw(2, 102);
    assert_eq!(formation.missing(), [1, 2, 3]);
    for rank in 1..4 {
        let mut again = join(rank);
        again.process.incarnation += 1;
        formation.join(again, "10.0.0.8:1").unwrap();
    }
    assert_eq!(formation.found(1).unwrap().parameters.staging, 64, "what is gone has no say");
}

#[test]
fn wrong_worlds_and_ranks_are_refused() {
    let mut formation = formation();
    let refusal = formation.join(Join { world: 5, ..join(1) }, "10.0.0.1:50000").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "rank 1 has a world of 5, and other ranks have 4: give every process the same WORLD_SIZE, or, for two groups over \
         one torch store, each group its own PrefixStore"
    );
    let refusal = formation.join(join(4), "10.0.0.4:50000").unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "there is no rank 4 in a world of 4: ranks are 0 to the world's size - 1"
    );
    assert_eq!(formation.missing(), [1, 2, 3]);
}

fn named(rank: u32, names: &[(&str, &str)]) -> Join {
    let name = |(source, name): &(&str, &str)| JobName { source: (*source).into(), name: (*name).into() };
    Join { job: names.iter().map(name).collect(), ..join(rank) }
}

#[test]
fn a_rank_of_another_job_is_refused_with_both_names() {
    let mut formation = Formation::new(named(0, &[("RUN", "a"), ("SLURM", "5")])).unwrap();
    let refusal = formation.join(named(1, &[("RUN", "b"), ("SLURM", "5")]), "10.0.0.1:1").unwrap_err();
    let both = "rank 1 is of the job RUN=b and has met the job RUN=a";
    assert!(refusal.to_string().starts_with(both) && refusal.to_string().contains("HERRINGBONE_JOB"));
    // It comes before what else differs: that is no mistake in a job of its own.
    let other = Join { world: 9, ..named(0, &[("SLURM", "6")]) };
    assert!(matches!(formation.join(other, "10.0.0.1:2").unwrap_err(), Refusal::OtherJob { rank: 0, .. }));
    assert_eq!(formation.missing(), [1, 2, 3]);
    // The first source that both know decides.
    assert!(formation.join(named(1, &[("RUN", "a"), ("SLURM", "6")]), "10.0.0.1:3").is_ok());
    assert!(formation.join(named(2, &[("MPI", "c")]), "10.0.0.1:4").is_ok());
    assert_eq!(formation.join(join(3), "10.0.0.1:5"), Ok(Progress::Complete), "one without a name is let in");
}

#[test]
fn where_rank_0_has_no_name_the_first_that_comes_with_one_counts() {
    let mut formation = formation();
    assert!(formation.job().is_empty());
    formation.join(named(2, &[("SLURM", "5")]), "10.0.0.2:1").unwrap();
    assert_eq!(formation.job(), named(2, &[("SLURM", "5")]).job);
    assert!(formation.join(named(1, &[("SLURM", "6")]), "10.0.0.1:1").is_err());
    formation.withdraw(2, 102);
    assert!(formation.join(named(1, &[("SLURM", "6")]), "10.0.0.1:1").is_ok());
}

#[test]
fn settings_that_contradict_rank_0_are_refused() {
    let refused = |change: fn(&mut Settings)| {
        let mut join = join(1);
        change(&mut join.settings);
        let mut formation = formation();
        let refusal = formation.join(join, "10.0.0.1:50000").unwrap_err();
        assert_eq!(formation.missing(), [1, 2, 3]);
        refusal.to_string()
    };
    assert_eq!(
        refused(|settings| settings.algorithm = Some("tree".into())),
        "rank 1 has HERRINGBONE_ALGORITHM = \"tree\", rank 0 has \"ring\": set it to the same on every rank"
    );
    assert!(refused(|settings| settings.transport = Some("tcp".into())).contains("_TRANSPORT = \"tcp\""));
    let order = refused(|settings| settings.order = Some(FoldOrder::Hosts));
    assert!(order.contains("_FOLD_ORDER = \"hosts\", rank 0 has \"ranks\""), "{order}");
    assert_eq!(
        refused(|settings| settings.cutting = 6),
        "rank 1 runs a build that cuts messages otherwise (0000000000000006) than rank 0's (0000000000000005): \
         install the same release everywhere"
    );
    let long = refused(|settings| settings.reducers = vec!["10.0.0.8:7070".into(); 9]);
    assert!(long.contains("10.0.0.8:7070,10.0.0.8:7070"), "{long}");
    assert!(long.len() < 256, "{long}");
}

/// Ranks 0 and 1 of four run on host-0, ranks 2 and 3 on host-1.
#[test]
fn nodes_that_are_called_as_hosts_are_found_by_their_names() {
    let links = LinkMatrix::of_weights(&[vec![0.0, 3.0], vec![2.0, 0.0]]).unwrap();
    let placed = |nodes: [&str; 2]| {
        let mut first = join(0);
        first.settings.wiring = links.clone().into();
        let mut formation = Formation::new(first).unwrap();
        for rank in 1..4 {
            formation.join(join(rank), "10.0.0.1:50000").unwrap();
        }
        formation.place(&nodes.map(String::from))?;
        Ok::<_, herringbone_core::topology::TopologyError>(
            formation.found(1).unwrap().parameters.wiring.links.unwrap(),
        )
    };
    let by_name = placed(["host-1", "host-0"]).unwrap();
    assert_eq!(by_name.size(), 4);
    // host-0 is the second node.
    assert_eq!((by_name.weight(0, 2), by_name.weight(3, 1)), (2.0, 3.0));
    assert_eq!(
        (by_name.weight(0, 1), by_name.weight(0, 0)),
        (3.0, 0.0),
        "ranks of one host have the fastest link"
    );
    let partly = placed(["host-1", "other"]).unwrap_err().to_string();
    assert_eq!(
        partly,
        "rank 0 runs on host-0, and the topology's nodes are host-1, other; name a node as each host is called, or none, so that \
         node i is rank i"
    );
    let neither = placed(["a", "b"]).unwrap_err().to_string();
    assert_eq!(
        neither,
        "the topology has 2 nodes and the job 4 ranks, and rank 0's host host-0 is none of a, b; give it a node for each rank, in \
         their order, or name its nodes as the hosts are called"
    );
}

/// Ranks 0 and 1 of four run on host-0, ranks 2 and 3 on host-1.
#[test]
fn ranks_of_a_host_have_its_port_and_others_are_refused() {
    let port = |rate| Port { out: rate, into: 2 * rate };
    let ports = |first, third| Ports::new(vec![port(first), port(0), port(third), port(0)], 5).unwrap();
    let wiring = |first, third| Wiring { ports: Some(ports(first, third)), ..Wiring::default() };
    let mut first = join(0);
    first.settings.wiring = wiring(3_000, 9_000);
    let mut formation = Formation::new(first).unwrap();
    let mut other = join(1);
    other.settings.wiring = wiring(3_000, 8_000);
    let refusal = formation.join(other, "10.0.0.1:50000").unwrap_err().to_string();
    assert!(refusal.contains("HERRINGBONE_TOPOLOGY"), "{refusal}");
    for rank in 1..4 {
        formation.join(join(rank), "10.0.0.1:50000").unwrap();
    }
    formation.place(&[]).unwrap();
    let known = formation.found(1).unwrap().parameters.wiring.ports.unwrap();
    assert_eq!([0, 1, 2, 3].map(|rank| known.port(rank).out), [3_000, 3_000, 9_000, 9_000]);
    assert_eq!((known.port(3).into, known.nanoseconds()), (18_000, 5));
}

#[test]
fn a_job_that_measures_says_so_to_all() {
    let mut first = Join { world: 2, ..join(0) };
    first.settings.measuring.at_start = true;
    let mut formation = Formation::new(first).unwrap();
    let mut other = Join { world: 2, ..join(1) };
    other.settings.wiring = LinkMatrix::uniform(2, 1.0).into();
    let refusal = formation.join(other, "10.0.0.1:50000").unwrap_err().to_string();
    assert!(
        refusal.contains("HERRINGBONE_TOPOLOGY") && refusal.contains("rank 0 has \"measure\""),
        "{refusal}"
    );
    formation.join(Join { world: 2, ..join(1) }, "10.0.0.1:50000").unwrap();
    let parameters = formation.found(1).unwrap().parameters;
    assert!(parameters.measuring.at_start && parameters.wiring.is_unknown());
}

#[test]
fn a_job_that_follows_its_ports_says_so_to_all() {
    let two = |rank, while_running| {
        let mut join = Join { world: 2, ..join(rank) };
        join.settings.measuring.while_running = while_running;
        join
    };
    let mut formation = Formation::new(two(0, false)).unwrap();
    let refusal = formation.join(two(1, true), "10.0.0.1:50000").unwrap_err().to_string();
    assert!(refusal.contains("HERRINGBONE_REBALANCE"), "{refusal}");
    let mut formation = Formation::new(two(0, true)).unwrap();
    formation.join(two(1, false), "10.0.0.1:50000").unwrap();
    assert!(formation.found(1).unwrap().parameters.measuring.while_running);
}

/// Rank 0's host is hosts 0 and 1 of four ranks; the others are as far as their connections say.
#[test]
fn round_trips_travel_with_what_rank_0_decides() {
    let mut formation = formation();
    for rank in 1..4 {
        formation.join(join(rank), "10.0.0.1:50000").unwrap();
        formation.measured(rank, [0, 30, 20_480, 0][rank as usize]);
    }
    let trips = formation.found(1).unwrap().parameters.wiring.round_trips;
    assert_eq!(trips.numbers(), [0, 0, 20_480, 0]);
    assert_eq!(trips.nanoseconds(&[0, 1, 2, 3]), Some(10_240_000));
    // A process that comes in place of another one has a connection of its own.
    formation.join(join(2), "10.0.0.2:50001").unwrap();
    assert_eq!(formation.found(1).unwrap().parameters.wiring.round_trips.nanoseconds(&[0, 1, 2, 3]), None);
    formation.measured(9, 1);
}
