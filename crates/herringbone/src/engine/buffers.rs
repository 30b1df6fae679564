//! Users' buffers that have bytes in common, within one operation and between operations that are under way at once.

use crate::{
    core::{collective::Collective, prepare::Call},
    execute::issue::Queued,
    feedback::Fed,
    memory,
    sys::region::Region,
};

/// Whether rank `me` can run a call on these buffers as they are: they are apart, or one buffer, or the part that this rank
/// gives or gets is its own part of the whole, as in MPI's and NCCL's calls in place; of several inputs it is the first.
#[inline]
pub(super) fn are_usable(call: &Call, me: u32, input: &Region, output: &Region) -> bool {
    if input.is_same(output) {
        return call.collective != Collective::AllToAll;
    }
    if !input.overlaps(output) {
        return true;
    }
    let is_even = call.count != Call::UNEVEN;
    let is_own =
        |part: &Region, whole: &Region| is_even && part.offset_in(whole) == Some(me as usize * part.len());
    match call.collective {
        // The first of several inputs, which is all that the result overwrites.
        Collective::AllReduce => output.offset_in(input) == Some(0),
        Collective::AllGather | Collective::Gather { .. } => is_own(input, output),
        Collective::ReduceScatter | Collective::Scatter { .. } => is_own(output, input),
        _ => false,
    }
}

impl Queued {
    /// Takes the memory that it needs beside its buffers: for what a codec leaves, and for a copy of the input if the output
    /// overlaps it in a way that operations are not made for.
    ///
    /// # Errors
    /// How many bytes the system has not given.
    pub(super) fn allocate(&mut self, me: u32) -> Result<(), u64> {
        self.fed.as_ref().map_or(Ok(()), Fed::allocate)?;
        if let Some((input, output)) = &mut self.buffers
            && !are_usable(&self.call, me, input, output)
        {
            *input = memory::copy(input).ok_or(input.len() as u64)?;
        }
        Ok(())
    }
}
