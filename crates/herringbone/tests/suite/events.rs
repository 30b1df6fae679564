//! What a rank remembers of its operations, and what a listener is told.

use crate::world::{Transport, World};
use herringbone::{
    Collective, Communicator, Config, DType, ErrorKind, OperationState, Recent, ReduceOp, Region, Rendezvous,
    Request, Sink, StepKind, TraceEvent,
};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// How many operations are remembered.
const KEPT: usize = 1024;

fn by_hand(size: u32) -> Vec<Communicator> {
    let config = Config::new(0, size, Rendezvous::Tcp(String::new())).manual_progress(true);
    herringbone::local_with(config).unwrap()
}

fn urgent(comm: &Communicator) {
    let buffer = Region::zeroed(8);
    let (collective, dtype, op) = (Collective::AllReduce, DType::I64, ReduceOp::Max);
    let (input, output) = (buffer.clone(), buffer);
    let request = Request::new(collective, dtype, 1, input, output).op(op).priority(3);
    comm.submit(request).unwrap().wait().unwrap();
}

#[test]
fn the_last_operations_are_remembered_in_their_order() {
    let comm = &by_hand(1)[0];
    (0..KEPT + 76).for_each(|_| comm.barrier().unwrap());
    let sequences: Vec<u64> = comm.recent().iter().map(|recent| recent.id.sequence).collect();
    assert_eq!(sequences, (76..KEPT as u64 + 76).collect::<Vec<_>>());
}

/// Blocking ones run straight through; one is submitted, one is urgent, and a group has some of its own.
#[test]
fn every_operation_is_remembered_as_it_was_called() {
    for transport in [Transport::Local, Transport::Tcp] {
        World::new(2, transport).run(|comm| {
            (0..3).for_each(|_| comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap());
            comm.all_reduce_async(vec![1_i64; 300_000], ReduceOp::Average).unwrap().wait().unwrap();
            urgent(comm);
            comm.subgroup("pair", &[0, 1]).unwrap().broadcast(&mut [1_u16; 3], 1).unwrap();
            let recent = comm.recent();
            let calls: Vec<_> =
                recent.iter().map(|at| (at.group.as_str(), at.id.sequence, at.count)).collect();
            let expected = [
                ("world", 0, Some(1)),
                ("world", 1, Some(1)),
                ("world", 2, Some(1)),
                ("world", 3, Some(300_000)),
                ("world", 4, Some(1)),
                ("pair", 0, Some(6)),
            ];
            assert_eq!(calls, expected);
            let what =
                |at: usize| (recent[at].collective, recent[at].dtype, recent[at].op, recent[at].priority);
            assert_eq!(what(2), (Collective::AllReduce, DType::F32, Some(ReduceOp::Sum), 0));
            assert_eq!(what(3), (Collective::AllReduce, DType::I64, Some(ReduceOp::Average), 0));
            assert_eq!(what(4), (Collective::AllReduce, DType::I64, Some(ReduceOp::Max), 3));
            assert_eq!(what(5), (Collective::Broadcast { root: 1 }, DType::U8, None, 0));
            assert_eq!(recent[0].algorithm, "one_shot");
            let ours = (recent[2].moved.sent, recent[2].moved.received);
            assert_eq!((ours, recent[3].moved.sent), ((4, 4), 2_400_000));
            for at in &recent {
                assert_eq!(at.state, OperationState::Done);
                let began = at.times.began.unwrap();
                assert!(at.times.issued >= began && began >= at.times.ended.unwrap(), "{at}");
            }
            let line = recent[2].to_string();
            assert!(
                line.starts_with("world #2 all_reduce sum of 1 f32 by one_shot, priority 0: done;"),
                "{line}"
            );
            assert!(line.ends_with("; 4 B sent, 4 B received"), "{line}");
        });
    }
}

/// Also of straight runs that become ordinary operations because somebody asks.
#[test]
fn what_operations_moved_is_all_that_was_moved() {
    World::new(3, Transport::Local).run(|comm| {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    comm.recent();
                    thread::yield_now();
                }
            });
            for at in 0..300 {
                comm.all_reduce(&mut vec![1_i32; 1 + at % 40], ReduceOp::Sum).unwrap();
            }
            over.store(true, Ordering::Relaxed);
        });
        let (stats, recent) = (comm.stats(), comm.recent());
        let sum = |bytes: fn(&Recent) -> u64| recent.iter().map(bytes).sum::<u64>();
        assert_eq!(sum(|at| at.moved.sent), stats.workers_shm.sent);
        assert_eq!(sum(|at| at.moved.received), stats.workers_shm.received);
        assert!(recent.iter().all(|at| at.state == OperationState::Done));
    });
}

#[test]
fn one_that_waits_for_others_is_running_and_one_that_waits_for_it_is_queued() {
    let ranks = by_hand(2);
    let buffer = Region::zeroed(4);
    let submit = |comm: &Communicator| {
        let (collective, dtype, op) = (Collective::AllReduce, DType::F32, ReduceOp::Sum);
        let (input, output) = (buffer.clone(), buffer.clone());
        comm.submit(Request::new(collective, dtype, 1, input, output).op(op))
    };
    let _pending = [submit(&ranks[0]).unwrap(), submit(&ranks[0]).unwrap()];
    let recent = ranks[0].recent();
    let (states, times): (Vec<_>, Vec<_>) = recent.iter().map(|at| (at.state, at.times)).unzip();
    assert_eq!(states, [OperationState::Running, OperationState::Queued]);
    assert!(times[0].began.is_some() && times[1].began.is_none());
    assert!(times.iter().all(|times| times.ended.is_none()));
    assert!(ranks[1].recent().is_empty());
}

#[test]
fn one_that_failed_says_with_which_error() {
    World::new(2, Transport::Local).run(|comm| {
        let count = 1 + comm.rank() as usize;
        let error = comm.all_reduce(&mut vec![1.0_f32; count], ReduceOp::Sum).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Mismatch { .. }), "{error}");
        comm.barrier().unwrap();
        let states: Vec<_> = comm.recent().iter().map(|at| at.state).collect();
        assert_eq!(states, [OperationState::Failed("Mismatch"), OperationState::Done]);
        assert_eq!(comm.stats().failed, 1);
    });
}

/// Writes down what it is told.
#[derive(Clone, Debug, Default)]
struct Notebook(Arc<Mutex<Vec<Noted>>>);

/// The kind of an event, the operation's sequence, and the number that matters.
type Noted = (&'static str, u64, u64);

impl Sink for Notebook {
    fn event(&mut self, _: Duration, event: &TraceEvent<'_>) {
        let line = match *event {
            TraceEvent::Issued { operation, call, .. } => ("issued", operation.sequence, call.count),
            TraceEvent::Began { operation } => ("began", operation.sequence, 0),
            TraceEvent::Step { operation, step, .. } => ("step", operation.sequence, step.into()),
            TraceEvent::Sent { operation, endpoint, bytes, .. } => {
                assert!(bytes > 0);
                ("sent", operation.sequence, endpoint.number().into())
            }
            TraceEvent::Received { operation, endpoint, bytes, .. } => {
                assert!(bytes > 0);
                ("received", operation.sequence, endpoint.number().into())
            }
            TraceEvent::Waited { operation, endpoints } => (
                "waited",
                operation.sequence,
                endpoints.iter().map(|endpoint| u64::from(endpoint.number())).sum(),
            ),
            TraceEvent::Ended { operation, result } => ("ended", operation.sequence, result.is_ok().into()),
            TraceEvent::Suspected { endpoint, .. } => ("suspected", 0, endpoint.number().into()),
            TraceEvent::Lost { endpoint, .. } => ("lost", 0, endpoint.number().into()),
            TraceEvent::Fenced { generation, .. } => ("fenced", 0, generation.into()),
            _ => ("another", 0, 0),
        };
        self.0.lock().unwrap().push(line);
    }
}

impl Notebook {
    fn on(comm: &Communicator) -> Self {
        let notebook = Self::default();
        comm.listen(Box::new(notebook.clone()));
        notebook
    }

    /// What was told of an operation.
    fn of(&self, sequence: u64) -> Vec<(&'static str, u64)> {
        let lines = self.0.lock().unwrap();
        lines.iter().filter(|line| line.1 == sequence).map(|line| (line.0, line.2)).collect()
    }

    fn has(&self, line: (&'static str, u64, u64)) -> bool {
        self.0.lock().unwrap().contains(&line)
    }
}

/// The first call is an ordinary operation, since it is planned then; the second runs straight through.
#[test]
fn a_listener_hears_each_event_of_an_operation_in_order() {
    World::new(2, Transport::Local).run(|comm| {
        let notebook = Notebook::on(comm);
        let other = u64::from(1 - comm.rank());
        (0..2).for_each(|_| comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap());
        for sequence in 0..2 {
            let lines = notebook.of(sequence);
            let lines: Vec<_> = lines.into_iter().filter(|line| *line != ("waited", other)).collect();
            let (sent, received) = (("sent", other), ("received", other));
            let first = lines.iter().position(|line| *line == sent).unwrap();
            assert_eq!(lines[..2], [("issued", 1), ("began", 0)], "{lines:?}");
            assert_eq!(lines.last(), Some(&("ended", 1)), "{lines:?}");
            let count = |wanted: &str| lines.iter().filter(|line| line.0 == wanted).count();
            assert_eq!((count("sent"), count("received"), count("ended")), (1, 1, 1), "{lines:?}");
            assert!(lines.iter().skip(first).any(|line| *line == ("step", 0)), "{lines:?}");
            assert!(lines.contains(&received), "{lines:?}");
            let steps: Vec<u64> = lines.iter().filter(|line| line.0 == "step").map(|line| line.1).collect();
            assert_eq!(steps, (0..steps.len() as u64).collect::<Vec<_>>(), "{lines:?}");
        }
    });
}

#[test]
fn a_listener_hears_for_whom_an_operation_waits_and_whom_that_makes_suspect() {
    for straight in [false, true] {
        let of_rank_0 = Mutex::new(None::<Notebook>);
        let is_suspected = || {
            let notebook = of_rank_0.lock().unwrap();
            notebook.as_ref().is_some_and(|notebook| notebook.has(("suspected", 0, 1)))
        };
        World::new(2, Transport::Local).run(|comm| {
            comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap();
            let notebook = Notebook::on(comm);
            if comm.rank() == 0 {
                *of_rank_0.lock().unwrap() = Some(notebook.clone());
            }
            // Rank 1 comes once rank 0 has heard that it is late; the operation's timeout bounds that.
            while comm.rank() == 1 && !is_suspected() {
                thread::sleep(Duration::from_millis(5));
            }
            match straight {
                true => comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap(),
                false => drop(comm.all_reduce_async(vec![1.0_f32], ReduceOp::Sum).unwrap().wait().unwrap()),
            }
            if comm.rank() == 0 {
                let waits = notebook.of(1).iter().filter(|line| **line == ("waited", 1)).count();
                assert_eq!(waits, 1, "{notebook:?}");
                assert!(notebook.has(("suspected", 0, 1)), "{notebook:?}");
            }
        });
    }
}

#[test]
fn a_listener_hears_of_a_fence_and_the_failure_that_it_decides() {
    World::new(2, Transport::Local).run(|comm| {
        let notebook = Notebook::on(comm);
        let count = 1 + comm.rank() as usize;
        comm.all_reduce(&mut vec![1.0_f32; count], ReduceOp::Sum).unwrap_err();
        assert!(notebook.has(("ended", 0, 0)) && notebook.has(("fenced", 0, 1)), "{notebook:?}");
    });
}

/// Everything that a listener hears of steps.
#[derive(Clone, Debug, Default)]
struct StepLog(Arc<Mutex<StepsHeard>>);

#[derive(Debug, Default)]
struct StepsHeard {
    /// `collective by algorithm in group`, of each operation.
    called: Vec<String>,
    folded: usize,
    kinds: Vec<StepKind>,
    last: Duration,
}

impl Sink for StepLog {
    fn event(&mut self, now: Duration, event: &TraceEvent<'_>) {
        let mut heard = self.0.lock().unwrap();
        assert!(now >= heard.last, "the clock goes back");
        match *event {
            TraceEvent::Issued { call, group, algorithm, .. } => {
                heard.called.push(format!("{call} by {algorithm} in {group}"));
            }
            TraceEvent::Step { work, began, .. } => {
                assert!(began <= now);
                heard.kinds.push(work.kind);
                heard.folded += if work.kind == StepKind::Fold { work.bytes } else { 0 };
            }
            _ => {}
        }
        heard.last = now;
    }
}

/// Each of two ranks folds half of a large sum, and all of a small one.
#[test]
fn a_listener_hears_what_each_step_did_and_when() {
    for transport in [Transport::Local, Transport::Tcp] {
        World::new(2, transport).run(|comm| {
            let steps = StepLog::default();
            comm.listen(Box::new(steps.clone()));
            comm.all_reduce(&mut vec![1.0_f32; 300_000], ReduceOp::Sum).unwrap();
            let heard = std::mem::take(&mut *steps.0.lock().unwrap());
            assert_eq!(heard.folded, 600_000, "{heard:?}");
            let all = comm.subgroup("all", &[0, 1]).unwrap();
            (0..3).for_each(|_| all.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap());
            let heard = steps.0.lock().unwrap();
            assert_eq!(heard.folded, 3 * 4, "{heard:?}");
            let called = heard.called.last().unwrap();
            assert!(called.starts_with("all_reduce") && called.ends_with("by one_shot in all"), "{called}");
        });
    }
}

#[test]
fn several_listen_and_each_may_be_dismissed() {
    World::new(2, Transport::Local).run(|comm| {
        let sum = || comm.all_reduce(&mut [1.0_f32], ReduceOp::Sum).unwrap();
        let heard =
            |notebook: &Notebook| notebook.0.lock().unwrap().iter().filter(|line| line.0 == "ended").count();
        let [first, second] = [Notebook::default(), Notebook::default()];
        let [one, two] = [&first, &second].map(|notebook| comm.listen(Box::new(notebook.clone())));
        sum();
        assert!(comm.dismiss(one).is_some());
        sum();
        assert!(comm.dismiss(one).is_none());
        assert!(comm.dismiss(two).is_some());
        sum();
        assert_eq!([heard(&first), heard(&second)], [1, 2]);
        let third = Notebook::on(comm);
        sum();
        assert_eq!([heard(&first), heard(&second), heard(&third)], [1, 2, 1]);
    });
}
