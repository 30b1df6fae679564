//! A simulation as Chrome events.

use super::{
    options::{CallOptions, Described},
    recorded::Recorded,
};
use herringbone::core::{
    simulate::{BusySpan, Picoseconds, Resource, WorkItem},
    trace::{Argument, TraceRow, TraceWriter},
};
use std::fmt;

/// The event that says what was simulated.
pub(super) const SIMULATED: &str = "herringbone simulate";

pub(super) fn trace(recorded: &Recorded, described: &Described, call: &CallOptions) -> String {
    written(recorded, described, call).expect("writing to a text does not fail")
}

fn written(recorded: &Recorded, described: &Described, call: &CallOptions) -> Result<String, fmt::Error> {
    let (collective, parts) =
        (described.call.collective.to_string(), call.parts.as_ref().map(ToString::to_string));
    let workers = described.verified.schedule().workers();
    let hosts = &described.machine.hosts;
    let mut trace = TraceWriter::new(String::new())?;
    let mut about = vec![
        ("algorithm", Argument::Text(&described.name)),
        ("collective", Argument::Text(&collective)),
        ("bytes", Argument::Whole(described.bytes())),
        ("ranks", Argument::Whole(u64::from(workers))),
        ("operations", Argument::Whole(u64::from(call.operations))),
        ("left_out", Argument::Whole(recorded.left_out as u64)),
    ];
    about.extend(parts.as_deref().map(|parts| ("parts", Argument::Text(parts))));
    trace.about(SIMULATED, &about)?;
    for host in 0..described.machine.ports.len() as u32 {
        trace.process(host, &format!("host {host}"))?;
    }
    for (place, spans) in &recorded.spans {
        let (row, name) = row(*place, workers, hosts);
        trace.thread(row, &name)?;
        for span in spans {
            let (start, duration) = (microseconds(span.start), microseconds(span.end - span.start));
            let arguments = [
                ("bytes", Argument::Whole(span.bytes)),
                ("segment", Argument::Whole(u64::from(span.segment))),
                ("operation", Argument::Whole(u64::from(span.operation))),
            ];
            trace.span(row, &label(span), start, duration, &arguments)?;
        }
    }
    trace.finish()
}

fn microseconds(time: Picoseconds) -> f64 {
    time as f64 / 1e6
}

/// A host is a process: its ports come first, then the threads of its members.
fn row(place: Resource, workers: u32, hosts: &[u32]) -> (TraceRow, String) {
    match place {
        Resource::Out(host) => (TraceRow { process: host, thread: 0 }, "port out".into()),
        Resource::Into(host) => (TraceRow { process: host, thread: 1 }, "port in".into()),
        Resource::Link { from, to } => {
            (TraceRow { process: hosts[from as usize], thread: 2 + to }, format!("link to rank {to}"))
        }
        // Switches are a process of their own.
        Resource::SwitchOut(switch) => {
            (TraceRow { process: hosts.len() as u32, thread: 2 * switch }, format!("switch {switch} out"))
        }
        Resource::SwitchInto(switch) => {
            (TraceRow { process: hosts.len() as u32, thread: 2 * switch + 1 }, format!("switch {switch} in"))
        }
        // Sites are, too. No rig has both.
        Resource::SiteOut(site) => {
            (TraceRow { process: hosts.len() as u32, thread: 2 * site }, format!("site {site} out"))
        }
        Resource::SiteInto(site) => {
            (TraceRow { process: hosts.len() as u32, thread: 2 * site + 1 }, format!("site {site} in"))
        }
        Resource::Thread(rank) => {
            let name = match rank.checked_sub(workers) {
                Some(reducer) => format!("reducer {reducer}"),
                None => format!("rank {rank}"),
            };
            (TraceRow { process: hosts[rank as usize], thread: 10_000 + rank }, name)
        }
    }
}

pub(super) fn label(span: &BusySpan) -> String {
    match span.what {
        WorkItem::Message { from, to } => format!("{from} to {to}"),
        WorkItem::Fold(chunk) => format!("fold c{chunk}"),
        WorkItem::Copy(chunk) => format!("copy c{chunk}"),
        WorkItem::Code(chunk) => format!("code c{chunk}"),
    }
}
