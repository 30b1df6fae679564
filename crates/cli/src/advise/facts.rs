//! The facts that a running job reports: workers, and bytes and computing per step.
//!
//! A step is the shortest sequence of calls that repeats to the end of the last operations (`Communicator.recent()`). The counts
//! (`Communicator.stats()`) tell how long callers have waited. Without them, a caller waits if it calls nothing until its operations
//! have ended. The rest of the time is computing.

use crate::failure::Failure;
use herringbone::{DType, read_user_text};
use indicatif::HumanBytes;
use serde_json::Value;
use std::path::Path;

const HINT: &str = "write {\"size\": group.size, \"stats\": group.stats(), \"recent\": group.recent()} from Python, or \
                    pass the output of `herringbone bench --json` or `herringbone status --json`";
/// How often a sequence has to repeat to be a step.
const REPEATS: usize = 3;

/// The facts in the file; the others have to be on the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct JobFacts {
    pub(super) workers: Option<u32>,
    pub(super) bytes: Option<f64>,
    /// Seconds of computing in a step.
    pub(super) computing: Option<f64>,
    /// The fraction of computing with operations in flight.
    pub(super) hidden: Option<f64>,
    /// A summary for people.
    pub(super) said: String,
}

/// Reads a file that a job has written.
pub(super) fn read(path: &Path) -> Result<JobFacts, Failure> {
    let wrong =
        |problem: String| Failure::Usage { problem: format!("{}: {problem}", path.display()), hint: HINT };
    let text = read_user_text(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    of_text(&text).map_err(wrong)
}

fn of_text(text: &str) -> Result<JobFacts, String> {
    let values: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
    let values = values.map_err(|error| format!("is not valid JSON: {error}"))?;
    let Some(first) = values.first() else { return Err("is empty".into()) };
    if first.is_array() {
        return of_operations(None, first, None, "the list");
    }
    if first.get("recent").is_some() {
        let waiting = first.get("stats").map(waiting).transpose()?;
        return of_operations(Some(number(first, "size")?), &first["recent"], waiting, "recent");
    }
    if first.get("collective").is_some() {
        return of_measurements(&values);
    }
    if first.get("members").is_some() {
        let workers = number(first, "world")?;
        let said = format!("{workers} workers; the output of status has no facts about steps");
        return Ok(JobFacts { workers: Some(workers), said, ..JobFacts::default() });
    }
    Err("field `recent` is missing".into())
}

fn number(object: &Value, field: &str) -> Result<u32, String> {
    let number = object[field].as_u64().and_then(|number| u32::try_from(number).ok());
    number.filter(|number| *number > 0).ok_or_else(|| match object.get(field) {
        None => format!("field `{field}` is missing"),
        Some(other) => format!("field `{field}` is {other}, not a number above 0"),
    })
}

/// The largest of several sizes is a step's.
fn of_measurements(rows: &[Value]) -> Result<JobFacts, String> {
    let mut most: Option<(u32, u64)> = None;
    for row in rows.iter().filter(|row| row["collective"] == "all_reduce") {
        let ranks = number(row, "ranks")?;
        let bytes = row["bytes"].as_u64().ok_or("field `bytes` is not a number of bytes")?;
        most = most.filter(|(_, known)| *known >= bytes).or(Some((ranks, bytes)));
    }
    let (workers, bytes) = most.ok_or("field `collective` is never all_reduce")?;
    let said =
        format!("{workers} workers, {}; the output of bench has no facts about computing", HumanBytes(bytes));
    Ok(JobFacts { workers: Some(workers), bytes: Some(bytes as f64), said, ..JobFacts::default() })
}

/// An operation: its kind, its bytes if it is a sum, and when it was issued and ended, in seconds.
#[derive(Clone, Debug, PartialEq)]
struct Called {
    signature: String,
    bytes: f64,
    issued: f64,
    ended: f64,
}

/// How many seconds callers have waited for each operation, on average.
fn waiting(stats: &Value) -> Result<f64, String> {
    let all = stats["waiting_s"].as_f64().ok_or("field `stats.waiting_s` is not a number of seconds")?;
    let by_algorithm = stats["operations"].as_object().ok_or("field `stats.operations` has no operations")?;
    let counts = by_algorithm.values().filter_map(Value::as_object).flat_map(|counts| counts.values());
    let operations: f64 = counts.filter_map(Value::as_f64).sum();
    Ok(all / operations.max(1.0))
}

fn of_operations(
    workers: Option<u32>,
    list: &Value,
    waiting: Option<f64>,
    field: &str,
) -> Result<JobFacts, String> {
    let list = list.as_array().ok_or_else(|| format!("field `{field}` is not a list of operations"))?;
    let mut calls = Vec::new();
    for (at, operation) in list.iter().enumerate() {
        calls.extend(called(operation).map_err(|problem| format!("operation {at} of {field}: {problem}"))?);
    }
    let Some(length) = period(&calls) else {
        return Err(format!(
            "field `{field}`: none of its {} ended operations begin a sequence that repeats {REPEATS} times up to the end and makes up half of \
             them, so no step is visible",
            calls.len()
        ));
    };
    let repeated = repeated(&calls, length);
    let steps = repeated / length - 1;
    // Whole steps, up to the first call of the last one.
    let from = calls.len() - (steps + 1) * length;
    let sample = &calls[from..from + steps * length + 1];
    let wall = sample[sample.len() - 1].issued - sample[0].issued;
    let bytes: f64 = sample[..length].iter().map(|call| call.bytes).sum();
    if bytes <= 0.0 {
        return Err(format!("field `collective` of {field}: a step has no all_reduce"));
    }
    let (seen, under_way) = waits(sample);
    let waited = waiting.map_or(seen, |each| each * (steps * length) as f64);
    let computing = (wall - waited) / steps as f64;
    if computing <= 0.0 {
        return Err(format!(
            "fields `issued_s` and `ended_s` of {field}: the job only waits, and computes nothing"
        ));
    }
    let hidden = ((under_way - waited).max(0.0) / steps as f64 / computing).min(1.0);
    let said = format!(
        "{} calls and {:.2} MB per step, {:.1} ms per step over {steps} steps; {:.1} ms are computing, and {:.1} % of that hides \
         communication",
        length,
        bytes / 1e6,
        1e3 * wall / steps as f64,
        1e3 * computing,
        100.0 * hidden
    );
    let said = workers.map_or(said.clone(), |workers| format!("{workers} workers, {said}"));
    Ok(JobFacts { workers, bytes: Some(bytes), computing: Some(computing), hidden: Some(hidden), said })
}

/// An operation that has ended well.
fn called(operation: &Value) -> Result<Option<Called>, String> {
    let text =
        |field: &str| operation[field].as_str().ok_or_else(|| format!("field `{field}` is not a text"));
    if text("state")? != "done" {
        return Ok(None);
    }
    let (collective, dtype) = (text("collective")?, text("dtype")?);
    let width = dtype.parse::<DType>().map_err(|error| format!("field `dtype`: {error}"))?.bytes();
    let count = &operation["count"];
    if !count.is_null() && !count.is_u64() {
        return Err(format!("field `count` is {count}, not a number of elements"));
    }
    let ago = |field: &str| {
        let seconds = operation[field].as_f64().filter(|seconds| seconds.is_finite());
        seconds.ok_or_else(|| format!("field `{field}` is not a number of seconds"))
    };
    let (issued, ended) = (-ago("issued_s")?, -ago("ended_s")?);
    let bytes =
        if collective == "all_reduce" { count.as_u64().unwrap_or(0) as f64 * width as f64 } else { 0.0 };
    let group = text("group")?;
    Ok(Some(Called { signature: format!("{group} {collective} {dtype} {count}"), bytes, issued, ended }))
}

/// How many calls at the end equal the calls one sequence's length before them.
fn repeated(calls: &[Called], length: usize) -> usize {
    let same =
        (length..calls.len()).rev().take_while(|at| calls[*at].signature == calls[at - length].signature);
    same.count() + length
}

/// The length of the shortest sequence that repeats up to the end.
fn period(calls: &[Called]) -> Option<usize> {
    let is_step = |length: &usize| {
        let repeated = repeated(calls, *length);
        repeated >= REPEATS * length && 2 * repeated >= calls.len()
    };
    (1..=calls.len() / REPEATS).find(is_step)
}

/// For how long the caller waited, and for how long operations were in flight, from the first call to the last.
fn waits(calls: &[Called]) -> (f64, f64) {
    let (mut waited, mut under_way, mut until) = (0.0, 0.0, f64::MIN);
    for pair in calls.windows(2) {
        let (call, next) = (&pair[0], pair[1].issued);
        until = f64::max(until, call.ended);
        let busy = (until.min(next) - call.issued).max(0.0);
        under_way += busy;
        // A caller that calls again before all operations have ended did not wait for them.
        if until <= next {
            waited += busy;
        }
    }
    (waited, under_way)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn operation(count: u64, issued: f64, ended: f64) -> Value {
        json!({
            "group": "world", "collective": "all_reduce", "dtype": "f32", "count": count, "state": "done",
            "issued_s": 100.0 - issued, "ended_s": 100.0 - ended,
        })
    }

    /// Steps of 100 ms: two calls. The first is hidden for 10 ms, and the caller waits 20 ms for the second.
    fn steps(many: u32) -> Vec<Value> {
        let step = |step: u32| {
            let at = f64::from(step) * 0.1;
            [operation(1000, at, at + 0.01), operation(500, at + 0.03, at + 0.05)]
        };
        (0..many).flat_map(step).collect()
    }

    #[test]
    fn a_step_is_what_repeats() {
        let mut list = vec![operation(7, -3.0, -2.9), operation(7, -2.0, -1.9)];
        list.extend(steps(10));
        let facts = of_text(&json!({"size": 4, "recent": list}).to_string()).unwrap();
        assert_eq!((facts.workers, facts.bytes), (Some(4), Some(6000.0)));
        // Both calls are over before the next one, so both are waited for: 30 of 100 ms.
        assert!((facts.computing.unwrap() - 0.07).abs() < 1e-6, "{facts:?}");
        assert!(facts.hidden.unwrap() < 1e-6, "{facts:?}");
    }

    #[test]
    fn who_calls_again_has_not_waited() {
        let step = |step: u32| {
            let at = f64::from(step) * 0.1;
            [operation(1000, at, at + 0.04), operation(500, at + 0.03, at + 0.05)]
        };
        let list: Vec<Value> = (0..10).flat_map(step).collect();
        let facts = of_text(&json!(list).to_string()).unwrap();
        assert_eq!(facts.workers, None);
        assert!((facts.computing.unwrap() - 0.08).abs() < 1e-6, "{facts:?}");
        assert!((facts.hidden.unwrap() - 0.03 / 0.08).abs() < 1e-6, "{facts:?}");
    }

    #[test]
    fn counts_know_how_long_callers_waited() {
        let stats = json!({"waiting_s": 0.2, "operations": {"all_reduce": {"radix": 15, "ring": 5}}});
        let facts = of_text(&json!({"size": 2, "stats": stats, "recent": steps(10)}).to_string()).unwrap();
        // 10 ms for each of the two calls of a step, of 30 in which one was under way.
        assert!((facts.computing.unwrap() - 0.08).abs() < 1e-6, "{facts:?}");
        assert!((facts.hidden.unwrap() - 0.01 / 0.08).abs() < 1e-6, "{facts:?}");
    }

    /// Rank 0 of two wrote it: 40 steps of 20 ms of sleep and three layers, each 10 ms of sleep and an all-reduce.
    #[test]
    fn a_real_job_is_read() {
        let facts = of_text(include_str!("../../../../testdata/advise/job.json")).unwrap();
        assert_eq!((facts.workers, facts.bytes), (Some(2), Some(3_500_000.0)));
        let computing = facts.computing.unwrap();
        assert!((0.050..0.056).contains(&computing), "{facts:?}");
        assert!((0.0..0.5).contains(&facts.hidden.unwrap()), "{facts:?}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut odd = steps(4);
        odd[3]["dtype"] = json!("f33");
        for (text, said) in [
            (String::new(), "is empty"),
            ("{".into(), "is not valid JSON"),
            ("{\"x\": 1}".into(), "field `recent` is missing"),
            (json!({"recent": steps(4)}).to_string(), "field `size` is missing"),
            (json!({"size": 0, "recent": steps(4)}).to_string(), "field `size` is 0, not a number above 0"),
            (json!({"size": 2, "recent": 3}).to_string(), "field `recent` is not a list"),
            (json!({"size": 2, "recent": odd}).to_string(), "operation 3 of recent: field `dtype`"),
            (json!({"size": 2, "recent": steps(1)}).to_string(), "no step is visible"),
            (json!({"size": 2, "stats": {}, "recent": steps(4)}).to_string(), "field `stats.waiting_s`"),
            (json!({"members": []}).to_string(), "field `world` is missing"),
        ] {
            let error = of_text(&text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
