//! The floating-point mode that the meaning of a fold assumes, whatever the calling thread has set.

/// While it lives, this thread rounds to nearest, keeps denormals and traps nothing; then it is as before.
///
/// Rust takes this mode for granted, and so may not see another one: create this first, and do all arithmetic in a
/// function that is not inlined into the one that holds it and gets its operands through raw memory.
#[must_use]
pub(crate) struct DefaultMode {
    before: Option<control::Word>,
}

impl DefaultMode {
    pub(crate) fn enter() -> Self {
        let now = control::read();
        if control::is_default(now) {
            return Self { before: None };
        }
        control::write(control::DEFAULT);
        Self { before: Some(now) }
    }
}

impl Drop for DefaultMode {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            control::write(before);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    use std::arch::asm;

    /// MXCSR.
    pub(super) type Word = u32;

    /// All exceptions masked; round to nearest; neither flush-to-zero nor denormals-are-zero.
    pub(super) const DEFAULT: Word = 0x1f80;

    /// The flags of exceptions that have occurred: a record, not a mode.
    const FLAGS: Word = 0x003f;

    pub(super) fn is_default(word: Word) -> bool {
        word & !FLAGS == DEFAULT
    }

    pub(super) fn read() -> Word {
        let mut word = 0;
        // SAFETY: stmxcsr writes four bytes to the address that it is given.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) }
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: ldmxcsr reads four bytes. The word is the default, or was read from the register: no reserved bit
        // is set. As the asm may write memory, loads and stores, and what depends on them, stay on their side of it.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    use std::arch::asm;

    /// FPCR.
    pub(super) type Word = u64;

    /// No traps; round to nearest; no flush to zero; NaNs as operands make them.
    pub(super) const DEFAULT: Word = 0;

    pub(super) fn is_default(word: Word) -> bool {
        word == DEFAULT
    }

    pub(super) fn read() -> Word {
        let word;
        // SAFETY: reads a register that every thread may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) }
        word
    }

    pub(super) fn write(word: Word) {
        // SAFETY: writes a register that every thread may write, with the default or what was read from it. As the
        // asm may write memory, loads and stores, and what depends on them, stay on their side of it.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) }
    }
}

/// A mode that cannot be read here is taken for the default one, as Rust itself does.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod control {
    pub(super) type Word = ();

    pub(super) const DEFAULT: Word = ();

    pub(super) fn is_default(_: Word) -> bool {
        true
    }

    pub(super) fn read() -> Word {}

    pub(super) fn write(_: Word) {}
}
