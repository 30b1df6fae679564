//! The load of ports by formulas, so that no program is made or walked: a plan by ports takes microseconds for that.

use super::{
    Request, SHARDED_RANKS,
    port_loads::{MemberPlaces, PortLoads},
    stages::{self, Stages},
};
use crate::{
    algorithm::{Algorithm, pieces_of_hosts},
    codec::Codec,
    collective::Collective,
};
use alloc::vec::Vec;
use core::ops::Range;

/// What ports carry of an all-reduce by kinds of chunks, of which each rank owns one, by its shares if it has any: of one stage of `radix`
/// between any hosts, and of `hierarchical` between hosts that are alike; where chunks are of one kind, also of the stages
/// that sizes choose between such hosts. `None` where programs have to be walked.
pub(super) fn loads(
    request: &Request<'_>,
    places: &MemberPlaces,
    algorithm: &Algorithm,
    kinds: usize,
    kind: impl Fn(u32) -> usize,
) -> Option<PortLoads> {
    let workers = request.group.size() as usize;
    let is_plain = request.codec == Codec::Plain && request.collective == Collective::AllReduce;
    if !is_plain || request.group.has_several() || places.site(0).is_some() {
        return None;
    }
    let (plain, shares) = match algorithm {
        Algorithm::Weighted { plain, shares } => (&**plain, Some(shares)),
        plain => (plain, None),
    };
    let owned = |rank: u32| shares.map_or(1, |shares| u64::from(shares.parts()[rank as usize]));
    let hosts = &places.hosts[..workers];
    if is_one_stage(plain) {
        return Some(PortLoads::of_one_stage(hosts, owned, kinds, kind));
    }
    if *plain == Algorithm::hierarchical() && are_summed(request) {
        let width = u64::from(request.widening);
        return Some(PortLoads::of_host_sums(hosts, width, owned, kinds, kind));
    }
    let are_alike = places.workers_hosts == workers || are_summed(request);
    if kinds > 1 || shares.is_some() || !are_alike || workers > SHARDED_RANKS as usize {
        return None;
    }
    let Stages { algorithm, busiest, .. } = stages::choose(request);
    (algorithm == *plain).then(|| PortLoads::alike(places.workers_hosts, busiest, workers as u64))
}

/// Whether each rank talks with every other in one stage.
pub(super) fn is_one_stage(algorithm: &Algorithm) -> bool {
    matches!(algorithm, Algorithm::Radix { scatter, gather } if scatter.is_empty() && gather.is_empty())
}

/// Whether all hosts have as many ranks, several, which are a whole node of the canonical tree: then each sends one sum of them.
fn are_summed(request: &Request<'_>) -> bool {
    let pieces = pieces_of_hosts(request.group, request.hosts);
    pieces.is_ok_and(|hosts| {
        let ranks = |host: &Vec<Range<u32>>| host.iter().map(Range::len).sum::<usize>();
        let even = hosts.windows(2).all(|pair| ranks(&pair[0]) == ranks(&pair[1]));
        even && hosts.iter().all(|host| host.len() == 1)
    })
}

#[cfg(test)]
mod tests {
    use super::super::{choose, counted::tests::large};
    use super::*;
    use crate::{
        algorithm::{Layout, Shares},
        group::Group,
    };

    /// Hosts of so many ranks, and whether they are alike.
    const LAYOUTS: [(&[u32], bool); 12] = [
        (&[1; 4], true),
        (&[1; 6], true),
        (&[1; 7], true),
        (&[1; 12], true),
        (&[1; 40], true),
        (&[2; 2], true),
        (&[2; 3], true),
        (&[4; 6], true),
        (&[8; 5], true),
        (&[3; 3], false),
        (&[2, 2, 1], false),
        (&[3, 1], false),
    ];

    fn hosts_of(sizes: &[u32]) -> Vec<u32> {
        (0..).zip(sizes).flat_map(|(host, size)| (0..*size).map(move |_| host)).collect()
    }

    /// What the programs say, as parts of the buffer.
    fn counted(request: &Request<'_>, places: &MemberPlaces, algorithm: &Algorithm) -> Vec<f64> {
        let layout = Layout { reducers: 0, hosts: request.hosts, links: None };
        let schedule = algorithm.schedule(request.collective, request.group, &layout).unwrap();
        parts(&PortLoads::of(&schedule, places, request.widening, 1, |_| 0))
    }

    fn parts(loads: &PortLoads) -> Vec<f64> {
        (0..loads.directions().count() / 2).flat_map(|port| loads.of_buffer(port, &[1])).collect()
    }

    #[test]
    fn what_is_reckoned_is_what_the_programs_say() {
        for ((sizes, are_alike), widening) in
            LAYOUTS.into_iter().flat_map(|layout| [1, 2].map(|widening| (layout, widening)))
        {
            let (group, hosts) = (Group::of_size(sizes.iter().sum()), hosts_of(sizes));
            let request = Request { widening, ..large(&group, &hosts) };
            let places = MemberPlaces::of(&request, None);
            let shares = (0..group.size()).map(|rank| (rank * 7 % 17) as u8).collect();
            let shares = Shares::new(shares).unwrap();
            let stages = [Algorithm::radix(alloc::vec![]), Algorithm::hierarchical()];
            let by_shares = stages.clone().map(|plain| plain.weighted(shares.clone()));
            let chosen = choose(&request).unwrap().algorithm;
            for algorithm in stages.into_iter().chain(by_shares).chain([chosen.clone()]) {
                let found = loads(&request, &places, &algorithm, 1, |_| 0);
                let plain =
                    if let Algorithm::Weighted { plain, .. } = &algorithm { plain } else { &algorithm };
                assert!(
                    found.is_some() || !are_alike || sizes[0] == 1 && *plain == Algorithm::hierarchical()
                );
                assert!(found.is_some() || !is_one_stage(plain), "{sizes:?}: {algorithm}");
                let Some(found) = found else { continue };
                let (found, counted) = (parts(&found), counted(&request, &places, &algorithm));
                let near = found.iter().zip(&counted).all(|(one, other)| (one - other).abs() < 1e-9);
                assert!(
                    near && found.len() == counted.len(),
                    "{sizes:?}, {widening}, {algorithm}: {found:?} {counted:?}"
                );
            }
        }
    }

    /// Kinds of chunks add up to what all of them are together.
    #[test]
    fn kinds_are_kept_apart() {
        for sizes in [&[1; 5][..], &[2; 4]] {
            let (group, hosts) = (Group::of_size(sizes.iter().sum()), hosts_of(sizes));
            let request = large(&group, &hosts);
            let places = MemberPlaces::of(&request, None);
            for plain in [Algorithm::radix(alloc::vec![]), Algorithm::hierarchical()] {
                let by_host = |rank: u32| places.hosts[rank as usize] as usize;
                let Some(found) = loads(&request, &places, &plain, places.workers_hosts, by_host) else {
                    continue;
                };
                let lengths: Vec<u8> = (1..=places.workers_hosts as u8).collect();
                let of_ranks = (0..group.size()).map(|rank| lengths[by_host(rank)]).collect();
                let weighted = plain.weighted(Shares::new(of_ranks).unwrap());
                let exact = counted(&request, &places, &weighted);
                let found = (0..places.workers_hosts).flat_map(|host| found.of_buffer(host, &lengths));
                assert!(
                    found.zip(&exact).all(|(one, other)| (one - other).abs() < 1e-9),
                    "{sizes:?}: {weighted}"
                );
            }
        }
    }
}
