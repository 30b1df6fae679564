//! What the built library shows to the linker: the functions of the header, and a name by which programs find it again.

use std::{
    collections::BTreeSet,
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

const HEADER: &str = include_str!("../include/herringbone.h");

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

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let mut code = String::new();
    for part in HEADER.split("/*") {
        code.push_str(part.split_once("*/").map_or(part, |(_, code)| code));
    }
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = code.split('(').filter_map(|before| before.rsplit(|c| !is_part(c)).next());
    words.filter(|word| word.starts_with("herringbone_")).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    let names = printed("nm", &["-D", "--defined-only", "--format=posix"]);
    let exported: BTreeSet<String> =
        names.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect();
    let declared = declared();
    assert!(declared.len() > 20, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn programs_find_the_library_by_a_name_with_its_version() {
    let dynamic = printed("readelf", &["--dynamic", "--wide"]);
    assert!(dynamic.contains("Library soname: [libherringbone.so.0]"), "{dynamic}");
}
