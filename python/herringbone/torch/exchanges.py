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
send, recv  K and two records of 64 bytes        none
=========== ==================================== ===============================================

A message is announced by its sender, and its receiver picks it by its tag and answers. The send ends with that answer, as
Gloo's does. Tensors that are not in order are staged, as in every collective.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch

from .. import errors
from ..arguments import message_tag
from ..kinds import kind_of
from .batch import Batch, span
from .collectives import Collectives, Tensors, check_type, one, together
from .tensors import Finish, check_cpu, joined, move_type, source, target
from .work import Received, Work, torch_error

__all__ = ["Exchanges"]


class Exchanges(Collectives):
    """The collectives that move parts, and messages."""

    # One rank has everything.

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
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

    def _gather_to_root(self, name: str, batch: Batch, written: torch.Tensor | None, tensor: torch.Tensor, opts: Any) -> None:
        dtype, scale = move_type(tensor)
        count, root = tensor.numel() * scale, self._root(name, opts)
        batch.add(kind_of("gather", dtype), count, source(tensor), written, root)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> Work:
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
        batch.add(kind_of("scatter", dtype), output.numel() * scale, parts, written, self._root("scatter", opts))
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

    def _exchange(self, batch: Batch, given: tuple[torch.Tensor, list[int]], taken: tuple[torch.Tensor, list[int]]) -> None:
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
        batch.add(kind_of("all_to_all", dtype), 0, read, written, parts=parts)

    # One rank has something for one other.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank, which receives it by :meth:`recv`."""
        tensor = one("send", tensors)
        dst, tag = self._rank("send", "dst", dst), message_tag("send", tag)
        (dtype, scale), read = move_type(tensor), staged(tensor)
        count, seconds = tensor.numel() * scale, self.member.seconds
        with named("send"):
            handle = self.member.communicator.send(dst, (dtype, count, tag, span(read), read, seconds))
        return self.launched(Work([handle], ["send"], [tensor], (), self.member.threads))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Received:
        """Receive a tensor of the same type and length from one rank, which sends it by :meth:`send`."""
        return self._receive(one("recv", tensors), self._rank("recv", "src", src), tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Received:
        """Receive a tensor from the rank whose message of this tag comes first; the work's source rank tells which."""
        return self._receive(one("recv", tensors), None, tag)

    def _receive(self, tensor: torch.Tensor, src: int | None, tag: int) -> Received:
        tag = message_tag("recv", tag)
        (dtype, scale), written = move_type(tensor), staged(tensor)
        count, seconds = tensor.numel() * scale, self.member.seconds
        finish: Finish = []
        target(tensor, written, finish)
        with named("recv"):
            handle = self.member.communicator.receive(src, (dtype, count, tag, span(written), written, seconds))
        work = Received([handle], ["recv"], [tensor], finish, self.member.threads)
        self.launched(work)
        return work


@contextlib.contextmanager
def named(name: str) -> Iterator[None]:
    """Let errors be torch's, about its call of this name."""
    try:
        yield
    except errors.HerringboneError as error:
        raise torch_error(error, name) from None


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy of it whose values are in order; refuses what cannot be moved."""
    check_cpu(tensor)
    return source(tensor)


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
