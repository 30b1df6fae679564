"""torch's collectives, and its messages between two ranks, in terms of the engine's.

:class:`Collectives` is a part of the process group and of the per-device backend: the same methods under the
names that torch looks up, old and new. Each checks its tensors, starts its operations and returns a ``Work``.

Costs of calls that move parts, in bytes per rank, where ``K`` is one rank's part and ``N`` the number of ranks:

* ``gather``: the root receives (N-1) K, others send K. The root needs N K more memory if its tensors are separate.
* ``scatter``: the root sends (N-1) K, others receive K. The root needs N K more memory if its tensors are separate.
* ``all_to_all``: (N-1) K each way. It needs memory for the tensors of a list, each way.
* ``send``, ``recv``: K and two records of 64 bytes. They need no more memory.

The memory is needed until the call has finished.

The sender announces a message; the receiver selects it by its tag and answers. The send ends with that answer, as in Gloo.
Tensors whose values are not in order are staged, as in every collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from .. import errors
from .._herringbone import Pending, StagedPending
from ..arguments import message_tag, whole
from ..kinds import BARRIER, Message, kind_of
from ..unlike import unlike_its_memory
from .batch import Batch, call_of, run
from .devices import StagedHandle, accelerator_of, tell_earlier
from .member import Member
from .parts import (
    Tensors,
    check_number,
    check_part,
    check_parts,
    check_type,
    check_whole,
    lengths,
    named,
    one,
    rows,
    staged,
    together,
)
from .sparse import all_reduce_sparse
from .tensors import (
    BY_HASH,
    FOLDED,
    Finish,
    Reduction,
    folding,
    in_order,
    joined,
    move_type,
    reduce_op,
    source,
    span,
    target,
    timeout_of,
)
from .work import Finished, Received, Work

__all__ = ["Collectives", "collectives_of"]

FOLDS = {(dtype, hashed): kind_of("all_reduce", folded, op) for dtype, folded in FOLDED.items() for hashed, op in BY_HASH.items()}
"""The kinds of all-reduces of tensors whose types the engine has, by torch's types and the hashes of its ops."""

Way = Literal["send", "receive"]
"""Of a message, as the native handles call it."""


class Collectives:
    """The collectives of one group of ranks."""

    member: Member
    _coalesced: list[Work] | None = None

    # In-place collectives.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None) -> Work | Finished:
        """Replace the tensor on every rank by the fold over all ranks."""
        if op is None and timeout is None:
            finished = self._all_reduce_at_once(tensors, opts)
            if finished is not None:
                return finished
        return self._all_reduce("all_reduce", [one("all_reduce", tensors)], opts if op is None else op, timeout)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> Work:
        """All-reduce each of the tensors."""
        return self._all_reduce("all_reduce_coalesced", tensors, opts, None)

    def _all_reduce_at_once(self, tensors: Any, opts: Any) -> Finished | None:
        """All-reduce a tensor for a caller who waits; ``None`` if that takes more than one call of the engine.

        A :class:`Batch` can do the same with several times as many calls of Python functions. A small tensor, such as a loss,
        is reduced in less time than a few of these calls take.
        """
        if not isinstance(tensors, list) or len(tensors) != 1:
            return None
        if self._coalesced is not None or getattr(opts, "asyncOp", True):
            return None
        tensor = tensors[0]
        kind = FOLDS.get((tensor.dtype, hash(opts.reduceOp)))
        if kind is None or not tensor.is_cpu or accelerator_of(tensor) is not None or tensor.layout is not torch.strided:
            return None
        if not in_order(tensor) or unlike_its_memory(tensor) is not None:
            return None
        member = self.member
        seconds = timeout_of(opts, None, member.seconds)
        run(member, "all_reduce", call_of(kind, tensor.numel(), tensor, tensor, seconds))
        finished = Finished()
        finished.tensors = tensors
        return finished

    def _all_reduce(self, name: str, tensors: Tensors, opts: Any, timeout: timedelta | None) -> Work:
        reduction = reduce_op(opts)
        if len(tensors) == 1 and tensors[0].layout is torch.sparse_coo:
            batch = self._batch(name, opts, timeout)
            all_reduce_sparse(self.member, batch, tensors[0], reduction)
            return batch.work(tensors)
        folds = [folding(tensor, reduction) for tensor in tensors]
        batch = self._batch(name, opts, timeout)
        for tensor, fold in zip(tensors, folds):
            batch.in_place(fold.kind("all_reduce"), fold.scale, fold.staged(tensor), tensor)
        return batch.work(tensors)

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> Work:
        """Replace the root's tensor by the fold over all ranks; the other ranks' tensors keep their values."""
        tensor = one("reduce", tensors)
        fold = folding(tensor, reduce_op(opts if op is None and not isinstance(opts, int) else op))
        batch = self._batch("reduce", opts, timeout)
        root = self._root("reduce", opts)
        is_root = root == self.member.communicator.rank
        batch.in_place(fold.kind("reduce"), fold.scale, fold.staged(tensor), tensor if is_root else None, root)
        return batch.work([tensor])

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Replace the tensor on every rank by the root's."""
        tensor = one("broadcast", tensors)
        dtype, scale = move_type(tensor)
        batch = self._batch("broadcast", opts, timeout)
        root = self._root("broadcast", opts)
        batch.in_place(kind_of("broadcast", dtype), scale, source(tensor), tensor, root)
        return batch.work([tensor])

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Complete once every rank has called this."""
        batch = self._batch("barrier", opts, timeout)
        batch.add(BARRIER, 0, None, None)
        return batch.work([])

    # Gathering.

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Fill the list of outputs, one per rank, with the ranks' inputs."""
        outputs = output_tensors if isinstance(output_tensors[0], torch.Tensor) else one("all_gather", output_tensors)
        batch = self._batch("all_gather", opts, timeout)
        self._gather_into_list("all_gather", batch, outputs, one("all_gather", input_tensors))
        return batch.work(outputs)

    def allgather_coalesced(self, output_lists: list[Tensors], input_list: Tensors, opts: Any = None) -> Work:
        """All-gather each input ``i`` into ``output_lists[rank][i]``."""
        batch = self._batch("all_gather_coalesced", opts, None)
        for place, tensor in enumerate(input_list):
            parts = [outputs[place] for outputs in output_lists]
            self._gather_into_list("all_gather_coalesced", batch, parts, tensor)
        return batch.work([tensor for outputs in output_lists for tensor in outputs])

    def _gather_into_list(self, name: str, batch: Batch, outputs: Tensors, tensor: torch.Tensor) -> None:
        check_number(name, "outputs", outputs, self._size)
        lengths = [output.numel() for output in outputs]
        if len(set(lengths)) == 1:
            check_parts(name, "outputs", outputs, tensor, self._size)
            self._gather(name, batch, together(outputs, batch.finish), tensor)
            return
        rank = self.member.communicator.rank
        check_part(name, "outputs", rank, outputs[rank], tensor)
        for output in outputs:
            check_type(name, output, tensor)
        dtype, scale = move_type(tensor)
        parts = ([tensor.numel() * scale], [length * scale for length in lengths])
        batch.add(kind_of("all_gather", dtype), 0, source(tensor), together(outputs, batch.finish), parts=parts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Fill ``output`` with the ranks' inputs, one after the other."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """All-gather each input into its output."""
        name = "all_gather_into_tensor"
        batch = self._batch(name, opts, None)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._gather(name, batch, output, tensor)
        return batch.work(outputs)

    def _gather(self, name: str, batch: Batch, output: torch.Tensor, tensor: torch.Tensor) -> None:
        check_whole(name, "output", output, tensor, self._size)
        dtype, scale = move_type(tensor)
        batch.add(kind_of("all_gather", dtype), tensor.numel() * scale, source(tensor), batch.into(output))

    # Scattering.

    def reduce_scatter(
        self,
        output_tensors: Any,
        input_tensors: Any,
        opts: Any = None,
        timeout: timedelta | None = None,
        op: Any = None,
    ) -> Work:
        """Give every rank the fold of the inputs at its place in the list."""
        output = one("reduce_scatter", output_tensors)
        inputs = input_tensors if isinstance(input_tensors[0], torch.Tensor) else one("reduce_scatter", input_tensors)
        reduction = reduce_op(opts if op is None else op)
        batch = self._batch("reduce_scatter", opts, timeout)
        if len({tensor.numel() for tensor in inputs}) > 1:
            self._scatter_uneven(batch, output, inputs, reduction)
            return batch.work([output])
        check_parts("reduce_scatter", "inputs", inputs, output, self._size)
        self._scatter("reduce_scatter", batch, output, joined(inputs), reduction)
        return batch.work([output])

    def _scatter_uneven(self, batch: Batch, output: torch.Tensor, inputs: Tensors, reduction: Reduction) -> None:
        """Reduce each input to the rank at its place in the list."""
        rank = self.member.communicator.rank
        folding(output, reduction)
        check_number("reduce_scatter", "inputs", inputs, self._size)
        check_part("reduce_scatter", "inputs", rank, inputs[rank], output)
        taken = batch.into(output)
        for root, tensor in enumerate(inputs):
            fold = folding(tensor, reduction)
            read = fold.staged(tensor)
            write = taken if root == rank else read
            batch.add(fold.kind("reduce"), read.numel() * fold.scale, read, write, root)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Give rank ``i`` the fold of the ``i``-th part of the inputs."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce-scatter each input into its output."""
        reduction, name = reduce_op(opts), "reduce_scatter_tensor"
        batch = self._batch(name, opts, None)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._scatter(name, batch, output, tensor, reduction)
        return batch.work(outputs)

    def _scatter(self, name: str, batch: Batch, output: torch.Tensor, tensor: torch.Tensor, reduction: Reduction) -> None:
        check_whole(name, "input", tensor, output, self._size)
        fold = folding(tensor, reduction)
        folding(output, reduction)
        batch.add(fold.kind("reduce_scatter"), output.numel() * fold.scale, fold.staged(tensor), batch.into(output))

    # One rank has everything.

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Fill the root's list of outputs, one per rank, with the ranks' inputs."""
        tensor = one("gather", input_tensors)
        outputs: Tensors = []
        if self._is_root("gather", opts):
            flat = all(isinstance(output, torch.Tensor) for output in output_tensors)
            outputs = output_tensors if flat else one("gather", output_tensors)
            check_parts("gather", "outputs", outputs, tensor, self._size)
        batch = self._batch("gather", opts, timeout)
        self._gather_to_root("gather", batch, together(outputs, batch.finish) if outputs else None, tensor, opts)
        return batch.work(outputs)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Fill the root's ``output`` with the ranks' inputs, one after the other."""
        name, outputs = "gather_single", [output] if self._is_root("gather_single", opts) else []
        batch = self._batch(name, opts, None)
        taken = None
        if outputs:
            check_whole(name, "output", output, input, self._size)
            taken = batch.into(output)
        self._gather_to_root(name, batch, taken, input, opts)
        return batch.work(outputs)

    gather_into_tensor = gather_single

    def _gather_to_root(self, name: str, batch: Batch, taken: torch.Tensor | None, tensor: torch.Tensor, opts: Any) -> None:
        dtype, scale = move_type(tensor)
        count, root = tensor.numel() * scale, self._root(name, opts)
        batch.add(kind_of("gather", dtype), count, source(tensor), taken, root)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
        """Give rank ``i`` the ``i``-th tensor of the root's list."""
        output = one("scatter", output_tensors)
        dtype, scale = move_type(output)
        batch = self._batch("scatter", opts, timeout)
        parts = None
        if self._is_root("scatter", opts):
            flat = all(isinstance(tensor, torch.Tensor) for tensor in input_tensors)
            inputs = input_tensors if flat else one("scatter", input_tensors)
            check_parts("scatter", "inputs", inputs, output, self._size)
            parts = joined(inputs)
        count, root = output.numel() * scale, self._root("scatter", opts)
        batch.add(kind_of("scatter", dtype), count, parts, batch.into(output), root)
        return batch.work([output])

    # Every rank has something for every other.

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Send the ``i``-th input to rank ``i`` and receive the ``i``-th output from it; lengths can differ."""
        check_number("all_to_all", "outputs", output_tensors, self._size)
        check_number("all_to_all", "inputs", input_tensors, self._size)
        for tensor in (*output_tensors, *input_tensors):
            check_type("all_to_all", tensor, input_tensors[0])
        batch = self._batch("all_to_all", opts, timeout)
        inputs, outputs = lengths(input_tensors), lengths(output_tensors)
        self._exchange(batch, joined(input_tensors), inputs, together(output_tensors, batch.finish), outputs)
        return batch.work(output_tensors)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> Work:
        """Send the ``i``-th part of the rows to rank ``i`` and receive the ``i``-th part from it.

        Split sizes are the numbers of rows of the parts; without them the parts are equal.
        """
        check_type("all_to_all_single", output, input)
        batch = self._batch("all_to_all_single", opts, timeout)
        taken, size = batch.into(output), self._size
        outputs = rows("output", output, output_split_sizes, size)
        inputs = rows("input", input, input_split_sizes, size)
        self._exchange(batch, staged(input), inputs, taken, outputs)
        return batch.work([output])

    alltoall_base = all_to_all_single

    def _exchange(self, batch: Batch, given: torch.Tensor, inputs: list[int], taken: torch.Tensor, outputs: list[int]) -> None:
        """Send the parts of one tensor to all ranks, and receive theirs into the parts of the other; the lengths are in
        elements."""
        me = self.member.communicator.rank
        if outputs[me] != inputs[me]:
            raise ValueError(
                f"all_to_all on rank {me}: its part for itself has {inputs[me]} elements, but the output for it has "
                f"{outputs[me]}; they have to be equal"
            )
        dtype, scale = move_type(given)
        # No rank knows whether the parts of all others are equal, so none assumes it.
        parts = ([length * scale for length in inputs], [length * scale for length in outputs])
        batch.add(kind_of("all_to_all", dtype), 0, given, taken, parts=parts)

    # One rank has something for one other.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank, which receives it by :meth:`recv`."""
        tensor = one("send", tensors)
        dst, tag = self._rank("send", "dst", dst), message_tag("send", tag)
        (dtype, scale), read = move_type(tensor), staged(tensor)
        count, seconds = tensor.numel() * scale, self.member.seconds
        with named("send"):
            handle = self._message("send", dst, read, (dtype, count, tag, span(read), read, seconds))
        work = self.launched(Work([handle], ["send"], [tensor], (), self.member.threads))
        with named("send"):
            tell_earlier([handle])
        return work

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Received:
        """Receive a tensor of the same type and length from one rank, which sends it by :meth:`send`."""
        return self._receive(one("recv", tensors), self._rank("recv", "src", src), tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Received:
        """Receive a tensor from the rank whose message with this tag comes first; the work has the source rank."""
        return self._receive(one("recv", tensors), None, tag)

    def _receive(self, tensor: torch.Tensor, src: int | None, tag: int) -> Received:
        tag = message_tag("recv", tag)
        (dtype, scale), taken = move_type(tensor), staged(tensor)
        count, seconds = tensor.numel() * scale, self.member.seconds
        finish: Finish = []
        target(tensor, taken, finish)
        with named("recv"):
            handle = self._message("receive", src, taken, (dtype, count, tag, span(taken), taken, seconds))
        work = Received([handle], ["recv"], [tensor], finish, self.member.threads)
        self.launched(work)
        with named("recv"):
            tell_earlier([handle])
        return work

    def _message(self, way: Way, other: int | None, memory: torch.Tensor, message: Message) -> Pending | StagedHandle:
        """Start a message to or from another rank, in ``memory`` of the host or of an accelerator."""
        accelerator = accelerator_of(memory)
        if accelerator is None:
            on_host: Pending = getattr(self.member.communicator, way)(other, message)
            return on_host
        group = self.member.on_device(accelerator, memory)
        pending: StagedPending = getattr(group, way)(other, message, accelerator.stream(memory))
        earlier = self.member.unasked(accelerator, memory)
        accelerator.lend([memory], group.streams())
        return StagedHandle(pending, accelerator, memory, earlier)

    # The names of torch before 2.14.

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    # Coalescing: torch brackets several calls and waits for them as one.

    def start_coalescing(self, device: object = None) -> None:
        """Collect the works of the following calls until :meth:`end_coalescing`."""
        self._coalesced = []

    def end_coalescing(self, device: object = None) -> Work:
        """One work for all calls since :meth:`start_coalescing`."""
        works = self._coalesced or []
        self.forget_coalescing()
        work = Work.of_all(works, self.member.threads)
        work.group = self.member.communicator
        return work

    def forget_coalescing(self) -> None:
        """Stop collecting works; the collected ones continue."""
        self._coalesced = None

    def launched(self, work: Work) -> Work:
        """Note ``work`` if calls are being coalesced, and hand it on."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _batch(self, name: str, opts: Any, timeout: timedelta | None) -> Batch:
        # torch notes in its options that the caller wants to wait, and then calls `wait` at once.
        waits = self._coalesced is None and getattr(opts, "asyncOp", True) is False
        return Batch(self, name, timeout_of(opts, timeout, self.member.seconds), waits)

    # Arguments that name ranks of the group.

    @property
    def _size(self) -> int:
        return self.member.communicator.size

    def _root(self, name: str, opts: Any) -> int:
        """The root's group rank in torch's options, or the rank itself."""
        return 0 if opts is None else self._rank(name, "root", getattr(opts, "rootRank", opts))

    def _is_root(self, name: str, opts: Any) -> bool:
        return self._root(name, opts) == self.member.communicator.rank

    def _rank(self, name: str, role: str, rank: Any) -> int:
        number, size = whole(name, role, rank, "a rank"), self._size
        if not 0 <= number < size:
            valid = f"its ranks are 0 to {size - 1}"
            raise errors.ArgumentError(f"{name}: {role} {number} is not a rank of this group; {valid}")
        return number


def collectives_of(group: Any) -> Collectives | None:
    """The part of torch's group that serves CPU tensors, if that is Herringbone: the group itself, or a backend of it."""
    if isinstance(group, dist.ProcessGroup) and not isinstance(group, Collectives):
        try:
            group = group._get_backend(torch.device("cpu"))
        except RuntimeError:
            return None
    return group if isinstance(group, Collectives) else None
