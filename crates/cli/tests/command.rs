//! The `herringbone` binary as a user meets it: output, exit codes, signals, processes.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};

fn herringbone(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herringbone"));
    command.args(args);
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HERRINGBONE_REDUCERS"] {
        command.env_remove(name);
    }
    command
}

fn output(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = herringbone(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Ends its process with the test, however that ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn serve(args: &[&str]) -> (Running, BufReader<std::process::ChildStdout>, String) {
    let args = [&["serve", "--listen", "127.0.0.1:0"], args].concat();
    let mut child = Running(herringbone(&args).stdout(Stdio::piped()).spawn().unwrap());
    let mut reader = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    (child, reader, line)
}

fn signal(child: &Running, name: &str) {
    let pid = child.0.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

#[test]
fn serve_says_where_and_ends_on_signals() {
    for name in ["TERM", "INT"] {
        let (mut child, mut rest, line) = serve(&[]);
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        TcpStream::connect(&address).unwrap();
        signal(&child, name);
        assert_eq!(child.0.wait().unwrap().code(), Some(0), "after SIG{name}");
        rest.read_to_string(&mut String::new()).unwrap();
    }
}

#[test]
fn serve_speaks_json() {
    let (_child, _rest, line) = serve(&["--json"]);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    TcpStream::connect(value["listening"].as_str().unwrap()).unwrap();
}

#[test]
fn an_address_in_use_is_a_failure_that_names_it() {
    let (_child, _rest, line) = serve(&["--json"]);
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = value["listening"].as_str().unwrap();
    let (code, _, stderr) = output(&["serve", "--listen", address]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains(address) && stderr.contains("pass another port"), "{stderr}");
}

#[test]
fn a_table_server_that_cannot_be_is_refused_at_the_start() {
    let serve = ["serve", "--listen", "127.0.0.1:0", "--tables"];
    let (code, _, stderr) = output(&[&serve[..], &["--memory", "0"]].concat());
    assert_eq!(code, 2, "{stderr}");
    assert!(
        stderr.contains("memory") && stderr.contains("the limit for tables is 0 bytes: raise it"),
        "{stderr}"
    );
    let outcome = herringbone(&serve).env("HERRINGBONE_TRANSPORT", "tpc").output().unwrap();
    let stderr = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(outcome.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("HERRINGBONE_TRANSPORT") && stderr.contains("did you mean tcp?"), "{stderr}");
}

#[test]
fn without_a_token_others_are_not_served() {
    let (code, _, stderr) = output(&["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("HERRINGBONE_TOKEN"), "{stderr}");
}

#[test]
fn a_token_file_must_be_there() {
    let (code, _, stderr) = output(&["serve", "--token-file", "no/such/file"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("no/such/file"), "{stderr}");
}

#[test]
fn bench_starts_its_own_processes_and_reducers() {
    let args = [
        "bench",
        "--processes",
        "3",
        "--reducers",
        "2",
        "--sizes",
        "4,64K,1M",
        "--seconds",
        "0.01",
        "--json",
    ];
    let (code, stdout, stderr) = output(&args);
    assert_eq!(code, 0, "{stderr}");
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 3, "{stdout}");
    for row in rows {
        assert_eq!(row["ranks"], 3);
        assert_eq!(row["out_of_place"]["wrong"], 0);
        assert_eq!(row["in_place"]["wrong"], 0);
    }
}

#[test]
fn bench_without_a_job_says_how_to_get_one() {
    let (code, _, stderr) = output(&["bench"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("--processes 4"), "{stderr}");
}

/// The contract of the comparison rigs, as a program that is not ours would check it: for the sum of f32 that it names,
/// and for what the options name in its place.
#[test]
fn bench_fulfils_the_rigs_contract() {
    for (name, args) in [
        ("plain", &[][..]),
        ("mapped", &["--mapped"]),
        ("scattered", &["--collective", "reduce_scatter", "--dtype", "bf16"]),
    ] {
        check_rig(name, args);
    }
}

#[test]
fn what_a_rig_cannot_mean_is_refused_before_anything_is_done() {
    for (name, value) in [("BENCH_BUDGET_S", "-1"), ("BENCH_BUDGET_S", "1e30"), ("BENCH_SIZES", "4,x")] {
        let mut command = herringbone(&["bench", "--rig"]);
        let output = command.env(name, value).env("WORLD_SIZE", "1").output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(name) && stderr.contains(value), "{stderr}");
    }
}

#[test]
fn more_than_fits_in_memory_is_refused() {
    let (code, _, stderr) = output(&["bench", "--local", "1", "--sizes", "900000G"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("more than the memory of this machine"), "{stderr}");
}

fn check_rig(name: &str, args: &[&str]) {
    let folder = std::env::temp_dir().join(format!("herringbone-rig-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let ranks: Vec<Running> = (0..2)
        .map(|rank| {
            let mut command = herringbone(&[&["bench", "--rig"], args].concat());
            command.envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
            command.envs([("BENCH_SIZES", "4,4096"), ("BENCH_BUDGET_S", "0.01"), ("BENCH_EXTRA_HOSTS", "")]);
            Running(command.env("RANK", rank.to_string()).env("BENCH_OUT", &folder).spawn().unwrap())
        })
        .collect();
    for mut rank in ranks {
        assert!(rank.0.wait().unwrap().success());
    }
    for rank in 0..2 {
        let text = std::fs::read_to_string(folder.join(format!("r{rank}.jsonl"))).unwrap();
        let rows: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.iter().map(|row| row["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 4096]);
        for row in rows {
            assert_eq!(row["ok"], true);
            assert!(row["iters"].as_u64().unwrap() >= 3);
            let seconds = ["p10_s", "med_s", "p90_s", "wall_s"].map(|name| row[name].as_f64().unwrap());
            assert!(seconds.is_sorted() && seconds[0] > 0.0, "{row}");
            assert!(row["cpu_s"].as_f64().unwrap() > 0.0);
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = herringbone(&["verify", "--ranks", "2..24"]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn explain_follows_the_algorithm_that_is_forced() {
    let explain = |algorithm: &str, args: &[&str]| {
        let mut command = herringbone(&[&["explain", "--ranks", "4", "--sizes", "64K"], args].concat());
        let Output { status, stdout, stderr } =
            command.env("HERRINGBONE_ALGORITHM", algorithm).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    };
    let (code, stdout, _) = explain("ring", &["--json"]);
    let row: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &row["algorithm"], &row["why"]), (0, &"ring".into(), &"forced".into()));
    let (code, stdout, _) = explain("hierarchical", &[]);
    // A reason takes several lines.
    let words = stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(code == 0 && words.contains("; not the forced hierarchical(radix,radix), because"), "{stdout}");
    for (algorithm, said) in [("rign", "did you mean ring?"), ("reduction_server", "name reducers")] {
        let (code, _, stderr) = explain(algorithm, &[]);
        assert!(code == 2 && stderr.contains(said), "{stderr}");
    }
}

#[test]
fn help_documents_the_exit_codes() {
    let (code, stdout, _) = output(&["--help"]);
    assert_eq!(code, 0);
    let verbs =
        ["verify", "explain", "show", "bench", "compare", "horovodrun", "serve", "settings", "completions"];
    for verb in verbs.into_iter().chain(["Exit codes:"]) {
        assert!(stdout.contains(verb), "{stdout}");
    }
    let (code, stdout, _) = output(&["completions", "bash"]);
    assert_eq!(code, 0);
    assert!(stdout.contains("_herringbone()") && stdout.contains("explain") && stdout.contains("show"));
}

#[test]
fn verbs_of_the_python_package_become_its_programs() {
    let folder = std::env::temp_dir().join(format!("herringbone-python-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let python = folder.join("python3");
    let run = |words: &[&str]| {
        let Output { status, stdout, stderr } = herringbone(words).env("PATH", &folder).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().unwrap(), text(stdout), text(stderr))
    };
    let script = "#!/bin/sh\necho \"$2\" >&2\nshift 2\necho \"$@\"\nexit 7\n";
    std::fs::write(&python, script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&python, executable).unwrap();
    let verbs = [
        (
            &["horovodrun", "-np", "2", "--verbose", "python", "train.py", "--help"][..],
            "herringbone.horovod.horovodrun",
        ),
        (&["compare", "--workers", "2", "--csv", "--slow-worker", "1:3x"], "herringbone.compare.__main__"),
    ];
    for (words, module) in verbs {
        let (code, stdout, program) = run(words);
        assert_eq!((code, stdout), (7, format!("{}\n", words[1..].join(" "))));
        assert!(program.contains(&format!("from {module} import main")), "{program}");
        assert!(program.contains(&format!("{} is in the Python package", words[0])), "{program}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    for (words, _) in verbs {
        let (code, _, stderr) = run(words);
        assert!(code == 3 && stderr.contains("cannot start `python3`"), "{stderr}");
    }
}

/// Runs `settings` with only these variables of ours, and of the libraries that we read.
fn settings(args: &[&str], set: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = herringbone(&[&["settings"], args].concat());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("HERRINGBONE_") || text.ends_with("_SOCKET_IFNAME") {
            command.env_remove(&name);
        }
    }
    let Output { status, stdout, stderr } = command.envs(set.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn settings_show_what_counts_and_where_it_comes_from() {
    let set = [
        ("HERRINGBONE_TOKEN", "very secret"),
        ("HERRINGBONE_STAGING_BYTES", "16M"),
        ("GLOO_SOCKET_IFNAME", "eth7"),
    ];
    let (code, stdout, stderr) = settings(&[], &set);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(!stdout.contains("very secret"), "{stdout}");
    let row = |name: &str| -> Vec<String> {
        let line = stdout.lines().find(|line| line.trim().starts_with(&format!("{name} "))).unwrap();
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).map(str::to_owned).collect()
    };
    assert_eq!(row("HERRINGBONE_TOKEN")[1..3], ["(set)", "environment (else none: loopback only)"]);
    assert_eq!(row("HERRINGBONE_STAGING_BYTES")[1..3], ["16M", "environment (else 64M)"]);
    assert_eq!(row("HERRINGBONE_IFNAME")[1], "eth7");
    assert!(row("HERRINGBONE_IFNAME")[2].starts_with("GLOO_SOCKET_IFNAME (else "));
    assert_eq!(row("HERRINGBONE_TIMEOUT_S")[1..3], ["1800", "default"]);
}

#[test]
fn settings_speak_json() {
    let (code, stdout, _) = settings(&["--json"], &[("HERRINGBONE_TRANSPORT", "tcp")]);
    assert_eq!(code, 0, "{stdout}");
    let rows: Vec<serde_json::Value> =
        stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), herringbone::settings::ALL.len());
    let transport = rows.iter().find(|row| row["name"] == "HERRINGBONE_TRANSPORT").unwrap();
    assert_eq!((&transport["value"], &transport["from"]), (&"tcp".into(), &"HERRINGBONE_TRANSPORT".into()));
    assert_eq!(transport["readers"], serde_json::json!(["worker", "torch", "reducer"]));
    let token = rows.iter().find(|row| row["name"] == "HERRINGBONE_TOKEN").unwrap();
    assert!(token["value"].is_null() && token["from"].is_null(), "{token}");
    assert!(rows.iter().all(|row| row["wrong"].is_null()));
}

/// The same text as on standard error, and only by the setting that it is about.
#[test]
fn settings_in_json_say_which_are_wrong() {
    for (set, wrong) in [
        (&[("HERRINGBONE_ALGORITHM", "rign")][..], &["HERRINGBONE_ALGORITHM"][..]),
        (
            &[("HERRINGBONE_TRANSPORT", "tpc"), ("HERRINGBONE_LOG", "loud")],
            &["HERRINGBONE_TRANSPORT", "HERRINGBONE_LOG"],
        ),
        (&[("RANK", "first"), ("WORLD_SIZE", "2")], &["HERRINGBONE_RANK"]),
        (
            &[("HERRINGBONE_SLICE_BYTES", "8M"), ("HERRINGBONE_STAGING_BYTES", "16M")],
            &["HERRINGBONE_SLICE_BYTES"],
        ),
    ] {
        let (code, stdout, stderr) = settings(&["--json"], set);
        assert_eq!(code, 2, "{stderr}");
        let mut named = Vec::new();
        for line in stdout.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            if let Some(text) = row["wrong"].as_str() {
                assert!(stderr.lines().any(|line| line == text), "{text}\n{stderr}");
                named.push(row["name"].as_str().unwrap().to_owned());
            }
        }
        assert_eq!(named, wrong, "{stderr}");
    }
}

#[test]
fn wrong_settings_are_named_with_what_was_meant() {
    let misspelt = ["HERRINGBONE", "ALGORITM"].join("_");
    let (code, _, stderr) = settings(&[], &[(&misspelt, "ring")]);
    assert_eq!(code, 0);
    let expected = format!(
        "{misspelt} is not a setting (`herringbone settings` lists them); did you mean HERRINGBONE_ALGORITHM?"
    );
    assert_eq!(stderr.matches(&expected).count(), 1, "{stderr}");
    let wrong: [(&[(&str, &str)], &str); 8] = [
        (&[("HERRINGBONE_ALGORITHM", "radix(3)")], "power of two"),
        (&[("HERRINGBONE_ALGORITHM", "hierarchical(reduction_server,radix)")], "radix inside hosts"),
        (&[("HERRINGBONE_ALGORITHM", "rign")], "did you mean ring?"),
        (&[("HERRINGBONE_ALGORITHM", "weighted(ring,16,1)")], "ring has no shares"),
        (&[("HERRINGBONE_ALGORITHM", "weighted(radix(3),16,1)")], "power of two"),
        (&[("HERRINGBONE_LOG", "loud")], "it must be off, error, warn, info or debug"),
        (&[("HERRINGBONE_IFNAME", "=l0")], "did you mean lo?"),
        (&[("HERRINGBONE_SLICE_BYTES", "8M"), ("HERRINGBONE_STAGING_BYTES", "16M")], "set it to 4M or less"),
    ];
    for (set, part) in wrong {
        let (code, stdout, stderr) = settings(&[], set);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(set[0].0) && stderr.contains(part), "{stderr}");
        assert!(stdout.contains(set[0].1), "the table is there all the same: {stdout}");
    }
    let (code, _, stderr) =
        settings(&[], &[("HERRINGBONE_ALGORITHM", &format!("radix({}2)", "2,".repeat(8200)))]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("HERRINGBONE_ALGORITHM: a name of more than 16384 characters"), "{stderr}");
    let several = [
        ("HERRINGBONE_TRANSPORT", "tpc"),
        ("HERRINGBONE_FOLD_ORDER", "host"),
        ("HERRINGBONE_TIMEOUT_S", "-1"),
    ];
    let (code, _, stderr) = settings(&[], &several);
    assert_eq!((code, stderr.lines().count()), (2, 3), "{stderr}");
    assert!(several.iter().all(|(name, _)| stderr.matches(name).count() == 1), "{stderr}");
}

#[test]
fn a_misspelt_algorithm_is_named_with_what_was_meant() {
    for (names, nearest) in [("rign", "ring"), ("doubling, radx(8,8)", "radix"), ("tre", "tree")] {
        let (code, _, stderr) = output(&["verify", "--algorithm", names]);
        assert_eq!(code, 2, "{stderr}");
        assert!(stderr.contains(&format!("; did you mean {nearest}?")), "{stderr}");
    }
}

/// Of a job's ranks one says it; so does a reducer.
#[test]
fn a_misspelt_setting_is_warned_about_once() {
    let misspelt = ["HERRINGBONE", "REDUCER"].join("_");
    let args = ["bench", "--processes", "2", "--sizes", "4", "--seconds", "0.01"];
    let outcome = herringbone(&args).env(&misspelt, "x").output().unwrap();
    let stderr = String::from_utf8(outcome.stderr).unwrap();
    assert!(outcome.status.success(), "{stderr}");
    assert_eq!(stderr.matches("did you mean HERRINGBONE_REDUCERS?").count(), 1, "{stderr}");
    let outcome = herringbone(&args).env(&misspelt, "x").env("HERRINGBONE_LOG", "info").output().unwrap();
    let stderr = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(stderr.matches("did you mean HERRINGBONE_REDUCERS?").count(), 2, "{stderr}");
    let outcome = herringbone(&["serve", "--listen", "192.0.2.1:0"]).env(&misspelt, "x").output().unwrap();
    let stderr = String::from_utf8(outcome.stderr).unwrap();
    assert_eq!(stderr.matches("did you mean HERRINGBONE_REDUCERS?").count(), 1, "{stderr}");
}

#[test]
fn bench_says_whether_the_algorithm_that_is_forced_is_taken() {
    let bench = |forced: &str| {
        let args = ["bench", "--local", "2", "--sizes", "4,64", "--seconds", "0.001"];
        let outcome = herringbone(&args).env("HERRINGBONE_ALGORITHM", forced).output().unwrap();
        String::from_utf8(outcome.stdout).unwrap()
    };
    let stdout = bench("ring");
    assert!(stdout.contains(", ring forced for all_reduce, "), "{stdout}");
    assert!(stdout.contains("# Algorithm            : ring (4 to 64 B)\n"), "{stdout}");
    let stdout = bench("hierarchical");
    assert!(
        stdout.contains(", all_reduce by size and not by the forced hierarchical(radix,radix), "),
        "{stdout}"
    );
    let said =
        "# Algorithm            : one_shot (4 to 64 B); not the forced hierarchical(radix,radix), because";
    assert!(stdout.contains(said), "{stdout}");
}

#[test]
fn rank_0_warns_of_a_forced_algorithm_that_hosts_stand_against() {
    let args = ["bench", "--processes", "2", "--sizes", "64K", "--seconds", "0.001"];
    for (forced, warnings) in [("hierarchical", 1), ("radix", 0)] {
        let outcome = herringbone(&args).env("HERRINGBONE_ALGORITHM", forced).output().unwrap();
        let stderr = String::from_utf8(outcome.stderr).unwrap();
        assert!(outcome.status.success(), "{stderr}");
        assert_eq!(stderr.matches("cannot be used, so sizes decide").count(), warnings, "{stderr}");
    }
}
