//! Reads a trace of `herringbone simulate --trace`, or a job's timeline.

use super::{
    job,
    roofs::{Roofline, covered},
    traced::SIMULATED,
    words,
};
use crate::{
    chrome::{EventReader, missing, open, time},
    failure::Failure,
};
use herringbone::{
    Collective, DType,
    core::simulate::{Bound, Picoseconds, Roof, RoofCounter, duration},
};
use indicatif::HumanBytes;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufReader,
    path::Path,
};

const HINT: &str = "`herringbone simulate --trace FILE` writes a trace. A job's timeline is also one: from HERRINGBONE_TIMELINE=DIR, \
                    whole or merged by `herringbone trace merge`, or from HOROVOD_TIMELINE=FILE";

/// A process and a thread of it.
type Row = (u64, u64);

/// Reads a file; `port` is the rate of a rank's port in bytes/s, which a timeline does not say.
pub(super) fn read(path: &Path, port: u64) -> Result<Roofline, Failure> {
    let name = path.display();
    let wrong = |problem: String| Failure::Usage { problem: format!("{name}: {problem}"), hint: HINT };
    let file = open(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
    let mut reader = EventReader::new(BufReader::new(file));
    let first = event(reader.next().map_err(wrong)?).map_err(wrong)?;
    if first.as_ref().is_some_and(job::is_of_job) {
        let file = open(path).map_err(|error| wrong(format!("cannot be read: {error}")))?;
        return job::roofline(EventReader::new(BufReader::new(file)), port).map_err(wrong);
    }
    let mut events = Vec::from_iter(first);
    while let Some(next) = event(reader.next().map_err(wrong)?).map_err(wrong)? {
        events.push(next);
    }
    let about = events.iter().find(|event| event["name"] == SIMULATED);
    match about {
        Some(about) => of_simulation(&events, &about["args"]),
        None => of_timeline(&events, port),
    }
    .map_err(wrong)
}

fn event(text: Option<&[u8]>) -> Result<Option<Value>, String> {
    let parsed = text.map(|text| {
        serde_json::from_slice(text).map_err(|error| format!("an event is not valid JSON: {error}"))
    });
    parsed.transpose()
}

/// A number of picoseconds; times of traces are microseconds.
fn picoseconds(event: &Value, field: &str) -> Result<Picoseconds, String> {
    let nanoseconds = time(event, field)?;
    u64::try_from(nanoseconds)
        .map(|time| time.saturating_mul(1000))
        .map_err(|_| missing(event, field, "0 or more"))
}

fn row(event: &Value) -> Row {
    (event["pid"].as_u64().unwrap_or(0), event["tid"].as_u64().unwrap_or(0))
}

fn of_simulation(events: &[Value], about: &Value) -> Result<Roofline, String> {
    let text = |field: &str| about[field].as_str().ok_or_else(|| missing(about, field, "a text"));
    let whole = |field: &str| about[field].as_u64().ok_or_else(|| missing(about, field, "a whole number"));
    let collective: Collective =
        text("collective")?.parse().map_err(|error| format!("field `collective`: {error}"))?;
    let ranks = u32::try_from(whole("ranks")?).ok().filter(|ranks| *ranks > 0);
    let ranks = ranks.ok_or_else(|| missing(about, "ranks", "a number of ranks"))?;
    if whole("left_out")? > 0 {
        return Err(
            "it was too long to be recorded whole, so its end is missing: simulate fewer bytes".into()
        );
    }
    let names: BTreeMap<Row, &str> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .filter_map(|event| Some((row(event), event["args"]["name"].as_str()?)))
        .collect();
    let mut counter = RoofCounter::new();
    let mut last = 0;
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let (start, busy) = (picoseconds(event, "ts")?, picoseconds(event, "dur")?);
        let bytes = event["args"]["bytes"].as_u64();
        let bytes = bytes.ok_or_else(|| missing(event, "args.bytes", "a whole number"))?;
        let place = names.get(&row(event)).ok_or_else(|| missing(event, "tid", "a thread with a name"))?;
        let is_thread = place.starts_with("rank ") || place.starts_with("reducer ");
        let name = event["name"].as_str().unwrap_or("");
        let roof = match is_thread {
            false => Roof::Link,
            true if name.starts_with("fold ") => Roof::Fold,
            true if name.starts_with("copy ") => Roof::Copy,
            true if name.starts_with("code ") => Roof::Code,
            true => Roof::Messages,
        };
        let place = if is_thread { (*place).to_owned() } else { format!("host {}, {place}", row(event).0) };
        counter.add(place, roof, bytes, busy);
        last = last.max(start + busy);
    }
    let (bytes, operations) = (whole("bytes")?, whole("operations")?);
    let parts = match &about["parts"] {
        Value::Null => None,
        _ => Some(text("parts")?.parse().map_err(|error| format!("field `parts`: {error}"))?),
    };
    Ok(Roofline {
        title: format!(
            "{}: {collective} of {}, ranks {ranks}, traced",
            text("algorithm")?,
            words::size(bytes, parts.is_some())
        ),
        total: last,
        collective,
        bytes: bytes.saturating_mul(operations),
        ranks,
        parts,
        bounds: counter.bounds(),
    })
}

/// The open activities of a tensor in a timeline, outermost first.
#[derive(Debug, Default)]
struct TensorActivities {
    open: Vec<(String, Picoseconds)>,
    /// When it was copied, and when something else was done to it than that and waiting.
    copied: Vec<(Picoseconds, Picoseconds)>,
    moved: Vec<(Picoseconds, Picoseconds)>,
}

/// The all-reduces of a timeline; time with several in flight is included once.
fn of_timeline(events: &[Value], port: u64) -> Result<Roofline, String> {
    let mut tensors: BTreeMap<u64, TensorActivities> = BTreeMap::new();
    let mut ranks = BTreeSet::new();
    let (mut bytes, mut copied_bytes) = (0u64, 0u64);
    let (mut copied, mut moved) = (Vec::new(), Vec::new());
    for event in events {
        let tensor = tensors.entry(row(event).0).or_default();
        match event["ph"].as_str() {
            Some("B") => {
                tensor.open.push((event["name"].as_str().unwrap_or("").to_owned(), picoseconds(event, "ts")?))
            }
            Some("X") => ranks.extend(event["name"].as_str().and_then(|name| name.parse::<u32>().ok())),
            Some("E") => {
                let Some((name, start)) = tensor.open.pop() else { continue };
                let span = (start, picoseconds(event, "ts")?);
                match name.as_str() {
                    "ALLREDUCE" => {
                        let size = size(&event["args"])?;
                        bytes = bytes.saturating_add(size);
                        if !tensor.copied.is_empty() {
                            copied_bytes = copied_bytes.saturating_add(size.saturating_mul(2));
                        }
                        copied.append(&mut tensor.copied);
                        moved.append(&mut tensor.moved);
                    }
                    "QUEUE" => {}
                    name if name.contains("MEMCPY") => tensor.copied.push(span),
                    _ if tensor.open.iter().any(|(outer, _)| outer == "ALLREDUCE") => tensor.moved.push(span),
                    _ => {}
                }
            }
            _ => {}
        }
    }
    if bytes == 0 || moved.is_empty() {
        return Err(
            "it has neither the ports and threads of a simulation nor the finished all-reduces of a timeline"
                .into(),
        );
    }
    let ranks = ranks.len().max(1) as u32;
    let carried = (bytes as f64 * Collective::AllReduce.bus_share(ranks)) as u64;
    let mut bounds = vec![Bound {
        roof: Roof::Link,
        place: "the port of rank 0, at the rate of the constants".to_owned(),
        bytes: carried,
        alone: duration(carried, port),
    }];
    let alone = covered(&copied);
    if alone > 0 {
        let place = "rank 0, into and out of fused buffers".to_owned();
        bounds.push(Bound { roof: Roof::Copy, place, bytes: copied_bytes, alone });
    }
    bounds.retain(|bound| bound.alone > 0);
    copied.extend(moved);
    Ok(Roofline {
        title: format!("a job's timeline: all-reduces of {}, ranks {ranks}", HumanBytes(bytes)),
        total: covered(&copied),
        collective: Collective::AllReduce,
        bytes,
        ranks,
        parts: None,
        bounds,
    })
}

/// The bytes of a tensor: `{"dtype": "f32", "shape": "[2, 3]"}`.
fn size(arguments: &Value) -> Result<u64, String> {
    let dtype = arguments["dtype"].as_str().and_then(|name| name.parse::<DType>().ok());
    let dtype = dtype.ok_or_else(|| missing(arguments, "dtype", "a type"))?;
    let shape = arguments["shape"].as_str().and_then(|shape| serde_json::from_str::<Vec<u64>>(shape).ok());
    let shape = shape.ok_or_else(|| missing(arguments, "shape", "a list of sizes"))?;
    Ok(shape.iter().fold(dtype.bytes() as u64, |bytes, size| bytes.saturating_mul(*size)))
}
