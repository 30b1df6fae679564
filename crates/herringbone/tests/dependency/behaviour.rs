//! What the engine promises beside its results.

use herringbone::dependency::{DependencyEngine, DependencyError, Uses};
use std::{
    error::Error,
    sync::{Arc, Barrier, Mutex, mpsc},
    time::Duration,
};

type Anyhow = Result<(), Box<dyn Error + Send + Sync>>;

/// An engine with one thread, which is held until the sender is used.
fn held() -> (DependencyEngine, mpsc::Sender<()>) {
    let engine = DependencyEngine::new(1).unwrap();
    let (go, gone) = mpsc::channel();
    engine.push(move || gone.recv().map_err(Into::into), &[], &[], i32::MAX).unwrap();
    (engine, go)
}

#[test]
fn reads_run_together() {
    let engine = DependencyEngine::new(3).unwrap();
    let tag = engine.var();
    let together = Arc::new(Barrier::new(3));
    for _ in 0..3 {
        let together = together.clone();
        engine
            .push(
                move || {
                    together.wait();
                    Ok(())
                },
                &[&tag],
                &[],
                0,
            )
            .unwrap();
    }
    engine.wait_all().unwrap();
}

#[test]
fn the_highest_priority_begins_first_and_equals_in_order() {
    let (engine, go) = held();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (name, priority) in [("low", -1), ("first", 0), ("second", 0), ("high", 5)] {
        let order = order.clone();
        let run = move || -> Anyhow {
            order.lock().unwrap().push(name);
            Ok(())
        };
        engine.push(run, &[], &[], priority).unwrap();
    }
    go.send(()).unwrap();
    engine.wait_all().unwrap();
    assert_eq!(*order.lock().unwrap(), ["high", "first", "second", "low"]);
}

#[test]
fn panics_and_dropped_tickets_are_failures() {
    let engine = DependencyEngine::new(2).unwrap();
    let (a, b, c) = (engine.var(), engine.var(), engine.var());
    engine.push_as(Uses { name: Some("loud"), mutates: &[&a], ..Uses::default() }, || panic!("no")).unwrap();
    engine.push_async(drop, &[], &[&b], 0).unwrap();
    engine.push_async(|_| panic!("no"), &[], &[&c], 0).unwrap();
    let text = engine.wait(&a).unwrap_err().to_string();
    assert_eq!(text, "operation 0 (loud) of the dependency engine failed: its function panicked: no");
    let text = engine.wait(&b).unwrap_err().to_string();
    assert!(
        text.contains("operation 1 of the dependency engine failed: its function dropped the ticket"),
        "{text}"
    );
    assert!(matches!(engine.wait(&c), Err(DependencyError::Failed(_))));
    engine.wait_all().unwrap();
}

#[test]
fn a_failure_without_a_variable_comes_at_wait_all() {
    let engine = DependencyEngine::new(2).unwrap();
    engine.push(|| Err("one".into()), &[], &[], 0).unwrap();
    {
        let tag = engine.var();
        engine.push(|| Err("two".into()), &[], &[&tag], 0).unwrap();
    }
    assert!(engine.wait_all().unwrap_err().to_string().ends_with("failed: one"));
    engine.wait_all().unwrap();
}

/// A variable that is dropped does not tell again what a wait for another one has told.
#[test]
fn a_failure_that_was_told_does_not_come_again_from_a_variable_that_is_gone() {
    let engine = DependencyEngine::new(2).unwrap();
    let kept = engine.var();
    {
        let gone = engine.var();
        engine.push(|| Err("it".into()), &[], &[&gone], 0).unwrap();
        engine.push(|| Ok(()), &[&gone], &[&kept], 0).unwrap();
    }
    assert!(engine.wait(&kept).is_err());
    engine.wait_all().unwrap();
}

#[test]
fn versions_count_writes_that_end_well() {
    let engine = DependencyEngine::new(2).unwrap();
    let tag = engine.var();
    for step in 0..4 {
        let run = move || if step == 3 { Err("last".into()) } else { Ok(()) };
        engine.push(run, &[], &[&tag], 0).unwrap();
    }
    assert!(engine.wait(&tag).is_err());
    assert_eq!(tag.version(), 3);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let engine = Arc::new(DependencyEngine::new(1).unwrap());
    let foreign = DependencyEngine::new(1).unwrap().var();
    assert!(matches!(engine.push(|| Ok(()), &[&foreign], &[], 0), Err(DependencyError::Foreign)));
    let (own, tag) = (engine.clone(), engine.var());
    engine.push(move || own.wait_all().map_err(Into::into), &[], &[&tag], 0).unwrap();
    let error = engine.wait(&tag).unwrap_err().to_string();
    assert!(error.contains("may not wait for the engine"), "{error}");
    engine.close();
    assert!(matches!(engine.push(|| Ok(()), &[], &[], 0), Err(DependencyError::Closed)));
}

#[test]
fn what_is_ready_runs_before_an_engine_closes_and_what_waits_for_ever_does_not() {
    let engine = DependencyEngine::new(2).unwrap();
    let (tag, count) = (engine.var(), Arc::new(Mutex::new(0)));
    let add = || {
        let count = count.clone();
        move || {
            *count.lock().unwrap() += 1;
            Ok(())
        }
    };
    for _ in 0..100 {
        engine.push(add(), &[], &[&tag], 0).unwrap();
    }
    let (keep, kept) = mpsc::channel();
    engine.push_async(move |done| keep.send(done).unwrap(), &[], &[&tag], 0).unwrap();
    engine.push(add(), &[], &[&tag], 0).unwrap();
    let mut waiting = engine.begin_wait(&tag).unwrap();
    assert!(waiting.wait_for(Duration::from_millis(1)).is_none());
    engine.close();
    assert_eq!(*count.lock().unwrap(), 100);
    assert!(matches!(waiting.wait_for(Duration::MAX), Some(Err(DependencyError::Closed))));
    kept.recv().unwrap().complete();
}

/// A wait that is given up takes nobody's failure.
#[test]
fn a_wait_that_is_given_up_leaves_the_failure() {
    let (engine, go) = held();
    let tag = engine.var();
    engine.push(|| Err("it".into()), &[], &[&tag], 0).unwrap();
    drop(engine.begin_wait(&tag).unwrap());
    go.send(()).unwrap();
    assert!(engine.wait(&tag).is_err());
    engine.wait_all().unwrap();
}

/// A push waits while too many operations are pending, so a million of them never are.
#[test]
fn a_million_operations_take_bounded_memory() {
    let engine = DependencyEngine::new(2).unwrap();
    let tag = engine.var();
    let mut most = 0;
    for step in 0..1_000_000 {
        engine.push(|| Ok(()), &[], &[&tag], 0).unwrap();
        if step % 1000 == 0 {
            most = most.max(engine.pending());
        }
    }
    engine.wait(&tag).unwrap();
    assert!(most <= 65_536, "{most}");
    assert_eq!(tag.version(), 1_000_000);
}

/// Where all that is pending waits for a completion, nobody waits for room: the pusher may be the one who completes.
#[test]
fn pushes_do_not_wait_for_who_may_wait_for_them() {
    let engine = DependencyEngine::new(1).unwrap();
    let tag = engine.var();
    let (keep, kept) = mpsc::channel();
    engine.push_async(move |done| keep.send(done).unwrap(), &[], &[&tag], 0).unwrap();
    let done = kept.recv().unwrap();
    for _ in 0..70_000 {
        engine.push(|| Ok(()), &[&tag], &[], 0).unwrap();
    }
    done.complete();
    engine.wait_all().unwrap();
}

#[test]
fn the_picture_has_a_block_for_each_use() {
    let (engine, go) = held();
    let (a, b) = (engine.named_var("A<data>"), engine.named_var("B"));
    engine
        .push_as(Uses { name: Some("B = A + 1"), reads: &[&a], mutates: &[&b], priority: 0 }, || Ok(()))
        .unwrap();
    engine.push_as(Uses { name: Some("A = 2"), mutates: &[&a], ..Uses::default() }, || Ok(())).unwrap();
    let picture = engine.picture();
    assert_eq!(picture.matches("rx=\"3\" fill=\"#7fbf7b\"").count(), 1, "{picture}");
    assert_eq!(picture.matches("rx=\"3\" fill=\"#ef8a80\"").count(), 2, "{picture}");
    assert!(picture.contains("A&lt;data&gt;") && picture.contains("1 B = A + 1"), "{picture}");
    go.send(()).unwrap();
    engine.wait_all().unwrap();
    assert!(!engine.picture().contains("rx="));
}

#[test]
fn a_trace_has_what_ran() {
    let engine = DependencyEngine::new(2).unwrap();
    engine.push_as(Uses { name: Some("before"), ..Uses::default() }, || Ok(())).unwrap();
    engine.wait_all().unwrap();
    engine.record();
    engine.push_as(Uses { name: Some("add"), ..Uses::default() }, || Ok(())).unwrap();
    engine.push_async_as(Uses { name: Some("sum"), ..Uses::default() }, |done| done.fail("no")).unwrap();
    assert!(engine.wait_all().is_err());
    let trace = engine.trace();
    assert!(!trace.contains("before") && trace.contains("\"name\":\"add\""), "{trace}");
    assert!(
        trace.contains("\"pid\":2,\"tid\":0,\"name\":\"sum\"") && trace.contains("\"failed\""),
        "{trace}"
    );
}
