//! Lists of codecs on the command line.

use herringbone::core::codec::{Codec, CodecChoice};
use std::str::FromStr;

/// Codecs to compare.
#[derive(Clone, Debug)]
pub(crate) struct Codecs(pub(crate) Vec<CodecChoice>);

impl Codecs {
    /// The codecs, without `auto`.
    pub(crate) fn known(&self) -> Vec<Codec> {
        let known =
            |choice: &CodecChoice| if let CodecChoice::Of(codec) = choice { Some(*codec) } else { None };
        self.0.iter().filter_map(known).collect()
    }
}

impl FromStr for Codecs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Codec::EXAMPLES.map(CodecChoice::Of).to_vec()));
        }
        let codecs = text.split(',').map(|name| name.parse().map_err(|error| format!("{error}; or all")));
        Ok(Self(codecs.collect::<Result<_, String>>()?))
    }
}
