//! The collectives: each in a form that waits, and in one that gives a work.

use super::groups::with;
use crate::{
    calls::CollectiveCall,
    pointers::{InputPointer, OutputPointer, ResultPointer},
    registry::WORKS,
};
use herringbone::{Collective, ReduceOp};
use std::{ffi::c_int, sync::Arc};

/// The operation of collectives that fold nothing, which is not looked at.
const NO_OP: c_int = ReduceOp::Sum as c_int;

/// Exports the two forms of a collective.
macro_rules! collective {
    ($(#[$about:meta])* $name:ident, $name_async:ident, ($($field:ident: $Kind:ty),*), $call:expr) => {
        $(#[$about])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(communicator: u64, $($field: $Kind),*) -> c_int {
            with(communicator, |group| $call.execute(group))
        }

        $(#[$about])*
        ///
        /// In the background.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "C has no others")]
        pub extern "C" fn $name_async(communicator: u64, $($field: $Kind,)* work: ResultPointer<u64>) -> c_int {
            with(communicator, |group| work.fill("work", || Ok(WORKS.add(Arc::new($call.submit(group)?)))))
        }
    };
}

collective! {
    /// Folds all ranks' inputs into every rank's output.
    herringbone_all_reduce, herringbone_all_reduce_async,
    (input: InputPointer, output: OutputPointer, count: usize, dtype: c_int, op: c_int),
    CollectiveCall { collective: Collective::AllReduce, count, dtype, op, input, output }
}

collective! {
    /// Folds all ranks' inputs into the root's output. The others' may be null.
    herringbone_reduce, herringbone_reduce_async,
    (input: InputPointer, output: OutputPointer, count: usize, dtype: c_int, op: c_int, root: u32),
    CollectiveCall { collective: Collective::Reduce { root }, count, dtype, op, input, output }
}

collective! {
    /// Copies the root's buffer to all ranks.
    herringbone_broadcast, herringbone_broadcast_async,
    (buffer: OutputPointer, count: usize, dtype: c_int, root: u32),
    CollectiveCall {
        collective: Collective::Broadcast { root }, count, dtype, op: NO_OP, input: buffer.as_input(), output: buffer,
    }
}

collective! {
    /// Folds all ranks' inputs, and gives each rank its part of the result.
    herringbone_reduce_scatter, herringbone_reduce_scatter_async,
    (input: InputPointer, output: OutputPointer, count: usize, dtype: c_int, op: c_int),
    CollectiveCall { collective: Collective::ReduceScatter, count, dtype, op, input, output }
}

collective! {
    /// Gives every rank all ranks' inputs, in their order.
    herringbone_all_gather, herringbone_all_gather_async,
    (input: InputPointer, output: OutputPointer, count: usize, dtype: c_int),
    CollectiveCall { collective: Collective::AllGather, count, dtype, op: NO_OP, input, output }
}

collective! {
    /// Ends when all ranks have called it.
    herringbone_barrier, herringbone_barrier_async,
    (),
    CollectiveCall::barrier()
}
