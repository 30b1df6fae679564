//! `herringbone doctor` on machines with something wrong with them: each check is made to find it.

use serde_json::Value;
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_herringbone");

/// What a shell that runs `script`, in which `"$@"` is the doctor, finds: its exit code and each check's level and sentence.
/// Of several findings of a check the last counts.
fn found(script: &str, args: &[&str], set: &[(&str, &str)]) -> (i32, BTreeMap<String, (String, String)>) {
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
    let rows = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).map(|row: Value| {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        assert_eq!(row["level"] == "ok", row["command"].is_null(), "{row}");
        (text("check"), (text("level"), text("says")))
    });
    let rows: BTreeMap<_, _> = rows.collect();
    assert!(!rows.is_empty(), "{}", String::from_utf8_lossy(&stderr));
    (status.code().unwrap(), rows)
}

fn level<'a>(rows: &'a BTreeMap<String, (String, String)>, check: &str) -> &'a str {
    &rows.get(check).unwrap_or_else(|| panic!("no {check}: {rows:?}")).0
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
    assert!(rows["interface"].1.contains("127.0.0.1, of lo"), "{rows:?}");
    let (code, rows) = found("exec \"$@\"", &[], &[("HERRINGBONE_IFNAME", "nope0")]);
    assert_eq!(code, 1, "{rows:?}");
    assert_eq!(level(&rows, "settings"), "wrong", "{rows:?}");
}

#[test]
fn an_old_torch_is_wrong() {
    let python = std::env::temp_dir().join(format!("herringbone-doctor-python-{}", std::process::id()));
    let says = r#"{"python": [3, 12], "path": "/a/python3", "torch": "2.4.1", "herringbone": "0.1.0"}"#;
    std::fs::write(&python, format!("#!/bin/sh\necho '{says}'\n")).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, rows) = found("exec \"$@\"", &["--python", python.to_str().unwrap()], &[]);
    std::fs::remove_file(&python).unwrap();
    assert_eq!((code, level(&rows, "torch")), (1, "wrong"), "{rows:?}");
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
    assert!(code == 0 && rows["own name"].1.contains("node-seven, is 127.0.1.1"), "{rows:?}");
    let (code, rows) = found(&script, &[], &[("HERRINGBONE_STORE", "no.such.host.invalid:29400")]);
    std::fs::remove_file(&hosts).unwrap();
    assert_eq!((code, level(&rows, "name")), (1, "wrong"), "{rows:?}");
}
