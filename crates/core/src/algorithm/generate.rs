//! From an algorithm's name to the function that makes its schedules.

use super::branches::Ways;
use super::partial::Inputs;
use super::shares::Owners;
use super::sites::SiteLevels;
use super::{
    Algorithm, Layout, Unsupported, chain, coded, double_tree, doubling, hierarchical, mixed, one_shot,
    radix, reduction_server, ring, spread, star, tree, trees, weighted,
};
use crate::collective::Collective;
use crate::group::Group;
use crate::schedule::{Cut, Place, ProgramBuilder, Schedule};
use alloc::string::ToString;

impl Algorithm {
    /// The schedule for a collective, the same on every rank; programs are made when they are asked for.
    ///
    /// # Errors
    /// [`Unsupported`] if the algorithm cannot serve this collective, group or layout.
    pub fn schedule(
        &self,
        collective: Collective,
        group: &Group,
        layout: &Layout<'_>,
    ) -> Result<Schedule, Unsupported> {
        let workers = group.size();
        let one_each = || Unsupported::OneInputEach { collective: collective.name() };
        let group = &*collective.group(group).ok_or_else(one_each)?;
        if let Some(root) = collective.root().filter(|root| *root >= workers) {
            return Err(Unsupported::Root { root, size: workers });
        }
        let schedule = match group.has_several() {
            true => self.of_several(group, layout)?,
            false => self.generate(collective, group, layout)?,
        };
        let is_coded = matches!(self, Self::Coded { .. });
        Ok(if schedule.ranks() == 1 && !is_coded { alone(collective, group) } else { schedule })
    }

    /// The all-reduce of members some of which have several inputs: each input goes to the rank that folds all of them.
    fn of_several(&self, group: &Group, layout: &Layout<'_>) -> Result<Schedule, Unsupported> {
        Ok(match self {
            Self::Mixed { shares } => mixed::all_reduce(group, layout.at_least_one()?, *shares),
            Self::OneShot => one_shot::all_reduce(group),
            Self::Star => star::all_reduce(group),
            Self::ReductionServer => {
                let reducers = layout.at_least_one()?;
                mixed::of_reducers(group, reducers, &Owners::even(reducers))
            }
            plain if plain.is_one_stage() => mixed::of_workers(group, &Owners::even(group.size())),
            Self::Weighted { plain, shares } => weighted::of_several(plain, shares, group, layout)?,
            Self::File(file) => file.schedule(group)?,
            _ => return Err(Unsupported::SeveralInputs { algorithm: self.to_string() }),
        })
    }

    fn generate(
        &self,
        collective: Collective,
        group: &Group,
        layout: &Layout<'_>,
    ) -> Result<Schedule, Unsupported> {
        use Collective::{
            AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
        };
        Ok(match (self, collective) {
            (Self::Mixed { shares }, AllReduce) => mixed::all_reduce(group, layout.at_least_one()?, *shares),
            (Self::Chain, AllReduce) => chain::chain(group, 0, Ways { up: true, down: true }),
            (Self::Chain, Reduce { root }) => chain::chain(group, root, Ways { up: true, down: false }),
            (Self::Chain, Broadcast { root }) => chain::chain(group, root, Ways { up: false, down: true }),
            (Self::DoubleTree, AllReduce) => double_tree::all_reduce(group),
            (Self::Ring, AllReduce) => ring::all_reduce(group.size()),
            (Self::Radix { scatter, gather }, AllReduce) => {
                radix::all_reduce(group, None, radix::checked(scatter)?, radix::checked(gather)?)
            }
            (Self::Radix { scatter, .. }, ReduceScatter) => {
                radix::reduce_scatter(group, radix::checked(scatter)?)
            }
            (Self::Radix { gather, .. }, AllGather) => radix::all_gather(group, radix::checked(gather)?),
            (radix, Reduce { root }) if radix.is_one_stage() => spread::reduce(group, root),
            (radix, Broadcast { root }) if radix.is_one_stage() => spread::broadcast(group, root),
            (Self::Doubling, AllReduce | Barrier) => doubling::all_reduce(group),
            (Self::OneShot, AllReduce | Barrier) => one_shot::all_reduce(group),
            (Self::OneShot, AllGather) => radix::all_gather(group, &[]),
            (Self::OneShot, Gather { root }) => one_shot::gather(group, root),
            (Self::OneShot, Scatter { root }) => one_shot::scatter(group, root),
            (Self::OneShot, AllToAll) => one_shot::all_to_all(group),
            (Self::Star, AllReduce | Barrier) => star::all_reduce(group),
            (Self::Tree, AllReduce) => tree::all_reduce(group),
            (Self::Tree, Reduce { root }) => tree::reduce(group, root),
            (Self::Tree, Broadcast { root }) => tree::broadcast(group, root),
            (Self::Trees { mode, single }, AllReduce) => trees::all_reduce(group, layout, *mode, *single)?,
            (Self::Trees { mode, .. }, Reduce { .. } | Broadcast { .. }) => {
                trees::rooted(group, layout, *mode, collective)?
            }
            (Self::ReductionServer, AllReduce) => {
                let reducers = layout.at_least_one()?;
                reduction_server::all_reduce(group, reducers, Owners::even(reducers))
            }
            (Self::Weighted { plain, shares }, AllReduce) => {
                weighted::all_reduce(plain, shares, group, layout)?
            }
            (Self::Hierarchical { inner, outer }, AllReduce) => {
                hierarchical::all_reduce(group, layout, inner, outer, None)?
            }
            (Self::Hierarchical { inner, outer }, ReduceScatter | AllGather) => {
                hierarchical::half(collective, group, layout, inner, outer)?
            }
            (Self::Sites { inner, outer, sizes }, AllReduce | ReduceScatter | AllGather) => {
                SiteLevels { inner, outer, sizes }.schedule(collective, group, layout)?
            }
            (Self::File(file), AllReduce) => file.schedule(group)?,
            (Self::Coded { plain }, AllReduce) => plain.with_coded_messages(group, layout)?,
            (algorithm, collective) => {
                return Err(Unsupported::Collective {
                    algorithm: algorithm.to_string(),
                    collective: collective.name(),
                    instead: instead(collective),
                });
            }
        })
    }

    /// Its all-reduce with coded messages.
    fn with_coded_messages(&self, group: &Group, layout: &Layout<'_>) -> Result<Schedule, Unsupported> {
        Ok(match self {
            plain if plain.is_one_stage() => coded::sharded(group, Owners::even(group.size())),
            Self::ReductionServer => {
                let reducers = layout.at_least_one()?;
                coded::served(group, reducers, Owners::even(reducers))
            }
            Self::Weighted { plain, shares } => weighted::coded(plain, shares, group, layout)?,
            plain => return Err(Unsupported::NoCodedForm { plain: plain.to_string() }),
        })
    }
}

/// An algorithm that has a schedule for a collective.
fn instead(collective: Collective) -> &'static str {
    use Collective::{
        AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    match collective {
        AllReduce | ReduceScatter | AllGather => "radix",
        Reduce { .. } | Broadcast { .. } => "tree",
        Barrier => "doubling",
        Gather { .. } | Scatter { .. } | AllToAll => "one_shot",
    }
}

/// The schedule of a group of one: finish what it has where there is something to fold, else nothing.
fn alone(collective: Collective, group: &Group) -> Schedule {
    let cut = collective.given(1).unwrap_or(Cut::Even { chunks: 1 });
    let inputs = Inputs { group: group.clone(), chunks: 1 };
    Schedule::generated(1, 0, cut, move |_| {
        let mut program = ProgramBuilder::new();
        if collective.folds() {
            program.fold(0, &inputs.sources(0, 0), Place::User(0), true);
        }
        program.build()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::FoldOrder;
    use alloc::vec::Vec;

    /// The programs that are counterparts of the first one are those that the algorithm would write.
    #[test]
    fn images_are_what_algorithms_write() {
        let mut alike = 0;
        for (name, collective, workers, per_host) in [
            ("radix", Collective::AllReduce, 1..20, 1),
            ("radix", Collective::ReduceScatter, 1..20, 1),
            ("radix", Collective::AllGather, 1..20, 1),
            ("radix(2,2,2,2,2)", Collective::AllReduce, 1..40, 1),
            ("radix(4,2)", Collective::AllReduce, 1..40, 1),
            ("radix(2,4,2)", Collective::AllGather, 1..40, 1),
            ("radix(4,4)", Collective::ReduceScatter, 64..65, 1),
            ("radix(4;2,2)", Collective::AllReduce, 1..20, 1),
            ("ring", Collective::AllReduce, 1..40, 1),
            ("doubling", Collective::AllReduce, 1..65, 1),
            ("one_shot", Collective::AllReduce, 1..20, 1),
            ("one_shot", Collective::AllGather, 1..20, 1),
            ("coded(radix)", Collective::AllReduce, 1..20, 1),
            ("hierarchical", Collective::AllReduce, 6..50, 2),
            ("hierarchical", Collective::AllReduce, 6..50, 3),
            ("hierarchical(radix(2,2),radix(2,2))", Collective::AllReduce, 8..66, 4),
            ("reduction_server", Collective::AllReduce, 1..20, 1),
            ("coded(reduction_server)", Collective::AllReduce, 1..20, 1),
        ] {
            let algorithm: Algorithm = name.parse().unwrap();
            for (workers, order) in workers.flat_map(|workers| FoldOrder::ALL.map(|order| (workers, order))) {
                let hosts: Vec<u32> = (0..workers).map(|rank| rank / per_host).collect();
                let layout = Layout { reducers: workers, hosts: &hosts, links: None };
                let layout =
                    if algorithm.needs_reducers() { layout } else { Layout { reducers: 0, ..layout } };
                let Ok(schedule) = algorithm.schedule(collective, &order.group(&hosts, &[]), &layout) else {
                    continue;
                };
                let mut programs = schedule.programs();
                for rank in 0..schedule.ranks() {
                    let Some(made) = schedule.made_for(rank) else { break };
                    assert_eq!(*programs(rank), made, "{name} {collective} of {workers}, rank {rank}");
                    alike += 1;
                }
            }
        }
        assert!(alike > 4000, "{alike}");
    }
}
