//! The session's machines, as a world sees them: what they can be in, what can come in it, and what of that cannot be.

use crate::{
    core::session::{
        control::Message,
        fence::{HubState, Phase},
        watch::{PeerEnd, Watch},
    },
    seen::{Transition, note},
};

/// A machine: what it can be in, what can come, and which of these pairs cannot be.
struct Table {
    machine: &'static str,
    states: &'static [&'static str],
    inputs: &'static [&'static str],
    /// Inputs by state. A run that sees one of them has found an error.
    impossible: &'static [(&'static str, &'static [&'static str])],
}

const TABLES: [Table; 5] = [
    Table {
        machine: "control",
        states: &["rank 0", "rank", "rank 0 leaves", "rank leaves"],
        inputs: &[
            "Heartbeat",
            "Bye",
            "Dead",
            "Leave",
            "Waiting",
            "Dispute",
            "Fence",
            "Report",
            "Decide",
            "Suspect",
            "Recover",
            "Held",
            "Resume",
            "GroupInfo",
            "Forget",
            "Grow",
            "Members",
            "Late",
            "Confirm",
            "Confirmed",
        ],
        impossible: &[
            // Rank 0 is the hub: it hears no hub.
            ("rank 0", &["Fence", "Decide", "Recover", "Resume", "Members", "Late"]),
            ("rank 0 leaves", &["Fence", "Decide", "Recover", "Resume", "Members", "Late"]),
            // Any other rank hears only the hub.
            ("rank", &["Dispute", "Report", "Suspect", "Held", "GroupInfo", "Grow"]),
            ("rank leaves", &["Dispute", "Report", "Suspect", "Held", "GroupInfo", "Grow"]),
        ],
    },
    Table {
        machine: "hub",
        states: &[
            "no group",
            "idle",
            "fence",
            "recovery",
            "fence in a recovery",
            "recovered",
            "fence after a recovery",
        ],
        inputs: &[
            "GroupInfo",
            "Forget",
            "Waiting",
            "Dispute",
            "Report",
            "Suspect",
            "Held",
            "Grow",
            "Confirm",
            "Confirmed",
            "a rank is lost",
            "a rank has left",
        ],
        impossible: &[("no group", &["a rank is lost", "a rank has left"])],
    },
    Table {
        machine: "member",
        states: &["not made", "runs", "disputes", "is frozen", "is over"],
        inputs: &["Fence", "Decide", "Waiting", "Confirm", "Confirmed", "call"],
        impossible: &[("not made", &["call"])],
    },
    Table {
        machine: "recovery",
        states: &["not made", "whole", "stands still", "over"],
        inputs: &["Recover", "Resume", "call", "a reducer is lost"],
        impossible: &[
            ("not made", &["call", "a reducer is lost"]),
            // The hub decides after all have said that they stand still, and once.
            ("whole", &["Resume"]),
            ("stands still", &["Recover"]),
            ("over", &["Recover", "Resume"]),
        ],
    },
    Table {
        machine: "frames",
        states: &[
            "no group yet",
            "a group that is over",
            "a group that is lost",
            "an old generation",
            "a generation to come",
            "runs",
            "stands still",
            "has recovered",
        ],
        inputs: &["Data", "Grant", "Stable"],
        impossible: &[],
    },
];

/// A message of a control connection arrives.
pub(crate) fn control(watch: &Watch, message: &Message) {
    let state = match (watch.hub().is_some(), watch.leaves()) {
        (true, false) => "rank 0",
        (false, false) => "rank",
        (true, true) => "rank 0 leaves",
        (false, true) => "rank leaves",
    };
    note("control", state, name_of(message));
    to_hub(watch, message);
}

/// Something is for the hub, which may be here.
pub(crate) fn to_hub(watch: &Watch, message: &Message) {
    let (Some(hub), Some(number)) = (watch.hub(), message.group()) else { return };
    let state = hub.states().find(|(other, _)| *other == number);
    note("hub", state.map_or("no group", |(_, state)| state_of(state)), name_of(message));
}

/// Has a watch take something, and notes in what states its hub has heard that ranks are gone because of it.
pub(crate) fn taking<R>(watch: &mut Watch, take: impl FnOnce(&mut Watch) -> R) -> R {
    let gone = |watch: &Watch| {
        let left = watch.gone().filter(|(_, how)| *how == PeerEnd::Left).count();
        [left, watch.gone().count() - left]
    };
    let states: Vec<HubState> =
        watch.hub().map_or_else(Vec::new, |hub| hub.states().map(|(_, state)| state).collect());
    let before = gone(watch);
    let result = take(watch);
    let after = gone(watch);
    for (at, input) in ["a rank has left", "a rank is lost"].into_iter().enumerate() {
        if after[at] > before[at] {
            states.iter().for_each(|state| note("hub", state_of(*state), input));
        }
    }
    result
}

/// What a member that is made is in.
pub(crate) fn member_state(phase: Phase, is_over: bool) -> &'static str {
    match phase {
        _ if is_over => "is over",
        Phase::Running => "runs",
        Phase::Disputed => "disputes",
        Phase::Frozen => "is frozen",
    }
}

fn state_of(HubState { fences, recovers }: HubState) -> &'static str {
    match (fences, recovers) {
        (false, None) => "idle",
        (true, None) => "fence",
        (false, Some(true)) => "recovery",
        (true, Some(true)) => "fence in a recovery",
        (false, Some(false)) => "recovered",
        (true, Some(false)) => "fence after a recovery",
    }
}

/// What a message is called.
pub(crate) fn name_of(message: &Message) -> &'static str {
    match message {
        Message::Join(_) => "Join",
        Message::Roster { .. } => "Roster",
        Message::Parameters { .. } => "Parameters",
        Message::Refuse(_) => "Refuse",
        Message::Heartbeat => "Heartbeat",
        Message::Dead { .. } => "Dead",
        Message::Leave { .. } => "Leave",
        Message::Waiting(_) => "Waiting",
        Message::Dispute(_) => "Dispute",
        Message::Fence { .. } => "Fence",
        Message::Report(_) => "Report",
        Message::Decide(_) => "Decide",
        Message::Suspect(_) => "Suspect",
        Message::Recover { .. } => "Recover",
        Message::Held(_) => "Held",
        Message::Resume(_) => "Resume",
        Message::Introduce(_) => "Introduce",
        Message::Planned(_) => "Planned",
        Message::GroupInfo { .. } => "GroupInfo",
        Message::Forget { .. } => "Forget",
        Message::Members(_) => "Members",
        Message::Enlist { .. } => "Enlist",
        Message::Enlisted { .. } => "Enlisted",
        Message::Hub { .. } => "Hub",
        Message::Grow(_) => "Grow",
        Message::Shrink(_) => "Shrink",
        Message::Unshrink { .. } => "Unshrink",
        Message::Shrunk(_) => "Shrunk",
        Message::Late(_) => "Late",
        Message::Confirm(_) => "Confirm",
        Message::Confirmed(_) => "Confirmed",
        Message::Ask(_) => "Ask",
        Message::Status(_) => "Status",
        Message::Clock(_) => "Clock",
        Message::Flight { .. } => "Flight",
        Message::JobName(_) => "JobName",
        Message::Decline(_) => "Decline",
        Message::Bye => "Bye",
        Message::PortReport(_) => "PortReport",
        Message::PortProposal(_) => "PortProposal",
        Message::PortPledge(_) => "PortPledge",
        Message::PortOutcome(_) => "PortOutcome",
    }
}

/// All transitions that there are.
pub(crate) fn possible() -> Vec<Transition> {
    let of =
        |table: &'static Table| {
            let pairs =
                table.states.iter().flat_map(|state| table.inputs.iter().map(move |input| (*state, *input)));
            pairs
                .filter(|(state, input)| !is_impossible(table, state, input))
                .map(|(state, input)| Transition { machine: table.machine, state, input })
        };
    TABLES.iter().flat_map(of).collect()
}

fn is_impossible(table: &Table, state: &str, input: &str) -> bool {
    table.impossible.iter().any(|(other, inputs)| *other == state && inputs.contains(&input))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_cannot_be_is_in_the_tables() {
        for table in &TABLES {
            for (state, inputs) in table.impossible {
                assert!(table.states.contains(state), "{} [{state}]", table.machine);
                assert!(
                    inputs.iter().all(|input| table.inputs.contains(input)),
                    "{} [{state}]",
                    table.machine
                );
            }
        }
        let (all, distinct) = (possible().len(), possible().into_iter().collect::<BTreeSet<_>>().len());
        assert_eq!(all, distinct);
    }
}
