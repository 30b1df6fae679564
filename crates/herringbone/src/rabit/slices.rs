//! All-gathers of slices, which can differ in length: RABIT's, of a buffer in which each rank's slice is in its place.

use super::models::{copy, owned};
use crate::{
    Error, ErrorKind, Request, Result,
    core::{collective::Collective, element::DType},
    sys::region::Region,
};

/// A rank's part of a buffer that ranks gather, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RabitSlice {
    /// The offset of its beginning.
    pub begin: usize,
    /// How long it is.
    pub bytes: usize,
    /// How long the previous rank's is; rank 0's previous rank is the last one.
    pub previous: usize,
}

/// How many numbers a rank gives of its slice.
const NUMBERS: usize = 4;

impl RabitSlice {
    /// That it is inside a buffer of so many bytes.
    pub(super) fn check(self, total: usize) -> Result<()> {
        match self.begin.checked_add(self.bytes).is_some_and(|end| end <= total) {
            true => Ok(()),
            false => Err(Error::unsupported(format_args!(
                "a slice of {} bytes at {} in a buffer of {total}: pass a slice that is inside the buffer",
                self.bytes, self.begin
            ))),
        }
    }

    /// Gathers all ranks' slices from their buffers into `whole`, by requests that `run` runs. The ranks say first where theirs are.
    pub(super) fn gather(
        self,
        buffer: &Region,
        whole: &Region,
        size: u32,
        run: impl Fn(Request) -> Result<()>,
    ) -> Result<()> {
        let mine = [buffer.len(), self.begin, self.bytes, self.previous];
        let mine: Vec<u8> = mine.iter().flat_map(|number| (*number as u64).to_le_bytes()).collect();
        let numbers = Region::zeroed(mine.len() * size as usize);
        run(Request::new(Collective::AllGather, DType::U8, mine.len(), owned(mine), numbers.clone()))?;
        let slices = placed(&said(&numbers)?).map_err(Error::unsupported)?;

        let counts: Vec<usize> = slices.iter().map(|slice| slice.bytes).collect();
        let input = buffer.part(self.begin..self.begin + self.bytes);
        let gather_into = |output: Region| {
            let request = Request::new(Collective::AllGather, DType::U8, 0, input.clone(), output);
            run(request.parts(&[self.bytes], &counts))
        };
        // They arrive by rank.
        let held = || slices.iter().filter(|slice| slice.bytes > 0);
        if held().is_sorted_by_key(|slice| slice.begin) {
            return gather_into(whole.clone());
        }
        let gathered = Region::zeroed(whole.len());
        gather_into(gathered.clone())?;
        let mut at = 0;
        for slice in held() {
            let place = whole.part(slice.begin..slice.begin + slice.bytes);
            copy(&gathered.part(at..at + slice.bytes), &place)?;
            at += slice.bytes;
        }
        Ok(())
    }
}

/// What all ranks have said of their slices, by rank.
fn said(numbers: &Region) -> Result<Vec<[u64; NUMBERS]>> {
    let access = numbers.access().ok_or_else(|| Error::new(ErrorKind::Closed))?;
    let bytes = access.span().to_vec();
    let numbers: Vec<u64> = bytes.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    Ok(numbers.as_chunks().0.to_vec())
}

/// The slices of all ranks, from the numbers that each gave: they make up the buffer. All ranks have the same numbers, so they
/// get the same error.
fn placed(numbers: &[[u64; NUMBERS]]) -> std::result::Result<Vec<RabitSlice>, String> {
    let total = numbers[0][0];
    let mut begins = Vec::new();
    let mut before = numbers.len() - 1;
    for (rank, [buffer, begin, bytes, previous]) in numbers.iter().copied().enumerate() {
        if buffer != total {
            return Err(format!(
                "rank 0 gathers {total} bytes and rank {rank} {buffer}: pass the same total size"
            ));
        }
        if previous != numbers[before][2] {
            return Err(format!(
                "rank {rank} gives {previous} bytes as the length of rank {before}'s slice, but it has {}: pass its length",
                numbers[before][2]
            ));
        }
        begins.push((begin, bytes, rank));
        before = rank;
    }
    begins.sort_unstable();
    let mut end = 0;
    for (begin, bytes, rank) in begins.iter().copied() {
        if begin != end && bytes > 0 {
            return Err(format!(
                "the slice of rank {rank} begins at byte {begin}, and those before it end at byte {end}: pass slices that follow each other"
            ));
        }
        end = end.saturating_add(bytes);
    }
    if end != total {
        return Err(format!(
            "the slices have {end} bytes and the buffer {total}: pass slices that make up the buffer"
        ));
    }
    let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    let slices = numbers.iter().map(|[_, begin, bytes, previous]| RabitSlice {
        begin: size(*begin),
        bytes: size(*bytes),
        previous: size(*previous),
    });
    Ok(slices.collect())
}
