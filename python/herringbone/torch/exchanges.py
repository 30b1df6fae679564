"""torch's gather, scatter, all_to_all and messages between two ranks.

Costs are in bytes that a rank moves, where ``K`` is one rank's part and ``N`` the number of ranks:

=========== ==================================== ===============================================
call        sends and receives                   more memory until it has finished
=========== ==================================== ===============================================
gather      the root receives (N-1) K, others    N K on the root where its tensors lie apart
            send K
scatter     the root sends (N-1) K, others       N K on the root where its tensors lie apart
            receive K
all_to_all  (N-1) K each way                     the tensors of a list, each way
send, recv  K; above 1 KiB 8 bytes before it     none
=========== ==================================== ===============================================

A message is a broadcast in the group of the two ranks. Such a group is made on first use, one for each direction and
tag, so only messages of the same direction and tag have to be in the same order on both sides. A long one is announced
by a short one, which leaves before the receiver calls: a receive from any source has to see that something has come.
Tensors that are not in order are staged, as in every collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from .._herringbone import Communicator
from ..arguments import whole
from .any_source import AnySourceWork
from .batch import Batch
from .collectives import Collectives, Tensors, check_type, one, together
from .tensors import adjacent, check_cpu, move_type, source, target
from .work import Work

__all__ = ["Exchanges"]

SHORT_BYTES = 1024
"""A message of at most so many bytes, and not none, leaves before its receiver calls, on any transport."""


class Exchanges(Collectives):
    """The collectives that move parts, and messages."""

    # One rank has everything.

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Fill the root's list of outputs, one per rank, with the ranks' inputs."""
        tensor = one("gather", input_tensors)
        outputs: Tensors = []
        if self._is_root("gather", opts):
            flat = all(isinstance(output, torch.Tensor) for output in output_tensors)
            outputs = output_tensors if flat else one("gather", output_tensors)
            self._check_parts("gather", "outputs", outputs, tensor)
        batch = self._batch("gather", opts, timeout)
        self._gather_to_root("gather", batch, together(outputs, batch.finish) if outputs else None, tensor, opts)
        return batch.work(outputs)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Fill the root's ``output`` with the ranks' inputs, one after the other."""
        name, outputs = "gather_single", [output] if self._is_root("gather_single", opts) else []
        batch = self._batch(name, opts, None)
        written = None
        if outputs:
            self._check_whole(name, "output", output, input)
            written = staged(output)
            target(output, written, batch.finish)
        self._gather_to_root(name, batch, written, input, opts)
        return batch.work(outputs)

    gather_into_tensor = gather_single

    def _gather_to_root(
        self, name: str, batch: Batch, written: torch.Tensor | None, tensor: torch.Tensor, opts: Any
    ) -> None:
        dtype, scale = move_type(tensor)
        count, root = tensor.numel() * scale, self._root(name, opts)
        batch.add("gather", dtype, count, source(tensor), written, root=root)

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Give rank ``i`` the ``i``-th tensor of the root's list."""
        output = one("scatter", output_tensors)
        dtype, scale = move_type(output)
        batch = self._batch("scatter", opts, timeout)
        parts = None
        if self._is_root("scatter", opts):
            flat = all(isinstance(tensor, torch.Tensor) for tensor in input_tensors)
            inputs = input_tensors if flat else one("scatter", input_tensors)
            self._check_parts("scatter", "inputs", inputs, output)
            parts = joined(inputs)
        written = staged(output)
        target(output, written, batch.finish)
        batch.add("scatter", dtype, output.numel() * scale, parts, written, root=self._root("scatter", opts))
        return batch.work([output])

    # Every rank has something for every other.

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Send the ``i``-th input to rank ``i`` and receive the ``i``-th output from it; lengths may differ."""
        self._check_number("all_to_all", "outputs", output_tensors)
        self._check_number("all_to_all", "inputs", input_tensors)
        for tensor in (*output_tensors, *input_tensors):
            check_type("all_to_all", tensor, input_tensors[0])
        batch = self._batch("all_to_all", opts, timeout)
        inputs, outputs = lengths(input_tensors), lengths(output_tensors)
        self._exchange(batch, (joined(input_tensors), inputs), (together(output_tensors, batch.finish), outputs))
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

        The parts are equal where no split sizes say how many rows each has.
        """
        check_type("all_to_all_single", output, input)
        batch = self._batch("all_to_all_single", opts, timeout)
        written = staged(output)
        target(output, written, batch.finish)
        size = self.member.communicator.size
        outputs = rows("output", output, output_split_sizes, size)
        inputs = rows("input", input, input_split_sizes, size)
        self._exchange(batch, (staged(input), inputs), (written, outputs))
        return batch.work([output])

    alltoall_base = all_to_all_single

    def _exchange(
        self, batch: Batch, given: tuple[torch.Tensor, list[int]], taken: tuple[torch.Tensor, list[int]]
    ) -> None:
        """Move the parts of one tensor, of so many elements, to all ranks, and theirs to those of the other."""
        (read, inputs), (written, outputs) = given, taken
        me = self.member.communicator.rank
        if outputs[me] != inputs[me]:
            raise ValueError(
                f"all_to_all on rank {me}: its part for itself has {inputs[me]} elements, and the output for it "
                f"{outputs[me]}; they have to be equal"
            )
        dtype, scale = move_type(read)
        # No rank can tell whether the parts of all others are equal, so none says so.
        parts = ([length * scale for length in inputs], [length * scale for length in outputs])
        batch.add("all_to_all", dtype, 0, read, written, parts=parts)

    # One rank has something for one other.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank, which receives it by :meth:`recv`."""
        tensor = one("send", tensors)
        batch = self._batch("send", None, None)
        self._add_message(batch, "send", staged(tensor), self.member.communicator.rank, dst, tag)
        return batch.work([tensor])

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor of the same type and length from one rank, which sends it by :meth:`send`."""
        return self._receive(one("recv", tensors), src, tag)

    def _receive(self, tensor: torch.Tensor, src: int, tag: int) -> Work:
        batch = self._batch("recv", None, None)
        written = staged(tensor)
        target(tensor, written, batch.finish)
        self._add_message(batch, "recv", written, src, self.member.communicator.rank, tag)
        return batch.work([tensor])

    def recv_anysource(self, tensors: Any, tag: int = 0) -> AnySourceWork:
        """Receive a tensor from the rank whose message of this tag comes first; the work's source rank tells which.

        Receives from any source with one tag get messages in the order of their calls. One that names its source is
        served first if both wait for it.
        """
        tensor, me = one("recv", tensors), self.member.communicator.rank
        staged(tensor)
        others = [rank for rank in range(self.member.communicator.size) if rank != me]
        pairs = {rank: self._pair("recv", rank, me, tag) for rank in others}
        pending = self.member.any_source
        work = AnySourceWork(
            pending, tag, pairs, lambda source: self._receive(tensor, source, tag), self.member.seconds
        )
        pending.add(work)
        return work

    def _add_message(self, batch: Batch, name: str, tensor: torch.Tensor, src: int, dst: int, tag: int) -> None:
        dtype, scale = move_type(tensor)
        pair = self._pair(name, src, dst, tag)
        low, high = sorted((src, dst))
        root, place = int(src == high), f"{name}, {in_pair(low, high)}"
        if not 0 < tensor.nbytes <= SHORT_BYTES:
            # No message is a gather, so none is taken for an announcement.
            own = torch.zeros(1, dtype=torch.int64)
            both = torch.zeros(2, dtype=torch.int64) if self.member.communicator.rank == dst else None
            batch.add("gather", "i64", 1, own, both, root=1 - root, among=pair, name=place)
        count = tensor.numel() * scale
        batch.add("broadcast", dtype, count, tensor, tensor, root=root, among=pair, name=place)

    def _pair(self, name: str, src: int, dst: int, tag: int) -> Communicator:
        """The group through which messages of this direction and tag go."""
        src, dst = self._rank(name, "src", src), self._rank(name, "dst", dst)
        if src == dst:
            raise ValueError(f"{name}: rank {src} is this rank itself, which needs no message; copy the tensor")
        tag = whole(name, "tag", tag, "a whole number")
        low, high = sorted((src, dst))
        return self.member.pair(low, high, f"{src} to {dst} #{tag}")


def in_pair(low: int, high: int) -> str:
    """Of which group an error speaks."""
    return f"in the group of ranks {low} and {high}"


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy of it whose values are in order; refuses what cannot be moved."""
    check_cpu(tensor)
    return source(tensor)


def joined(tensors: Tensors) -> torch.Tensor:
    """All of ``tensors`` in one: their own memory where they lie one after the other."""
    for tensor in tensors:
        check_cpu(tensor)
    flat = adjacent(tensors)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if flat is None else flat


def lengths(tensors: Tensors) -> list[int]:
    """How many elements each has."""
    return [tensor.numel() for tensor in tensors]


def rows(role: str, tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> list[int]:
    """How many elements of ``tensor`` there are for each rank, cut between its rows."""
    length = tensor.shape[0] if tensor.dim() else 0
    if not sizes:
        if length % ranks or not tensor.dim():
            raise ValueError(
                f"all_to_all_single: the {role} of shape {tuple(tensor.shape)} has no equal parts for {ranks} ranks; "
                f"pass {role}_split_sizes"
            )
        sizes = [length // ranks] * ranks
    if len(sizes) != ranks or sum(sizes) != length or min(sizes) < 0:
        raise ValueError(
            f"all_to_all_single: {role}_split_sizes are {list(sizes)} for {length} rows and {ranks} ranks; pass one "
            "size per rank, which add up to the rows"
        )
    row = tensor.numel() // length if length else 0
    return [size * row for size in sizes]
