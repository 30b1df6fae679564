//! Bytes per second of each member of a job over the last minutes.

use crate::ask::{Round, rates};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How far it goes back.
const KEPT: Duration = Duration::from_secs(5 * 60);
/// How many samples are kept of all members together.
const SAMPLES: usize = 1 << 16;
/// How many are kept of a member at the least.
const LEAST: usize = 16;

/// The rates of members, by their addresses.
#[derive(Debug, Default)]
pub(crate) struct JobHistory {
    job: u64,
    members: BTreeMap<String, VecDeque<Sample>>,
}

/// Bytes per second at a moment in seconds of wall time.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at: f64,
    sent: f64,
    received: f64,
}

impl JobHistory {
    /// Adds the rates of a round, which cover the time since the previous one.
    pub(crate) fn add(&mut self, round: &Round, at: f64) {
        if round.job != self.job {
            *self = Self { job: round.job, ..Self::default() };
        }
        let most = (SAMPLES / round.members.len().max(1)).max(LEAST);
        for member in &round.members {
            let (Some(now), before) = (member.job_status(round.job), member.stood(round.job)) else {
                continue;
            };
            let links: Vec<_> = now.links.iter().filter_map(|link| rates(link, now, before)).collect();
            if before.is_none() {
                continue;
            }
            let [sent, received] = [0, 1].map(|way| links.iter().map(|link| link[way]).sum());
            let samples = self.members.entry(member.address.clone()).or_default();
            samples.push_back(Sample { at, sent, received });
            while samples.len() > most {
                samples.pop_front();
            }
        }
        let oldest = at - KEPT.as_secs_f64();
        self.members.retain(|_, samples| {
            while samples.front().is_some_and(|sample| sample.at < oldest) {
                samples.pop_front();
            }
            !samples.is_empty()
        });
    }

    /// By address, oldest first: `at` in seconds of wall time, `sent` and `received` in bytes per second.
    pub(crate) fn object(&self) -> Value {
        let of = |samples: &VecDeque<Sample>| {
            let column = |value: fn(&Sample) -> f64| samples.iter().map(value).collect::<Vec<_>>();
            json!({
                "at": column(|sample| (sample.at * 1e3).round() / 1e3),
                "sent": column(|sample| sample.sent.round()),
                "received": column(|sample| sample.received.round()),
            })
        };
        let members = self.members.iter().map(|(address, samples)| (address.clone(), of(samples)));
        Value::Object(members.collect::<Map<_, _>>())
    }
}
