//! The compared codecs, and their input.

use crate::codecs::Codecs;
use std::path::PathBuf;

/// Options of compression.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct CompressedOptions {
    /// Compare all-reduces of f32 with and without these codecs: all, or a list like int8,topk:0.01,auto. Shows
    /// times, bytes sent, and the error relative to the plain sum
    #[arg(long, value_name = "LIST", conflicts_with_all = ["rig", "mapped", "collective", "root", "dtype", "pushpull", "calibrate"])]
    pub(super) compression: Option<Codecs>,
    /// With --compression: file of raw f32 values to sum [default: numbers of several magnitudes]
    #[arg(long, requires = "compression", value_name = "FILE")]
    pub(super) gradients: Option<PathBuf>,
}
