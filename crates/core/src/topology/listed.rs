//! Topologies as JSON: a matrix, an object with a matrix, a list of such objects, or nodes and links as
//! [`Topology::to_json`] writes them.

use super::json::{JsonKind, JsonValue, parse};
use super::text::amount;
use super::{
    LinkKind, MOST_NODES, MOST_SITES, NodeKind, Topology, TopologyError, TopologyLink, TopologyNode,
    TopologyPort, TopologySite, by_mxnet_rules,
};
use alloc::{format, string::String, string::ToString, vec, vec::Vec};

pub(super) fn read(text: &str, name: Option<&str>) -> Result<Topology, TopologyError> {
    let value = parse(text)?;
    let is_object = |value: &JsonValue| matches!(value.kind, JsonKind::Object(_));
    match &value.kind {
        JsonKind::List(items) if items.first().is_some_and(is_object) => {
            of_object(chosen(&value, items, name)?)
        }
        JsonKind::List(_) => Ok(Topology::of_matrix(&[], &matrix(&value)?, None)),
        _ => of_object(&value),
    }
}

/// The topology of that name; of one that is alone none has to be said.
fn chosen<'a>(
    list: &JsonValue,
    items: &'a [JsonValue],
    name: Option<&str>,
) -> Result<&'a JsonValue, TopologyError> {
    let named = |item: &'a JsonValue| item.get("name").and_then(|name| name.text("").ok());
    let found = match name {
        Some(name) => items.iter().find(|item| named(item) == Some(name)),
        None if items.len() == 1 => items.first(),
        None => None,
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = items.iter().filter_map(named).collect();
        let found = match name {
            Some(name) => format!("no topology of the name {name:?}"),
            None => format!("{} topologies", items.len()),
        };
        list.at.error(found, format!("one to be named after the file, as in FILE#NAME: {}", names.join(", ")))
    })
}

/// Refuses a key that is nearly one of the known ones, which would change nothing.
fn check_keys(value: &JsonValue, known: &[&str]) -> Result<(), TopologyError> {
    let JsonKind::Object(fields) = &value.kind else { return Ok(()) };
    for (name, field) in fields.iter().filter(|(name, _)| !known.contains(&&name[..])) {
        if let Some(meant) = known.iter().find(|known| is_slip_of(name, known)) {
            return Err(field.at.error(format!("a value of {name:?}"), format!("one of {meant:?}")));
        }
    }
    Ok(())
}

/// Whether a letter is missing, is too much, is another one, or has changed places with its neighbour; case does not count.
fn is_slip_of(name: &str, known: &str) -> bool {
    let name: Vec<char> = name.to_lowercase().chars().collect();
    let known: Vec<char> = known.chars().collect();
    let begins = name.iter().zip(&known).take_while(|(a, b)| a == b).count();
    let ends = name.iter().rev().zip(known.iter().rev()).take_while(|(a, b)| a == b).count();
    let longer = name.len().max(known.len());
    let rest = longer.saturating_sub(begins + ends);
    let swapped = || {
        name.len() == known.len()
            && rest == 2
            && name[begins] == known[begins + 1]
            && name[begins + 1] == known[begins]
    };
    known.len() >= 3 && name.len().abs_diff(known.len()) <= 1 && (rest <= 1 || swapped())
}

fn of_object(value: &JsonValue) -> Result<Topology, TopologyError> {
    check_keys(value, &["matrix", "names", "bandwidth", "p2p", "nodes", "links", "ports", "sites", "name"])?;
    let topology = if value.get("nodes").is_some() { of_links(value)? } else { of_matrix(value)? };
    let topology = match value.get("ports") {
        Some(ports) => with_ports(ports, topology)?,
        None => topology,
    };
    match value.get("sites") {
        Some(sites) => with_sites(sites, topology),
        None => Ok(topology),
    }
}

fn with_ports(ports: &JsonValue, topology: Topology) -> Result<Topology, TopologyError> {
    let mut read: Vec<TopologyPort> = vec![];
    for item in at_most(ports, ports.list("a list of ports")?, MOST_NODES, "ports")? {
        let found = port(item, topology.nodes())?;
        if read.iter().any(|known| known.host == found.host) {
            let name = &topology.nodes()[found.host].name;
            return Err(item.at.error(format!("a port of {name:?} again"), "one port for each host"));
        }
        read.push(found);
    }
    topology.with_ports(read)
}

fn with_sites(sites: &JsonValue, topology: Topology) -> Result<Topology, TopologyError> {
    let (mut read, mut names): (Vec<TopologySite>, Vec<String>) = (vec![], vec![]);
    for item in at_most(sites, sites.list("a list of sites")?, MOST_SITES, "sites")? {
        check_keys(item, &["name", "hosts", "out", "into"])?;
        let name = field(item, "name")?;
        let text = name.text("a name in quotation marks")?;
        if names.iter().any(|known| known == text) {
            return Err(name.at.error(format!("{} again", name.found()), "a name that no other site has"));
        }
        names.push(text.into());
        let mut hosts: Vec<usize> = vec![];
        for host in field(item, "hosts")?.list("a list of hosts")? {
            let node = named(host, topology.nodes())?;
            if hosts.contains(&node) || read.iter().any(|site| site.hosts.contains(&node)) {
                let name = &topology.nodes()[node].name;
                return Err(host.at.error(format!("{name:?} in a site again"), "each host in one site"));
            }
            hosts.push(node);
        }
        let (out, into) = (quantity(item, "out")?, quantity(item, "into")?);
        read.push(TopologySite { name: text.into(), hosts, out, into });
    }
    topology.with_sites(read)
}

fn of_matrix(value: &JsonValue) -> Result<Topology, TopologyError> {
    let Some(rows) = value.get("matrix") else {
        return Err(value.at.error(
            value.found(),
            "a matrix, or an object with \"matrix\", or with \"nodes\" and \"links\", \"ports\" or \"sites\"",
        ));
    };
    let weights = matrix(rows)?;
    let names = match value.get("names") {
        None => vec![],
        Some(names) => of_names(names, weights.len())?,
    };
    let other = |key: &str| -> Result<Option<Vec<Vec<f64>>>, TopologyError> {
        let Some(rows) = value.get(key) else { return Ok(None) };
        let other = matrix(rows)?;
        if other.len() == weights.len() {
            return Ok(Some(other));
        }
        let expected = format!("{} rows, as \"matrix\" has", weights.len());
        Err(rows.at.error(format!("{} rows", other.len()), expected))
    };
    let bandwidths = other("bandwidth")?;
    if let (Some(rows), Some(bandwidths)) = (value.get("bandwidth"), &bandwidths) {
        check_carried(rows, &weights, bandwidths)?;
    }
    let topology = Topology::of_matrix(&names, &weights, bandwidths.as_deref());
    match other("p2p")? {
        None => Ok(topology),
        Some(peers) => {
            let peers: Vec<bool> = peers.iter().flatten().map(|entry| *entry > 0.0).collect();
            by_mxnet_rules(&topology, Some(&peers))
        }
    }
}

/// The items of a list that has no more than a topology can have, so that what is read of each may look at all before it.
fn at_most<'a>(
    list: &JsonValue,
    items: &'a [JsonValue],
    most: usize,
    what: &str,
) -> Result<&'a [JsonValue], TopologyError> {
    match items.len() <= most {
        true => Ok(items),
        false => Err(list.at.error(format!("{} {what}", items.len()), format!("at most {most} {what}"))),
    }
}

/// Refuses a link that has a weight and carries nothing.
fn check_carried(at: &JsonValue, weights: &[Vec<f64>], bandwidths: &[Vec<f64>]) -> Result<(), TopologyError> {
    let size = weights.len();
    let is_wrong = |(from, to): &(usize, usize)| {
        from != to && weights[*from][*to] > 0.0 && bandwidths[*from][*to] == 0.0
    };
    match (0..size).flat_map(|from| (0..size).map(move |to| (from, to))).find(is_wrong) {
        None => Ok(()),
        Some((from, to)) => {
            let weight = weights[from][to];
            let found = format!("a bandwidth of 0 from node {from} to node {to}, whose link weighs {weight}");
            Err(at.at.error(found, "a bandwidth above 0 for each link with a weight, or no \"bandwidth\""))
        }
    }
}

fn of_names(value: &JsonValue, count: usize) -> Result<Vec<String>, TopologyError> {
    let items = value.list("a list of names")?;
    if items.len() != count {
        return Err(value.at.error(value.found(), format!("{count} names, one for each row")));
    }
    let mut names: Vec<String> = vec![];
    for item in items {
        names.push(fresh(item, item.text("a name in quotation marks")?, &names)?);
    }
    Ok(names)
}

/// A name that no other node has.
fn fresh(item: &JsonValue, name: &str, names: &[String]) -> Result<String, TopologyError> {
    match names.iter().any(|known| known == name) {
        false => Ok(name.into()),
        true => Err(item.at.error(format!("{} again", item.found()), "a name that no other node has")),
    }
}

/// The rows of a square matrix of amounts.
fn matrix(value: &JsonValue) -> Result<Vec<Vec<f64>>, TopologyError> {
    let rows = value.list("a list of rows")?;
    if !(1..=MOST_NODES).contains(&rows.len()) {
        return Err(value.at.error(format!("{} rows", rows.len()), format!("1 to {MOST_NODES} rows")));
    }
    let row = |(at, row): (usize, &JsonValue)| {
        let items = row.list("a row: a list of numbers")?;
        if items.len() != rows.len() {
            let found = format!("row {at} with {} numbers", items.len());
            return Err(row.at.error(found, format!("{} numbers, as there are rows", rows.len())));
        }
        items.iter().map(|item| amount(item.number("a number")?, item.at)).collect()
    };
    rows.iter().enumerate().map(row).collect()
}

fn of_links(value: &JsonValue) -> Result<Topology, TopologyError> {
    let missing =
        || value.at.error("an object without \"nodes\" and \"links\", \"ports\" or \"sites\"", "both");
    let nodes = value.get("nodes").ok_or_else(missing)?;
    let nodes = nodes_of(at_most(nodes, nodes.list("a list of nodes")?, MOST_NODES, "nodes")?)?;
    let links = match value.get("links") {
        Some(links) => links.list("a list of links")?,
        None if value.get("ports").or(value.get("sites")).is_some() => &[],
        None => return Err(missing()),
    };
    let links = links.iter().map(|value| link(value, nodes.len())).collect::<Result<_, _>>()?;
    Ok(Topology { nodes, links, ..Topology::default() })
}

fn field<'a>(value: &'a JsonValue, key: &str) -> Result<&'a JsonValue, TopologyError> {
    value
        .get(key)
        .ok_or_else(|| value.at.error(format!("{} without {key:?}", value.found()), format!("{key:?}")))
}

fn nodes_of(values: &[JsonValue]) -> Result<Vec<TopologyNode>, TopologyError> {
    let (mut nodes, mut names) = (vec![], vec![]);
    for value in values {
        let read = node(value)?;
        names.push(fresh(field(value, "name")?, &read.name, &names)?);
        nodes.push(read);
    }
    Ok(nodes)
}

fn node(value: &JsonValue) -> Result<TopologyNode, TopologyError> {
    check_keys(value, &["name", "kind", "device"])?;
    let name = field(value, "name")?.text("a name in quotation marks")?.to_string();
    let kind = field(value, "kind")?;
    let text = kind.text("a kind of node")?;
    let Some(known) = NodeKind::ALL.into_iter().find(|kind| kind.name() == text) else {
        let names = NodeKind::ALL.map(NodeKind::name).join(", ");
        return Err(kind.at.error(kind.found(), format!("one of {names}")));
    };
    let device = value.get("device").and_then(|device| device.text("").ok()).map(String::from);
    Ok(TopologyNode { name, kind: known, device })
}

/// The node that a number names.
fn numbered(value: &JsonValue, number: f64, nodes: usize) -> Result<usize, TopologyError> {
    let found = (0..nodes).find(|node| *node as f64 == number);
    found.ok_or_else(|| value.at.error(value.found(), format!("the number of a node, below {nodes}")))
}

/// A number that can be a weight or a bandwidth.
fn quantity(value: &JsonValue, key: &str) -> Result<f64, TopologyError> {
    let value = field(value, key)?;
    amount(value.number("a number")?, value.at)
}

/// The microseconds of a message, if they are said.
fn latency(value: &JsonValue) -> Result<Option<f64>, TopologyError> {
    value.get("latency_us").map(|value| amount(value.number("a number")?, value.at)).transpose()
}

fn port(value: &JsonValue, nodes: &[TopologyNode]) -> Result<TopologyPort, TopologyError> {
    check_keys(value, &["host", "out", "into", "latency_us"])?;
    let host = named(field(value, "host")?, nodes)?;
    let (out, into) = (quantity(value, "out")?, quantity(value, "into")?);
    Ok(TopologyPort { host, out, into, latency: latency(value)? })
}

/// The node that a name or a number stands for.
fn named(host: &JsonValue, nodes: &[TopologyNode]) -> Result<usize, TopologyError> {
    match &host.kind {
        JsonKind::Text(name) => {
            let found = nodes.iter().position(|node| node.name == *name);
            found.ok_or_else(|| host.at.error(host.found(), "the name of a node, or its number"))
        }
        _ => numbered(host, host.number("the number of a node, or its name")?, nodes.len()),
    }
}

fn link(value: &JsonValue, nodes: usize) -> Result<TopologyLink, TopologyError> {
    check_keys(value, &["from", "to", "kind", "bandwidth", "weight", "latency_us"])?;
    let end = |key: &str| {
        let end = field(value, key)?;
        numbered(end, end.number("the number of a node")?, nodes)
    };
    let kind = match value.get("kind") {
        None => LinkKind::Given,
        Some(kind) => {
            let known = LinkKind::of_text(kind.text("a kind of link")?);
            known.ok_or_else(|| {
                kind.at.error(kind.found(), "NV1 to NV18, PIX, PXB, PHB, NODE, SYS, given or measured")
            })?
        }
    };
    let (from, to) = (end("from")?, end("to")?);
    if from == to {
        return Err(value.at.error(format!("a link from node {from} to itself"), "two nodes"));
    }
    let (bandwidth, weight) = (quantity(value, "bandwidth")?, quantity(value, "weight")? as f32);
    Ok(TopologyLink { from, to, kind, bandwidth, weight, latency: latency(value)? })
}
