//! Inputs whose results are known exactly: small integers, in every element type.

use half::{bf16, f16};
use herringbone::{Element, Plain, ReduceOp};

/// An element type made from small integers.
pub(super) trait Sample: Element + Plain {
    /// The nearest value; integers wrap.
    fn of(value: i64) -> Self;

    /// sum / ranks, as the engine promises it: floats divide in the accumulator and round once, integers truncate.
    fn mean(sum: i64, ranks: u32) -> Self;
}

macro_rules! sample {
    (float $($type:ty),*) => {$(
        impl Sample for $type {
            fn of(value: i64) -> Self {
                value as $type
            }

            fn mean(sum: i64, ranks: u32) -> Self {
                sum as $type / ranks as $type
            }
        }
    )*};
    (half $($type:ty),*) => {$(
        impl Sample for $type {
            fn of(value: i64) -> Self {
                <$type>::from_f32(value as f32)
            }

            fn mean(sum: i64, ranks: u32) -> Self {
                <$type>::from_f32(sum as f32 / ranks as f32)
            }
        }
    )*};
    (integer $($type:ty),*) => {$(
        impl Sample for $type {
            fn of(value: i64) -> Self {
                value as $type
            }

            fn mean(sum: i64, ranks: u32) -> Self {
                (sum / i64::from(ranks)) as $type
            }
        }
    )*};
}
sample!(float f32, f64);
sample!(half f16, bf16);
sample!(integer i8, u8, i32, i64, i16, u16, u32, u64);

/// What ranks put in, and what must come out. Both repeat along the buffer, so a table answers for every element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) op: ReduceOp,
    pub(super) ranks: u32,
}

impl Pattern {
    /// After how many elements values repeat.
    fn period(self) -> usize {
        match self.op {
            ReduceOp::Sum => 17,
            ReduceOp::Product | ReduceOp::BitAnd | ReduceOp::BitOr => self.ranks as usize,
            _ => 61,
        }
    }

    /// What `rank` puts in at `index`. Every rank's part shows in some element: a missing rank is noticed. For sums
    /// it is what the comparison rigs ask for, (rank + 1) * (index % 17 + 1), up to the rank where bf16 is not exact.
    fn value(self, rank: u32, index: usize) -> i64 {
        let at = (index + rank as usize) % self.period();
        match self.op {
            ReduceOp::Sum => i64::from(rank % 15 + 1) * (index % 17 + 1) as i64,
            ReduceOp::Product => {
                if at == 0 {
                    3
                } else {
                    1
                }
            }
            ReduceOp::BitAnd => 3 - i64::from(at == 0),
            ReduceOp::BitOr => i64::from(at == 0),
            _ => at as i64,
        }
    }

    /// The buffer that `rank` puts in, from element `first` on.
    pub(super) fn fill<T: Sample>(self, buffer: &mut [T], rank: u32, first: usize) {
        let table: Vec<T> = (0..self.period()).map(|index| T::of(self.value(rank, first + index))).collect();
        for (index, element) in buffer.iter_mut().enumerate() {
            *element = table[index % table.len()];
        }
    }

    /// How many elements of `buffer`, which starts at element `first`, are not the fold of all ranks' inputs.
    pub(super) fn wrong_folds<T: Sample>(self, buffer: &[T], first: usize) -> u64 {
        let table: Vec<T> =
            (0..self.period()).map(|index| self.folded(0..self.ranks, first + index)).collect();
        count_wrong(buffer, &table)
    }

    /// How many elements of `buffer`, which starts at element `first`, are not the input of `rank`.
    pub(super) fn wrong_inputs<T: Sample>(self, buffer: &[T], rank: u32, first: usize) -> u64 {
        let table: Vec<T> = (0..self.period()).map(|index| T::of(self.value(rank, first + index))).collect();
        count_wrong(buffer, &table)
    }

    fn folded<T: Sample>(self, ranks: impl Iterator<Item = u32>, index: usize) -> T {
        let values = ranks.map(|rank| self.value(rank, index));
        match self.op {
            ReduceOp::Sum => T::of(values.sum()),
            ReduceOp::Average => T::mean(values.sum(), self.ranks),
            ReduceOp::Product => T::of(values.product()),
            ReduceOp::Min => T::of(values.min().unwrap_or(0)),
            ReduceOp::Max => T::of(values.max().unwrap_or(0)),
            ReduceOp::BitAnd => T::of(values.fold(-1, |a, b| a & b)),
            ReduceOp::BitOr => T::of(values.fold(0, |a, b| a | b)),
            ReduceOp::BitXor => T::of(values.fold(0, |a, b| a ^ b)),
        }
    }
}

fn count_wrong<T: Sample>(buffer: &[T], table: &[T]) -> u64 {
    buffer.iter().enumerate().filter(|(index, element)| **element != table[index % table.len()]).count()
        as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_left_out_is_noticed() {
        for op in ReduceOp::ALL {
            let pattern = Pattern { op, ranks: 4 };
            for missing in 0..4 {
                let others = |index| pattern.folded((0..4).filter(|rank| *rank != missing), index);
                let buffer: Vec<f32> = (0..200).map(others).collect();
                assert!(pattern.wrong_folds(&buffer, 0) > 0, "{op:?} without rank {missing}");
            }
        }
    }

    #[test]
    fn values_do_not_depend_on_where_a_buffer_starts() {
        let pattern = Pattern { op: ReduceOp::Sum, ranks: 3 };
        let mut whole = [0i32; 300];
        pattern.fill(&mut whole, 1, 0);
        let mut rest = [0i32; 200];
        pattern.fill(&mut rest, 1, 100);
        assert_eq!(whole[100..], rest);
        assert_eq!(pattern.wrong_inputs(&whole[100..], 1, 100), 0);
        assert_eq!(pattern.wrong_inputs(&whole[100..], 2, 100), 200);
    }
}
