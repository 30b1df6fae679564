//! Addresses: where Python's word is taken for one, and where Python is given one.
#![allow(unsafe_code)]

use herringbone::Region;
use pyo3::prelude::*;
use std::{
    ptr::null_mut,
    sync::atomic::{AtomicPtr, Ordering},
};

/// Address and length in bytes, as Python's numbers.
pub(crate) type PySpan = (usize, usize);

/// The memory of an operation's input and output as regions that keep `owner` alive; one region where they coincide. Bytes at
/// address 0 are those that Python had no memory for.
///
/// # Safety
/// `source` is mapped and readable, and `target` writable, as long as `owner` lives, and Python code touches neither
/// before the operation has finished. `herringbone.communicator` and `herringbone.torch.collectives` take both from
/// arrays and tensors that they pass as `owner`; the module that exports this is private to them.
pub(crate) unsafe fn regions(source: PySpan, target: PySpan, owner: &Bound<'_, PyAny>) -> (Region, Region) {
    let_go(owner.py());
    let region = |(address, bytes): PySpan, writable| {
        if address == 0 && bytes > 0 {
            return Region::lacking(bytes);
        }
        let start = std::ptr::with_exposed_provenance_mut(address);
        let keep = Box::new(Kept::new(owner.clone().unbind()));
        // SAFETY: what the caller promises of this span is what the region needs, and the region holds the owner.
        unsafe { Region::from_raw(start, bytes, writable, keep) }
    };
    let output = region(target, true);
    let input = if source == target { output.clone() } else { region(source, false) };
    (input, output)
}

/// A Python object that the engine holds. Any thread drops it, at any time, with the interpreter's lock or without.
///
/// That takes no lock. A fork would leave one taken in the child, and the child would wait for it for ever as soon as it dropped
/// something, as where it is told that it has no engine. So what is dropped is only listed, and [let go](let_go) later.
pub(crate) struct Kept(Option<Box<Listed>>);

/// An object, and the one that was dropped before it.
struct Listed {
    object: Py<PyAny>,
    before: AtomicPtr<Listed>,
}

/// The object that was dropped last.
static DROPPED: AtomicPtr<Listed> = AtomicPtr::new(null_mut());

impl Kept {
    pub(crate) fn new(object: Py<PyAny>) -> Self {
        Self(Some(Box::new(Listed { object, before: AtomicPtr::default() })))
    }

    /// The object itself, which is the caller's.
    pub(crate) fn into_bound(mut self, py: Python<'_>) -> Bound<'_, PyAny> {
        let listed = self.0.take().unwrap_or_else(|| unreachable!("only this and its drop take it"));
        listed.object.into_bound(py)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some(listed) = self.0.take().map(Box::into_raw) else { return };
        let mut last = DROPPED.load(Ordering::Relaxed);
        loop {
            // SAFETY: it is this thread's until the exchange succeeds, after which nothing here touches it.
            unsafe { (*listed).before.store(last, Ordering::Relaxed) };
            match DROPPED.compare_exchange_weak(last, listed, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => last = other,
            }
        }
    }
}

/// Lets go of all objects that were dropped.
pub(crate) fn let_go(_py: Python<'_>) {
    if DROPPED.load(Ordering::Relaxed).is_null() {
        return;
    }
    let mut next = DROPPED.swap(null_mut(), Ordering::Acquire);
    while !next.is_null() {
        // SAFETY: `Kept` made it of a box and listed it once, and the swap has taken the list from all others.
        let listed = unsafe { Box::from_raw(next) };
        next = listed.before.into_inner();
        drop(listed.object);
    }
}

/// Runs `work` without the interpreter's lock, and lets go of what was dropped meanwhile.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let value = py.detach(work);
    let_go(py);
    value
}

/// Memory that all ranks of this host map, until the last reference to this is gone.
///
/// It outlives its communicator. A forked child has no such memory, and its copy of this frees nothing.
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
