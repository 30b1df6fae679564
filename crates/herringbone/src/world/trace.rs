//! All that happens in a world, as one number, and in words where somebody reads them.

use std::{cell::Cell, fmt::Debug, time::Duration};

thread_local! {
    static SHOWN: Cell<bool> = const { Cell::new(false) };
}

/// Has worlds of this thread print what happens, or not.
pub(super) fn show(shown: bool) {
    SHOWN.set(shown);
}

/// A hash of all that has happened (FNV-1a).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace(pub(crate) u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Trace {
    /// Adds something that is of no interest to a reader.
    pub(super) fn add(&mut self, now: Duration, what: &impl Debug) {
        self.add_text(&format!("{now:?} {what:?}"));
    }

    /// Adds something that happens.
    pub(super) fn note(&mut self, now: Duration, what: &impl Debug) {
        let text = format!("{now:?} {what:?}");
        self.add_text(&text);
        if SHOWN.get() {
            println!("{text}");
        }
    }

    fn add_text(&mut self, text: &str) {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
