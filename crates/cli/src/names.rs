//! Names on the command line.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use herringbone::settings::ALL;
use herringbone::{Algorithm, Collective, nearest_name, parse_algorithm};
use std::str::FromStr;

/// Other programs' names for some of ours. The help does not show them.
const ALIASES: [(&str, &[&str]); 17] = [
    ("average", &["avg", "mean"]),
    ("product", &["prod"]),
    ("bit_and", &["band"]),
    ("bit_or", &["bor"]),
    ("bit_xor", &["bxor"]),
    ("f64", &["float64", "fp64", "double"]),
    ("f32", &["float32", "fp32", "float"]),
    ("f16", &["float16", "fp16", "half"]),
    ("bf16", &["bfloat16"]),
    ("i8", &["int8"]),
    ("u8", &["uint8"]),
    ("i16", &["int16"]),
    ("u16", &["uint16"]),
    ("i32", &["int32", "int"]),
    ("u32", &["uint32"]),
    ("i64", &["int64", "long"]),
    ("u64", &["uint64"]),
];

/// The setting that is called so, or that takes the variable of this name in its place.
pub(crate) fn setting_named(text: &str) -> Result<&'static str, String> {
    let name = text.trim().to_ascii_uppercase().replace('-', "_");
    let short = |name: &'static str| name.strip_prefix("HERRINGBONE_").unwrap_or(name);
    let wanted = name.strip_prefix("HERRINGBONE_").unwrap_or(&name);
    let found = ALL.iter().find(|setting| short(setting.name) == wanted);
    let of_others =
        || ALL.iter().find(|setting| setting.fallbacks.iter().any(|names| names.contains(&name.as_str())));
    found.or_else(of_others).map(|setting| setting.name).ok_or_else(|| {
        let near = nearest_name(wanted, ALL.map(|setting| short(setting.name)));
        let near = near.map(|near| format!("; did you mean HERRINGBONE_{near}?")).unwrap_or_default();
        format!("unknown setting; `herringbone settings` lists them{near}")
    })
}

/// Takes one of these names, or what other programs call it; of any other clap says what is nearest.
pub(crate) fn one_of<T>(names: &[&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    let aliases = |name: &str| ALIASES.iter().find(|(own, _)| *own == name).map_or(&[][..], |(_, all)| *all);
    let values = names.iter().map(|name| PossibleValue::new(*name).aliases(aliases(name).iter().copied()));
    PossibleValuesParser::new(values.collect::<Vec<_>>()).try_map(|name| own(&name).parse())
}

/// Our name for one that other programs use.
fn own(name: &str) -> &str {
    ALIASES.iter().find(|(_, others)| others.contains(&name)).map_or(name, |(own, _)| own)
}

/// Reads a text by `read`, and lets shells complete `names`, the parts of the text.
#[derive(Clone)]
pub(crate) struct Completed<T> {
    read: fn(&str) -> Result<T, String>,
    names: Vec<&'static str>,
}

impl<T> Completed<T> {
    pub(crate) fn new(read: fn(&str) -> Result<T, String>, names: Vec<&'static str>) -> Self {
        Self { read, names }
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Completed<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        let read = self.read;
        let parser = move |text: &str| read(text);
        parser.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(|name| PossibleValue::new(*name))))
    }
}

/// All there are, or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameChoice<T> {
    All,
    Named(Vec<T>),
}

impl<T: PartialEq> NameChoice<T> {
    /// Names are separated by commas outside parentheses; duplicates are ignored.
    pub(crate) fn read<E>(text: &str, one: impl Fn(&str) -> Result<T, E>) -> Result<Self, E> {
        if text.trim() == "all" {
            return Ok(Self::All);
        }
        let mut depth = 0;
        let names = text.split(|character| {
            depth += match character {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            character == ',' && depth == 0
        });
        let mut named = Vec::new();
        for name in names {
            let item = one(name.trim())?;
            if !named.contains(&item) {
                named.push(item);
            }
        }
        Ok(Self::Named(named))
    }
}

/// An algorithm with its parameters.
pub(crate) fn algorithm() -> Completed<Algorithm> {
    Completed::new(|text| parse_algorithm(text).map_err(|error| error.to_string()), algorithms())
}

/// A collective with its root.
pub(crate) fn collective() -> Completed<Collective> {
    Completed::new(read_collective, collectives())
}

/// A collective's name, with what is nearest if it is none.
pub(crate) fn read_collective(text: &str) -> Result<Collective, String> {
    text.parse().map_err(|error: <Collective as FromStr>::Err| {
        match text.contains('(') && !text.contains(')') {
            true => format!("the closing parenthesis is missing: write {text})"),
            false => error.to_string(),
        }
    })
}

/// The algorithms' names without parameters.
pub(crate) fn algorithms() -> Vec<&'static str> {
    Algorithm::all().iter().map(Algorithm::name).collect()
}

/// The collectives' names without roots.
pub(crate) fn collectives() -> Vec<&'static str> {
    Collective::all(0).map(Collective::name).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::{DType, ReduceOp};

    #[test]
    fn every_alias_means_one_of_our_names() {
        for (name, others) in ALIASES {
            assert!(name.parse::<DType>().is_ok() || name.parse::<ReduceOp>().is_ok(), "{name}");
            for other in others {
                assert_eq!(own(other), name);
                assert!(other.parse::<DType>().is_err() && other.parse::<ReduceOp>().is_err(), "{other}");
            }
        }
        assert_eq!(own("f32"), "f32");
    }

    #[test]
    fn a_bracket_that_is_missing_is_named() {
        assert_eq!(
            read_collective("reduce(2").unwrap_err(),
            "the closing parenthesis is missing: write reduce(2)"
        );
        assert_eq!(read_collective("reduce(2)"), Ok(Collective::Reduce { root: 2 }));
        assert_eq!(algorithms().len(), Algorithm::all().len());
        assert_eq!(collectives().len(), 9);
    }
}
