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
#[non_exhaustive]
pub enum ParseAlgorithmError {
    /// No algorithm has this name, or these parameters.
    #[error(
        "no algorithm is called {text:?}: use radix, radix(8,8), radix(4;2,2), sharded, doubling, one_shot, star, tree, \
         reduction_server, mixed, mixed(3,1), chain, double_tree, hierarchical, hierarchical(radix,doubling), hierarchical(radix,reduction_server), ring, trees, trees(mxnet), trees(best), \
         trees(throughput), trees(best,single), weighted(radix,16x3,1) or sites(radix,radix,3x2)"
    )]
    Unknown {
        /// The text.
        text: String,
    },
    /// The numbers after the name cannot be.
    #[error("{text:?} is no algorithm: {why}")]
    Numbers {
        /// The text.
        text: String,
        /// The error in its shares, or in the sizes of its sites, and how to write them.
        why: String,
    },
}

/// Why a part of a text is no algorithm.
enum Fault {
    Name,
    Numbers(String),
}

impl Fault {
    fn numbers(error: impl fmt::Display) -> Self {
        Self::Numbers(error.to_string())
    }
}

impl FromStr for Algorithm {
    type Err = ParseAlgorithmError;

    /// Reads a name with its parameters; spaces around names and numbers do not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map_err(|fault| match fault {
            Fault::Name => ParseAlgorithmError::Unknown { text: text.to_string() },
            Fault::Numbers(why) => ParseAlgorithmError::Numbers { text: text.to_string(), why },
        })
    }
}

fn parse(text: &str) -> Result<Algorithm, Fault> {
    let (name, parameters) = split(text).ok_or(Fault::Name)?;
    match (name, &parameters[..]) {
        ("coded", [plain]) => Ok(parse_weighted(plain)?.coded()),
        _ => parse_weighted(text),
    }
}

/// Everything but coded forms, which do not nest.
fn parse_weighted(text: &str) -> Result<Algorithm, Fault> {
    let (name, parameters) = split(text).ok_or(Fault::Name)?;
    match (name, &parameters[..]) {
        ("weighted", [plain, shares @ ..]) => {
            Ok(parse_plain(plain)?.weighted(shares.join(",").parse().map_err(Fault::numbers)?))
        }
        _ => parse_plain(text),
    }
}

/// Everything but coded forms and those by shares, which do not nest either.
fn parse_plain(text: &str) -> Result<Algorithm, Fault> {
    let (name, parameters) = split(text).ok_or(Fault::Name)?;
    let flat = |text: &str| parse_flat(text).ok_or(Fault::Name);
    match (name, &parameters[..]) {
        ("hierarchical", []) => Ok(Algorithm::hierarchical()),
        ("hierarchical", [inner, outer]) => {
            Ok(Algorithm::Hierarchical { inner: Box::new(flat(inner)?), outer: Box::new(flat(outer)?) })
        }
        ("sites", [inner, outer, sizes @ ..]) => {
            // Inside a site hosts can have a level of their own.
            let inner = match split(inner) {
                Some(("hierarchical", _)) => parse_plain(inner)?,
                _ => flat(inner)?,
            };
            let sizes = sizes.join(",").parse().map_err(Fault::numbers)?;
            Ok(Algorithm::Sites { inner: Box::new(inner), outer: Box::new(flat(outer)?), sizes })
        }
        _ => flat(text),
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
            "weighted(16x3,1)",
            "weighted(weighted(radix,1),1)",
            "weighted(coded(radix),16)",
            "sites",
            "sites(sites(radix,radix,3x2),radix,6x2)",
            "sites(radix,hierarchical,3x2)",
            "tree,ring",
        ] {
            let error = text.parse::<Algorithm>().expect_err(text);
            assert!(error.to_string().contains("reduction_server"));
        }
    }

    /// The name is right, so a list of names would not help.
    #[test]
    fn numbers_that_cannot_be_are_told() {
        for (text, why) in [
            ("weighted(radix)", "\"\" has no shares: write sixteenths"),
            ("weighted(radix,17)", "share 17 of owner 0 is above 16"),
            ("weighted(radix,0x4)", "no owner has a share above 0"),
            ("weighted(radix,16,)", "has no shares: write sixteenths, 0 to 16 and at most 4096"),
            ("weighted(radix,16x16383,1)", "at most 4096 of them"),
            ("weighted(radix,-1,16)", "\"-1,16\" has no shares"),
            ("coded(weighted(radix,17))", "share 17 of owner 0"),
            ("sites(radix,radix)", "\"\" has no sizes of sites"),
            ("sites(radix,radix,6)", "\"6\" has no sizes of sites"),
            ("sites(radix,radix,3,0)", "\"3,0\" has no sizes of sites"),
            ("sites(radix,radix,3x0)", "\"3x0\" has no sizes of sites"),
            ("sites(radix,radix,3x256)", "has no sizes of sites"),
            ("sites(radix,radix,4097,1)", "has no sizes of sites"),
            ("weighted(sites(radix,radix,6),16x6)", "\"6\" has no sizes of sites"),
        ] {
            let error = text.parse::<Algorithm>().expect_err(text).to_string();
            assert!(error.starts_with(&alloc::format!("{text:?} is no algorithm: ")), "{error}");
            assert!(error.contains(why) && !error.contains("one_shot"), "{error}");
        }
    }
}
