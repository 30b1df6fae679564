//! `herringbone status` as a user meets it: a job of processes of which one is stopped, and whoever else is asked.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_herringbone");
const TOKEN: &str = "a token of the tests";
/// A member that is stopped is waited for one second; five are margin for a busy machine.
const SOON: Duration = Duration::from_secs(6);

fn herringbone(args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(args).env("HERRINGBONE_TOKEN", TOKEN);
    for name in [
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "HERRINGBONE_REDUCERS",
        "HERRINGBONE_STORE",
        "HERRINGBONE_TABLES",
    ] {
        command.env_remove(name);
    }
    command
}

fn output(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn status(args: &[&str]) -> (i32, String, String) {
    output(&mut herringbone(&[&["status"], args].concat()))
}

fn object(addresses: &[&str]) -> Value {
    let (code, stdout, stderr) = status(&[&["--json"], addresses].concat());
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    serde_json::from_str(&stdout).unwrap()
}

fn signal(process: u64, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap().success());
}

/// A process, and what it has stopped; all goes on and ends with the test.
struct Running {
    child: Child,
    stopped: Vec<u64>,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Self { child: command.spawn().unwrap(), stopped: Vec::new() }
    }

    fn stop(&mut self, process: u64) {
        signal(process, "STOP");
        self.stopped.push(process);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopped.iter().for_each(|process| signal(*process, "CONT"));
        // A launcher passes this on to its ranks.
        signal(self.child.id().into(), "TERM");
        self.child.wait().ok();
    }
}

/// A job of four ranks and a reducer that sums without end, and the address that rank 0's log says.
fn job() -> (Running, String) {
    let bench = [BINARY, "bench", "--sizes", "4M", "--seconds", "600"];
    let launch = ["launch", "-n", "4", "--reducers", "1", "--"];
    let mut command = herringbone(&[&launch[..], &bench].concat());
    command.env("HERRINGBONE_LOG", "info").stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = Running::start(&mut command);
    let mut lines = BufReader::new(running.child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let says = |line: &String| line.contains("[rank 0]") && line.contains("herringbone status ");
    let line = lines.find(says).expect("rank 0 says where it can be asked");
    let address = line.rsplit(' ').next().unwrap().to_owned();
    thread::spawn(move || lines.count());
    (running, address)
}

fn serve() -> (Running, String) {
    serving(&mut herringbone(&["serve", "--listen", "127.0.0.1:0", "--json"]))
}

/// A server that a command starts, and its address.
fn serving(command: &mut Command) -> (Running, String) {
    let mut running = Running::start(command.stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(running.child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let value: Value = serde_json::from_str(&line).unwrap();
    (running, value["listening"].as_str().unwrap().to_owned())
}

fn of_rank(status: &Value, rank: u64) -> &Value {
    let members = status["members"].as_array().unwrap();
    members.iter().find(|member| member["rank"] == rank).unwrap()
}

/// What is said of who is waited for.
fn waits<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status["waits"].as_array().unwrap().iter().find(|wait| wait["for"].as_str().unwrap().starts_with(name))
}

#[test]
fn it_answers_while_a_rank_is_stopped_and_says_who_waits_for_that() {
    let (mut job, address) = job();
    let well = object(&[&address]);
    let members = well["members"].as_array().unwrap();
    assert_eq!((members.len(), &well["world"], &well["epoch"]), (5, &4.into(), &0.into()), "{well}");
    assert!(members.iter().all(|member| member["answers"] == true), "{well}");
    let rank_0 = of_rank(&well, 0);
    assert_eq!(rank_0["links"][0]["by"], "tcp", "{rank_0}");
    assert!(rank_0["links"][0]["sent_per_second"].as_f64().unwrap() > 0.0, "{rank_0}");
    assert_eq!(members[4]["jobs"][0]["links"].as_array().unwrap().len(), 4, "{well}");

    let stopped = of_rank(&well, 2);
    job.stop(stopped["process"].as_u64().unwrap());
    let since = Instant::now();
    let stuck = loop {
        let asked = Instant::now();
        let status = object(&[&address]);
        assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
        if waits(&status, "rank 2").is_some() && waits(&status, "reducer").is_some() {
            break status;
        }
        // Who is silent is lost then, and nobody waits any longer.
        assert!(since.elapsed() < Duration::from_secs(6), "nobody waits: {status}");
    };
    let silent = of_rank(&stuck, 2);
    assert_eq!((&silent["answers"], &silent["process"]), (&false.into(), &Value::Null), "{silent}");
    assert_eq!(silent["error"], "no answer for 1 s: stopped, or cut off?");
    let wait = waits(&stuck, "rank 2").unwrap();
    assert_eq!(wait["why"], "it does not answer", "{wait}");
    assert!(wait["operation"].as_str().unwrap().starts_with("all_reduce of 1048576 f32"), "{wait}");
    assert!(waits(&stuck, "reducer").unwrap()["by"].as_array().unwrap().contains(&"rank 0".into()));

    let own = stopped["address"].as_str().unwrap();
    let alone = thread::spawn({
        let own = own.to_owned();
        move || status(&[&own])
    });
    let folder = std::env::temp_dir().join(format!("herringbone-records-{}", std::process::id()));
    let dumped = thread::spawn({
        let (folder, address) = (folder.to_str().unwrap().to_owned(), address.clone());
        move || status(&["--dump", &folder, &address])
    });
    let (code, page, stderr) = status(&[own, &address]);
    assert_eq!(code, 0, "the first to answer is used: {stderr}");
    assert!(page.contains("4 workers, 1 reducer, epoch 0; 4 of 5 members answer"), "{page}");
    assert!(page.contains("\nrank 2 keeps ") && page.contains("it does not answer"), "{page}");
    let (code, _, stderr) = alone.join().unwrap();
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains(own) && stderr.contains("pass the ADDR:PORT of another member"), "{stderr}");
    let (code, page, stderr) = dumped.join().unwrap();
    assert_eq!(code, 0, "{stderr}");
    assert!(page.contains("\nrank 2: no record: no answer for 1 s: stopped, or cut off?\n"), "{page}");
    check_records(&folder);
    fs::remove_dir_all(folder).unwrap();
}

/// There is one of each rank but 2 and of the reducer, and the all-reduce that waits is in them.
fn check_records(folder: &Path) {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    assert_eq!(names[..3], ["rank_0.json", "rank_1.json", "rank_3.json"], "{names:?}");
    assert!(names.len() == 4 && names[3].starts_with("reducer_127-0-0-1-"), "{names:?}");
    for (name, role) in names.iter().zip(["worker", "worker", "worker", "reducer"]) {
        let record: Value = serde_json::from_str(&fs::read_to_string(folder.join(name)).unwrap()).unwrap();
        assert_eq!((&record["format"], &record["role"]), (&"herringbone-flight-1".into(), &role.into()));
        let last = record["operations"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&last["call"], &last["count"], &last["state"]),
            (&"all_reduce".into(), &1_048_576.into(), &"running".into()),
            "{name}: {last}"
        );
    }
}

#[test]
fn a_job_that_forms_says_who_is_missing() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = herringbone(&["bench", "--sizes", "4"]);
    command.env("HERRINGBONE_STORE", &free).env("RANK", "0").env("WORLD_SIZE", "3");
    let _rank = Running::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
    while TcpStream::connect(&free).is_err() {
        thread::sleep(Duration::from_millis(10));
    }
    let (code, page, stderr) = output(herringbone(&["status"]).env("HERRINGBONE_STORE", &free));
    assert_eq!(code, 0, "{stderr}");
    assert!(page.starts_with("a job of 3 ranks is forming: ranks 1, 2 are missing\n"), "{page}");
}

#[test]
fn a_reducer_without_jobs_says_so() {
    let (_reducer, address) = serve();
    let (code, page, stderr) = status(&[&address]);
    assert_eq!(code, 0, "{stderr}");
    assert!(page.starts_with("a reducer: 0 jobs now, 0 since its start\n"), "{page}");
    let status = object(&[&address]);
    let member = &status["members"][0];
    assert_eq!((&member["role"], &member["jobs_served"]), (&"reducer".into(), &0.into()), "{status}");
}

#[test]
fn with_another_token_nobody_answers() {
    let (_reducer, address) = serve();
    let mut command = herringbone(&["status", &address]);
    let (code, stdout, stderr) = output(command.env("HERRINGBONE_TOKEN", "another token of tests"));
    assert_eq!((code, &*stdout), (3, ""), "{stderr}");
    assert!(stderr.contains("the job tokens differ") && stderr.contains("HERRINGBONE_TOKEN"), "{stderr}");
}

/// The user who started a process may know its token anyway.
#[test]
fn a_token_need_not_be_typed_where_the_process_of_the_same_user_has_it() {
    let (_reducer, address) = serve();
    for token in [None, Some("")] {
        let mut command = herringbone(&["status", &address]);
        command.env_remove("HERRINGBONE_TOKEN");
        command.envs(token.map(|token| ("HERRINGBONE_TOKEN", token)));
        let (code, page, stderr) = output(&mut command);
        assert!(code == 0 && page.starts_with("a reducer: "), "{stderr}");
    }
    let elsewhere = output(herringbone(&["status", "192.0.2.1:7"]).env_remove("HERRINGBONE_TOKEN"));
    assert!(elsewhere.2.contains("192.0.2.1 is not loopback"), "{}", elsewhere.2);
}

#[test]
fn who_is_not_there_is_told_from_who_is_something_else() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (code, _, stderr) = status(&[&free]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains(&format!("{free}: nobody answers: Connection refused")), "{stderr}");
    assert!(stderr.contains("HERRINGBONE_TABLES"), "{stderr}");

    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream.read_to_end(&mut Vec::new())
    });
    let (code, _, stderr) = status(&[&address]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("does not speak Herringbone, it sent \"HTTP/1.1\""), "{stderr}");

    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
    let (code, _, stderr) = status(&[&deaf.local_addr().unwrap().to_string()]);
    assert_eq!(code, 3, "{stderr}");
    assert!(stderr.contains("no answer for 1 s: stopped, or cut off?"), "{stderr}");

    let (code, _, stderr) = status(&[]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("HERRINGBONE_STORE") && stderr.contains("HERRINGBONE_TABLES"), "{stderr}");
    assert_eq!(status(&["nowhere"]).0, 2);
}

#[test]
fn it_watches_until_a_signal() {
    let (_reducer, address) = serve();
    let mut command = herringbone(&["status", "--watch=0.1", "--json", &address]);
    let mut watching = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let value: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(value["members"][0]["address"], address);
    }
    signal(watching.id().into(), "INT");
    assert_eq!(watching.wait().unwrap().code(), Some(0));
}

/// A server that ends, and one that comes to its address, are news. One that refuses the watcher will refuse it in each round.
#[test]
fn it_watches_on_while_nobody_answers_and_ends_with_a_refusal() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = herringbone(&["status", "--watch=0.1", "--json", &free]);
    let mut watching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut reads_until_silent = |silent: bool| loop {
        let value: Value = serde_json::from_str(&lines.next().expect("it goes on")).unwrap();
        let member = &value["members"][0];
        assert_eq!(
            (&member["address"], member["answers"] == false),
            (&free.as_str().into(), value["silent_seconds"].is_f64())
        );
        if value["silent_seconds"].is_f64() == silent {
            break;
        }
    };
    let tables = ["serve", "--listen", &free, "--json", "--tables"];
    reads_until_silent(true);
    for _ in 0..2 {
        let (server, _) = serving(&mut herringbone(&tables));
        reads_until_silent(false);
        drop(server);
        reads_until_silent(true);
    }
    let _other = serving(herringbone(&tables).env("HERRINGBONE_TOKEN", "another token of tests"));
    let Output { status, stderr, .. } = watching.wait_with_output().unwrap();
    let stderr = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("the job tokens differ"), "{stderr}");
}

#[test]
fn a_table_server_that_is_lost_between_two_questions_is_named() {
    let (_server, address) =
        serving(&mut herringbone(&["serve", "--listen", "127.0.0.1:0", "--json", "--tables"]));
    let once = TcpListener::bind("127.0.0.1:0").unwrap();
    let through = once.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let mut ways = [once.accept().unwrap().0, TcpStream::connect(address).unwrap()];
        drop(once);
        let [asker, server] = &ways;
        let (mut asks, mut asked) = (asker.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut asks, &mut asked));
        let [asker, server] = &mut ways;
        std::io::copy(server, asker)
    });
    let (code, page, stderr) = status(&[&through]);
    assert_eq!((code, &*page), (3, ""), "{stderr}");
    assert!(stderr.contains(&format!("{through}: nobody answers: Connection refused")), "{stderr}");
}
