//! What `simulate` and `explain` take from a job's settings.

use serde_json::Value;
use std::process::Command;

/// What a command says in JSON, with these settings alone.
fn said(args: &[&str], settings: &[(&str, &str)]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herringbone"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("HERRINGBONE_")) {
        command.env_remove(name);
    }
    let output = command.args(args).arg("--json").envs(settings.iter().copied()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{args:?} {settings:?}: {stderr}"))
}

const SIMULATE: [&str; 5] = ["simulate", "--algorithm", "radix", "--gbps", "1"];

#[test]
fn calls_are_cut_as_a_job_with_these_settings_cuts_them() {
    let messages = |settings: &[_]| said(&SIMULATE, settings)["messages"].as_u64().unwrap();
    let default = messages(&[]);
    assert_eq!(messages(&[("HERRINGBONE_STAGING_BYTES", "64M"), ("HERRINGBONE_SLICE_BYTES", "0")]), default);
    assert!(messages(&[("HERRINGBONE_SLICE_BYTES", "64K")]) > 10 * default);
    assert!(messages(&[("HERRINGBONE_STAGING_BYTES", "4M")]) > default);
    let memory = |settings: &[_]| {
        let row = said(&["explain", "--ranks", "4", "--per-host", "1", "--sizes", "25M"], settings);
        let candidates = row["candidates"]["by"].as_array().unwrap();
        candidates.iter().map(|row| row["memory_bytes"].as_u64().unwrap()).max().unwrap()
    };
    assert!(memory(&[("HERRINGBONE_STAGING_BYTES", "4M")]) <= 7 << 19);
    assert!(memory(&[("HERRINGBONE_SLICE_BYTES", "64K")]) < memory(&[]));
}

#[test]
fn a_simulated_job_takes_the_algorithm_that_its_settings_say() {
    let taken = |settings: &[_]| {
        said(&["simulate", "--ranks", "6", "--per-host", "3"], settings)["algorithm"].clone()
    };
    assert_eq!(taken(&[("HERRINGBONE_ALGORITHM", "ring")]), "ring");
    assert_eq!(taken(&[("HERRINGBONE_PLAN", "all_reduce:1M-inf:doubling")]), "doubling");
    assert_eq!(taken(&[]), "hierarchical(radix,radix)");
    assert_ne!(taken(&[("HERRINGBONE_FOLD_ORDER", "hosts")]), "hierarchical(radix,radix)");
}
