//! Topologies: what people publish is read, what is wrong is named with its place, and trees are as good as they are said to be.
#![cfg(feature = "topology-readers")]

mod brute;
mod planned;
mod readers;

use herringbone_core::topology::{LinkMatrix, Topology, read};
use std::{fs, path::PathBuf};

/// A file of the shared topologies.
fn text(name: &str) -> String {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/topologies"));
    fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The names of the matrices that came with MXNet's planner.
const MATRICES: [&str; 7] = [
    "dgx1v_p3_16xlarge_raw",
    "p3_16xlarge_p2p_matrix",
    "derived_dgx1v_weights_nvlink_only",
    "derived_dgx1v_first5_nvlink_only",
    "derived_dgx1v_first6_nvlink_only",
    "derived_nvswitch8_uniform",
    "derived_pcie8_all_nonp2p",
];

/// The texts of `nvidia-smi topo -m`.
const TEXTS: [&str; 5] = [
    "dgx1v_4x_ib.txt",
    "p4d_24xlarge_a100_8x.txt",
    "dgx_a100_8x_10nic.txt",
    "pcie_8x_pix_phb_sys_1nic.txt",
    "a100_pcie_8x_nvlink_bridge_pairs_truncated_nic.txt",
];

fn topology(name: &str) -> Topology {
    let topology = if name.ends_with(".txt") {
        read(&text(name), None)
    } else {
        read(&text("link_matrices.json"), Some(name))
    };
    topology.unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn links(name: &str) -> LinkMatrix {
    LinkMatrix::of(&topology(name)).unwrap()
}
