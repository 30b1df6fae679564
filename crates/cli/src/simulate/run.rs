//! Simulations that end soon.

use super::options::{Described, Question};
use crate::failure::Failure;
use herringbone::core::simulate::{
    BusySpan, MessageCount, Prediction, Untimed, Workload, estimate, message_count, simulate,
};

/// The messages that an estimate goes through, if that is enough: more make it no better.
const ESTIMATED: u64 = 100_000;

/// Simulates all of it or, if that is too much, a part that stands for the whole; returns whether it did that.
pub(super) fn timed(question: &Question, described: &Described) -> Result<(Prediction, bool), Failure> {
    let work = workload(question, described);
    let MessageCount { whole, least } = message_count(ESTIMATED, &work, &described.machine)
        .map_err(|too_long| has_no_time(described, &too_long.into()))?;
    let most = most_messages(question);
    if whole <= most {
        let simulated = simulate(&work, &described.machine, &mut |_| ());
        return Ok((simulated.map_err(|untimed| has_no_time(described, &untimed))?, false));
    }
    if described.parts.is_some() {
        return Err(too_many_of_parts(whole, most));
    }
    if least > most {
        return Err(Failure::Usage {
            problem: format!(
                "an estimate needs {least} messages, a full simulation {whole}, and the limit is {most}"
            ),
            hint: "use fewer ranks or operations, an algorithm in stages, such as radix(8,8,8), or identical ranks, hosts and ports, \
                   so that one stands for all; or raise --most-messages (0: no limit)",
        });
    }
    let estimated = estimate(ESTIMATED, &work, &described.machine);
    Ok((estimated.map_err(|untimed| has_no_time(described, &untimed))?, true))
}

/// Simulates all of it and shows what takes time to `watch`.
pub(super) fn shown(
    question: &Question,
    described: &Described,
    watch: &mut dyn FnMut(BusySpan),
) -> Result<Prediction, Failure> {
    let work = workload(question, described);
    let MessageCount { whole, .. } = message_count(ESTIMATED, &work, &described.machine)
        .map_err(|too_long| has_no_time(described, &too_long.into()))?;
    let most = most_messages(question);
    if whole > most && described.parts.is_some() {
        return Err(too_many_of_parts(whole, most));
    }
    if whole > most {
        return Err(Failure::Usage {
            problem: format!("{whole} messages would have to be shown one by one, but the limit is {most}"),
            hint: "use fewer bytes or an algorithm with fewer messages, such as --algorithm 'radix(8,8,8)' for 512 ranks, or raise --most-messages (0: no limit)",
        });
    }
    simulate(&work, &described.machine, watch).map_err(|untimed| has_no_time(described, &untimed))
}

/// Unequal parts: none stands for the others, and only one algorithm takes them.
fn too_many_of_parts(whole: u64, most: u64) -> Failure {
    Failure::Usage {
        problem: format!(
            "{whole} messages and copies of parts have to be simulated one by one, but the limit is {most}"
        ),
        hint: "use shorter parts or fewer operations, or raise --most-messages (0: no limit)",
    }
}

fn has_no_time(described: &Described, untimed: &Untimed) -> Failure {
    let problem = format!("{} has no time, because {untimed}", described.name);
    match untimed {
        Untimed::TooManySegments(_) | Untimed::TooSlow => {
            Failure::Usage { problem, hint: "use fewer bytes or faster links" }
        }
        Untimed::TooManyRanks { .. } => Failure::Usage {
            problem,
            hint: "use fewer ranks or operations, or identical ranks, hosts and ports, so that one stands for all",
        },
        Untimed::NoLink { .. } => Failure::Usage {
            problem,
            hint: "use an algorithm that follows the links, such as trees, or add a link there to the topology",
        },
        Untimed::Stalled(_) => {
            Failure::Stalled { problem: format!("{problem}; this is a bug, please report it") }
        }
    }
}

fn most_messages(question: &Question) -> u64 {
    if question.most_messages == 0 { u64::MAX } else { question.most_messages }
}

fn workload<'a>(question: &Question, described: &'a Described) -> Workload<'a> {
    let Described { verified, call, parts, sizing, .. } = described;
    Workload {
        verified,
        call: *call,
        sizing: *sizing,
        operations: question.call.operations,
        at_once: Workload::AT_ONCE,
        parts: parts.as_deref(),
        segments: 0,
    }
}
