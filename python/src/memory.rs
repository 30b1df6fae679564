//! The one place where Python's word is taken for an address.
#![allow(unsafe_code)]

use herringbone_sys::region::Region;
use pyo3::prelude::*;

/// Address and length in bytes, as Python's numbers.
pub(crate) type PySpan = (usize, usize);

/// The memory of an operation's input and output as regions that keep `owner` alive; one region where they coincide.
///
/// # Safety
/// `source` is mapped and readable, and `target` writable, as long as `owner` lives, and Python code touches neither
/// before the operation has finished. `herringbone.communicator` and `herringbone.torch.collectives` take both from
/// arrays and tensors that they pass as `owner`; the module that exports this is private to them.
pub(crate) unsafe fn regions(source: PySpan, target: PySpan, owner: &Bound<'_, PyAny>) -> (Region, Region) {
    let region = |(address, bytes): PySpan, writable| {
        let start = std::ptr::with_exposed_provenance_mut(address);
        let keep = Box::new(owner.clone().unbind());
        // SAFETY: what the caller promises of this span is what the region needs, and the region holds the owner.
        unsafe { Region::from_raw(start, bytes, writable, keep) }
    };
    let output = region(target, true);
    let input = if source == target { output.clone() } else { region(source, false) };
    (input, output)
}
