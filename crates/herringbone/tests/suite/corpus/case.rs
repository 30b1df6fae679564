//! Cases as they are written, and the calls that they stand for.

use super::{Job, SIZES};
use crate::world::{Transport, World};
use herringbone::{Collective, DType, ReduceOp};
use serde::Deserialize;

/// One file of cases.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Corpus {
    #[serde(rename = "case")]
    pub(super) cases: Vec<Case>,
    #[serde(rename = "skip", default)]
    skips: Vec<Skip>,
}

/// A world in which the file's cases are not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Skip {
    /// Of every algorithm, if absent.
    algorithm: Option<String>,
    transport: String,
    reason: String,
}

/// Calls that differ only in operation, type, count and root.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Case {
    name: String,
    collective: String,
    #[serde(default = "any_op")]
    ops: Vec<String>,
    #[serde(default = "all_dtypes")]
    dtypes: Vec<String>,
    counts: Vec<usize>,
    #[serde(default = "one_root")]
    roots: Vec<u32>,
    values: Values,
    #[serde(default)]
    in_place: bool,
    #[serde(default = "all_sizes")]
    pub(super) ranks: Vec<u32>,
}

/// What the inputs look like.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Values {
    /// Whole numbers from -8 to 8; from 0 to 16 for unsigned types.
    Small,
    /// Any bits.
    Bits,
    /// The ends and oddities of each type.
    Specials,
}

fn any_op() -> Vec<String> {
    vec![ReduceOp::Sum.to_string()]
}

fn all_dtypes() -> Vec<String> {
    DType::ALL.iter().map(DType::to_string).collect()
}

fn one_root() -> Vec<u32> {
    vec![0]
}

fn all_sizes() -> Vec<u32> {
    SIZES.collect()
}

impl Corpus {
    pub(super) fn parse(text: &str) -> Self {
        toml::from_str(text).expect("a file of cases")
    }

    /// Why there is nothing to run in such a world, if there is not.
    pub(super) fn skipped(&self, algorithm: Option<&str>, transport: Transport) -> Option<&str> {
        let applies = |skip: &&Skip| {
            skip.transport == format!("{transport:?}").to_lowercase()
                && skip.algorithm.as_deref().is_none_or(|name| Some(name) == algorithm)
        };
        self.skips.iter().find(applies).map(|skip| &*skip.reason)
    }

    /// Leaves local worlds out.
    pub(super) fn skip_local(&mut self, reason: &str) {
        self.skips.push(Skip { algorithm: None, transport: "local".to_owned(), reason: reason.to_owned() });
    }
}

impl Case {
    /// The calls in a world, in an order that is the same on every rank, with the results that they must have.
    pub(super) fn jobs(&self, world: &World) -> Vec<Job> {
        let mut jobs = Vec::new();
        for op in &self.ops {
            for dtype in &self.dtypes {
                for count in &self.counts {
                    for root in &self.roots {
                        let (op, dtype) = (op.parse().expect("an op"), dtype.parse().expect("a dtype"));
                        let collective = self.collective(root % world.size);
                        let label = format!("{}: {collective} of {count} {dtype}, {op}", self.name);
                        let call = (collective, dtype, op, *count);
                        jobs.push(Job::new(label, call, self.values, self.in_place, world));
                    }
                }
            }
        }
        jobs
    }

    fn collective(&self, root: u32) -> Collective {
        let collective: Collective = self.collective.parse().expect("a collective");
        Collective::from_code(collective.code(), root).expect("a code that was just given")
    }
}
