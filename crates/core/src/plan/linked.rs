//! How long links are busy, where they are known: trees, or what sizes and hosts choose.

use super::{Choice, LINKED_BYTES, Request};
use crate::algorithm::{Algorithm, Layout};
use crate::collective::Collective;
use crate::schedule::{Schedule, Step};
use crate::topology::LinkMatrix;
use alloc::{format, string::String, vec, vec::Vec};

/// The algorithm that leaves least to the slowest link: the choice, trees, or all ranks with all others. The choice stays where
/// they leave no less.
pub(super) fn lighter(request: &Request<'_>, choice: Choice) -> Choice {
    let Request { collective, bytes, group, links, .. } = *request;
    let Some(links) = links.filter(|_| collective == Collective::AllReduce && bytes >= LINKED_BYTES) else {
        return choice;
    };
    let timed = |algorithm: Algorithm| {
        let layout = Layout { reducers: request.reducers, hosts: request.hosts, links: Some(links) };
        let schedule = algorithm.schedule(collective, group, &layout).ok()?;
        Some((busiest(&schedule, links), algorithm))
    };
    let trees = Algorithm::Trees { mode: None, single: false };
    let others = [trees, Algorithm::radix(vec![])].into_iter().filter(|other| *other != choice.algorithm);
    let others: Vec<(f64, Algorithm)> = others.filter_map(timed).collect();
    let Some((own, _)) = timed(choice.algorithm.clone()) else { return choice };
    let named = |(time, algorithm): &(f64, Algorithm)| match time.is_finite() {
        true => format!("with {algorithm} for {}", shown(*time)),
        false => format!("and {algorithm} needs a link that is not there"),
    };
    match others.iter().filter(|(time, _)| *time < own).min_by(|a, b| a.0.total_cmp(&b.0)) {
        Some(best) => {
            let worse = others.iter().filter(|other| *other != best).map(named);
            let without = named(&(own, choice.algorithm.clone()));
            let all: Vec<String> = worse.chain([without]).collect();
            let why = format!("the slowest link is busy for {}, {}", shown(best.0), all.join(", "));
            Choice { algorithm: best.1.clone(), why }
        }
        None => {
            let all: Vec<String> = others.iter().map(named).collect();
            let why =
                format!("{}; its slowest link is busy for {}, {}", choice.why, shown(own), all.join(", "));
            Choice { why, ..choice }
        }
    }
}

/// How many seconds of a GB the slowest link is busy: what it carries each way, by its bandwidth. Infinite where a link is used
/// that is not there.
fn busiest(schedule: &Schedule, links: &LinkMatrix) -> f64 {
    let size = links.size();
    let mut sent = vec![0u32; size * size];
    for rank in 0..size.min(schedule.workers() as usize) {
        let program = schedule.program(rank as u32);
        for step in program.steps() {
            if let Step::Send { to, .. } = *step {
                // Reducers stand behind links of which nothing is known.
                let workers = program.lanes(to).iter().filter(|to| (**to as usize) < size);
                workers.for_each(|to| sent[rank * size + *to as usize] += 1);
            }
        }
    }
    let used = sent.iter().enumerate().filter(|(_, sent)| **sent > 0);
    let time = |(at, sent): (usize, &u32)| f64::from(*sent) / links.speed(at / size, at % size);
    used.map(time).fold(0.0, f64::max) / f64::from(schedule.cut().chunks())
}

fn shown(seconds: f64) -> String {
    match seconds.is_finite() {
        true => format!("{:.2} ms/GB", 1000.0 * seconds),
        false => "ever, as a link that it needs is not there".into(),
    }
}
