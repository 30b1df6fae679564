//! The counts that are kept, and what is made of others.

use crate::{Cost, workload::Case};
use herringbone_sys::kernel::Level;
use serde_json::{Map, Value, json};
use std::{fmt, fs};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/instructions.json");
/// Compilers differ in what they make of the same program: how far instructions may be off, in percent, if the compiler
/// is not the one of the counts that are kept.
const OTHER_COMPILER: u64 = 30;
/// The same for counts that are those of another level: the widest registers are eight times the narrowest.
const OTHER_LEVEL: u64 = 700;

/// What made this program, and what runs it.
pub(crate) struct Build {
    compiler: String,
}

impl Build {
    pub(crate) fn this() -> Self {
        Self { compiler: compiler() }
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, rustc {}", Level::best(), self.compiler)
    }
}

/// The compiler's version, as it wrote it into this program.
fn compiler() -> String {
    let program = std::env::current_exe().and_then(fs::read).unwrap_or_default();
    let mark = b"rustc version ";
    let versions = program
        .windows(mark.len() + 1)
        .enumerate()
        .filter(|(_, bytes)| bytes.starts_with(mark) && bytes[mark.len()].is_ascii_digit());
    let version = |(at, _): (usize, &[u8])| {
        let rest = &program[at + mark.len()..];
        let end = rest.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.').unwrap_or(rest.len());
        String::from_utf8_lossy(&rest[..end]).into_owned()
    };
    versions.map(version).next().unwrap_or_else(|| "unknown".to_owned())
}

/// What is in the file.
pub(crate) struct Baseline(Value);

/// What is to be said of a cost.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// As it was, within what is allowed.
    Same { said: String },
    /// Not what it was.
    Differs { said: String },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Same { said } => write!(f, "{said}"),
            Verdict::Differs { said } => write!(f, "{said}: FAILED"),
        }
    }
}

impl Baseline {
    pub(crate) fn read() -> Self {
        let text = fs::read_to_string(FILE).unwrap_or_else(|_| "{}".to_owned());
        Self(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{FILE}: {error}")))
    }

    pub(crate) fn write(&self) {
        let text = serde_json::to_string_pretty(&self.0).expect("text");
        fs::write(FILE, text + "\n").unwrap_or_else(|error| panic!("{FILE}: {error}"));
    }

    /// Takes a new cost over. Counts of other levels stay: only cases have them of which the folds are nearly all.
    pub(crate) fn keep(&mut self, case: &Case, build: &Build, cost: Cost) {
        let Some(root) = self.0.as_object_mut() else { panic!("{FILE} is no object") };
        let operation = entry(root, &case.to_string());
        operation.insert("allocations".to_owned(), json!(cost.allocations));
        if let Some(instructions) = cost.instructions {
            let count = json!({ "rustc": build.compiler, "count": instructions });
            entry(operation, "instructions").insert(case.level().to_string(), count);
        }
    }

    /// Compares a cost with the one that is kept.
    pub(crate) fn judge(&self, case: &Case, build: &Build, cost: Cost) -> Verdict {
        let kept = &self.0[case.to_string()];
        let mut said = Vec::new();
        let mut differs = false;
        if let Some(instructions) = cost.instructions {
            let (expected, tolerance, why) = allowed(&kept["instructions"], case, build);
            differs |= instructions.abs_diff(expected) * 100 > expected * tolerance;
            said.push(format!(
                "{instructions:>8} instructions (kept: {expected}, {tolerance} % allowed{why})"
            ));
        }
        let expected = kept["allocations"].as_u64();
        differs |= expected != Some(cost.allocations);
        let expected = expected.map_or_else(|| "none".to_owned(), |expected| expected.to_string());
        said.push(format!("{} allocations of all ranks (kept: {expected})", cost.allocations));
        let said = said.join(", ");
        if differs { Verdict::Differs { said } } else { Verdict::Same { said } }
    }
}

fn entry<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = object.entry(name).or_insert_with(|| json!({}));
    value.as_object_mut().unwrap_or_else(|| panic!("{FILE}: {name} is no object"))
}

/// The count that is kept for this CPU or the nearest, how far off it may be in percent, and why so far.
fn allowed(kept: &Value, case: &Case, build: &Build) -> (u64, u64, String) {
    let own = case.level();
    let count = |level: &Level| Some((kept[level.to_string()]["count"].as_u64()?, *level));
    let distance = |level: &Level| (*level as i32 - own as i32).abs();
    let mut levels = Level::ALL;
    levels.sort_by_key(distance);
    let Some((expected, level)) = levels.iter().find_map(count) else {
        return (0, 0, ": nothing is known of it".to_owned());
    };
    let compiler = kept[level.to_string()]["rustc"].as_str().unwrap_or("unknown");
    if level != own {
        (expected, OTHER_LEVEL, format!(" since it is of {level}"))
    } else if compiler != build.compiler {
        (expected, OTHER_COMPILER, format!(" since it is of rustc {compiler}"))
    } else {
        (expected, case.tolerance, String::new())
    }
}
