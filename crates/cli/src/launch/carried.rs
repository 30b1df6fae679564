//! The bytes that a job's reducers have moved, from the last line of each.

use indicatif::HumanBytes;
use std::{io::Read, process::ChildStdout};

/// The sum over reducers.
#[derive(Debug, Default)]
pub(super) struct ReducerTotals {
    reducers: usize,
    received: u64,
    sent: u64,
}

impl ReducerTotals {
    /// Adds a reducer that has ended. One that was killed prints no last line and is left out.
    pub(super) fn add(&mut self, output: Option<ChildStdout>) {
        let mut text = String::new();
        // Without its numbers there is nothing to add.
        let _unread = output.map(|mut output| output.read_to_string(&mut text));
        self.add_text(&text);
    }

    fn add_text(&mut self, text: &str) {
        let last: Option<serde_json::Value> =
            text.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let Some(last) = last else { return };
        if let (Some(received), Some(sent)) = (last["received"].as_u64(), last["sent"].as_u64()) {
            self.reducers += 1;
            self.received += received;
            self.sent += sent;
        }
    }

    /// A line for people; none without reducers.
    pub(super) fn report(&self) -> Option<String> {
        let Self { reducers, received, sent } = *self;
        let reducer = if reducers == 1 { "reducer" } else { "reducers" };
        (reducers > 0).then(|| {
            format!(
                "{reducers} {reducer} received {} and sent {} in total",
                HumanBytes(received),
                HumanBytes(sent)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reducers_are_added_and_killed_ones_left_out() {
        let mut carried = ReducerTotals::default();
        assert_eq!(carried.report(), None);
        for text in [
            "{\"jobs\": 1, \"received\": 1048576, \"sent\": 524288}\n",
            "",
            "{\"listening\": \"here\"}",
            "garbage",
        ] {
            carried.add_text(text);
        }
        assert_eq!(carried.report().unwrap(), "1 reducer received 1.00 MiB and sent 512.00 KiB in total");
        carried.add_text("{\"received\": 1048576, \"sent\": 1048576}");
        assert_eq!(carried.report().unwrap(), "2 reducers received 2.00 MiB and sent 1.50 MiB in total");
    }
}
