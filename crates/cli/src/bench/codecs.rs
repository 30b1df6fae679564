//! Which codecs are compared, and with what.

use herringbone::core::codec::Codec;
use std::{path::PathBuf, str::FromStr};

/// What is sent in fewer bytes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CompressedOptions {
    /// Time all-reduces of f32 with each of these codecs beside plain ones: all, or a list like int8,topk:0.01. Says also what a
    /// worker sends, and the error of a sum beside the plain one
    #[arg(long, value_name = "LIST", conflicts_with_all = ["rig", "mapped", "collective", "root", "dtype", "pushpull", "calibrate"])]
    pub(super) compression: Option<Codecs>,
    /// With --compression: what is summed, f32 as they lie in memory, like gradients that a training has saved; numbers of several
    /// magnitudes unless said
    #[arg(long, requires = "compression", value_name = "FILE")]
    pub(super) gradients: Option<PathBuf>,
}

/// Codecs to compare.
#[derive(Clone, Debug)]
pub(super) struct Codecs(pub(super) Vec<Codec>);

impl FromStr for Codecs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self(Codec::EXAMPLES.to_vec()));
        }
        let codecs = text.split(',').map(|name| name.parse::<Codec>().map_err(|error| error.to_string()));
        Ok(Self(codecs.collect::<Result<_, _>>()?))
    }
}
