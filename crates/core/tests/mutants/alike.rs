//! Mutants of schedules whose ranks are alike, and stay so: the first program differs in one step, and with it all that are counterparts of it.

use super::draft::Draft;
use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    group::Group,
    schedule::Schedule,
    verify::{Proof, verify, verify_each_rank},
};

/// How mutants fared.
#[derive(Debug, Default)]
struct Tally {
    refused: usize,
    /// Proven in both ways, to the same.
    proven: usize,
    /// Proven rank by rank alone.
    not_by_symmetry: usize,
}

impl Tally {
    fn add(&mut self, name: &str, schedule: &Schedule, collective: Collective, group: &Group) {
        let symmetry = schedule.symmetry().expect("ranks are alike");
        let draft = Draft::of(schedule, 1);
        let firsts: Vec<u32> = (0..schedule.ranks()).step_by(symmetry.size() as usize).collect();
        let programs = |schedule: &Schedule| {
            firsts.iter().map(|first| schedule.program(*first).into_owned()).collect::<Vec<_>>()
        };
        let original = programs(schedule);
        for (kind, mutant) in draft.mutants() {
            let mutant = mutant.schedule();
            let first = programs(&mutant);
            if first == original {
                continue;
            }
            let alike = || {
                let (symmetry, first, cut) = (symmetry.clone(), first.clone(), mutant.cut().clone());
                let size = symmetry.size();
                let alike = Schedule::alike(symmetry, first.len() > 1, cut, move |rank| {
                    first[(rank / size) as usize].clone()
                });
                if mutant.side_by_side() { alike.with_chunks_side_by_side() } else { alike }
            };
            let each = verify_each_rank(alike(), collective, group);
            match (verify(alike(), collective, group), each) {
                (Ok(proven), Ok(each)) => {
                    let said = [&proven, &each]
                        .map(|proven| (proven.order(), proven.serial(), proven.restartable(), proven.cost()));
                    assert_eq!(said[0], said[1], "{name}: {kind}\n{}", alike());
                    match proven.proof() {
                        Proof::Symmetry => self.proven += 1,
                        Proof::EachRank => self.not_by_symmetry += 1,
                    }
                }
                (Err(found), Err(other)) => {
                    assert_eq!(found, other, "{name}: {kind}");
                    self.refused += 1;
                }
                (by_symmetry, each) => panic!("{name}: {kind}: {by_symmetry:?} {each:?}\n{}", alike()),
            }
        }
    }
}

/// What is proven by symmetry is proven rank by rank, to the same. Some of what is right only rank by rank is proven so: a fold in
/// another order, of which a shift makes again another one, has no counterpart.
#[test]
fn mutants_that_stay_alike_are_refused_by_symmetry_and_rank_by_rank() {
    let mut tally = Tally::default();
    for (name, collective) in [
        ("radix", Collective::AllReduce),
        ("radix", Collective::ReduceScatter),
        ("radix", Collective::AllGather),
        ("radix(2,2,2)", Collective::AllReduce),
        ("radix(2,2,2)", Collective::AllGather),
        ("ring", Collective::AllReduce),
        ("doubling", Collective::AllReduce),
        ("one_shot", Collective::AllReduce),
        ("one_shot", Collective::Barrier),
        ("coded(radix)", Collective::AllReduce),
        ("reduction_server", Collective::AllReduce),
        ("coded(reduction_server)", Collective::AllReduce),
    ] {
        let algorithm: Algorithm = name.parse().unwrap();
        // Three stages have runs of chunks in runs of slots.
        for workers in [2, 3, 4, 6, 8].into_iter().take(if name.contains(',') { 5 } else { 4 }) {
            let reducers = if algorithm.needs_reducers() { workers } else { 0 };
            let (group, layout) = (Group::of_size(workers), Layout { reducers, ..Layout::default() });
            let schedule = algorithm.schedule(collective, &group, &layout).unwrap();
            if schedule.symmetry().is_some() {
                tally.add(name, &schedule, collective, &group);
            }
        }
    }
    println!("{tally:?}");
    assert!(tally.refused > 1000 && tally.proven > 50, "{tally:?}");
}
