//! The numbers that functions return, and their names in the header.

use herringbone::ErrorCode;
use std::ffi::{CStr, c_int};

/// The call has done what it should.
pub(crate) const OK: c_int = 0;
/// An argument cannot be used, and no call was made.
pub(crate) const ARGUMENT: c_int = 100;
/// A handle is none, or is over.
pub(crate) const HANDLE: c_int = 101;
/// The library has a bug: it panicked.
pub(crate) const PANIC: c_int = 102;

/// The name of a code in the header, if it is one.
pub(crate) fn name(code: c_int) -> Option<&'static CStr> {
    let own = match code {
        OK => c"HERRINGBONE_OK",
        ARGUMENT => c"HERRINGBONE_ERROR_ARGUMENT",
        HANDLE => c"HERRINGBONE_ERROR_HANDLE",
        PANIC => c"HERRINGBONE_ERROR_PANIC",
        _ => {
            return ErrorCode::ALL
                .iter()
                .find(|known| **known as c_int == code)
                .map(|known| of_engine(*known));
        }
    };
    Some(own)
}

fn of_engine(code: ErrorCode) -> &'static CStr {
    match code {
        ErrorCode::PeerLost => c"HERRINGBONE_ERROR_PEER_LOST",
        ErrorCode::ReducerLost => c"HERRINGBONE_ERROR_REDUCER_LOST",
        ErrorCode::Table => c"HERRINGBONE_ERROR_TABLE",
        ErrorCode::TableServerLost => c"HERRINGBONE_ERROR_TABLE_SERVER_LOST",
        ErrorCode::Mismatch => c"HERRINGBONE_ERROR_MISMATCH",
        ErrorCode::Timeout => c"HERRINGBONE_ERROR_TIMEOUT",
        ErrorCode::Memory => c"HERRINGBONE_ERROR_MEMORY",
        ErrorCode::Auth => c"HERRINGBONE_ERROR_AUTH",
        ErrorCode::Config => c"HERRINGBONE_ERROR_CONFIG",
        ErrorCode::Rendezvous => c"HERRINGBONE_ERROR_RENDEZVOUS",
        ErrorCode::Protocol => c"HERRINGBONE_ERROR_PROTOCOL",
        ErrorCode::Corrupt => c"HERRINGBONE_ERROR_CORRUPT",
        ErrorCode::LinkLost => c"HERRINGBONE_ERROR_LINK_LOST",
        ErrorCode::Forked => c"HERRINGBONE_ERROR_FORKED",
        ErrorCode::Closed => c"HERRINGBONE_ERROR_CLOSED",
        ErrorCode::Unsupported => c"HERRINGBONE_ERROR_UNSUPPORTED",
        ErrorCode::BufferSize => c"HERRINGBONE_ERROR_BUFFER_SIZE",
        ErrorCode::Io => c"HERRINGBONE_ERROR_IO",
        ErrorCode::Replay => c"HERRINGBONE_ERROR_REPLAY",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use herringbone::{DType, ReduceOp};
    use std::collections::BTreeMap;

    const HEADER: &str = include_str!("../include/herringbone.h");

    /// The numbers of the header's enums, and of its macros.
    fn numbers() -> BTreeMap<String, c_int> {
        let enumerator = |line: &'static str| line.trim().trim_end_matches(',').split_once(" = ");
        let defined = |line: &'static str| line.strip_prefix("#define ")?.split_once(' ');
        let pairs = HEADER.lines().filter_map(|line| enumerator(line).or_else(|| defined(line)));
        pairs.filter_map(|(name, number)| Some((name.to_owned(), number.parse().ok()?))).collect()
    }

    #[test]
    fn the_header_has_all_codes_types_and_operations_with_their_numbers() {
        let ours = (OK..=PANIC).filter_map(|code| Some((name(code)?.to_str().unwrap().to_owned(), code)));
        let named = |name: &str| format!("HERRINGBONE_{}", name.to_uppercase());
        let dtypes = DType::ALL.map(|dtype| (named(dtype.name()), c_int::from(dtype.code())));
        let ops = ReduceOp::ALL.map(|op| (named(op.name()), c_int::from(op.code())));
        let parts = env!("CARGO_PKG_VERSION").split('.').map(|part| part.parse().unwrap());
        let version = ["MAJOR", "MINOR", "PATCH"].map(|part| named(&format!("VERSION_{part}")));
        let all = ours.chain(dtypes).chain(ops).chain(version.into_iter().zip(parts));
        assert_eq!(numbers(), all.collect());
    }

    #[test]
    fn codes_are_called_as_the_kinds_of_errors() {
        for code in ErrorCode::ALL {
            let written = name(*code as c_int).unwrap().to_str().unwrap().replace('_', "");
            assert_eq!(written, format!("HERRINGBONEERROR{}", code.name().to_uppercase()));
        }
    }

    #[test]
    fn other_numbers_have_no_name() {
        assert!([-1, 20, 99, 103, c_int::MAX].into_iter().all(|code| name(code).is_none()));
    }
}
