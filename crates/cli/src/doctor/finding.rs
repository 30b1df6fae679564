//! The findings of checks, and the verdict.

use crate::table;
use rustix::process::geteuid;
use serde_json::{Value, json};

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// A fix of a finding. The prose is for people; the command is for a shell, which runs it unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Remedy {
    /// A sentence without the full stop.
    pub(super) prose: String,
    /// One or more lines of a POSIX shell. They fix the problem, or show the facts that a person needs to fix it.
    pub(super) command: String,
}

impl Remedy {
    pub(super) fn new(prose: impl Into<String>, command: impl Into<String>) -> Self {
        Self { prose: prose.into(), command: command.into() }
    }
}

/// A command that only root may run, for the user of this process.
pub(super) fn by_root(command: &str) -> String {
    if geteuid().is_root() { command.to_owned() } else { format!("sudo {command}") }
}

/// A word of a shell.
pub(super) fn shell_word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:=@%+,".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// The result of one check: one sentence, and a fix unless all is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) level: Severity,
    pub(super) says: String,
    pub(super) remedy: Option<Remedy>,
}

impl Finding {
    pub(super) fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Self { check, level: Severity::Ok, says: says.into(), remedy: None }
    }

    pub(super) fn warning(check: &'static str, says: impl Into<String>, remedy: Remedy) -> Self {
        Self { check, level: Severity::Warning, says: says.into(), remedy: Some(remedy) }
    }

    pub(super) fn wrong(check: &'static str, says: impl Into<String>, remedy: Remedy) -> Self {
        Self { level: Severity::Wrong, ..Self::warning(check, says, remedy) }
    }

    pub(super) fn cells(&self) -> [String; 3] {
        [self.check.to_owned(), self.level.name().to_owned(), table::visible(&self.says)]
    }

    pub(super) fn object(&self) -> Value {
        let Self { check, level, says, remedy } = self;
        let (advice, command) = remedy.as_ref().map(|remedy| (&*remedy.prose, &*remedy.command)).unzip();
        json!({ "check": check, "level": level.name(), "says": says, "advice": advice, "command": command })
    }
}

/// Whether a job can start, by all findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DoctorVerdict {
    wrong: usize,
    warnings: usize,
}

impl DoctorVerdict {
    pub(super) fn of(findings: &[Finding]) -> Self {
        let count = |level| findings.iter().filter(|finding| finding.level == level).count();
        Self { wrong: count(Severity::Wrong), warnings: count(Severity::Warning) }
    }

    pub(super) fn can_start(self) -> bool {
        self.wrong == 0
    }

    /// As a sentence.
    pub(super) fn says(self) -> String {
        let counted = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        match (self.wrong, self.warnings) {
            (0, 0) => "A job can start here.".to_owned(),
            (0, warnings) => format!("A job can start here, with {}.", counted(warnings, "warning")),
            (wrong, 0) => format!("No job can start here: {}.", counted(wrong, "problem")),
            (wrong, warnings) => format!(
                "No job can start here: {}, and {}.",
                counted(wrong, "problem"),
                counted(warnings, "warning")
            ),
        }
    }

    /// As a line after the findings, with the same keys and the numbers.
    pub(super) fn object(self) -> Value {
        let Self { wrong, warnings } = self;
        let level = match (wrong, warnings) {
            (0, 0) => Severity::Ok,
            (0, _) => Severity::Warning,
            _ => Severity::Wrong,
        };
        json!({
            "check": "verdict", "level": level.name(), "says": self.says(), "advice": null, "command": null,
            "can_start": self.can_start(), "wrong": wrong, "warnings": warnings,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_stay_one_word() {
        let quoted = ["/usr/bin/python3", "my python", "it's", ""].map(shell_word);
        assert_eq!(quoted, ["/usr/bin/python3", "'my python'", r"'it'\''s'", "''"]);
    }

    #[test]
    fn a_verdict_says_whether_a_job_can_start() {
        let verdict = |wrong, warnings| DoctorVerdict { wrong, warnings };
        assert_eq!(verdict(0, 0).says(), "A job can start here.");
        assert_eq!(verdict(0, 1).says(), "A job can start here, with 1 warning.");
        assert_eq!(verdict(2, 0).says(), "No job can start here: 2 problems.");
        assert_eq!(verdict(1, 3).says(), "No job can start here: 1 problem, and 3 warnings.");
        assert_eq!(verdict(1, 0).object()["can_start"], false);
        assert_eq!(verdict(0, 2).object()["level"], "warning");
    }
}
