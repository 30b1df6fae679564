//! Files of topologies and of schedules on the command line.

use crate::failure::Failure;
use herringbone::core::group::{FoldObstacle, Group};
use herringbone::core::schedule::Schedule;
use herringbone::core::topology::{self, LinkMatrix, Topology, Wiring};
use herringbone::{FoldOrder, read_user_stream, read_user_text};
use std::{fs, io, path::Path};

/// Reads `FILE`, or one topology of a file with several as `FILE#NAME`; `-` is standard input. Warnings go to standard error.
pub(crate) fn read(file: &str) -> Result<Topology, Failure> {
    let (path, name) = match file.rsplit_once('#') {
        Some((path, name)) => (path, Some(name)),
        None => (file, None),
    };
    let text = if path == "-" { read_user_stream(std::io::stdin()) } else { read_user_text(path) };
    let text = text.map_err(|error| Failure::Usage {
        problem: format!("cannot read the topology {path}: {error}"),
        hint: "pass the text of nvidia-smi topo -m, NCCL's XML, or a matrix as JSON or CSV",
    })?;
    let topology = topology::read(&text, name).map_err(|error| Failure::Usage {
        problem: format!("{path}: {error}"),
        hint: "docs/topology.md shows the formats",
    })?;
    for warning in topology.warnings() {
        eprintln!("herringbone: warning: {path}: {warning}");
    }
    Ok(topology)
}

/// The ports of hosts and the links between workers that the topology of `file` has.
pub(crate) fn wiring(file: &str, topology: &Topology) -> Result<Wiring, Failure> {
    let found = match topology.ports().is_empty() && topology.sites().is_empty() {
        // Where links are all that is known, some might be missing.
        true => LinkMatrix::of(topology).map(Wiring::from),
        false => Wiring::of(topology),
    };
    found.map_err(|error| Failure::Usage {
        problem: format!("{file}: {error}"),
        hint: "herringbone topo shows the content of the file",
    })
}

/// What is known of ranks on these hosts: a topology has a node for each rank, or, if it has ports and no links, for each host.
pub(crate) fn among(wiring: Wiring, hosts: &[u32]) -> Result<Wiring, Failure> {
    let (ranks, count) = (hosts.len(), hosts.iter().max().map_or(0, |most| *most as usize + 1));
    match wiring.size() {
        None => Ok(wiring),
        Some(size) if size == ranks => {
            let ports = wiring.ports.map(|ports| ports.shared(hosts));
            Ok(Wiring { ports, ..wiring })
        }
        Some(size) if size == count && wiring.links.is_none() => Ok(wiring.among(hosts)),
        Some(size) => Err(Failure::Usage {
            problem: format!("the topology has {size} ranks, but the job has {ranks} on {count} hosts"),
            hint: "use as many ranks as it has nodes, or, for ports without links, a node for each host",
        }),
    }
}

/// The group of ranks on these hosts, in these sites.
///
/// # Errors
/// If the order is that of sites, and they are not known.
pub(crate) fn group(order: FoldOrder, hosts: &[u32], sites: &[u32]) -> Result<Group, Failure> {
    if order.obstacle(hosts, sites) == Some(FoldObstacle::NoSites) {
        return Err(Failure::Usage {
            problem: format!("the fold order `sites` needs the site of each of {} ranks", hosts.len()),
            hint: "add sites to the topology, or their sizes to the algorithm, as in sites(radix,radix,3x2)",
        });
    }
    Ok(order.group(hosts, sites))
}

/// Reads a schedule, in the form that `herringbone show` prints.
pub(crate) fn schedule(path: &Path) -> Result<Schedule, Failure> {
    let text = read_user_text(path)
        .map_err(io::Error::from)
        .map_err(Failure::system(format!("cannot read {}", path.display())))?;
    Schedule::parse(&text).map_err(|error| Failure::Usage {
        problem: format!("{}, {error}", path.display()),
        hint: "herringbone show prints schedules in this form",
    })
}

/// Writes a picture or a text.
pub(crate) fn write(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::system(format!("cannot write {path}")))
}
