//! A codec, or the request that the plan chooses one.

use super::{Codec, ParseCodecError};
use core::{fmt, str::FromStr};

/// A user's choice of a call's codec. [`FromStr`] reads a codec's name, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodecChoice {
    /// This one.
    Of(Codec),
    /// The codec that the plan expects to pay; see [`automatic`](crate::plan::automatic).
    Automatic,
}

/// Its name.
const AUTOMATIC: &str = "auto";

impl Default for CodecChoice {
    fn default() -> Self {
        Self::Of(Codec::Plain)
    }
}

impl From<Codec> for CodecChoice {
    fn from(codec: Codec) -> Self {
        Self::Of(codec)
    }
}

impl FromStr for CodecChoice {
    type Err = ParseCodecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.trim() {
            AUTOMATIC => Ok(Self::Automatic),
            name => name.parse().map(Self::Of).map_err(ParseCodecError::or_automatic),
        }
    }
}

impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(codec) => codec.fmt(f),
            Self::Automatic => f.write_str(AUTOMATIC),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_are_those_of_codecs_and_auto() {
        for name in ["none", "int8", "topk:0.01", "auto"] {
            assert_eq!(name.parse::<CodecChoice>().unwrap().to_string(), name);
        }
        let error = "automatic".parse::<CodecChoice>().unwrap_err().to_string();
        assert!(error.contains("\"automatic\"") && error.contains("auto, none, bf16"), "{error}");
        let error = "auto".parse::<Codec>().unwrap_err().to_string();
        assert!(error.contains("use none, bf16"), "{error}");
    }
}
