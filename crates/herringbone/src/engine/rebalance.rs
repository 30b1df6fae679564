//! How plans follow the ports of hosts while a job runs; see [`core`'s rebalancing](crate::core::session::rebalance).
//! This module reads the traffic of connections, and logs the agreements.

use super::{group::Group, outbox::Event, runtime::Runtime};
use crate::{
    core::{
        plan::Choice,
        session::{control::Message, rebalance::PortOutcome},
        topology::Ports,
    },
    log::{Level, LogRecord},
    transport::endpoint::Link,
};
use std::fmt::Write;

/// Of so many slow hosts a line says how slow they are.
const NAMED: usize = 4;

/// Says what the connections of this process have carried, if a group has called enough since it last did.
pub(super) fn report(runtime: &mut Runtime, number: u32) {
    let Runtime { links, groups, out, .. } = runtime;
    let Some(group) = groups.get_mut(number).filter(|group| !group.state.is_closed()) else { return };
    let Some(reports) = &mut group.port_reports else { return };
    let sent = links.endpoints.ids().filter_map(|id| match &links.endpoints[id].link {
        Link::Tcp(link) => Some((id, link.sent()?)),
        _ => None,
    });
    let carried = reports.report(number, out.now(), sent);
    out.events.extend(carried.map(|carried| Event::ToHub(Message::PortReport(carried))));
}

/// The hub says what comes of a proposal.
pub(super) fn settle(runtime: &mut Runtime, outcome: &PortOutcome) {
    let Runtime { links, groups, out, .. } = runtime;
    let Some(group) = groups.get_mut(outcome.group) else { return };
    let Some((from, ports)) = group.state.settle_ports(outcome) else { return };
    let ports = ports.clone();
    let followed =
        format!("plans follow the ports of hosts: {}, from operation {from} on", slow_ports(group, &ports));
    // Only one rank logs what follows for calls, which takes a plan.
    let line = if group.settings.me == 0 { described(group, &followed, &ports) } else { followed.clone() };
    group.port_reports.iter_mut().for_each(|reports| reports.followed = Some(followed.clone()));
    out.observer.rebalanced(outcome.group, from, &line);
    if group.settings.me == 0 {
        let level = if ports.are_alike() { Level::Info } else { Level::Warn };
        LogRecord::new(level, &format!("rank {}", links.rank)).say(&line);
    }
}

/// What plans take ports for, and what follows for calls like the last one.
fn described(group: &Group, followed: &str, ports: &Ports) -> String {
    let mut line = followed.to_owned();
    let call = group.port_reports.as_ref().and_then(|reports| reports.call);
    let compared = call.and_then(|call| Some((call, group.compared(&call, ports)?)));
    if let Some((call, [Choice { algorithm, why }, before])) = compared {
        let bytes = call.count * call.dtype.bytes();
        let _written = match algorithm == before.algorithm {
            true => write!(line, "; all-reduces of {bytes} B take {algorithm} as before"),
            false => write!(
                line,
                "; all-reduces of {bytes} B take {algorithm} in place of {}: {why}",
                before.algorithm
            ),
        };
    }
    line
}

/// How fast the ports of slow hosts look, in parts of the fastest, by the first rank of each.
fn slow_ports(group: &Group, ports: &Ports) -> String {
    let rates = (0..ports.size()).map(|rank| ports.port(rank)).flat_map(|port| [port.out, port.into]);
    let fastest = rates.max().unwrap_or(0).max(1) as f64;
    let hosts = &group.settings.hosts;
    let is_first = |rank: &usize| !hosts[..*rank].contains(&hosts[*rank]);
    let slow: Vec<String> = (0..ports.size().min(hosts.len()))
        .filter(is_first)
        .map(|rank| (rank, [ports.port(rank).out, ports.port(rank).into].map(|rate| rate as f64 / fastest)))
        .filter(|(_, speeds)| speeds.iter().any(|speed| *speed < 0.999))
        .map(|(rank, [out, into])| {
            format!("rank {}'s carries {out:.2} out and {into:.2} in", group.settings.ranks[rank])
        })
        .collect();
    match slow.len() {
        0 => "all look alike".to_owned(),
        more if more > NAMED => format!("{}, and {} more", slow[..NAMED].join(", "), more - NAMED),
        _ => slow.join(", "),
    }
}
