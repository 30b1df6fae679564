//! Schedules that are proved.

use herringbone::core::{
    algorithm::{Layout, Unsupported, cost::Cost},
    verify::{Verified, VerifyError, verify},
};
use herringbone::{Algorithm, Collective, FoldOrder};
use serde_json::json;

/// One schedule to prove.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) algorithm: Algorithm,
    pub(super) collective: Collective,
    pub(super) ranks: u32,
    pub(super) reducers: u32,
    pub(super) hosts: Vec<u32>,
    pub(super) order: FoldOrder,
}

/// A schedule with its cost, or why it is not proven.
pub(super) type Proof = Result<(Verified, Cost), VerifyError>;

impl Case {
    /// # Errors
    /// Where the algorithm offers no schedule for this case.
    pub(super) fn prove(&self) -> Result<Proof, Unsupported> {
        let group = self.order.group(&self.hosts);
        let layout = Layout { reducers: self.reducers, hosts: &self.hosts, links: None };
        let schedule = self.algorithm.schedule(self.collective, &group, &layout)?;
        Ok(verify(schedule, self.collective, &group).map(|verified| {
            let cost = verified.cost();
            (verified, cost)
        }))
    }

    /// What tells it apart.
    pub(super) fn object(&self) -> serde_json::Value {
        let Self { algorithm, collective, ranks, reducers, .. } = self;
        json!({
            "algorithm": algorithm.to_string(),
            "collective": collective.to_string(),
            "ranks": ranks,
            "reducers": reducers,
        })
    }
}

/// A case, and what came of it.
pub(super) struct Row {
    pub(super) case: Case,
    pub(super) proof: Proof,
}

impl Row {
    pub(super) fn cells(&self) -> Vec<String> {
        let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
        let Case { algorithm, collective, ranks, reducers, .. } = &self.case;
        let mut cells =
            vec![algorithm.to_string(), collective.to_string(), ranks.to_string(), reducers.to_string()];
        match &self.proof {
            Ok((verified, cost)) => cells.extend([
                verified.order().to_string(),
                yes(verified.serial()),
                self.restartable().map_or("-".to_owned(), yes),
                cost.rounds.to_string(),
                cost.worker.messages.to_string(),
                format!("{:.3} K", buffers(cost)),
                cost.worker.partners.to_string(),
                verified.proof().to_string(),
                "proven".to_owned(),
            ]),
            Err(error) => {
                cells.extend(std::iter::repeat_n(String::new(), 8));
                cells.push(match error {
                    VerifyError::TooLarge { what } => format!("not proven: too large (too many {what})"),
                    fault => format!("WRONG: {fault}"),
                });
            }
        }
        cells
    }

    pub(super) fn object(&self) -> serde_json::Value {
        let mut object = self.case.object();
        object["proven"] = json!(self.proof.is_ok());
        match &self.proof {
            Ok((verified, cost)) => {
                object["order"] = json!(verified.order().name());
                object["serial"] = json!(verified.serial());
                object["restartable"] = json!(self.restartable());
                object["rounds"] = json!(cost.rounds);
                object["messages"] = json!(cost.worker.messages);
                object["buffers_sent"] = json!(buffers(cost));
                object["peers"] = json!(cost.worker.partners);
                object["proof"] = json!(verified.proof().name());
            }
            Err(VerifyError::TooLarge { what }) => object["too_large"] = json!(format!("too many {what}")),
            Err(fault) => object["fault"] = json!(fault.to_string()),
        }
        object
    }
}

impl Row {
    /// Whether its workers can begin again when a reducer is lost; `None` if it has no reducer, or is not proven.
    pub(super) fn restartable(&self) -> Option<bool> {
        let (verified, _) = self.proof.as_ref().ok()?;
        (self.case.reducers > 0).then(|| verified.restartable())
    }
}

/// How many times the buffer the busiest worker sends, of an element type that is its own accumulator.
pub(super) fn buffers(cost: &Cost) -> f64 {
    cost.worker.sent.buffers(cost.chunks, 1)
}
