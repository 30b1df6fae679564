//! The files of the repository, and just enough of their syntax: rustfmt and Python's indentation make ends findable.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
pub(crate) struct Source {
    /// From the repository's root, with forward slashes.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A function and how long it is, from its first line to its last.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) lines: usize,
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every text file of the repository, without what was made or recorded.
pub(crate) fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    collect(&root(), "", &mut found);
    assert!(found.iter().any(|source| source.path == "Cargo.toml"), "the repository is where it should be");
    found
}

fn collect(folder: &Path, prefix: &str, found: &mut Vec<Source>) {
    const MADE: [&str; 9] = [
        ".git",
        ".venv",
        ".build",
        "target",
        "record",
        "__pycache__",
        ".pytest_cache",
        "corpus",
        "Cargo.lock",
    ];
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(Result::unwrap).collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}{name}");
        if MADE.contains(&name.as_str()) || name.ends_with(".egg-info") {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &format!("{path}/"), found);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            found.push(Source { path, text });
        }
    }
}

impl Source {
    /// Whether it is a program's text.
    pub(crate) fn is_code(&self) -> bool {
        [".rs", ".py", ".pyi", ".toml", "Makefile"].iter().any(|end| self.path.ends_with(end))
    }

    /// The functions of a Rust or Python file.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let (keyword, end): (&str, fn(&str, usize) -> bool) = match self.path.rsplit_once('.') {
            Some((_, "rs")) => ("fn ", |line, indent| line == format!("{:indent$}}}", "")),
            Some((_, "py")) => ("def ", |line, indent| !line.trim().is_empty() && depth(line) <= indent),
            _ => return Vec::new(),
        };
        let lines: Vec<&str> = self.text.lines().collect();
        let starts = (0..lines.len()).filter_map(|at| Some((at, function_name(lines[at], keyword)?)));
        starts.map(|(at, name)| Function { name, line: at + 1, lines: length(&lines[at..], end) }).collect()
    }

    /// The names below `[dependencies]` and `[target.*.dependencies]` of a Cargo.toml.
    pub(crate) fn dependencies(&self) -> Vec<String> {
        let mut inside = false;
        let mut found = Vec::new();
        for line in self.text.lines() {
            if let Some(section) = line.strip_prefix('[') {
                inside = section.trim_end_matches(']').ends_with("dependencies") && !section.contains("dev-");
            } else if inside && line.starts_with(char::is_alphabetic) {
                found.extend(line.split(['.', ' ', '=']).next().map(str::to_owned));
            }
        }
        found
    }
}

pub(crate) fn depth(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The name that a line defines a function of: what stands before the keyword must be modifiers.
fn function_name(line: &str, keyword: &str) -> Option<String> {
    let (before, after) = line.split_once(keyword)?;
    let modifiers = ["pub", "pub(crate)", "pub(super)", "const", "unsafe", "async", "extern", "\"C\""];
    before.split_whitespace().all(|word| modifiers.contains(&word)).then(|| {
        after.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
    })
}

/// How many lines a function has that begins with the first of `lines`. A line that is the end belongs to it if it is
/// a closing brace.
fn length(lines: &[&str], end: fn(&str, usize) -> bool) -> usize {
    let indent = depth(lines[0]);
    let one_line = lines[0].ends_with(['}', ';']);
    if one_line {
        return 1;
    }
    // A Python signature that spans lines closes at the indentation of its start.
    let is_end = |line: &&str| end(line, indent) && !line.trim_start().starts_with(')');
    match lines.iter().skip(1).position(is_end) {
        Some(more) if lines[more + 1].trim() == "}" => more + 2,
        Some(more) => more + 1,
        None => lines.len(),
    }
}

#[test]
fn functions_are_measured() {
    let measured = |path: &str, text: &str| -> Vec<(String, usize)> {
        let source = Source { path: path.to_owned(), text: text.to_owned() };
        source.functions().into_iter().map(|function| (function.name, function.lines)).collect()
    };
    let rust = "pub(crate) fn a() {\n    x;\n}\n\nimpl B {\n    fn b(\n        y: u8,\n    ) {\n    }\n    fn c();\n}\n";
    assert_eq!(measured("x.rs", rust), [("a".to_owned(), 3), ("b".to_owned(), 4), ("c".to_owned(), 1)]);
    let python = "def a(\n    b,\n):\n    x\n\n    y\n\nclass C:\n    def d(self):\n        z\n";
    assert_eq!(measured("x.py", python), [("a".to_owned(), 7), ("d".to_owned(), 2)]);
}

#[test]
fn dependencies_are_read() {
    let text = "[dependencies]\na = \"1\"\nb.workspace = true\n[dev-dependencies]\nc = \"1\"\n[target.'x'.dependencies]\nd = { version = \"1\" }\n[lints]\ne = true\n";
    let source = Source { path: "Cargo.toml".to_owned(), text: text.to_owned() };
    assert_eq!(source.dependencies(), ["a", "b", "d"]);
}
