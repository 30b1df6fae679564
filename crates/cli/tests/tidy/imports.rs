//! What a file imports of its own crate or package, and just enough of both languages' syntax to find it.
//!
//! A name that a module passes on (`pub use`, and any `use` that others reach through it) counts as the module's that
//! defines it, and passing on a name of a module inside is no import. What is compiled for tests only does not count.

use super::source::{Source, depth};
use std::collections::{BTreeMap, BTreeSet};

/// A module, as its file is called below the crate's or package's folder, without the ending: `engine/mod`.
pub(crate) type Module = String;

/// An import of a module by another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) from: Module,
    pub(crate) to: Module,
    /// The file and the line.
    pub(crate) place: String,
    /// As the text says it.
    pub(crate) written: String,
}

/// Where a module stands among the others: the names from the root down.
type Path = Vec<String>;

/// The modules below `folder`, and what they import of each other.
pub(crate) fn of(folder: &str, sources: &[Source]) -> (BTreeSet<Module>, Vec<Import>) {
    let files: Vec<File> = sources.iter().filter_map(|source| File::of(folder, source)).collect();
    let modules: BTreeMap<&Path, &File> = files.iter().map(|file| (&file.path, file)).collect();
    let mentions: Vec<(&File, Mention)> = files
        .iter()
        .flat_map(|file| {
            let found = if file.is_rust { file.rust(&modules) } else { file.python() };
            found.into_iter().map(move |mention| (file, mention))
        })
        .collect();
    let mut passed_on: BTreeMap<Path, Option<Path>> = BTreeMap::new();
    for (file, mention) in mentions.iter().filter(|(file, _)| file.is_rust) {
        if let Some(alias) = &mention.alias {
            passed_on.insert(joined(&file.path, [alias.clone()]), mention.path.clone());
        }
    }
    let mut imports = Vec::new();
    for (file, Mention { line, written, path, is_public, .. }) in mentions {
        let Some(path) = path else { continue };
        let passes_on = is_public && path.len() > file.path.len() && path.starts_with(&file.path);
        let Some(to) = defined_in(path, &modules, &passed_on).filter(|to| to.name != file.name) else {
            continue;
        };
        if !passes_on {
            let place = format!("{}:{line}", file.source);
            imports.push(Import { from: file.name.clone(), to: to.name.clone(), place, written });
        }
    }
    (files.into_iter().map(|file| file.name).collect(), imports)
}

/// The file that defines what is at `path`, as long as it is one of ours.
fn defined_in<'a>(
    mut path: Path,
    modules: &BTreeMap<&Path, &'a File>,
    passed_on: &BTreeMap<Path, Option<Path>>,
) -> Option<&'a File> {
    // Names that are passed on in a circle do not compile.
    for _ in 0..16 {
        let (length, module) = (0..=path.len())
            .rev()
            .find_map(|length| Some((length, *modules.get(&path[..length].to_vec())?)))?;
        let name = path.get(..=length).and_then(|name| passed_on.get(name));
        match name {
            None => return Some(module),
            // A name of another crate that the root passes on is not the root's.
            Some(None) => return Some(module).filter(|module| !module.path.is_empty()),
            Some(Some(elsewhere)) => path = joined(elsewhere, path[length + 1..].iter().cloned()),
        }
    }
    None
}

fn joined(path: &[String], more: impl IntoIterator<Item = String>) -> Path {
    path.iter().cloned().chain(more).collect()
}

/// A module's text.
struct File {
    /// From the repository's root.
    source: String,
    name: Module,
    path: Path,
    is_rust: bool,
    lines: Vec<(usize, String)>,
}

/// A path of modules in a text.
struct Mention {
    line: usize,
    written: String,
    /// `None`: of another crate.
    path: Option<Path>,
    /// What a `use` calls it.
    alias: Option<String>,
    is_public: bool,
}

impl File {
    fn of(folder: &str, source: &Source) -> Option<Self> {
        let (name, ending) = source.path.strip_prefix(folder)?.strip_prefix('/')?.rsplit_once('.')?;
        let is_rust = ending == "rs";
        if !is_rust && !["py", "pyi"].contains(&ending) || name == "tests" || name.ends_with("/tests") {
            return None;
        }
        let names = name.split('/').map(str::to_owned);
        let path = names.filter(|name| !["lib", "mod", "__init__"].contains(&name.as_str())).collect();
        let lines = if is_rust { rust_lines(&source.text) } else { python_lines(&source.text) };
        Some(Self { source: source.path.clone(), name: name.to_owned(), path, is_rust, lines })
    }

    /// Every path that a Rust file writes, in a `use` or elsewhere.
    fn rust(&self, modules: &BTreeMap<&Path, &File>) -> Vec<Mention> {
        let is_inside = |name: &str| modules.contains_key(&joined(&self.path, [name.to_owned()]));
        let mut found = Vec::new();
        // The modules that are open at a line, of those that are written out in this file.
        let mut open: Vec<(usize, String)> = Vec::new();
        let mut lines = self.lines.iter();
        while let Some((line, text)) = lines.next() {
            let is_end = |(depth_of, _): &mut (usize, String)| text.trim() == "}" && depth(text) == *depth_of;
            open.pop_if(is_end);
            open.extend(inline_module(text).map(|name| (depth(text), name.to_owned())));
            let here = joined(&self.path, open.iter().map(|(_, name)| name.clone()));
            let Some((is_public, tree)) = after_use(text) else {
                let is_in_path = |character: char| character.is_alphanumeric() || "_:".contains(character);
                let paths = text.split(|character| !is_in_path(character)).filter(|word| word.contains("::"));
                found.extend(paths.filter_map(|written| {
                    let path = Some(absolute(&here, written, &is_inside)?);
                    Some(Mention {
                        line: *line,
                        written: written.to_owned(),
                        path,
                        alias: None,
                        is_public: false,
                    })
                }));
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.ends_with(';') {
                let Some((_, more)) = lines.next() else { break };
                tree.push_str(more.trim());
            }
            found.extend(leaves(tree.trim_end_matches(';')).into_iter().map(|leaf| {
                let (written, alias) = leaf.split_once(" as ").unwrap_or((&leaf, ""));
                let written = written.strip_suffix("::self").unwrap_or(written);
                let last = written.rsplit("::").next().unwrap_or_default();
                let alias = if alias.is_empty() { last } else { alias };
                // Others reach only what stands at the file's top level.
                let alias = Some(alias.to_owned()).filter(|alias| alias != "*" && depth(text) == 0);
                let path = absolute(&here, written, &is_inside);
                Mention { line: *line, written: written.to_owned(), path, alias, is_public }
            }));
        }
        found
    }

    /// Every import of a Python file, in functions too.
    fn python(&self) -> Vec<Mention> {
        let mut found = Vec::new();
        let mut lines = self.lines.iter();
        while let Some((line, text)) = lines.next() {
            let mut statement = text.trim().to_owned();
            while statement.starts_with("from ") && statement.contains('(') && !statement.contains(')') {
                let Some((_, more)) = lines.next() else { break };
                statement.push_str(more.trim());
            }
            for path in self.imported(&statement).unwrap_or_default() {
                let written = statement.clone();
                found.push(Mention { line: *line, written, path: Some(path), alias: None, is_public: false });
            }
        }
        found
    }

    /// What a Python statement imports of the package.
    fn imported(&self, statement: &str) -> Option<Vec<Path>> {
        const PACKAGE: &str = "herringbone";
        let below =
            |path: &str| path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Path>();
        let own = |path: &str| Some(below(path.strip_prefix(PACKAGE)?)).filter(|_| below(path)[0] == PACKAGE);
        if let Some(paths) = statement.strip_prefix("import ") {
            return Some(paths.split(", ").filter_map(|path| own(path.split(' ').next()?)).collect());
        }
        let (from, names) = statement.strip_prefix("from ")?.split_once(" import ")?;
        let dots = from.len() - from.trim_start_matches('.').len();
        let base = if dots == 0 {
            own(from)?
        } else {
            let is_package = self.name.ends_with("__init__");
            let up = dots - usize::from(is_package);
            joined(&self.path[..self.path.len().saturating_sub(up)], below(from))
        };
        let names =
            names.trim_matches(['(', ')']).split(',').filter_map(|name| name.split_whitespace().next());
        Some(names.map(|name| joined(&base, [name.to_owned()])).collect())
    }
}

/// What a path in the module `here` stands for; `None` for one of another crate.
fn absolute(here: &[String], written: &str, is_inside: &dyn Fn(&str) -> bool) -> Option<Path> {
    let mut names = written.split("::").filter(|name| !name.is_empty()).map(str::to_owned).peekable();
    let mut base = here.to_vec();
    match names.peek()?.as_str() {
        "crate" => base.clear(),
        "self" | "super" => {}
        name if is_inside(name) => {}
        _ => return None,
    }
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(&name.as_str())) {
        if name == "super" {
            base.pop();
        }
    }
    Some(joined(&base, names))
}

/// The name of a module that a line opens.
fn inline_module(line: &str) -> Option<&str> {
    let (before, name) = line.trim_start().split_once("mod ")?;
    (before.is_empty() || before.starts_with("pub")).then(|| name.strip_suffix(" {"))?
}

/// Whether a line begins a `use`, whether it is public, and what follows.
fn after_use(line: &str) -> Option<(bool, &str)> {
    let (before, tree) = line.trim_start().split_once("use ")?;
    let is_public = before == "pub " || before.starts_with("pub(") && before.ends_with(") ");
    (before.is_empty() || is_public).then_some((is_public, tree))
}

/// The paths that a tree of a `use` is short for.
fn leaves(tree: &str) -> Vec<String> {
    let Some((before, inside)) = tree.trim().split_once('{') else { return vec![tree.trim().to_owned()] };
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    let mut nesting = 0;
    let branches = inside.split(|character| {
        nesting += i32::from(character == '{') - i32::from(character == '}');
        character == ',' && nesting == 0
    });
    let branches: Vec<&str> = branches.filter(|branch| !branch.trim().is_empty()).collect();
    branches.into_iter().flat_map(leaves).map(|leaf| format!("{before}{leaf}")).collect()
}

/// The numbered lines of a Rust file, without comments and without what is compiled for tests only.
pub(crate) fn rust_lines(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut kept = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let start = lines[at].trim_start();
        if start.starts_with("#[cfg(test)]") || start.starts_with("#[cfg(all(test,") {
            at = end_of_item(&lines, at);
        } else {
            let code = lines[at].split(" // ").next().unwrap_or_default();
            kept.extend((!start.starts_with("//")).then(|| (at + 1, code.trim_end().to_owned())));
            at += 1;
        }
    }
    kept
}

/// The line after the item that begins at or below `at` with attributes: rustfmt ends it at its own depth.
fn end_of_item(lines: &[&str], mut at: usize) -> usize {
    while lines.get(at).is_some_and(|line| line.trim_start().starts_with(['#', '/'])) {
        at += 1;
    }
    let Some(first) = lines.get(at) else { return at };
    let is_last = |line: &&str| depth(line) == depth(first) && line.trim_start().starts_with('}');
    match first.ends_with([';', '}', ',']) {
        true => at + 1,
        false => lines[at..].iter().position(is_last).map_or(lines.len(), |more| at + more + 1),
    }
}

/// The numbered lines of a Python file, without docstrings.
fn python_lines(text: &str) -> Vec<(usize, String)> {
    let mut quoted = false;
    let outside = (1..).zip(text.lines()).filter(|(_, line)| {
        let was_quoted = quoted;
        quoted ^= line.matches("\"\"\"").count() % 2 == 1;
        !was_quoted
    });
    outside.map(|(number, line)| (number, line.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is imported below `a`, one import a line.
    fn imports(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> = files
            .iter()
            .map(|(path, text)| Source { path: format!("a/{path}"), text: (*text).to_owned() })
            .collect();
        let show = |Import { from, to, place, written }: Import| {
            let line = place.rsplit(':').next().unwrap();
            format!("{from}:{line} -> {to}: {written}")
        };
        of("a", &sources).1.into_iter().map(show).collect()
    }

    #[test]
    fn trees_of_several_lines_are_taken_apart() {
        let tree =
            "use crate::{\n    one::{Two, three::{self, Four as Five}},\n    six,\n};\nuse std::fmt;\n";
        let files = [
            ("lib.rs", "mod one;\nmod six;\n"),
            ("six.rs", ""),
            ("one/mod.rs", ""),
            ("one/three.rs", ""),
            ("b.rs", tree),
        ];
        assert_eq!(
            imports(&files),
            [
                "b:1 -> one/mod: crate::one::Two",
                "b:1 -> one/three: crate::one::three",
                "b:1 -> one/three: crate::one::three::Four",
                "b:1 -> six: crate::six",
            ]
        );
    }

    #[test]
    fn paths_in_code_count_and_those_in_comments_and_tests_do_not() {
        let text = "/// As [`crate::c::X`].\nfn f(x: super::c::X) -> u8 {\n    d::g(x) // crate::c\n}\n\n#[cfg(test)]\n\
                    use crate::{\n    c,\n};\n\n#[cfg(test)]\nmod tests {\n    use crate::c;\n}\n\nuse self::d::H;\n";
        let files = [
            ("lib.rs", ""),
            ("b/mod.rs", text),
            ("b/d.rs", "use super::K;"),
            ("c.rs", ""),
            ("c/tests.rs", "use crate::b;"),
        ];
        assert_eq!(
            imports(&files),
            [
                "b/mod:2 -> c: super::c::X",
                "b/mod:3 -> b/d: d::g",
                "b/mod:16 -> b/d: self::d::H",
                "b/d:1 -> b/mod: super::K"
            ]
        );
    }

    #[test]
    fn names_that_are_passed_on_are_those_of_their_file() {
        let files = [
            ("lib.rs", "pub use b::{X as Y};\nuse other as sys;\nmod b;\nmod c;\n"),
            ("b/mod.rs", "mod d;\npub(crate) use d::X;\n"),
            ("b/d.rs", ""),
            ("c.rs", "use crate::{Y, b::X, sys::Z};\nuse super::e::Arc;\n"),
            ("e.rs", "pub use std::sync::Arc;\n"),
        ];
        assert_eq!(
            imports(&files),
            ["c:1 -> b/d: crate::Y", "c:1 -> b/d: crate::b::X", "c:2 -> e: super::e::Arc"]
        );
    }

    #[test]
    fn modules_inside_a_file_are_that_file() {
        let text =
            "use self::inner::f;\nmod inner {\n    use super::{X, super::c::Y};\n}\nuse super::c::Z;\n";
        let files = [("lib.rs", ""), ("b.rs", text), ("c.rs", "use crate::b::X;")];
        let found = ["b:3 -> c: super::super::c::Y", "b:5 -> c: super::c::Z", "c:1 -> b: crate::b::X"];
        assert_eq!(imports(&files), found);
    }

    #[test]
    fn pythons_imports_are_read() {
        let group = "\"\"\"Not this:\n\nfrom .nothing import x\n\"\"\"\nfrom .. import errors\nfrom ..arrays import (\n    one,\n    \
                     two,\n)\n\ndef f():\n    from . import x\n    import herringbone.errors as e, os\n    import herringboned\n";
        let files = [
            ("__init__.py", "from .arrays import one\nfrom herringbone.torch import x\n"),
            ("errors.py", ""),
            ("arrays.pyi", ""),
            ("torch/__init__.py", "from .group import f\n"),
            ("torch/group.py", group),
        ];
        assert_eq!(
            imports(&files),
            [
                "__init__:1 -> arrays: from .arrays import one",
                "__init__:2 -> torch/__init__: from herringbone.torch import x",
                "torch/__init__:1 -> torch/group: from .group import f",
                "torch/group:5 -> errors: from .. import errors",
                "torch/group:6 -> arrays: from ..arrays import (one,two,)",
                "torch/group:6 -> arrays: from ..arrays import (one,two,)",
                "torch/group:12 -> torch/__init__: from . import x",
                "torch/group:13 -> errors: import herringbone.errors as e, os",
            ]
        );
    }
}
