//! libFuzzer on one of the decoders of foreign bytes: the environment's `DECODER` names it. `make fuzz` runs all of them.
#![no_main]

use std::{env, sync::LazyLock};

#[path = "../crates/core/tests/session/foreign/targets.rs"]
mod targets;

static CHECK: LazyLock<targets::Check> = LazyLock::new(|| {
    let wanted = env::var("DECODER").unwrap_or_default();
    let names: Vec<&str> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
    let found = targets::TARGETS.iter().find(|(name, _)| *name == wanted);
    found.unwrap_or_else(|| panic!("DECODER is {wanted:?}; there are {}", names.join(", "))).1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    CHECK(bytes);
});
