//! Terms as people write them.

use super::{Composition, TermHistory, TermNumber};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::fmt::Display;

/// The name of an input, by its number among all: a to z, then aa, ab, ...
///
/// ```
/// assert_eq!([0, 25, 26, 701].map(herringbone_core::terms::letters), ["a", "z", "aa", "zz"]);
/// ```
pub fn letters(input: u32) -> String {
    let (mut left, mut reversed) = (u64::from(input) + 1, Vec::new());
    while left > 0 {
        reversed.push(char::from(b'a' + ((left - 1) % 26) as u8));
        left = (left - 1) / 26;
    }
    reversed.into_iter().rev().collect()
}

impl TermHistory {
    /// A term at a chunk, or with another text instead of its number, like `(a0+b0)+(c0+d0)`. Sums without brackets are
    /// added from left to right, q(...) is a coded term, and results look like their sums.
    ///
    /// A sum in which an input is added again and again can be too long to write; it is `N inputs` then.
    pub fn text(&self, term: TermNumber, chunk: impl Display) -> String {
        if self.inputs[term] > super::MOST_RANKS.max(self.workers) {
            return format!("{} inputs", self.inputs[term]);
        }
        let mut text = String::new();
        self.write(term, &chunk.to_string(), &mut text);
        text
    }

    fn write(&self, term: TermNumber, chunk: &str, text: &mut String) {
        match self.compositions[term] {
            Composition::Input(input) => {
                text.push_str(&letters(input));
                text.push_str(chunk);
            }
            Composition::Result(of) => self.write(of, chunk, text),
            Composition::Code(of) => {
                text.push('q');
                self.write_in_brackets(of, chunk, text);
            }
            Composition::Sum([left, right]) => {
                // Brackets on the left would say what is so without them, and look alike on both sides of a +.
                match self.is_sum(left) && self.is_sum(right) {
                    true => self.write_in_brackets(left, chunk, text),
                    false => self.write(left, chunk, text),
                }
                text.push('+');
                match self.is_sum(right) {
                    true => self.write_in_brackets(right, chunk, text),
                    false => self.write(right, chunk, text),
                }
            }
        }
    }

    fn write_in_brackets(&self, term: TermNumber, chunk: &str, text: &mut String) {
        text.push('(');
        self.write(term, chunk, text);
        text.push(')');
    }

    fn is_sum(&self, term: TermNumber) -> bool {
        match self.compositions[term] {
            Composition::Sum(_) => true,
            Composition::Result(of) => self.is_sum(of),
            Composition::Input(_) | Composition::Code(_) => false,
        }
    }
}
