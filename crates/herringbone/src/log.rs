//! A few lines on standard error: warnings always, information if `HERRINGBONE_LOG=info`.

use std::{fmt, io::Write, sync::OnceLock};

/// The variable of the environment that says how much.
pub(crate) const VARIABLE: &str = "HERRINGBONE_LOG";

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Off,
    Warn,
    Info,
}

impl Level {
    /// The level of a name in `HERRINGBONE_LOG`. Names of levels that other programs have mean the nearest one here.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "off" | "none" => Some(Level::Off),
            "warn" | "warning" | "error" => Some(Level::Warn),
            "info" | "debug" | "trace" => Some(Level::Info),
            _ => None,
        }
    }
}

static LEVEL: OnceLock<Level> = OnceLock::new();

fn level() -> Level {
    *LEVEL.get_or_init(|| set().unwrap_or(Level::Warn))
}

fn set() -> Option<Level> {
    std::env::var(VARIABLE).ok().and_then(|name| Level::named(&name))
}

/// Has this process give information as well, unless the environment says how much.
pub(crate) fn inform() {
    // If something was said before, it stays as it is.
    let _said = LEVEL.set(set().unwrap_or(Level::Info));
}

pub(crate) fn warn(who: &str, what: impl fmt::Display) {
    if level() >= Level::Warn {
        write_line(&format!("[herringbone {who}] warning: {what}\n"));
    }
}

pub(crate) fn info(who: &str, what: impl fmt::Display) {
    if level() >= Level::Info {
        write_line(&format!("[herringbone {who}] {what}\n"));
    }
}

/// A line about a rank, which may be a warning.
pub(crate) fn of_rank(rank: u32, warns: bool, what: impl fmt::Display) {
    let who = format!("rank {rank}");
    if warns { warn(&who, what) } else { info(&who, what) }
}

/// What takes long and was asked for: said as warnings are, and is none.
pub(crate) fn note(who: &str, what: impl fmt::Display) {
    if level() >= Level::Warn {
        write_line(&format!("[herringbone {who}] {what}\n"));
    }
}

/// In one write: several ranks may have the same standard error.
fn write_line(line: &str) {
    // Nobody can be told that nobody can be told.
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
