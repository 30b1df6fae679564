//! Requested cases without a schedule, and the reasons.

use super::case::{Case, Row};
use crate::numbers::Set;
use herringbone::core::algorithm::Unsupported;
use serde_json::{Value, json};
use std::mem::discriminant;

/// A case without a schedule.
#[derive(Debug)]
pub(super) struct LeftOut {
    pub(super) case: Case,
    pub(super) why: Unsupported,
}

impl LeftOut {
    /// Whether somebody who asked for all might have expected it: "all" does not mean collectives that an algorithm never
    /// has.
    pub(super) fn is_news(&self, rows: &[Row]) -> bool {
        let has_others = || {
            let like = |case: &Case| (case.algorithm.clone(), case.collective);
            rows.iter().any(|row| like(&row.case) == like(&self.case))
        };
        self.why.is_layout() || has_others()
    }

    fn is_like(&self, other: &Self) -> bool {
        let kind =
            |Self { case, why }: &Self| (case.algorithm.to_string(), case.collective, discriminant(why));
        kind(self) == kind(other)
    }

    pub(super) fn object(&self) -> Value {
        let mut object = self.case.object();
        object["proven"] = Value::Null;
        object["left_out"] = json!(self.why.to_string());
        object
    }
}

/// One line for all numbers of ranks that are left out alike, with the reason of the first.
pub(super) fn lines(left_out: &[LeftOut]) -> Vec<String> {
    let mut kinds: Vec<Vec<&LeftOut>> = Vec::new();
    for one in left_out {
        match kinds.iter_mut().find(|kind| kind[0].is_like(one)) {
            Some(kind) => kind.push(one),
            None => kinds.push(vec![one]),
        }
    }
    let line = |kind: Vec<&LeftOut>| {
        let LeftOut { case: Case { algorithm, collective, .. }, why } = kind[0];
        let ranks = Set::of(kind.iter().map(|one| one.case.ranks));
        format!("left out: {algorithm} {collective} for {ranks} ranks: {why}")
    };
    kinds.into_iter().map(line).collect()
}
