//! Costs and ports of a kind of machine as text: a name and a number with its unit on each line, for people and files.

use super::machine::{Costs, Picoseconds, SECOND};
use alloc::{
    format,
    string::{String, ToString},
};
use core::fmt;

/// The known constants of the machines of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The costs of actions.
    pub costs: Costs,
    /// Bytes/s of a worker's port, each way; 0: no limit.
    pub port: u64,
    /// Bytes/s of a reducer's port, each way; 0: no limit.
    pub reducer_port: u64,
    /// From a host to another.
    pub latency: Picoseconds,
    /// Cores that all ranks share if one computer plays all hosts; 0: each rank has its own.
    pub shared_cores: u32,
}

impl Calibration {
    /// 10 Gbit/s ports, 30 us between hosts, and the default costs.
    pub const DEFAULT: Self = Self {
        costs: Costs::DEFAULT,
        port: 1_250_000_000,
        reducer_port: 1_250_000_000,
        latency: 30_000_000,
        shared_cores: 0,
    };

    /// The assumptions if only the latency between hosts is known: the default costs, and ports that carry a
    /// connection's window in a round trip, at most 10 Gbit/s.
    pub fn of_latency(latency: Picoseconds) -> Self {
        let round_trip = latency.saturating_mul(2).max(1);
        let rate = u128::from(WINDOW) * u128::from(SECOND) / u128::from(round_trip);
        let port = u64::try_from(rate).unwrap_or(u64::MAX).clamp(1, Self::DEFAULT.port);
        Self { latency, port, reducer_port: port, ..Self::DEFAULT }
    }

    /// Reads the text of [`Display`](fmt::Display): `name = number` on each line, in any order; `#` begins a comment.
    /// Constants that are not listed keep their defaults.
    ///
    /// # Errors
    /// An invalid line, an unknown name, a repeated name, or an invalid number.
    pub fn parse(text: &str) -> Result<Self, CalibrationError> {
        let mut read = Self::DEFAULT;
        let mut known = [false; NAMES.len()];
        for (line, text) in (1..).zip(text.lines()) {
            let content = text.split('#').next().unwrap_or("").trim();
            if content.is_empty() {
                continue;
            }
            let wrong = |problem: String| CalibrationError { line, problem };
            let (name, number) =
                content.split_once('=').ok_or_else(|| wrong("expected `name = number`".to_string()))?;
            let (name, number) = (name.trim(), number.trim());
            let at = NAMES.iter().position(|(known, _)| *known == name);
            let at = at.ok_or_else(|| wrong(format!("no setting is called `{}`", short(name))))?;
            if core::mem::replace(&mut known[at], true) {
                return Err(wrong(format!("`{name}` is given twice")));
            }
            let scale = NAMES[at].1;
            let value = scaled(number, scale).ok_or_else(|| {
                wrong(format!("`{}` is no number from 0 to a million for {name}", short(number)))
            })?;
            if at == PAYLOAD && !(1..=1000).contains(&value) {
                return Err(wrong(format!("`{}` is no number from 1 to 1000 for {name}", short(number))));
            }
            // 0 stands for no limit, and what is slow is not that.
            let is_zero = !number.bytes().any(|digit| (b'1'..=b'9').contains(&digit));
            let value = if is_zero { value } else { value.max(1) };
            read.set(at, value);
        }
        Ok(read)
    }

    /// All its numbers, in the order of the names, for messages.
    pub fn numbers(mut self) -> [u64; CALIBRATION_NUMBERS] {
        core::array::from_fn(|at| match self.field(at) {
            Field::Wide(value) => *value,
            Field::Narrow(value) => u64::from(*value),
        })
    }

    /// A calibration with these numbers.
    pub fn of_numbers(numbers: &[u64; CALIBRATION_NUMBERS]) -> Self {
        let mut read = Self::DEFAULT;
        numbers.iter().enumerate().for_each(|(at, number)| read.set(at, *number));
        read
    }

    /// What measured times can tell, by place among the numbers; numbers that only change together are one entry. Where ports are
    /// known, how much of them is payload is found in their place.
    pub(crate) fn fitted(knows_ports: bool) -> [&'static [usize]; 13] {
        let link: &[usize] = if knows_ports { &[PAYLOAD] } else { &[14, 15] };
        [link, &[BUCKET], &[16], &[11], &[0], &[2], &[1], &[3], &[12], &[4], &[7], &[9], &[10]]
    }

    /// By how many thousandths a number changes in a step: little where it is a part of a whole.
    pub(crate) fn step(at: usize, per_mille: u64) -> u64 {
        if at == PAYLOAD { (per_mille / 60).max(2) } else { per_mille }
    }

    /// Least and most that a number can be in truth, if it was taken for `known` so far.
    pub(crate) fn plausible(at: usize, known: u64, times: u64) -> (u64, u64) {
        // Headers take 5 % at most, unless they are known to take more.
        let most = known.saturating_mul(times);
        match at {
            PAYLOAD => (known.min(940), 1000),
            // What more than this hides are not latencies, but what else the model does not know.
            BUCKET => (1024, known.max(64 << 10)),
            _ => (known / times, most),
        }
    }

    /// Places of what sending and receiving cost, and whether each is a time or a rate.
    pub(crate) const TOLLS_OF_LINKS: [(bool, usize); 5] =
        [(true, 0), (false, 1), (true, 2), (false, 3), (true, 11)];

    fn set(&mut self, at: usize, value: u64) {
        let small = u32::try_from(value).unwrap_or(u32::MAX);
        match self.field(at) {
            Field::Wide(field) => *field = value,
            Field::Narrow(field) => *field = small,
        }
    }

    /// The field of a name, in the order of [`NAMES`].
    fn field(&mut self, at: usize) -> Field<'_> {
        let Self { costs, port, reducer_port, latency, shared_cores } = self;
        let Costs {
            send,
            receive,
            here,
            fold,
            copy,
            call,
            wake,
            buffered,
            payload_per_mille,
            bucket,
            encode,
            decode,
        } = costs;
        let overheads = [send, receive, here, fold, copy];
        if at < 10 {
            let [one, two, three, four, five] = overheads;
            let overhead = [one, two, three, four, five].into_iter().nth(at / 2).expect("five tolls");
            return Field::Wide(if at.is_multiple_of(2) { &mut overhead.each } else { &mut overhead.rate });
        }
        match at {
            10 => Field::Wide(call),
            11 => Field::Wide(wake),
            12 => Field::Wide(buffered),
            PAYLOAD => Field::Narrow(payload_per_mille),
            14 => Field::Wide(port),
            15 => Field::Wide(reducer_port),
            16 => Field::Wide(latency),
            17 => Field::Narrow(shared_cores),
            BUCKET => Field::Wide(bucket),
            19 => Field::Wide(encode),
            _ => Field::Wide(decode),
        }
    }
}

/// The bytes that a connection has under way at most by Linux's defaults: half of the largest receive buffer (`tcp_rmem`).
const WINDOW: u64 = 3 << 20;

/// How many numbers a calibration has.
pub const CALIBRATION_NUMBERS: usize = 21;

/// The place of the part of a link that carries payload, in thousandths.
const PAYLOAD: usize = 13;

/// The place of what an idle link lets through at once.
const BUCKET: usize = 18;

enum Field<'a> {
    Wide(&'a mut u64),
    Narrow(&'a mut u32),
}

/// The names, with how many of our units one of theirs is: picoseconds, bytes/s, bytes.
const NAMES: [(&str, u64); CALIBRATION_NUMBERS] = [
    ("send_us", 1_000_000),
    ("send_gb_per_s", 1_000_000_000),
    ("receive_us", 1_000_000),
    ("receive_gb_per_s", 1_000_000_000),
    ("here_us", 1_000_000),
    ("here_gb_per_s", 1_000_000_000),
    ("fold_us", 1_000_000),
    ("fold_gb_per_s", 1_000_000_000),
    ("copy_us", 1_000_000),
    ("copy_gb_per_s", 1_000_000_000),
    ("call_us", 1_000_000),
    ("wake_us", 1_000_000),
    ("buffered_kib", 1024),
    ("payload_per_mille", 1),
    ("port_gbit_per_s", 125_000_000),
    ("reducer_port_gbit_per_s", 125_000_000),
    ("latency_us", 1_000_000),
    ("shared_cores", 1),
    ("bucket_kib", 1024),
    ("encode_gb_per_s", 1_000_000_000),
    ("decode_gb_per_s", 1_000_000_000),
];

/// A number with up to nine digits after the point, times `scale`; none above a million. Whole numbers throughout, so that every
/// machine reads the same.
fn scaled(text: &str, scale: u64) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 7 || part.len() > 9 || !digits(whole) || !digits(part) {
        return None;
    }
    let whole: u64 = whole.parse().ok().filter(|whole| *whole <= 1_000_000)?;
    let billionths: u64 = format!("{part:0<9}").parse().ok()?;
    let all =
        u128::from(whole) * u128::from(scale) + u128::from(billionths) * u128::from(scale) / 1_000_000_000;
    u64::try_from(all).ok()
}

fn short(text: &str) -> String {
    text.chars().take(40).collect()
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((name, scale), value) in NAMES.iter().zip(self.numbers()) {
            let billionths = (u128::from(value % scale) * 1_000_000_000).div_ceil(u128::from(*scale));
            let number = format!("{}.{billionths:09}", value / scale);
            writeln!(f, "{name} = {}", number.trim_end_matches('0').trim_end_matches('.'))?;
        }
        Ok(())
    }
}

/// Why a text is no calibration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct CalibrationError {
    /// The line, from 1.
    pub line: usize,
    /// The problem.
    pub problem: String,
}

impl Default for Calibration {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for Costs {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Overhead, *};

    #[test]
    fn what_is_written_reads_back() {
        let odd = Calibration {
            costs: Costs { send: Overhead { each: 1, rate: 7 }, buffered: 1023, ..Costs::DEFAULT },
            port: 62_500_001,
            shared_cores: 2,
            ..Calibration::DEFAULT
        };
        for calibration in [Calibration::DEFAULT, odd] {
            assert_eq!(Calibration::parse(&calibration.to_string()), Ok(calibration), "{calibration}");
            assert_eq!(Calibration::of_numbers(&calibration.numbers()), calibration);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, line, said) in [
            ("send_us", 1, "expected `name = number`"),
            ("# fine\nsend = 1", 2, "no setting is called `send`"),
            ("wake_us = 1\nwake_us = 1", 2, "`wake_us` is given twice"),
            ("wake_us = -1", 1, "`-1` is no number"),
            ("wake_us = 1e6", 1, "`1e6` is no number"),
            ("wake_us = 99999999", 1, "is no number from 0 to a million for wake_us"),
            ("payload_per_mille = 0", 1, "`0` is no number from 1 to 1000 for payload_per_mille"),
            ("payload_per_mille = 2000", 1, "is no number from 1 to 1000"),
            ("wake_us = nan", 1, "`nan` is no number"),
        ] {
            let error = Calibration::parse(text).unwrap_err();
            assert!(error.line == line && error.problem.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn comments_and_what_is_left_out_are_no_errors() {
        let read = Calibration::parse("# a comment\n\nlatency_us = 12.5 # another\n").unwrap();
        assert_eq!(read, Calibration { latency: 12_500_000, ..Calibration::DEFAULT });
    }
}
