//! Rows as they lie in memory, by their places, and blocks of them as bytes.
//!
//! A row gets the next place when it is made and keeps it, so a walk over places that grows with the rows meets each of them once.

use super::arithmetic::{Scalar, StoredRow};
use crate::core::table::RowKeys;
use std::{ops::Range, sync::Arc};

/// About how many bytes of elements a chunk has, if a row is not longer.
const CHUNK_BYTES: usize = 64 << 10;

/// Rows by their places, either live or frozen.
pub(super) trait PlacedRows: Send + Sync {
    /// How many there are: their places count from 0.
    fn places(&self) -> u64;
    /// Rows from a place that is below [`places`](Self::places), as many as fit `most_bytes` with their keys, and at least one.
    fn block(&self, from: u64, most_bytes: usize) -> RowBlock;
}

/// Rows with what the optimizer keeps for them.
#[derive(Debug)]
pub(super) struct RowBlock {
    /// Of a dense table a run. Of a sparse one they are listed by places, in no order.
    pub(super) keys: RowKeys,
    /// Row after row: its elements, the optimizer's planes, and the count of its steps as `u32`, all little-endian.
    pub(super) bytes: Vec<u8>,
    /// The place after them.
    pub(super) next: u64,
}

/// Rows in chunks. A clone freezes them: it shares all chunks, and a chunk that changes after that is copied first.
#[derive(Clone)]
pub(super) struct RowChunks<S: Scalar> {
    pub(super) shape: RowShape,
    /// The key of place 0 of a dense table, whose places are in the order of keys; `None` for a sparse table.
    first_key: Option<u64>,
    /// How many places have rows.
    count: usize,
    chunk_rows: usize,
    chunks: Vec<Arc<RowChunk<S>>>,
}

/// How many numbers a row has.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowShape {
    /// Elements.
    pub(super) width: usize,
    /// How many numbers the optimizer keeps for each element.
    pub(super) planes: usize,
}

/// Some rows. A place that has no row yet has zeros.
#[derive(Clone)]
pub(super) struct RowChunk<S: Scalar> {
    /// Of a sparse table only.
    keys: Vec<u64>,
    values: Vec<S>,
    state: Vec<S::Real>,
    steps: Vec<u32>,
}

impl RowShape {
    /// How many bytes of a [block](RowBlock::bytes) a row takes up.
    pub(super) fn bytes<S: Scalar>(self) -> usize {
        self.width * (size_of::<S>() + self.planes * size_of::<S::Real>()) + size_of::<u32>()
    }
}

impl<S: Scalar> RowChunks<S> {
    /// For the rows of these keys. Those of a dense table are all there, zeros, and share one chunk until they change.
    pub(super) fn new(shape: RowShape, keys: &Range<u64>, is_sparse: bool) -> Self {
        let rows = usize::try_from(keys.end - keys.start).unwrap_or(usize::MAX);
        let chunk_rows = (CHUNK_BYTES / (shape.width * size_of::<S>())).min(rows).max(1);
        let mut chunks = Self {
            shape,
            first_key: (!is_sparse).then_some(keys.start),
            count: 0,
            chunk_rows,
            chunks: Vec::new(),
        };
        if !is_sparse {
            let zeros = Arc::new(chunks.zeros());
            chunks.chunks = vec![zeros; rows.div_ceil(chunk_rows)];
            chunks.count = rows;
        }
        chunks
    }

    fn zeros(&self) -> RowChunk<S> {
        let (rows, elements) = (self.chunk_rows, self.chunk_rows * self.shape.width);
        RowChunk {
            keys: if self.first_key.is_none() { vec![0; rows] } else { Vec::new() },
            values: vec![S::default(); elements],
            state: vec![S::Real::default(); elements * self.shape.planes],
            steps: vec![0; rows],
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.count = 0;
        if self.first_key.is_none() {
            self.chunks.clear();
        }
    }

    /// The row of a key gets the next place, which is returned. A dense table's rows come in the order of their keys.
    pub(super) fn add(&mut self, key: u64) -> usize {
        let place = self.count;
        self.count += 1;
        if place >= self.chunks.len() * self.chunk_rows {
            self.chunks.push(Arc::new(self.zeros()));
        }
        if self.first_key.is_none() {
            let at = place % self.chunk_rows;
            self.chunk(place).0.keys[at] = key;
        }
        place
    }

    /// The chunk of a place, to be changed, and the place after it that is another chunk's or no row's.
    pub(super) fn chunk(&mut self, place: usize) -> (&mut RowChunk<S>, usize) {
        let chunk = place / self.chunk_rows;
        let end = ((chunk + 1) * self.chunk_rows).min(self.count);
        (Arc::make_mut(&mut self.chunks[chunk]), end)
    }

    /// Where in its chunk a place is.
    pub(super) fn at(&self, place: usize) -> usize {
        place % self.chunk_rows
    }

    pub(super) fn row(&mut self, place: usize) -> StoredRow<'_, S> {
        let (at, shape) = (self.at(place), self.shape);
        self.chunk(place).0.row(at, shape)
    }

    pub(super) fn values(&self, place: usize) -> &[S] {
        let at = self.at(place) * self.shape.width;
        &self.chunks[place / self.chunk_rows].values[at..at + self.shape.width]
    }
}

impl<S: Scalar> PlacedRows for RowChunks<S> {
    fn places(&self) -> u64 {
        self.count as u64
    }

    fn block(&self, from: u64, most_bytes: usize) -> RowBlock {
        let RowShape { width, planes } = self.shape;
        let key_bytes = if self.first_key.is_none() { size_of::<u64>() } else { 0 };
        let row_bytes = self.shape.bytes::<S>();
        let fit = (most_bytes / (row_bytes + key_bytes)).max(1);
        let begin = (from as usize).min(self.count);
        let end = self.count.min(begin.saturating_add(fit));
        let (mut listed, mut bytes) = (Vec::new(), Vec::with_capacity((end - begin) * row_bytes));
        for place in begin..end {
            let (chunk, at) = (&self.chunks[place / self.chunk_rows], self.at(place));
            listed.extend(chunk.keys.get(at));
            let state = at * width * planes;
            chunk.values[at * width..(at + 1) * width].iter().for_each(|value| value.write(&mut bytes));
            chunk.state[state..state + width * planes].iter().for_each(|kept| kept.write(&mut bytes));
            bytes.extend_from_slice(&chunk.steps[at].to_le_bytes());
        }
        let keys = match self.first_key {
            Some(first) => RowKeys::Run { first: first + begin as u64, count: (end - begin) as u64 },
            None => RowKeys::Listed(listed.into()),
        };
        RowBlock { keys, bytes, next: end as u64 }
    }
}

impl<S: Scalar> RowChunk<S> {
    pub(super) fn row(&mut self, at: usize, shape: RowShape) -> StoredRow<'_, S> {
        let (width, state) = (shape.width, shape.width * shape.planes);
        StoredRow {
            values: &mut self.values[at * width..(at + 1) * width],
            state: &mut self.state[at * state..(at + 1) * state],
            steps: (shape.planes > 0).then(|| &mut self.steps[at]),
        }
    }
}

impl<S: Scalar> StoredRow<'_, S> {
    /// Becomes the row of a [block](RowBlock::bytes), of [as many bytes](RowShape::bytes) as it has.
    pub(super) fn load(self, bytes: &[u8]) {
        let (values, rest) = bytes.split_at(size_of_val(self.values));
        let (state, steps) = rest.split_at(size_of_val(self.state));
        let each = self.values.iter_mut().zip(values.chunks_exact(size_of::<S>()));
        each.for_each(|(value, bytes)| *value = S::read(bytes));
        let each = self.state.iter_mut().zip(state.chunks_exact(size_of::<S::Real>()));
        each.for_each(|(kept, bytes)| *kept = Scalar::read(bytes));
        if let Some(taken) = self.steps {
            *taken = steps.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        }
    }
}
