//! Proofs by symmetry: they say what proofs of each rank say, and refuse what these refuse.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    group::{FoldOrder, Group},
    schedule::{Form, Origin, Place, ProgramBuilder, Schedule, Source, Step},
    verify::{Order, Proof, StepFault, VerifyError, verify, verify_each_rank},
};

/// An algorithm, and of how many workers, how many of them on each host.
struct Case {
    algorithm: &'static str,
    collective: Collective,
    workers: u32,
    per_host: u32,
    order: FoldOrder,
}

impl Case {
    fn schedule(&self) -> Option<(Schedule, Group)> {
        let algorithm: Algorithm = self.algorithm.parse().unwrap();
        let hosts: Vec<u32> = (0..self.workers).map(|rank| rank / self.per_host).collect();
        let reducers = if algorithm.needs_reducers() { self.workers } else { 0 };
        let group = self.order.group(&hosts, &[]);
        let layout = Layout { reducers, hosts: &hosts, links: None };
        Some((algorithm.schedule(self.collective, &group, &layout).ok()?, group))
    }

    /// Whether it is proven by symmetry, and then in both ways to the same.
    fn is_proven_alike(&self) -> bool {
        let Self { algorithm, collective, workers, per_host, .. } = *self;
        let Some((schedule, group)) = self.schedule() else { return false };
        let is_alike = schedule.symmetry().is_some() && workers > 1;
        let proven = verify(schedule, collective, &group).unwrap();
        let case = format!("{algorithm} {collective} of {workers}, {per_host} on a host");
        // A shift swaps both inputs, and leaves the sum as it is.
        let is_alike = is_alike && (algorithm, workers) != ("ring", 2);
        assert_eq!(proven.proof() == Proof::Symmetry, is_alike, "{case}");
        if is_alike {
            let each = verify_each_rank(self.schedule().unwrap().0, collective, &group).unwrap();
            assert_eq!(each.proof(), Proof::EachRank);
            assert_eq!(
                (proven.order(), proven.serial(), proven.restartable(), proven.cost()),
                (each.order(), each.serial(), each.restartable(), each.cost()),
                "{case}"
            );
        }
        is_alike
    }
}

const ALIKE: [&str; 13] = [
    "radix",
    "radix(2,2,2,2,2,2,2,2)",
    "radix(4,2)",
    "radix(2,8,4)",
    "radix(4;2,2)",
    "one_shot",
    "coded(radix)",
    "reduction_server",
    "coded(reduction_server)",
    "hierarchical",
    "hierarchical(radix(2),radix(4))",
    "doubling",
    "ring",
];

#[test]
fn proofs_by_symmetry_say_what_proofs_of_each_rank_say() {
    let collectives =
        [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather, Collective::Barrier];
    let mut proven = 0;
    for (algorithm, collective) in ALIKE.into_iter().flat_map(|name| collectives.map(|each| (name, each))) {
        for workers in (1..=33).chain([48, 64, 96]) {
            let per_host = [1, 2, 3, 4, 8];
            let follows_hosts = algorithm.starts_with("hierarchical");
            for per_host in per_host.into_iter().take(if follows_hosts { 5 } else { 1 }) {
                for order in FoldOrder::ALL {
                    proven +=
                        u32::from(Case { algorithm, collective, workers, per_host, order }.is_proven_alike());
                }
            }
        }
    }
    println!("{proven} proven in both ways");
    assert!(proven > 1000, "{proven}");
}

#[test]
fn proofs_by_symmetry_of_256_ranks_say_what_proofs_of_each_rank_say() {
    for algorithm in ALIKE.into_iter().filter(|name| *name != "radix(4;2,2)") {
        let (collective, order) = (Collective::AllReduce, FoldOrder::Ranks);
        let case = Case { algorithm, collective, workers: 256, per_host: 8, order };
        assert!(case.is_proven_alike(), "{algorithm}");
    }
}

/// So many that all ranks' programs together would have 2^29 steps.
#[test]
fn many_ranks_that_are_alike_are_proven_by_one() {
    const WORKERS: u32 = 16384;
    for (algorithm, order, rounds, messages, partners) in [
        ("ring", Order::Schedule, 2 * (WORKERS - 1), 2 * (WORKERS - 1), 2),
        ("doubling", Order::Fixed, 14, 14, 14),
        ("radix", Order::Fixed, 2, 2 * (WORKERS - 1), WORKERS - 1),
        ("radix(128,128)", Order::Fixed, 4, 2 * (127 + 127), 2 * 127),
        ("radix(64,16,16)", Order::Fixed, 6, 2 * (63 + 15 + 15), 63 + 2 * 15),
        ("coded(radix)", Order::Fixed, 2, 2 * (WORKERS - 1), WORKERS - 1),
        ("one_shot", Order::Fixed, 1, WORKERS - 1, WORKERS - 1),
        ("hierarchical(radix,radix(16,32))", Order::Fixed, 6, 2 * (31 + 15 + 31), 31 + 15 + 31),
        ("reduction_server", Order::Fixed, 2, WORKERS, WORKERS),
        ("coded(reduction_server)", Order::Fixed, 2, WORKERS, WORKERS),
    ] {
        let collective = Collective::AllReduce;
        let case = Case { algorithm, collective, workers: WORKERS, per_host: 32, order: FoldOrder::Ranks };
        let (schedule, group) = case.schedule().unwrap();
        let proven = verify(schedule, collective, &group).unwrap();
        assert_eq!((proven.proof(), proven.order()), (Proof::Symmetry, order), "{algorithm}");
        let cost = proven.cost();
        let worker = (cost.rounds, cost.worker.messages, cost.worker.partners);
        assert_eq!(worker, (rounds, messages, partners), "{algorithm}");
        let all = u64::from(WORKERS) * u64::from(cost.worker.messages + cost.reducer.messages);
        assert_eq!(cost.messages, all, "{algorithm}");
    }
}

#[test]
fn many_ranks_that_are_not_alike_are_refused_with_what_to_do() {
    let (algorithm, collective, order) = ("radix(2,4;4,2)", Collective::AllReduce, FoldOrder::Ranks);
    let case = Case { algorithm, collective, workers: 16384, per_host: 1, order };
    let (schedule, group) = case.schedule().unwrap();
    let refused = verify(schedule, collective, &group).unwrap_err();
    assert_eq!(refused, VerifyError::TooLarge { what: "places".into() });
    assert!(refused.to_string().contains("Take fewer ranks"), "{refused}");
}

/// Nothing is proven of a schedule that shifts take to another one, or that promises something to one rank.
#[test]
fn what_a_shift_changes_is_not_proven_by_symmetry() {
    for (algorithm, collective) in [
        ("radix", Collective::Reduce { root: 0 }),
        ("radix", Collective::Broadcast { root: 1 }),
        ("one_shot", Collective::Gather { root: 0 }),
        ("one_shot", Collective::AllToAll),
        ("weighted(radix,16x3,1)", Collective::AllReduce),
        ("star", Collective::AllReduce),
    ] {
        let case = Case { algorithm, collective, workers: 4, per_host: 1, order: FoldOrder::Ranks };
        let (schedule, group) = case.schedule().unwrap();
        assert_eq!(verify(schedule, collective, &group).unwrap().proof(), Proof::EachRank, "{algorithm}");
    }
}

/// Slots that were written one by one hold their chunks in another order after a shift, so what is sent of them together is wrong there,
/// though it is right on the first rank.
#[test]
fn chunks_that_shifts_do_not_keep_together_are_not_proven_by_symmetry() {
    let collective = Collective::AllReduce;
    let case =
        Case { algorithm: "radix(2,2,2)", collective, workers: 8, per_host: 1, order: FoldOrder::Ranks };
    let (schedule, group) = case.schedule().unwrap();
    let first = schedule.program(0).into_owned();
    let [Step::Send { .. }, Step::Fold { .. }, ..] = first.steps() else { panic!("{first}") };
    let mut program = ProgramBuilder::new();
    for form in first.slots() {
        program.slot(*form);
    }
    // The first stage, chunk by chunk.
    for chunk in 4..8 {
        program.send(Place::User(chunk), [1]);
    }
    for chunk in 0..4 {
        let own = Source { from: Origin::At(Place::User(chunk)), merges: 0 };
        let other = Source { from: Origin::Head { lane: 1, form: Form::Plain }, merges: 1 };
        program.fold_shaped(chunk, [own, other], Place::Slot(chunk), false);
    }
    for (at, step) in first.steps().iter().enumerate().skip(2) {
        let step = match *step {
            Step::Send { from, to } => program.send(from, first.lanes(to).iter().copied()),
            Step::Fold { chunk, from, into, finish } => {
                program.fold_shaped(chunk, first.sources(from).iter().copied(), into, finish)
            }
            Step::Recv { lane, chunk, into } => program.recv(lane, chunk, into),
            other => panic!("{other:?}"),
        };
        step.span(first.span(at));
    }
    let (program, symmetry) = (program.build(), schedule.symmetry().unwrap().clone());
    let cut = schedule.cut().clone();
    let alike = Schedule::alike(symmetry, false, cut, move |_| program.clone()).with_chunks_side_by_side();
    let refused = verify(alike, collective, &group).unwrap_err();
    assert!(
        matches!(refused, VerifyError::Step { fault: StepFault::SlotOfTwoChunks { .. }, .. }),
        "{refused}"
    );
}
