//! Lists for a fold, gathered without allocation if they are short.

/// Items for which no memory is allocated.
const FEW: usize = 8;

/// Calls `then` with all items; `None` at the first that was not to be found. `any` is any item, to fill memory with.
pub(super) fn gather<T: Copy, R>(
    items: impl IntoIterator<Item = Option<T>>,
    any: T,
    then: impl FnOnce(&[T]) -> R,
) -> Option<R> {
    let (mut few, mut many, mut count) = ([any; FEW], Vec::new(), 0);
    for item in items {
        let item = item?;
        match few.get_mut(count) {
            Some(place) => *place = item,
            None if many.is_empty() => many.extend(few.into_iter().chain([item])),
            None => many.push(item),
        }
        count += 1;
    }
    Some(then(if many.is_empty() { &few[..count] } else { &many }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_and_many_are_gathered_in_order() {
        for count in 0..=3 * FEW {
            let all: Vec<usize> = (1..=count).collect();
            assert_eq!(gather(all.iter().copied().map(Some), 0, <[usize]>::to_vec), Some(all));
        }
    }

    #[test]
    fn one_that_is_not_there_ends_it() {
        for missing in [0, FEW - 1, FEW, 2 * FEW] {
            let items = (0..=2 * FEW).map(|at| (at != missing).then_some(at));
            assert_eq!(gather(items, 0, |_| panic!("{missing} is not there")), None::<()>);
        }
    }
}
