//! The sources of a fold, gathered without allocation where there are few.

use crate::sys::kernel::Source;

/// Sources for which no memory is allocated.
const FEW: usize = 8;

/// Calls `then` with `count` sources, which `find` finds one after the other; `None` if one is not to be found. `any` is any
/// source, to fill memory with.
pub(super) fn gather<'a, R>(
    count: usize,
    any: Source<'a>,
    find: impl Fn(usize) -> Option<Source<'a>>,
    then: impl FnOnce(&[Source<'a>]) -> R,
) -> Option<R> {
    let (mut few, mut many) = ([any; FEW], Vec::new());
    let sources = if count <= FEW {
        &mut few[..count]
    } else {
        many.resize(count, any);
        &mut many[..]
    };
    for (at, source) in sources.iter_mut().enumerate() {
        *source = find(at)?;
    }
    Some(then(sources))
}
