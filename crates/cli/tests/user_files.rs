//! Files that are no regular files, or are too large, wherever a user can name one: each is refused at once, by its name.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const BINARY: &str = env!("CARGO_BIN_EXE_herringbone");

/// A folder with such files, which is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("herringbone-user-files-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        // A file with a hole takes up no disk.
        File::create(folder.0.join("large")).unwrap().set_len(65 << 20).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.0.join("pipe"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        folder
    }

    /// The files, and what is said of each.
    fn cases(&self) -> [(String, &'static str); 5] {
        let at = |name: &str| self.0.join(name).to_str().unwrap().to_owned();
        [
            (at("pipe"), "it is a pipe"),
            ("/dev/zero".to_owned(), "it is a device"),
            (at(""), "it is a folder"),
            (at("large"), "it has more than 64 MiB"),
            (at("missing"), "No such file"),
        ]
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn refused(args: &[&str], set: Option<(&str, &str)>) -> String {
    let mut command = Command::new(BINARY);
    command.args(args).envs(set).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{args:?} {set:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn only_regular_files_of_at_most_64_mib_are_read() {
    let folder = Folder::new();
    for (path, said) in folder.cases() {
        for args in [
            &["topo", &*path][..],
            &["simulate", "--ranks", "2", "--bytes", "4", "--calibration", &path],
            &["advise", "--worker-gbps", "10", "--reducer-gbps", "10", "--from", &path],
            &["serve", "--token-file", &path],
        ] {
            let text = refused(args, None);
            assert!(text.contains(&path) && text.contains(said), "{args:?}: {text}");
        }
        for name in ["HERRINGBONE_TOKEN_FILE", "HERRINGBONE_CALIBRATION", "HERRINGBONE_TOPOLOGY"] {
            let text = refused(&["settings"], Some((name, &path)));
            assert!(text.contains(&path) && text.contains(said), "{name}: {text}");
        }
    }
}

#[test]
fn a_stream_has_a_bound_too() {
    let mut command = Command::new(BINARY);
    let output = command.args(["topo", "-"]).stdin(File::open("/dev/zero").unwrap()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("it has more than 64 MiB"), "{text}");
}
