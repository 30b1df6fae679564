//! What a check found.

use serde_json::{Value, json};

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    Ok,
    /// Some jobs fail or are slow here.
    Warning,
    /// A job fails here.
    Wrong,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Wrong => "wrong",
        }
    }
}

/// The result of one check: one sentence, and the command that mends what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) level: Severity,
    pub(super) says: String,
    pub(super) command: Option<String>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, level: Severity::Ok, says: says.into(), command: None }
    }

    pub(super) fn warning(check: &'static str, says: impl Into<String>, command: impl Into<String>) -> Self {
        Self { check, level: Severity::Warning, says: says.into(), command: Some(command.into()) }
    }

    pub(super) fn wrong(check: &'static str, says: impl Into<String>, command: impl Into<String>) -> Self {
        Self { level: Severity::Wrong, ..Self::warning(check, says, command) }
    }

    pub(super) fn cells(&self) -> [String; 4] {
        let Self { check, level, says, command } = self;
        [(*check).to_owned(), level.name().to_owned(), says.clone(), command.clone().unwrap_or_default()]
    }

    pub(super) fn object(&self) -> Value {
        let Self { check, level, says, command } = self;
        json!({ "check": check, "level": level.name(), "says": says, "command": command })
    }
}
