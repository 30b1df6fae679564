//! `herringbone trace report` of a long job: in little memory.

use herringbone::core::trace::{Argument, ChromeEvent, TracePhase, TraceRow, TraceWriter, timeline};
use std::{fs, process::Command};

const STEPS: u64 = 50_000;
/// The address space that the program may take, in KiB: twice what it takes, and half of what the figures of all steps took as one value.
const ROOM: &str = "150000";

/// The merged timeline of two ranks that sum again and again.
fn merged() -> String {
    let mut trace = TraceWriter::new(String::new()).unwrap();
    let about = [
        ("version", Argument::Whole(timeline::VERSION)),
        ("job", Argument::Text("a1")),
        ("processes", Argument::Whole(2)),
        ("error_ns", Argument::Whole(0)),
    ];
    trace.about(timeline::JOB, &about).unwrap();
    for process in 0..2 {
        let about = [
            ("version", Argument::Whole(timeline::VERSION)),
            ("job", Argument::Text("a1")),
            ("role", Argument::Text(timeline::ROLES[0])),
            ("number", Argument::Whole(process.into())),
            ("member", Argument::Whole(process.into())),
            ("host", Argument::Text("h")),
            ("process", Argument::Whole(100)),
            ("world", Argument::Whole(2)),
            ("began", Argument::Whole(0)),
        ];
        trace.metadata(TraceRow { process, thread: 0 }, timeline::PROCESS, &about).unwrap();
    }
    for sequence in 0..STEPS {
        for process in 0..2 {
            let arguments = [
                ("group", Argument::Text("world")),
                ("group_number", Argument::Whole(0)),
                ("generation", Argument::Whole(0)),
                ("sequence", Argument::Whole(sequence)),
                ("algorithm", Argument::Text("radix")),
                ("bytes", Argument::Whole(1 << 20)),
                ("sent", Argument::Whole(1 << 20)),
            ];
            let event = ChromeEvent {
                name: "all_reduce",
                category: timeline::OPERATION,
                at: Some(sequence as f64 * 100.0),
                duration: Some(50.0),
                arguments: &arguments,
                ..ChromeEvent::new(TracePhase::Complete, TraceRow { process, thread: 0 })
            };
            trace.event(&event).unwrap();
        }
    }
    trace.finish().unwrap()
}

#[test]
fn the_figures_of_many_steps_take_little_memory() {
    let file = std::env::temp_dir().join(format!("herringbone-long-{}.json", std::process::id()));
    fs::write(&file, merged()).unwrap();
    let limited = format!("ulimit -v {ROOM}; exec \"$0\" trace report \"$1\" --json");
    let mut command = Command::new("sh");
    let output =
        command.args(["-c", &limited, env!("CARGO_BIN_EXE_herringbone")]).arg(&file).output().unwrap();
    fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{:?}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(figures["steps"].as_array().unwrap().len() as u64, STEPS);
    assert_eq!(figures["steps"][1]["ranks"][1]["rank"], "rank 1");
    assert_eq!((&figures["ranks"], &figures["roofline"]["ranks"]), (&2.into(), &2.into()));
}
