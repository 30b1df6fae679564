//! Names on the command line.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::str::FromStr;

/// Takes one of these names; of any other clap says what is nearest.
pub(crate) fn one_of<T>(names: &[&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names.to_vec()).try_map(|name| name.parse())
}
