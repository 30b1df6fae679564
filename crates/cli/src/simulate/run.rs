//! Simulations that end soon.

use super::options::{Described, Question};
use crate::failure::Failure;
use herringbone::core::simulate::{BusySpan, Effort, Prediction, Workload, effort, estimate, simulate};

/// The messages that an estimate goes through, if that is enough: more make it no better.
const ESTIMATED: u64 = 100_000;

/// Simulates all of it, or if that is too much a part that stands for the whole; says whether it did that.
pub(super) fn timed(question: &Question, described: &Described) -> Result<(Prediction, bool), Failure> {
    let work = workload(question, described);
    let Effort { whole, least } = effort(ESTIMATED, &work, &described.machine);
    let most = most_messages(question);
    if whole <= most {
        return Ok((simulate(&work, &described.machine, &mut |_| ()), false));
    }
    if least > most {
        return Err(Failure::Usage {
            problem: format!(
                "{least} messages have to be gone through for an estimate, {whole} for all, and the limit is {most}"
            ),
            hint: "ask for fewer ranks or operations or for an algorithm in stages, such as radix(8,8,8), or raise --most-messages; \
                   0 lifts the limit",
        });
    }
    Ok((estimate(ESTIMATED, &work, &described.machine), true))
}

/// Simulates all of it and shows what takes time to `watch`.
pub(super) fn shown(
    question: &Question,
    described: &Described,
    watch: &mut dyn FnMut(BusySpan),
) -> Result<Prediction, Failure> {
    let work = workload(question, described);
    let (whole, most) = (effort(ESTIMATED, &work, &described.machine).whole, most_messages(question));
    if whole > most {
        return Err(Failure::Usage {
            problem: format!("{whole} messages would have to be shown one by one, and the limit is {most}"),
            hint: "ask for fewer bytes or for an algorithm of fewer messages, such as --algorithm 'radix(8,8,8)' of 512 ranks, or raise --most-messages; 0 lifts the limit",
        });
    }
    Ok(simulate(&work, &described.machine, watch))
}

fn most_messages(question: &Question) -> u64 {
    if question.most_messages == 0 { u64::MAX } else { question.most_messages }
}

fn workload<'a>(question: &Question, described: &'a Described) -> Workload<'a> {
    let Described { verified, machine, call, .. } = described;
    Workload {
        verified,
        call: *call,
        sizing: Workload::sizing(machine, verified, 0),
        operations: question.call.operations,
        at_once: Workload::AT_ONCE,
        segments: 0,
    }
}
