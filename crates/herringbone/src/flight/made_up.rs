//! A record for tests.

use super::FlightRecord;
use crate::core::session::{Role, status::ClockReading};

/// That of rank 1 of 2, which has called nothing.
pub(super) fn record() -> FlightRecord {
    FlightRecord {
        job: 7,
        role: Role::Worker,
        rank: 1,
        world: 2,
        process: 3,
        host: "here".to_owned(),
        version: "1".to_owned(),
        clock: ClockReading { monotonic: 4, realtime: 5 },
        issued: 0,
        posted: 0,
        groups: Vec::new(),
        operations: Vec::new(),
    }
}
