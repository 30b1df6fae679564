//! `herringbone launch` as a user meets it: output, exit codes, signals, and that no process outlives it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

const BINARY: &str = env!("CARGO_BIN_EXE_herringbone");

fn launch(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("launch").args(args);
    for name in ["HERRINGBONE_REDUCERS", "HERRINGBONE_TOKEN", "HERRINGBONE_ALGORITHM", "OMP_NUM_THREADS"] {
        command.env_remove(name);
    }
    command
}

/// The exit code, and the lines of standard output, sorted, and of standard error.
fn output(command: &mut Command) -> (i32, Vec<String>, String) {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let mut lines: Vec<String> = text(output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    (output.status.code().unwrap(), lines, text(output.stderr))
}

fn shell(ranks: &str, script: &str) -> (i32, Vec<String>, String) {
    output(&mut launch(&["-n", ranks, "--", "sh", "-c", script]))
}

#[test]
fn all_ranks_of_a_job_have_one_name_of_it_and_each_job_another() {
    let name = |set: Option<&str>| {
        let mut command = launch(&["-n", "2", "--", "sh", "-c", "echo $HERRINGBONE_JOB"]);
        match set {
            Some(name) => command.env("HERRINGBONE_JOB", name),
            None => command.env_remove("HERRINGBONE_JOB"),
        };
        let (_, lines, _) = output(&mut command);
        let names: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').nth(2)).collect();
        assert!(names.len() == 2 && names[0] == names[1], "{lines:?}");
        names[0].to_owned()
    };
    let [one, other] = [name(None), name(None)];
    assert!(one.len() == 16 && one != other);
    assert_eq!(name(Some("mine")), "mine");
}

/// A job that runs, and ends with the test.
struct Running {
    launcher: Child,
    lines: BufReader<ChildStdout>,
}

impl Running {
    fn shell(ranks: &str, script: &str) -> Self {
        Self::start(launch(&["-n", ranks, "--", "sh", "-c", script]))
    }

    fn start(mut command: Command) -> Self {
        let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(launcher.stdout.take().unwrap());
        Self { launcher, lines }
    }

    /// The next `count` lines, sorted.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let mut found: Vec<String> = self.lines.by_ref().lines().take(count).map(Result::unwrap).collect();
        found.sort();
        found
    }

    fn signal(&self, name: &str) {
        let pid = self.launcher.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// The exit code, what is left of standard output, sorted, and standard error.
    fn end(mut self) -> (i32, Vec<String>, String) {
        let left = self.lines(usize::MAX);
        let stderr = std::io::read_to_string(self.launcher.stderr.take().unwrap()).unwrap();
        (self.launcher.wait().unwrap().code().unwrap(), left, stderr)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.launcher.kill().ok();
        self.launcher.wait().ok();
    }
}

/// The numbers of processes that lines end with.
fn pids(lines: &[String]) -> Vec<String> {
    lines.iter().map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
}

/// Whether a process runs; one that has ended and that nobody has asked for does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Fails unless all processes end soon.
fn all_end(pids: &[String]) {
    for _ in 0..3000 {
        if !pids.iter().any(|pid| runs(pid)) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("of {pids:?} some run");
}

#[test]
fn lines_begin_with_their_rank() {
    let (code, lines, stderr) = shell("3", "echo one; printf two; [ $RANK = 2 ] && echo wrong >&2; exit 0");
    assert_eq!(code, 0, "{stderr}");
    let expected = ["0", "1", "2"].map(|rank| [format!("[rank {rank}] one"), format!("[rank {rank}] two")]);
    assert_eq!(lines, expected.concat());
    assert_eq!(stderr, "[rank 2] wrong\n");
}

#[test]
fn ranks_find_their_place() {
    let script = "echo $RANK $LOCAL_RANK of $WORLD_SIZE $LOCAL_WORLD_SIZE, $MASTER_ADDR $OMP_NUM_THREADS \
                  $HERRINGBONE_REPLACE $DMLC_NUM_ATTEMPT${HERRINGBONE_PROGRESS_FILE-}; [ $MASTER_ADDR:$MASTER_PORT != $HERRINGBONE_STORE ]";
    let mut command = launch(&["-n", "2", "--replace", "gloo", "--", "sh", "-c", script]);
    let (code, lines, stderr) = output(
        command
            .env("RANK", "7")
            .env("TORCHELASTIC_RUN_ID", "outer")
            .env("HERRINGBONE_PROGRESS_FILE", "outer"),
    );
    assert_eq!(code, 0, "{stderr}");
    let expected = ["0 0 of 2 2, 127.0.0.1 1 gloo 0", "1 1 of 2 2, 127.0.0.1 1 gloo 0"];
    assert_eq!(lines, [0, 1].map(|rank| format!("[rank {rank}] {}", expected[rank])));
    let kept = "echo $OMP_NUM_THREADS $PYTHONUNBUFFERED ${TORCHELASTIC_RUN_ID-none}";
    let mut command = launch(&["-n", "1", "--", "sh", "-c", kept]);
    command.env("OMP_NUM_THREADS", "5").env("PYTHONUNBUFFERED", "x").env("TORCHELASTIC_RUN_ID", "outer");
    assert_eq!(output(&mut command).1, ["[rank 0] 5 x none"]);
}

#[test]
fn reducers_serve_the_ranks_alone() {
    let script =
        format!("[ ${{#HERRINGBONE_TOKEN}} = 64 ] && exec {BINARY} bench --sizes 4,64K --seconds 0.001");
    let (code, lines, stderr) =
        output(&mut launch(&["-n", "3", "--reducers", "2", "--", "sh", "-c", &script]));
    assert_eq!(code, 0, "{stderr}");
    let has = |part: &str| lines.iter().any(|line| line.starts_with("[rank 0] ") && line.contains(part));
    assert!(
        has(", reduction_server forced for all_reduce") && has(", 2 reducers (") && has(": 0 OK"),
        "{lines:?}"
    );
}

#[test]
fn table_servers_name_themselves_and_do_not_tell_of_each_others_end() {
    let (code, _, stderr) =
        output(&mut launch(&["-n", "1", "--tables", "3", "--replicas", "1", "--", "sleep", "0.5"]));
    assert_eq!(code, 0, "{stderr}");
    let first = |server: u32| stderr.lines().find(|line| line.starts_with(&format!("[server {server}] ")));
    assert!(
        (0..3).all(|server| first(server).is_some_and(|line| line.contains("servers 0, 1, 2"))),
        "{stderr}"
    );
    assert!(!stderr.contains("lost the server"), "{stderr}");
}

#[test]
fn a_job_has_a_token_unless_it_meets_reducers_that_run_already() {
    let token = |name: &str, value: &str| {
        let mut command = launch(&["-n", "2", "--", "sh", "-c", "echo $HERRINGBONE_TOKEN"]);
        let (code, lines, stderr) = output(command.env_remove("HERRINGBONE_TOKEN_FILE").env(name, value));
        assert_eq!(code, 0, "{stderr}");
        let outputs: Vec<String> =
            lines.iter().map(|line| line["[rank 0]".len()..].trim().to_owned()).collect();
        assert_eq!(outputs[0], outputs[1], "all ranks have the same");
        outputs[0].clone()
    };
    let [one, other] = [token("HERRINGBONE_TOKEN", ""), token("HERRINGBONE_REDUCERS", "")];
    assert!(one.len() == 64 && other.len() == 64 && one != other);
    assert_eq!(token("HERRINGBONE_TOKEN", "a token of the user"), "a token of the user");
    assert_eq!(token("HERRINGBONE_TOKEN_FILE", "/a/file"), "");
    assert_eq!(token("HERRINGBONE_REDUCERS", "127.0.0.1:7070"), "");
}

#[test]
fn the_exit_code_is_that_of_the_rank_that_failed_first() {
    let others = "trap 'exit 9' TERM; while :; do sleep 0.05; done";
    let (code, _, stderr) = shell("4", &format!("[ $RANK = 2 ] && exit 7; {others}"));
    assert_eq!(code, 7, "{stderr}");
    assert!(stderr.contains("rank 2 failed first, with exit status: 7"), "{stderr}");
    let (code, _, stderr) = shell("2", &format!("[ $RANK = 1 ] && kill -s KILL $$; {others}"));
    assert_eq!(code, 128 + 9, "{stderr}");
    assert!(stderr.contains("rank 1 failed first, with signal: 9"), "{stderr}");
}

#[test]
fn no_program_begins_before_the_launcher_watches_it() {
    let folder = std::env::temp_dir().join(format!("herringbone-launch-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let watched = folder.join("watched");
    let script = format!("[ -e {} ] && readlink /proc/self/fd/0", watched.display());
    let mut command = launch(&["--child", &std::process::id().to_string(), "--", "sh", "-c", &script]);
    let mut rank = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    // A program that did not wait would be likely to begin now.
    thread::sleep(Duration::from_millis(100));
    fs::write(&watched, "").unwrap();
    drop(rank.stdin.take());
    let output = rank.wait_with_output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "/dev/null\n");
}

#[test]
fn a_rank_that_fails_ends_those_that_sleep() {
    let script = "sleep 1000 & echo $$; echo $!; [ $RANK = 0 ] && exit 3; wait";
    let (code, lines, stderr) = shell("3", script);
    assert_eq!((code, lines.len()), (3, 6), "{stderr}");
    all_end(&pids(&lines));
}

#[test]
fn ranks_may_say_what_they_saw_of_a_failure() {
    let (code, lines, stderr) = shell("2", "[ $RANK = 0 ] && exit 3; sleep 0.2; echo lost; exit 4");
    assert_eq!((code, lines), (3, vec!["[rank 1] lost".to_owned()]), "{stderr}");
}

#[test]
fn signals_are_passed_on_and_ranks_end_by_them_as_they_like() {
    for name in ["INT", "TERM", "HUP"] {
        let script = format!("trap 'echo saved; exit 0' {name}; echo ready; while :; do sleep 0.05; done");
        let mut job = Running::shell("3", &script);
        assert_eq!(job.lines(3), [0, 1, 2].map(|rank| format!("[rank {rank}] ready")));
        job.signal(name);
        let (code, lines, stderr) = job.end();
        assert_eq!(code, 0, "SIG{name}: {stderr}");
        assert_eq!(lines, [0, 1, 2].map(|rank| format!("[rank {rank}] saved")));
    }
}

#[test]
fn a_signal_that_ends_the_ranks_is_named() {
    for (name, number) in [("INT", 2), ("TERM", 15)] {
        let mut job = Running::shell("2", "echo $$; exec sleep 1000");
        let ranks = pids(&job.lines(2));
        job.signal(name);
        let (code, _, stderr) = job.end();
        assert_eq!((code, &*stderr), (128 + number, &*format!("herringbone: ended by SIG{name}\n")));
        all_end(&ranks);
    }
}

#[test]
fn a_second_signal_kills_ranks_that_do_not_end() {
    let mut job = Running::shell("2", "trap '' INT TERM; echo $$; while :; do sleep 0.05; done");
    let ranks = pids(&job.lines(2));
    while job.launcher.try_wait().unwrap().is_none() {
        job.signal("INT");
        thread::sleep(Duration::from_millis(20));
    }
    let (code, _, stderr) = job.end();
    assert_eq!((code, &*stderr), (128 + 9, "herringbone: ended by SIGINT\n"));
    all_end(&ranks);
}

#[test]
fn other_signals_reach_the_ranks_and_end_nothing() {
    let script = "trap 'echo told' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let mut job = Running::shell("2", script);
    job.lines(2);
    job.signal("USR1");
    assert_eq!(job.lines(2), ["[rank 0] told", "[rank 1] told"]);
    job.signal("TERM");
    assert_eq!(job.end().0, 0);
}

#[test]
fn ranks_and_reducers_end_though_the_launcher_is_killed() {
    let mut command = launch(&[
        "-n",
        "2",
        "--reducers",
        "1",
        "--",
        "sh",
        "-c",
        "echo $HERRINGBONE_REDUCERS $$; exec sleep 1000",
    ]);
    let mut launcher = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(launcher.stdout.take().unwrap());
    let mut job = Running { launcher, lines };
    let lines = job.lines(2);
    let address = lines[0].split(' ').nth(2).unwrap().to_owned();
    std::net::TcpStream::connect(&address).unwrap();
    job.signal("KILL");
    all_end(&pids(&lines));
    while std::net::TcpStream::connect(&address).is_ok() {
        thread::sleep(Duration::from_millis(10));
    }
}

/// The launcher lets reducers end by themselves: their timelines have ends.
#[test]
fn reducers_end_in_order() {
    let folder = std::env::temp_dir().join(format!("herringbone-reducers-end-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let bench = [BINARY, "bench", "--sizes", "64K", "--seconds", "0.05"];
    let mut command = launch(&[&["-n", "2", "--reducers", "1", "--"][..], &bench].concat());
    let (code, _, stderr) = output(command.env("HERRINGBONE_TIMELINE", &folder));
    assert_eq!(code, 0, "{stderr}");
    assert!(!stderr.contains("reducer 0"), "it has nothing to complain of: {stderr}");
    let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let name = |path: &std::path::Path| path.file_name().unwrap().to_string_lossy().into_owned();
    assert!(files.iter().any(|file| name(file).contains("reducer")), "{files:?}");
    let checked = Command::new(BINARY).args(["trace", "check"]).args(&files).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let said = String::from_utf8(checked.stdout).unwrap();
    assert!(checked.status.success() && !said.contains("without its end"), "{said}");
}

#[test]
fn processes_that_a_rank_leaves_behind_end_with_the_job() {
    let (code, lines, stderr) = shell("2", "sleep 1000 & echo $!");
    assert_eq!(code, 0, "{stderr}");
    all_end(&pids(&lines));
}

#[test]
fn what_cannot_be_started_is_refused_with_a_hint() {
    let here = env!("CARGO_MANIFEST_DIR");
    let cases: [(&[&str], &str); 8] = [
        (&["-n", "0", "--", "true"], "from 1 to 1024, like 4"),
        (&["--", "true"], "--ranks <N>"),
        (&["-n", "2"], "write it at the end, as in `herringbone launch -n 4 -- python train.py`"),
        (
            &["-n", "2", "no-such-command", "--lr", "1"],
            "command `no-such-command` is not in any folder of PATH",
        ),
        (&["-n", "2", "./no-such-file"], "file `./no-such-file` does not exist"),
        (&["-n", "2", &format!("{here}/Cargo.toml")], "an executable file"),
        (&["-n", "2", "--max-attempts", "0", "--", "true"], "write a whole number from 1 to 4294967295"),
        (&["-n", "2", "--replace", "nccl", "--", "true"], "[possible values: gloo]"),
    ];
    for (args, part) in cases {
        let (code, _, stderr) = output(&mut launch(args));
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    }
}

/// As [`shell`], where a rank starts so often without progress.
fn shell_again(ranks: &str, attempts: &str, script: &str) -> (i32, Vec<String>, String) {
    output(&mut launch(&["-n", ranks, "--max-attempts", attempts, "--", "sh", "-c", script]))
}

#[test]
fn a_killed_rank_starts_again_alone_and_as_before() {
    let script = "echo start $DMLC_NUM_ATTEMPT $$; \
        echo env $RANK $HERRINGBONE_TOKEN $HERRINGBONE_STORE $MASTER_PORT $HERRINGBONE_JOB $HERRINGBONE_PROGRESS_FILE; \
        [ $RANK$DMLC_NUM_ATTEMPT = 10 ] && kill -s KILL $$; sleep 0.2; echo end $$";
    let (code, lines, stderr) = shell_again("2", "2", script);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stderr, "herringbone: rank 1 ended with signal: 9 (SIGKILL) and starts again, as attempt 1\n");
    let of = |rank: usize, kind: &str| -> Vec<String> {
        let prefix = format!("[rank {rank}] {kind} ");
        lines.iter().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
    };
    let starts = [0, 1].map(|rank| of(rank, "start"));
    assert!(starts[0].len() == 1 && starts[0][0].starts_with("0 "), "{lines:?}");
    assert!(starts[1].len() == 2 && starts[1][1].starts_with("1 "), "{lines:?}");
    assert_eq!([pids(&starts[0]), pids(&starts[1])[1..].to_vec()], [0, 1].map(|rank| of(rank, "end")));
    let environments = of(1, "env");
    assert!(environments.len() == 2 && environments[0] == environments[1], "{lines:?}");
    let file = environments[0].rsplit(' ').next().unwrap();
    let folder = std::path::Path::new(file).parent().unwrap();
    assert!(folder.is_absolute() && !folder.exists(), "{folder:?}");
}

#[test]
fn a_rank_that_always_fails_ends_the_job_and_one_that_succeeds_is_done() {
    let script =
        "echo $DMLC_NUM_ATTEMPT; [ $RANK = 0 ] && exit 0; [ $DMLC_NUM_ATTEMPT = 2 ] && exit 7; exit 3";
    let (code, lines, stderr) = shell_again("2", "3", script);
    assert_eq!(lines, ["[rank 0] 0", "[rank 1] 0", "[rank 1] 1", "[rank 1] 2"], "{stderr}");
    assert_eq!(code, 7, "{stderr}");
    for part in [
        "rank 1 failed 3 times without progress in between, with exit status: 3, 2 times; exit status: 7;",
        "raise --max-attempts",
        "HERRINGBONE_PROGRESS_FILE",
    ] {
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn a_rank_that_makes_progress_starts_more_often() {
    let script = "echo $DMLC_NUM_ATTEMPT; [ $DMLC_NUM_ATTEMPT = 5 ] && exit 0; \
        [ $DMLC_NUM_ATTEMPT = 4 ] || echo $DMLC_NUM_ATTEMPT >$HERRINGBONE_PROGRESS_FILE; exit 7";
    let (code, lines, stderr) = shell_again("1", "3", script);
    assert_eq!((code, lines.len()), (0, 6), "{stderr}");
    let (code, lines, stderr) = shell_again("1", "2", script);
    assert_eq!((code, lines.len()), (7, 5), "{stderr}");
}

#[test]
fn a_rank_that_starts_again_leaves_no_process_behind() {
    let script = "[ $DMLC_NUM_ATTEMPT = 1 ] && exit 0; sleep 1000 & echo $!; exit 3";
    let (code, lines, stderr) = shell_again("1", "2", script);
    assert_eq!((code, lines.len()), (0, 1), "{stderr}");
    all_end(&pids(&lines));
}

#[test]
fn nothing_starts_again_once_the_job_ends() {
    let script = "trap 'exit 4' TERM; echo $$; [ $RANK$DMLC_NUM_ATTEMPT = 10 ] && exit 3; \
        while :; do sleep 0.05; done";
    let mut job = Running::start(launch(&["-n", "2", "--max-attempts", "9", "--", "sh", "-c", script]));
    let ranks = pids(&job.lines(3));
    job.signal("TERM");
    let (code, left, stderr) = job.end();
    assert_eq!((code, left.len()), (4, 0), "{stderr}");
    assert!(stderr.ends_with("herringbone: ended by SIGTERM\n"), "{stderr}");
    all_end(&ranks);
}

#[test]
fn a_job_that_is_ended_in_a_pause_ends_with_that_failure() {
    let script = "trap '' TERM; echo $$; exit 3";
    let mut job = Running::start(launch(&["-n", "1", "--max-attempts", "9", "--", "sh", "-c", script]));
    // Half a second until the next.
    job.lines(3);
    job.signal("TERM");
    let (code, left, stderr) = job.end();
    assert_eq!((code, left.len()), (3, 0), "{stderr}");
    assert!(stderr.ends_with("herringbone: ended by SIGTERM\n"), "{stderr}");
}
