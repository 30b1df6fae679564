//! All-reduces of members with several inputs, each sent by its holder. They sum shards in runs of several nodes.

use super::{
    Choice, ONE_SHOT_BYTES, ONE_SHOT_BYTES_HERE, ONE_SHOT_MESSAGE, ONE_SHOT_RANKS, REDUCTION_SERVER_BYTES,
    Request, STAR_BYTES, busiest_link, is_one_host,
    served::{does_not_pay, pays},
    size::ByteCount,
};
use crate::algorithm::{Algorithm, Layout};
use alloc::{format, vec};

pub(super) fn choose(request: &Request<'_>) -> Choice {
    let Request { bytes, group, reducers, .. } = *request;
    let in_all = bytes.saturating_mul(u64::from(group.inputs()));
    let (few, here) = (group.size() <= ONE_SHOT_RANKS, is_one_host(request));
    let most_in_one_shot = if here { ONE_SHOT_BYTES_HERE } else { ONE_SHOT_BYTES };
    let inputs = group.inputs();
    if few && in_all <= most_in_one_shot && bytes <= ONE_SHOT_MESSAGE {
        let why =
            format!("one round: {inputs} inputs of {} <= {}", ByteCount(bytes), ByteCount(most_in_one_shot));
        Choice { algorithm: Algorithm::OneShot, why }
    } else if here && !few && in_all <= STAR_BYTES {
        let why = format!(
            "few messages inside a host: {inputs} inputs of {} <= {}",
            ByteCount(bytes),
            ByteCount(STAR_BYTES)
        );
        Choice { algorithm: Algorithm::Star, why }
    } else if reducers > 0 && bytes >= REDUCTION_SERVER_BYTES {
        by_load(request)
    } else {
        let why = format!("{inputs} inputs of {} ranks go to the ranks that sum them", group.size());
        Choice { algorithm: Algorithm::radix(vec![]), why }
    }
}

/// Whichever leaves less to the busiest link.
fn by_load(request: &Request<'_>) -> Choice {
    let (with, without) = (Algorithm::ReductionServer, Algorithm::radix(vec![]));
    let (loaded, unloaded) = (carried(request, &with), carried(request, &without));
    match loaded < unloaded {
        true => {
            let why = pays(request, REDUCTION_SERVER_BYTES, loaded, unloaded);
            Choice { algorithm: with, why }
        }
        false => Choice { algorithm: without, why: does_not_pay(request, loaded, unloaded) },
    }
}

/// How much of the buffer the busiest link carries one way.
fn carried(request: &Request<'_>, algorithm: &Algorithm) -> f64 {
    let Request { collective, group, reducers, hosts, widening, .. } = *request;
    let schedule = algorithm.schedule(collective, group, &Layout { reducers, hosts, links: None });
    schedule.map_or(f64::INFINITY, |schedule| {
        busiest_link(&schedule, hosts, widening) as f64 / f64::from(schedule.cut().units())
    })
}

#[cfg(test)]
mod tests {
    use super::super::{choose, counted::tests::large};
    use super::*;
    use crate::shards::ShardRuns;

    #[test]
    fn sizes_hosts_and_reducers_decide() {
        let chosen = |lengths: &[u32], bytes, hosts: &[u32], reducers| {
            let group = ShardRuns::of_lengths(lengths).unwrap().group();
            let Choice { algorithm, why } =
                choose(&Request { bytes, reducers, ..large(&group, hosts) }).unwrap();
            format!("{algorithm}: {why}")
        };
        let three = |bytes, hosts: &[u32], reducers| chosen(&[3, 3, 2], bytes, hosts, reducers);
        assert_eq!(three(800, &[], 0), "one_shot: one round: 5 inputs of 800 B <= 4 KiB");
        assert_eq!(three(900, &[], 0), "radix: 5 inputs of 3 ranks go to the ranks that sum them");
        assert_eq!(three(900, &[0; 3], 2), "one_shot: one round: 5 inputs of 900 B <= 64 KiB");
        let nine = chosen(&[2, 2, 3, 2, 2, 2, 2, 2, 2], 1 << 16, &[0; 9], 0);
        assert!(nine.starts_with("star: few messages inside a host: 16 inputs of 64 KiB"), "{nine}");
        assert_eq!(
            three(1 << 20, &[0, 1, 2], 3),
            "radix: 3 reducers do not pay: 2.00 x the buffer per link, 2.00 x without"
        );
        let six = chosen(&[3, 3, 3, 3, 2, 2], 1 << 20, &[0, 1, 2, 3, 4, 5], 6);
        assert!(
            six.starts_with(
                "reduction_server: 1 MiB >= 256 KiB, so 6 reducers pay: 2.00 x the buffer per link"
            ),
            "{six}"
        );
        assert!(six.ends_with("instead of 2.50 x"), "{six}");
    }
}
