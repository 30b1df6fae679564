//! The dependency engine: what programs compute, what becomes of failures, and how much memory it takes.
#![cfg(feature = "dependency")]

mod behaviour;
mod collectives;
mod ends;
mod program;

use program::{Outcome, Program};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Values, and what each wait says, are those of calling the functions one after the other, with any number of threads.
    #[test]
    fn a_program_computes_what_its_serial_execution_computes(program in program::any(), threads in 1_usize..=8) {
        prop_assert_eq!(program.run(threads), program.serial());
    }
}

/// The comparison sees a step that is not as declared: an engine that ignored what is mutated would fail it.
#[test]
fn a_wrong_order_is_seen() {
    let program = Program::parse(2, &["m0", "m1 r0", "m0", "w1"]);
    let swapped = Program::parse(2, &["m0", "m0", "m1 r0", "w1"]);
    assert_ne!(program.serial(), swapped.serial());
    assert_eq!(program.run(4), program.serial());
}

#[test]
fn failures_spoil_skip_and_are_told_once() {
    let program = Program::parse(
        4,
        &["m0 fails", "r0 m1", "r1 m2", "m3", "w2", "w2", "w3", "r2 m3", "w1", "wait all", "wait all"],
    );
    let Outcome { reported, .. } = program.run(3);
    assert_eq!(reported, [Some(0), None, None, Some(0), Some(0), None]);
    assert_eq!(program.run(3), program.serial());
}
