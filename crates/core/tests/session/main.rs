//! The words between processes: formats, handshake, formation and fence, driven without a socket or a clock; and whatever else
//! comes from elsewhere.

mod close_checks;
mod control;
mod fence;
mod flight;
#[cfg(all(feature = "named", feature = "topology-readers"))]
mod foreign;
mod formation;
mod group_state;
mod handshake;
mod hub;
mod job;
mod keys;
mod plans;
#[path = "../random/mod.rs"]
mod random;
mod rebalance;
mod recoveries;
mod settled;
mod simulation;
mod status;
mod watch;
mod wire;

use herringbone_core::{
    codec::CodecCode,
    session::{
        formation::JobName,
        hub::Hub,
        membership::{Process, Roster},
    },
    wire::Fingerprint,
};
use proptest::{collection::vec, prelude::*};
use std::{sync::Arc, time::Duration};

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

/// The members of a job that has just begun.
fn a_roster(workers: u32, reducers: &[String]) -> Arc<Roster> {
    let process = |rank: u32| Process { address: String::new(), host: rank.into(), incarnation: 1 };
    Arc::new(Roster::founded((0..workers).map(process).collect(), reducers).unwrap())
}

/// The hub of a job without reducers.
fn a_hub() -> Hub {
    Hub::new(a_roster(16, &[]), Duration::ZERO)
}

/// An all-reduce of 1000 f32, sum.
fn call() -> Fingerprint {
    let (collective, dtype, op) = (1, 0, 0);
    Fingerprint {
        sequence: 0,
        collective,
        dtype,
        op,
        order: 0,
        root: 0,
        count: 1000,
        plan: 7,
        priority: 0,
        mark: 0,
        codec: CodecCode::default(),
    }
}

fn any_fingerprint() -> impl Strategy<Value = Fingerprint> {
    let codes = any::<(u8, u8, u8, u8)>();
    (any::<u64>(), codes, any::<u32>(), any::<u64>(), any::<u64>(), any::<(i32, u32)>()).prop_map(
        |(sequence, (collective, dtype, op, order), root, count, plan, (priority, mark))| Fingerprint {
            sequence,
            collective,
            dtype,
            op,
            order,
            root,
            count,
            plan,
            priority,
            mark,
            codec: CodecCode { number: op.into(), parameter: root },
        },
    )
}

fn any_text() -> impl Strategy<Value = String> {
    "[ -~äπ]{0,40}"
}

fn any_job() -> impl Strategy<Value = Vec<JobName>> {
    vec((any_text(), any_text()).prop_map(|(source, name)| JobName { source, name }), 0..4)
}

#[test]
fn the_checksum_is_crc32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}
