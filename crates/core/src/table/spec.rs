//! The specification of a table: all properties on which its workers and servers must agree.

use super::{error::Unusable, optimizer::OptimizerSpec};
use crate::{
    element::DType,
    session::{Malformed, Reader, Writer, is_unseen},
    wire::digest,
};
use alloc::{format, string::String, vec::Vec};
use core::fmt;

/// The longest name of a table, in bytes.
pub const NAME_BYTES: usize = 200;
/// The most elements of a row; half as many of `f64`. A row and its optimizer's state have to fit a message.
pub const WIDTH_MOST: u32 = 16 << 10;
/// The most workers of a table.
pub const WORKERS_MOST: u32 = 1 << 16;
/// The largest bound of staleness, in steps.
pub const BOUND_MOST: u32 = 1 << 20;

/// A table: rows of `width` elements, by keys from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct TableSpec {
    /// How many keys there are.
    pub rows: u64,
    /// Elements of a row.
    pub width: u32,
    /// The type of its elements: one with fractions.
    pub dtype: DType,
    /// Whether rows take up memory only once they are pushed to.
    pub sparse: bool,
    /// The values of rows before the first push to them.
    pub initializer: Initializer,
    /// The effect of a push on them.
    pub optimizer: OptimizerSpec,
    /// Which pushes a pull sees.
    pub consistency: Consistency,
    /// How many workers push to it, of ranks from 0.
    pub workers: u32,
    /// The treatment of a push with a NaN in it.
    pub not_a_number: NotANumber,
}

/// The values of rows before the first push to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// All elements are 0.
    Zeros,
    /// Normally distributed around 0. A row's elements depend on its key and the seed, and on nothing else.
    Normal {
        /// The seed of the random numbers.
        seed: u64,
        /// Their standard deviation.
        deviation: f64,
    },
    /// They do not exist: to pull them is an error.
    Missing,
}

/// Which pushes a pull sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// All pushes of all workers in the steps that the puller has ended, and none of later steps. The pushes of a step
    /// are summed in the canonical tree of the workers' ranks, so the bits are the same as an all-reduce's.
    Sync,
    /// The pushes that have arrived. A push changes the table at once.
    Async,
    /// The pushes that have arrived. They include at least all pushes of the steps that the puller has ended, except
    /// for the last few; the number is how many. This is stale synchronous parallel (Ho et al., NIPS 2013). 0 is
    /// [`Sync`](Self::Sync).
    Bounded(u32),
    /// The pushes of steps that have taken effect. Steps take effect in batches of this number, whichever workers end
    /// them first, and their pushes are summed. This is the soft synchronisation of Zhang et al. (IJCAI 2016); 1
    /// changes the rows once per step.
    FirstOf(u32),
}

/// The treatment of a push with a NaN in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotANumber {
    /// It is refused whole.
    Refused,
    /// It is taken, and counted.
    Counted,
}

/// # Errors
/// If no table can have this name, with the reason.
pub fn check_name(name: &str) -> Result<(), Unusable> {
    if name.is_empty() || name.len() > NAME_BYTES {
        return Err(Unusable(format!(
            "a table's name has 1 to {NAME_BYTES} bytes, and this one {}",
            name.len()
        )));
    }
    match name.chars().zip(1..).find(|(character, _)| is_unseen(*character)) {
        None => Ok(()),
        Some((character, at)) => Err(Unusable(format!(
            "character {at} of the table's name is U+{:04X}, which nobody sees: take it out",
            u32::from(character)
        ))),
    }
}

impl TableSpec {
    /// A dense table of zeros of `f32`, for one worker, to which pushes are added at once.
    pub fn new(rows: u64, width: u32) -> Self {
        Self {
            rows,
            width,
            dtype: DType::F32,
            sparse: false,
            initializer: Initializer::Zeros,
            optimizer: OptimizerSpec::ADD,
            consistency: Consistency::Async,
            workers: 1,
            not_a_number: NotANumber::Refused,
        }
    }

    /// # Errors
    /// If no such table can exist, with a remedy.
    pub fn check(&self, name: &str) -> Result<(), Unusable> {
        let wrong = |what: String| Err(Unusable(what));
        check_name(name)?;
        let most = if self.dtype == DType::F64 { WIDTH_MOST / 2 } else { WIDTH_MOST };
        if self.rows == 0 || self.width == 0 || self.width > most {
            let (rows, width) = (self.rows, self.width);
            return wrong(format!(
                "{rows} rows of {width} elements: a table has at least one row, of 1 to {most} elements"
            ));
        }
        if !matches!(self.dtype, DType::F32 | DType::F64 | DType::Bf16) {
            return wrong(format!("elements of {}: use f32, f64 or bf16", self.dtype));
        }
        if self.workers == 0 || self.workers > WORKERS_MOST {
            return wrong(format!("{} workers: a table has 1 to {WORKERS_MOST}", self.workers));
        }
        if matches!(self.consistency, Consistency::Bounded(bound) if bound > BOUND_MOST) {
            return wrong(format!("a bound of more than {BOUND_MOST} steps: that is async"));
        }
        if matches!(self.consistency, Consistency::FirstOf(count) if count == 0 || count > WORKERS_MOST) {
            return wrong(format!("{}: an update by 1 to {WORKERS_MOST} steps", self.consistency));
        }
        if let Initializer::Normal { deviation, .. } = self.initializer
            && !(deviation.is_finite() && deviation >= 0.0)
        {
            return wrong(format!("a standard deviation of {deviation}: it is a finite number from 0"));
        }
        if !self.sparse && self.initializer == Initializer::Missing {
            return wrong(
                "a dense table has all its rows: take another initializer, or make it sparse".into(),
            );
        }
        self.optimizer.check()
    }

    /// Bytes of a row's elements.
    pub fn row_bytes(&self) -> usize {
        self.width as usize * self.dtype.bytes()
    }

    /// The number by which a table goes: of its name and all that it is.
    pub fn digest(&self, name: &str) -> u64 {
        let mut to = Writer::default();
        self.write(name, &mut to);
        digest(&to.into_bytes())
    }

    /// The names of the differences between two tables, in the order in which people ask for them.
    pub fn difference(&self, other: &Self) -> Vec<&'static str> {
        let fields = [
            ("rows", self.rows != other.rows),
            ("width", self.width != other.width),
            ("element type", self.dtype != other.dtype),
            ("sparse or dense", self.sparse != other.sparse),
            ("initializer", self.initializer != other.initializer),
            ("optimizer", self.optimizer.kind != other.optimizer.kind),
            ("numbers of the optimizer", self.optimizer.numbers != other.optimizer.numbers),
            ("consistency", self.consistency != other.consistency),
            ("number of workers", self.workers != other.workers),
            ("the treatment of NaN", self.not_a_number != other.not_a_number),
        ];
        fields.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    pub(super) fn write(&self, name: &str, to: &mut Writer) {
        to.text("a table's name", name);
        to.u64(self.rows);
        to.u32(self.width);
        to.u8(self.dtype.code());
        to.bool(self.sparse);
        let (initializer, seed, deviation) = match self.initializer {
            Initializer::Zeros => (0, 0, 0.0),
            Initializer::Normal { seed, deviation } => (1, seed, deviation),
            Initializer::Missing => (2, 0, 0.0),
        };
        to.u8(initializer);
        to.u64(seed);
        to.u64(f64::to_bits(deviation));
        self.optimizer.write(to);
        let (consistency, bound) = match self.consistency {
            Consistency::Sync => (0, 0),
            Consistency::Async => (1, 0),
            Consistency::Bounded(bound) => (2, bound),
            Consistency::FirstOf(count) => (3, count),
        };
        to.u8(consistency);
        to.u32(bound);
        to.u32(self.workers);
        to.bool(self.not_a_number == NotANumber::Counted);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<(String, Self), Malformed> {
        let (name, rows, width) = (from.text()?, from.u64()?, from.u32()?);
        let dtype = DType::from_code(from.u8()?).ok_or(Malformed("an element type that is unknown"))?;
        let sparse = from.bool()?;
        let (initializer, seed, deviation) = (from.u8()?, from.u64()?, f64::from_bits(from.u64()?));
        let initializer = match initializer {
            0 => Initializer::Zeros,
            1 => Initializer::Normal { seed, deviation },
            2 => Initializer::Missing,
            _ => return Err(Malformed("an initializer that is unknown")),
        };
        let optimizer = OptimizerSpec::read(from)?;
        let consistency = match (from.u8()?, from.u32()?) {
            (0, 0) => Consistency::Sync,
            (1, 0) => Consistency::Async,
            (2, bound) => Consistency::Bounded(bound),
            (3, count) => Consistency::FirstOf(count),
            _ => return Err(Malformed("a consistency that is unknown")),
        };
        let workers = from.u32()?;
        let not_a_number = if from.bool()? { NotANumber::Counted } else { NotANumber::Refused };
        let spec =
            Self { rows, width, dtype, sparse, initializer, optimizer, consistency, workers, not_a_number };
        Ok((name, spec))
    }
}

impl Consistency {
    /// The number of steps for which others' pushes can be missing from a pull; `None`: any number.
    pub fn bound(self) -> Option<u64> {
        match self {
            Self::Sync => Some(0),
            Self::Async | Self::FirstOf(_) => None,
            Self::Bounded(bound) => Some(u64::from(bound)),
        }
    }

    /// Whether the pushes of a step change the table at its end, all at once.
    pub fn is_sync(self) -> bool {
        self.bound() == Some(0)
    }

    /// Whether the pushes of a step are kept, and change the table after the step's end.
    pub fn keeps(self) -> bool {
        self.is_sync() || matches!(self, Self::FirstOf(_))
    }
}

impl fmt::Display for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sync => f.pad("sync"),
            Self::Async => f.pad("async"),
            Self::Bounded(bound) => f.pad(&format!("bounded({bound})")),
            Self::FirstOf(count) => f.pad(&format!("first({count})")),
        }
    }
}
