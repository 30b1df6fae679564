//! Simulated ranks, the texts of errors, plans of fusion, and lists that are damaged.

mod lists;
mod parts;
mod world;

use super::{NamedCall, NamedGroup, NamedKind, NamedRequest, NegotiatorSettings, StallSettings, Tuning};
use crate::{
    codec::Codec,
    element::{DType, ReduceOp},
};
use core::time::Duration;

/// Numbers that look random (splitmix64).
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound.max(1) as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

fn call(kind: NamedKind, shape: &[u64]) -> NamedCall {
    NamedCall {
        kind,
        dtype: DType::F32,
        op: ReduceOp::Sum,
        shape: shape.to_vec(),
        root: 0,
        prescale: 1.0,
        postscale: 1.0,
        codec: Codec::Plain,
    }
}

fn request(name: &str, call: NamedCall) -> NamedRequest {
    NamedRequest { name: name.into(), call, group: None, priority: 0 }
}

fn in_group(name: &str, members: u32, request: NamedRequest) -> NamedRequest {
    NamedRequest { group: Some(NamedGroup { name: name.into(), members }), ..request }
}

fn settings(capacity: usize) -> NegotiatorSettings {
    NegotiatorSettings {
        capacity,
        stall: StallSettings { warning: Duration::from_secs(60), shutdown: Duration::ZERO },
        tuning: Tuning { threshold: 1000, cycle: Duration::from_millis(1) },
        across_groups: true,
    }
}
