//! `herringbone doctor` on machines with something wrong with them: each check is made to find it.

mod places;
mod servers;

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_herringbone");

/// What the doctor has said of each check: its level and its sentence. Of several findings of a check the last counts.
type Rows = BTreeMap<String, (String, String)>;

/// What a shell that runs `script`, in which `"$@"` is the doctor, finds: its exit code and all lines but the verdict, which has
/// to agree with them. A shell can read every command.
fn lines(script: &str, args: &[&str], set: &[(&str, &str)]) -> (i32, Vec<Value>) {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", BINARY, "doctor", "--json"]).args(args);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let place = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"].contains(&text.as_ref());
        if place || text.starts_with("HERRINGBONE_") || text.ends_with("_SOCKET_IFNAME") {
            command.env_remove(&name);
        }
    }
    let Output { status, stdout, stderr } = command.envs(set.iter().copied()).output().unwrap();
    let stdout = String::from_utf8(stdout).unwrap();
    let mut rows: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdict = rows.pop().unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&stderr)));
    for row in &rows {
        let command = row["command"].as_str();
        assert!(
            (row["level"] == "ok") == command.is_none() && row["advice"].is_null() == command.is_none(),
            "{row}"
        );
        if let Some(command) = command {
            let read = Command::new("sh").args(["-n", "-c", command]).output().unwrap();
            assert!(read.status.success() && !command.contains(", "), "{row}");
        }
    }
    let count = |level: &str| rows.iter().filter(|row| row["level"] == level).count();
    assert_eq!(
        (verdict["wrong"].as_u64(), verdict["warnings"].as_u64()),
        (Some(count("wrong") as u64), Some(count("warning") as u64))
    );
    let code = status.code().unwrap();
    assert_eq!(verdict["can_start"], code == 0, "{verdict}");
    let says = verdict["says"].as_str().unwrap();
    assert!(
        says.starts_with(if code == 0 { "A job can start here" } else { "No job can start here" }),
        "{verdict}"
    );
    (code, rows)
}

/// As [`lines`], by the names of the checks.
fn found(script: &str, args: &[&str], set: &[(&str, &str)]) -> (i32, Rows) {
    let (code, rows) = lines(script, args, set);
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
    let of = |row: &Value| (text(row, "check"), (text(row, "level"), text(row, "says")));
    (code, rows.iter().map(of).collect())
}

/// As [`found`], in a shell that has only these settings.
fn with(set: &[(&str, &str)]) -> (i32, Rows) {
    found("exec \"$@\"", &[], set)
}

fn level<'a>(rows: &'a Rows, check: &str) -> &'a str {
    &rows.get(check).unwrap_or_else(|| panic!("no {check}: {rows:?}")).0
}

/// A program in place of a Python, which is removed with it.
struct Program(PathBuf);

impl Program {
    fn new(name: &str, script: &str) -> Self {
        let path = std::env::temp_dir().join(format!("herringbone-doctor-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    fn judged(&self) -> (i32, Rows) {
        found("exec \"$@\"", &["--python", self.0.to_str().unwrap()], &[])
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

#[test]
fn few_open_files_are_wrong() {
    let (code, rows) = found("ulimit -n 200; exec \"$@\"", &[], &[]);
    assert_eq!((code, level(&rows, "open files")), (1, "wrong"), "{rows:?}");
    let (_, rows) = found("ulimit -n 512; exec \"$@\"", &[], &[]);
    assert_eq!(level(&rows, "open files"), "warning", "{rows:?}");
}

#[test]
fn little_address_space_is_found() {
    let (_, rows) = found("ulimit -v 4000000; exec \"$@\"", &[], &[]);
    assert_eq!(level(&rows, "address space"), "warning", "{rows:?}");
}

#[test]
fn a_setting_that_cannot_be_used_is_wrong() {
    let (code, rows) = found("exec \"$@\"", &[], &[("HERRINGBONE_ALGORITHM", "rign")]);
    assert_eq!((code, level(&rows, "settings")), (1, "wrong"), "{rows:?}");
    assert!(rows["settings"].1.contains("did you mean ring?"), "{rows:?}");
}

#[test]
fn launchers_that_contradict_each_other_are_wrong() {
    let set =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "3")];
    let (code, rows) = found("exec \"$@\"", &[], &set);
    assert_eq!((code, level(&rows, "launcher")), (1, "wrong"), "{rows:?}");
}

#[test]
fn a_port_that_is_taken_is_wrong() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let store = listener.local_addr().unwrap().to_string();
    let (code, rows) = found("exec \"$@\"", &[], &[("HERRINGBONE_STORE", &store)]);
    assert_eq!((code, level(&rows, "store's port")), (1, "wrong"), "{rows:?}");
    // Under torchrun it is torchrun's own.
    let torchrun = [("HERRINGBONE_STORE", store.as_str()), ("TORCHELASTIC_RUN_ID", "none")];
    assert!(!found("exec \"$@\"", &[], &torchrun).1.contains_key("store's port"));
    drop(listener);
    let (_, rows) = found("exec \"$@\"", &[], &[("HERRINGBONE_STORE", &store)]);
    assert_eq!(level(&rows, "store's port"), "ok", "{rows:?}");
}

#[test]
fn the_interface_is_chosen_as_the_engine_does() {
    let (_, rows) = found("exec \"$@\"", &["--rank0", "127.0.0.1"], &[]);
    assert!(rows["interface"].1.contains("127.0.0.1 of lo"), "{rows:?}");
    let (code, rows) = found("exec \"$@\"", &[], &[("HERRINGBONE_IFNAME", "nope0")]);
    assert_eq!(code, 1, "{rows:?}");
    assert_eq!(level(&rows, "settings"), "wrong", "{rows:?}");
}

#[test]
fn an_old_torch_is_wrong() {
    let says = r#"{"python": [3, 12], "path": "/a/python3", "torch": "2.4.1", "numpy": "2.0", "herringbone": "0.1.0"}"#;
    let (code, rows) = Program::new("old", &format!("echo '{says}'")).judged();
    assert_eq!((code, level(&rows, "python")), (1, "wrong"), "{rows:?}");
}

#[test]
fn a_python_without_herringbone_is_wrong_and_says_how_to_install_it() {
    let says =
        r#"{"python": [3, 12], "path": "/a/python3", "torch": null, "numpy": "2.0", "herringbone": null}"#;
    let program = Program::new("without", &format!("echo noise; echo '{says}'"));
    let (code, rows) = lines("exec \"$@\"", &["--python", program.0.to_str().unwrap()], &[]);
    let row = rows.iter().find(|row| row["check"] == "python").unwrap();
    assert_eq!((code, row["level"].as_str()), (1, Some("wrong")), "{row}");
    assert_eq!(row["command"], "/a/python3 -m pip install 'herringbone[numpy]'");
}

#[test]
fn an_answer_counts_though_another_process_keeps_the_output_open() {
    let says = r#"{"python": [3, 12], "path": "/a/python3", "torch": "2.15.0", "numpy": "2.0", "herringbone": "0.1.0"}"#;
    let (_, rows) = Program::new("leaves", &format!("echo '{says}'; sleep 60 &")).judged();
    assert_eq!(level(&rows, "python"), "ok", "{rows:?}");
}

#[test]
fn a_python_that_is_not_there_or_hangs_is_wrong() {
    let (code, rows) = found("exec \"$@\"", &["--python", "/no/such/python"], &[]);
    assert!(code == 1 && rows["python"].1.contains("/no/such/python cannot be started"), "{rows:?}");
    // What it starts keeps its output open, and goes on after it.
    let (code, rows) = Program::new("hangs", "sleep 60 & sleep 60").judged();
    assert!(code == 1 && rows["python"].1.contains("has not answered for 10 s"), "{rows:?}");
    let (code, rows) = Program::new("fills", "yes | head -c 1000000000").judged();
    assert!(code == 1 && level(&rows, "python") == "wrong", "{rows:?}");
}

/// Whether a process may have a view of files of its own here.
fn has_namespaces() -> bool {
    let words = ["--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"];
    let made = Command::new("unshare").args(words).output();
    let may = made.is_ok_and(|output| output.status.success());
    if !may {
        eprintln!("skipped: this machine makes no mount namespaces");
    }
    may
}

#[test]
fn a_small_dev_shm_is_warned_about() {
    if !has_namespaces() {
        return;
    }
    let script = "exec unshare --map-root-user --mount sh -c 'mount -t tmpfs -o size=1M tmpfs /dev/shm && exec \"$@\"' sh \"$@\"";
    let (_, rows) = found(script, &[], &[]);
    assert_eq!(level(&rows, "/dev/shm"), "warning", "{rows:?}");
    assert!(rows["/dev/shm"].1.contains("of 1.0 MiB are free"), "{rows:?}");
}

#[test]
fn a_name_that_is_loopback_or_nothing_is_found() {
    if !has_namespaces() {
        return;
    }
    let hosts = std::env::temp_dir().join(format!("herringbone-doctor-hosts-{}", std::process::id()));
    std::fs::write(&hosts, "127.0.0.1 localhost\n127.0.1.1 node-seven\n").unwrap();
    let script = format!(
        "exec unshare --map-root-user --mount --uts sh -c 'hostname node-seven && mount --bind {} /etc/hosts && exec \"$@\"' sh \"$@\"",
        hosts.display()
    );
    let (code, rows) = found(&script, &[], &[("HERRINGBONE_STORE", "node-seven:29400")]);
    assert_eq!((level(&rows, "own name"), level(&rows, "name")), ("warning", "warning"), "{rows:?}");
    assert!(code == 0 && rows["own name"].1.contains("node-seven is 127.0.1.1"), "{rows:?}");
    let (_, rows) = found(&script, &[], &[]);
    assert_eq!(level(&rows, "own name"), "warning", "{rows:?}");
    assert!(
        rows["own name"].1.contains("it would make rank 0 listen where no other host reaches it"),
        "{rows:?}"
    );
    for advised in [("HERRINGBONE_STORE", "127.0.0.1:29400"), ("MASTER_ADDR", "192.0.2.2")] {
        let (_, rows) = found(&script, &[], &[advised]);
        assert_eq!(level(&rows, "own name"), "ok", "{advised:?} is what the advice says: {rows:?}");
    }
    let (_, rows) = found(&script, &[], &[("MASTER_ADDR", "node-seven")]);
    assert_eq!(level(&rows, "own name"), "warning", "{rows:?}");
    let (code, rows) = found(&script, &[], &[("HERRINGBONE_STORE", "no.such.host.invalid:29400")]);
    std::fs::remove_file(&hosts).unwrap();
    assert_eq!((code, level(&rows, "name")), (1, "wrong"), "{rows:?}");
}
