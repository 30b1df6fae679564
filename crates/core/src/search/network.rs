//! The cost of a message: the links, ports and threads that it keeps busy, and for how long.

use crate::{group::Rank, simulate::Rig};
use alloc::{vec, vec::Vec};

/// Of how many parts of the buffer each entry of [`Interconnect::picoseconds`] has one.
const PARTS: u64 = 1024;

/// What workers share, and the ways between them.
#[derive(Clone, Debug)]
pub(super) struct Interconnect {
    pub(super) ranks: usize,
    /// For each resource, what a 1,024th of the buffer takes it.
    picoseconds: Vec<u64>,
    /// The resources that a message from one rank to another takes, where there is a link: `[from * ranks + to]`.
    taken: Vec<Option<Vec<u16>>>,
    /// The next rank on the way from one to another.
    next: Vec<Rank>,
    /// What such a way takes in all, which [`next`](Self::next) keeps lowest.
    distance: Vec<u64>,
}

/// Numbers resources as they are named.
struct Resources {
    picoseconds: Vec<u64>,
    bytes: u64,
}

impl Resources {
    /// A resource of so many bytes/s, if that limits anything.
    fn add(&mut self, rate: u64) -> Option<u16> {
        let time = crate::simulate::duration(self.bytes, rate) / PARTS;
        (rate > 0).then(|| {
            self.picoseconds.push(time.max(1));
            (self.picoseconds.len() - 1) as u16
        })
    }
}

impl Interconnect {
    /// That of the workers of a rig, for buffers of so many bytes.
    pub(super) fn of(rig: &Rig, ranks: usize, bytes: u64) -> Self {
        let mut resources = Resources { picoseconds: Vec::new(), bytes: bytes.max(PARTS) };
        let costs = &rig.costs;
        let threads: Vec<[Option<u16>; 2]> = (0..ranks)
            .map(|_| {
                let thread = resources.add(costs.send.rate.min(costs.receive.rate));
                [thread, thread]
            })
            .collect();
        let mut both = |port: &crate::simulate::Port| [resources.add(port.out), resources.add(port.into)];
        let ports: Vec<[Option<u16>; 2]> = rig.ports.iter().map(&mut both).collect();
        let uplinks: Vec<[Option<u16>; 2]> =
            rig.sites.iter().flat_map(|sites| &sites.uplinks).map(&mut both).collect();
        let mut taken = vec![None; ranks * ranks];
        for (from, to) in (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to))) {
            if from == to {
                continue;
            }
            let mut ways = vec![threads[from][0], threads[to][1]];
            match &rig.links {
                Some((size, rates)) => match rates[from * size + to] {
                    0 => continue,
                    rate => ways.push(resources.add(rate)),
                },
                None => {
                    let hosts = [from, to].map(|rank| rig.hosts[rank] as usize);
                    if hosts[0] != hosts[1] {
                        ways.extend([ports[hosts[0]][0], ports[hosts[1]][1]]);
                        let site = |host: usize| {
                            rig.sites
                                .as_ref()
                                .and_then(|sites| sites.of_hosts[host])
                                .map(|site| site as usize)
                        };
                        let [out, into] = hosts.map(site);
                        if out != into {
                            ways.extend([
                                out.and_then(|site| uplinks[site][0]),
                                into.and_then(|site| uplinks[site][1]),
                            ]);
                        }
                    }
                }
            }
            taken[from * ranks + to] = Some(ways.into_iter().flatten().collect());
        }
        let picoseconds = resources.picoseconds;
        let (next, distance) = ways(ranks, &picoseconds, &taken);
        Self { ranks, picoseconds, taken, next, distance }
    }

    /// How many resources there are.
    pub(super) fn resources(&self) -> usize {
        self.picoseconds.len()
    }

    /// Whether there is a way from each rank to each other.
    pub(super) fn is_connected(&self) -> bool {
        self.distance.iter().all(|distance| *distance < FAR)
    }

    /// What a way takes in all.
    pub(super) fn distance(&self, from: Rank, to: Rank) -> u64 {
        self.distance[from as usize * self.ranks + to as usize]
    }

    /// The ranks on the way from one to another: through others where there is no link, or a slow one. Without the first.
    pub(super) fn way(&self, from: Rank, to: Rank) -> impl Iterator<Item = Rank> + use<'_> {
        let mut at = from;
        core::iter::from_fn(move || {
            (at != to).then(|| {
                at = self.next[at as usize * self.ranks + to as usize];
                at
            })
        })
    }

    /// Tells what a message of `units` parts keeps busy on its way, and for how long: resources and times.
    pub(super) fn carry(&self, from: Rank, to: Rank, units: u64, mut busy: impl FnMut(usize, u64)) {
        let mut at = from;
        for hop in self.way(from, to) {
            let taken = self.taken[at as usize * self.ranks + hop as usize].as_deref().unwrap_or_default();
            for resource in taken {
                busy(usize::from(*resource), units * self.picoseconds[usize::from(*resource)]);
            }
            at = hop;
        }
    }
}

/// Farther than any way.
const FAR: u64 = u64::MAX / 4;

/// The next rank on the shortest way between each two, and what it takes (Floyd and Warshall).
fn ways(ranks: usize, picoseconds: &[u64], taken: &[Option<Vec<u16>>]) -> (Vec<Rank>, Vec<u64>) {
    let mut distance = vec![FAR; ranks * ranks];
    let mut next: Vec<Rank> = (0..ranks * ranks).map(|pair| (pair % ranks) as Rank).collect();
    for (pair, resources) in taken.iter().enumerate() {
        if let Some(resources) = resources {
            // A relay receives and sends at once, so of each hop the slowest resource counts, and each hop by itself.
            let slowest = resources.iter().map(|resource| picoseconds[usize::from(*resource)]).max();
            distance[pair] = slowest.unwrap_or(1).min(FAR / ranks as u64 / 2);
        }
    }
    (0..ranks).for_each(|rank| distance[rank * ranks + rank] = 0);
    for through in 0..ranks {
        for from in 0..ranks {
            for to in 0..ranks {
                let around = distance[from * ranks + through].saturating_add(distance[through * ranks + to]);
                if around < distance[from * ranks + to] {
                    distance[from * ranks + to] = around;
                    next[from * ranks + to] = next[from * ranks + through];
                }
            }
        }
    }
    (next, distance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{simulate::Costs, topology::LinkMatrix};

    #[test]
    fn messages_go_round_missing_links() {
        let rows: Vec<Vec<f32>> = [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]].map(Vec::from).into();
        let links = LinkMatrix::of_weights(&rows).unwrap();
        let network = Interconnect::of(&Rig::with_links(&links, 0, Costs::FREE), 3, 1 << 20);
        assert!(network.is_connected());
        assert_eq!(network.way(0, 2).collect::<Vec<_>>(), [1, 2]);
        let mut hops = Vec::new();
        network.carry(0, 2, 3, |resource, time| hops.push((resource, time)));
        assert!(hops.len() == 2 && hops[0].1 == hops[1].1 && hops[0].0 != hops[1].0, "{hops:?}");
        assert_eq!(network.distance(0, 2), 2 * network.distance(0, 1));
    }

    #[test]
    fn hosts_share_their_ports() {
        let network =
            Interconnect::of(&Rig::with_ports(vec![0, 0, 1], 1_000_000, 0, Costs::FREE), 3, 1 << 20);
        let resources = |from, to| {
            let mut found = Vec::new();
            network.carry(from, to, 1, |resource, _| found.push(resource));
            found
        };
        assert!(resources(0, 1).is_empty(), "in memory");
        assert_eq!(resources(0, 2), resources(1, 2));
        assert_ne!(resources(0, 2), resources(2, 0), "ports carry both ways at once");
    }
}
