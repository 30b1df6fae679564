//! How an engine ends, and how a push waits for it.

use herringbone::dependency::{DependencyEngine, DependencyError, OnComplete};
use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

const MOMENT: Duration = Duration::from_millis(20);

/// A function that waits until the sender is used.
fn held(engine: &DependencyEngine) -> mpsc::Sender<()> {
    let (go, gone) = mpsc::channel();
    engine.push(move || gone.recv().map_err(Into::into), &[], &[], i32::MAX).unwrap();
    go
}

#[test]
fn a_close_in_a_function_ends_the_threads_after_it_and_a_later_one_waits_for_them() {
    let engine = Arc::new(DependencyEngine::new(2).unwrap());
    let (own, ran) = (engine.clone(), Arc::new(Mutex::new(false)));
    let (closed, is_closed) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let done = ran.clone();
    let run = move || {
        own.close();
        closed.send(())?;
        gone.recv()?;
        *done.lock().unwrap() = true;
        Ok(())
    };
    engine.push(run, &[], &[], 0).unwrap();
    is_closed.recv().unwrap();
    assert!(matches!(engine.push(|| Ok(()), &[], &[], 0), Err(DependencyError::Closed)));
    assert!(!engine.close_for(MOMENT), "the function runs");
    go.send(()).unwrap();
    engine.close();
    assert!(*ran.lock().unwrap());
}

#[test]
fn nobody_waits_for_an_engine_that_is_left() {
    let engine = DependencyEngine::new(1).unwrap();
    let go = held(&engine);
    assert!(!engine.close_for(MOMENT));
    engine.leave();
    assert!(engine.close_for(Duration::ZERO));
    drop(engine);
    go.send(()).unwrap();
}

#[test]
fn a_wait_for_room_ends_in_time() {
    let engine = DependencyEngine::new(1).unwrap();
    let go = held(&engine);
    assert!(engine.wait_for_room(Duration::ZERO));
    for _ in 1..65_536 {
        engine.push(|| Ok(()), &[], &[], 0).unwrap();
    }
    assert!(!engine.wait_for_room(MOMENT));
    go.send(()).unwrap();
    assert!(engine.wait_for_room(Duration::MAX));
    engine.wait_all().unwrap();
}

#[test]
fn what_nobody_was_told_is_the_earliest_of_it_and_stays() {
    let engine = DependencyEngine::new(1).unwrap();
    let (waited, kept) = (engine.var(), engine.var());
    engine.push(|| Err("told".into()), &[], &[&waited], 0).unwrap();
    engine.push(|| Err("kept".into()), &[], &[&kept], 0).unwrap();
    engine.push(|| Err("homeless".into()), &[], &[], 0).unwrap();
    assert!(engine.wait(&waited).is_err());
    engine.close();
    for _ in 0..2 {
        assert_eq!(engine.unreported().unwrap().error().to_string(), "kept");
    }
    assert!(engine.wait_all().is_err() && engine.unreported().is_none());
}

#[test]
fn a_ticket_releases_variables_of_its_own_engine_alone() {
    let (engine, other) = (DependencyEngine::new(1).unwrap(), DependencyEngine::new(1).unwrap());
    let (tag, foreign) = (engine.var(), other.var());
    let (keep, kept) = mpsc::channel::<OnComplete>();
    engine.push_async(move |done| keep.send(done).unwrap(), &[], &[&tag], 0).unwrap();
    let done = kept.recv().unwrap();
    assert!(matches!(done.release(&foreign), Err(DependencyError::Foreign)));
    let mut waiting = engine.begin_wait(&tag).unwrap();
    assert!(waiting.wait_for(MOMENT).is_none(), "the variable of the same number is still held");
    done.release(&tag).unwrap();
    assert!(matches!(waiting.wait_for(Duration::MAX), Some(Ok(()))));
    done.complete();
}

#[test]
fn each_thread_lives_inside_of_what_is_around_it() {
    let begun = Arc::new(Mutex::new(Vec::new()));
    let seen = begun.clone();
    let engine = DependencyEngine::new_around(3, move |live| {
        seen.lock().unwrap().push("begins");
        live();
        seen.lock().unwrap().push("ends");
    });
    let engine = engine.unwrap();
    for _ in 0..100 {
        engine.push(|| Ok(()), &[], &[], 0).unwrap();
    }
    engine.close();
    let counts =
        ["begins", "ends"].map(|what| begun.lock().unwrap().iter().filter(|at| **at == what).count());
    assert_eq!(counts, [3, 3]);
}

#[test]
fn a_picture_has_no_letters_that_xml_forbids() {
    let engine = DependencyEngine::new(1).unwrap();
    let _tag = engine.named_var("a\0b\u{1f}\u{ffff}");
    assert!(engine.picture().contains("a\u{fffd}b\u{fffd}\u{fffd}"));
}
