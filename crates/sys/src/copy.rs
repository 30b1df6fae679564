//! Copying bytes, with vectors if they are faster than the C library's choice.
//!
//! From a few KiB on, C libraries copy with `rep movsb` if the CPU reports it as fast. Between caches it is not: it
//! takes long to start, and then moves less per cycle than vectors do. An all-reduce in shared memory is mostly such
//! copies.

use std::ptr;

/// How many bytes ahead of what is copied or folded its lines are asked for, of each operand: of one or two these are about
/// as many lines as a core can have on their way to it.
pub(crate) const AHEAD: usize = 1 << 10;

/// Below this, the C library uses vectors itself.
const LEAST: usize = 2 << 10;
/// Above this, what is copied fits no cache, and the C library may write around them.
const MOST: usize = 4 << 20;

/// Copies `len` bytes; source and target may overlap.
///
/// # Safety
/// `from` can be read, and `into` written, for `len` bytes.
pub(crate) unsafe fn copy(from: *const u8, into: *mut u8, len: usize) {
    let apart = from.addr().abs_diff(into.addr()) >= len;
    // SAFETY: as the caller says; what does not allow any overlap is called where there is none.
    unsafe {
        match with_vectors() {
            Some(copy) if apart && (LEAST..MOST).contains(&len) => copy(from, into, len),
            _ => ptr::copy(from, into, len),
        }
    }
}

/// Copies `len` bytes to where another core has read: the lines of the target are asked for ahead, many at a time, since
/// stores would wait for that core to give them up one after the other.
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn push(from: *const u8, into: *mut u8, len: usize) {
    let apart = from.addr().abs_diff(into.addr()) >= len;
    // SAFETY: as the caller says; what does not allow any overlap is called where there is none.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if apart && len >= avx2::LINES && is_x86_feature_detected!("avx2") {
            return avx2::push(from, into, len);
        }
        copy(from, into, len);
    }
}

/// Copies `len` bytes with stores that leave no line of the target in this core's cache; they are done, as far as later
/// stores can tell, when it returns. Without such stores, like [`copy`].
///
/// # Safety
/// As for [`copy`].
pub(crate) unsafe fn stream(from: *const u8, into: *mut u8, len: usize) {
    let apart = from.addr().abs_diff(into.addr()) >= len;
    // SAFETY: as the caller says; what does not allow any overlap is called where there is none.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if apart && is_x86_feature_detected!("avx2") {
            return avx2::stream(from, into, len);
        }
        copy(from, into, len);
    }
}

/// Asks for the lines of `len` bytes, to be read.
#[inline]
pub(crate) fn fetch(from: *const u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..len).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, which faults nowhere; every x86-64 CPU has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _nothing_to_do = (from, len);
}

/// Asks for the lines of `len` bytes, to be written. CPUs that cannot do nothing.
#[inline(always)]
pub(crate) fn claim(into: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..len).step_by(LINE).map(|at| into.wrapping_add(at)) {
        // SAFETY: a hint, which reads and writes nothing, faults nowhere and changes no flags; to x86-64 CPUs that
        // cannot follow it, it is a NOP.
        unsafe {
            std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
        }
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _nothing_to_do = (into, len);
}

/// Copies bytes of two stretches that can be read and written, and do not overlap.
type Copy = unsafe fn(from: *const u8, into: *mut u8, len: usize);

/// The way of this CPU.
fn with_vectors() -> Option<Copy> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return Some(avx2::copy);
    }
    None
}

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{AHEAD, LINE, claim, fetch};
    use std::arch::x86_64::*;
    use std::ptr;

    const REGISTER: usize = size_of::<__m256i>();
    /// Bytes that are loaded before they are stored: two cache lines.
    pub(super) const LINES: usize = 2 * LINE;

    /// Copies `len` bytes, with stores that do not cross cache lines.
    ///
    /// # Safety
    /// `from` can be read, and `into` written, for `len` bytes, and they do not overlap. The CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn copy(from: *const u8, into: *mut u8, len: usize) {
        // SAFETY: as the caller says; `by_lines` gives aligned targets.
        unsafe { by_lines(from, into, len, ask(from, len), |into, value| _mm256_store_si256(into, value)) }
    }

    /// The same, with lines of the target asked for ahead.
    ///
    /// # Safety
    /// As for [`copy`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn push(from: *const u8, into: *mut u8, len: usize) {
        claim(into, len.min(AHEAD));
        let last = len.saturating_sub(AHEAD);
        let both = |at: usize| {
            claim(into.wrapping_add(at + AHEAD), LINES);
            fetch(from.wrapping_add(at + AHEAD), LINES);
        };
        // SAFETY: as the caller says, for both parts; `by_lines` gives aligned targets.
        unsafe {
            by_lines(from, into, last, both, |into, value| _mm256_store_si256(into, value));
            copy(from.add(last), into.add(last), len - last);
        }
    }

    /// Asks for lines of a source ahead, as far as it goes.
    fn ask(from: *const u8, len: usize) -> impl Fn(usize) {
        move |at| {
            if at + AHEAD + LINES <= len {
                fetch(from.wrapping_add(at + AHEAD), LINES);
            }
        }
    }

    /// The same past the caches; what is stored later, others see later.
    ///
    /// # Safety
    /// As for [`copy`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn stream(from: *const u8, into: *mut u8, len: usize) {
        // SAFETY: as the caller says; `by_lines` gives aligned targets.
        unsafe { by_lines(from, into, len, ask(from, len), |into, value| _mm256_stream_si256(into, value)) }
        // Such stores are not in order with others before this.
        _mm_sfence();
    }

    /// # Safety
    /// As for [`copy`]; `store` may write a register to an aligned address. `ask` is told how far it is, two lines at a time.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn by_lines(
        from: *const u8,
        into: *mut u8,
        len: usize,
        ask: impl Fn(usize),
        store: impl Fn(*mut __m256i, __m256i),
    ) {
        let head = into.align_offset(2 * REGISTER).min(len);
        let rest = head + (len - head) / LINES * LINES;
        // SAFETY: the head, whole lines and the rest make up the `len` bytes, which the caller vouches for; after the
        // head, the target is aligned.
        unsafe {
            ptr::copy_nonoverlapping(from, into, head);
            for at in (head..rest).step_by(LINES) {
                ask(at);
                // Registers by name: of an array the compiler makes a detour through the stack.
                let (from, into) = (from.add(at).cast::<__m256i>(), into.add(at).cast::<__m256i>());
                let (a, b) = (_mm256_loadu_si256(from), _mm256_loadu_si256(from.add(1)));
                let (c, d) = (_mm256_loadu_si256(from.add(2)), _mm256_loadu_si256(from.add(3)));
                store(into, a);
                store(into.add(1), b);
                store(into.add(2), c);
                store(into.add(3), d);
            }
            ptr::copy_nonoverlapping(from.add(rest), into.add(rest), len - rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ways to copy so many bytes over such a distance.
    fn ways(distance: usize, len: usize) -> Vec<(&'static str, Copy)> {
        let mut ways: Vec<(&str, Copy)> = vec![("copy", copy), ("push", push), ("stream", stream)];
        #[cfg(target_arch = "x86_64")]
        if distance >= len && is_x86_feature_detected!("avx2") {
            ways.push(("vectors", avx2::copy));
        }
        ways
    }

    /// Copies within one buffer, in each way, and checks what it holds then.
    fn check(from: usize, into: usize, len: usize) {
        for (name, way) in ways(from.abs_diff(into), len) {
            let size = from.max(into) + len + 64;
            let mut bytes: Vec<u8> = (0..size).map(|at| ((at * at) >> 5) as u8).collect();
            let mut expected = bytes.clone();
            expected.copy_within(from..from + len, into);
            let start = bytes.as_mut_ptr();
            // SAFETY: both stretches lie within the buffer.
            unsafe { way(start.add(from), start.add(into), len) }
            assert!(bytes == expected, "{name}: {len} bytes from {from} to {into}");
        }
    }

    #[test]
    fn any_length_and_alignment() {
        for len in (0..3).chain(LEAST - 2..LEAST + 260).chain([5_000, 70_001]) {
            for (from, into) in [(0, 80_000), (1, 80_000), (80_003, 5), (64, 80_063), (80_031, 33)] {
                check(from, into, len);
            }
        }
    }

    #[test]
    fn any_overlap() {
        for distance in [1, 31, 32, 127, 128, 4_000, 8_191, 8_192, 8_193] {
            check(0, distance, 8_192);
            check(distance, 0, 8_192);
        }
        check(7, 7, 8_192);
    }

    #[test]
    fn the_largest() {
        check(0, MOST + 3, MOST - 1);
        check(MOST + 3, 0, MOST);
    }
}
