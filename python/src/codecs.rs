//! Names of codecs.

use herringbone::core::codec::{Codec, CodecChoice, ParseCodecError};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::str::FromStr;

/// The full name of a codec, or `auto`, if that is allowed: the plan chooses one then.
#[pyfunction]
#[pyo3(signature = (name, or_auto=false))]
pub(crate) fn codec(name: &str, or_auto: bool) -> PyResult<String> {
    match or_auto {
        true => parse_codec::<CodecChoice>(name).map(|choice| choice.to_string()),
        false => parse_codec::<Codec>(name).map(|codec| codec.to_string()),
    }
}

/// The codec that a name stands for. The error contains the name.
pub(crate) fn parse_codec<C: FromStr<Err = ParseCodecError>>(name: &str) -> PyResult<C> {
    name.parse().map_err(|error: ParseCodecError| PyValueError::new_err(error.to_string()))
}

/// The names of all codecs, each with a usual parameter.
#[pyfunction]
pub(crate) fn codecs() -> Vec<String> {
    Codec::EXAMPLES.iter().map(ToString::to_string).collect()
}
