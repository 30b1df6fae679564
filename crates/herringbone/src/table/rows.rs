//! The rows of a range in memory, with the optimizer's state.

use super::{
    arithmetic::{Real, Rule, Scalar},
    chunks::{PlacedRows, RowChunks, RowShape},
    optimizers::FoundOptimizer,
};
use crate::{
    core::{
        element::DType,
        table::{Initializer, OptimizerSpec, RowKeys, TableError, TableSpec},
    },
    sys::{plain, span::Span},
};
use half::bf16;
use std::{collections::HashMap, ops::Range};

/// What a row of a sparse table costs in addition to its elements, about: its key, and key and place in an index that is up to twice
/// as large.
const INDEX_BYTES: u64 = 48;
/// How many rows ahead one is fetched to this core, and how many bytes of it.
const AHEAD: usize = 8;
const FETCHED: usize = 512;

/// The rows of a range.
pub(super) trait Rows: Send {
    /// How many bytes more a push of these keys takes up, for rows that are not there yet.
    fn needs(&self, keys: &RowKeys) -> u64;
    /// Changes rows by what was pushed to them: as many bytes as they have.
    fn push(&mut self, keys: &RowKeys, pushed: &[u8]);
    /// Writes rows to `into`, which has as many bytes as they have.
    ///
    /// # Errors
    /// [`TableError::Missing`].
    fn read(&self, keys: &RowKeys, into: &mut [u8]) -> Result<(), TableError>;
    /// The first key whose row has a NaN.
    fn not_a_number(&self, keys: &RowKeys, pushed: &[u8]) -> Option<u64>;
    /// Takes other numbers of the same optimizer.
    fn tune(&mut self, optimizer: OptimizerSpec);
    /// How many rows take up memory.
    fn held(&self) -> u64;
    /// How many bytes a row takes up.
    fn row_cost(&self) -> u64;
    /// The rows by their places, as they are.
    fn placed(&self) -> &dyn PlacedRows;
    /// The rows by their places, as they are now and for ever. It costs a pointer for each chunk of 64 KiB, and then a copy of each
    /// chunk that is pushed to as long as this is kept.
    fn freeze(&self) -> Box<dyn PlacedRows>;
    /// Forgets all rows, which come in blocks from now on. A push to a row that has not come is ignored: where the row comes from, it
    /// has that push already. So whoever sends blocks by ascending places, and between them all pushes in the order in which they
    /// take effect, gives this store the same bits.
    fn begin_loading(&mut self);
    /// Takes the rows of a block whose keys are in this store's range, and leaves the others. A refusal may leave some taken.
    ///
    /// # Errors
    /// [`TableError::Malformed`], also if a row is there already, or those of a dense table do not follow each other.
    fn load(&mut self, keys: &RowKeys, bytes: &[u8]) -> Result<(), TableError>;
    /// All blocks have come.
    ///
    /// # Errors
    /// [`TableError::Malformed`] if rows of a dense table are missing.
    fn end_loading(&mut self) -> Result<(), TableError>;
}

/// The rows of a range of a table, none of which was pushed to.
pub(super) fn rows_of(spec: &TableSpec, optimizer: &FoundOptimizer, range: Range<u64>) -> Box<dyn Rows> {
    match spec.dtype {
        DType::F64 => Box::new(RowStore::<f64>::new(spec, optimizer, range)),
        DType::Bf16 => Box::new(RowStore::<bf16>::new(spec, optimizer, range)),
        _ => Box::new(RowStore::<f32>::new(spec, optimizer, range)),
    }
}

/// How many bytes a row takes up for which so many numbers are kept for each element.
pub(super) fn row_cost(spec: &TableSpec, planes: usize) -> u64 {
    let real = if spec.dtype == DType::F64 { size_of::<f64>() } else { size_of::<f32>() };
    let state = planes * spec.width as usize * real;
    let elements = (spec.row_bytes() + state + size_of::<u32>()) as u64;
    if spec.sparse { elements + INDEX_BYTES } else { elements }
}

struct RowStore<S: Scalar> {
    range: Range<u64>,
    initializer: Initializer,
    rule: Rule<S::Real>,
    row_cost: u64,
    /// The places of the rows that are there; a dense table's are in the order of their keys.
    places: Option<HashMap<u64, usize>>,
    /// Whether rows come in blocks: a row that has not come is neither made nor changed.
    is_loading: bool,
    rows: RowChunks<S>,
}

impl<S: Scalar> RowStore<S> {
    fn new(spec: &TableSpec, optimizer: &FoundOptimizer, range: Range<u64>) -> Self {
        let shape = RowShape { width: spec.width as usize, planes: optimizer.planes() };
        let mut store = Self {
            initializer: spec.initializer,
            rule: optimizer.rule::<S>(),
            row_cost: row_cost(spec, shape.planes),
            places: spec.sparse.then(HashMap::new),
            is_loading: false,
            rows: RowChunks::new(shape, &range, spec.sparse),
            range,
        };
        if store.initializer != Initializer::Zeros {
            for place in 0..store.rows.count() {
                initial(store.initializer, store.range.start + place as u64, store.rows.row(place).values);
            }
        }
        store
    }

    /// Where a row is, if it is there.
    fn place(&self, key: u64) -> Option<usize> {
        match &self.places {
            None => Some((key - self.range.start) as usize).filter(|place| *place < self.rows.count()),
            Some(places) => places.get(&key).copied(),
        }
    }

    /// Where a row is, which is made if it is not there and may be.
    fn place_or_new(&mut self, key: u64) -> Option<usize> {
        if let Some(place) = self.place(key) {
            return Some(place);
        }
        if self.is_loading {
            return None;
        }
        let place = self.add(key);
        initial(self.initializer, key, self.rows.row(place).values);
        Some(place)
    }

    /// Has the row of a key among some brought to this core, as it is needed soon: rows that are listed lie anywhere.
    fn fetch(&self, keys: &RowKeys, number: usize) {
        if let RowKeys::Listed(keys) = keys
            && self.places.is_none()
            && let Some(place) = keys.get(number).and_then(|key| self.place(*key))
        {
            Span::of_shared(plain::bytes(self.rows.values(place))).fetch(FETCHED);
        }
    }

    fn add(&mut self, key: u64) -> usize {
        let place = self.rows.add(key);
        if let Some(places) = &mut self.places {
            places.insert(key, place);
        }
        place
    }
}

impl<S: Scalar> Rows for RowStore<S> {
    fn needs(&self, keys: &RowKeys) -> u64 {
        match &self.places {
            Some(places) if !self.is_loading => {
                keys.iter().filter(|key| !places.contains_key(key)).count() as u64 * self.row_cost
            }
            _ => 0,
        }
    }

    fn push(&mut self, keys: &RowKeys, pushed: &[u8]) {
        let (mut rule, shape) = (self.rule.clone(), self.rows.shape);
        let mut left =
            keys.iter().enumerate().zip(pushed.chunks_exact(shape.width * size_of::<S>())).peekable();
        while let Some(((number, key), row)) = left.next() {
            self.fetch(keys, number + AHEAD);
            let Some(place) = self.place_or_new(key) else { continue };
            let at = self.rows.at(place);
            let (chunk, end) = self.rows.chunk(place);
            rule.step(chunk.row(at, shape), row);
            // A chunk is made writable once for all rows of a run that are in it.
            let until = match keys {
                RowKeys::Run { .. } if self.places.is_none() => self.range.start + end as u64,
                _ => 0,
            };
            while let Some(((_, next), row)) = left.next_if(|((_, next), _)| *next < until) {
                let at = at + (next - key) as usize;
                rule.step(chunk.row(at, shape), row);
            }
        }
    }

    fn read(&self, keys: &RowKeys, into: &mut [u8]) -> Result<(), TableError> {
        let mut fresh = Vec::new();
        let rows = into.chunks_exact_mut(self.rows.shape.width * size_of::<S>());
        for (number, (key, into)) in keys.iter().zip(rows).enumerate() {
            self.fetch(keys, number + AHEAD);
            let values = match self.place(key) {
                Some(place) => self.rows.values(place),
                None if self.initializer == Initializer::Missing => return Err(TableError::Missing { key }),
                None => {
                    fresh.resize(self.rows.shape.width, S::default());
                    initial(self.initializer, key, &mut fresh);
                    &fresh
                }
            };
            // Rows travel as they lie in the memory of this machine, which is little-endian.
            into.copy_from_slice(plain::bytes(values));
        }
        Ok(())
    }

    fn not_a_number(&self, keys: &RowKeys, pushed: &[u8]) -> Option<u64> {
        // Without a way out in the middle it is done with many elements at once.
        let has_nan = |row: &[u8]| {
            let elements = row.chunks_exact(size_of::<S>());
            elements.fold(false, |found, bytes| found | S::read(bytes).real().is_nan())
        };
        let row_bytes = self.rows.shape.width * size_of::<S>();
        let found = pushed.chunks_exact(row_bytes).position(has_nan)?;
        Some(keys.get(found))
    }

    fn tune(&mut self, optimizer: OptimizerSpec) {
        self.rule = self.rule.tuned(optimizer);
    }

    fn held(&self) -> u64 {
        self.rows.places()
    }

    fn row_cost(&self) -> u64 {
        self.row_cost
    }

    fn placed(&self) -> &dyn PlacedRows {
        &self.rows
    }

    fn freeze(&self) -> Box<dyn PlacedRows> {
        Box::new(self.rows.clone())
    }

    fn begin_loading(&mut self) {
        self.is_loading = true;
        self.rows.clear();
        if let Some(places) = &mut self.places {
            places.clear();
        }
    }

    fn load(&mut self, keys: &RowKeys, bytes: &[u8]) -> Result<(), TableError> {
        let wrong = |what: &str| Err(TableError::Malformed(what.into()));
        let is_kind = matches!(keys, RowKeys::Listed(_)) == self.places.is_some();
        if !self.is_loading || !is_kind {
            return wrong("a block of rows for another kind of table");
        }
        let row_bytes = self.rows.shape.bytes::<S>();
        if keys.len().checked_mul(row_bytes) != Some(bytes.len()) {
            return wrong("a block whose rows have another width, type or optimizer");
        }
        let (range, rows) = (self.range.clone(), keys.iter().zip(bytes.chunks_exact(row_bytes)));
        for (key, row) in rows.filter(|(key, _)| range.contains(key)) {
            let is_next = match &self.places {
                None => (key - range.start) as usize == self.rows.count(),
                Some(places) => !places.contains_key(&key),
            };
            if !is_next {
                return wrong("a row that comes twice, or too early");
            }
            let place = self.add(key);
            self.rows.row(place).load(row);
        }
        Ok(())
    }

    fn end_loading(&mut self) -> Result<(), TableError> {
        if self.places.is_none() && self.rows.places() < self.range.end - self.range.start {
            return Err(TableError::Malformed("the end of an image that lacks rows".into()));
        }
        self.is_loading = false;
        Ok(())
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
