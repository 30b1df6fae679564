//! What the built library shows to the linker: the functions of the headers, and a name by which programs find it again.

use std::{
    collections::BTreeSet,
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

const HEADERS: [&str; 3] = [
    include_str!("../include/herringbone.h"),
    include_str!("../include/herringbone/rabit_library.h"),
    include_str!("../include/rabit/c_api.h"),
];
/// What names of functions begin with: RABIT's have its name.
const PREFIXES: [&str; 2] = ["herringbone_", "Rabit"];

/// The library, which cargo has built for this test.
fn library() -> PathBuf {
    env::current_exe().unwrap().with_file_name("libherringbone_capi.so")
}

fn printed(program: &str, options: &[&str]) -> String {
    let mut command = Command::new(program);
    let done = command.args(options).arg(library()).stderr(Stdio::inherit()).output().unwrap();
    assert!(done.status.success(), "{program} of {}: {}", library().display(), done.status);
    String::from_utf8(done.stdout).unwrap()
}

/// The functions that a header declares.
fn declared(header: &str) -> BTreeSet<String> {
    let mut code = String::new();
    for part in header.split("/*") {
        let after = part.split_once("*/").map_or(part, |(_, code)| code);
        code.extend(after.lines().filter_map(|line| line.split("//").next()));
    }
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = code.split('(').filter_map(|before| before.rsplit(|c| !is_part(c)).next());
    words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_the_headers_declare_and_nothing_else() {
    let names = printed("nm", &["-D", "--defined-only", "--format=posix"]);
    let exported: BTreeSet<String> =
        names.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect();
    let declared = HEADERS.map(declared);
    assert!(declared.iter().all(|functions| functions.len() > 10), "{declared:?}");
    assert_eq!(exported, declared.into_iter().flatten().collect());
}

#[test]
fn programs_find_the_library_by_a_name_with_its_version() {
    let dynamic = printed("readelf", &["--dynamic", "--wide"]);
    assert!(dynamic.contains("Library soname: [libherringbone.so.0]"), "{dynamic}");
}
