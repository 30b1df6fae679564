//! Settings, launchers and torch: what stands in the environment and in Python.

use super::finding::Finding;
use herringbone::settings::Environment;
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// The oldest torch that the backend takes, and the newest with which every feature was tried (docs/torch-versions.md).
const TORCH: ((u64, u64), (u64, u64)) = ((2, 10), (2, 15));
/// The oldest Python.
const PYTHON: (u64, u64) = (3, 10);

/// Prints what is installed, without importing it, which would take seconds.
const ASK: &str = "
import json, sys
from importlib import metadata
def version(name):
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
print(json.dumps({'python': list(sys.version_info[:2]), 'path': sys.executable,
                  'torch': version('torch'), 'herringbone': version('herringbone')}))
";

/// A finding for each setting that cannot be used, or one for all.
pub(super) fn settings() -> Vec<Finding> {
    const CHECK: &str = "settings";
    let problems = Environment::of_process().problems();
    if problems.is_empty() {
        return vec![Finding::ok(CHECK, "all settings in the environment can be used")];
    }
    let wrong =
        |problem: &herringbone::Error| Finding::wrong(CHECK, problem.to_string(), "herringbone settings");
    problems.iter().map(wrong).collect()
}

/// Which launcher's variables there are.
pub(super) fn launcher() -> Finding {
    const CHECK: &str = "launcher";
    match Environment::of_process().place() {
        Ok(Some(place)) => Finding::ok(CHECK, place),
        Ok(None) => Finding::ok(
            CHECK,
            "no launcher has started this process; programs that are started from here are worlds of 1",
        ),
        Err(error) => Finding::wrong(CHECK, error.to_string(), "env | grep -E 'RANK|SIZE|MASTER|SLURM'"),
    }
}

/// The torch of a Python.
pub(super) fn torch(python: Option<&Path>) -> Finding {
    let program = python.unwrap_or(Path::new("python3"));
    let answer = Command::new(program).args(["-c", ASK]).stdin(Stdio::null()).output();
    let shown = program.display();
    let heard = match &answer {
        Ok(output) if output.status.success() => serde_json::from_slice(&output.stdout).ok(),
        _ => None,
    };
    match (heard, answer) {
        (Some(versions), _) => judge(&versions),
        (None, Ok(output)) => Finding::wrong(
            CHECK,
            format!("{shown} does not run Python: {}", last_line(&output.stderr)),
            format!("{shown} --version"),
        ),
        (None, Err(error)) if python.is_some() => Finding::wrong(
            CHECK,
            format!("{shown} cannot be started: {error}"),
            "herringbone doctor --python PATH",
        ),
        (None, Err(_)) => Finding::ok(CHECK, "there is no python3 on the path; Rust programs need none"),
    }
}

const CHECK: &str = "torch";

fn last_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().last().unwrap_or("it says nothing").to_owned()
}

/// What to say of `{"python": [3, 12], "path": ..., "torch": "2.15.0" or null, "herringbone": ...}`.
fn judge(versions: &Value) -> Finding {
    let path = versions["path"].as_str().unwrap_or("python3");
    let python = (versions["python"][0].as_u64().unwrap_or(0), versions["python"][1].as_u64().unwrap_or(0));
    if python < PYTHON {
        let says = format!("{path} is Python {}.{}; Herringbone needs 3.10 or later", python.0, python.1);
        return Finding::wrong(CHECK, says, "herringbone doctor --python PATH");
    }
    let beside = match versions["herringbone"].as_str() {
        Some(version) => format!("herringbone {version}"),
        None => "no herringbone".to_owned(),
    };
    let (oldest, newest) = TORCH;
    let Some(torch) = versions["torch"].as_str() else {
        return Finding::ok(CHECK, format!("{path} has no torch and {beside}; numpy programs need no torch"));
    };
    let says = format!("{path} has torch {torch} and {beside}");
    match release(torch) {
        Some(version) if version < oldest => Finding::wrong(
            CHECK,
            format!("{says}; the backend needs torch {}.{} or later", oldest.0, oldest.1),
            format!("{path} -m pip install \"torch>={}.{}\"", oldest.0, oldest.1),
        ),
        Some(version) if version <= newest && versions["herringbone"].is_null() => Finding::warning(
            CHECK,
            format!("{says}, so programs with it do not find the backend"),
            format!("{path} -m pip install herringbone"),
        ),
        Some(version) if version <= newest => Finding::ok(CHECK, says),
        _ => Finding::warning(
            CHECK,
            format!("{says}; the newest torch that was tried is {}.{}", newest.0, newest.1),
            format!("{path} -m pip install \"torch<{}.{}\"", newest.0, newest.1 + 1),
        ),
    }
}

/// The first two numbers of a version.
fn release(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split('.').map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{self, Ok, Warning, Wrong};
    use super::*;
    use serde_json::json;

    fn judged(python: [u64; 2], torch: Option<&str>, herringbone: Option<&str>) -> (Severity, String) {
        let versions =
            json!({ "python": python, "path": "python3", "torch": torch, "herringbone": herringbone });
        let finding = judge(&versions);
        (finding.level, finding.command.unwrap_or_default())
    }

    #[test]
    fn torch_is_judged_by_its_version() {
        let own = Some("0.1.0");
        assert_eq!(judged([3, 12], Some("2.15.0+cpu"), own).0, Ok);
        assert_eq!(
            judged([3, 12], Some("2.9.1"), own),
            (Wrong, "python3 -m pip install \"torch>=2.10\"".into())
        );
        assert_eq!(
            judged([3, 12], Some("2.16.0"), own),
            (Warning, "python3 -m pip install \"torch<2.16\"".into())
        );
        assert_eq!(judged([3, 12], None, own).0, Ok);
        assert_eq!(judged([3, 12], Some("2.14.1"), None).0, Warning);
        assert_eq!(judged([3, 9], Some("2.15.0"), own).0, Wrong);
    }

    #[test]
    fn a_python_that_is_none_is_wrong() {
        assert_eq!(torch(Some(Path::new("/no/such/python"))).level, Wrong);
        assert_eq!(torch(Some(Path::new("false"))).level, Wrong);
    }

    /// The page and the record name the versions that count here.
    #[test]
    fn the_versions_are_those_of_the_record() {
        let read = |path: &str| {
            std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
        };
        let ((major, oldest), (_, newest)) = TORCH;
        assert!(read("docs/torch-versions.md").contains(&format!("torch from {major}.{oldest} on")));
        let record = read("record/matrix.md");
        assert!(record.contains(&format!("{major}.{newest}.")), "make matrix has tried another torch");
        assert!(
            !record.contains(&format!("{major}.{}.", newest + 1)),
            "a newer torch was tried: raise TORCH"
        );
    }
}
