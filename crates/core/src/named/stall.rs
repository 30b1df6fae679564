//! Operations that some ranks have submitted and others have not, for a long time.

use crate::group::Rank;
use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};
use core::{fmt::Write, time::Duration};

/// How many names of a rank are listed.
const LISTED: usize = 5;

/// How long is too long.
#[derive(Clone, Copy, Debug)]
pub struct StallSettings {
    /// After this a warning is given, and again after the same time. Zero for never.
    pub warning: Duration,
    /// After this all ranks shut down. Zero means never, and so does a time below the warning's.
    pub shutdown: Duration,
}

impl StallSettings {
    fn shuts_down(&self, age: Duration) -> bool {
        !self.shutdown.is_zero() && self.shutdown >= self.warning && age > self.shutdown
    }
}

/// The problem, and whether the ranks shut down because of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The warning.
    pub text: String,
    /// Whether the ranks shut down.
    pub shuts_down: bool,
}

/// Says what is missing, of operations with their names, ages and the ranks that have not submitted them.
pub(super) fn report<'a>(
    waiting: impl Iterator<Item = (&'a str, Duration, Vec<Rank>)>,
    settings: &StallSettings,
) -> Option<Stall> {
    let mut missing: BTreeMap<Rank, Vec<&str>> = BTreeMap::new();
    let mut marked = BTreeSet::new();
    for (name, age, ranks) in waiting.filter(|(_, age, _)| *age > settings.warning) {
        for rank in ranks {
            missing.entry(rank).or_default().push(name);
            if settings.shuts_down(age) {
                marked.insert(rank);
            }
        }
    }
    if missing.is_empty() {
        return None;
    }
    let mut text = format!(
        "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for \
         remainder of ranks for more than {} seconds. This may indicate that different ranks are trying to submit different \
         tensors or that only subset of ranks is submitting tensors, which will cause deadlock. \nMissing ranks:\n",
        settings.warning.as_secs()
    );
    for (rank, names) in &missing {
        let mark = if marked.contains(rank) { "!" } else { "" };
        let more = if names.len() > LISTED { " ..." } else { "" };
        let listed = names[..names.len().min(LISTED)].join(", ");
        // Writing to a string does not fail.
        let _written = writeln!(text, "{rank}{mark}: [{listed}{more}]");
    }
    if !marked.is_empty() {
        let seconds = settings.shutdown.as_secs();
        let _written = write!(
            text,
            "One or more rank (marked by \"!\") is stalled for longer than {seconds} seconds. Will shutdown."
        );
    }
    Some(Stall { text, shuts_down: !marked.is_empty() })
}
