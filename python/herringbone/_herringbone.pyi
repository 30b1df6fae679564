"""The native module. Private: its users are the modules of this package."""

import os
from collections.abc import Callable, Sequence
from typing import Any, final

__all__ = [
    "Communicator",
    "Completions",
    "Controller",
    "DependencyEngine",
    "Device",
    "DeviceGroup",
    "Extras",
    "Kind",
    "LocalOptimizer",
    "Mapped",
    "NamedError",
    "NamedResult",
    "NamedWork",
    "OnComplete",
    "ParameterServer",
    "Pending",
    "PsLiteWorker",
    "Rabit",
    "Residuals",
    "Restarter",
    "ShardGroup",
    "ShardSums",
    "StagedPending",
    "Table",
    "Turn",
    "Variable",
    "__version__",
    "accumulator",
    "advice",
    "aligned_shards",
    "choose_shard_runs",
    "codec",
    "codecs",
    "device_trees",
    "end_log",
    "even_shards",
    "main",
    "open_user_file",
    "optimizers",
    "ps_lite_serve",
    "read_user_text",
    "round_shard_sum",
    "write_torch_records",
]

__version__: str

def main(arguments: Sequence[str]) -> int:
    """Run the command line with ``arguments`` (the program's name excluded); returns the exit status."""

def end_log() -> None:
    """Hand the engine's pending records to ``logging``, and accept no more; called at the end of the process."""

def advice() -> dict[str, str]:
    """The advice in the engine's errors, word for word, by the case: "lost", "closed" or "late"."""

def codec(name: str, or_auto: bool = False) -> str:
    """The full name of a codec; with ``or_auto`` also ``"auto"``. Raises ``ValueError`` for other names."""

def codecs() -> list[str]:
    """The names of all codecs, each with a usual parameter."""

@final
class Completions:
    """A queue of finished operations: :meth:`Pending.notify` puts tokens in, :meth:`next` takes them out."""

    def __new__(cls) -> Completions: ...
    def put(self, token: int) -> None:
        """Let a :meth:`next` return ``token``."""

    def next(self) -> int | None:
        """Wait for an operation to finish and return its token; ``None`` once the queue is closed."""

    def close(self) -> None:
        """Let every present and future :meth:`next` return ``None``."""

@final
class Pending:
    """A running operation, and the owner of its buffers until it has finished."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait without the GIL, at most ``timeout`` seconds; false if it is still running then.

        Raises the operation's error if it failed, and ``KeyboardInterrupt`` on Ctrl-C.
        """

    def done(self) -> bool:
        """Whether it has finished, successfully or not."""

    def error(self) -> BaseException | None:
        """Why it failed; ``None`` while it runs and after success."""

    def source(self) -> int | None:
        """The rank whose message a receive has got; ``None`` before, and for other operations."""

    def notify(self, completions: Completions, token: int) -> None:
        """Put ``token`` into ``completions`` once this has finished; at once if it already has."""

@final
class Device:
    """An accelerator: a device of CUDA, or one of the tests."""

    @staticmethod
    def cuda(number: int, waits_for_values: bool = False) -> Device:
        """CUDA's device of this number; ``RuntimeError`` without a driver. Programs do without values for which streams wait."""

    @staticmethod
    def fake(waits_for_values: bool = True) -> Device:
        """For tests: one whose memory is the host's and whose streams move when the test says so."""

    def waits_for_values(self) -> bool:
        """Whether streams can wait for the host without the program's thread."""

    def fake_stream(self) -> int:
        """A new stream of a fake device."""

    def fake_write(self, stream: int, span: tuple[int, int], keep: object, bytes: bytes) -> None:
        """Queue on a fake device's stream that these bytes are written to memory that ``keep`` owns."""

    def fake_capture(self, stream: int, capturing: bool) -> None: ...
    def fake_step(self, pick: int) -> bool: ...
    def fake_is_busy(self) -> bool: ...
    def fake_hazards(self) -> list[str]: ...

@final
class DeviceGroup:
    """One group's calls on the memory of one device. Streams are the driver's handles."""

    def __new__(cls, communicator: Communicator, device: Device) -> DeviceGroup: ...
    def submit(self, call: tuple[Any, ...], stream: int) -> StagedPending:
        """Start one operation behind what the program has queued on its stream."""

    def send(self, to: int, message: tuple[Any, ...], stream: int) -> StagedPending:
        """Send a message to rank ``to``, which receives it with the same tag."""

    def receive(self, of: int | None, message: tuple[Any, ...], stream: int) -> StagedPending:
        """Receive a message from rank ``of``, or from any rank if it is ``None``."""

    def streams(self) -> list[int]:
        """The streams that copy."""

    def close(self) -> None:
        """End once all operations are over, at the latest after the group's timeout."""

@final
class StagedPending:
    """A running operation on an accelerator's memory, and the owner of its buffers until it is over."""

    def wait_on_stream(self, stream: int, timeout: float | None = None) -> bool:
        """Have the stream wait for the result; raises the error of an operation that has failed.

        This blocks only where streams cannot wait for values: until the last copy is queued, or false after ``timeout`` seconds.
        """

    def wait(self, timeout: float | None = None) -> bool:
        """Wait without the GIL until the result is in the accelerator's memory, at most ``timeout`` seconds; false if it is not."""

    def done(self) -> bool:
        """Whether it is over, well or not."""

    def error(self) -> BaseException | None:
        """Why it has failed; ``None`` while it runs and where it succeeded."""

    def earlier(self) -> BaseException | None:
        """Why an earlier call has failed, if nobody had asked for that when this one was made; else ``None``."""

    def source(self) -> int | None:
        """The rank whose message a receive has got, once it has; else ``None``."""

    def notify(self, completions: Completions, token: int) -> None:
        """Put ``token`` into ``completions`` once this is over; at once if it already is."""

@final
class Turn:
    """A place in the order of a group's calls, for code that runs later or on another thread."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call ``function(*arguments)``: the calls that it makes on this thread have this turn's place.

        The first of these calls waits, without the GIL, until all earlier turns of the line are over.
        """

    def is_next(self) -> bool:
        """Whether all earlier turns of the line are over, so that its calls wait for none."""

    def end(self) -> None:
        """End the turn: no more calls are made in it. It also ends when its last reference is gone."""

_Span = tuple[int, int]
_Call = tuple[Kind, int, int, _Span, _Span, object, float | None, int, Extras | None]
_Message = tuple[str, int, int, _Span, object, float | None]

@final
class Mapped:
    """Memory that all ranks of this host map, until the last reference to this object is gone.

    It outlives its communicator. A forked child does not have the memory, and its copy of this object frees nothing.
    """

    @property
    def address(self) -> int:
        """Where it begins."""

    def __len__(self) -> int:
        """How many bytes it has."""

@final
class Kind:
    """A collective, its elements' type and the operation that folds them; :mod:`herringbone.kinds` makes each kind once."""

    def __new__(cls, collective: str, dtype: str, op: str) -> Kind: ...
    @property
    def collective(self) -> str:
        """The collective's name."""

    def __hash__(self) -> int: ...

@final
class Extras:
    """Rare parts of a call."""

    def __new__(
        cls,
        *,
        parts: tuple[Sequence[int], Sequence[int]] | None = None,
        mark: int = 0,
        compression: tuple[str, str | None, Residuals | None] | None = None,
    ) -> Extras:
        """``parts``: the lengths of the input's and the output's parts, in place of the count, where they can differ.

                ``mark``: a number for the call's purpose, which ranks compare. ``compression``: the codec's name, the tensor's
                    name if it
        has error feedback, and the owner of the residual if that is not the group.
        """

@final
class Communicator:
    """This process as a member of one group."""

    @staticmethod
    def connect(
        *,
        rank: int | None = None,
        size: int | None = None,
        store: Any = None,
        store_host: str | None = None,
        token: str | None = None,
        reducers: Sequence[str] | None = None,
        algorithm: str | None = None,
        transport: str | None = None,
        fold_order: str | None = None,
        timeout: float | None = None,
        nameless: bool = False,
        again: bool = False,
    ) -> Communicator:
        """Join the job and return when all its ranks have.

        ``rank``, ``size`` and ``store`` are given together or taken from the environment. ``store`` is a torch store,
        or ``"host:port"`` (rank 0 listens there). ``store_host`` is the host that a torch store's connection leads
        to; without it only this machine's processes can join. Other arguments that are ``None`` come from the environment, too.
        ``timeout`` is in seconds. ``nameless``: ranks of several launchers' jobs can meet at the store.
        ``again``: the job has run before, so a rank that cannot use its settings does not end it.
        """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def completed_before(self) -> int | None:
        """After ``shrink``: how many collectives of the earlier group all remaining ranks have completed."""

    @property
    def address(self) -> str | None: ...
    def set_timeout(self, seconds: float) -> None:
        """Set the timeout of its later operations, and of later operations of groups made from it."""

    @property
    def name(self) -> str:
        """The group's name in lists and errors."""

    def describe_as(self, name: str, description: str) -> None:
        """Set the program's name for the group, and the group's purpose, for flight records."""

    def subgroup(self, ranks: Sequence[int], name: str | None = None) -> Communicator:
        """The group of ``ranks``, an ascending list of ranks of this group; only they call it.

        A name can be used once. Without one, the number of groups of exactly these ranks so far is the name.
        """

    def shrink(self, least: int = 1, timeout: float | None = None) -> Communicator:
        """A group of the remaining ranks."""

    def replace(self, timeout: float | None = None) -> Communicator:
        """The whole job again, with new processes for the lost ranks."""

    def regather(self, ranks: Sequence[int], timeout: float | None = None) -> Communicator:
        """The job again with some of its original ranks, after ``replace`` has failed."""

    def newcomers(self) -> list[int]:
        """The lost ranks whose new processes wait to join, on rank 0."""

    def turn(self, apart: bool = False) -> Turn:
        """The next turn in the line of this group's callbacks; callbacks that wait for more than collectives have a line
        ``apart``."""

    def line(self) -> Turn:
        """A separate line of calls, next to the program's; this turn is the whole line."""

    def send(self, to: int, message: _Message) -> Pending:
        """Send a message to rank ``to``, which receives it with the same tag."""

    def receive(self, of: int | None, message: _Message) -> Pending:
        """Receive a message from rank ``of``, or from any rank if it is ``None``."""

    def explain(self, collective: str, dtype: str, count: int, compression: str | None = None) -> str:
        """The algorithm of a collective of ``count`` elements, and the reason; with ``compression`` the codec, too."""

    def submit(self, call: _Call) -> Pending:
        """Start one operation."""

    def run(self, call: _Call) -> None:
        """Run one operation to its end, as :meth:`submit` and :meth:`Pending.wait` would, but without waking another
        thread for it.

        Waits without the GIL. Raises the operation's error if it failed. Raises ``KeyboardInterrupt`` on Ctrl-C; the
        operation continues then.
        """

    @property
    def residuals(self) -> Residuals:
        """The residuals of tensors that have no other owner than this group."""

    def allocate(self, bytes: int) -> Mapped:
        """Zeroed memory that all ranks of this host map."""

    def stats(self) -> dict[str, Any]:
        """Counters of this process since it joined, over all groups: operations, bytes moved, seconds waited."""

    def recent(self) -> list[dict[str, Any]]:
        """The last 1,024 operations of this process, oldest first, over all groups."""

    def start_timeline(self, directory: str) -> None:
        """Write a timeline into a file of this process in the directory."""

    def stop_timeline(self) -> None:
        """End the timeline, if one is being written."""

    def mark_step(self) -> None:
        """Mark the begin of a step of the program in the timeline, if one is being written."""

    def describe(self) -> str:
        """This process's membership in one line: ranks, reducers, forced settings, the timeout."""

    def close(self) -> None:
        """Leave the group. Leaving the group of all ranks leaves the job, and tells the other processes."""

    def abort(self) -> None:
        """Leave at once: every running operation fails with ``ClosedError``, and on the other ranks with ``PeerLostError``."""

@final
class Residuals:
    """An owner of tensors' residuals."""

    def __new__(cls) -> Residuals: ...
    def saved(self) -> list[tuple[str, int, str | None, bytes]]:
        """All residuals, by the tensor's name.

        Each entry has the name, how many operations on the tensor are complete, the codec, and the residual, as the bytes of
        f32.
        """

    def left(self, tensor: str) -> bytes | None:
        """The residual of a tensor, as the bytes of f32; ``None`` if no operation on it has begun."""

    def restore(self, saved: Sequence[tuple[str, int, str | None, bytes]]) -> None:
        """Replace all residuals by the result of :meth:`saved`. If an entry has no codec, the next operation's is used."""

    def scale(self, factor: float) -> None:
        """Multiply each residual, between operations."""

    def release_codecs(self) -> None:
        """Let the next operation on each tensor use another codec and still take the residual."""

    def forget(self, tensor: str) -> None:
        """Drop the residual of a tensor."""

@final
class Restarter:
    """Decides which ranks a launcher restarts, as ``herringbone launch`` does."""

    def __new__(cls, ranks: int, max_attempts: int) -> Restarter: ...
    def variables(self, rank: int, attempt: int, sees_files: bool) -> dict[str, str]:
        """The environment variables that differ from start to start; a rank on another host does not see the files."""

    def decide(self, rank: int, status: int) -> tuple[int, float] | None:
        """Decide about a rank whose process has ended. ``status`` is its exit status, or minus the signal that ended it.

        Returns the number of its next start and the pause before it in seconds; ``None`` if it is not restarted.
        """

    def waits_in_vain(self) -> tuple[int, str] | None:
        """A restarted rank that waits in vain, because all others left, and how it failed. Ask after a rank has succeeded."""

    def failure(self, rank: int) -> str:
        """How a rank has failed, and what to do about it."""

class NamedError(RuntimeError):
    """The ranks disagree about an operation with a name, it cannot be submitted, or they have shut down."""

@final
class NamedResult:
    """The results of an operation with a name, in addition to its output."""

    @property
    def data(self) -> bytearray | None:
        """The result of an operation whose result size was not known before: an allgather, an alltoall or a reducescatter."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's dimensions."""

    @property
    def received_splits(self) -> list[int] | None:
        """For an alltoall: how many rows each rank has sent here."""

    @property
    def last_joined(self) -> int | None:
        """For a join: the rank that has joined last."""

@final
class NamedWork:
    """A running operation with a name. Its buffers live as long as this object."""

    def poll(self) -> bool:
        """Whether it is over, successfully or not."""

    def wait(self, timeout: float | None = None) -> None:
        """Wait without the GIL. After ``timeout`` seconds it raises ``TimeoutError``, and the operation continues.

        Raises :class:`NamedError` or the engine's error if it failed, and ``KeyboardInterrupt`` on Ctrl-C.
        """

    def result(self) -> NamedResult:
        """Its results. Waits for them, and raises the same errors as :meth:`wait`."""

@final
class Controller:
    """One rank's controller of operations with names, which ranks submit in any order.

    Times are in seconds. All ranks of the communicator make one, with the same options, and shut down together: the first
    shutdown ends all.
    """

    def __new__(
        cls,
        communicator: Communicator,
        *,
        cycle_time: float = 0.001,
        fusion_threshold: int = 134_217_728,
        cache_capacity: int = 1024,
        stall_warning: float = 60.0,
        stall_shutdown: float = 0.0,
        group_fusion: bool = True,
        autotune: bool = False,
        autotune_log: str | None = None,
        autotune_warmup_samples: int = 3,
        autotune_steps_per_sample: int = 10,
    ) -> Controller: ...
    def submit(
        self,
        operation: str,
        name: str,
        input: Any,
        output: Any,
        *,
        dtype: str,
        shape: Sequence[int],
        op: str = "sum",
        root: int = 0,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: Sequence[int] | None = None,
        group: tuple[str, int] | None = None,
        priority: int = 0,
        keep: Any = None,
        compression: str = "none",
        residuals: Residuals | None = None,
    ) -> NamedWork:
        """Submit an operation: allreduce, allgather, broadcast, alltoall, reducescatter or barrier.

        ``input`` and ``output`` are (address, bytes) of memory that lives as long as ``keep`` does, or contiguous arrays or
        tensors. ``output`` is ``None`` if the result's size is not known before. ``op`` is sum, average, min, max, product or
        adasum. ``group`` is the name and number of operations that run all or none. Ready operations of a higher ``priority``
        run first. ``compression`` is a codec's name. ``residuals`` owns the error feedback for the tensor of this name; without
        it there is none.
        """

    def join(self) -> NamedWork:
        """Contribute zeros to allreduces until all ranks have joined; ``result().last_joined`` is the last rank to join."""

    def start_timeline(self, path: str, mark_cycles: bool = False) -> None:
        """Write a trace of all tensors to a file from now on, on rank 0."""

    def stop_timeline(self) -> None:
        """End the trace."""

    def shutdown(self) -> None:
        """Shut down the controllers of all ranks. Operations that all ranks are ready for run, and all others fail."""

    def counters(self) -> dict[str, int]:
        """Counters of events so far, by name."""

@final
class Variable:
    """Something that operations of a dependency engine read and mutate."""

    @property
    def version(self) -> int:
        """How many operations that mutate it have succeeded so far."""

@final
class OnComplete:
    """The end of an operation that ends later than its function: used once, on any thread."""

    def complete(self) -> None:
        """End the operation successfully."""

    def fail(self, error: BaseException) -> None:
        """End it as failed."""

    def release(self, variable: Variable) -> None:
        """Free ``variable`` for later operations before the end; if this operation fails later, it is not spoiled."""

    def follow(self, pending: Pending) -> None:
        """End it when a running collective ends, with the same outcome."""

@final
class DependencyEngine:
    """See :class:`herringbone.Engine`."""

    def __new__(cls, threads: int) -> DependencyEngine: ...
    def var(self, name: str | None = None) -> Variable: ...
    def order_of(self, communicator: Communicator) -> Variable: ...
    def push(
        self,
        function: Callable[[], object],
        reads: Sequence[Variable],
        mutates: Sequence[Variable],
        priority: int = 0,
        name: str | None = None,
    ) -> None: ...
    def push_async(
        self,
        function: Callable[[OnComplete], object],
        reads: Sequence[Variable],
        mutates: Sequence[Variable],
        priority: int = 0,
        name: str | None = None,
    ) -> None: ...
    def wait(self, variable: Variable) -> None: ...
    def wait_all(self) -> None: ...
    def pending(self) -> int: ...
    def picture(self) -> str: ...
    def record(self) -> None: ...
    def trace(self) -> str: ...
    def close(self) -> None: ...
    def unreported(self) -> tuple[str, BaseException] | None: ...
    def be_quiet(self) -> None: ...

def write_torch_records() -> None:
    """Write flight records as torch's ``torchfrtrace`` reads them, from now on."""

def device_trees(text: str, name: str | None = None) -> list[list[tuple[int, int]]]:
    """A tree for each device of a topology as the root: its edges from parent to child, a parent's before its children's."""

def read_user_text(path: str | os.PathLike[str]) -> str:
    """The text of a regular file of at most 64 MiB; raises OSError, or ValueError for any other file."""

def open_user_file(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file of any size, which the caller closes; raises OSError, or ValueError for any other file."""

def ps_lite_serve() -> None:
    """Run this process as the scheduler or server that the environment names, until the job is over."""

@final
class PsLiteWorker:
    """A worker's place in a job of ps-lite."""

    @staticmethod
    def join() -> PsLiteWorker: ...
    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    @property
    def servers(self) -> list[str]: ...
    @property
    def host(self) -> str: ...
    def close(self) -> None: ...

def optimizers() -> list[tuple[str, list[tuple[str, float]]]]:
    """Each optimizer's name, with the defaults of its numbers."""

@final
class LocalOptimizer:
    """An optimizer and its state for one array. Memory is an address and a number of bytes; ``owner`` keeps it."""

    def __new__(cls, optimizer: str, numbers: list[tuple[str, float]], dtype: str, elements: int) -> LocalOptimizer: ...
    def set(self, numbers: list[tuple[str, float]]) -> None: ...
    def step(self, weights: tuple[int, int], gradients: tuple[int, int], owner: object) -> None: ...
    @property
    def steps(self) -> int: ...
    def state(self) -> bytes: ...
    def restore(self, steps: int, state: bytes) -> None: ...

@final
class Rabit:
    """A process of a program that continues where it was; see :mod:`herringbone.rabit`."""

    def __new__(cls, arguments: list[str]) -> Rabit: ...
    def place(self) -> tuple[int, int, str]: ...
    def version(self) -> int: ...
    def kept_bytes(self) -> int: ...
    def tracker_print(self, line: str) -> None: ...
    def call(self, call: _Call, place: int, prepare: Callable[[], object] | None = None) -> None: ...
    def load_checkpoint(self) -> tuple[int, bytes, bytes | None] | None: ...
    def checkpoint(self, global_model: _Span, local_model: _Span | None, keep: object) -> None: ...
    def lazy_checkpoint(self, save: Callable[[], bytes]) -> None: ...
    def finalize(self) -> None: ...

def aligned_shards(shards: int, workers: int) -> list[int]: ...
def even_shards(shards: int, workers: int) -> list[int]: ...
def choose_shard_runs(communicator: Communicator, shards: int, shard_seconds: float, bytes: int) -> tuple[list[int], str]: ...
def accumulator(dtype: str, op: str) -> str: ...
def round_shard_sum(dtype: str, op: str, total: _Span, into: _Span, keep: object) -> None: ...

@final
class ShardGroup:
    """The ranks of a communicator that carry shards; see :class:`herringbone.ShardGroup`."""

    def __new__(cls, communicator: Communicator, lengths: list[int]) -> ShardGroup: ...
    @property
    def mine(self) -> tuple[int, int]: ...
    @property
    def partials(self) -> int: ...
    @property
    def sums(self) -> Communicator: ...
    def partial_sums(self, parts: list[tuple[str, str, list[_Span]]], keep: object) -> ShardSums: ...

@final
class ShardSums:
    """The partial sums of a rank, while its shards are added one by one."""

    def push(self, first: int, gradients: Sequence[tuple[_Span, object] | None]) -> None: ...
    def push_again(self, first: int, gradients: Sequence[tuple[_Span, object] | None]) -> None: ...
    def there(self) -> list[bool]: ...
    def restart(self) -> None: ...

@final
class ParameterServer:
    """See :class:`herringbone.ParameterServer`."""

    @staticmethod
    def connect(
        *,
        servers: list[str] | None = None,
        rank: int | None = None,
        workers: int | None = None,
        token: str | None = None,
        timeout: float | None = None,
    ) -> ParameterServer: ...
    @property
    def rank(self) -> int: ...
    @property
    def workers(self) -> int: ...
    def table(self, name: str, spec: Any, restores: bool) -> Table: ...
    def drop_table(self, name: str) -> None: ...
    def close(self) -> None: ...

@final
class Table:
    """See :class:`herringbone.Table`. Memory is an address and a number of bytes; ``owner`` keeps it."""

    @property
    def step(self) -> int: ...
    def push(self, keys: tuple[int, int] | None, first: int, values: tuple[int, int], owner: object, more: bool) -> None: ...
    def pull(self, keys: tuple[int, int] | None, first: int, values: tuple[int, int], owner: object) -> None: ...
    def end_step(self) -> None: ...
    def snapshot(self) -> int: ...
    def tune(self, parameter: str, number: float) -> None: ...
    def set_codecs(self, push: str, pull: str) -> None: ...
    def close(self) -> None: ...
