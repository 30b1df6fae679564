//! A record as a line: text for people, JSON for programs.

use ::log::Level;
use std::{
    fmt,
    io::Write,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What filters of loggers call all records.
pub(super) const TARGET: &str = "herringbone";
const DAY: u64 = 24 * 60 * 60;

/// The form of lines on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LogFormat {
    /// `[TIME LEVEL herringbone WHO, job NAME] MESSAGE`.
    #[default]
    Text,
    /// One object per line, with the keys `time`, `level`, `target`, `who`, `rank`, `job`, `peer` and `message`. Keys
    /// without a value are left out.
    Json,
}

/// A form of lines that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write text or json")]
pub struct ParseLogFormatError;

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        })
    }
}

impl FromStr for LogFormat {
    type Err = ParseLogFormatError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name.trim().to_ascii_lowercase().as_str() {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(ParseLogFormatError),
        }
    }
}

/// A record that is written to standard error.
pub(super) struct LogLine<'a> {
    pub(super) time: SystemTime,
    pub(super) level: Level,
    pub(super) who: &'a str,
    pub(super) job: Option<&'a str>,
    pub(super) peer: Option<&'a str>,
    pub(super) message: &'a dyn fmt::Display,
}

impl LogLine<'_> {
    pub(super) fn write(&self, format: LogFormat) {
        write_line(&match format {
            LogFormat::Text => self.text(),
            LogFormat::Json => self.json(),
        });
    }

    pub(super) fn text(&self) -> String {
        let Self { level, who, message, .. } = self;
        let job = self.job.map_or_else(String::new, |job| format!(", job {job}"));
        // Others' texts are among it: what they send moves no cursor, and only a message has several lines.
        let shown = |letter: char| if letter.is_control() { ' ' } else { letter };
        let head: String = format!("{who}{job}").chars().map(shown).collect();
        let line = format!("[{} {level} {TARGET} {head}] {message}", Timestamp(self.time));
        let seen = |letter: char| if letter == '\n' { letter } else { shown(letter) };
        line.chars().map(seen).chain(['\n']).collect()
    }

    pub(super) fn json(&self) -> String {
        let level = self.level.as_str().to_ascii_lowercase();
        let mut line =
            format!("{{\"time\":\"{}\",\"level\":\"{level}\",\"target\":\"{TARGET}\"", Timestamp(self.time));
        let rank: Option<u32> = self.who.strip_prefix("rank ").and_then(|rank| rank.parse().ok());
        add_text(&mut line, "who", self.who);
        if let Some(rank) = rank {
            line.push_str(&format!(",\"rank\":{rank}"));
        }
        self.job.iter().for_each(|job| add_text(&mut line, "job", job));
        self.peer.iter().for_each(|peer| add_text(&mut line, "peer", peer));
        add_text(&mut line, "message", &self.message.to_string());
        line.push_str("}\n");
        line
    }
}

fn add_text(line: &mut String, key: &str, text: &str) {
    line.push_str(",\"");
    line.push_str(key);
    line.push_str("\":\"");
    for letter in text.chars() {
        match letter {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            letter if letter.is_control() => line.push_str(&format!("\\u{:04x}", u32::from(letter))),
            letter => line.push(letter),
        }
    }
    line.push('"');
}

/// A time in UTC with milliseconds, as RFC 3339 has it.
pub(super) struct Timestamp(pub(super) SystemTime);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since: Duration = self.0.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
        let (year, month, day) = date(days);
        write!(f, "{year:04}-{month:02}-{day:02}T")?;
        write!(f, "{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60)?;
        write!(f, ".{:03}Z", since.subsec_millis())
    }
}

/// The year, month and day of the Gregorian calendar, so many days after 1970-01-01. Years begin in March here, so that the
/// day that some years have more is the last (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// In one write: several ranks may have the same standard error.
fn write_line(line: &str) {
    // Nobody can be told that nobody can be told.
    let _unheard = std::io::stderr().write_all(line.as_bytes());
}
