//! The house rules that a machine can check, as tests: sizes, arrows between crates, invariants, words, paths.

mod imports;
mod modules;
mod settings;
mod shapes;
mod source;
mod words;

use source::{Function, Source, root, sources};
use std::collections::BTreeSet;
use std::fs;

/// The longest file, in lines.
const FILE_LINES: usize = 700;
/// The longest function, in lines.
const FUNCTION_LINES: usize = 70;

/// Fails with all findings at once.
fn none(rule: &str, found: Vec<String>) {
    assert!(found.is_empty(), "{rule}:\n  {}", found.join("\n  "));
}

#[test]
fn files_are_short() {
    let long = |source: &Source| {
        let lines = source.text.lines().count();
        (lines > FILE_LINES).then(|| format!("{} has {lines} lines", source.path))
    };
    let code = sources().into_iter().filter(Source::is_code);
    none(
        &format!("a file has at most {FILE_LINES} lines"),
        code.filter_map(|source| long(&source)).collect(),
    );
}

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    for source in sources() {
        for Function { name, line, lines } in source.functions() {
            if lines > FUNCTION_LINES {
                found.push(format!("{}:{line}: {name} has {lines} lines", source.path));
            }
        }
    }
    none(&format!("a function has at most {FUNCTION_LINES} lines"), found);
}

/// What each crate may depend on, of the crates of this repository and of others. A crate that is not listed is new:
/// say here what it may know.
const ARROWS: [(&str, &[&str]); 9] = [
    ("crates/core", &["half", "hmac", "sha2", "thiserror"]),
    ("crates/sys", &["herringbone-core", "crc32c", "half", "libc", "rustix", "thiserror"]),
    (
        "crates/herringbone",
        &[
            "herringbone-core",
            "herringbone-sys",
            "crc32c",
            "half",
            "libm",
            "log",
            "parse-size",
            "rustix",
            "socket2",
            "strsim",
            "thiserror",
            "toml",
        ],
    ),
    (
        "crates/admin",
        &["herringbone", "herringbone-sys", "httparse", "prometheus-client", "rustix", "serde_json"],
    ),
    (
        "crates/cli",
        &[
            "clap",
            "clap_complete",
            "clap_mangen",
            "comfy-table",
            "half",
            "herringbone",
            "herringbone-admin",
            "indicatif",
            "rustix",
            "serde_core",
            "serde_json",
            "signal-hook",
            "thiserror",
        ],
    ),
    ("crates/capi", &["herringbone", "herringbone-admin", "herringbone-sys"]),
    ("crates/nccl-plugin", &["herringbone", "herringbone-sys", "rustix"]),
    ("fuzz", &["herringbone-core", "libfuzzer-sys"]),
    ("python", &["herringbone", "herringbone-admin", "herringbone-cli", "herringbone-sys", "log", "pyo3"]),
];

#[test]
fn crates_depend_only_downwards() {
    let mut found = Vec::new();
    for source in sources().iter().filter(|source| source.path.ends_with("/Cargo.toml")) {
        let folder = source.path.trim_end_matches("/Cargo.toml");
        let Some((_, allowed)) = ARROWS.iter().find(|(path, _)| *path == folder) else {
            found.push(format!("{folder} is not listed in ARROWS"));
            continue;
        };
        let extra = source.dependencies().into_iter().filter(|name| !allowed.contains(&name.as_str()));
        found.extend(extra.map(|name| format!("{folder} depends on {name}")));
    }
    none("crates depend only on what ARROWS allows", found);
}

#[test]
fn unsafe_code_is_only_in_sys() {
    let forbids = |path: &str| {
        let text = fs::read_to_string(root().join(path)).unwrap();
        (!text.contains("#![forbid(unsafe_code)]")).then(|| format!("{path} does not forbid unsafe code"))
    };
    let heads = [
        "crates/core/src/lib.rs",
        "crates/herringbone/src/lib.rs",
        "crates/admin/src/lib.rs",
        "crates/cli/src/lib.rs",
    ];
    none("all unsafe code is in crates/sys", heads.into_iter().filter_map(forbids).collect());
    let core = fs::read_to_string(root().join("crates/core/src/lib.rs")).unwrap();
    assert!(core.contains("#![cfg_attr(not(test), no_std)]"), "core stays no_std, so that it can do no I/O");
}

/// The Python wheel turns addresses into regions in one module, which one method calls.
#[test]
fn python_confines_unsafe_code() {
    let uses = |source: &Source| source.text.lines().filter(|line| line.contains("unsafe {")).count();
    let native = sources().into_iter().filter(|source| source.path.starts_with("python/src/"));
    let found = native.filter(|source| uses(source) > 1).map(|source| format!("{} has several", source.path));
    none("a file of python/src has one unsafe block at most", found.collect());
    let holders =
        sources().into_iter().filter(|source| source.path.starts_with("python/src/") && uses(source) > 0);
    assert!(
        holders.count() <= 3,
        "unsafe blocks are in the modules that name the host's and a device's memory, and in the one that calls the first"
    );
}

/// How long an exported function of the library for C may be, in lines: it only says which call is meant.
const SHELL_LINES: usize = 16;

/// The library for C uses addresses in one module, and exports short functions from two others.
#[test]
fn c_library_confines_unsafe_code() {
    let mut found = Vec::new();
    let own = sources().into_iter().filter(|source| source.path.starts_with("crates/capi/src/"));
    for source in own.filter(|source| !source.path.starts_with("crates/capi/src/pointers")) {
        let code = source.text.replace("#[unsafe(no_mangle)]", "").replace("unsafe_code", "");
        let is_shell = ["plain.rs", "plain/", "rabit.rs", "rabit/"]
            .iter()
            .any(|shell| source.path.starts_with(&format!("crates/capi/src/{shell}")));
        for word in ["unsafe", "*mut ", "*const c_void", "from_raw"] {
            found.extend(code.contains(word).then(|| format!("{} has {word}", source.path)));
        }
        if !is_shell && code.contains("extern \"C\"") {
            found.push(format!("{} exports functions", source.path));
        }
        let long = source.functions().into_iter().filter(|function| is_shell && function.lines > SHELL_LINES);
        found.extend(long.map(|Function { name, lines, .. }| format!("{name} has {lines} lines")));
    }
    none(
        "addresses are used in pointers alone, and exported functions are short and in plain and rabit",
        found,
    );
}

/// The plug-in for NCCL uses addresses in one module, and exports tables and short functions from another.
#[test]
fn nccl_plugin_confines_unsafe_code() {
    let mut found = Vec::new();
    let folder = "crates/nccl-plugin/src/";
    let own: Vec<Source> = sources().into_iter().filter(|source| source.path.starts_with(folder)).collect();
    assert!(own.len() > 10, "the plug-in's sources are there");
    for source in own {
        let module = source.path.trim_start_matches(folder).trim_end_matches(".rs");
        let is_border = ["pointers", "exports", "layout"].contains(&module);
        let code = source.text.replace("#[unsafe(no_mangle)]", "").replace("unsafe_code", "");
        for word in ["unsafe", "*mut ", "*const ", "from_raw"] {
            let is_found = module != "pointers" && code.contains(word);
            found.extend(is_found.then(|| format!("{} has {word}", source.path)));
        }
        if !is_border && code.contains("extern \"C\"") {
            found.push(format!("{} has functions of C", source.path));
        }
        let functions = source.functions().into_iter().filter(|_| module == "exports");
        // The tables are no functions of C.
        let long = functions.filter(|function| function.lines > SHELL_LINES && function.name != "newest");
        found.extend(long.map(|Function { name, lines, .. }| format!("{name} has {lines} lines")));
    }
    none("addresses are used in pointers alone, and exported functions are short", found);
    let head = fs::read_to_string(root().join(folder).join("lib.rs")).unwrap();
    assert!(head.contains("#![deny(unsafe_code)]"), "the compiler denies it elsewhere");
}

#[test]
fn nothing_is_left_half_done() {
    let marks = ["TODO", "FIXME", "XXX", "HACK", "#[ignore", "Other(String)"];
    none("finish it or leave it out", lines_with(&marks, Source::is_code));
}

#[test]
fn no_path_of_a_machine_is_in_the_tree() {
    let paths = ["/home/", "/root/", "/Users/", "/work/", "/mnt/"];
    none("the tree is the same on every machine", lines_with(&paths, |_| true));
}

#[test]
fn files_are_named_after_what_they_hold() {
    let vague = ["util", "utils", "helper", "helpers", "misc", "common", "manager"];
    let is_vague = |source: &Source| {
        let parts: BTreeSet<&str> = source.path.split(['/', '.', '_']).collect();
        // Programs import `horovod.common` by that name.
        let is_horovods = source.path.starts_with("python/herringbone/horovod/common/");
        !is_horovods && vague.iter().any(|word| parts.contains(word))
    };
    none(
        "a name says what is inside",
        sources().into_iter().filter(is_vague).map(|source| source.path).collect(),
    );
}

#[test]
fn modules_are_files_of_their_names() {
    let is_mod = |source: &Source| source.path.contains("/src/") && source.path.ends_with("/mod.rs");
    let found = sources().into_iter().filter(is_mod).map(|source| source.path).collect();
    none("a module with others in it is name.rs beside its folder", found);
}

/// Where a line holds one of `words`, in the files that `chosen` picks; this test's own words do not count.
fn lines_with(words: &[&str], chosen: impl Fn(&Source) -> bool) -> Vec<String> {
    let own = "crates/cli/tests/tidy/main.rs";
    let mut found = Vec::new();
    for source in sources().into_iter().filter(|source| source.path != own && chosen(source)) {
        for (number, line) in (1..).zip(source.text.lines()) {
            if let Some(word) = words.iter().find(|word| line.contains(*word)) {
                found.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    found
}

/// Every "Invariant:" of docs/reference/promises.md ends in "Check: `file` `name`", and the file has a check of that name.
#[test]
fn invariants_have_checks() {
    let text = fs::read_to_string(root().join("docs/reference/promises.md")).unwrap();
    let invariants: Vec<&str> = text
        .split("\n\n")
        .flat_map(|block| block.split("\n* "))
        .filter(|part| part.contains("Invariant:"))
        .collect();
    assert!(invariants.len() >= 8, "docs/reference/promises.md states the invariants");
    none("every invariant names its check", invariants.into_iter().filter_map(without_check).collect());
}

/// What is wrong with an invariant's check, if anything is.
fn without_check(invariant: &str) -> Option<String> {
    let start: String = invariant.chars().take(70).collect();
    let Some((_, check)) = invariant.split_once("Check:") else { return Some(format!("{start}: no check")) };
    let named: Vec<&str> = check.split('`').skip(1).step_by(2).collect();
    let [path, name, ..] = named[..] else { return Some(format!("{start}: write Check: `file` `name`")) };
    match fs::read_to_string(root().join(path)) {
        Err(_) => Some(format!("{start}: there is no {path}")),
        Ok(text) if is_check(path, &text, name) => None,
        Ok(_) => Some(format!("{start}: {path} has no test {name}")),
    }
}

/// Whether a file has a function of that name, which is a test in Rust unless it is a benchmark's. In Python, tests start it.
fn is_check(path: &str, text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let keyword = if path.ends_with(".py") { "def" } else { "fn" };
    let defined = lines.iter().position(|line| line.starts_with(&format!("{keyword} {name}(")));
    let is_test = |at: usize| {
        let mut above =
            lines[..at].iter().rev().take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        above.any(|line| *line == "#[test]")
    };
    defined.is_some_and(|at| keyword == "def" || path.contains("/benches/") || is_test(at))
}

#[test]
fn only_a_function_that_is_run_is_a_check() {
    let rust = "/// See sums.\n#[test]\n// Often.\nfn adds() {}\nfn sums() { adds() }";
    assert!(is_check("a/tests/b.rs", rust, "adds") && is_check("a/benches/b.rs", rust, "sums"));
    assert!(["sums", "add", "dds", "See"].iter().all(|name| !is_check("a/tests/b.rs", rust, name)));
    let python = "def test_sums():\n    # adds\n    sums()\n";
    assert!(is_check("tests/b.py", python, "test_sums"));
    assert!(["sums", "adds", "test_sum"].iter().all(|name| !is_check("tests/b.py", python, name)));
}

/// Who reads how to begin is told the compiler that Cargo.toml asks for.
#[test]
fn the_oldest_compiler_is_named_alike() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, version) = manifest.split_once("rust-version = \"").unwrap();
    let version = version.split('"').next().unwrap();
    let silent =
        |name: &&str| !fs::read_to_string(root().join(name)).unwrap().contains(&format!("Rust {version}"));
    let found = ["README.md", "CONTRIBUTING.md"].into_iter().filter(silent).map(str::to_owned);
    none(&format!("these name Rust {version}"), found.collect());
}

/// The glossary has one entry per word, in alphabetical order, so that a word is found and defined once.
#[test]
fn the_glossary_is_sorted() {
    let text = fs::read_to_string(root().join("GLOSSARY.md")).unwrap();
    let words: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("**"))
        .filter_map(|line| line.split_once("**"))
        .map(|(word, _)| word.to_lowercase())
        .collect();
    assert!(words.len() > 30, "the glossary defines the words of the project");
    let unordered = words.windows(2).filter(|pair| pair[0] >= pair[1]);
    none("words ascend", unordered.map(|pair| format!("{} before {}", pair[0], pair[1])).collect());
}
