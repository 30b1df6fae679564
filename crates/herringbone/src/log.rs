//! A few lines on standard error: warnings always, information if `HERRINGBONE_LOG=info`.

use std::{fmt, sync::OnceLock};

fn level() -> u8 {
    static LEVEL: OnceLock<u8> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("HERRINGBONE_LOG").as_deref() {
        Ok("info") => 2,
        Ok("off") => 0,
        _ => 1,
    })
}

pub(crate) fn warn(who: &str, what: impl fmt::Display) {
    if level() >= 1 {
        eprintln!("[herringbone {who}] warning: {what}");
    }
}

pub(crate) fn info(who: &str, what: impl fmt::Display) {
    if level() >= 2 {
        eprintln!("[herringbone {who}] {what}");
    }
}
