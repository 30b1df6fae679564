//! The sizes and offsets of NCCL's structures, as a C compiler finds them in NVIDIA's headers: `abi.txt`.

use std::collections::BTreeMap;

const NUMBERS: &str = include_str!("../abi.txt");

/// A structure: its size and the offsets of its fields, in bytes.
pub(crate) struct Structure {
    pub(crate) name: &'static str,
    pub(crate) size: usize,
    pub(crate) fields: BTreeMap<&'static str, usize>,
}

impl Structure {
    /// Where a field is.
    pub(crate) fn offset(&self, field: &str) -> usize {
        *self.fields.get(field).unwrap_or_else(|| panic!("{} has no {field}", self.name))
    }
}

fn line(name: &str) -> std::str::SplitWhitespace<'static> {
    let found = NUMBERS.lines().find(|line| line.split(' ').next() == Some(name));
    found.unwrap_or_else(|| panic!("abi.txt has no {name}")).split_whitespace()
}

/// A structure by its name.
pub(crate) fn structure(name: &str) -> Structure {
    let mut words = line(name);
    let (name, size) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let fields = words.map(|word| {
        let (field, offset) = word.split_once(':').unwrap();
        (field, offset.parse().unwrap())
    });
    Structure { name, size, fields: fields.collect() }
}

/// A constant by its name.
pub(crate) fn constant(name: &str) -> i64 {
    line(name).nth(1).unwrap().parse().unwrap()
}
