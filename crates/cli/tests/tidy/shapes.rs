//! How large types are, and that each has a name of its own.
//!
//! A long file is easily cut in two; an object of many fields and methods is not smaller for it. Those that are too
//! large today are listed, with how large they may be at most: a list only becomes shorter.

use super::{
    imports::rust_lines,
    none,
    source::{Source, depth, sources},
};
use std::collections::{BTreeMap, BTreeSet};

/// In how many files a type's inherent `impl` blocks may be.
const IMPL_FILES: usize = 3;
/// How many fields a struct may have.
const FIELDS: usize = 12;
/// In how many files a name may be that of a type, unless it is private there.
const DEFINITIONS: usize = 1;

/// The types whose `impl` blocks are in more files.
const SCATTERED: [(&str, usize); 0] = [];

/// The structs that have more fields.
const WIDE: [(&str, usize); 6] = [
    ("Config", 15),
    // As many as the frame on the wire.
    ("Header", 15),
    ("Node", 16),
    // As many as the command line's.
    ("Options", 13),
    ("Prepared", 18),
    ("ShmLink", 14),
];

/// The names that mean several types.
const AMBIGUOUS: [(&str, usize); 27] = [
    ("Case", 2),
    ("Claim", 2),
    // Python's classes are called as what they hold.
    ("Communicator", 2),
    ("Mapped", 2),
    ("Pending", 2),
    ("Expected", 2),
    ("Fold", 2),
    ("Group", 3),
    ("Identity", 2),
    ("Incoming", 2),
    ("Kind", 3),
    ("Layout", 2),
    ("Level", 3),
    ("Member", 2),
    ("Message", 2),
    ("Node", 3),
    // One for each verb of the command.
    ("Options", 11),
    ("Part", 3),
    ("Reader", 2),
    ("Request", 2),
    ("Row", 2),
    ("Run", 2),
    ("Server", 2),
    ("Settings", 2),
    ("Source", 3),
    ("Step", 2),
    ("UnknownName", 2),
];

#[test]
fn impl_blocks_of_a_type_are_in_few_files() {
    let found = beyond(IMPL_FILES, &SCATTERED, impl_files(&code()));
    none(&format!("the inherent impl blocks of a type are in at most {IMPL_FILES} files"), found);
}

#[test]
fn structs_have_few_fields() {
    none(&format!("a struct has at most {FIELDS} fields"), beyond(FIELDS, &WIDE, fields(&code())));
}

#[test]
fn names_of_types_mean_one_type() {
    let found = beyond(DEFINITIONS, &AMBIGUOUS, definitions(&code()));
    none("a type that is not private to its file has a name of its own", found);
}

/// What is larger than `most` and than the list allows, and what the list allows for nothing.
fn beyond(most: usize, allowed: &[(&str, usize)], sizes: Vec<(String, usize)>) -> Vec<String> {
    let limit =
        |name: &str| allowed.iter().find(|(other, _)| *other == name).map_or(most, |(_, limit)| *limit);
    let too_large = sizes.iter().filter(|(name, size)| *size > limit(name));
    let mut found: Vec<String> = too_large.map(|(name, size)| format!("{name} has {size}")).collect();
    let is_needed = |name: &str| sizes.iter().any(|(other, size)| other == name && *size > most);
    let stale = allowed.iter().filter(|(name, _)| !is_needed(name));
    found.extend(stale.map(|(name, _)| format!("{name} need not be in the list any more")));
    found
}

/// A Rust file of a crate: its path and its lines, without comments and tests.
type Code = (String, Vec<String>);

/// The Rust files of all crates.
fn code() -> Vec<Code> {
    let is_ours = |source: &Source| {
        let is_crate = source.path.starts_with("crates/") || source.path.starts_with("python/");
        is_crate && source.path.contains("/src/") && source.path.ends_with(".rs")
    };
    let files = sources().into_iter().filter(|source| is_ours(source) && !source.path.ends_with("/tests.rs"));
    files.map(|source| (source.path, lines(&source.text))).collect()
}

fn lines(text: &str) -> Vec<String> {
    rust_lines(text).into_iter().map(|(_, line)| line).collect()
}

/// In how many files of its crate each type has inherent `impl` blocks. A file that defines a type of the name means
/// its own.
fn impl_files(code: &[Code]) -> Vec<(String, usize)> {
    let mut files: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (path, lines) in code {
        let folder = path.split("/src/").next().unwrap_or_default();
        for name in lines.iter().filter_map(|line| inherent(line)) {
            let is_own = lines.iter().any(|line| defined(line).is_some_and(|(_, other)| other == name));
            let others = code.iter().filter(|(other, _)| other.starts_with(folder));
            let definitions = others.flat_map(|(_, lines)| lines).filter_map(|line| defined(line));
            let is_only = definitions.filter(|(_, other)| *other == name).count() == 1;
            files.entry((if is_own && !is_only { path } else { folder }, name)).or_default().insert(path);
        }
    }
    files.into_iter().map(|((_, name), files)| (name.to_owned(), files.len())).collect()
}

/// How many fields each struct has.
fn fields(code: &[Code]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (_, lines) in code {
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.ends_with('{')) {
            let Some(("struct", name)) = defined(line) else { continue };
            let body =
                lines[at + 1..].iter().take_while(|inside| depth(inside) > depth(line) || inside.is_empty());
            let is_field = |inside: &&String| depth(inside) == depth(line) + 4 && inside.contains(": ");
            found.push((name.to_owned(), body.filter(is_field).count()));
        }
    }
    found
}

/// In how many files each name is that of a type that others may see.
fn definitions(code: &[Code]) -> Vec<(String, usize)> {
    let mut files: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (path, lines) in code {
        for line in lines.iter().filter(|line| line.starts_with("pub")) {
            if let Some((_, name)) = defined(line) {
                files.entry(name).or_default().insert(path);
            }
        }
    }
    files.into_iter().map(|(name, files)| (name.to_owned(), files.len())).collect()
}

/// The kind and the name of the type that a line begins.
fn defined(line: &str) -> Option<(&str, &str)> {
    let item = line.trim_start();
    let item = if item.starts_with("pub") { item.split_once(' ')?.1 } else { item };
    let (kind, rest) = item.split_once(' ')?;
    ["struct", "enum", "union", "trait", "type"].contains(&kind).then(|| (kind, first_name(rest)))
}

/// The type of an inherent `impl` block that a line begins.
fn inherent(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let mut nesting = 0;
    let end = rest.char_indices().find(|(_, character)| {
        nesting += i32::from(*character == '<') - i32::from(*character == '>');
        nesting == 0 && *character == ' '
    });
    let rest = rest[end?.0..].trim_start();
    (!rest.contains(" for ")).then(|| first_name(rest))
}

fn first_name(text: &str) -> &str {
    text.split(|character: char| !character.is_alphanumeric() && character != '_').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planted(files: &[(&str, &str)]) -> Vec<Code> {
        files.iter().map(|(path, text)| (format!("crates/x/src/{path}.rs"), lines(text))).collect()
    }

    fn sizes(found: Vec<(String, usize)>) -> Vec<String> {
        found.into_iter().map(|(name, size)| format!("{name} {size}")).collect()
    }

    #[test]
    fn impl_blocks_are_counted_by_file() {
        let code = planted(&[
            (
                "a",
                "pub struct A<T>(T);\nimpl<T: Into<u8>> A<T> {\n}\nimpl A<u8> {\n}\nimpl fmt::Debug for B {\n}\n",
            ),
            ("b", "impl A<u8> {\n}\n\n#[cfg(test)]\nimpl C {\n}\nstruct B;\nimpl B {\n}\n"),
            ("c", "struct B {\n    a: u8,\n}\nimpl B {\n}\n"),
        ]);
        assert_eq!(sizes(impl_files(&code)), ["A 2", "B 1", "B 1"]);
    }

    #[test]
    fn fields_are_counted() {
        let text = "pub(crate) struct A<'a> {\n    /// One: two.\n    pub(super) a: &'a u8,\n    b: Box<\n        dyn Fn(u8) -> u8,\n    >,\n    \
                    #[x]\n    c: u8,\n}\n\nstruct B;\nenum C {\n    D { e: u8 },\n}\n";
        assert_eq!(sizes(fields(&planted(&[("a", text)]))), ["A 3"]);
    }

    #[test]
    fn names_are_counted_where_others_see_them() {
        let code = planted(&[
            ("a", "pub struct A;\nstruct B;\npub(crate) enum C {\n}\npub type D = u8;\npub fn f() {}\n"),
            ("b", "pub trait A {\n}\npub struct B;\n"),
        ]);
        assert_eq!(sizes(definitions(&code)), ["A 2", "B 1", "C 1", "D 1"]);
    }

    #[test]
    fn lists_allow_what_is_there_and_nothing_else() {
        let sizes = [("A", 5), ("B", 9), ("C", 3)].map(|(name, size)| (name.to_owned(), size)).to_vec();
        assert_eq!(beyond(3, &[("A", 5), ("B", 9)], sizes.clone()), [""; 0]);
        let found = ["B has 9", "C need not be in the list any more", "D need not be in the list any more"];
        assert_eq!(beyond(3, &[("A", 5), ("B", 8), ("C", 3), ("D", 4)], sizes), found);
    }
}
