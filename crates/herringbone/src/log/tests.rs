use super::{
    Level, LogFormat, LogRecord, OwnedFields,
    line::{LogLine, Timestamp},
};
use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, UNIX_EPOCH},
};

#[test]
fn times_are_those_of_the_calendar() {
    for (seconds, millis, text) in [
        (0, 0, "1970-01-01T00:00:00.000Z"),
        (951_782_399, 7, "2000-02-28T23:59:59.007Z"),
        (951_782_400, 0, "2000-02-29T00:00:00.000Z"),
        (1_709_251_199, 999, "2024-02-29T23:59:59.999Z"),
        (1_735_689_600, 0, "2025-01-01T00:00:00.000Z"),
        (4_107_542_400, 0, "2100-03-01T00:00:00.000Z"),
    ] {
        let time = UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis);
        assert_eq!(Timestamp(time).to_string(), text);
    }
}

#[test]
fn lines_have_all_that_is_known() {
    let message = "it said \"no\\\u{1b}[31m\"\nand left";
    let line = LogLine {
        time: UNIX_EPOCH,
        level: log::Level::Warn,
        who: "rank 3",
        job: Some("4711"),
        peer: Some("rank 1"),
        message: &message,
    };
    assert_eq!(
        line.text(),
        "[1970-01-01T00:00:00.000Z WARN herringbone rank 3, job 4711] it said \"no\\ [31m\"\nand left\n"
    );
    let json: serde_json::Value = serde_json::from_str(&line.json()).unwrap();
    let known = serde_json::json!({
        "time": "1970-01-01T00:00:00.000Z", "level": "warn", "target": "herringbone", "who": "rank 3", "rank": 3,
        "job": "4711", "peer": "rank 1", "message": message,
    });
    assert_eq!(json, known);
    assert_eq!(line.json().matches('\n').count(), 1);
    let reducer = LogLine { who: "reducer [::1]:7", job: None, peer: None, ..line };
    assert!(reducer.text().contains("WARN herringbone reducer [::1]:7] it said"));
    let json: serde_json::Value = serde_json::from_str(&reducer.json()).unwrap();
    assert_eq!((json.get("rank"), json.get("job"), json.get("peer")), (None, None, None));
}

#[test]
fn names_of_levels_and_forms_are_the_fields() {
    let levels = [
        ("off", Level::Off),
        ("ERROR", Level::Error),
        ("warning", Level::Warn),
        (" info", Level::Info),
        ("trace", Level::Debug),
    ];
    for (name, level) in levels {
        assert_eq!(Level::named(name), Some(level));
    }
    assert_eq!(Level::named("loud"), None);
    assert_eq!("JSON".parse(), Ok(LogFormat::Json));
    assert!("yaml".parse::<LogFormat>().unwrap_err().to_string().contains("text or json"));
}

/// A program's logger, which keeps what it gets.
struct Kept(Mutex<Vec<String>>);

impl log::Log for Kept {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let OwnedFields { who, job, peer } = OwnedFields::of(record);
        let (level, target, args) = (record.level(), record.target(), record.args());
        let line = format!("{level} {target} {who:?} {job:?} {peer:?} {args}");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn flush(&self) {}
}

/// The other tests of this process go on without a logger.
#[test]
fn a_programs_logger_gets_the_records() {
    static KEPT: Kept = Kept(Mutex::new(Vec::new()));
    log::set_logger(&KEPT).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    LogRecord::new(Level::Info, "reducer here").job("4711").peer("rank 8").say("rank 8 has left");
    LogRecord::new(Level::Debug, "reducer here").say("too much");
    super::note("reducer here", "it takes long");
    log::set_max_level(log::LevelFilter::Off);
    let kept = KEPT.0.lock().unwrap();
    let own: Vec<&str> =
        kept.iter().map(String::as_str).filter(|line| line.contains("reducer here")).collect();
    assert_eq!(
        own,
        [
            "INFO herringbone Some(\"reducer here\") Some(\"4711\") Some(\"rank 8\") reducer here: rank 8 has left",
            "INFO herringbone Some(\"reducer here\") None None reducer here: it takes long",
        ]
    );
}
