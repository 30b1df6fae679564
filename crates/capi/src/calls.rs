//! Collectives in C's terms: numbers and addresses become a request, which runs now or in the background.

use crate::{
    failure::InterfaceFailure,
    pointers::{InputPointer, LentMemory, OutputPointer},
    registry::RunningWork,
};
use herringbone::{Collective, Communicator, DType, ReduceOp, Request};
use std::ffi::c_int;

/// A call of one collective.
pub(crate) struct CollectiveCall {
    pub(crate) collective: Collective,
    /// Elements of the whole buffer, or of one rank's part, as the engine counts them.
    pub(crate) count: usize,
    pub(crate) dtype: c_int,
    pub(crate) op: c_int,
    pub(crate) input: InputPointer,
    pub(crate) output: OutputPointer,
}

impl CollectiveCall {
    /// The call that moves nothing.
    pub(crate) fn barrier() -> Self {
        let (dtype, op, output) = (DType::U8 as c_int, ReduceOp::Sum as c_int, OutputPointer::NONE);
        Self { collective: Collective::Barrier, count: 0, dtype, op, input: output.as_input(), output }
    }

    /// Makes the call, and waits for its end.
    ///
    /// # Errors
    /// If it cannot be made, and those of the operation.
    pub(crate) fn execute(&self, group: &Communicator) -> Result<(), InterfaceFailure> {
        let (request, _lent) = self.request(group)?;
        Ok(group.execute(request)?)
    }

    /// Makes the call, and does not wait.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn submit(&self, group: &Communicator) -> Result<RunningWork, InterfaceFailure> {
        let (request, lent) = self.request(group)?;
        Ok(RunningWork::new(group.submit(request)?, lent))
    }

    /// The request, and its memory.
    fn request(&self, group: &Communicator) -> Result<(Request, LentMemory), InterfaceFailure> {
        let dtype = dtype_of(self.dtype)?;
        let op = if self.collective.folds() { op_of(self.op)? } else { ReduceOp::Sum };
        // What only moves is moved as bytes.
        let (unit, factor) = if self.collective.folds() { (dtype, 1) } else { (DType::U8, dtype.bytes()) };
        let count = self.count.checked_mul(factor).ok_or_else(|| self.too_many(dtype))?;
        let (size, rank) = (group.size(), group.rank());
        let bytes = |elements: usize| {
            let bytes = elements.checked_mul(unit.bytes()).filter(|bytes| isize::try_from(*bytes).is_ok());
            bytes.ok_or_else(|| self.too_many(dtype))
        };
        let inputs = bytes(self.collective.input_elements(size, rank, count))?;
        let outputs = bytes(self.collective.output_elements(size, rank, count))?;
        let to = match self.collective {
            // The engine wants an output of each rank, and does not touch it.
            Collective::Reduce { root } if root != rank && self.output.is_null() => {
                self.input.as_unused_output()
            }
            _ => self.output,
        };
        let lent = self.input.lend(inputs, to, outputs)?;
        let request = Request::new(self.collective, unit, count, lent.input.clone(), lent.output.clone());
        Ok((request.op(op), lent))
    }

    fn too_many(&self, dtype: DType) -> InterfaceFailure {
        InterfaceFailure::argument(format!(
            "{} of {} {dtype}: no buffer is as long; pass a smaller count",
            self.collective.name(),
            self.count
        ))
    }
}

fn dtype_of(number: c_int) -> Result<DType, InterfaceFailure> {
    let known = u8::try_from(number).ok().and_then(DType::from_code);
    known.ok_or_else(|| {
        InterfaceFailure::argument(format!("{number} is no element type: pass one of enum herringbone_dtype"))
    })
}

fn op_of(number: c_int) -> Result<ReduceOp, InterfaceFailure> {
    let known = u8::try_from(number).ok().and_then(ReduceOp::from_code);
    known.ok_or_else(|| {
        InterfaceFailure::argument(format!("{number} is no operation: pass one of enum herringbone_op"))
    })
}
