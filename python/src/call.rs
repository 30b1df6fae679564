//! A call in Python's form: a kind, which is made and checked once, and rare extras.

use crate::{
    codecs::parse_codec,
    memory::{self, PySpan},
    residuals::PyResiduals,
    waiting,
};
use herringbone::{
    Collective, Compression, DType, MessageRequest, ReduceOp, Region, Request, core::codec::CodecChoice,
    rabit::RabitCollective,
};
use pyo3::{exceptions::PyValueError, prelude::*, pybacked::PyBackedStr};
use std::str::FromStr;

/// A collective, its elements' type and the operation that folds them.
///
/// Equal kinds are interchangeable; `herringbone.kinds` makes each kind once.
#[pyclass(frozen, eq, hash, name = "Kind", module = "herringbone._herringbone")]
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct CallKind {
    /// Its root is the call's.
    collective: Collective,
    dtype: DType,
    op: ReduceOp,
}

#[pymethods]
impl CallKind {
    #[new]
    fn new(collective: &str, dtype: &str, op: &str) -> PyResult<Self> {
        Ok(Self { collective: parse_collective(collective)?, dtype: parse(dtype)?, op: parse(op)? })
    }

    /// The collective's name.
    #[getter]
    fn collective(&self) -> &'static str {
        self.collective.name()
    }
}

/// The parts of a call: its kind, the number of elements, the root if it has one, the memory of input and output, and its owner. Then
/// the timeout in seconds, the priority, and rare extras.
///
/// It is a tuple, so that no object is built for it. Wrong numbers in it are wrong memory accesses, so only this package's modules
/// use it.
pub(crate) type PyCall<'py> = (
    PyRef<'py, CallKind>,
    usize,
    u32,
    PySpan,
    PySpan,
    Bound<'py, PyAny>,
    Option<f64>,
    i32,
    Option<PyRef<'py, Extras>>,
);

/// A call as the engine takes it.
pub(crate) fn request(call: PyCall<'_>) -> PyResult<Request> {
    let (kind, count, root, source, target, keep, timeout, priority, extras) = call;
    let timeout = waiting::duration(timeout)?;
    let (input, output) = regions(source, target, &keep);
    let request = Request::new(kind.collective.with_root(root), kind.dtype, count, input, output);
    let request = request.op(kind.op).priority(priority).timeout(timeout);
    Ok(match extras {
        Some(extras) => extras.of(request),
        None => request,
    })
}

/// The memory of a call, as Python says it, which the host may not touch.
pub(crate) struct StagedSpans<'py> {
    pub(crate) input: PySpan,
    pub(crate) output: PySpan,
    pub(crate) keep: Bound<'py, PyAny>,
}

/// A call on an accelerator's memory, without the memory.
pub(crate) fn staged_request(call: PyCall<'_>) -> PyResult<(Request, StagedSpans<'_>)> {
    let (kind, count, root, input, output, keep, timeout, priority, extras) = call;
    let (nothing, spans) = ((0, 0), StagedSpans { input, output, keep: keep.clone() });
    Ok((request((kind, count, root, nothing, nothing, keep, timeout, priority, extras))?, spans))
}

/// A message in an accelerator's memory, without the memory.
pub(crate) fn staged_message(
    message: PyMessage<'_>,
    is_written: bool,
) -> PyResult<(MessageRequest, StagedSpans<'_>)> {
    let (dtype, count, tag, span, keep, timeout) = message;
    let (nothing, keeps) = ((0, 0), keep.clone());
    let (input, output) = if is_written { (nothing, span) } else { (span, nothing) };
    let message = message_request((dtype, count, tag, nothing, keep, timeout), is_written)?;
    Ok((message, StagedSpans { input, output, keep: keeps }))
}

/// A call of a program that continues where it was, as the engine takes it, from a place in that program. It has no timeout of its own,
/// no priority, and no extras.
pub(crate) fn rabit_collective(call: PyCall<'_>, place: u64) -> RabitCollective {
    let (kind, count, root, source, target, keep, ..) = call;
    let (input, output) = regions(source, target, &keep);
    let (collective, dtype, op) = (kind.collective.with_root(root), kind.dtype, kind.op);
    RabitCollective { collective, dtype, count, op, input, output, slice: None, place }
}

/// The parts of a send or a receive: the elements' type and number, the tag, their memory, its owner, the timeout in seconds.
pub(crate) type PyMessage<'py> = (PyBackedStr, usize, i64, PySpan, Bound<'py, PyAny>, Option<f64>);

/// A message as the engine takes it, in memory that the engine writes or reads.
pub(crate) fn message_request(message: PyMessage<'_>, is_written: bool) -> PyResult<MessageRequest> {
    let (dtype, count, tag, span, keep, timeout) = message;
    let (dtype, timeout) = (parse(&dtype)?, waiting::duration(timeout)?);
    let nothing = (0, 0);
    let region = match is_written {
        true => regions(nothing, span, &keep).1,
        false => readable(span, &keep),
    };
    Ok(MessageRequest::new(dtype, count, region).tag(tag).timeout(timeout))
}

/// Rare parts of a call.
#[pyclass(frozen, module = "herringbone._herringbone")]
pub(crate) struct Extras {
    parts: Option<(Vec<usize>, Vec<usize>)>,
    mark: u32,
    compression: Option<Compression>,
}

#[pymethods]
impl Extras {
    /// `parts`: the lengths of the input's and the output's parts, in place of the count, where they can differ. `mark`: a number for
    /// the call's purpose, which ranks compare. `compression`: the codec's name, the tensor's name if it has error feedback, and the
    /// owner of the residual if that is not the group.
    #[new]
    #[pyo3(signature = (*, parts=None, mark=0, compression=None))]
    fn new(
        parts: Option<(Vec<usize>, Vec<usize>)>,
        mark: u32,
        compression: Option<(String, Option<String>, Option<PyRef<'_, PyResiduals>>)>,
    ) -> PyResult<Self> {
        let coded = |(codec, tensor, owner): (String, Option<String>, Option<PyRef<'_, PyResiduals>>)| {
            let coded = Compression::by(parse_codec::<CodecChoice>(&codec)?);
            let coded = tensor.into_iter().fold(coded, Compression::tensor);
            Ok::<_, PyErr>(owner.iter().fold(coded, |coded, owner| coded.kept_by(&owner.0)))
        };
        Ok(Self { parts, mark, compression: compression.map(coded).transpose()? })
    }
}

impl Extras {
    /// The request with these extras.
    fn of(&self, request: Request) -> Request {
        let request = request.mark(self.mark);
        let request =
            self.compression.iter().fold(request, |request, coded| request.compression(coded.clone()));
        self.parts.iter().fold(request, |request, (input, output)| request.parts(input, output))
    }
}

/// The memory of an operation's input and output, which `keep` owns.
#[allow(unsafe_code)]
pub(crate) fn regions(input: PySpan, output: PySpan, keep: &Bound<'_, PyAny>) -> (Region, Region) {
    // SAFETY: the Python modules that call the communicator promise it; see `memory::regions`.
    unsafe { memory::regions(input, output, keep) }
}

/// Memory that is only read, which `keep` owns.
pub(crate) fn readable(span: PySpan, keep: &Bound<'_, PyAny>) -> Region {
    let nothing = (0, 0);
    regions(span, nothing, keep).0
}

pub(crate) fn parse_collective(name: &str) -> PyResult<Collective> {
    let all = Collective::all(0);
    all.into_iter().find(|known| known.name() == name).ok_or_else(|| {
        let names = all.map(Collective::name);
        PyValueError::new_err(format!("no collective is called {name}: use {}", names.join(", ")))
    })
}

pub(crate) fn parse<T: FromStr<Err: std::fmt::Display>>(name: &str) -> PyResult<T> {
    name.parse().map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}
