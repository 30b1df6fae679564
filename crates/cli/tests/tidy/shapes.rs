//! How large types are, that each has a name of its own, and that so has each thing which a function is given.
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
    ("Node", 17),
    // As many as the command line's.
    ("Options", 13),
    ("Prepared", 18),
    ("ShmLink", 14),
];

/// The names that mean several types.
const AMBIGUOUS: &[(&str, usize)] = &[
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
    let found = beyond(DEFINITIONS, AMBIGUOUS, definitions(&code()));
    none("a type that is not private to its file has a name of its own", found);
}

#[test]
fn parameters_and_fields_have_names() {
    let tuples = tuples(&code()).into_iter().filter(|(path, _)| !path.contains("/tests/"));
    let found = tuples.map(|(path, tuple)| format!("{path}: {tuple}")).collect();
    none("parameters and fields are no tuples: their parts have names, or are a struct", found);
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
    let all = code.iter().flat_map(|(_, lines)| structs(lines));
    all.map(|(name, fields)| (name.to_owned(), fields.len())).collect()
}

/// The structs of a file, each with the first lines of its fields.
fn structs(lines: &[String]) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| line.ends_with('{')) {
        let Some(("struct", name)) = defined(line) else { continue };
        let body =
            lines[at + 1..].iter().take_while(|inside| depth(inside) > depth(line) || inside.is_empty());
        let is_field = |inside: &&String| depth(inside) == depth(line) + 4 && inside.contains(": ");
        found.push((name, body.filter(is_field).map(|field| field.trim()).collect()));
    }
    found
}

/// The parameters of functions, and the fields of structs, that are tuples: each with its file.
fn tuples(code: &[Code]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, lines) in code {
        let fields = structs(lines).into_iter().flat_map(|(name, fields)| {
            fields.into_iter().filter(|field| is_tuple(field)).map(move |field| format!("{name}: {field}"))
        });
        found.extend(fields.map(|field| (path.clone(), field)));
        let text = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
        for (at, _) in
            text.match_indices("fn ").filter(|(at, _)| *at == 0 || text[..*at].ends_with([' ', '(']))
        {
            let name = first_name(&text[at + 3..]);
            let rest = &text[at + 3 + name.len()..];
            // Behind the generic parameters, if there are any.
            let rest = rest.strip_prefix('<').map_or(rest, |generic| apart(generic)[1]);
            let Some(list) = rest.strip_prefix('(') else { continue };
            let mut list = apart(list)[0];
            while let Some(parameter) = Some(first_of(list)).filter(|parameter| !parameter.is_empty()) {
                if is_tuple(parameter) {
                    found.push((path.clone(), format!("fn {name}: {}", parameter.trim())));
                }
                list = list[parameter.len()..].trim_start_matches(',');
            }
        }
    }
    found
}

/// Whether the type of a parameter or a field is a tuple, or a reference to one.
fn is_tuple(item: &str) -> bool {
    let Some(at) = item.match_indices(": ").map(|(at, _)| at).find(|at| nesting(&item[..*at]) == 0) else {
        return false;
    };
    let mut kind = item[at + 2..].trim_start_matches('&');
    if kind.starts_with('\'') {
        kind = kind.split_once(' ').map_or("", |(_, kind)| kind);
    }
    let kind = kind.trim_start_matches("mut ");
    kind.strip_prefix('(').is_some_and(|inside| {
        let inside = apart(inside)[0];
        first_of(inside).len() < inside.len()
    })
}

/// How many brackets are open at the end of a text.
fn nesting(text: &str) -> i32 {
    let arrows = text.matches("->").count() + text.matches("=>").count();
    let count = |brackets: &[char]| text.matches(brackets).count() as i32;
    count(&['(', '[', '{', '<']) - count(&[')', ']', '}', '>']) + arrows as i32
}

/// What is before the bracket that closes an open one, and what is behind it.
fn apart(text: &str) -> [&str; 2] {
    let end = text.match_indices([')', ']', '}', '>']).find(|(at, _)| nesting(&text[..=*at]) < 0);
    end.map_or([text, ""], |(at, _)| [&text[..at], &text[at + 1..]])
}

/// A list's first item.
fn first_of(list: &str) -> &str {
    let end = list.match_indices(',').find(|(at, _)| nesting(&list[..*at]) == 0);
    end.map_or(list, |(at, _)| &list[..at])
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
    fn tuples_are_found() {
        let text = "struct A<'a> {\n    a: (u8, u8),\n    b: &'a mut (u8, B<C, D>),\n    c: Vec<(u8, u8)>,\n    \
                    d: &'a (dyn Fn(u8, u8) -> (u8, u8) + Send),\n}\n\nfn f<T: Into<(u8, u8)>>(\n    &self,\n    \
                    (a, b): (u8, Vec<u8>),\n    c: impl Fn(u8, u8) -> (u8, u8),\n    d: &(u8, u8),\n    \
                    E { e, .. }: &E,\n) -> (u8, u8) {\n    let g = |(a, b): (u8, u8)| a;\n}\n";
        let found = tuples(&planted(&[("a", text)])).into_iter().map(|(_, what)| what);
        let expected = [
            "A: a: (u8, u8),",
            "A: b: &'a mut (u8, B<C, D>),",
            "fn f: (a, b): (u8, Vec<u8>)",
            "fn f: d: &(u8, u8)",
        ];
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lists_allow_what_is_there_and_nothing_else() {
        let sizes = [("A", 5), ("B", 9), ("C", 3)].map(|(name, size)| (name.to_owned(), size)).to_vec();
        assert_eq!(beyond(3, &[("A", 5), ("B", 9)], sizes.clone()), [""; 0]);
        let found = ["B has 9", "C need not be in the list any more", "D need not be in the list any more"];
        assert_eq!(beyond(3, &[("A", 5), ("B", 8), ("C", 3), ("D", 4)], sizes), found);
    }
}
