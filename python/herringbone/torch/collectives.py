"""torch's collectives in terms of the engine's six.

:class:`Collectives` is mixed into the process group and into the per-device backend: the same methods under the
names that torch looks up, old and new. Each checks its tensors, starts its operations and returns a ``Work``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from .. import errors
from ..arguments import whole
from ..kinds import BARRIER, kind_of
from ..unlike import unlike_its_memory
from .batch import Batch, call_of, run
from .member import Member
from .sparse import all_reduce_sparse
from .tensors import (
    BY_HASH,
    FOLDED,
    Finish,
    Reduction,
    adjacent,
    check_cpu,
    folding,
    in_order,
    joined,
    move_type,
    reduce_op,
    room,
    source,
    target,
    timeout_of,
    written,
)
from .work import Finished, Work

__all__ = ["Collectives"]

Tensors = list[torch.Tensor]

FOLDS = {(dtype, hashed): kind_of("all_reduce", folded, op) for dtype, folded in FOLDED.items() for hashed, op in BY_HASH.items()}
"""The all-reduces of tensors whose elements are the engine's, by torch's types and the hashes of its ops."""


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
        """All-reduce a tensor for a caller who waits; ``None`` where that takes more than one call of the engine.

        A :class:`Batch` can do all that this does, with several times as many calls of Python; and a small tensor, such
        as a loss, is reduced in less time than a few of them take.
        """
        if not isinstance(tensors, list) or len(tensors) != 1:
            return None
        if self._coalesced is not None or getattr(opts, "asyncOp", True):
            return None
        tensor = tensors[0]
        kind = FOLDS.get((tensor.dtype, hash(opts.reduceOp)))
        if kind is None or not tensor.is_cpu or tensor.layout is not torch.strided:
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
        """Complete once every rank has called it."""
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
        self._check_number(name, "outputs", outputs)
        lengths = [output.numel() for output in outputs]
        if len(set(lengths)) == 1:
            self._check_parts(name, "outputs", outputs, tensor)
            self._gather(name, batch, together(outputs, batch.finish), tensor)
            return
        rank = self.member.communicator.rank
        self._check_part(name, "outputs", rank, outputs[rank], tensor)
        for output in outputs:
            check_type(name, output, tensor)
        dtype, scale = move_type(tensor)
        parts = ([tensor.numel() * scale], [length * scale for length in lengths])
        batch.add(kind_of("all_gather", dtype), 0, source(tensor), together(outputs, batch.finish), parts=parts)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Fill ``output`` with the ranks' inputs, one after the other."""
        name = "all_gather_into_tensor"
        batch = self._batch(name, opts, None)
        self._gather(name, batch, output, input)
        return batch.work([output])

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """All-gather each input into its output."""
        name = "all_gather_into_tensor"
        batch = self._batch(name, opts, None)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._gather(name, batch, output, tensor)
        return batch.work(outputs)

    def _gather(self, name: str, batch: Batch, output: torch.Tensor, tensor: torch.Tensor) -> None:
        self._check_whole(name, "output", output, tensor)
        dtype, scale = move_type(tensor)
        move_type(output)
        staged = source(output)
        target(output, staged, batch.finish)
        written([output])
        batch.add(kind_of("all_gather", dtype), tensor.numel() * scale, source(tensor), staged)

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
        self._check_parts("reduce_scatter", "inputs", inputs, output)
        self._scatter("reduce_scatter", batch, output, joined(inputs), reduction)
        return batch.work([output])

    def _scatter_uneven(self, batch: Batch, output: torch.Tensor, inputs: Tensors, reduction: Reduction) -> None:
        """Reduce each input to the rank at its place in the list."""
        rank = self.member.communicator.rank
        folding(output, reduction)
        self._check_number("reduce_scatter", "inputs", inputs)
        self._check_part("reduce_scatter", "inputs", rank, inputs[rank], output)
        staged = source(output)
        target(output, staged, batch.finish)
        written([output])
        for root, tensor in enumerate(inputs):
            fold = folding(tensor, reduction)
            read = fold.staged(tensor)
            write = staged if root == rank else read
            batch.add(fold.kind("reduce"), read.numel() * fold.scale, read, write, root)

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Give rank ``i`` the fold of the ``i``-th part of the inputs."""
        name = "reduce_scatter_tensor"
        batch = self._batch(name, opts, None)
        self._scatter(name, batch, output, input, reduce_op(opts))
        return batch.work([output])

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        """Reduce-scatter each input into its output."""
        reduction, name = reduce_op(opts), "reduce_scatter_tensor"
        batch = self._batch(name, opts, None)
        for output, tensor in zip(outputs, inputs, strict=True):
            self._scatter(name, batch, output, tensor, reduction)
        return batch.work(outputs)

    def _scatter(self, name: str, batch: Batch, output: torch.Tensor, tensor: torch.Tensor, reduction: Reduction) -> None:
        self._check_whole(name, "input", tensor, output)
        fold = folding(tensor, reduction)
        folding(output, reduction)
        staged = source(output)
        target(output, staged, batch.finish)
        written([output])
        count = output.numel() * fold.scale
        batch.add(fold.kind("reduce_scatter"), count, fold.staged(tensor), staged)

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
        """Collect no more works; those that were collected go on."""
        self._coalesced = None

    def launched(self, work: Work) -> Work:
        """Note ``work`` if calls are being coalesced, and hand it on."""
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _batch(self, name: str, opts: Any, timeout: timedelta | None) -> Batch:
        # torch says in its options that the caller wants to wait, and then calls `wait` at once.
        waits = self._coalesced is None and getattr(opts, "asyncOp", True) is False
        return Batch(self, name, timeout_of(opts, timeout, self.member.seconds), waits)

    # Checks that no other rank can make for us.

    def _root(self, name: str, opts: Any) -> int:
        """The root's group rank in torch's options, or the rank itself."""
        return 0 if opts is None else self._rank(name, "root", getattr(opts, "rootRank", opts))

    def _is_root(self, name: str, opts: Any) -> bool:
        return self._root(name, opts) == self.member.communicator.rank

    def _rank(self, name: str, role: str, rank: Any) -> int:
        number, size = whole(name, role, rank, "a rank"), self.member.communicator.size
        if not 0 <= number < size:
            valid = f"its ranks are 0 to {size - 1}"
            raise errors.ArgumentError(f"{name}: {role} {number} is not a rank of this group; {valid}")
        return number

    def _check_whole(self, name: str, role: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        size = self.member.communicator.size
        check_cpu(whole)
        check_cpu(part)
        if whole.dtype != part.dtype:
            raise errors.ArgumentError(f"{name}: input and output differ in type: {part.dtype} and {whole.dtype}")
        if whole.numel() != part.numel() * size:
            raise errors.ArgumentError(
                f"{name}: the {role} has {whole.numel()} elements; {size} ranks with {part.numel()} each need "
                f"{part.numel() * size}"
            )

    def _check_parts(self, name: str, role: str, parts: Tensors, part: torch.Tensor) -> None:
        self._check_number(name, role, parts)
        for place, tensor in enumerate(parts):
            self._check_part(name, role, place, tensor, part)

    def _check_number(self, name: str, role: str, parts: Tensors) -> None:
        if len(parts) != self.member.communicator.size:
            size = self.member.communicator.size
            raise errors.ArgumentError(f"{name}: {len(parts)} {role} for {size} ranks; pass one for each")

    def _check_part(self, name: str, role: str, place: int, part: torch.Tensor, own: torch.Tensor) -> None:
        check_cpu(part)
        check_cpu(own)
        if part.shape != own.shape or part.dtype != own.dtype:
            raise errors.ArgumentError(
                f"{name}: number {place} of the {role} has shape {tuple(part.shape)} of {part.dtype}; expected "
                f"{tuple(own.shape)} of {own.dtype}, as of this rank's own tensor; make them alike, as by padding"
            )


def together(outputs: Tensors, finish: Finish) -> torch.Tensor:
    """One flat tensor for all ``outputs``: their own memory, or one that they get their values from in the end."""
    flat = adjacent(outputs)
    if flat is None:
        flat = room((sum(output.numel() for output in outputs),), outputs[0].dtype)
        for output, part in zip(outputs, torch.split(flat, [output.numel() for output in outputs])):
            target(output, part.view(output.shape), finish)
    else:
        written(outputs)
    return flat


def check_type(name: str, tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Refuse tensors that differ in type."""
    move_type(tensor)
    if tensor.dtype != other.dtype:
        raise ValueError(f"{name}: tensors of {tensor.dtype} and of {other.dtype}; pass one type")


def one(name: str, tensors: Any) -> Any:
    """The only element of ``tensors``: one process drives one device."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise errors.ArgumentError(f"{name} takes one tensor per process and got {len(tensors)}")
    return tensors[0]
