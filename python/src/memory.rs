//! Addresses that Python passes in, which are trusted, and addresses that Python is given.
#![allow(unsafe_code)]

use herringbone::Region;
use pyo3::prelude::*;

/// Address and length in bytes, as Python's numbers.
pub(crate) type PySpan = (usize, usize);

/// The memory of an operation's input and output as regions that keep `owner` alive; one region where they coincide.
/// Address 0 means that Python had no memory for the bytes.
///
/// # Safety
/// `source` is mapped and readable, and `target` writable, as long as `owner` lives, and Python code touches neither
/// before the operation has finished. `herringbone.communicator` and `herringbone.torch.collectives` take both from
/// arrays and tensors that they pass as `owner`; the module that exports this is private to them.
pub(crate) unsafe fn regions(source: PySpan, target: PySpan, owner: &Bound<'_, PyAny>) -> (Region, Region) {
    let region = |(address, bytes): PySpan, writable| {
        if address == 0 && bytes > 0 {
            return Region::lacking(bytes);
        }
        let start = std::ptr::with_exposed_provenance_mut(address);
        let keep = Box::new(owner.clone().unbind());
        // SAFETY: what the caller promises of this span is what the region needs, and the region holds the owner.
        unsafe { Region::from_raw(start, bytes, writable, keep) }
    };
    let output = region(target, true);
    let input = if source == target { output.clone() } else { region(source, false) };
    (input, output)
}

/// Memory that all ranks of this host map, until the last reference to this object is gone.
///
/// It outlives its communicator. A forked child does not have the memory, and its copy of this object frees nothing.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Mapped {
    address: usize,
    bytes: usize,
    /// Never touched here: Python code reads and writes the memory by its address.
    _memory: herringbone::Mapped<u8>,
}

impl Mapped {
    pub(crate) fn new(mut memory: herringbone::Mapped<u8>) -> Self {
        Self { address: memory.as_mut_ptr().expose_provenance(), bytes: memory.len(), _memory: memory }
    }
}

#[pymethods]
impl Mapped {
    /// Where it begins.
    #[getter]
    fn address(&self) -> usize {
        self.address
    }

    /// How many bytes it has.
    fn __len__(&self) -> usize {
        self.bytes
    }
}
