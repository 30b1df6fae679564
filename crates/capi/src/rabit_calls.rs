//! Calls of RABIT's interface in C's terms: RABIT's numbers of types and operations, and buffers that are changed in
//! place.

use crate::{
    failure::InterfaceFailure,
    pointers::{ArrayPointer, ModelPointer, OutputPointer, PrepareFunction, ProgramPointer, ResultPointer},
    session::{BegunCall, current},
};
use herringbone::{
    Collective, DType, ReduceOp,
    rabit::{RabitCollective, RabitSlice},
};
use std::ffi::{c_char, c_int, c_long};

/// `long` of C.
const LONG: [DType; 2] =
    if size_of::<c_long>() == 8 { [DType::I64, DType::U64] } else { [DType::I32, DType::U32] };
/// RABIT's types by their numbers.
const DTYPES: [DType; 10] = [
    DType::I8,
    DType::U8,
    DType::I32,
    DType::U32,
    LONG[0],
    LONG[1],
    DType::F32,
    DType::F64,
    DType::I64,
    DType::U64,
];
/// RABIT's operations by their numbers.
const OPS: [ReduceOp; 4] = [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum, ReduceOp::BitOr];

fn dtype_of(number: c_int) -> Result<DType, InterfaceFailure> {
    let known = usize::try_from(number).ok().and_then(|number| DTYPES.get(number).copied());
    known.ok_or_else(|| {
        InterfaceFailure::argument(format!(
            "{number} is no element type of rabit: pass 0 to {}",
            DTYPES.len() - 1
        ))
    })
}

fn op_of(number: c_int, dtype: DType) -> Result<ReduceOp, InterfaceFailure> {
    let known = usize::try_from(number).ok().and_then(|number| OPS.get(number).copied());
    let op = known.ok_or_else(|| {
        InterfaceFailure::argument(format!("{number} is no operation of rabit: pass 0 to {}", OPS.len() - 1))
    })?;
    if op == ReduceOp::BitOr && matches!(dtype, DType::F32 | DType::F64) {
        return Err(InterfaceFailure::argument(format!("bits of {dtype}: pass an integer type")));
    }
    Ok(op)
}

/// A buffer that a call changes in place, and a hash of where the program makes the call.
#[derive(Clone, Copy)]
pub(crate) struct RabitBuffer {
    pub(crate) buffer: OutputPointer,
    pub(crate) place: u64,
}

impl RabitBuffer {
    /// Begins an all-reduce: whether the program has to give its input now.
    ///
    /// # Errors
    /// If the call cannot be made, and those of the engine.
    pub(crate) fn begin_all_reduce(
        self,
        count: usize,
        dtype: c_int,
        op: c_int,
    ) -> Result<bool, InterfaceFailure> {
        let dtype = dtype_of(dtype)?;
        let op = op_of(op, dtype)?;
        let bytes = count.checked_mul(dtype.bytes());
        self.begin(bytes, RabitCall { collective: Collective::AllReduce, dtype, count, op, slice: None })
    }

    /// Begins an all-gather of slices: of so many units as the numbers say, in their order the whole buffer, the begin of this rank's
    /// slice, its length, and that of the previous rank's.
    ///
    /// # Errors
    /// As [`begin_all_reduce`](Self::begin_all_reduce).
    pub(crate) fn begin_all_gather(self, numbers: [usize; 4], unit: usize) -> Result<bool, InterfaceFailure> {
        let bytes = numbers.map(|number| number.checked_mul(unit));
        let [Some(total), Some(begin), Some(bytes), Some(previous)] = bytes else {
            return Err(InterfaceFailure::argument("no buffer is as long: pass smaller sizes"));
        };
        if begin.checked_add(bytes).is_none_or(|end| end > total) {
            return Err(InterfaceFailure::argument(format!(
                "a slice of {bytes} bytes at {begin} is not inside a buffer of {total}: pass one that is"
            )));
        }
        let slice = Some(RabitSlice { begin, bytes, previous });
        let (dtype, op) = (DType::U8, ReduceOp::Sum);
        self.begin(Some(total), RabitCall { collective: Collective::AllGather, dtype, count: 0, op, slice })
    }

    fn begin(self, bytes: Option<usize>, call: RabitCall) -> Result<bool, InterfaceFailure> {
        let session = current()?;
        let lent = self.buffer.lend_in_place(bytes)?;
        let RabitCall { collective, dtype, count, op, slice } = call;
        let (input, output, place) = (lent.input.clone(), lent.output.clone(), self.place);
        let call = RabitCollective { collective, dtype, count, op, input, output, slice, place };
        session.begin(BegunCall { call, lent })
    }
}

/// What calls on a buffer differ in.
struct RabitCall {
    collective: Collective,
    dtype: DType,
    count: usize,
    op: ReduceOp,
    slice: Option<RabitSlice>,
}

/// Lets the program give the input of a call that has begun, and runs it.
pub(crate) fn finish(needs_input: bool, prepare: impl FnOnce()) -> Result<(), InterfaceFailure> {
    if !needs_input {
        return Ok(());
    }
    prepare();
    current()?.finish()
}

/// The program's function that gives a call's input, and what that is given.
pub(crate) struct ProgramInput {
    pub(crate) prepare: PrepareFunction,
    pub(crate) argument: ProgramPointer,
}

/// Folds a buffer over all ranks.
///
/// # Errors
/// As [`RabitBuffer::begin_all_reduce`].
pub(crate) fn all_reduce(
    buffer: RabitBuffer,
    count: usize,
    dtype: c_int,
    op: c_int,
    input: &ProgramInput,
) -> Result<(), InterfaceFailure> {
    finish(buffer.begin_all_reduce(count, dtype, op)?, || input.prepare.call(input.argument))
}

/// Gathers slices of a buffer, which have so many elements of a type.
///
/// # Errors
/// As [`RabitBuffer::begin_all_reduce`].
pub(crate) fn all_gather(
    buffer: RabitBuffer,
    numbers: [usize; 4],
    dtype: c_int,
) -> Result<(), InterfaceFailure> {
    finish(buffer.begin_all_gather(numbers, dtype_of(dtype)?.bytes())?, || {})
}

/// Copies the root's bytes to all ranks.
///
/// # Errors
/// As [`RabitBuffer::begin_all_reduce`].
pub(crate) fn broadcast(
    buffer: OutputPointer,
    bytes: usize,
    root: c_int,
    place: u64,
) -> Result<(), InterfaceFailure> {
    let size = current()?.size();
    let root = u32::try_from(root).ok().filter(|root| *root < size).ok_or_else(|| {
        InterfaceFailure::argument(format!("root is {root}: pass a rank, from 0 to {}", size - 1))
    })?;
    let (collective, dtype, op) = (Collective::Broadcast { root }, DType::U8, ReduceOp::Sum);
    let call = RabitCall { collective, dtype, count: bytes, op, slice: None };
    finish(RabitBuffer { buffer, place }.begin(Some(bytes), call)?, || {})
}

/// Loads the last checkpoint and shows its models, the global one and this rank's own, which need not be asked for; its version.
///
/// # Errors
/// If the global model is not asked for, and those of the engine.
pub(crate) fn load(
    models: [ModelPointer; 2],
    lengths: [ResultPointer<usize>; 2],
) -> Result<u32, InterfaceFailure> {
    if models[0].is_null() || lengths[0].is_null() {
        return Err(InterfaceFailure::argument("a place for the global model is null: pass an address"));
    }
    let session = current()?;
    let mut version = 0;
    session.load(|loaded| {
        // Nothing is touched if nothing is loaded, as with RABIT.
        let Some(loaded) = loaded else { return };
        version = loaded.version;
        models[0].show(Some(&loaded.global), lengths[0]);
        models[1].show(loaded.local.as_deref(), lengths[1]);
    })?;
    Ok(version)
}

/// Ends a version with these models; a local one that is null or empty is none.
///
/// # Errors
/// If the global one is null, and those of the engine.
pub(crate) fn checkpoint(
    models: [ArrayPointer<c_char>; 2],
    lengths: [usize; 2],
) -> Result<(), InterfaceFailure> {
    let session = current()?;
    let global = models[0].bytes("global_model", lengths[0])?;
    let has_local = !models[1].is_null() && lengths[1] > 0;
    let local = has_local.then(|| models[1].bytes("local_model", lengths[1])).transpose()?;
    session.checkpoint(global, local)
}
