//! The engine's records, for a program that has configured Python's `logging`.
//! The engine can log while it holds its own lock, on a thread without the interpreter's lock, while another thread holds that one
//! and waits for the engine's. So the logging thread only puts a record into a queue. A daemon thread takes the interpreter's lock and
//! hands the records to `logging.getLogger("herringbone")`. It ends before the interpreter does. Later records go to standard error,
//! as they do in forked children and if the program has not configured `logging`.

use herringbone::log::{level_set, print_record};
use log::{LevelFilter, Log, Metadata, Record, kv::Key};
use pyo3::{prelude::*, types::PyDict};
use std::{
    collections::VecDeque,
    sync::{
        Condvar, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The name of the logger.
const NAME: &str = "herringbone";
/// The most waiting records. Further ones are dropped, and counted.
const WAITING: usize = 1024;
/// How long the process waits at its end for a handler that hangs.
const LAST: Duration = Duration::from_secs(5);

/// A waiting record.
struct Entry {
    level: log::Level,
    /// In seconds since 1970.
    time: f64,
    message: String,
    who: Option<String>,
    job: Option<String>,
    peer: Option<String>,
}

struct State {
    waiting: VecDeque<Entry>,
    dropped: u64,
    /// Whether the thread is to end, or has ended.
    is_over: bool,
    /// Whether the thread runs.
    runs: bool,
}

/// Hands records to a queue.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    /// The process that has a thread, read without the lock, because a forked child might find the lock held forever.
    process: AtomicU32,
}

static QUEUE: Queue = Queue {
    state: Mutex::new(State { waiting: VecDeque::new(), dropped: 0, is_over: false, runs: false }),
    changed: Condvar::new(),
    process: AtomicU32::new(0),
};

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for records and returns them; `None` at the end.
    fn take(&self) -> Option<(VecDeque<Entry>, u64)> {
        let is_idle = |state: &mut State| state.waiting.is_empty() && state.dropped == 0 && !state.is_over;
        let state = self.changed.wait_while(self.state(), is_idle);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        match state.is_over {
            true => None,
            false => Some(state.take()),
        }
    }

    /// The thread. It holds no other lock when it takes the interpreter's.
    fn run(&self) {
        while let Some((entries, dropped)) = self.take() {
            if Python::try_attach(|py| hand_over(py, entries, dropped)).is_none() {
                break;
            }
        }
        self.state().runs = false;
        self.changed.notify_all();
    }
}

impl State {
    fn take(&mut self) -> (VecDeque<Entry>, u64) {
        (std::mem::take(&mut self.waiting), std::mem::take(&mut self.dropped))
    }
}

impl Log for Queue {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if self.process.load(Ordering::SeqCst) != std::process::id() {
            return print_record(record);
        }
        let field = |key: &str| Some(record.key_values().get(Key::from(key))?.to_string());
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let (level, message) = (record.level(), record.args().to_string());
        let entry = Entry { level, time, message, who: field("who"), job: field("job"), peer: field("peer") };
        let mut state = self.state();
        if state.is_over {
            drop(state);
            return print_record(record);
        }
        match state.waiting.len() < WAITING {
            true => state.waiting.push_back(entry),
            false => state.dropped += 1,
        }
        drop(state);
        self.changed.notify_all();
    }

    fn flush(&self) {}
}

/// Called before a communicator forms. If the program has configured `logging` by now, it gets the engine's records from here on, at
/// the level of `HERRINGBONE_LOG`, or by default at the logger's level.
pub(crate) fn begin(py: Python<'_>) -> PyResult<()> {
    let logger = logger(py)?;
    let process = QUEUE.process.load(Ordering::SeqCst);
    if process == 0 && logger.call_method0("hasHandlers")?.extract::<bool>()? {
        start();
    }
    if QUEUE.process.load(Ordering::SeqCst) != 0 {
        let level = logger.call_method0("getEffectiveLevel")?.extract()?;
        // Loggers are not asked about what is over this, and one that takes nothing refuses it itself.
        log::set_max_level(level_set().unwrap_or(filter_of(level)));
    }
    Ok(())
}

fn start() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        QUEUE.state().runs = true;
        let spawned = thread::Builder::new().name("hb-python-log".to_owned()).spawn(|| QUEUE.run());
        // Without a thread standard error gets the records.
        if spawned.is_ok() && log::set_logger(&QUEUE).is_ok() {
            QUEUE.process.store(std::process::id(), Ordering::SeqCst);
        }
    });
}

/// Called at the end of the process: waiting records are handed over, and the thread ends before the interpreter does.
#[pyfunction]
pub(crate) fn end_log(py: Python<'_>) {
    if QUEUE.process.load(Ordering::SeqCst) != std::process::id() {
        return;
    }
    let (entries, dropped) = {
        let mut state = QUEUE.state();
        state.is_over = true;
        state.take()
    };
    QUEUE.changed.notify_all();
    py.detach(|| {
        let began = Instant::now();
        let mut state = QUEUE.state();
        while state.runs && began.elapsed() < LAST {
            let waited = QUEUE.changed.wait_timeout(state, LAST.saturating_sub(began.elapsed()));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    });
    // What the thread had taken before comes first. A handler that hangs gets no more.
    match QUEUE.state().runs {
        true => entries.iter().for_each(print_entry),
        false => hand_over(py, entries, dropped),
    }
}

/// Prints a record to standard error.
fn print_entry(entry: &Entry) {
    let fields = [("who", &entry.who), ("job", &entry.job), ("peer", &entry.peer)];
    let known = fields.map(|(key, value)| value.as_deref().map(|value| (key, value)));
    let message = format_args!("{}", entry.message);
    print_record(&Record::builder().level(entry.level).target(NAME).args(message).key_values(&known).build());
}

fn logger(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("logging")?.call_method1("getLogger", (NAME,))
}

fn hand_over(py: Python<'_>, entries: VecDeque<Entry>, dropped: u64) {
    let what =
        format!("{dropped} records of the engine were dropped here, because `logging` took them too slowly");
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let lost = Entry { level: log::Level::Warn, time, message: what, who: None, job: None, peer: None };
    let lost = (dropped > 0).then_some(lost);
    let logger = match logger(py) {
        Ok(logger) => logger,
        Err(raised) => return raised.write_unraisable(py, None),
    };
    // A filter of the program's may raise; the other records are handed over.
    for raised in entries.iter().chain(&lost).filter_map(|entry| hand_to(&logger, entry).err()) {
        raised.write_unraisable(py, None);
    }
}

fn hand_to(logger: &Bound<'_, PyAny>, entry: &Entry) -> PyResult<()> {
    let py = logger.py();
    let level = level_of(entry.level);
    // The logger's level is not asked if the environment says how much.
    if level_set().is_none() && !logger.call_method1("isEnabledFor", (level,))?.extract::<bool>()? {
        return Ok(());
    }
    let extra = PyDict::new(py);
    let rank: Option<u32> = entry.who.as_deref().and_then(|who| who.strip_prefix("rank ")?.parse().ok());
    extra.set_item("who", &entry.who)?;
    extra.set_item("rank", rank)?;
    extra.set_item("job", &entry.job)?;
    extra.set_item("peer", &entry.peer)?;
    let none = py.None();
    let (message, nothing) = (&entry.message, ());
    let described = (NAME, level, "herringbone", 0, message, nothing, &none, &none, extra);
    let record = logger.call_method1("makeRecord", described)?;
    record.setattr("created", entry.time)?;
    record.setattr("msecs", entry.time.fract() * 1000.0)?;
    logger.call_method1("handle", (record,)).map(drop)
}

/// Python's number of a level.
fn level_of(level: log::Level) -> u32 {
    match level {
        log::Level::Error => 40,
        log::Level::Warn => 30,
        log::Level::Info => 20,
        log::Level::Debug | log::Level::Trace => 10,
    }
}

fn filter_of(level: i64) -> LevelFilter {
    match level {
        ..=10 => LevelFilter::Debug,
        11..=20 => LevelFilter::Info,
        21..=30 => LevelFilter::Warn,
        _ => LevelFilter::Error,
    }
}
