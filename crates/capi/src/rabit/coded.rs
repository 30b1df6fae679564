//! The functions that `herringbone/rabit_library.h` declares for `herringbone/rabit.h`: they return codes.

use crate::{
    failure::code_of,
    pointers::{
        ArrayPointer, ModelPointer, OutputPointer, ProgramPointer, ResultPointer, SaveFunction, TextPointer,
    },
    rabit_calls::{RabitBuffer, broadcast},
    session::{self, current},
};
use std::ffi::{c_char, c_int};

/// Joins the job that the environment describes, or continues in it.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_init(count: c_int, arguments: ArrayPointer<TextPointer>) -> c_int {
    code_of(|| session::init(&arguments.arguments(count)?))
}

/// Waits until all ranks have reached their end, and leaves.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_finalize() -> c_int {
    code_of(session::finalize)
}

/// This process's rank.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_rank(rank: ResultPointer<u32>) -> c_int {
    code_of(|| rank.fill("rank", || Ok(current()?.rank())))
}

/// How many ranks there are.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_size(size: ResultPointer<u32>) -> c_int {
    code_of(|| size.fill("size", || Ok(current()?.size())))
}

/// How many checkpoints there are.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_version(version: ResultPointer<u32>) -> c_int {
    code_of(|| version.fill("version", || Ok(current()?.version())))
}

/// Prints a line with this process's rank.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_print(line: TextPointer) -> c_int {
    code_of(|| current()?.print(&line.needed("line")?))
}

/// The name of this process's host.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_name(
    name: ResultPointer<c_char>,
    capacity: usize,
    length: ResultPointer<usize>,
) -> c_int {
    code_of(|| length.fill("length", || name.fill_text("name", capacity, &current()?.processor_name()?)))
}

/// Copies the root's bytes to all ranks.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_broadcast(
    buffer: OutputPointer,
    bytes: usize,
    root: c_int,
    place: u64,
) -> c_int {
    code_of(|| broadcast(buffer, bytes, root, place))
}

/// Begins an all-reduce: whether the program has to give its input now, and finish it.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_begin_all_reduce(
    buffer: OutputPointer,
    count: usize,
    dtype: c_int,
    op: c_int,
    place: u64,
    needs_input: ResultPointer<c_int>,
) -> c_int {
    let buffer = RabitBuffer { buffer, place };
    code_of(|| needs_input.fill("needs_input", || Ok(buffer.begin_all_reduce(count, dtype, op)?.into())))
}

/// Begins an all-gather of slices of a buffer.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_begin_all_gather(
    buffer: OutputPointer,
    total: usize,
    begin: usize,
    bytes: usize,
    previous: usize,
    place: u64,
    needs_input: ResultPointer<c_int>,
) -> c_int {
    let buffer = RabitBuffer { buffer, place };
    let begun = || Ok(buffer.begin_all_gather([total, begin, bytes, previous], 1)?.into());
    code_of(|| needs_input.fill("needs_input", begun))
}

/// Runs the call that has begun.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_finish() -> c_int {
    code_of(|| current()?.finish())
}

/// Loads the last checkpoint: its version, the model of all ranks, and this rank's own.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_load(
    version: ResultPointer<u32>,
    global: ModelPointer,
    global_bytes: ResultPointer<usize>,
    local: ModelPointer,
    local_bytes: ResultPointer<usize>,
) -> c_int {
    let places = ([global, local], [global_bytes, local_bytes]);
    code_of(|| version.fill("version", || crate::rabit_calls::load(places.0, places.1)))
}

/// Ends a version.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_checkpoint(
    global: ArrayPointer<c_char>,
    global_bytes: usize,
    local: ArrayPointer<c_char>,
    local_bytes: usize,
) -> c_int {
    code_of(|| crate::rabit_calls::checkpoint([global, local], [global_bytes, local_bytes]))
}

/// Ends a version, with a model that stays where it is.
#[unsafe(no_mangle)]
pub extern "C" fn herringbone_rabit_lazy_checkpoint(save: SaveFunction, argument: ProgramPointer) -> c_int {
    code_of(|| current()?.lazy_checkpoint(save.of(argument)?))
}
