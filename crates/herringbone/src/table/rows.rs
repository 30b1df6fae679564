//! The rows of a range in memory, with what the optimizer keeps for them.

use super::arithmetic::{Real, Rule, Scalar, StoredRow, planes};
use crate::core::{
    element::DType,
    table::{Initializer, OptimizerSpec, RowKeys, TableError, TableSpec},
};
use half::bf16;
use std::{collections::HashMap, ops::Range};

/// How much of a sparse table is made room for at once, if a row is not longer.
const CHUNK_BYTES: usize = 64 << 10;
/// What a row of a sparse table costs beside its elements, about: its key and place in an index that is up to twice as large.
const INDEX_BYTES: u64 = 40;

/// The rows of a range.
pub(super) trait Rows: Send {
    /// How many bytes more a push of these keys takes up, for rows that are not there yet.
    fn needs(&self, keys: &RowKeys) -> u64;
    /// Changes rows by what was pushed to them: as many bytes as they have.
    fn push(&mut self, keys: &RowKeys, pushed: &[u8]);
    /// Appends rows to `into`.
    ///
    /// # Errors
    /// [`TableError::Missing`].
    fn read(&self, keys: &RowKeys, into: &mut Vec<u8>) -> Result<(), TableError>;
    /// The first key whose row has a NaN.
    fn not_a_number(&self, keys: &RowKeys, pushed: &[u8]) -> Option<u64>;
    /// Takes other numbers of the same optimizer.
    fn tune(&mut self, optimizer: OptimizerSpec);
    /// How many rows take up memory.
    fn held(&self) -> u64;
}

/// The rows of a range of a table, none of which was pushed to.
pub(super) fn rows_of(spec: &TableSpec, range: Range<u64>) -> Box<dyn Rows> {
    match spec.dtype {
        DType::F64 => Box::new(RowStore::<f64>::new(spec, range)),
        DType::Bf16 => Box::new(RowStore::<bf16>::new(spec, range)),
        _ => Box::new(RowStore::<f32>::new(spec, range)),
    }
}

/// How many bytes a row takes up.
pub(super) fn row_cost(spec: &TableSpec) -> u64 {
    let real = if spec.dtype == DType::F64 { size_of::<f64>() } else { size_of::<f32>() };
    let state = planes(&spec.optimizer) * spec.width as usize * real;
    let elements = (spec.row_bytes() + state + size_of::<u32>()) as u64;
    if spec.sparse { elements + INDEX_BYTES } else { elements }
}

struct RowStore<S: Scalar> {
    range: Range<u64>,
    width: usize,
    planes: usize,
    initializer: Initializer,
    rule: Rule<S::Real>,
    row_cost: u64,
    /// The places of the rows that are there; a dense table has all, in the order of their keys.
    places: Option<HashMap<u64, usize>>,
    chunk_rows: usize,
    chunks: Vec<Chunk<S>>,
}

/// Some rows: their elements, and what the optimizer keeps for them.
struct Chunk<S: Scalar> {
    values: Vec<S>,
    state: Vec<S::Real>,
    steps: Vec<u32>,
}

impl<S: Scalar> RowStore<S> {
    fn new(spec: &TableSpec, range: Range<u64>) -> Self {
        let rows = (range.end - range.start) as usize;
        let mut store = Self {
            width: spec.width as usize,
            planes: planes(&spec.optimizer),
            initializer: spec.initializer,
            rule: Rule::new(spec.optimizer),
            row_cost: row_cost(spec),
            places: spec.sparse.then(HashMap::new),
            chunk_rows: if spec.sparse { CHUNK_BYTES / spec.row_bytes() } else { rows }.max(1),
            chunks: Vec::new(),
            range,
        };
        if !spec.sparse {
            store.make_room();
            if store.initializer != Initializer::Zeros {
                (0..rows).for_each(|place| store.initialize(place, store.range.start + place as u64));
            }
        }
        store
    }

    fn make_room(&mut self) {
        let (rows, elements) = (self.chunk_rows, self.chunk_rows * self.width);
        self.chunks.push(Chunk {
            values: vec![S::default(); elements],
            state: vec![S::Real::default(); elements * self.planes],
            steps: vec![0; rows],
        });
    }

    /// Where a row is, if it is there.
    fn place(&self, key: u64) -> Option<usize> {
        match &self.places {
            None => Some((key - self.range.start) as usize),
            Some(places) => places.get(&key).copied(),
        }
    }

    fn place_or_new(&mut self, key: u64) -> usize {
        if let Some(place) = self.place(key) {
            return place;
        }
        let place = self.places.as_ref().map_or(0, HashMap::len);
        if place >= self.chunks.len() * self.chunk_rows {
            self.make_room();
        }
        if let Some(places) = &mut self.places {
            places.insert(key, place);
        }
        self.initialize(place, key);
        place
    }

    fn initialize(&mut self, place: usize, key: u64) {
        let initializer = self.initializer;
        let row = self.row(place);
        initial(initializer, key, row.values);
    }

    fn row(&mut self, place: usize) -> StoredRow<'_, S> {
        let (at, width) = (place % self.chunk_rows, self.width);
        let state = width * self.planes;
        let chunk = &mut self.chunks[place / self.chunk_rows];
        StoredRow {
            values: &mut chunk.values[at * width..(at + 1) * width],
            state: &mut chunk.state[at * state..(at + 1) * state],
            steps: &mut chunk.steps[at],
        }
    }
}

impl<S: Scalar> Rows for RowStore<S> {
    fn needs(&self, keys: &RowKeys) -> u64 {
        match &self.places {
            None => 0,
            Some(places) => {
                keys.iter().filter(|key| !places.contains_key(key)).count() as u64 * self.row_cost
            }
        }
    }

    fn push(&mut self, keys: &RowKeys, pushed: &[u8]) {
        let rule = self.rule;
        for (key, row) in keys.iter().zip(pushed.chunks_exact(self.width * size_of::<S>())) {
            let place = self.place_or_new(key);
            rule.step(self.row(place), row.chunks_exact(size_of::<S>()).map(S::read));
        }
    }

    fn read(&self, keys: &RowKeys, into: &mut Vec<u8>) -> Result<(), TableError> {
        let mut fresh = Vec::new();
        for key in keys.iter() {
            let values = match self.place(key) {
                Some(place) => {
                    let at = place % self.chunk_rows * self.width;
                    &self.chunks[place / self.chunk_rows].values[at..at + self.width]
                }
                None if self.initializer == Initializer::Missing => return Err(TableError::Missing { key }),
                None => {
                    fresh.resize(self.width, S::default());
                    initial(self.initializer, key, &mut fresh);
                    &fresh
                }
            };
            values.iter().for_each(|value| value.write(into));
        }
        Ok(())
    }

    fn not_a_number(&self, keys: &RowKeys, pushed: &[u8]) -> Option<u64> {
        let has_nan =
            |row: &[u8]| row.chunks_exact(size_of::<S>()).any(|bytes| S::read(bytes).real().is_nan());
        let found = pushed.chunks_exact(self.width * size_of::<S>()).position(has_nan)?;
        Some(keys.get(found))
    }

    fn tune(&mut self, optimizer: OptimizerSpec) {
        self.rule = Rule::new(optimizer);
    }

    fn held(&self) -> u64 {
        match &self.places {
            None => self.range.end - self.range.start,
            Some(places) => places.len() as u64,
        }
    }
}

/// Writes what a row is before the first push to it.
fn initial<S: Scalar>(initializer: Initializer, key: u64, values: &mut [S]) {
    match initializer {
        Initializer::Zeros | Initializer::Missing => values.fill(S::default()),
        Initializer::Normal { seed, deviation } => {
            let mut random = Random(seed ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
            for pair in values.chunks_mut(2) {
                let both = random.normal_pair();
                for (value, number) in pair.iter_mut().zip(both) {
                    *value = S::of(S::Real::from_f64(number * deviation));
                }
            }
        }
    }
}

/// Random numbers that are the same on every machine (SplitMix64).
struct Random(u64);

impl Random {
    /// Above 0, and at most 1.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((mixed ^ (mixed >> 31)) >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// Two that are normally distributed (Box and Muller 1958). Logarithm and cosine are those of `libm`, so that no two machines
    /// differ in a bit.
    fn normal_pair(&mut self) -> [f64; 2] {
        let radius = (-2.0 * libm::log(self.unit())).sqrt();
        let (sine, cosine) = libm::sincos(2.0 * std::f64::consts::PI * self.unit());
        [radius * cosine, radius * sine]
    }
}
