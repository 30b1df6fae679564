//! Random programs: what they compute on the engine, and what they compute one step after the other.

use herringbone::dependency::{DependencyEngine, DependencyError, OnComplete, Uses, Variable};
use proptest::{collection::vec, prelude::*};
use std::{
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicU64, Ordering},
        mpsc::{self, Sender},
    },
    thread,
};

const VARIABLES: usize = 6;

/// Steps over some variables.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    variables: usize,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Push(Call),
    Wait(usize),
    WaitAll,
}

#[derive(Clone, Debug, Default)]
struct Call {
    reads: Vec<usize>,
    mutates: Vec<usize>,
    priority: i32,
    fails: bool,
    /// It ends on another thread than it began on.
    is_later: bool,
    /// Then it lets go of the first variable that it mutates before its end.
    releases: bool,
}

/// What a program comes to: the values, and the failed operation that each wait tells of.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) values: Vec<u64>,
    pub(crate) reported: Vec<Option<u64>>,
}

pub(crate) fn any() -> impl Strategy<Value = Program> {
    let variables = || vec(0..VARIABLES, 0..4);
    let flags = (prop::bool::weighted(0.1), prop::bool::weighted(0.3), prop::bool::ANY);
    let call = (variables(), variables(), -2..3, flags).prop_map(|(reads, mutates, priority, flags)| {
        let (fails, is_later, releases) = flags;
        Step::Push(Call { reads, mutates, priority, fails, is_later, releases })
    });
    let step = prop_oneof![12 => call, 2 => (0..VARIABLES).prop_map(Step::Wait), 1 => Just(Step::WaitAll)];
    vec(step, 0..80).prop_map(|steps| Program { variables: VARIABLES, steps })
}

impl Program {
    /// Of steps like `r0 m1 fails`, `w1` and `wait all`.
    pub(crate) fn parse(variables: usize, steps: &[&str]) -> Self {
        let steps = steps.iter().map(|text| {
            if *text == "wait all" {
                return Step::WaitAll;
            }
            let mut call = Call::default();
            for word in text.split(' ') {
                let number = || word[1..].parse().unwrap();
                match &word[..1] {
                    "r" => call.reads.push(number()),
                    "m" => call.mutates.push(number()),
                    "w" => return Step::Wait(number()),
                    _ => call.fails = true,
                }
            }
            Step::Push(call)
        });
        Self { variables, steps: steps.collect() }
    }

    /// One step after the other.
    pub(crate) fn serial(&self) -> Outcome {
        let mut values = vec![0; self.variables];
        let mut spoiled: Vec<Option<u64>> = vec![None; self.variables];
        let (mut homeless, mut reported, mut number) = (None, Vec::new(), 0);
        for step in &self.steps {
            match step {
                Step::Wait(variable) => reported.push(spoiled[*variable].take()),
                Step::WaitAll => {
                    let all = spoiled.iter_mut().chain([&mut homeless]).filter_map(Option::take);
                    reported.push(all.min());
                }
                Step::Push(call) => {
                    let used = call.reads.iter().chain(&call.mutates);
                    let passed_on = used.filter_map(|variable| spoiled[*variable]).min();
                    let mut left = call.mutates.clone();
                    if passed_on.is_none() {
                        let seen = seen(number, call, |variable| values[variable]);
                        let released = call.released();
                        left.retain(|variable| Some(*variable) != released);
                        call.mutates
                            .iter()
                            .filter(|variable| !call.fails || Some(**variable) == released)
                            .for_each(|variable| values[*variable] = made(seen, *variable));
                    }
                    if let Some(failure) = passed_on.or(call.fails.then_some(number)) {
                        left.iter().for_each(|variable| spoiled[*variable] = Some(failure));
                        if left.is_empty() && passed_on.is_none() {
                            homeless = homeless.or(Some(failure));
                        }
                    }
                    number += 1;
                }
            }
        }
        Outcome { values, reported }
    }

    /// On an engine.
    pub(crate) fn run(&self, threads: usize) -> Outcome {
        let engine = DependencyEngine::new(threads).unwrap();
        let (later, ends) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        let completer = thread::spawn(move || ends.iter().for_each(|end| end()));
        let things: Vec<Arc<Thing>> =
            (0..self.variables).map(|_| Arc::new(Thing::new(engine.var()))).collect();
        let (mut reported, mut number) = (Vec::new(), 0);
        for step in &self.steps {
            match step {
                Step::Wait(variable) => reported.push(failed(engine.wait(&things[*variable].tag))),
                Step::WaitAll => reported.push(failed(engine.wait_all())),
                Step::Push(call) => {
                    push(&engine, &things, number, call.clone(), later.clone());
                    number += 1;
                }
            }
        }
        let _reported_already = engine.wait_all();
        drop(later);
        completer.join().unwrap();
        assert_eq!(engine.pending(), 0);
        Outcome { values: things.iter().map(|thing| thing.value.load(Ordering::Relaxed)).collect(), reported }
    }
}

impl Call {
    fn released(&self) -> Option<usize> {
        self.mutates.first().copied().filter(|_| self.is_later && self.releases)
    }
}

fn failed(result: Result<(), DependencyError>) -> Option<u64> {
    match result {
        Ok(()) => None,
        Err(DependencyError::Failed(failure)) => {
            assert_eq!(failure.error().to_string(), format!("step {} fails", failure.operation()));
            Some(failure.operation())
        }
        Err(other) => panic!("{other}"),
    }
}

/// What a variable stands for, and who uses it now: below 0 the writers, above 0 the readers.
struct Thing {
    tag: Variable,
    value: AtomicU64,
    users: AtomicI32,
}

impl Thing {
    fn new(tag: Variable) -> Self {
        Self { tag, value: AtomicU64::new(0), users: AtomicI32::new(0) }
    }
}

fn push(
    engine: &DependencyEngine,
    things: &[Arc<Thing>],
    number: u64,
    call: Call,
    later: Sender<Box<dyn FnOnce() + Send>>,
) {
    let tags = |variables: &[usize]| variables.iter().map(|at| things[*at].tag.clone()).collect::<Vec<_>>();
    let (reads, mutates) = (tags(&call.reads), tags(&call.mutates));
    let (reads, mutates): (Vec<_>, Vec<_>) = (reads.iter().collect(), mutates.iter().collect());
    let uses = Uses { name: None, reads: &reads, mutates: &mutates, priority: call.priority };
    let things = things.to_vec();
    if call.is_later {
        let run = move |done: OnComplete| {
            let seen = enter(&things, number, &call);
            let end = move || {
                if let Some(released) = call.released() {
                    things[released].value.store(made(seen, released), Ordering::Relaxed);
                    leave(&things[released], true);
                    done.release(&things[released].tag).unwrap();
                }
                let error = leave_all(&things, &call, seen, call.released());
                if error { done.fail(format!("step {number} fails")) } else { done.complete() }
            };
            later.send(Box::new(end)).unwrap();
        };
        engine.push_async_as(uses, run).unwrap();
    } else {
        let run = move || {
            let seen = enter(&things, number, &call);
            thread::yield_now();
            if leave_all(&things, &call, seen, None) {
                Err(format!("step {number} fails").into())
            } else {
                Ok(())
            }
        };
        engine.push_as(uses, run).unwrap();
    }
}

/// Takes part in the use of what is declared, and asserts that nobody else does who must not; returns what is seen there.
fn enter(things: &[Arc<Thing>], number: u64, call: &Call) -> u64 {
    for variable in unique(&call.mutates) {
        assert_eq!(things[variable].users.fetch_sub(1, Ordering::SeqCst), 0, "a write is alone");
    }
    for variable in only_read(call) {
        assert!(things[variable].users.fetch_add(1, Ordering::SeqCst) >= 0, "no read is beside a write");
    }
    seen(number, call, |variable| things[variable].value.load(Ordering::Relaxed))
}

fn leave(thing: &Thing, writes: bool) {
    thing.users.fetch_add(if writes { 1 } else { -1 }, Ordering::SeqCst);
}

/// Writes and lets go of all but what was released; returns whether the step fails.
fn leave_all(things: &[Arc<Thing>], call: &Call, seen: u64, released: Option<usize>) -> bool {
    for variable in unique(&call.mutates).into_iter().filter(|variable| Some(*variable) != released) {
        if !call.fails {
            things[variable].value.store(made(seen, variable), Ordering::Relaxed);
        }
        leave(&things[variable], true);
    }
    only_read(call).into_iter().for_each(|variable| leave(&things[variable], false));
    call.fails
}

fn unique(variables: &[usize]) -> Vec<usize> {
    let mut all = variables.to_vec();
    all.sort_unstable();
    all.dedup();
    all
}

fn only_read(call: &Call) -> Vec<usize> {
    unique(&call.reads).into_iter().filter(|variable| !call.mutates.contains(variable)).collect()
}

/// A number that depends on the step and on all values that it uses.
fn seen(number: u64, call: &Call, value: impl Fn(usize) -> u64) -> u64 {
    let used = unique(&[call.reads.clone(), call.mutates.clone()].concat());
    used.into_iter()
        .fold(mixed(number + 1), |all, variable| mixed(all ^ value(variable).rotate_left(variable as u32)))
}

fn made(seen: u64, variable: usize) -> u64 {
    mixed(seen.wrapping_add(variable as u64))
}

/// The finalizer of SplitMix64.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
