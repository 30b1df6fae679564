//! The thread of a controller: it sleeps, negotiates with the other ranks, and runs the agreed operations.

use super::{
    NamedFailure,
    autotune::Autotune,
    queue::{self, NamedTask},
    run::BatchRunner,
    shared::SharedState,
    timeline::{Timeline, Tracer},
};
use crate::{
    Collective, Communicator, DType, Error, ErrorKind, ReduceOp, Region, Request,
    core::named::{Coordinator, LIST_BYTES, MalformedList, SHUT_DOWN, encode_answers},
    log, memory,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

/// How often a sleeping thread checks for stalled operations.
const LOOK: Duration = Duration::from_secs(1);
/// How many bytes of rank 0's answers travel with their length.
const HEAD: usize = 4096;
/// The longest answers.
const ANSWER_BYTES: usize = 1 << 30;

/// What the thread has.
pub(super) struct Cycles {
    shared: Arc<SharedState>,
    runner: BatchRunner,
    /// When the last agreement began.
    last: Option<Instant>,
    autotune: Option<Autotune>,
}

impl Cycles {
    pub(super) fn new(shared: Arc<SharedState>, data: Communicator, autotune: Option<Autotune>) -> Self {
        Self { shared, runner: BatchRunner::new(data), last: None, autotune }
    }

    /// Goes on until the ranks shut down, or one of them fails.
    pub(super) fn run(mut self) {
        let (shared, group) = (self.shared.clone(), self.runner.group.clone());
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                self.rest();
                match self.cycle() {
                    Ok(true) => {}
                    Ok(false) => return queue::shut_down(),
                    Err(failure) => return failure,
                }
            }
        }));
        let panicked = "the thread of the controller has panicked; see its output";
        let failure = outcome.unwrap_or_else(|_| NamedFailure::Text(panicked.to_owned()));
        if !matches!(&failure, NamedFailure::Text(text) if text == SHUT_DOWN) {
            // Others that wait for this rank are told so.
            shared.agreement.abort();
            group.abort();
        }
        shared.end(failure);
    }

    /// Returns when it is time for the next agreement: when another rank calls it, or this rank has something to say. It says
    /// so not before a cycle has passed since the last agreement, as more may be submitted meanwhile, unless somebody waits.
    fn rest(&self) {
        loop {
            let queue = self.shared.queue();
            let negotiator = &queue.negotiator;
            let gathers = negotiator.has_news();
            // Where something waits for another rank, it is soon to be seen that this is lost.
            let mut limit = if negotiator.is_waiting() { LOOK / 4 } else { LOOK };
            if gathers {
                let cycle = negotiator.tuning().cycle;
                // Where nothing came of the last one, some ranks were late: they are to be met soon.
                let cycle = if negotiator.is_quiet() { cycle / 5 } else { cycle };
                let end = self.last.and_then(|last| last.checked_add(cycle));
                let left = end.and_then(|end| end.checked_duration_since(Instant::now()));
                match left.filter(|left| !left.is_zero() && !self.shared.is_awaited()) {
                    None => return,
                    Some(left) => limit = left,
                }
            }
            if self.shared.rest(queue, gathers, limit) {
                return;
            }
            let stall = self.shared.queue().negotiator.look(self.shared.began.elapsed());
            stall.into_iter().for_each(|stall| log::warn("rank 0", stall.text));
        }
    }

    /// One agreement and what comes of it. Returns whether there is another one after it.
    fn cycle(&mut self) -> Result<bool, NamedFailure> {
        self.last = Some(Instant::now());
        let shared = self.shared.clone();
        let now = shared.began.elapsed();
        let mut queue = shared.queue();
        queue.cycles += 1;
        let mut bits = queue.negotiator.call(now);
        drop(queue);
        shared.agreement.all_reduce(&mut bits, ReduceOp::BitOr)?;
        let mut queue = shared.queue();
        let lists = queue.negotiator.agreed(&bits).lists;
        let list = queue.negotiator.own_list().to_vec();
        drop(queue);
        let answers = lists.map(|lengths| self.negotiate(list, &lengths)).transpose()?;
        let mut queue = shared.queue();
        let mut decision = queue.negotiator.decide(answers.as_deref()).map_err(broken)?;
        let stall = queue.negotiator.look(now);
        let failed: Vec<String> = decision.failed.iter().map(|(name, _)| name.clone()).collect();
        let batches = queue.take(&mut decision);
        drop(queue);
        stall.into_iter().for_each(|stall| log::warn("rank 0", stall.text));
        self.execute(&batches, &failed)?;
        self.tune(&batches);
        Ok(!decision.shuts_down)
    }

    /// Has the search for better parameters learn of a cycle.
    fn tune(&mut self, batches: &[Vec<NamedTask>]) {
        let Some(autotune) = &mut self.autotune else { return };
        let bytes = batches.iter().flatten().map(|task| task.response.bytes());
        let tuning = autotune.ran(bytes.fold(0, u64::saturating_add), self.shared.began.elapsed());
        if let (Some(tuning), Some(coordinator)) = (tuning, self.shared.queue().negotiator.coordinator()) {
            coordinator.tune(tuning);
        }
    }

    /// Runs batches, and tells those that wait for them.
    fn execute(&mut self, batches: &[Vec<NamedTask>], failed: &[String]) -> Result<(), NamedFailure> {
        let shared = self.shared.clone();
        let mut timeline = shared.timeline();
        if let Some(timeline) = timeline.as_mut() {
            timeline.cycle();
            failed.iter().for_each(|name| timeline.failed(name));
            let ranks = shared.agreement.size();
            batches.iter().flatten().for_each(|task| timeline.agreed(task, ranks));
        }
        let mut tracer = Tracer(timeline.as_mut());
        for (number, batch) in batches.iter().enumerate() {
            tracer.begins(batch);
            let outcome = self.runner.run(batch, &mut tracer);
            tracer.ends(batch);
            match outcome {
                Ok(outcomes) => batch.iter().zip(outcomes).for_each(|(task, own)| task.finish(Ok(own))),
                // On all ranks alike.
                Err(failure) if failure.is_lack_of_memory() => {
                    batch.iter().for_each(|task| task.finish(Err(failure.clone())));
                }
                Err(failure) => {
                    let unfinished = batches[number..].iter().flatten();
                    unfinished.for_each(|task| task.finish(Err(failure.clone())));
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Brings all lists to rank 0, and its answers to all.
    fn negotiate(&self, list: Vec<u8>, lengths: &[usize]) -> Result<Vec<u8>, NamedFailure> {
        let group = &self.runner.group;
        let is_root = group.rank() == 0;
        if lengths.iter().any(|length| *length > 2 * LIST_BYTES) {
            return Err(broken_by("a list is longer than lists are"));
        }
        let total = if is_root { lengths.iter().sum() } else { 0 };
        let mut lists = vec![0u8; total];
        if lengths.iter().any(|length| *length > 0) {
            let counts = if is_root { lengths } else { &[] };
            group.gather_uneven(&list, &mut lists, counts, 0)?;
        }
        let answers = if is_root { self.answer(&lists, lengths)? } else { Vec::new() };
        let mut head = vec![0u8; HEAD];
        if is_root {
            let inline = answers.len().min(HEAD - 8);
            head[..8].copy_from_slice(&(answers.len() as u64).to_le_bytes());
            head[8..8 + inline].copy_from_slice(&answers[..inline]);
        }
        group.broadcast(&mut head, 0)?;
        if is_root && answers.len() <= HEAD - 8 {
            return Ok(answers);
        }
        let length: [u8; 8] = head[..8].try_into().unwrap_or_default();
        let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length <= HEAD - 8 {
            return Ok(head[8..8 + length].to_vec());
        }
        if length > ANSWER_BYTES {
            return Err(broken_by("the answers are longer than answers are"));
        }
        let rest = if is_root { Some(answers) } else { memory::zeros(length) };
        let has_memory = rest.is_some();
        let rest = Region::own(rest.unwrap_or_default());
        let region = if has_memory { rest.region().clone() } else { Region::lacking(length) };
        let all = Collective::Broadcast { root: 0 };
        group.execute(Request::new(all, DType::U8, length, region.clone(), region))?;
        Ok(rest.take())
    }

    /// Rank 0 reads all lists and answers.
    fn answer(&self, lists: &[u8], lengths: &[usize]) -> Result<Vec<u8>, NamedFailure> {
        let mut timeline = self.shared.timeline();
        let mut queue = self.shared.queue();
        let now = self.shared.began.elapsed();
        let Some(coordinator) = queue.negotiator.coordinator() else { return Ok(Vec::new()) };
        let mut rest = lists;
        for (rank, length) in (0..).zip(lengths) {
            let (list, others) = rest.split_at(*length);
            rest = others;
            let ready = coordinator.receive(rank, list, now).map_err(broken)?;
            if let Some(timeline) = timeline.as_mut() {
                ready.iter().for_each(|ready| timeline.ready(ready));
            }
        }
        let answers = encode_answers(&Coordinator::answer(coordinator));
        drop(queue);
        // Where a rank is late or lost, the file says which ones were ready.
        timeline.iter_mut().for_each(Timeline::flush);
        Ok(answers)
    }
}

fn broken(error: MalformedList) -> NamedFailure {
    broken_by(&error.to_string())
}

fn broken_by(problem: &str) -> NamedFailure {
    let from = "another rank's controller".to_owned();
    NamedFailure::Engine(Error::new(ErrorKind::Protocol { from, problem: problem.to_owned() }))
}
