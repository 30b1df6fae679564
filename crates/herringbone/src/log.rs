//! Logs for people: records with a time, a level, the speaker, and the job's name.
//!
//! The program's own logger gets them, if it has installed one behind the facade of the [`log`] crate. Else they are lines on
//! standard error: text, or a JSON object each. See `docs/decisions/45-logs-by-the-facade.md`.
//!
//! A logger can be called while the engine is locked. If it then calls a communicator, it waits for itself.

mod line;
#[cfg(test)]
mod tests;

pub use line::{LogFormat, ParseLogFormatError};

use ::log::kv::{Error, Key, Source, Value, VisitSource};
use line::{LogLine, TARGET};
use std::{
    fmt,
    sync::{
        OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::SystemTime,
};

/// The variable of the environment that says how much.
pub(crate) const VARIABLE: &str = "HERRINGBONE_LOG";
/// The variable of the environment that says in which form.
pub(crate) const FORMAT_VARIABLE: &str = "HERRINGBONE_LOG_FORMAT";

/// How serious a record is, and how much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
}

impl Level {
    /// The level of a name in `HERRINGBONE_LOG`. Names of levels that other programs have mean the nearest one here.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name.trim().to_ascii_lowercase().as_str() {
            "off" | "none" => Some(Level::Off),
            "error" => Some(Level::Error),
            "warn" | "warning" => Some(Level::Warn),
            "info" => Some(Level::Info),
            "debug" | "trace" => Some(Level::Debug),
            _ => None,
        }
    }

    fn of(filter: ::log::LevelFilter) -> Self {
        match filter {
            ::log::LevelFilter::Off => Level::Off,
            ::log::LevelFilter::Error => Level::Error,
            ::log::LevelFilter::Warn => Level::Warn,
            ::log::LevelFilter::Info => Level::Info,
            ::log::LevelFilter::Debug | ::log::LevelFilter::Trace => Level::Debug,
        }
    }

    fn filter(self) -> ::log::LevelFilter {
        match self {
            Level::Off => ::log::LevelFilter::Off,
            Level::Error => ::log::LevelFilter::Error,
            Level::Warn => ::log::LevelFilter::Warn,
            Level::Info => ::log::LevelFilter::Info,
            Level::Debug => ::log::LevelFilter::Debug,
        }
    }
}

/// What `HERRINGBONE_LOG` says, if it says anything.
static LEVEL: OnceLock<Option<Level>> = OnceLock::new();
/// Whether information is given unless the environment says how much.
static INFORMS: AtomicBool = AtomicBool::new(false);
/// A [`LogFormat`] and 1, once it is known.
static FORMAT: AtomicU8 = AtomicU8::new(0);
/// What the job of this process is called.
static JOB: RwLock<Option<String>> = RwLock::new(None);

fn set_level() -> Option<Level> {
    *LEVEL.get_or_init(|| std::env::var(VARIABLE).ok().and_then(|name| Level::named(&name)))
}

/// How much is said: what the environment says, else what the program's logger takes, else warnings.
fn limit() -> Level {
    let usual = || match Level::of(::log::max_level()) {
        Level::Off if INFORMS.load(Ordering::Relaxed) => Level::Info,
        Level::Off => Level::Warn,
        level => level,
    };
    set_level().unwrap_or_else(usual)
}

fn format() -> LogFormat {
    match FORMAT.load(Ordering::Relaxed) {
        0 => {
            let format = std::env::var(FORMAT_VARIABLE).ok().and_then(|name| name.parse().ok());
            let format = format.unwrap_or_default();
            set_format(format);
            format
        }
        format if format == LogFormat::Json as u8 + 1 => LogFormat::Json,
        _ => LogFormat::Text,
    }
}

/// Sets the form of this process's lines on standard error from now on, whatever `HERRINGBONE_LOG_FORMAT` is.
pub fn set_format(format: LogFormat) {
    FORMAT.store(format as u8 + 1, Ordering::Relaxed);
}

/// The level of `HERRINGBONE_LOG`: how much is handed to a logger. `None` if it is not set: then the logger decides.
pub fn level_set() -> Option<::log::LevelFilter> {
    set_level().map(Level::filter)
}

/// Writes one of this crate's records as it is written if the program has no logger, for loggers that have ended.
pub fn print_record(record: &::log::Record<'_>) {
    let fields = OwnedFields::of(record);
    let message = record.args().to_string();
    let who = fields.who.as_deref().unwrap_or(record.target());
    let message = message.strip_prefix(&format!("{who}: ")).unwrap_or(&message);
    let (job, peer) = (fields.job.as_deref(), fields.peer.as_deref());
    LogLine { time: SystemTime::now(), level: record.level(), who, job, peer, message: &message }
        .write(format());
}

/// Has this process give information as well, unless the environment says how much.
pub(crate) fn inform() {
    INFORMS.store(true, Ordering::Relaxed);
}

/// The name of this process's job from now on: that of the last job that it has come to, if there are several.
pub(crate) fn set_job(name: &str) {
    *JOB.write().unwrap_or_else(PoisonError::into_inner) = Some(name.to_owned());
}

/// A record that is being made.
#[derive(Clone, Copy, Debug)]
#[must_use = "call `say` to log it"]
pub(crate) struct LogRecord<'a> {
    level: Level,
    /// From which level on it is shown where the program has no logger.
    shown_from: Level,
    fields: Fields<'a>,
}

/// What a record has beside its text.
#[derive(Clone, Copy, Debug)]
struct Fields<'a> {
    who: &'a str,
    job: Option<&'a str>,
    peer: Option<&'a str>,
}

impl<'a> LogRecord<'a> {
    /// By a process, or by a part of one: "rank 3", "reducer 10.0.0.1:7070", "settings".
    pub(crate) fn new(level: Level, who: &'a str) -> Self {
        Self { level, shown_from: level, fields: Fields { who, job: None, peer: None } }
    }

    /// The name of the job that it is about. Without one it is the process's.
    pub(crate) fn job(self, name: &'a str) -> Self {
        Self { fields: Fields { job: Some(name), ..self.fields }, ..self }
    }

    /// The process that it is about, which the text names as well.
    pub(crate) fn peer(self, name: &'a str) -> Self {
        Self { fields: Fields { peer: Some(name), ..self.fields }, ..self }
    }

    /// Says it.
    pub(crate) fn say(self, what: impl fmt::Display) {
        let has_logger = ::log::max_level() != ::log::LevelFilter::Off;
        let level = if has_logger { self.level } else { self.shown_from };
        if level == Level::Off || level > limit() {
            return;
        }
        let Some(level) = self.level.filter().to_level() else { return };
        // A reducer serves several jobs: what is about one of them says so.
        let is_of_process = !self.fields.who.starts_with("reducer");
        let job = JOB.read().unwrap_or_else(PoisonError::into_inner).clone().filter(|_| is_of_process);
        let fields = Fields { job: self.fields.job.or(job.as_deref()), ..self.fields };
        let Fields { who, job, peer } = fields;
        if has_logger {
            let mut record = ::log::Record::builder();
            record.level(level).target(TARGET).key_values(&fields);
            ::log::logger().log(&record.args(format_args!("{who}: {what}")).build());
        } else {
            LogLine { time: SystemTime::now(), level, who, job, peer, message: &what }.write(format());
        }
    }
}

impl Source for Fields<'_> {
    fn visit<'kvs>(&'kvs self, visitor: &mut dyn VisitSource<'kvs>) -> Result<(), Error> {
        let Self { who, job, peer } = self;
        let all = [("who", Some(who)), ("job", job.as_ref()), ("peer", peer.as_ref())];
        all.into_iter().try_for_each(|(key, value)| match value {
            Some(value) => visitor.visit_pair(Key::from(key), Value::from(*value)),
            None => Ok(()),
        })
    }
}

/// What a record of this crate has beside its text, for who keeps it.
#[derive(Debug, Default)]
struct OwnedFields {
    who: Option<String>,
    job: Option<String>,
    peer: Option<String>,
}

impl OwnedFields {
    fn of(record: &::log::Record<'_>) -> Self {
        let field = |key: &str| Some(record.key_values().get(Key::from(key))?.to_string());
        Self { who: field("who"), job: field("job"), peer: field("peer") }
    }
}

/// A warning from `who`, such as "rank 0".
pub fn warn(who: &str, what: impl fmt::Display) {
    LogRecord::new(Level::Warn, who).say(what);
}

/// Information from `who`.
pub fn info(who: &str, what: impl fmt::Display) {
    LogRecord::new(Level::Info, who).say(what);
}

/// A record of a rank, which may be a warning, and about another rank.
pub(crate) fn of_rank(rank: u32, warns: bool, peer: Option<u32>, what: impl fmt::Display) {
    let (who, peer) = (format!("rank {rank}"), peer.map(|peer| format!("rank {peer}")));
    let record = LogRecord::new(if warns { Level::Warn } else { Level::Info }, &who);
    peer.as_deref().map_or(record, |peer| record.peer(peer)).say(what);
}

/// Information about a long task that was requested: it is shown at the level of warnings.
pub fn note(who: &str, what: impl fmt::Display) {
    LogRecord { shown_from: Level::Warn, ..LogRecord::new(Level::Info, who) }.say(what);
}
