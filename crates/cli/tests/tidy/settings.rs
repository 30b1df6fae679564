//! The settings are documented as they are, and no other name is in use.

use super::{none, root, sources};
use herringbone::settings::{ALL, Setting};
use std::{collections::BTreeSet, fs};

/// The table of the documentation.
fn table() -> String {
    let mut lines = vec![
        "| variable | meaning | value | default | read by |".to_owned(),
        "|---|---|---|---|---|".to_owned(),
    ];
    lines.extend(ALL.iter().map(|setting| row(setting)));
    lines.join("\n") + "\n"
}

fn row(setting: &Setting) -> String {
    let Setting { name, meaning, values, readers, .. } = *setting;
    let fallbacks = setting.fallbacks.iter().map(|names| format!("`{}`", names.join(":")));
    let default: Vec<String> = fallbacks.chain([setting.default.to_owned()]).collect();
    let readers: Vec<&str> = readers.iter().map(|reader| reader.name()).collect();
    format!("| `{name}` | {meaning} | {values} | {} | {} |", default.join(", else "), readers.join(", "))
}

#[test]
fn the_documented_settings_are_those_that_are_read() {
    for path in ["docs/reference/settings.md", "crates/herringbone/src/config/settings.md"] {
        let text = fs::read_to_string(root().join(path)).unwrap();
        assert!(text.contains(&table()), "{path} needs this table of the settings:\n\n{}", table());
    }
}

/// What phases of a timeline end in: Horovod's names have the backend's first.
const PHASES: [&str; 6] = ["ALLREDUCE", "ADASUM", "BCAST", "ALLGATHER", "ALLTOALL", "REDUCESCATTER"];

/// What programs define for the header of C++.
const FOR_HEADERS: [&str; 1] = ["HERRINGBONE_RABIT_MPI"];

/// What the header for C defines: its numbers and macros.
fn constants() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("crates/capi/include/herringbone.h")).unwrap();
    let first =
        |line: &str| line.trim().trim_start_matches("#define ").split([' ', ',']).next().map(str::to_owned);
    let is_defined = |line: &&str| line.starts_with("#define ") || line.contains(" = ");
    header
        .lines()
        .filter(is_defined)
        .filter_map(first)
        .filter(|name| name.starts_with("HERRINGBONE_"))
        .collect()
}

#[test]
fn no_constant_of_the_header_is_called_as_a_setting() {
    let constants = constants();
    assert!(constants.len() > 40, "{constants:?}");
    let same = ALL.iter().filter(|setting| constants.contains(setting.name));
    none("a name means one thing", same.map(|setting| setting.name.to_owned()).collect());
}

#[test]
fn every_name_in_the_tree_is_a_setting() {
    let mut found = Vec::new();
    let constants = constants();
    for source in sources() {
        for (number, line) in (1..).zip(source.text.lines()) {
            let is_phase = |name: &str| PHASES.iter().any(|phase| name.ends_with(&format!("_{phase}")));
            let is_setting =
                |name: &str| ALL.iter().any(|setting| setting.name == name) || constants.contains(name);
            let is_known = |name: &str| is_setting(name) || is_phase(name) || FOR_HEADERS.contains(&name);
            let unknown = names(line).filter(|name| !is_known(name));
            found.extend(unknown.map(|name| format!("{}:{number}: {name}", source.path)));
        }
    }
    none(
        "a name that begins with HERRINGBONE_ is a setting, in crates/herringbone/src/config/settings.rs, or the C header's",
        found,
    );
}

/// The names in a line that begin like a setting's and are more than that beginning.
fn names(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("HERRINGBONE_").filter_map(|(at, prefix)| {
        let is_part = |character: char| {
            character.is_ascii_uppercase() || character.is_ascii_digit() || character == '_'
        };
        let rest = &line[at..];
        let end = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        (end > prefix.len()).then(|| &rest[..end])
    })
}

#[test]
fn names_are_found_in_lines() {
    let name = ["HERRINGBONE", "A_1"].join("_");
    let line = format!("`{name}`, {name}=x and HERRINGBONE_* (HERRINGBONE_)");
    assert_eq!(names(&line).collect::<Vec<_>>(), [&name, &name]);
}
