//! Settings, names and files that are wrong, and machines that lack something.

use super::{BINARY, found, level, lines, with};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder that is removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("herringbone-doctor-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

#[test]
fn a_wrong_setting_is_shown_by_its_name() {
    let (_, rows) = lines("exec \"$@\"", &[], &[("HERRINGBONE_ALGORITHM", "rign")]);
    assert_eq!(rows[0]["command"], "herringbone settings ALGORITHM");
}

#[test]
fn a_misspelt_name_is_given_the_right_one() {
    // Nothing in the tree may spell one out.
    let name = format!("HERRINGBONE{}", "_ALGORITM");
    let (code, rows) = lines("exec \"$@\"", &[], &[(&name, "ring")]);
    assert_eq!((code, rows[0]["level"].as_str()), (0, Some("warning")), "{}", rows[0]);
    let expected = format!("export HERRINGBONE_ALGORITHM=\"${name}\"; unset {name}");
    assert_eq!(rows[0]["command"].as_str(), Some(&*expected));
    // Pasted, it mends what is wrong.
    let (_, rows) = lines(&format!("{expected}; exec \"$@\""), &[], &[(&name, "ring")]);
    assert_eq!(rows[0]["level"], "ok", "{}", rows[0]);
}

#[test]
fn the_place_of_rank_0_is_checked() {
    let master = |host: &str, port: &str, rank: &str| {
        with(&[("MASTER_ADDR", host), ("MASTER_PORT", port), ("RANK", rank), ("WORLD_SIZE", "2")])
    };
    let (code, rows) = master("no.such.host.invalid", "29400", "1");
    assert_eq!((code, level(&rows, "name")), (1, "wrong"), "{rows:?}");
    // An address of documentation, which no host has (RFC 5737).
    let (_, rows) = master("203.0.113.7", "29400", "0");
    assert!(rows["store's port"].1.contains("an address of another host"), "{rows:?}");
    assert_eq!((level(&rows, "store's port"), level(&rows, "token")), ("warning", "warning"), "{rows:?}");
    let store = [
        ("HERRINGBONE_STORE", "203.0.113.7:29400"),
        ("HERRINGBONE_RANK", "0"),
        ("HERRINGBONE_WORLD_SIZE", "2"),
    ];
    let (code, rows) = with(&store);
    assert_eq!(
        (code, level(&rows, "store's port"), level(&rows, "token")),
        (1, "wrong", "wrong"),
        "{rows:?}"
    );
    let (code, rows) = master("::1", "0", "0");
    assert_eq!((code, level(&rows, "name"), level(&rows, "store's port")), (0, "ok", "ok"), "{rows:?}");
}

#[test]
fn under_torchrun_only_reducers_need_a_token() {
    let torchruns = [
        ("TORCHELASTIC_RUN_ID", "job"),
        ("MASTER_ADDR", "203.0.113.7"),
        ("MASTER_PORT", "29400"),
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
    ];
    let (_, rows) = with(&torchruns);
    assert!(!rows.contains_key("token") && !rows.contains_key("store's port"), "{rows:?}");
    // Where the agent keeps no store, rank 0 listens there itself, as without torchrun.
    for (is, finds) in [("True", false), ("False", true)] {
        let (_, rows) = with(&[&torchruns[..], &[("TORCHELASTIC_USE_AGENT_STORE", is)]].concat());
        assert_eq!(
            (rows.contains_key("token"), rows.contains_key("store's port")),
            (finds, finds),
            "{is}: {rows:?}"
        );
    }
    let (code, rows) = with(&[&torchruns[..], &[("HERRINGBONE_REDUCERS", "127.0.0.1:1")]].concat());
    assert_eq!((code, level(&rows, "token")), (1, "wrong"), "{rows:?}");
}

#[test]
fn a_port_that_is_taken_is_left_by_its_command() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let set = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &*port), ("RANK", "0"), ("WORLD_SIZE", "1")];
    let (code, rows) = lines("exec \"$@\"", &[], &set);
    let row = rows.iter().find(|row| row["check"] == "store's port").unwrap();
    assert_eq!((code, row["level"].as_str()), (1, Some("wrong")), "{row}");
    let command = row["command"].as_str().unwrap();
    let (code, rows) = found(&format!("{{ {command}\n}} >&2; exec \"$@\""), &[], &set);
    assert_eq!((code, level(&rows, "store's port")), (0, "ok"), "{rows:?}");
}

#[test]
fn a_tokens_file_that_cannot_be_used_is_wrong() {
    let folder = Folder::new("token");
    let empty = folder.file("empty", "", 0o600);
    let missing = folder.0.join("missing").to_str().unwrap().to_owned();
    let inside = folder.0.to_str().unwrap();
    for (path, why) in
        [(&*empty, "the file is empty"), (&missing, "No such file"), (inside, "it is a folder")]
    {
        let (code, rows) = lines("exec \"$@\"", &[], &[("HERRINGBONE_TOKEN_FILE", path)]);
        let says = rows[0]["says"].as_str().unwrap();
        assert!(code == 1 && says.contains(why) && says.contains(path), "{says}");
        assert_eq!(rows[0]["command"], "herringbone settings TOKEN_FILE");
    }
    let open = folder.file("open", "a token of the tests", 0o644);
    let (code, rows) = lines("exec \"$@\"", &[], &[("HERRINGBONE_TOKEN_FILE", &open)]);
    assert_eq!((code, rows[0]["level"].as_str()), (0, Some("warning")), "{}", rows[0]);
    let command = rows[0]["command"].as_str().unwrap();
    let (_, rows) = lines(&format!("{command}; exec \"$@\""), &[], &[("HERRINGBONE_TOKEN_FILE", &open)]);
    assert_eq!(rows[0]["level"], "ok", "{}", rows[0]);
}

/// Root reads every file, so as root this is another user, who has to reach the command.
#[test]
fn a_tokens_file_whose_mode_closes_it_is_wrong() {
    let folder = Folder::new("closed");
    let (closed, program) =
        (folder.file("closed", "a token of the tests", 0o000), folder.0.join("herringbone"));
    fs::copy(BINARY, &program).unwrap();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o755)).unwrap();
    let mut doctor = Command::new(&program);
    doctor.args(["doctor", "--json"]).env_clear().env("HERRINGBONE_TOKEN_FILE", &closed).current_dir("/");
    if rustix::process::geteuid().is_root() {
        doctor.uid(65534).gid(65534);
    }
    let Output { status, stdout, .. } = doctor.output().unwrap();
    let stdout = String::from_utf8(stdout).unwrap();
    let row: Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
    let says = row["says"].as_str().unwrap();
    assert!(
        status.code() == Some(1) && says.contains("Permission denied") && says.contains(&closed),
        "{row}"
    );
    assert_eq!(
        (row["level"].as_str(), row["command"].as_str()),
        (Some("wrong"), Some("herringbone settings TOKEN_FILE"))
    );
}

#[test]
fn a_path_without_python_and_a_home_that_cannot_be_written_stop_no_job() {
    let folder = Folder::new("home");
    let home = folder.0.to_str().unwrap();
    let script = "PATH=/no/such/folder; HOME=$0; export PATH HOME; exec \"$@\"".replace("$0", home);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o555)).unwrap();
    let (code, rows) = found(&script, &[], &[]);
    assert_eq!((code, level(&rows, "python")), (0, "ok"), "{rows:?}");
    assert!(rows["python"].1.contains("no python3 on the path"), "{rows:?}");
}
