//! What a newcomer types: it works, or the answer says what does.

use std::{
    io::Read,
    process::{Command, Output, Stdio},
};

fn herringbone(args: &[&str], set: &[(&str, &str)]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_herringbone"));
    for name in
        ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "HERRINGBONE_REDUCERS", "HERRINGBONE_STORE"]
    {
        command.env_remove(name);
    }
    let Output { status, stdout, stderr } = command.args(args).envs(set.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

/// Splits a command line, of which no word has a space.
fn run(line: &str) -> (i32, String, String) {
    herringbone(&line.split(' ').collect::<Vec<_>>(), &[])
}

#[test]
fn negative_numbers_are_answered_with_what_may_be() {
    for (line, says) in [
        ("explain --ranks -3", "write a whole number from 1 to 16384"),
        ("bench --local -1", "write a whole number from 1 to 1024"),
        ("launch -n -2 -- true", "from 1 to 1024, like 4"),
        ("verify --ranks -3", "is not a number above 0"),
        ("bench --local 2 --sizes -4", "is not a size"),
        ("bench --local 2 --seconds -0.5", "-0.5"),
    ] {
        let (code, _, stderr) = run(line);
        assert!(
            code == 2 && stderr.contains(says) && !stderr.contains("unexpected argument"),
            "{line}: {stderr}"
        );
    }
}

#[test]
fn names_of_torch_and_numpy_are_understood() {
    for line in
        ["--op avg", "--op mean", "--dtype float32", "--dtype fp16", "--dtype bfloat16", "--dtype int64"]
    {
        let (code, stdout, stderr) =
            run(&format!("bench --local 2 --sizes 64 --seconds 0.001 --json {line}"));
        assert_eq!(code, 0, "{line}: {stderr}");
        let row: serde_json::Value = serde_json::from_str(stdout.lines().next().unwrap()).unwrap();
        let own = [&row["op"], &row["dtype"]].map(|name| name.as_str().unwrap());
        let known = ["average", "f32", "f16", "bf16", "i64"];
        assert!(own.iter().any(|name| known.contains(name)), "{line}: {row}");
    }
    let (_, _, stderr) = run("bench --local 2 --dtype float33");
    assert!(stderr.contains("float32") || stderr.contains("f32"), "{stderr}");
}

#[test]
fn sizes_are_read_as_people_write_them() {
    for (text, bytes) in [("1.5K", 1536), ("1KiB", 1024), ("1KB", 1024), ("1e3", 1000)] {
        let (code, stdout, stderr) = run(&format!("explain --ranks 2 --sizes {text} --json"));
        let row: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!((code, row["bytes"].as_u64()), (0, Some(bytes)), "{text}: {stderr}");
    }
    let (code, _, stderr) = run("explain --ranks 2 --sizes 1.5X");
    assert!(code == 2 && stderr.contains("write 4, 64K, 1.5M, 1G"), "{stderr}");
}

#[test]
fn a_bracket_that_is_missing_is_written() {
    for (line, right) in [
        ("show --algorithm radix(8,8 --ranks 64", "write radix(8,8)"),
        ("show --algorithm tree --ranks 4 --collective reduce(2", "write reduce(2)"),
        ("verify --algorithm hierarchical(radix,ring --ranks 4", "write hierarchical(radix,ring)"),
    ] {
        let (code, _, stderr) = run(line);
        assert!(code == 2 && stderr.contains(right), "{line}: {stderr}");
    }
}

#[test]
fn settings_may_be_named() {
    let (code, stdout, stderr) = run("settings HERRINGBONE_ALGORITHM timeout-s");
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    assert!(stdout.contains("HERRINGBONE_ALGORITHM") && stdout.contains("HERRINGBONE_TIMEOUT_S"), "{stdout}");
    assert!(!stdout.contains("HERRINGBONE_IFNAME") && !stdout.contains("a job of one rank"), "{stdout}");
    let (_, stdout, _) = run("settings MASTER_ADDR");
    assert!(stdout.contains("HERRINGBONE_STORE"), "{stdout}");
    let (code, _, stderr) = run("settings algoritm");
    assert!(code == 2 && stderr.contains("did you mean HERRINGBONE_ALGORITHM?"), "{stderr}");
}

#[test]
fn levels_of_other_loggers_do_not_stop_a_job() {
    for level in ["debug", "TRACE", "warning", "error"] {
        let args = ["bench", "--local", "2", "--sizes", "4", "--seconds", "0.001"];
        let (code, _, stderr) = herringbone(&args, &[("HERRINGBONE_LOG", level)]);
        assert_eq!(code, 0, "{level}: {stderr}");
    }
    let (code, _, stderr) = herringbone(&["settings"], &[("HERRINGBONE_LOG", "loud")]);
    assert!(code == 2 && stderr.contains("it must be off, error, warn, info or debug"), "{stderr}");
}

#[test]
fn only_what_has_reducers_is_called_restartable() {
    let (_, stdout, _) = run("verify --algorithm radix,reduction_server --ranks 4 --json");
    for row in stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()) {
        let has_reducers = row["reducers"] != 0;
        assert_eq!(row["restartable"].is_boolean(), has_reducers, "{row}");
    }
    let (_, stdout, _) = run("verify --algorithm radix --ranks 4 --all");
    let row = stdout.lines().find(|line| line.trim_start().starts_with("radix")).unwrap();
    assert!(row.split_whitespace().any(|cell| cell == "-"), "{stdout}");
}

#[test]
fn options_of_other_servers_are_answered_with_ours() {
    for (line, tip) in [
        ("serve --port 7070", "--listen 0.0.0.0:7070"),
        ("serve --host 0.0.0.0", "--listen"),
        ("serve --token secret", "--token-file"),
    ] {
        let (code, _, stderr) = run(line);
        assert!(code == 2 && stderr.contains(tip), "{line}: {stderr}");
    }
    assert!(!run("serve --help").1.contains("--port"));
}

#[test]
fn a_summary_comes_first_and_all_rows_on_demand() {
    let rows = |stdout: &str| {
        stdout.lines().filter(|line| line.contains(" fixed ") || line.contains("ring")).count()
    };
    let width = |line: &str| line.trim_end().chars().count();
    let (code, short, _) = run("verify --ranks 2..16");
    assert!(code == 0 && rows(&short) <= 14, "{short}");
    let table = || short.lines().filter(|line| !line.starts_with("left out"));
    assert!(table().all(|line| width(line) <= 80), "{short}");
    assert!(
        short.contains("--all shows a row for each")
            && short.contains("282 of 282 schedules of all_reduce proven"),
        "{short}"
    );
    let (_, long, _) = run("verify --ranks 2..16 --all");
    assert!(rows(&long) > 100, "{long}");
}

/// Lines of values have no place for it.
#[test]
fn a_way_that_values_leave_out_is_named_beside_them() {
    let ways = "simulate-training --model alexnet --algorithm ring --workers 2 --codec none,int8";
    let (code, stdout, stderr) = run(&format!("{ways} --csv"));
    assert_eq!((code, stdout.lines().count()), (0, 2), "{stdout}");
    assert!(stderr.starts_with("herringbone: left out: ring int8 with 2 workers: "), "{stderr}");
    assert_eq!(run(ways).2, "");
}

#[test]
fn all_errors_look_alike() {
    for line in [
        "verify --nope",
        "nope",
        "bench",
        "serve --listen nowhere",
        "show --algorithm ring --ranks 4 --rank 9",
    ] {
        let (code, _, stderr) = run(line);
        assert!(code == 2 && stderr.starts_with("herringbone: "), "{line}: {stderr}");
    }
}

#[test]
fn shells_complete_names_of_algorithms() {
    for shell in ["bash", "zsh", "fish"] {
        let (code, stdout, _) = run(&format!("completions {shell}"));
        assert_eq!(code, 0);
        for name in ["reduction_server", "one_shot", "all_to_all"] {
            assert!(stdout.contains(name), "{shell} does not complete {name}");
        }
        // fish has no completions for what stands without an option.
        assert!(shell == "fish" || stdout.contains("HERRINGBONE_IFNAME"), "{shell}");
    }
}

/// In a terminal, where colours and bars are.
#[test]
fn without_colours_there_are_none() {
    let help = |set: &str| {
        let inner = format!("{set} {} --help", env!("CARGO_BIN_EXE_herringbone"));
        let outcome =
            Command::new("script").args(["-qec", &inner, "/dev/null"]).env_remove("NO_COLOR").output();
        outcome.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    match (help("TERM=xterm"), help("TERM=xterm NO_COLOR=1")) {
        (Ok(plain), Ok(none)) => {
            assert!(plain.contains("\x1b["), "a terminal gets colours: {plain}");
            assert!(!none.contains("\x1b[") && none.contains("verify"), "{none}");
        }
        _ => eprintln!("skipped: there is no program called script"),
    }
}

/// A size that is measured for so long takes longer than the bar waits. The run ends once the bar is there.
#[test]
fn what_takes_long_shows_the_time_that_has_passed() {
    let inner = format!("{} bench --local 2 --sizes 4M --seconds 30", env!("CARGO_BIN_EXE_herringbone"));
    let mut script = Command::new("script");
    script
        .args(["-qec", &inner, "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let Ok(mut run) = script.spawn() else {
        eprintln!("skipped: there is no program called script");
        return;
    };
    let (mut output, mut text, mut room) = (run.stdout.take().unwrap(), String::new(), [0; 4096]);
    while !text.contains("0/1 in ") {
        let got = output.read(&mut room).unwrap();
        assert!(got > 0, "it ends without a bar: {text}");
        text += &String::from_utf8_lossy(&room[..got]);
    }
    run.kill().unwrap();
    run.wait().unwrap();
}

/// Only rank 0 has the setting; the other one would wait for half an hour.
#[test]
fn a_setting_that_rank_0_cannot_use_is_an_error_on_all_ranks_at_once() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let place =
        |rank| [("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)];
    let args = ["bench", "--sizes", "4"];
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| herringbone(&args, &place("1")));
        let wrong = [&place("0")[..], &[("HERRINGBONE_ALGORITHM", "rign")]].concat();
        (herringbone(&args, &wrong), second.join().unwrap())
    });
    for (code, _, stderr) in [first, second] {
        assert!(
            code == 2 && stderr.contains("HERRINGBONE_ALGORITHM") && stderr.contains("did you mean ring?"),
            "{stderr}"
        );
    }
}

#[test]
fn what_times_and_prices_need_is_said() {
    for (line, says) in [
        ("roofline --ranks -3", "write a whole number from 1 to 16384"),
        ("roofline --trace /nowhere/trace.json", "/nowhere/trace.json: cannot be read"),
        ("simulate --bytes 1E", "at most 64 TiB are allowed"),
        ("simulate --collective gather(0) --parts -1,0", "\"-1\" is no number of bytes"),
        ("simulate --collective gather(0) --parts 18446744073709551616,0", "too many bytes to count"),
        ("simulate --bytes -5M", "\"-5M\" is no number of bytes"),
        ("simulate --slow -1:2", "RANK:F"),
        ("verify --ranks -1,2", "not a number above 0"),
        ("explain --ranks 4 --sizes -1K..2K", "is not a size"),
        ("advise --worker-gbps 10 --reducer-gbps 10", "--workers"),
        ("advise --worker-gbps 10 --reducer-gbps 10 --from /nowhere/stats.json", "group.recent()"),
    ] {
        let (code, _, stderr) = run(line);
        assert!(code == 2 && stderr.contains(says), "{line}: {stderr}");
    }
    let (_, help, _) = run("--help");
    assert!(help.contains("roofline"), "{help}");
}
