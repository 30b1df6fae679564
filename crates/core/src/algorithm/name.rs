//! The algorithms' names, as users write them.

use super::{Algorithm, MixedShares};
use crate::topology::trees::TreeMode;
use alloc::{boxed::Box, string::String, string::ToString, vec, vec::Vec};
use core::{fmt, str::FromStr};

impl Algorithm {
    /// The name without parameters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Radix { .. } => "radix",
            Self::Doubling => "doubling",
            Self::OneShot => "one_shot",
            Self::Star => "star",
            Self::Tree => "tree",
            Self::Trees { .. } => "trees",
            Self::ReductionServer => "reduction_server",
            Self::Mixed { .. } => "mixed",
            Self::Chain => "chain",
            Self::DoubleTree => "double_tree",
            Self::Hierarchical { .. } => "hierarchical",
            Self::Sites { .. } => "sites",
            Self::Weighted { .. } => "weighted",
            Self::File(_) => "file",
            Self::Coded { .. } => "coded",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Radix { scatter, gather } if scatter != gather => {
                write!(f, "({};{})", listed(scatter), listed(gather))
            }
            Self::Radix { scatter, .. } if !scatter.is_empty() => write!(f, "({})", listed(scatter)),
            Self::Mixed { shares: Some(MixedShares { reducer, worker }) } => {
                write!(f, "({reducer},{worker})")
            }
            Self::Hierarchical { inner, outer } => write!(f, "({inner},{outer})"),
            Self::Sites { inner, outer, sizes } => write!(f, "({inner},{outer},{sizes})"),
            Self::Weighted { plain, shares } => write!(f, "({plain},{shares})"),
            Self::File(file) => write!(f, "={file}"),
            Self::Coded { plain } => write!(f, "({plain})"),
            Self::Trees { mode, single } => {
                let parts: Vec<&str> =
                    mode.map(TreeMode::name).into_iter().chain(single.then_some(SINGLE)).collect();
                if parts.is_empty() { Ok(()) } else { write!(f, "({})", parts.join(",")) }
            }
            _ => Ok(()),
        }
    }
}

/// What trees are called of which one carries the whole buffer.
const SINGLE: &str = "single";

fn listed(factors: &[u32]) -> String {
    let factors: Vec<String> = factors.iter().map(u32::to_string).collect();
    factors.join(",")
}

/// A text that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no algorithm is called {text:?}: use radix, radix(8,8), radix(4;2,2), sharded, doubling, one_shot, star, tree, \
     reduction_server, mixed, mixed(3,1), chain, double_tree, hierarchical, hierarchical(radix,doubling), hierarchical(radix,reduction_server), ring, trees, trees(mxnet), trees(best), \
     trees(throughput), trees(best,single), weighted(radix,16x3,1) or sites(radix,radix,3x2)"
)]
pub struct ParseAlgorithmError {
    text: String,
}

impl FromStr for Algorithm {
    type Err = ParseAlgorithmError;

    /// Reads a name with its parameters; spaces around names and numbers do not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseAlgorithmError { text: text.to_string() })
    }
}

fn parse(text: &str) -> Option<Algorithm> {
    let (name, parameters) = split(text)?;
    match (name, &parameters[..]) {
        ("coded", [plain]) => Some(parse_weighted(plain)?.coded()),
        _ => parse_weighted(text),
    }
}

/// Everything but coded forms, which do not nest.
fn parse_weighted(text: &str) -> Option<Algorithm> {
    let (name, parameters) = split(text)?;
    match (name, &parameters[..]) {
        ("weighted", [plain, shares @ ..]) => {
            Some(parse_plain(plain)?.weighted(shares.join(",").parse().ok()?))
        }
        _ => parse_plain(text),
    }
}

/// Everything but coded forms and those by shares, which do not nest either.
fn parse_plain(text: &str) -> Option<Algorithm> {
    let (name, parameters) = split(text)?;
    match (name, &parameters[..]) {
        ("hierarchical", []) => Some(Algorithm::hierarchical()),
        ("hierarchical", [inner, outer]) => Some(Algorithm::Hierarchical {
            inner: Box::new(parse_flat(inner)?),
            outer: Box::new(parse_flat(outer)?),
        }),
        ("sites", [inner, outer, sizes @ ..]) => {
            // Inside a site hosts can have a level of their own.
            let inner = match split(inner)? {
                ("hierarchical", _) => parse_plain(inner)?,
                _ => parse_flat(inner)?,
            };
            let (outer, sizes) = (Box::new(parse_flat(outer)?), sizes.join(",").parse().ok()?);
            Some(Algorithm::Sites { inner: Box::new(inner), outer, sizes })
        }
        _ => parse_flat(text),
    }
}

/// Everything but hierarchies, which do not nest.
fn parse_flat(text: &str) -> Option<Algorithm> {
    let (name, parameters) = split(text)?;
    Some(match (name, &parameters[..]) {
        ("radix", []) | ("sharded", []) => Algorithm::radix(vec![]),
        ("radix", parameters) => radix(parameters)?,
        ("doubling", []) => Algorithm::Doubling,
        ("one_shot", []) => Algorithm::OneShot,
        ("star", []) => Algorithm::Star,
        ("tree", []) => Algorithm::Tree,
        ("trees", parameters) => trees(parameters)?,
        ("reduction_server", []) => Algorithm::ReductionServer,
        ("ring", []) => Algorithm::Ring,
        ("mixed", []) => Algorithm::Mixed { shares: None },
        ("mixed", [reducer, worker]) => Algorithm::Mixed { shares: Some(shares(reducer, worker)?) },
        ("chain", []) => Algorithm::Chain,
        ("double_tree", []) => Algorithm::DoubleTree,
        _ => return None,
    })
}

/// The most chunks of one member.
const MOST_SHARE: u32 = 256;

/// How many chunks a reducer and a worker have.
fn shares(reducer: &str, worker: &str) -> Option<MixedShares> {
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number <= MOST_SHARE);
    let shares = MixedShares { reducer: number(reducer)?, worker: number(worker)? };
    (shares.reducer > 0).then_some(shares)
}

/// How trees are planned, whether there is one, both or neither.
fn trees(parameters: &[&str]) -> Option<Algorithm> {
    let (parameters, single) = match parameters {
        [before @ .., last] if last.trim() == SINGLE => (before, true),
        all => (all, false),
    };
    let mode = match parameters {
        [] => None,
        [mode] => Some(mode.trim().parse().ok()?),
        _ => return None,
    };
    Some(Algorithm::Trees { mode, single })
}

/// Factors for both halves, or for each: `8,8`, `4;2,2`; a half without any has a single stage.
fn radix(parameters: &[&str]) -> Option<Algorithm> {
    let text = parameters.join(",");
    let factors = |text: &str| text.split(',').map(|factor| factor.trim().parse().ok()).collect();
    let half = |text: &str| if text.trim().is_empty() { Some(vec![]) } else { factors(text) };
    match text.split_once(';') {
        None => Some(Algorithm::radix(factors(&text)?)),
        Some((scatter, gather)) => Some(Algorithm::Radix { scatter: half(scatter)?, gather: half(gather)? }),
    }
}

/// Splits `name(a,b(c,d))` into `name` and `[a, b(c,d)]`.
fn split(text: &str) -> Option<(&str, Vec<&str>)> {
    let Some((name, rest)) = text.trim().split_once('(') else { return Some((text.trim(), vec![])) };
    let inside = rest.strip_suffix(')')?;
    let mut depth = 0usize;
    let parameters = inside.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    Some((name.trim_end(), parameters.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let more = [
            "radix(2)",
            "radix(8,64)",
            "radix(4;2,2)",
            "trees(single)",
            "trees(throughput,single)",
            "radix(;2)",
            "mixed(3,1)",
            "radix(8,8;)",
            "hierarchical(radix(2,2),one_shot)",
            "hierarchical(radix,radix(4))",
            "hierarchical(radix,reduction_server)",
            "coded(radix)",
            "coded(reduction_server)",
            "coded(hierarchical(radix,radix(2)))",
            "weighted(radix,16x3,1)",
            "weighted(radix(4;2,2),0,16,5x2)",
            "weighted(mixed,16x4,8)",
            "weighted(hierarchical(radix,radix(2)),16,1)",
            "coded(weighted(radix,16x3,1))",
            "sites(radix,radix,3x2)",
            "sites(hierarchical(radix,radix(2)),radix(2),6,12x2)",
            "weighted(sites(radix,radix,1,2),16,8x2)",
        ];
        let all = Algorithm::all().map(|algorithm| algorithm.to_string());
        for text in more.iter().copied().chain(all.iter().map(String::as_str)) {
            let algorithm: Algorithm = text.parse().unwrap();
            assert_eq!(algorithm.to_string().parse(), Ok(algorithm), "{text}");
        }
        assert_eq!("sharded".parse(), Ok(Algorithm::radix(vec![])));
        assert_eq!(" radix ( 8 , 8 ) ".parse(), Ok(Algorithm::radix(vec![8, 8])));
        let halves = Algorithm::Radix { scatter: vec![4], gather: vec![2, 2] };
        assert_eq!(" radix ( 4 ; 2 , 2 ) ".parse(), Ok(halves));
        assert_eq!("radix(2;2)".parse(), "radix(2)".parse::<Algorithm>());
        assert_eq!("hierarchical".parse(), "hierarchical(radix,radix)".parse::<Algorithm>());
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "Ring",
            "nccl",
            "ring()",
            "ring(2)",
            "radix(",
            "radix()",
            "radix(8,)",
            "radix(-2)",
            "radix(8",
            "radix(8;2;2)",
            "radix(8;2,)",
            "radix)",
            "radix(8))",
            "sharded(2)",
            "hierarchical(radix)",
            "hierarchical(radix,radix,radix)",
            "hierarchical(hierarchical,radix)",
            "hierarchical(coded(radix),radix)",
            "coded",
            "coded(coded(radix))",
            "weighted",
            "weighted(radix)",
            "weighted(radix,17)",
            "weighted(radix,0x4)",
            "weighted(radix,16,)",
            "weighted(16x3,1)",
            "weighted(weighted(radix,1),1)",
            "weighted(coded(radix),16)",
            "sites",
            "sites(radix,radix)",
            "sites(radix,radix,6)",
            "sites(radix,radix,3,0)",
            "sites(radix,radix,3x256)",
            "sites(radix,radix,4097,1)",
            "sites(sites(radix,radix,3x2),radix,6x2)",
            "sites(radix,hierarchical,3x2)",
            "tree,ring",
        ] {
            let error = text.parse::<Algorithm>().expect_err(text);
            assert!(error.to_string().contains("reduction_server"));
        }
    }
}
