//! Reads events in Chrome's JSON Array Format, as `herringbone::core::trace` writes them, one by one and in little memory.

mod check;
mod reader;

pub(crate) use check::check;
pub(crate) use reader::EventReader;

use herringbone::core::trace::{Argument, ChromeEvent, MomentScope, TracePhase, TraceRow};
use serde_json::{Map, Value};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Opens a file of events.
///
/// # Errors
/// If it cannot be read, or is not a regular file: the wait for a FIFO might never end, and some files are read twice.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    Ok(herringbone::open_user_file(path)?)
}

/// Whether two paths lead to one file that is there.
pub(crate) fn is_same_file(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    place(one).is_some_and(|found| place(other) == Some(found))
}

/// An event that was read.
#[derive(Clone, Debug)]
pub(crate) struct ReadEvent {
    pub(crate) phase: TracePhase,
    pub(crate) row: TraceRow,
    pub(crate) name: String,
    pub(crate) category: String,
    /// In nanoseconds; metadata has none.
    pub(crate) at: Option<i64>,
    /// In nanoseconds.
    pub(crate) duration: Option<i64>,
    pub(crate) id: Option<u64>,
    pub(crate) scope: MomentScope,
    pub(crate) arguments: Map<String, Value>,
}

impl ReadEvent {
    /// Takes an event from its text.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let event =
            serde_json::from_slice(text).map_err(|error| format!("an event is not valid JSON: {error}"))?;
        Self::of(event)
    }

    fn of(mut event: Value) -> Result<Self, String> {
        let letter = event["ph"].as_str();
        let phase = TracePhase::ALL.into_iter().find(|phase| Some(phase.letter()) == letter);
        let phase = phase.ok_or_else(|| missing(&event, "ph", "a kind of event"))?;
        let number = |field| {
            let number = event[field].as_u64().and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| missing(&event, field, "a number"))
        };
        let row = TraceRow { process: number("pid")?, thread: number("tid")? };
        let at = if phase == TracePhase::Metadata { None } else { Some(time(&event, "ts")?) };
        let duration = if phase == TracePhase::Complete { Some(time(&event, "dur")?) } else { None };
        if duration.is_some_and(|duration| duration < 0) {
            return Err(missing(&event, "dur", "0 or more"));
        }
        let is_arrow = matches!(phase, TracePhase::FlowStart | TracePhase::FlowEnd);
        let id = is_arrow.then(|| identity(&event["id"]).ok_or_else(|| missing(&event, "id", "an identity")));
        let scope = MomentScope::ALL.into_iter().find(|scope| Some(scope.letter()) == event["s"].as_str());
        let text = |field: &str| event[field].as_str().unwrap_or("").to_owned();
        Ok(Self {
            phase,
            row,
            name: text("name"),
            category: text("cat"),
            at,
            duration,
            id: id.transpose()?,
            scope: scope.unwrap_or_default(),
            arguments: match event["args"].take() {
                Value::Object(arguments) => arguments,
                _ => Map::new(),
            },
        })
    }

    /// When it ends.
    pub(crate) fn end(&self) -> Option<i64> {
        Some(self.at?.saturating_add(self.duration.unwrap_or(0)))
    }

    /// A whole number among its arguments.
    pub(crate) fn whole(&self, argument: &str) -> Option<u64> {
        self.arguments.get(argument)?.as_u64()
    }

    /// A text among its arguments.
    pub(crate) fn text(&self, argument: &str) -> Option<&str> {
        self.arguments.get(argument)?.as_str()
    }

    /// Hands it to a writer of events. Arguments that are neither texts nor numbers become their JSON's text.
    pub(crate) fn with_event<R>(&self, f: impl FnOnce(&ChromeEvent<'_>) -> R) -> R {
        let odd: Vec<String> =
            self.arguments.values().filter(|value| is_odd(value)).map(Value::to_string).collect();
        let mut odd = odd.iter();
        let arguments: Vec<(&str, Argument<'_>)> = self
            .arguments
            .iter()
            .map(|(key, value)| {
                let value = match value {
                    Value::String(text) => Argument::Text(text),
                    Value::Number(number) => match number.as_u64() {
                        Some(whole) => Argument::Whole(whole),
                        None => Argument::Real(number.as_f64().unwrap_or(f64::NAN)),
                    },
                    _ => Argument::Text(odd.next().map_or("", |text| text)),
                };
                (key.as_str(), value)
            })
            .collect();
        f(&ChromeEvent {
            phase: self.phase,
            row: self.row,
            name: &self.name,
            category: &self.category,
            at: self.at.map(microseconds),
            duration: self.duration.map(microseconds),
            id: self.id,
            scope: self.scope,
            arguments: &arguments,
        })
    }
}

fn is_odd(value: &Value) -> bool {
    !matches!(value, Value::String(_) | Value::Number(_))
}

/// Nanoseconds as the format has them.
pub(crate) fn microseconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 / 1e3
}

/// The time of a field, in nanoseconds.
///
/// # Errors
/// If it is none, or too large for one.
pub(crate) fn time(event: &Value, field: &str) -> Result<i64, String> {
    let microseconds = event[field].as_f64().filter(|time| (-1e15..1e15).contains(time));
    microseconds.map(|time| (time * 1e3).round() as i64).ok_or_else(|| missing(event, field, "a time"))
}

/// What the two ends of an arrow have in common.
pub(crate) fn identity(id: &Value) -> Option<u64> {
    id.as_u64().or_else(|| u64::from_str_radix(id.as_str()?, 16).ok())
}

/// An event lacks something.
pub(crate) fn missing(event: &Value, field: &str, what: &str) -> String {
    let event: String = event.to_string().chars().take(120).collect();
    format!("field `{field}` is not {what} in {event}")
}
