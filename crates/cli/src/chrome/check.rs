//! Checks that Perfetto, speedscope and chrome://tracing show a list of events correctly.
//!
//! Viewers silently drop wrong events or draw them elsewhere. The rules come from Google's "Trace Event Format":
//! <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>.

use super::{EventReader, identity, missing, time};
use herringbone::core::trace::{MomentScope, TracePhase, timeline};
use serde_json::Value;
use std::{collections::BTreeMap, io::BufRead};

/// This many problems are kept; the others are only counted.
const KEPT: usize = 100;
/// Times are rounded to a nanosecond: spans that end with another one might seem to end after it. In nanoseconds.
const ROUNDED: i64 = 2;

/// The result for a list of events.
#[derive(Debug, Default)]
pub(crate) struct TraceReview {
    /// How many events there are.
    pub(crate) events: u64,
    /// Whether the end of the list is missing.
    pub(crate) is_cut: bool,
    /// The first problems.
    pub(crate) problems: Vec<String>,
    /// The number of further problems.
    pub(crate) more: u64,
}

/// A process and a thread of it.
type Row = (u64, u64);

#[derive(Debug, Default)]
struct Checker {
    review: TraceReview,
    rows: BTreeMap<Row, CheckedRow>,
    /// Whether each process that was seen has a name.
    processes: BTreeMap<u64, bool>,
    /// The last process that was named.
    last_named: Option<u64>,
    arrows: BTreeMap<Arrow, ArrowEnds>,
    /// It is the file of one of several processes: the other ends of its arrows are elsewhere.
    is_part: bool,
    is_job: bool,
    /// By how much clocks of processes can differ.
    error: i64,
}

/// What an arrow's ends have in common: category, name and identity.
type Arrow = (String, String, u64);

#[derive(Debug, Default)]
struct ArrowEnds {
    start: Option<i64>,
    end: Option<i64>,
}

#[derive(Debug, Default)]
struct CheckedRow {
    is_named: bool,
    spans: Vec<CheckedSpan>,
    /// What has begun and not ended, outermost first.
    open: Vec<(i64, String)>,
    /// The ends of arrows.
    arrows: Vec<i64>,
}

#[derive(Clone, Copy, Debug)]
struct CheckedSpan {
    start: i64,
    end: i64,
    /// The number of its event.
    event: u64,
}

/// Checks all events of a list.
///
/// # Errors
/// If it is no list, or cannot be read.
pub(crate) fn check(input: impl BufRead) -> Result<TraceReview, String> {
    let mut reader = EventReader::new(input);
    let mut checker = Checker::default();
    while let Some(text) = reader.next()? {
        match serde_json::from_slice(text) {
            Ok(event) => {
                if let Err(problem) = checker.event(&event) {
                    checker.problem(problem);
                }
            }
            Err(error) => checker.problem(format!("not valid JSON: {error}")),
        }
        checker.review.events += 1;
    }
    checker.review.is_cut = reader.is_cut();
    checker.finish();
    Ok(checker.review)
}

impl Checker {
    fn problem(&mut self, problem: String) {
        let at = self.review.events;
        self.say(format!("event {at}: {problem}"));
    }

    fn say(&mut self, problem: String) {
        match self.review.problems.len() < KEPT {
            true => self.review.problems.push(problem),
            false => self.review.more += 1,
        }
    }

    fn event(&mut self, event: &Value) -> Result<(), String> {
        let letter = event["ph"].as_str();
        let phase = TracePhase::ALL.into_iter().find(|phase| Some(phase.letter()) == letter);
        let phase = phase.ok_or_else(|| missing(event, "ph", "a known kind of event"))?;
        let number = |field: &str| event[field].as_u64().ok_or_else(|| missing(event, field, "a number"));
        let row = (number("pid")?, number("tid")?);
        let name = event["name"].as_str().unwrap_or("");
        if name.is_empty() && phase != TracePhase::End {
            return Err(missing(event, "name", "a name"));
        }
        if phase == TracePhase::Metadata {
            return self.metadata(row, name, event);
        }
        let at = time(event, "ts")?;
        self.processes.entry(row.0).or_default();
        let number = self.review.events;
        let place = self.rows.entry(row).or_default();
        match phase {
            TracePhase::Complete => {
                let duration = time(event, "dur")?;
                if duration < 0 {
                    return Err(missing(event, "dur", "0 or more"));
                }
                place.spans.push(CheckedSpan { start: at, end: at + duration, event: number });
            }
            TracePhase::Begin => place.open.push((at, name.to_owned())),
            TracePhase::End => {
                let begun = place.open.pop();
                let (start, name) = begun.ok_or_else(|| missing(event, "ph", "the end of an open span"))?;
                if at < start {
                    return Err(format!("`{name}` ends {} ns before its start", start - at));
                }
                place.spans.push(CheckedSpan { start, end: at, event: number });
            }
            TracePhase::Instant => {
                let scope = event["s"].as_str();
                let scope = MomentScope::ALL.into_iter().find(|known| Some(known.letter()) == scope);
                if scope.ok_or_else(|| missing(event, "s", "a scope"))? == MomentScope::Trace {
                    // It is drawn across all rows, so its own needs no name.
                    place.is_named = true;
                    self.processes.insert(row.0, true);
                }
            }
            TracePhase::FlowStart | TracePhase::FlowEnd => {
                place.arrows.push(at);
                self.arrow(phase, at, name, event)?;
            }
            TracePhase::Metadata => {}
        }
        Ok(())
    }

    fn metadata(&mut self, row: Row, name: &str, event: &Value) -> Result<(), String> {
        let arguments = &event["args"];
        match name {
            "process_name" => {
                let _name =
                    arguments["name"].as_str().ok_or_else(|| missing(event, "args.name", "a name"))?;
                if self.processes.insert(row.0, true).is_some() {
                    return Err(format!("process {} gets its name after its first event, or twice", row.0));
                }
                if self.last_named.replace(row.0).is_some_and(|last| last > row.0) {
                    return Err(format!(
                        "process {} gets its name after a process with a higher number",
                        row.0
                    ));
                }
            }
            "thread_name" => {
                let _name =
                    arguments["name"].as_str().ok_or_else(|| missing(event, "args.name", "a name"))?;
                self.processes.entry(row.0).or_default();
                let fresh = CheckedRow { is_named: true, ..CheckedRow::default() };
                if self.rows.insert(row, fresh).is_some() {
                    return Err(format!("row {row:?} gets its name after its first event, or twice"));
                }
            }
            "process_sort_index" | "thread_sort_index" => {
                let number = if name == "process_sort_index" { row.0 } else { row.1 };
                if arguments["sort_index"].as_u64() != Some(number) {
                    return Err(missing(event, "args.sort_index", "the number of its process or thread"));
                }
            }
            timeline::PROCESS => self.is_part = !self.is_job,
            timeline::JOB => {
                self.is_job = true;
                self.error = arguments["error_ns"].as_i64().unwrap_or(0);
            }
            _ => {}
        }
        Ok(())
    }

    fn arrow(&mut self, phase: TracePhase, at: i64, name: &str, event: &Value) -> Result<(), String> {
        let id = identity(&event["id"]).ok_or_else(|| missing(event, "id", "an identity"))?;
        if phase == TracePhase::FlowEnd && event["bp"] != "e" {
            return Err(missing(event, "bp", "`e`: the arrow leads to the span that begins next"));
        }
        let category = event["cat"].as_str().ok_or_else(|| missing(event, "cat", "a category"))?;
        let ends = self.arrows.entry((category.to_owned(), name.to_owned(), id)).or_default();
        let end = if phase == TracePhase::FlowStart { &mut ends.start } else { &mut ends.end };
        match end.replace(at) {
            Some(_) => Err(missing(event, "id", "of this arrow alone")),
            None => Ok(()),
        }
    }

    fn finish(&mut self) {
        let unnamed: Vec<u64> =
            self.processes.iter().filter(|(_, named)| !**named).map(|(process, _)| *process).collect();
        for process in unnamed {
            self.say(format!("process {process} has no name"));
        }
        for ((process, thread), row) in std::mem::take(&mut self.rows) {
            let place = format!("process {process}, row {thread}");
            // Where a process has one row, its own name is enough.
            if !row.is_named && thread != 0 {
                self.say(format!("{place}: has no name"));
            }
            let is_cut = self.review.is_cut;
            for (_, name) in row.open.iter().filter(|_| !is_cut) {
                self.say(format!("{place}: `{name}` starts and does not end"));
            }
            for problem in row.problems(is_cut) {
                self.say(format!("{place}: {problem}"));
            }
        }
        for ((_, name, id), ends) in std::mem::take(&mut self.arrows) {
            match (ends.start, ends.end) {
                (Some(start), Some(end)) if end < start - self.error - ROUNDED => {
                    self.say(format!(
                        "arrow `{name}` {id:016x} ends {} ns before its start, but clocks differ by at most {} ns",
                        start - end,
                        self.error
                    ));
                }
                (Some(_), Some(_)) => {}
                (one, _) if !self.is_part => {
                    let missing = if one.is_some() { "end" } else { "beginning" };
                    self.say(format!("arrow `{name}` {id:016x} has no {missing}"));
                }
                _ => {}
            }
        }
    }
}

impl CheckedRow {
    /// Spans that overlap without one in the other, and arrows that begin or end in none.
    fn problems(mut self, is_cut: bool) -> Vec<String> {
        let mut problems = Vec::new();
        self.spans.sort_unstable_by_key(|span| (span.start, std::cmp::Reverse(span.end), span.event));
        self.arrows.sort_unstable();
        let mut arrows = self.arrows.iter().copied().peekable();
        let mut outer: Vec<CheckedSpan> = Vec::new();
        // Until when the row is covered since the span that covers it began.
        let mut covered = i64::MIN;
        for span in &self.spans {
            while let Some(at) = arrows.next_if(|at| *at < span.start - ROUNDED) {
                if at > covered.saturating_add(ROUNDED) && !is_cut {
                    problems.push(format!("the end of an arrow at {at} ns is outside all spans"));
                }
            }
            covered = covered.max(span.end);
            while outer.last().is_some_and(|last| last.end <= span.start + ROUNDED) {
                outer.pop();
            }
            if let Some(last) = outer.last()
                && span.end > last.end + ROUNDED
            {
                problems.push(format!(
                    "event {} overlaps event {} for {} ns, and neither contains the other",
                    span.event,
                    last.event,
                    last.end - span.start
                ));
                continue;
            }
            outer.push(*span);
        }
        for at in arrows.filter(|at| *at > covered.saturating_add(ROUNDED) && !is_cut) {
            problems.push(format!("the end of an arrow at {at} ns is outside all spans"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trace that is right: two processes, spans one in the other, an arrow, a moment.
    const RIGHT: [&str; 14] = [
        r#"{"ph":"M","pid":0,"tid":0,"name":"about this","args":{}}"#,
        r#"{"ph":"M","pid":0,"tid":0,"name":"process_name","args":{"name":"rank 0"}}"#,
        r#"{"ph":"M","pid":0,"tid":0,"name":"process_sort_index","args":{"sort_index":0}}"#,
        r#"{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"operations"}}"#,
        r#"{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"rank 1"}}"#,
        r#"{"ph":"X","pid":0,"tid":1,"name":"sum","ts":1.000,"dur":9.000}"#,
        r#"{"ph":"X","pid":0,"tid":1,"name":"move","ts":5.000,"dur":5.001}"#,
        r#"{"ph":"B","pid":0,"tid":1,"name":"fold","ts":6.000}"#,
        r#"{"ph":"E","pid":0,"tid":1,"ts":7.000}"#,
        r#"{"ph":"X","pid":0,"tid":1,"name":"sum","ts":10.000,"dur":1.000}"#,
        r#"{"ph":"s","pid":0,"tid":1,"name":"message","cat":"message","id":"1","ts":5.5}"#,
        r#"{"ph":"f","pid":1,"tid":0,"name":"message","cat":"message","id":"1","ts":8,"bp":"e"}"#,
        r#"{"ph":"X","pid":1,"tid":0,"name":"sum","ts":7,"dur":2}"#,
        r#"{"ph":"i","pid":1,"tid":0,"name":"lost","ts":9,"s":"p"}"#,
    ];

    fn checked(events: &[&str]) -> TraceReview {
        check(format!("[\n{}\n]", events.join(",\n")).as_bytes()).unwrap()
    }

    #[test]
    fn a_right_trace_has_no_problem() {
        let review = checked(&RIGHT);
        assert!(review.problems.is_empty() && !review.is_cut, "{review:?}");
        assert_eq!(review.events, 14);
    }

    /// Replaces an event by another one, or adds it at the end.
    fn planted(at: usize, event: &'static str) -> Vec<&'static str> {
        let mut events = RIGHT.to_vec();
        match events.get_mut(at) {
            Some(place) => *place = event,
            None => events.push(event),
        }
        events
    }

    /// Where an event is planted, the event, and what has to be said of it.
    type Planted = (usize, &'static str, &'static str);
    /// Behind all others.
    const END: usize = RIGHT.len();

    const NAMES_AND_FIELDS: [Planted; 15] = [
        (1, r#"{"ph":"M","pid":0,"tid":0,"name":"x"}"#, "process 0 has no name"),
        (3, r#"{"ph":"M","pid":0,"tid":1,"name":"x"}"#, "row 1: has no name"),
        (
            1,
            r#"{"ph":"M","pid":2,"tid":0,"name":"process_name","args":{"name":"a"}}"#,
            "after a process with a higher number",
        ),
        (1, r#"{"ph":"M","pid":0,"tid":0,"name":"process_name"}"#, "`args.name` is not a name"),
        (
            2,
            r#"{"ph":"M","pid":0,"tid":0,"name":"process_sort_index","args":{"sort_index":1}}"#,
            "`args.sort_index`",
        ),
        (END, r#"{"ph":"M","pid":1,"tid":0,"name":"process_name","args":{"name":"b"}}"#, "or twice"),
        (END, r#"{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"b"}}"#, "or twice"),
        (END, r#"{"ph":"Q","pid":0,"tid":1,"name":"a","ts":1}"#, "`ph` is not a known kind"),
        (END, r#"{"ph":"X","tid":1,"name":"a","ts":1,"dur":1}"#, "`pid` is not a number"),
        (END, r#"{"ph":"X","pid":0,"tid":-1,"name":"a","ts":1,"dur":1}"#, "`tid` is not a number"),
        (END, r#"{"ph":"X","pid":0,"tid":1,"ts":11,"dur":1}"#, "`name` is not a name"),
        (END, r#"{"ph":"X","pid":0,"tid":1,"name":"a","dur":1}"#, "`ts` is not a time"),
        (END, r#"{"ph":"X","pid":0,"tid":1,"name":"a","ts":11}"#, "`dur` is not a time"),
        (END, r#"{"ph":"X","pid":0,"tid":1,"name":"a","ts":11,"dur":-1}"#, "`dur` is not 0 or more"),
        (END, r#"{"ph":"E","pid":0,"tid":1,"ts":11}"#, "not the end of an open span"),
    ];
    const SPANS_AND_ARROWS: [Planted; 15] = [
        (END, r#"{"ph":"B","pid":0,"tid":1,"name":"open","ts":11}"#, "`open` starts and does not end"),
        (8, r#"{"ph":"E","pid":0,"tid":1,"ts":5.5}"#, "ends 500 ns before its start"),
        (6, r#"{"ph":"X","pid":0,"tid":1,"name":"move","ts":5,"dur":5.1}"#, "neither contains the other"),
        (9, r#"{"ph":"X","pid":0,"tid":1,"name":"sum","ts":9.9,"dur":1}"#, "overlaps event 6 for 101 ns"),
        (10, r#"{"ph":"i","pid":0,"tid":1,"name":"a","ts":1,"s":"t"}"#, "has no beginning"),
        (11, r#"{"ph":"i","pid":1,"tid":0,"name":"a","ts":1,"s":"t"}"#, "has no end"),
        (
            10,
            r#"{"ph":"s","pid":0,"tid":1,"name":"message","cat":"message","ts":5.5}"#,
            "`id` is not an identity",
        ),
        (10, r#"{"ph":"s","pid":0,"tid":1,"name":"message","id":"1","ts":5.5}"#, "`cat` is not a category"),
        (
            10,
            r#"{"ph":"s","pid":0,"tid":1,"name":"message","cat":"message","id":"1","ts":8.1}"#,
            "100 ns before its start",
        ),
        (
            10,
            r#"{"ph":"s","pid":0,"tid":1,"name":"message","cat":"message","id":"1","ts":0.5}"#,
            "at 500 ns is outside all spans",
        ),
        (
            11,
            r#"{"ph":"f","pid":1,"tid":0,"name":"message","cat":"message","id":"1","ts":9.5,"bp":"e"}"#,
            "is outside all spans",
        ),
        (
            11,
            r#"{"ph":"f","pid":1,"tid":0,"name":"message","cat":"message","id":"1","ts":8}"#,
            "`bp` is not `e`",
        ),
        (
            END,
            r#"{"ph":"s","pid":0,"tid":1,"name":"message","cat":"message","id":"1","ts":5.6}"#,
            "of this arrow alone",
        ),
        (13, r#"{"ph":"i","pid":1,"tid":0,"name":"lost","ts":9}"#, "`s` is not a scope"),
        (13, r#"{"ph":"i","pid":1,"tid":0,"name":"lost","ts":1e400,"s":"p"}"#, "not valid JSON"),
    ];

    #[test]
    fn planted_errors_are_found() {
        for (at, event, said) in NAMES_AND_FIELDS.into_iter().chain(SPANS_AND_ARROWS) {
            let review = checked(&planted(at, event));
            assert!(review.problems.iter().any(|problem| problem.contains(said)), "{event}: {review:?}");
        }
    }

    #[test]
    fn a_list_without_its_end_may_have_what_is_still_open() {
        let open = r#"{"ph":"B","pid":0,"tid":1,"name":"open","ts":11}"#;
        let review = check(format!("[{},\n{open},\n{{\"ph\":\"X", RIGHT.join(",")).as_bytes()).unwrap();
        assert!(review.is_cut && review.problems.is_empty(), "{review:?}");
    }

    #[test]
    fn clocks_may_differ_by_what_a_merged_file_says_and_a_part_has_one_end_of_an_arrow() {
        let late = r#"{"ph":"s","pid":0,"tid":1,"name":"message","cat":"message","id":"1","ts":8.1}"#;
        let mut events = planted(10, late);
        events[0] = r#"{"ph":"M","pid":0,"tid":0,"name":"herringbone job","args":{"error_ns":100}}"#;
        assert!(checked(&events).problems.is_empty());
        let mut events = planted(11, r#"{"ph":"i","pid":1,"tid":0,"name":"a","ts":1,"s":"t"}"#);
        events[0] = r#"{"ph":"M","pid":0,"tid":0,"name":"herringbone timeline","args":{}}"#;
        assert!(checked(&events).problems.is_empty());
    }

    #[test]
    fn of_many_problems_the_first_are_kept() {
        let events = vec![r#"{"ph":"Q"}"#; 250];
        let review = checked(&events);
        assert_eq!((review.problems.len(), review.more), (KEPT, 150));
    }
}
