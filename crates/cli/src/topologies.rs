//! Topology files on the command line.

use crate::failure::Failure;
use herringbone::core::topology::{self, Topology};
use herringbone::{read_user_stream, read_user_text};
use std::fs;

/// Reads `FILE`, or one topology of a file with several as `FILE#NAME`; `-` is standard input. Warnings go to standard error.
pub(crate) fn read(file: &str) -> Result<Topology, Failure> {
    let (path, name) = match file.rsplit_once('#') {
        Some((path, name)) => (path, Some(name)),
        None => (file, None),
    };
    let text = if path == "-" { read_user_stream(std::io::stdin()) } else { read_user_text(path) };
    let text = text.map_err(|error| Failure::Usage {
        problem: format!("cannot read the topology {path}: {error}"),
        hint: "name a text of nvidia-smi topo -m, NCCL's XML, or a matrix as JSON or CSV",
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

/// Writes a picture or a text.
pub(crate) fn write(path: &str, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(Failure::system(format!("cannot write {path}")))
}
