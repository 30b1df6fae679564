//! Plans and times where the ports of hosts are known: by formulas that a person can check by hand.

use herringbone_core::{
    codec::Codec,
    collective::Collective,
    element::{DType, ReduceOp},
    group::Group,
    plan::{self, Request, predicted},
    prepare::Sizing,
    simulate::{Calibration, Costs, SECOND},
    topology::{Port, Ports},
};

const BYTES: usize = 8 << 20;

/// Threads that cost nothing, and links without delay: only ports take time.
fn free() -> Calibration {
    Calibration { costs: Costs::FREE, latency: 0, ..Calibration::DEFAULT }
}

fn ports(megabits: &[u64]) -> Ports {
    let port = |rate: &u64| Port { out: rate * 125_000, into: rate * 125_000 };
    Ports::new(megabits.iter().map(port).collect(), 0).unwrap()
}

/// The name of the choice for hosts of one rank, and its predicted seconds; of `name` in its place if one is said.
fn timed(megabits: &[u64], name: Option<&str>) -> (String, f64) {
    let (group, ports) = (Group::of_size(megabits.len() as u32), ports(megabits));
    let hosts: Vec<u32> = (0..group.size()).collect();
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, BYTES / 4, &group);
    let request = Request { hosts: &hosts, ports: Some(&ports), codec: Codec::Plain, ..request };
    let algorithm = match name {
        Some(name) => name.parse().unwrap(),
        None => plan::choose(&request).unwrap().algorithm,
    };
    let sizing = Sizing { hosts: hosts.len() as u32, shared: false, segment_bytes: 0, most_staged: 32 << 20 };
    let candidate = predicted::priced(&request, &algorithm, &free(), sizing).unwrap();
    (algorithm.to_string(), candidate.outcome.total() as f64 / SECOND as f64)
}

/// How long a port of so many Mbit/s takes for the whole buffer.
fn alone(megabits: f64) -> f64 {
    BYTES as f64 * 8.0 / (megabits * 1e6)
}

/// Four hosts of 500 Mbit/s, one of them of 100: K/B of the slow port is 671 ms, which `radix` exceeds by half.
#[test]
fn a_slow_port_is_busy_with_the_buffer_once() {
    let rates = [500, 500, 500, 100];
    let (name, seconds) = timed(&rates, None);
    assert_eq!(name, "weighted(radix,16x3,0)");
    let bound = alone(100.0);
    assert!((0.99..=1.10).contains(&(seconds / bound)), "{seconds} s, and K/B is {bound} s");
    let (_, plain) = timed(&rates, Some("radix"));
    assert!((1.45..=1.65).contains(&(plain / bound)), "{plain} s with equal shares");
    let (_, ring) = timed(&rates, Some("ring"));
    assert!(ring > 1.4 * bound, "{ring} s");
}

/// Eight ports, half of them at a tenth: 1.75 of K/B of the slow ones with equal shares, 1 with the others'.
#[test]
fn half_of_the_ports_at_a_tenth() {
    let rates = [500, 50, 500, 50, 500, 50, 500, 50];
    let (name, seconds) = timed(&rates, None);
    assert_eq!(name, "weighted(radix,16,0,16,0,16,0,16,0)");
    let bound = alone(50.0);
    assert!((0.99..=1.10).contains(&(seconds / bound)), "{seconds} s, and K/B is {bound} s");
    let (_, plain) = timed(&rates, Some("radix"));
    assert!((1.7..=1.95).contains(&(plain / bound)), "{plain} s with equal shares");
}

/// A port that is not much slower owns something: with rates 1 and 4/5 the formula gives it 5/11 of the others' shares.
#[test]
fn a_port_that_is_a_little_slower_owns_a_little_less() {
    let (name, seconds) = timed(&[500, 500, 500, 400], None);
    assert_eq!(name, "weighted(radix,11x3,5)");
    let (_, plain) = timed(&[500, 500, 500, 400], Some("radix"));
    // t = (H - 2 + 4) / (3 x 500 + 400) = 6/1900 of the buffer for each Mbit/s.
    let formula = BYTES as f64 * 8.0 / 1e6 * 6.0 / 1900.0;
    assert!((0.98..=1.12).contains(&(seconds / formula)), "{seconds} s, and the formula says {formula}");
    assert!(seconds < 0.95 * plain, "{seconds} s, and {plain} s with equal shares");
}

/// All numbers are whole: what one rank plans, another one plans from the bytes that have travelled.
#[test]
fn ranks_plan_alike_from_what_travels() {
    let ports = ports(&[500, 333, 71, 71]);
    let there = Ports::from_bytes(&ports.to_bytes()).unwrap();
    let group = Group::of_size(4);
    let request = Request::of_elements(Collective::AllReduce, DType::F32, ReduceOp::Sum, BYTES / 4, &group);
    let here = plan::choose(&Request { ports: Some(&ports), ..request }).unwrap();
    assert_eq!(plan::choose(&Request { ports: Some(&there), ..request }).unwrap(), here);
    assert!(here.algorithm.to_string().starts_with("weighted("), "{here:?}");
}
