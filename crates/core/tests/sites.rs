//! Sites: schedules that add up inside them first, plans that spare their uplinks, and the order of additions that lets each send one sum.

use herringbone_core::{
    algorithm::{Algorithm, Layout},
    collective::Collective,
    element::{DType, ReduceOp},
    group::{FoldOrder, Group},
    plan::{self, Choice, Request, predicted},
    prepare::Sizing,
    simulate::{Calibration, Costs, Resource, SECOND},
    topology::{Port, Ports, Sites},
    verify::{Order, Verified, verify},
};

const COLLECTIVES: [Collective; 3] =
    [Collective::AllReduce, Collective::ReduceScatter, Collective::AllGather];

fn proved(name: &str, collective: Collective, group: &Group, hosts: &[u32]) -> Verified {
    let algorithm: Algorithm = name.parse().expect(name);
    let layout = Layout { reducers: 0, hosts, links: None };
    let schedule = algorithm.schedule(collective, group, &layout);
    let schedule = schedule.unwrap_or_else(|error| panic!("{name}, {collective}, {hosts:?}: {error}"));
    let verified = verify(schedule, collective, group);
    verified.unwrap_or_else(|error| panic!("{name}, {collective}, {hosts:?}: {error}"))
}

fn numbers(sizes: &[u32]) -> Vec<u32> {
    (0..).zip(sizes).flat_map(|(site, size)| vec![site; *size as usize]).collect()
}

fn listed(sizes: &[u32]) -> String {
    sizes.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Every cut of 2 to 64 ranks into sites that are as equal as can be, and cuts that are not.
fn cuts() -> impl Iterator<Item = Vec<u32>> {
    let even = (2..=64u32).flat_map(|ranks| {
        [2, 3, 4, 5, 8, 16]
            .into_iter()
            .filter(move |sites| *sites <= ranks)
            .map(move |sites| (0..sites).map(|site| (ranks + site) / sites).collect::<Vec<u32>>())
    });
    let odd: [&[u32]; 9] = [
        &[1, 1],
        &[1, 2],
        &[5, 1],
        &[1, 1, 1, 5],
        &[7, 3, 11],
        &[31, 33],
        &[1, 62, 1],
        &[6, 10, 3, 1, 12],
        &[13, 13, 13, 13, 12],
    ];
    even.chain(odd.map(<[u32]>::to_vec))
}

#[test]
fn sites_are_proved_and_canonical_for_any_group_and_order() {
    for sizes in cuts() {
        let sites = numbers(&sizes);
        let lone: Vec<u32> = (0..sites.len() as u32).collect();
        for order in [FoldOrder::Ranks, FoldOrder::Sites] {
            let group = order.group(&lone, &sites);
            for outer in ["radix", "radix(2,2)"] {
                let name = format!("sites(radix,{outer},{})", listed(&sizes));
                for collective in COLLECTIVES {
                    let verified = proved(&name, collective, &group, &[]);
                    assert_eq!(verified.order(), Order::Fixed, "{name}, {collective}, {order:?}");
                }
            }
        }
    }
}

/// Three levels: ranks of hosts, hosts of sites, sites.
#[test]
fn hosts_in_sites_are_proved_and_canonical() {
    let shapes: [&[&[u32]]; 7] = [
        &[&[2, 2], &[2, 2]],
        &[&[3, 3, 3], &[3, 3, 3]],
        &[&[1, 2], &[4]],
        &[&[5, 1], &[2, 2, 2], &[1, 1, 7]],
        &[&[8, 8], &[8]],
        &[&[1, 1, 1, 5], &[6, 2], &[3]],
        &[&[4; 5], &[4; 3]],
    ];
    for shape in shapes {
        let sizes: Vec<u32> = shape.iter().map(|hosts| hosts.iter().sum()).collect();
        let (sites, hosts) = (numbers(&sizes), numbers(&shape.concat()));
        for order in FoldOrder::ALL {
            let group = order.group(&hosts, &sites);
            for inner in ["radix", "hierarchical(radix,radix)", "hierarchical(radix(2),radix(2))"] {
                let name = format!("sites({inner},radix,{})", listed(&sizes));
                for collective in COLLECTIVES {
                    let verified = proved(&name, collective, &group, &hosts);
                    assert_eq!(verified.order(), Order::Fixed, "{name}, {collective}, {order:?}");
                }
                let shares = format!("weighted({name},{}0,16)", "8,".repeat(hosts.len() - 2));
                let verified = proved(&shares, Collective::AllReduce, &group, &hosts);
                assert_eq!(verified.order(), Order::Fixed, "{shares}, {order:?}");
            }
        }
    }
}

/// Ports of `fast` bytes/s on each host, and sites whose uplinks have `slow`.
fn wired(sizes: &[u32], fast: u64, slow: u64) -> Ports {
    let sites: Vec<u8> = numbers(sizes).into_iter().map(|site| site as u8).collect();
    let ports = Ports::uniform(sites.len(), Port { out: fast, into: fast });
    let uplinks = vec![Port { out: slow, into: slow }; sizes.len()];
    ports.with_sites(Sites::new(sites, uplinks).unwrap()).unwrap()
}

/// How much of the buffer the busiest uplink carries one way, counted from the programs.
fn crossing(algorithm: &Algorithm, group: &Group, hosts: &[u32], sites: &[u32]) -> f64 {
    let layout = Layout { reducers: 0, hosts, links: None };
    let schedule = algorithm.schedule(Collective::AllReduce, group, &layout).unwrap();
    let units = f64::from(schedule.cut().units());
    plan::busiest_link(&schedule, sites, 1) as f64 / units
}

fn chosen(order: FoldOrder, hosts: &[u32], ports: &Ports) -> (Choice, f64) {
    let group = order.group(hosts, &ports.site_numbers());
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, 2 << 20, &group);
    let choice = plan::choose(&Request { hosts, ports: Some(ports), ..request }).unwrap();
    let carried = crossing(&choice.algorithm, &group, hosts, &ports.site_numbers());
    (choice, carried)
}

/// Two sites of three hosts: the canonical order sends three partial sums and results for each chunk over the link, two of which go the same
/// way for half of the chunks: 1.5. With a site's ranks together it is one each way.
#[test]
fn two_sites_of_three_hosts_send_what_the_order_allows() {
    let hosts = [0, 1, 2, 3, 4, 5];
    let ports = wired(&[3, 3], 62_500_000, 6_250_000);
    let (choice, carried) = chosen(FoldOrder::Ranks, &hosts, &ports);
    assert_eq!((choice.algorithm.to_string().as_str(), carried), ("sites(radix,radix,3x2)", 1.5));
    assert_eq!(
        choice.why,
        "the uplink of rank 3's site (6.2 MB/s) carries 1.50 x the buffer, 2.33 x with radix(2,4); 1.00 x with \
         HERRINGBONE_FOLD_ORDER=sites, but sums then depend on the sites"
    );
    let (choice, carried) = chosen(FoldOrder::Sites, &hosts, &ports);
    assert_eq!(carried, 1.0, "{choice:?}");
    let ring = crossing(&Algorithm::Ring, &Group::of_size(6), &hosts, &[0, 0, 0, 1, 1, 1]);
    assert!((ring - 5.0 / 3.0).abs() < 1e-9, "{ring}");
}

/// The plan leaves uplinks at most a fifth more than ring, which keeps no canonical order, mostly less, and with their ranks together the least there is: 2 (S - 1) / S
/// of the buffer between S sites of as many ranks.
#[test]
fn uplinks_carry_little_more_than_by_ring_or_less() {
    let shapes: [(&[u32], u32); 9] = [
        (&[2, 2], 1),
        (&[3, 3], 1),
        (&[3, 3], 2),
        (&[4, 4], 4),
        (&[5, 5], 1),
        (&[3, 3, 3], 1),
        (&[7, 7], 1),
        (&[2, 2, 2, 2], 3),
        (&[6, 6], 3),
    ];
    for (shape, per_host) in shapes {
        let sizes: Vec<u32> = shape.iter().map(|hosts| hosts * per_host).collect();
        let ranks: u32 = sizes.iter().sum();
        let hosts: Vec<u32> = (0..ranks).map(|rank| rank / per_host).collect();
        let ports = wired(&sizes, 100_000_000, 5_000_000);
        let least = 2.0 * (sizes.len() - 1) as f64 / sizes.len() as f64;
        let (choice, carried) = chosen(FoldOrder::Ranks, &hosts, &ports);
        let ring = crossing(&Algorithm::Ring, &Group::of_size(ranks), &hosts, &ports.site_numbers());
        // Of many ranks ring sends nearly 2, and sites at most as much in the canonical order.
        println!("{shape:?} x {per_host}: {carried:.3}, ring {ring:.3}, {choice:?}");
        assert!(carried <= 1.2 * ring, "{shape:?}, {per_host}: {carried}, ring {ring}: {choice:?}");
        let (choice, carried) = chosen(FoldOrder::Sites, &hosts, &ports);
        assert!(carried <= 1.03 * least, "{shape:?}, {per_host}: {carried} of {least}: {choice:?}");
    }
}

/// A site behind a slow uplink with more ranks than others owns no more than they do.
#[test]
fn sites_of_unequal_sizes_own_what_their_uplinks_carry() {
    let sizes = [4, 2, 2];
    let hosts: Vec<u32> = (0..8).collect();
    let ports = wired(&sizes, 100_000_000, 5_000_000);
    let (choice, carried) = chosen(FoldOrder::Ranks, &hosts, &ports);
    assert!(carried < 1.34, "{carried}: {choice:?}");
    assert!(choice.algorithm.to_string().starts_with("weighted(sites("), "{choice:?}");
}

/// The halves by themselves go by sites, too.
#[test]
fn reduce_scatters_and_all_gathers_spare_uplinks() {
    let (hosts, ports) = ([0, 1, 2, 3, 4, 5], wired(&[3, 3], 62_500_000, 6_250_000));
    let group = FoldOrder::Sites.group(&hosts, &ports.site_numbers());
    for collective in [Collective::ReduceScatter, Collective::AllGather] {
        let request = Request::of_elements(collective, DType::F32, ReduceOp::Sum, 1 << 20, &group);
        let choice = plan::choose(&Request { hosts: &hosts, ports: Some(&ports), ..request }).unwrap();
        let layout = Layout { reducers: 0, hosts: &hosts, links: None };
        let schedule = choice.algorithm.schedule(collective, &group, &layout).unwrap();
        let busiest = plan::busiest_link(&schedule, &ports.site_numbers(), 1);
        assert_eq!(busiest, 3, "{collective}: {choice:?}");
    }
}

/// What the busiest host's port carries, relative to 2 (H - 1) / H of the buffer, where nobody has measured anything: by the plan's choice
/// before shares followed the numbers of ranks, and by that of today.
#[test]
fn hosts_of_unequal_numbers_of_ranks_get_equal_loads() {
    let table: [(&[u32], FoldOrder, f64, f64); 16] = [
        (&[8, 4, 4], FoldOrder::Ranks, 1.125, 1.0),
        (&[1, 1, 1, 5], FoldOrder::Ranks, 1.75, 1.334),
        (&[1, 1, 1, 5], FoldOrder::Hosts, 1.167, 1.0),
        (&[3, 1], FoldOrder::Ranks, 1.25, 1.0),
        (&[2, 2, 1], FoldOrder::Ranks, 1.05, 1.0),
        (&[1, 7], FoldOrder::Ranks, 1.25, 1.0),
        (&[6, 1, 1], FoldOrder::Ranks, 1.5, 1.313),
        (&[6, 1, 1], FoldOrder::Hosts, 1.313, 1.0),
        (&[2, 1, 3], FoldOrder::Ranks, 1.5, 1.25),
        (&[2, 1, 3], FoldOrder::Hosts, 1.125, 1.01),
        (&[5, 3], FoldOrder::Ranks, 1.625, 1.5),
        (&[5, 3], FoldOrder::Hosts, 1.0, 1.0),
        (&[1, 2, 3, 4], FoldOrder::Ranks, 1.734, 1.53),
        (&[1, 2, 3, 4], FoldOrder::Hosts, 1.067, 1.067),
        (&[12, 1], FoldOrder::Ranks, 1.077, 1.0),
        (&[1, 1, 2, 4, 8], FoldOrder::Ranks, 1.5625, 1.05),
    ];
    for (sizes, order, before, least) in table {
        let hosts = numbers(sizes);
        let group = order.group(&hosts, &[]);
        let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, 2 << 20, &group);
        let choice = plan::choose(&Request { hosts: &hosts, ..request }).unwrap();
        let count = sizes.len() as f64;
        let carried = crossing(&choice.algorithm, &group, &hosts, &hosts) / (2.0 * (count - 1.0) / count);
        assert!(
            carried <= least + 1e-3 && least <= before,
            "{sizes:?}, {order:?}: {carried:.3}, before {before}: {choice:?}"
        );
        if before - least > 0.1 && order == FoldOrder::Ranks && least > 1.1 {
            assert!(choice.why.contains("with HERRINGBONE_FOLD_ORDER=hosts"), "{choice:?}");
        }
    }
}

/// The predicted time of an all-reduce of 8 MiB over two sites of three hosts, relative to K/B of the uplink: ports and uplinks alone take time.
fn time_of(name: &str, order: FoldOrder) -> f64 {
    const BYTES: usize = 8 << 20;
    const SLOW: u64 = 6_250_000;
    let (hosts, ports) = ([0, 1, 2, 3, 4, 5], wired(&[3, 3], 62_500_000, SLOW));
    let group = order.group(&hosts, &ports.site_numbers());
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, BYTES / 4, &group);
    let request = Request { hosts: &hosts, ports: Some(&ports), ..request };
    let algorithm = match name {
        "" => plan::choose(&request).unwrap().algorithm,
        name => name.parse().unwrap(),
    };
    let sizing = Sizing { hosts: 6, shared: false, segment_bytes: 0, most_staged: 32 << 20 };
    let free = Calibration { costs: Costs::FREE, latency: 0, ..Calibration::DEFAULT };
    let outcome = predicted::priced(&request, &algorithm, &free, sizing).unwrap().outcome;
    let busiest = outcome.busiest().unwrap().place;
    assert!(matches!(busiest, Resource::SiteOut(_) | Resource::SiteInto(_)), "{name}: {busiest:?}");
    outcome.total() as f64 / SECOND as f64 / (BYTES as f64 / SLOW as f64)
}

#[test]
fn simulated_messages_pass_the_uplinks_of_their_sites() {
    for (name, order, least, most) in [
        ("", FoldOrder::Ranks, 1.5, 1.62),
        ("", FoldOrder::Sites, 1.0, 1.1),
        ("ring", FoldOrder::Ranks, 1.66, 1.9),
        ("radix(2,4)", FoldOrder::Ranks, 2.33, 2.6),
    ] {
        let times = time_of(name, order);
        assert!((least..=most).contains(&times), "{name:?}, {order:?}: {times} of K/B");
    }
}
