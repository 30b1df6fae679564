//! Checkpoints.

use super::pool::KeptBytes;
use crate::{Error, ErrorKind, Result, core::replay::Kept, sys::region::Region};
use std::fmt;

/// The models of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RabitModels {
    /// How many checkpoints there are.
    pub version: u32,
    /// The model that all ranks have.
    pub global: Vec<u8>,
    /// This rank's own, if ranks have one.
    pub local: Option<Vec<u8>>,
}

/// Makes bytes of the program's model.
pub(super) struct LazyModel(Box<dyn Fn() -> Result<Vec<u8>> + Send>);

impl LazyModel {
    pub(super) fn new(save: impl Fn() -> Result<Vec<u8>> + Send + 'static) -> Self {
        Self(Box::new(save))
    }

    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        (self.0)()
    }
}

impl fmt::Debug for LazyModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LazyModel")
    }
}

/// Bytes that are kept for others.
pub(super) fn kept(data: KeptBytes) -> Kept<KeptBytes> {
    Kept { bytes: data.region().len() as u64, data }
}

pub(super) fn owned(bytes: Vec<u8>) -> Region {
    Region::own(bytes).region().clone()
}

pub(super) fn copied(kept: &Kept<KeptBytes>) -> Result<Vec<u8>> {
    let access = kept.data.region().access().ok_or(Error::new(ErrorKind::Closed))?;
    Ok(access.span().to_vec())
}

/// Copies a region's bytes to one of the same length.
pub(super) fn copy(from: &Region, to: &Region) -> Result<()> {
    let closed = || Error::new(ErrorKind::Closed);
    let (from, to) = (from.access().ok_or_else(closed)?, to.access().ok_or_else(closed)?);
    to.span().copy_from(from.span());
    Ok(())
}
