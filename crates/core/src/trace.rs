//! Traces that Perfetto and chrome://tracing open: a list of events in the JSON Array Format of Chrome's "Trace Event Format".
//!
//! One writer serves all traces. It writes as it goes, so a long trace needs no memory, and a file that ends in the middle,
//! because its process died, is still readable: the format allows that the closing bracket is missing.

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
    /// Those of `out`, as in all methods.
    pub fn new(mut out: W) -> core::result::Result<Self, core::fmt::Error> {
        out.write_str("[")?;
        Ok(Self { out, is_empty: true })
    }

    /// Says what the whole trace is about, in an event that viewers leave out.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn about(&mut self, name: &str, arguments: &[(&str, Argument<'_>)]) -> Result {
        self.event("M", name, TraceRow { process: 0, thread: 0 }, None, None, arguments)
    }

    /// Names a process and puts it at its number's place among the others.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn process(&mut self, process: u32, name: &str) -> Result {
        let row = TraceRow { process, thread: 0 };
        self.event("M", "process_name", row, None, None, &[("name", Argument::Text(name))])?;
        let place = Argument::Whole(u64::from(process));
        self.event("M", "process_sort_index", row, None, None, &[("sort_index", place)])
    }

    /// Names a row.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn thread(&mut self, row: TraceRow, name: &str) -> Result {
        self.event("M", "thread_name", row, None, None, &[("name", Argument::Text(name))])?;
        let place = Argument::Whole(u64::from(row.thread));
        self.event("M", "thread_sort_index", row, None, None, &[("sort_index", place)])
    }

    /// Something that lasted from `start` for `duration`.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn span(
        &mut self,
        row: TraceRow,
        name: &str,
        start: f64,
        duration: f64,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result {
        self.event("X", name, row, Some(start), Some(duration), arguments)
    }

    /// Something that begins; the next [`end`](Self::end) of its row that has no other beginning ends it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn begin(
        &mut self,
        row: TraceRow,
        name: &str,
        at: f64,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result {
        self.event("B", name, row, Some(at), None, arguments)
    }

    /// The end of what began last in a row; its arguments join those of the beginning.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn end(&mut self, row: TraceRow, at: f64, arguments: &[(&str, Argument<'_>)]) -> Result {
        self.event("E", "", row, Some(at), None, arguments)
    }

    /// A moment, drawn across the whole trace.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn moment(&mut self, row: TraceRow, name: &str, at: f64) -> Result {
        self.event("i", name, row, Some(at), None, &[])
    }

    /// Ends the list and returns what was written to.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> core::result::Result<W, core::fmt::Error> {
        self.out.write_str("\n]\n")?;
        Ok(self.out)
    }

    /// What was written to, for example to flush it.
    pub fn out(&mut self) -> &mut W {
        &mut self.out
    }

    fn event(
        &mut self,
        phase: &str,
        name: &str,
        TraceRow { process, thread }: TraceRow,
        at: Option<f64>,
        duration: Option<f64>,
        arguments: &[(&str, Argument<'_>)],
    ) -> Result {
        let comma = if core::mem::take(&mut self.is_empty) { "" } else { "," };
        write!(self.out, "{comma}\n{{\"ph\":\"{phase}\",\"pid\":{process},\"tid\":{thread}")?;
        if !name.is_empty() {
            self.out.write_str(",\"name\":")?;
            text(&mut self.out, name)?;
        }
        if let Some(at) = at {
            write!(self.out, ",\"ts\":{at:.3}")?;
        }
        if let Some(duration) = duration {
            write!(self.out, ",\"dur\":{duration:.3}")?;
        }
        if phase == "i" {
            self.out.write_str(",\"s\":\"g\"")?;
        }
        if !arguments.is_empty() {
            self.out.write_str(",\"args\":{")?;
            for (index, (key, value)) in arguments.iter().enumerate() {
                self.out.write_str(if index == 0 { "" } else { "," })?;
                text(&mut self.out, key)?;
                self.out.write_str(":")?;
                argument(&mut self.out, *value)?;
            }
            self.out.write_str("}")?;
        }
        self.out.write_str("}")
    }
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
/// Those of `out`.
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
        let expected = r#"[
{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"rank 1"}},
{"ph":"M","pid":1,"tid":0,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"link to 0"}},
{"ph":"M","pid":1,"tid":2,"name":"thread_sort_index","args":{"sort_index":2}},
{"ph":"X","pid":1,"tid":2,"name":"send","ts":1.500,"dur":0.250,"args":{"bytes":64}},
{"ph":"B","pid":1,"tid":2,"name":"sum","ts":2.000},
{"ph":"E","pid":1,"tid":2,"ts":3.000,"args":{"load":0.5}},
{"ph":"i","pid":1,"tid":2,"name":"CYCLE_START","ts":4.000,"s":"g"}
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
