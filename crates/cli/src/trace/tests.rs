//! Timelines of made-up jobs, and timelines that other parts write.

use crate::{Command, chrome, failure::Failure};
use clap::Parser;
use herringbone::{
    Communicator, DType, NamedController, NamedOptions, NamedSubmission, ReduceOp, Region,
    core::{
        codec::Codec,
        named::{NamedCall, NamedKind, NamedRequest},
        trace::{Argument, ChromeEvent, MomentScope, TracePhase, TraceRow, TraceWriter, timeline},
    },
    dependency::DependencyEngine,
};
use serde_json::Value;
use std::{
    env::temp_dir,
    fs,
    path::{Path, PathBuf},
    sync::mpsc::channel,
    thread,
};

fn run(args: &[&str]) -> Result<String, Failure> {
    let command = Command::parse_from([&["herringbone"], args].concat());
    let mut out = Vec::new();
    command.verb.run(&[], &mut out)?;
    Ok(String::from_utf8(out).unwrap())
}

/// A folder that is gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = temp_dir().join(format!("herringbone-trace-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn merge(&self, more: &[&str]) -> Result<String, Failure> {
        let (folder, output) = (self.0.to_str().unwrap().to_owned(), self.file("job.json"));
        run(&[&["trace", "merge", &folder, "-o", &output], more].concat())
    }

    fn events(&self) -> Vec<Value> {
        serde_json::from_str(&fs::read_to_string(self.file("job.json")).unwrap()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn is_right(path: impl AsRef<Path>) {
    let review = chrome::check(fs::read(path).unwrap().as_slice()).unwrap();
    assert!(review.problems.is_empty() && !review.is_cut, "{review:?}");
}

const ROW: TraceRow = TraceRow { process: 0, thread: 0 };
const MS: u64 = 1_000_000;

/// A process of a made-up job, whose clock is this many nanoseconds ahead of rank 0's.
struct MadeUp {
    trace: TraceWriter<String>,
    number: u32,
    ahead: u64,
    /// Whether its operations fail from here on.
    failing: bool,
}

impl MadeUp {
    fn new(job: &str, role: &str, number: u32, ahead: u64) -> Self {
        let mut trace = TraceWriter::new(String::new()).unwrap();
        let clock = format!("{ahead}");
        trace
            .about(
                timeline::PROCESS,
                &[
                    ("version", Argument::Whole(timeline::VERSION)),
                    ("job", Argument::Text(job)),
                    ("role", Argument::Text(role)),
                    ("number", Argument::Whole(number.into())),
                    ("member", Argument::Whole(number.into())),
                    ("process", Argument::Whole(100 + u64::from(number))),
                    ("host", Argument::Text("h")),
                    ("began", Argument::Whole(ahead + 1000 * MS)),
                    ("clock", Argument::Text(&clock)),
                ],
            )
            .unwrap();
        trace.process(number, &format!("{role} {number}")).unwrap();
        trace.thread(ROW, "operations").unwrap();
        Self { trace, number, ahead, failing: false }
    }

    fn event(&mut self, at: u64, event: ChromeEvent<'_>) {
        let at = (self.ahead + 1000 * MS + at) as f64 / 1e3;
        self.trace.event(&ChromeEvent { at: Some(at), ..event }).unwrap();
    }

    /// An operation from `start` to `end`, which waits until `from`; times count from the job's begin.
    fn operation(&mut self, sequence: u64, [start, from, end]: [u64; 3]) {
        let arguments = [
            ("group", Argument::Text("world")),
            ("group_number", Argument::Whole(0)),
            ("generation", Argument::Whole(0)),
            ("sequence", Argument::Whole(sequence)),
            ("algorithm", Argument::Text("radix")),
            ("bytes", Argument::Whole(1 << 20)),
            ("sent", Argument::Whole(1 << 20)),
            ("failed", Argument::Text("Timeout")),
        ];
        let arguments = if self.failing { &arguments[..] } else { &arguments[..arguments.len() - 1] };
        let span = |name, category, start: u64, end: u64| ChromeEvent {
            name,
            category,
            duration: Some((end - start) as f64 / 1e3),
            ..ChromeEvent::new(TracePhase::Complete, ROW)
        };
        // As the engine does: the whole comes after its parts.
        self.event(start, span("wait for rank 1", timeline::PHASE, start, from));
        self.event(from, span(timeline::FOLD, timeline::PHASE, from, end));
        self.event(start, ChromeEvent { arguments, ..span("all_reduce", timeline::OPERATION, start, end) });
    }

    fn arrow(&mut self, at: u64, id: u64, phase: TracePhase) {
        let arrow = ChromeEvent {
            name: "message",
            category: timeline::MESSAGE,
            id: Some(id),
            ..ChromeEvent::new(phase, ROW)
        };
        self.event(at, arrow);
    }

    fn measured(&mut self, other: &MadeUp, at: u64) {
        self.trace
            .about(
                timeline::CLOCK,
                &[
                    ("member", Argument::Whole(other.number.into())),
                    ("here", Argument::Whole(self.ahead + 1000 * MS + at)),
                    ("there", Argument::Whole(other.ahead + 1000 * MS + at)),
                    ("round_trip", Argument::Whole(20_000)),
                ],
            )
            .unwrap();
    }

    fn save(self, folder: &Folder) {
        let path = folder.file(&format!("rank{}.json", self.number));
        fs::write(path, self.trace.finish().unwrap()).unwrap();
    }
}

/// Three ranks; rank 1 is 40 ms late in each of four operations, on clocks that are seconds apart.
fn job(folder: &Folder) {
    let mut ranks: Vec<MadeUp> = [0, 7_000_000_000, 3_000_000_000]
        .iter()
        .zip(0..)
        .map(|(ahead, rank)| MadeUp::new("a1", "rank", rank, *ahead))
        .collect();
    for sequence in 0..4 {
        let start = 100 * MS * sequence;
        for (rank, late) in [(0, 0), (1, 40 * MS), (2, MS)] {
            ranks[rank].operation(sequence, [start + late, start + 40 * MS, start + 50 * MS]);
        }
        ranks[1].arrow(start + 40 * MS + 1000, sequence, TracePhase::FlowStart);
        ranks[0].arrow(start + 40 * MS + 3000, sequence, TracePhase::FlowEnd);
    }
    // Its other end is nowhere.
    ranks[2].arrow(10 * MS, 99, TracePhase::FlowStart);
    let lost = ChromeEvent {
        name: "rank 9 is lost: it has ended",
        category: timeline::FAULT,
        scope: MomentScope::Process,
        ..ChromeEvent::new(TracePhase::Instant, ROW)
    };
    ranks[2].event(360 * MS, lost);
    let others = ranks.split_off(1);
    others.iter().for_each(|other| ranks[0].measured(other, 5 * MS));
    ranks.into_iter().chain(others).for_each(|rank| rank.save(folder));
}

#[test]
fn a_job_is_merged_and_its_slow_rank_is_named() {
    let folder = Folder::new("job");
    job(&folder);
    let said = folder.merge(&[]).unwrap();
    assert!(said.contains("job a1, 3 ranks, 45 events; clocks agree to 0.010 ms"), "{said}");
    is_right(folder.file("job.json"));
    let events = folder.events();
    let times: Vec<f64> = events.iter().filter_map(|event| event["ts"].as_f64()).collect();
    assert!(times.is_sorted() && times[0] == 0.0 && *times.last().unwrap() <= 360_000.0, "{times:?}");
    let arrow = |phase: &str| {
        let of = |event: &&Value| event["ph"] == phase;
        events.iter().filter(of).map(|event| event["ts"].as_f64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(arrow("s").len(), 4);
    assert!(arrow("s").iter().zip(arrow("f")).all(|(from, to)| (to - from - 2.0).abs() < 1e-6));

    let page = folder.file("page.html");
    let figures = run(&["trace", "report", &folder.file("job.json"), "-o", &page, "--json"]).unwrap();
    let figures: Value = serde_json::from_str(&figures).unwrap();
    let slowest = &figures["slowest"][0];
    assert_eq!((&slowest["rank"], &slowest["last_in"]), (&"rank 1".into(), &4.into()));
    // Rank 0 waits for 40 ms, and rank 2 for 39, four times.
    let close = |value: &Value, expected: f64| (value.as_f64().unwrap() - expected).abs() < 1e-6;
    assert!(close(&slowest["waited_s"], 0.316) && close(&slowest["cost_s"], 0.158), "{slowest}");
    assert!(close(&slowest["worst_s"], 0.0395), "{slowest}");
    let operations = &figures["operations"][0];
    assert_eq!(operations["slowest"], "rank 1");
    assert!(close(&operations["time_s"], 0.010), "{operations}");
    let steps = figures["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 4);
    assert!(
        close(&steps[1]["ranks"][0]["busy_s"], 0.010) && close(&steps[1]["ranks"][0]["waiting_s"], 0.040),
        "{steps:?}"
    );
    assert_eq!(figures["faults"][0]["what"], "rank 9 is lost: it has ended");
    assert_eq!(figures["roofline"]["ranks"], 3);
    let page = fs::read_to_string(page).unwrap();
    for said in [
        "rank 1</b>",
        "158.0 ms",
        "<svg",
        "prefers-color-scheme: dark",
        "width=device-width",
        "rank 9 is lost",
    ] {
        assert!(page.contains(said), "{said}");
    }
    assert!(!page.replace("http-equiv", "").contains("http"), "it needs no network");
}

/// All give up after 400 ms, and rank 2, which has been there before, is the one that was waited for.
#[test]
fn a_rank_that_has_not_called_what_failed_is_named() {
    let folder = Folder::new("absent");
    let mut ranks: Vec<MadeUp> = (0..3).map(|rank| MadeUp::new("a1", "rank", rank, 0)).collect();
    ranks.iter_mut().for_each(|rank| rank.operation(0, [0, MS, 2 * MS]));
    for rank in &mut ranks[..2] {
        rank.failing = true;
        rank.operation(1, [10 * MS, 400 * MS, 410 * MS]);
    }
    ranks.into_iter().for_each(|rank| rank.save(&folder));
    folder.merge(&[]).unwrap();
    let page = folder.file("page.html");
    let figures = run(&["trace", "report", &folder.file("job.json"), "-o", &page, "--json"]).unwrap();
    let figures: Value = serde_json::from_str(&figures).unwrap();
    let slowest = &figures["slowest"][0];
    assert_eq!(slowest["rank"], "rank 2");
    assert!((slowest["waited_s"].as_f64().unwrap() - 0.8).abs() < 1e-6, "{slowest}");
}

#[test]
fn an_event_that_cannot_be_read_is_told_of_and_the_others_are_there() {
    let folder = Folder::new("unreadable");
    job(&folder);
    let whole = folder.merge(&[]).unwrap();
    assert!(whole.contains("45 events"), "{whole}");
    let damaged = fs::read_to_string(folder.file("rank1.json")).unwrap().replacen("\"dur\":", "\"dur\":x", 1);
    fs::write(folder.file("rank1.json"), damaged).unwrap();
    let said = folder.merge(&[]).unwrap();
    assert!(said.contains("44 events"), "{said}");
    assert!(said.contains("rank1.json: 1 unreadable events were skipped, the first: "), "{said}");
}

#[test]
fn broken_files_are_named_and_do_not_stop_the_others() {
    let folder = Folder::new("broken");
    job(&folder);
    let whole = fs::read_to_string(folder.file("rank1.json")).unwrap();
    fs::write(folder.file("rank1.json"), &whole[..whole.len() * 2 / 3]).unwrap();
    let damaged =
        fs::read_to_string(folder.file("rank2.json")).unwrap().replacen("\"ph\":\"s\"", "\"ph\":\"?\"", 1);
    fs::write(folder.file("rank2.json"), damaged).unwrap();
    fs::write(folder.file("other.json"), "{}").unwrap();
    let said = folder.merge(&[]).unwrap();
    for expected in
        ["other.json: is not a list", "rank1.json: its end is missing", "rank2.json: field `ph`", "3 ranks"]
    {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    is_right(folder.file("job.json"));
    // Merging again leaves the result of the first time out.
    assert_eq!(folder.merge(&[]).unwrap(), said);
}

#[test]
fn files_of_two_jobs_are_an_error_that_names_them() {
    let folder = Folder::new("jobs");
    job(&folder);
    MadeUp::new("b2", "reducer", 5, 0).save(&folder);
    let failure = folder.merge(&[]).unwrap_err().to_string();
    assert!(failure.contains("a1 (3 files), b2 (1 files)") && failure.contains("--job"), "{failure}");
    assert!(folder.merge(&["--job", "b2"]).unwrap().contains("1 reducer,"));
    let failure = folder.merge(&["--job", "c3"]).unwrap_err().to_string();
    assert!(failure.contains("no file of job c3"), "{failure}");
    let empty = Folder::new("empty");
    assert!(empty.merge(&[]).unwrap_err().to_string().contains("HERRINGBONE_TIMELINE=DIR"));
}

#[test]
fn no_output_replaces_an_input() {
    let folder = Folder::new("replaced");
    job(&folder);
    let (part, link) = (folder.file("rank1.json"), folder.file("link.json"));
    std::os::unix::fs::symlink(&part, &link).unwrap();
    let before = fs::read_to_string(&part).unwrap();
    for output in [&part, &link, &folder.file("./rank0.json")] {
        let refused = run(&["trace", "merge", folder.0.to_str().unwrap(), "-o", output]).unwrap_err();
        assert!(refused.to_string().contains("would be overwritten"), "{refused}");
    }
    assert_eq!(fs::read_to_string(&part).unwrap(), before);
    fs::remove_file(link).unwrap();
    folder.merge(&[]).unwrap();
    let merged = folder.file("job.json");
    let refused = run(&["trace", "report", &merged, "-o", &merged]).unwrap_err().to_string();
    assert!(refused.contains("the timeline itself"), "{refused}");
    is_right(merged);
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = Folder::new("fifo");
    let fifo = folder.file("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &*fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    for args in [
        &["trace", "report", &*fifo, "--json"][..],
        &["trace", "check", &fifo],
        &["roofline", "--trace", &fifo],
    ] {
        let refused = run(args).unwrap_err().to_string();
        assert!(refused.contains("it is a pipe, and only regular files are read"), "{args:?}: {refused}");
    }
}

#[test]
fn a_clock_that_nobody_has_measured_is_named() {
    let folder = Folder::new("clocks");
    MadeUp::new("a1", "rank", 0, 0).save(&folder);
    MadeUp::new("a1", "rank", 1, 5).save(&folder);
    let said = folder.merge(&[]).unwrap();
    assert!(said.contains("rank1.json: the clock of this process was not measured"), "{said}");
}

#[test]
fn what_simulate_writes_is_right() {
    let folder = Folder::new("simulated");
    let file = folder.file("simulated.json");
    run(&["simulate", "--ranks", "4", "--per-host", "2", "--bytes", "1M", "--trace", &file]).unwrap();
    is_right(&file);
    assert!(run(&["trace", "check", &file]).unwrap().contains("events: right"));
}

#[test]
fn what_the_dependency_engine_writes_is_right() {
    let engine = DependencyEngine::new(2).unwrap();
    engine.record();
    let (read, changed) = (engine.var(), engine.var());
    for index in 0..20 {
        let (reads, mutates): (&[_], &[_]) =
            if index % 3 == 0 { (&[&read], &[&changed]) } else { (&[&read], &[]) };
        engine.push(|| Ok(()), reads, mutates, 0).unwrap();
    }
    // These end on another thread, and overlap.
    let mut ends = Vec::new();
    for _ in 0..3 {
        let (send, receive) = channel();
        engine
            .push_async(
                move |end| {
                    send.send(end).unwrap();
                },
                &[&read],
                &[],
                0,
            )
            .unwrap();
        ends.push(receive.recv().unwrap());
    }
    ends.into_iter().for_each(|end| end.complete());
    engine.wait_all().unwrap();
    let folder = Folder::new("dependency");
    let file = folder.file("dependency.json");
    fs::write(&file, engine.trace()).unwrap();
    is_right(&file);
}

#[test]
fn what_horovods_timeline_has_is_right() {
    let folder = Folder::new("horovod");
    let file = folder.file("horovod.json");
    thread::scope(|scope| {
        for comm in herringbone::local(2).unwrap() {
            let file = Path::new(&file);
            scope.spawn(move || negotiates(&comm, file));
        }
    });
    is_right(&file);
}

/// Sums two tensors by name three times while the timeline is written.
fn negotiates(comm: &Communicator, file: &Path) {
    let controller = NamedController::new(comm, &NamedOptions::default()).unwrap();
    controller.start_timeline(file, true).unwrap();
    for _ in 0..3 {
        let tensors = ["a", "b"].map(|name| {
            let buffer = Region::own(vec![1.0f32; 100]);
            let call = NamedCall {
                kind: NamedKind::AllReduce,
                dtype: DType::F32,
                op: ReduceOp::Sum,
                shape: vec![100],
                root: 0,
                prescale: 1.0,
                postscale: 1.0,
                codec: Codec::Plain,
            };
            let request = NamedRequest { name: name.to_owned(), call, group: None, priority: 0 };
            let (input, output) = (buffer.region().clone(), Some(buffer.region().clone()));
            let submission = NamedSubmission { request, input, output, splits: None, residuals: None };
            (controller.submit(submission).unwrap(), buffer)
        });
        for (work, _buffer) in tensors {
            let _result = work.wait().unwrap();
        }
    }
    controller.stop_timeline();
    controller.shut_down();
}
