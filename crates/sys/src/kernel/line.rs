//! One step of a pass, line by line: plain loops that the compiler turns into the vector code of an instruction set.

use super::Source;
use crate::copy::{self, AHEAD};
use crate::span::Span;
use herringbone_core::element::{Element, Number, Reduction};
use herringbone_core::schedule::Form;
use std::mem::{MaybeUninit, size_of};
use std::ptr;

/// How one instruction set handles a line: `LINE` elements, folded at a time. All loads of a line come before its
/// stores, so the target may be a source.
pub(super) trait Isa<const LINE: usize> {
    /// The elements at `from`, lifted.
    ///
    /// # Safety
    /// A line of elements can be read at `from`, which need not be aligned. The CPU has the instruction set.
    #[inline(always)]
    unsafe fn lift<R: Reduction>(from: *const R::Element) -> [R::Acc; LINE] {
        // SAFETY: as the caller says.
        unsafe { lift::<R, LINE>(from) }
    }

    /// Rounds scaled results and writes them.
    ///
    /// # Safety
    /// A line of elements can be written at `into`, which need not be aligned. The CPU has the instruction set.
    #[inline(always)]
    unsafe fn round<R: Reduction>(line: [R::Acc; LINE], into: *mut R::Element) {
        // SAFETY: as the caller says.
        unsafe { round::<R, LINE>(line, into) }
    }
}

/// [`Isa::lift`] as a plain loop: the meaning.
///
/// # Safety
/// A line of elements can be read at `from`, which need not be aligned.
#[inline(always)]
pub(super) unsafe fn lift<R: Reduction, const LINE: usize>(from: *const R::Element) -> [R::Acc; LINE] {
    let mut line = [R::Acc::default(); LINE];
    for (at, acc) in line.iter_mut().enumerate() {
        // SAFETY: at < LINE, and the caller vouches for a line.
        *acc = R::lift(unsafe { from.add(at).read_unaligned() });
    }
    line
}

/// [`Isa::round`] as a plain loop: the meaning.
///
/// # Safety
/// A line of elements can be written at `into`, which need not be aligned.
#[inline(always)]
pub(super) unsafe fn round<R: Reduction, const LINE: usize>(line: [R::Acc; LINE], into: *mut R::Element) {
    for (at, acc) in line.into_iter().enumerate() {
        // SAFETY: at < LINE, and the caller vouches for a line.
        unsafe { into.add(at).write_unaligned(R::round(acc)) }
    }
}

/// How long an item of this form is.
#[inline(always)]
pub(super) fn width<R: Reduction>(form: Form) -> usize {
    match form {
        Form::Acc => size_of::<R::Acc>(),
        _ => size_of::<R::Element>(),
    }
}

/// What is done with each element in turn.
#[derive(Clone, Copy)]
pub(super) struct Step<'a> {
    /// Operands that merge in pairs: the first `count`, which is 1, 2, 4 or 8.
    pub(super) inputs: [*const u8; 8],
    pub(super) count: usize,
    /// The form of all operands.
    pub(super) form: Form,
    /// An earlier partial result to merge with, or null.
    pub(super) left: *const u8,
    /// Where the result goes: elements if it is finished, otherwise accumulators.
    pub(super) into: *mut u8,
    /// Where it goes, too.
    pub(super) copies: &'a [Span<'a>],
    /// How many bytes of these are behind us.
    pub(super) copied: usize,
    /// For a finished result: the number of contributors.
    pub(super) finish: Option<u32>,
    /// How many items the inputs have from here on: as far as that, they are asked for ahead. The CPU's own prefetcher begins
    /// anew on every page, and behind an operand's end another rank may be writing.
    present: usize,
    /// For how many items the copies have room from here on; they are asked for likewise.
    pub(super) room: usize,
}

impl<'a> Step<'a> {
    /// A step over these sources, from `offset` bytes after their start, where `present` items are left of them, with nowhere
    /// to go yet.
    #[inline(always)]
    pub(super) fn of_sources(sources: &[Source<'_>], offset: usize, present: usize) -> Self {
        let (count, form) = (sources.len(), sources[0].form);
        let mut step = Self { count, form, present, ..Self::of_row(ptr::null()) };
        for (input, source) in step.inputs.iter_mut().zip(sources) {
            *input = source.span.as_ptr().wrapping_add(offset);
        }
        step
    }

    /// A step over a partial result, with nowhere to go yet.
    #[inline(always)]
    pub(super) fn of_row(row: *const u8) -> Self {
        let mut inputs = [ptr::null(); 8];
        inputs[0] = row;
        Self {
            inputs,
            count: 1,
            form: Form::Acc,
            left: ptr::null(),
            into: ptr::null_mut(),
            copies: &[],
            copied: 0,
            finish: None,
            present: 0,
            room: 0,
        }
    }

    /// The form of the result.
    #[inline(always)]
    fn result_form(&self) -> Form {
        if self.finish.is_some() { Form::Plain } else { Form::Acc }
    }

    /// Does it for `len` elements: whole lines where they lie, then the rest as a line of copies.
    ///
    /// # Safety
    /// All memory that the step names can be read (`into`, and `copies` behind `copied` bytes: written) for `len` items of
    /// its form; what is read equals a place that is written or does not overlap it; no two places that are written
    /// overlap; and the CPU has the instruction set.
    #[inline(always)]
    pub(super) unsafe fn run<I: Isa<LINE>, R: Reduction, const LINE: usize>(&self, len: usize) {
        let rest = len % LINE;
        let mut pads = MaybeUninit::<[Pad; PADS]>::uninit();
        // SAFETY: the last `rest` of the `len` items are there to be copied.
        let last = unsafe { self.padded::<R, LINE>(len - rest, rest, pads.as_mut_ptr().cast()) };
        // One loop over both, so that there is one copy of the code, and no second way to fold.
        for (step, lines) in [(self, len / LINE), (&last, usize::from(rest > 0))] {
            // SAFETY: the whole lines are among the `len` items, and the pads hold a line.
            unsafe { step.fold_lines::<I, R, LINE>(lines) }
        }
        let width = width::<R>(self.result_form());
        let copies = self.copies.iter().map(|copy| copy.as_mut_ptr().wrapping_add(self.copied));
        for place in copies.chain([self.into]) {
            // SAFETY: the line was folded into a pad, and there is room for the last `rest` of `len` items.
            unsafe {
                ptr::copy_nonoverlapping(last.into, place.wrapping_add((len - rest) * width), rest * width);
            }
        }
    }

    /// The step on copies of the `rest` items from `at` on, each filled up with zeros to a line.
    ///
    /// # Safety
    /// The items can be read, and there are as many pads as there may be.
    #[inline(always)]
    unsafe fn padded<R: Reduction, const LINE: usize>(&self, at: usize, rest: usize, pads: *mut Pad) -> Self {
        let mut step =
            Self { into: pads.wrapping_add(PADS - 1).cast(), copies: &[], present: 0, room: 0, ..*self };
        if rest == 0 {
            return step;
        }
        let sources = step.inputs.iter_mut().take(self.count).map(|input| (input, self.form));
        let left = (!self.left.is_null()).then_some((&mut step.left, Form::Acc));
        for (index, (source, form)) in sources.chain(left).enumerate() {
            let (pad, width) = (pads.wrapping_add(index).cast::<u8>(), width::<R>(form));
            // SAFETY: there are at most eight inputs and a left operand, each of which has the items; a pad has room
            // for a line of any type.
            unsafe {
                ptr::copy_nonoverlapping(source.wrapping_add(at * width), pad, rest * width);
                ptr::write_bytes(pad.add(rest * width), 0, (LINE - rest) * width);
            }
            *source = pad;
        }
        step
    }

    /// Folds whole lines.
    ///
    /// # Safety
    /// As [`run`](Self::run), for so many lines.
    #[inline(always)]
    unsafe fn fold_lines<I: Isa<LINE>, R: Reduction, const LINE: usize>(&self, lines: usize) {
        let alike = R::Element::DTYPE == R::Acc::DTYPE;
        let partial = self.form == Form::Acc && !alike;
        // SAFETY: as the caller says; the count of inputs is the one that is passed on.
        unsafe {
            match (partial, self.count) {
                (false, 1) => self.fold_lines_of::<I, R, LINE, false, 1>(lines),
                (false, 2) => self.fold_lines_of::<I, R, LINE, false, 2>(lines),
                (false, 4) => self.fold_lines_of::<I, R, LINE, false, 4>(lines),
                (false, _) => self.fold_lines_of::<I, R, LINE, false, 8>(lines),
                (true, 1) => self.fold_lines_of::<I, R, LINE, true, 1>(lines),
                (true, 2) => self.fold_lines_of::<I, R, LINE, true, 2>(lines),
                (true, 4) => self.fold_lines_of::<I, R, LINE, true, 4>(lines),
                (true, _) => self.fold_lines_of::<I, R, LINE, true, 8>(lines),
            }
        }
    }

    /// # Safety
    /// As [`fold_lines`](Self::fold_lines); there are `K` inputs, accumulators if `PARTIAL`, otherwise elements.
    #[inline(always)]
    unsafe fn fold_lines_of<I, R, const LINE: usize, const PARTIAL: bool, const K: usize>(&self, lines: usize)
    where
        I: Isa<LINE>,
        R: Reduction,
    {
        let form = if PARTIAL { Form::Acc } else { Form::Plain };
        for at in (0..lines).map(|line| line * LINE) {
            if let Some((ahead, bytes)) = ahead::<LINE>(at, self.present, width::<R>(form)) {
                self.inputs[..K].iter().for_each(|input| copy::fetch(input.wrapping_add(ahead), bytes));
            }
            // SAFETY: the caller vouches for this line of every input, in the form that PARTIAL says.
            let input = |k: usize| unsafe {
                match PARTIAL {
                    true => load(self.inputs[k].cast::<R::Acc>().add(at)),
                    false => I::lift::<R>(self.inputs[k].cast::<R::Element>().add(at)),
                }
            };
            let pair = |k: usize| merge::<R, LINE>(input(k), input(k + 1));
            let four = |k: usize| merge::<R, LINE>(pair(k), pair(k + 2));
            let mut acc = match K {
                1 => input(0),
                2 => pair(0),
                4 => four(0),
                _ => merge::<R, LINE>(four(0), four(4)),
            };
            // SAFETY: the caller vouches for this line of accumulators at `left`, unless it is null, and for this
            // line at `into` and in the copies, which do not overlap: of elements if there is something to finish,
            // otherwise of accumulators.
            unsafe {
                if !self.left.is_null() {
                    acc = merge::<R, LINE>(load(self.left.cast::<R::Acc>().add(at)), acc);
                }
                match self.finish {
                    Some(n) => {
                        I::round::<R>(scale::<R, LINE>(acc, n), self.into.cast::<R::Element>().add(at));
                        self.copy_line::<R::Element, LINE>(at);
                    }
                    None => {
                        store(canonical(acc), self.into.cast::<R::Acc>().add(at));
                        self.copy_line::<R::Acc, LINE>(at);
                    }
                }
            }
        }
    }

    /// Copies a line of the result to where else it goes.
    ///
    /// # Safety
    /// A line of `T` from item `at` on has been written at `into`. Behind `copied` bytes each copy can be written and has
    /// room for it; none overlaps `into` or another one.
    #[inline(always)]
    unsafe fn copy_line<T, const LINE: usize>(&self, at: usize) {
        let (start, bytes) = (at * size_of::<T>(), LINE * size_of::<T>());
        for copy in self.copies {
            // Whether it may be written was asked before all lines.
            let copy = copy.as_ptr().cast_mut().wrapping_add(self.copied);
            if let Some((ahead, bytes)) = ahead::<LINE>(at, self.room, size_of::<T>()) {
                copy::claim(copy.wrapping_add(ahead), bytes);
            }
            // SAFETY: as the caller says.
            unsafe { ptr::copy_nonoverlapping(self.into.add(start), copy.add(start), bytes) }
        }
    }
}

/// Of an operand with so many items of this width: at which byte, and how many bytes long, the line is that is to be asked
/// for while that at `at` is folded, if there is one.
#[inline(always)]
fn ahead<const LINE: usize>(at: usize, present: usize, width: usize) -> Option<(usize, usize)> {
    let ahead = at + AHEAD / width;
    (ahead + LINE <= present).then_some((ahead * width, LINE * width))
}

/// The longest line of any instruction set.
pub(super) const MAX_LINE: usize = 64;

/// For as many inputs as there may be, a left operand and a result.
const PADS: usize = 10;

/// Room for a line of any type.
#[repr(C, align(64))]
struct Pad([u8; MAX_LINE * size_of::<u64>()]);

/// # Safety
/// A line of accumulators can be read at `from`, which need not be aligned.
#[inline(always)]
unsafe fn load<A: Number, const LINE: usize>(from: *const A) -> [A; LINE] {
    // SAFETY: as the caller says; an array lies in memory as its items do.
    unsafe { from.cast::<[A; LINE]>().read_unaligned() }
}

/// # Safety
/// A line of accumulators can be written at `into`, which need not be aligned.
#[inline(always)]
unsafe fn store<A: Number, const LINE: usize>(line: [A; LINE], into: *mut A) {
    // SAFETY: as the caller says; an array lies in memory as its items do.
    unsafe { into.cast::<[A; LINE]>().write_unaligned(line) }
}

/// Canonical NaNs for all NaNs.
#[inline(always)]
pub(super) fn canonical<A: Number, const LINE: usize>(line: [A; LINE]) -> [A; LINE] {
    let mut canonical = line;
    for acc in &mut canonical {
        *acc = acc.canonical();
    }
    canonical
}

#[inline(always)]
fn merge<R: Reduction, const LINE: usize>(a: [R::Acc; LINE], b: [R::Acc; LINE]) -> [R::Acc; LINE] {
    let mut merged = a;
    for (a, b) in merged.iter_mut().zip(b) {
        *a = R::merge(*a, b);
    }
    merged
}

#[inline(always)]
fn scale<R: Reduction, const LINE: usize>(line: [R::Acc; LINE], contributors: u32) -> [R::Acc; LINE] {
    let mut scaled = line;
    for acc in &mut scaled {
        *acc = R::scale(*acc, contributors);
    }
    scaled
}
