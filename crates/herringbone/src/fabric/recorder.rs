//! Writing the flight record of a rank, or of a reducer's job: after a failure, and for ranks when a signal asks for it. Always on a
//! thread of its own.

use crate::{
    core::session::{Role, flight::FlightRecord, handshake::Identity},
    engine::{Engine, flight::flight_record},
    flight::{FlightFiles, SIGNAL_VARIABLE},
    node::Node,
    sys::signal::UserSignal,
};
use std::{
    env,
    sync::{
        Arc, Mutex, Once, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long an answer waits for an engine that another thread has.
pub(crate) const PATIENCE: Duration = Duration::from_millis(400);
/// How often it looks whether the engine is free.
const LOOK: Duration = Duration::from_micros(100);

/// Writes the record of a rank, or of a job that a reducer serves.
#[derive(Debug)]
pub(crate) struct FlightRecorder {
    owner: Identity,
    files: FlightFiles,
    node: OnceLock<Weak<Node>>,
    /// Whether a thread writes because of a failure.
    is_writing: AtomicBool,
    /// Whether something has failed that it may not have seen.
    is_behind: AtomicBool,
}

/// The recorders of this process, for the signal.
static ALL: Mutex<Vec<Weak<FlightRecorder>>> = Mutex::new(Vec::new());

impl FlightRecorder {
    /// Of a rank that is a process of its own, or of a reducer in one of its jobs.
    pub(crate) fn of(owner: Identity) -> Arc<Self> {
        Arc::new(Self {
            owner,
            files: FlightFiles::of(owner),
            node: OnceLock::new(),
            is_writing: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
        })
    }

    /// Writes what this engine has done, and begins to listen for its failures and for the signal if it is a rank's.
    pub(crate) fn attach(self: &Arc<Self>, node: &Arc<Node>) {
        // It is attached once.
        let _attached = self.node.set(Arc::downgrade(node));
        if !self.files.are_wanted() {
            return;
        }
        if self.owner.role != Role::Worker {
            return;
        }
        node.arm();
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|recorder| recorder.strong_count() > 0);
        all.push(Arc::downgrade(self));
        drop(all);
        if env::var(SIGNAL_VARIABLE).is_ok_and(|value| value.trim() == "1") {
            listen_for_the_signal();
        }
    }

    /// Something has failed: the record is written soon.
    pub(crate) fn failed(self: &Arc<Self>) {
        let Some(node) = self.node.get().and_then(Weak::upgrade) else { return };
        if !self.files.are_wanted() {
            return;
        }
        self.is_behind.store(true, Ordering::SeqCst);
        if self.is_writing.swap(true, Ordering::SeqCst) {
            return;
        }
        let recorder = self.clone();
        let write = move || {
            loop {
                while recorder.is_behind.swap(false, Ordering::SeqCst) {
                    if recorder.files.take_one() {
                        recorder.write();
                    }
                }
                recorder.is_writing.store(false, Ordering::SeqCst);
                // Something that failed just now has found the thread writing.
                let is_behind = recorder.is_behind.load(Ordering::SeqCst);
                if !is_behind || recorder.is_writing.swap(true, Ordering::SeqCst) {
                    break;
                }
            }
            node.record_is_written();
        };
        if thread::Builder::new().name("hb-flight".to_owned()).spawn(write).is_err() {
            self.is_writing.store(false, Ordering::SeqCst);
        }
    }

    fn write(&self) {
        let Some(node) = self.node.get().and_then(Weak::upgrade) else { return };
        if !node.is_forked()
            && let Some(record) = flight_record_soon(&node, self.owner)
        {
            self.files.write(&record);
        }
    }
}

/// Has SIGUSR1 write the records of all ranks of this process, unless the program has a handler of its own.
fn listen_for_the_signal() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let signal = match UserSignal::listen() {
            Ok(Some(signal)) => signal,
            Ok(None) => {
                let what = "SIGUSR1 has a handler already, which stays: records are not written on it";
                return crate::log::warn("settings", format_args!("{SIGNAL_VARIABLE}: {what}"));
            }
            Err(error) => return crate::log::warn("settings", format_args!("{SIGNAL_VARIABLE}: {error}")),
        };
        let listen = move || {
            while signal.wait().is_ok() {
                let all: Vec<Arc<FlightRecorder>> = {
                    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
                    all.iter().filter_map(Weak::upgrade).collect()
                };
                all.iter().for_each(|recorder| recorder.write());
            }
        };
        if let Err(error) = thread::Builder::new().name("hb-flight".to_owned()).spawn(listen) {
            crate::log::warn("settings", format_args!("{SIGNAL_VARIABLE}: {error}"));
        }
    });
}

/// The record of an engine; `None` if it is busy all the time.
pub(super) fn flight_record_soon(node: &Node, owner: Identity) -> Option<FlightRecord> {
    soon(node, Instant::now() + PATIENCE, |engine| flight_record(engine, owner))
}

/// What is read of an engine as soon as no other thread has it; `None` if one has it until then.
pub(crate) fn soon<R>(node: &Node, until: Instant, read: impl Fn(&Engine) -> R) -> Option<R> {
    loop {
        let found = node.with_if_free(|engine| read(engine));
        if found.is_some() || Instant::now() >= until {
            return found;
        }
        std::thread::sleep(LOOK);
    }
}
