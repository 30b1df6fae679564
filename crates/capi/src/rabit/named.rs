//! The functions of `rabit/c_api.h`, with RABIT's names and types.

use crate::{
    failure::{number_or, printed},
    pointers::{
        ArrayPointer, ModelPointer, OutputPointer, PrepareFunction, ProgramPointer, ResultPointer,
        TextPointer,
    },
    rabit_calls::{self, ProgramInput, RabitBuffer},
    session::{self, current, required},
};
use std::ffi::{c_char, c_int};

/// RABIT's functions do not know where the program calls them.
const NOWHERE: u64 = 0;

/// Joins the job, or continues in it.
#[unsafe(no_mangle)]
pub extern "C" fn RabitInit(argc: c_int, argv: ArrayPointer<TextPointer>) -> bool {
    printed(|| session::init(&argv.arguments(argc)?))
}

/// Waits until all ranks have reached their end, and leaves.
#[unsafe(no_mangle)]
pub extern "C" fn RabitFinalize() -> bool {
    printed(session::finalize)
}

/// The rank before this one; the last one for rank 0. -1 after a failure.
#[unsafe(no_mangle)]
pub extern "C" fn RabitGetRingPrevRank() -> c_int {
    number_or(-1, || {
        let session = current()?;
        Ok(((session.rank() + session.size() - 1) % session.size()).cast_signed())
    })
}

/// This process's rank, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn RabitGetRank() -> c_int {
    number_or(-1, || Ok(current()?.rank().cast_signed()))
}

/// How many ranks there are, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn RabitGetWorldSize() -> c_int {
    number_or(-1, || Ok(current()?.size().cast_signed()))
}

/// Whether there are other ranks: 1 or 0, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn RabitIsDistributed() -> c_int {
    number_or(-1, || Ok((current()?.size() > 1).into()))
}

/// Prints a line with this process's rank.
#[unsafe(no_mangle)]
pub extern "C" fn RabitTrackerPrint(msg: TextPointer) {
    printed(|| current()?.print(&msg.needed("msg")?));
}

/// The name of this process's host, cut to the available room.
#[unsafe(no_mangle)]
pub extern "C" fn RabitGetProcessorName(
    out_name: ResultPointer<c_char>,
    out_len: ResultPointer<usize>,
    max_len: usize,
) {
    printed(|| {
        out_len.fill("out_len", || out_name.fill_text("out_name", max_len, &current()?.processor_name()?))
    });
}

/// Copies the root's bytes to all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn RabitBroadcast(sendrecv_data: OutputPointer, size: usize, root: c_int) {
    required(|| rabit_calls::broadcast(sendrecv_data, size, root, NOWHERE));
}

/// Gathers slices of a buffer.
#[unsafe(no_mangle)]
pub extern "C" fn RabitAllgather(
    sendrecvbuf: OutputPointer,
    total_size: usize,
    begin_index: usize,
    size_node_slice: usize,
    size_prev_slice: usize,
    enum_dtype: c_int,
) {
    let numbers = [total_size, begin_index, size_node_slice, size_prev_slice];
    required(|| {
        rabit_calls::all_gather(RabitBuffer { buffer: sendrecvbuf, place: NOWHERE }, numbers, enum_dtype)
    });
}

/// Folds a buffer over all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn RabitAllreduce(
    sendrecvbuf: OutputPointer,
    count: usize,
    enum_dtype: c_int,
    enum_op: c_int,
    prepare_fun: PrepareFunction,
    prepare_arg: ProgramPointer,
) {
    let buffer = RabitBuffer { buffer: sendrecvbuf, place: NOWHERE };
    let input = ProgramInput { prepare: prepare_fun, argument: prepare_arg };
    required(|| rabit_calls::all_reduce(buffer, count, enum_dtype, enum_op, &input));
}

/// Loads the last checkpoint: its version, which is 0 if there is none, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn RabitLoadCheckPoint(
    out_global_model: ModelPointer,
    out_global_len: ResultPointer<usize>,
    out_local_model: ModelPointer,
    out_local_len: ResultPointer<usize>,
) -> c_int {
    let (models, lengths) = ([out_global_model, out_local_model], [out_global_len, out_local_len]);
    number_or(-1, || Ok(rabit_calls::load(models, lengths)?.cast_signed()))
}

/// Ends a version.
#[unsafe(no_mangle)]
pub extern "C" fn RabitCheckPoint(
    global_model: ArrayPointer<c_char>,
    global_len: usize,
    local_model: ArrayPointer<c_char>,
    local_len: usize,
) {
    required(|| rabit_calls::checkpoint([global_model, local_model], [global_len, local_len]));
}

/// How many checkpoints there are, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn RabitVersionNumber() -> c_int {
    number_or(-1, || Ok(current()?.version().cast_signed()))
}

/// Nothing: a program calls it to link the library.
#[unsafe(no_mangle)]
pub extern "C" fn RabitLinkTag() -> c_int {
    0
}
