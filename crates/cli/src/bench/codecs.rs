//! Which codecs are compared, and with what.

use crate::codecs::Codecs;
use std::path::PathBuf;

/// What is sent in fewer bytes.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CompressedOptions {
    /// Time all-reduces of f32 with each of these codecs beside plain ones: all, or a list like int8,topk:0.01,auto. Says also what a
    /// worker sends, and the error of a sum beside the plain one
    #[arg(long, value_name = "LIST", conflicts_with_all = ["rig", "mapped", "collective", "root", "dtype", "pushpull", "calibrate"])]
    pub(super) compression: Option<Codecs>,
    /// With --compression: what is summed, f32 as they lie in memory, like gradients that a training has saved; numbers of several
    /// magnitudes unless said
    #[arg(long, requires = "compression", value_name = "FILE")]
    pub(super) gradients: Option<PathBuf>,
}
