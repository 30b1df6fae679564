//! Plans that a user writes: they choose an algorithm for sizes of a collective.
//!
//! `all_reduce:0-64K:doubling,64K-inf:radix` has a rule for each range. A range excludes its end. A rule without a
//! collective uses the previous rule's. Sizes are the whole buffer's, in bytes, with K, M or G for 2^10, 2^20 or 2^30;
//! `inf` means unbounded. `all_reduce:64K-inf:file=PATH` takes the schedule in a file, which rank 0 reads. The form
//! resembles Open MPI's and UCC's tuning strings.

use crate::{
    algorithm::{Algorithm, ScheduleFile},
    collective::Collective,
    session::is_unseen,
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt;

/// The collectives that a rule can be for, by the names without roots.
pub const RULED: [&str; 6] =
    ["all_reduce", "reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all"];

/// How long a text of rules is at most, in bytes.
pub const RULES_BYTES: usize = 4096;

/// How long the path of a file with a schedule is at most, in bytes: a rule has to fit a message.
const PATH_BYTES: usize = 160;

/// What the name of a schedule's file follows.
const FILE: &str = "file=";

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// Its place among [`RULED`].
    collective: usize,
    from: u64,
    /// `u64::MAX`: no end.
    to: u64,
    algorithm: Algorithm,
}

/// PlanRules that do not overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanRules(Vec<Rule>);

/// Why a text has no rules, and where the error is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {column}, `{found}`: {problem}")]
pub struct RulesError {
    /// The first character of the error, counted from 1.
    pub column: usize,
    /// The text there, up to a short length.
    pub found: String,
    /// The problem.
    pub problem: String,
}

impl PlanRules {
    /// Reads rules.
    ///
    /// # Errors
    /// [`RulesError`] for anything else, also for ranges that are empty or overlap.
    pub fn parse(text: &str) -> Result<Self, RulesError> {
        let mut rules: Vec<Rule> = Vec::new();
        for (start, part) in parts(text) {
            let wrong = |of: &str, problem: String| {
                let at = start + part.find(of).unwrap_or(0);
                let found = of.chars().take(40).collect();
                RulesError { column: text[..at].chars().count() + 1, found, problem }
            };
            if text.len() > RULES_BYTES {
                return Err(wrong(part, format!("a plan has at most {RULES_BYTES} characters")));
            }
            let fields: Vec<&str> = part.splitn(3, ':').map(str::trim).collect();
            let (collective, range, algorithm) = match (fields.as_slice(), rules.last()) {
                ([name, range, algorithm], _) => {
                    let known = RULED.iter().position(|known| known == name);
                    let problem = || wrong(name, format!("no collective; there are {}", RULED.join(", ")));
                    (known.ok_or_else(problem)?, *range, *algorithm)
                }
                ([range, algorithm], Some(before)) => (before.collective, *range, *algorithm),
                _ => {
                    let problem = "expected collective:from-to:algorithm, such as all_reduce:0-64K:doubling";
                    return Err(wrong(part, problem.to_string()));
                }
            };
            let problem = "expected a range of sizes, such as 0-64K or 1M-inf";
            let (from, to) = read_range(range).ok_or_else(|| wrong(range, problem.to_string()))?;
            if from >= to {
                return Err(wrong(range, "an empty range: its end is not in it".to_string()));
            }
            let overlaps = |rule: &&Rule| rule.collective == collective && rule.from < to && from < rule.to;
            if let Some(other) = rules.iter().find(overlaps) {
                return Err(wrong(range, format!("it overlaps {}", shown(other.from, other.to))));
            }
            let algorithm =
                read_algorithm(algorithm, collective).map_err(|problem| wrong(algorithm, problem))?;
            rules.push(Rule { collective, from, to, algorithm });
        }
        Ok(Self(rules))
    }

    /// The algorithm for a buffer of `bytes` bytes, if a rule matches.
    pub fn algorithm(&self, collective: Collective, bytes: u64) -> Option<&Algorithm> {
        let rule = self.0.iter().find(|rule| {
            RULED[rule.collective] == collective.name() && rule.from <= bytes && bytes < rule.to
        });
        rule.map(|rule| &rule.algorithm)
    }

    /// Each rule as a text. With commas between them they can be parsed again, except for the schedules of files.
    pub fn texts(&self) -> Vec<String> {
        let text = |rule: &Rule| {
            let algorithm = match &rule.algorithm {
                Algorithm::File(file) => format!("{FILE}{}", file.path()),
                other => other.to_string(),
            };
            format!("{}:{}:{algorithm}", RULED[rule.collective], shown(rule.from, rule.to))
        };
        self.0.iter().map(text).collect()
    }

    /// The files that rules take their schedules from, in the order of the rules.
    pub fn files(&self) -> impl Iterator<Item = &ScheduleFile> {
        self.0.iter().filter_map(|rule| match &rule.algorithm {
            Algorithm::File(file) => Some(file),
            _ => None,
        })
    }

    /// The same rules, whose files `read` has read.
    ///
    /// # Errors
    /// The first of `read`.
    pub fn with_files<E>(
        mut self,
        mut read: impl FnMut(&ScheduleFile) -> Result<ScheduleFile, E>,
    ) -> Result<Self, E> {
        for rule in &mut self.0 {
            if let Algorithm::File(file) = &mut rule.algorithm {
                *file = read(file)?;
            }
        }
        Ok(self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// An algorithm by its name, or the schedule of a file.
fn read_algorithm(text: &str, collective: usize) -> Result<Algorithm, String> {
    let Some(path) = text.strip_prefix(FILE).map(str::trim) else {
        return text.parse().map_err(|error| format!("{error}"));
    };
    if RULED[collective] != Collective::AllReduce.name() {
        return Err("a file has the schedule of an all_reduce; give other collectives an algorithm".into());
    }
    if path.is_empty() || path.len() > PATH_BYTES || path.contains(is_unseen) {
        return Err(format!(
            "expected file= and a path of 1 to {PATH_BYTES} visible characters, without `,` or `:`"
        ));
    }
    Ok(Algorithm::File(ScheduleFile::unread(path)))
}

/// The parts between commas that stand in no brackets, each with where it begins.
fn parts(text: &str) -> Vec<(usize, &str)> {
    let (mut depth, mut start) = (0i32, 0);
    let mut found = Vec::new();
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth <= 0 => {
                found.push((start, &text[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push((start, &text[start..]));
    found
}

fn read_range(text: &str) -> Option<(u64, u64)> {
    let (from, to) = text.split_once('-')?;
    let to = match to.trim() {
        "inf" => u64::MAX,
        size => read_size(size)?,
    };
    Some((read_size(from.trim())?, to))
}

const UNITS: [(char, u32); 3] = [('G', 30), ('M', 20), ('K', 10)];

fn read_size(text: &str) -> Option<u64> {
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(*unit));
    let (digits, shift) = unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = is_number.then(|| digits.parse().ok())??;
    number.checked_mul(1 << shift)
}

fn shown(from: u64, to: u64) -> String {
    let size = |bytes: u64| {
        let unit = UNITS.iter().find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift));
        unit.map_or_else(|| format!("{bytes}"), |(unit, shift)| format!("{}{unit}", bytes >> shift))
    };
    let to = if to == u64::MAX { "inf".to_string() } else { size(to) };
    format!("{}-{to}", size(from))
}

impl fmt::Display for PlanRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.texts().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_rule_that_it_lies_in() {
        let rules = PlanRules::parse(
            "all_reduce:0-64K:doubling, 64K-1M:radix(2,2),1M-inf:radix,broadcast:0-inf:tree",
        )
        .unwrap();
        let found = |collective, bytes| rules.algorithm(collective, bytes).map(ToString::to_string);
        let all_reduce = |bytes| found(Collective::AllReduce, bytes);
        for (bytes, name) in [
            (0, "doubling"),
            (65_535, "doubling"),
            (65_536, "radix(2,2)"),
            (1 << 20, "radix"),
            (u64::MAX - 1, "radix"),
        ] {
            assert_eq!(all_reduce(bytes).as_deref(), Some(name), "{bytes}");
        }
        assert_eq!(found(Collective::Broadcast { root: 3 }, 9).as_deref(), Some("tree"));
        assert_eq!(found(Collective::AllGather, 9), None);
        assert_eq!(PlanRules::parse(&rules.to_string()), Ok(rules));
    }

    #[test]
    fn rules_name_files_that_are_read_later() {
        let rules = PlanRules::parse("all_reduce:0-64K:doubling,64K-inf:file= a/b.txt").unwrap();
        assert_eq!(rules.texts(), ["all_reduce:0-64K:doubling", "all_reduce:64K-inf:file=a/b.txt"]);
        assert_eq!(PlanRules::parse(&rules.to_string()), Ok(rules.clone()));
        assert_eq!(rules.files().map(ScheduleFile::path).collect::<Vec<_>>(), ["a/b.txt"]);
        let schedule =
            || crate::schedule::Schedule::parse("schedule workers=1 reducers=0 cut=even:1\nrank 0");
        let read = |file: &ScheduleFile| Ok::<_, ()>(file.with(schedule().unwrap(), 5));
        let rules = rules.with_files(read).unwrap();
        let taken = rules.algorithm(Collective::AllReduce, 1 << 20).unwrap();
        assert_eq!(taken.to_string(), "file=a/b.txt (digest 0000000000000005)");
        assert_eq!(rules.with_files(|_| Err("gone")), Err("gone"));
    }

    #[test]
    fn what_is_wrong_is_pointed_at() {
        for (text, column, said) in [
            ("", 1, "expected collective:from-to:algorithm"),
            ("0-64K:radix", 1, "expected collective:from-to:algorithm"),
            ("all_reduce:0-64K", 1, "expected collective:from-to:algorithm"),
            ("allreduce:0-64K:radix", 1, "no collective; there are all_reduce"),
            ("all_reduce:0-64K:doubling,64K-inf:radx", 35, "no algorithm is called \"radx\""),
            ("all_reduce:0-64K:doubling,32K-inf:radix", 27, "it overlaps 0-64K"),
            ("all_reduce:64K-0:doubling", 12, "an empty range"),
            ("all_reduce:0..64K:doubling", 12, "expected a range of sizes"),
            ("all_reduce:0-99999999999999999999:doubling", 12, "expected a range of sizes"),
            ("all_reduce:0-64K:doubling,", 27, "expected collective:from-to:algorithm"),
            ("äll:0-1:radix", 1, "no collective"),
            ("broadcast:0-inf:file=a", 17, "a file has the schedule of an all_reduce"),
            ("all_reduce:0-inf:file=", 18, "expected file= and a path"),
            ("all_reduce:0-inf:file=a\u{7}", 18, "expected file= and a path"),
        ] {
            let error = PlanRules::parse(text).unwrap_err();
            assert!(error.column == column && error.problem.contains(said), "{text}: {error}");
        }
        assert!(PlanRules::parse(&"all_reduce:0-1:radix,".repeat(400)).is_err());
    }
}
