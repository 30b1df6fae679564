//! Failures of calls: a code, and the details of this thread's last failure.

use crate::codes;
use herringbone::{ADVICE, Error, ErrorKind};
use std::{
    any::Any,
    cell::RefCell,
    ffi::{CString, c_char, c_int},
    io::{self, Write},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// What a program in C does about an error, by the names of the engine's advice, which speaks of calls that C does not have.
const ADVICE_IN_C: [(&str, &str); 3] = [
    (
        "lost",
        "restart the job (`herringbone launch --max-attempts` starts lost processes of rabit's programs again)",
    ),
    (
        "closed",
        "this process has closed it (herringbone_finalize, herringbone_abort, RabitFinalize); close it when all its operations have ended",
    ),
    ("late", "raise the timeout (herringbone_set_timeout, rabit_timeout_sec or HERRINGBONE_TIMEOUT_S)"),
];

/// The text of one of the engine's errors, in the words of C.
fn in_words_of_c(text: String) -> String {
    ADVICE_IN_C.iter().fold(text, |text, (name, words)| {
        let own = ADVICE.iter().find(|(known, _)| known == name);
        own.map_or_else(|| text.clone(), |(_, own)| text.replace(own, words))
    })
}

/// Why a call has failed.
#[derive(Debug)]
pub(crate) struct InterfaceFailure {
    code: c_int,
    text: String,
    /// The ranks that are lost, by their numbers in the job.
    lost: Vec<u32>,
}

impl InterfaceFailure {
    /// An argument cannot be used.
    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self { code: codes::ARGUMENT, text: text.into(), lost: Vec::new() }
    }

    /// A handle is none, or is over.
    pub(crate) fn handle(text: impl Into<String>) -> Self {
        Self { code: codes::HANDLE, text: text.into(), lost: Vec::new() }
    }

    /// A handle is the parent's.
    pub(crate) fn forked() -> Self {
        // The engine's own words, without its locks: a thread of the parent may have held them as it forked.
        let kind = ErrorKind::Forked;
        Self { code: kind.code() as c_int, text: kind.to_string(), lost: Vec::new() }
    }

    /// What went wrong, and what to do.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn panic(panic: &(dyn Any + Send)) -> Self {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        let text = format!("the library panicked: {said}; this is a bug, please report it");
        Self { code: codes::PANIC, text, lost: Vec::new() }
    }
}

impl From<Error> for InterfaceFailure {
    fn from(error: Error) -> Self {
        let lost = match error.kind() {
            ErrorKind::PeerLost { ranks, .. } => ranks.clone(),
            _ => Vec::new(),
        };
        Self { code: error.kind().code() as c_int, text: in_words_of_c(error.to_string()), lost }
    }
}

/// What a thread remembers of its last failure.
#[derive(Default)]
struct Remembered {
    text: CString,
    lost: Vec<u32>,
}

thread_local! {
    static LAST: RefCell<Remembered> = RefCell::default();
}

/// Makes a call of C: a failure is remembered, and becomes its code. A panic ends here.
pub(crate) fn code_of(call: impl FnOnce() -> Result<(), InterfaceFailure>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let failure = InterfaceFailure::panic(&*panic);
        // What a panic carries may panic as it is dropped.
        std::mem::forget(panic);
        Err(failure)
    });
    let Err(failure) = outcome else { return codes::OK };
    let InterfaceFailure { code, text, lost } = failure;
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    // A thread that is at its end remembers nothing.
    let _at_its_end = LAST.try_with(|last| last.replace(Remembered { text, lost }));
    code
}

/// Makes a call whose function has no room for a code: a failure is remembered, and printed. Whether there was none.
pub(crate) fn printed(call: impl FnOnce() -> Result<(), InterfaceFailure>) -> bool {
    let is_done = code_of(call) == codes::OK;
    if !is_done {
        let print =
            |last: &RefCell<Remembered>| writeln!(io::stderr(), "{}", last.borrow().text.to_string_lossy());
        // A standard error that is closed takes no line.
        let _unheard = LAST.try_with(print);
    }
    is_done
}

/// The same for a function that returns a number: this one after a failure.
pub(crate) fn number_or(failed: c_int, call: impl FnOnce() -> Result<c_int, InterfaceFailure>) -> c_int {
    let mut number = failed;
    printed(|| {
        number = call()?;
        Ok(())
    });
    number
}

/// The text of this thread's last failure, empty if there was none. It stays where it is until the next failure.
pub(crate) fn last_text() -> *const c_char {
    LAST.try_with(|last| last.borrow().text.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The ranks of this thread's last failure that are lost.
pub(crate) fn last_lost() -> Vec<u32> {
    LAST.try_with(|last| last.borrow().lost.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_code_and_its_text_is_kept() {
        let of_text = code_of(|| panic!("expected {}", 7));
        assert_eq!(of_text, codes::PANIC);
        LAST.with_borrow(|last| assert!(last.text.to_str().unwrap().contains("panicked: expected 7;")));
        assert_eq!(code_of(|| std::panic::panic_any(7)), codes::PANIC);
        assert_eq!(code_of(|| Ok(())), codes::OK);
        LAST.with_borrow(|last| assert!(last.text.to_str().unwrap().contains("panicked: no text")));
    }

    #[test]
    fn errors_advise_what_a_program_in_c_can_do() {
        for (name, own) in ADVICE {
            let words = ADVICE_IN_C.iter().find(|(known, _)| *known == name).unwrap().1;
            let text = in_words_of_c(format!("rank 1 is lost: {own}."));
            assert_eq!(text, format!("rank 1 is lost: {words}."));
            assert!(
                !["shrink", "replace()", "the call's", "communicator"]
                    .iter()
                    .any(|other| text.contains(other)),
                "{text}"
            );
        }
    }

    #[test]
    fn a_text_ends_where_it_ends() {
        code_of(|| Err(InterfaceFailure::argument("one\0two")));
        LAST.with_borrow(|last| assert_eq!(last.text.to_str().unwrap(), "one two"));
    }
}
