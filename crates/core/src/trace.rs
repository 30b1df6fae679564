//! Traces that Perfetto and chrome://tracing open: a list of events in the JSON Array Format of Chrome's "Trace Event Format".
//!
//! One writer serves all traces. It writes as it goes, so a long trace needs no memory. A file that ends in the middle,
//! because its process died, is still readable: the format permits a missing closing bracket.

pub mod timeline;

use core::fmt::{Result, Write};

/// A value among an event's arguments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Argument<'a> {
    /// A text.
    Text(&'a str),
    /// A whole number.
    Whole(u64),
    /// A number; one that is not finite is written as a text, as JSON has no such number.
    Real(f64),
}

/// The row that an event is shown in: a thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceRow {
    /// The process; viewers show its threads together, processes in this order.
    pub process: u32,
    /// The thread within it.
    pub thread: u32,
}

/// The kind of an event, by the format's letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TracePhase {
    /// `M`: a name, a place in the order, or something about the whole trace.
    Metadata,
    /// `X`: a span with its duration.
    Complete,
    /// `B`: a span begins.
    Begin,
    /// `E`: the last span that began in the row ends.
    End,
    /// `i`: a moment.
    Instant,
    /// `s`: an arrow begins, in the span of its row that encloses it.
    FlowStart,
    /// `f`: an arrow ends, in the span of its row that encloses it.
    FlowEnd,
}

impl TracePhase {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Metadata,
        Self::Complete,
        Self::Begin,
        Self::End,
        Self::Instant,
        Self::FlowStart,
        Self::FlowEnd,
    ];

    /// Its letter.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Metadata => "M",
            Self::Complete => "X",
            Self::Begin => "B",
            Self::End => "E",
            Self::Instant => "i",
            Self::FlowStart => "s",
            Self::FlowEnd => "f",
        }
    }
}

/// How far a moment is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MomentScope {
    /// `g`: across the whole trace.
    #[default]
    Trace,
    /// `p`: across its process.
    Process,
    /// `t`: in its row.
    Row,
}

impl MomentScope {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Trace, Self::Process, Self::Row];

    /// Its letter.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Trace => "g",
            Self::Process => "p",
            Self::Row => "t",
        }
    }
}

/// An event with all that it can have. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct ChromeEvent<'a> {
    /// Its kind.
    pub phase: TracePhase,
    /// Its row.
    pub row: TraceRow,
    /// Its name; only an end has none.
    pub name: &'a str,
    /// Its category, or nothing. The two ends of an arrow have the same.
    pub category: &'a str,
    /// When it is, unless it is metadata.
    pub at: Option<f64>,
    /// How long a complete span lasts.
    pub duration: Option<f64>,
    /// The common number of the two ends of an arrow.
    pub id: Option<u64>,
    /// How far a moment is drawn.
    pub scope: MomentScope,
    /// Its arguments.
    pub arguments: &'a [(&'a str, Argument<'a>)],
}

impl ChromeEvent<'_> {
    /// An event that is nothing but that.
    #[must_use]
    pub const fn new(phase: TracePhase, row: TraceRow) -> Self {
        Self {
            phase,
            row,
            name: "",
            category: "",
            at: None,
            duration: None,
            id: None,
            scope: MomentScope::Trace,
            arguments: &[],
        }
    }

    /// Writes it as an object, without separators of a list.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn write(&self, out: &mut impl Write) -> Result {
        let Self { phase, row: TraceRow { process, thread }, .. } = *self;
        write!(out, "{{\"ph\":\"{}\",\"pid\":{process},\"tid\":{thread}", phase.letter())?;
        for (key, value) in [(",\"name\":", self.name), (",\"cat\":", self.category)] {
            if !value.is_empty() {
                out.write_str(key)?;
                text(out, value)?;
            }
        }
        for (key, value) in [(",\"ts\":", self.at), (",\"dur\":", self.duration)] {
            if let Some(value) = value {
                out.write_str(key)?;
                time(out, value)?;
            }
        }
        if let Some(id) = self.id {
            // A text, because viewers read numbers as 64-bit floats.
            write!(out, ",\"id\":\"{id:016x}\"")?;
        }
        match phase {
            TracePhase::Instant => write!(out, ",\"s\":\"{}\"", self.scope.letter())?,
            // The arrow binds to the span that encloses its end, not to the next one that begins.
            TracePhase::FlowEnd => out.write_str(",\"bp\":\"e\"")?,
            _ => {}
        }
        if !self.arguments.is_empty() {
            out.write_str(",\"args\":{")?;
            for (index, (key, value)) in self.arguments.iter().enumerate() {
                out.write_str(if index == 0 { "" } else { "," })?;
                text(out, key)?;
                out.write_str(":")?;
                argument(out, *value)?;
            }
            out.write_str("}")?;
        }
        out.write_str("}")
    }
}

/// Writes events to `out`. All times are in microseconds since any moment that is the same for all events.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    is_empty: bool,
}

impl<W: Write> TraceWriter<W> {
    /// Begins the list.
    ///
    /// # Errors
    /// An error of `out`, as in all methods.
    pub fn new(mut out: W) -> core::result::Result<Self, core::fmt::Error> {
        out.write_str("[")?;
        Ok(Self { out, is_empty: true })
    }

    /// Describes the whole trace, in an event that viewers leave out.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn about(&mut self, name: &str, arguments: &[(&str, Argument<'_>)]) -> Result {
        self.metadata(TraceRow { process: 0, thread: 0 }, name, arguments)
    }

    /// Says something about a row or its process that is no event.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn metadata(&mut self, row: TraceRow, name: &str, arguments: &[(&str, Argument<'_>)]) -> Result {
        self.event(&ChromeEvent { name, arguments, ..ChromeEvent::new(TracePhase::Metadata, row) })
    }

    /// Names a process and puts it at its number's place among the others.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn process(&mut self, process: u32, name: &str) -> Result {
        let row = TraceRow { process, thread: 0 };
        self.metadata(row, "process_name", &[("name", Argument::Text(name))])?;
        self.metadata(row, "process_sort_index", &[("sort_index", Argument::Whole(u64::from(process)))])
    }

    /// Names a row.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn thread(&mut self, row: TraceRow, name: &str) -> Result {
        self.metadata(row, "thread_name", &[("name", Argument::Text(name))])?;
        self.metadata(row, "thread_sort_index", &[("sort_index", Argument::Whole(u64::from(row.thread)))])
    }

    /// Something that lasted from `start` for `duration`.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn span(
        &mut self,
        row: TraceRow,
        name: &str,
        start: f64,
        duration: f64,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result {
        let event = ChromeEvent::new(TracePhase::Complete, row);
        self.event(&ChromeEvent { name, at: Some(start), duration: Some(duration), arguments, ..event })
    }

    /// Something that begins; the next [`end`](Self::end) of its row that has no other beginning ends it.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn begin(
        &mut self,
        row: TraceRow,
        name: &str,
        at: f64,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result {
        let event = ChromeEvent::new(TracePhase::Begin, row);
        self.event(&ChromeEvent { name, at: Some(at), arguments, ..event })
    }

    /// Ends the span that began last in a row. Its arguments join the arguments of the beginning.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn end(&mut self, row: TraceRow, at: f64, arguments: &[(&str, Argument<'_>)]) -> Result {
        self.event(&ChromeEvent { at: Some(at), arguments, ..ChromeEvent::new(TracePhase::End, row) })
    }

    /// A moment, drawn across the whole trace.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn moment(&mut self, row: TraceRow, name: &str, at: f64) -> Result {
        self.event(&ChromeEvent { name, at: Some(at), ..ChromeEvent::new(TracePhase::Instant, row) })
    }

    /// Ends the list and returns the writer.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn finish(mut self) -> core::result::Result<W, core::fmt::Error> {
        self.out.write_str("\n]\n")?;
        Ok(self.out)
    }

    /// An event that was [written](ChromeEvent::write) before.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn written(&mut self, event: &str) -> Result {
        self.separate()?;
        self.out.write_str(event)
    }

    /// The writer, for example to flush it.
    pub fn out(&mut self) -> &mut W {
        &mut self.out
    }

    /// Any event, in a line of its own.
    ///
    /// # Errors
    /// An error of `out`.
    pub fn event(&mut self, event: &ChromeEvent<'_>) -> Result {
        self.separate()?;
        event.write(&mut self.out)
    }

    fn separate(&mut self) -> Result {
        self.out.write_str(if core::mem::take(&mut self.is_empty) { "\n" } else { ",\n" })
    }
}

/// Microseconds to three places. Whole numbers are written faster than floats, and a trace has many times.
fn time(out: &mut impl Write, microseconds: f64) -> Result {
    let scaled = microseconds * 1e3;
    if !(scaled.is_finite() && (-9e15..9e15).contains(&scaled)) {
        return write!(out, "{microseconds:.3}");
    }
    let half = if scaled < 0.0 { -0.5 } else { 0.5 };
    let nanoseconds = (scaled + half) as i64;
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let nanoseconds = nanoseconds.unsigned_abs();
    write!(out, "{sign}{}.{:03}", nanoseconds / 1000, nanoseconds % 1000)
}

fn argument(out: &mut impl Write, value: Argument<'_>) -> Result {
    match value {
        Argument::Text(value) => text(out, value),
        Argument::Whole(value) => write!(out, "{value}"),
        Argument::Real(value) if value.is_finite() => write!(out, "{value}"),
        Argument::Real(value) => write!(out, "\"{value}\""),
    }
}

/// Writes a text as JSON does (RFC 8259, section 7).
///
/// # Errors
/// An error of `out`.
pub fn text(out: &mut impl Write, value: &str) -> Result {
    out.write_char('"')?;
    for character in value.chars() {
        match character {
            '"' | '\\' => write!(out, "\\{character}")?,
            control if control < ' ' => write!(out, "\\u{:04x}", u32::from(control))?,
            other => out.write_char(other)?,
        }
    }
    out.write_char('"')
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;

    const ROW: TraceRow = TraceRow { process: 1, thread: 2 };

    #[test]
    fn events_are_a_list_of_objects() {
        let mut trace = TraceWriter::new(String::new()).unwrap();
        trace.process(1, "rank 1").unwrap();
        trace.thread(ROW, "link to 0").unwrap();
        trace.span(ROW, "send", 1.5, 0.25, &[("bytes", Argument::Whole(64))]).unwrap();
        trace.begin(ROW, "sum", 2.0, &[]).unwrap();
        trace.end(ROW, 3.0, &[("load", Argument::Real(0.5))]).unwrap();
        trace.moment(ROW, "CYCLE_START", 4.0).unwrap();
        let arrow = |phase, at| ChromeEvent {
            name: "message",
            category: "flow",
            at: Some(at),
            id: Some(0xab),
            ..ChromeEvent::new(phase, ROW)
        };
        trace.event(&arrow(TracePhase::FlowStart, 4.5)).unwrap();
        trace.event(&arrow(TracePhase::FlowEnd, 5.0)).unwrap();
        let lost = ChromeEvent { name: "lost", at: Some(-6.0), ..ChromeEvent::new(TracePhase::Instant, ROW) };
        trace.event(&ChromeEvent { scope: MomentScope::Process, ..lost }).unwrap();
        let expected = r#"[
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"rank 1"}},
{"ph":"M","pid":1,"tid":0,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"link to 0"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},
{"ph":"X","pid":1,"tid":2,"name":"send","ts":1.500,"dur":0.250,"args":{"bytes":64}},
{"ph":"B","pid":1,"tid":2,"name":"sum","ts":2.000},
{"ph":"E","pid":1,"tid":2,"ts":3.000,"args":{"load":0.5}},
{"ph":"i","pid":1,"tid":2,"name":"CYCLE_START","ts":4.000,"s":"g"},
{"ph":"s","pid":1,"tid":2,"name":"message","cat":"flow","ts":4.500,"id":"00000000000000ab"},
{"ph":"f","pid":1,"tid":2,"name":"message","cat":"flow","ts":5.000,"id":"00000000000000ab","bp":"e"},
{"ph":"i","pid":1,"tid":2,"name":"lost","ts":-6.000,"s":"p"}
]
"#;
        assert_eq!(trace.finish().unwrap(), expected);
    }

    #[test]
    fn an_empty_trace_is_an_empty_list() {
        assert_eq!(TraceWriter::new(String::new()).unwrap().finish().unwrap(), "[\n]\n");
    }

    #[test]
    fn names_are_quoted_and_numbers_that_json_lacks_are_texts() {
        let mut trace = TraceWriter::new(String::new()).unwrap();
        let arguments = [("\u{1}", Argument::Text("a\"b\\c\n")), ("x", Argument::Real(f64::INFINITY))];
        trace.span(ROW, "\"", 0.0, 0.0, &arguments).unwrap();
        let written = trace.finish().unwrap();
        let event = r#""name":"\"","ts":0.000,"dur":0.000,"args":{"\u0001":"a\"b\\c\u000a","x":"inf"}}"#;
        assert!(written.contains(event), "{written}");
    }
}
