"""torch's gather, scatter, all_to_all and messages between two ranks, made of the engine's all-gather and broadcast.

Costs are in bytes that a rank moves, where ``K`` is one rank's part and ``N`` the number of ranks:

=========== ==================================== ===============================================
call        sends and receives                   more memory until it has finished
=========== ==================================== ===============================================
gather      as an all-gather: receives (N-1) K   N K on every rank but the one that gathers
scatter     as a broadcast: receives N K         N K, on the root only where its parts lie apart
all_to_all  (N-1) K each way, as it has to       none
send, recv  K                                    none
=========== ==================================== ===============================================

A message is a broadcast in the group of the two ranks. Such a group is made on first use, one for each direction and
tag, so only messages of the same direction and tag have to be in the same order on both sides. Parts of an all_to_all
go through groups of two as well. Tensors that are not in order are staged, as in every collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch

from ..arguments import whole
from ..errors import UnsupportedError
from .batch import Batch
from .collectives import Collectives, Tensors, one
from .tensors import adjacent, check_cpu, move_type, source, target
from .work import Work

__all__ = ["Exchanges"]


class Exchanges(Collectives):
    """The collectives that the engine has no schedules of its own for."""

    # One rank has everything.

    def gather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Fill the root's list of outputs, one per rank, with the ranks' inputs.

        An all-gather of which only the root keeps the result: every rank receives and holds all inputs meanwhile.
        """
        tensor = one("gather", input_tensors)
        outputs: Tensors = []
        if self._is_root("gather", opts):
            flat = all(isinstance(output, torch.Tensor) for output in output_tensors)
            outputs = output_tensors if flat else one("gather", output_tensors)
        batch = self._batch("gather", opts, timeout)
        if self._is_root("gather", opts):
            self._gather_into_list("gather", batch, outputs, tensor)
        else:
            self._gather("gather", batch, everyones(tensor, self.member.communicator.size), tensor)
        return batch.work(outputs)

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        """Fill the root's ``output`` with the ranks' inputs, one after the other; costs what :meth:`gather` does."""
        is_root = self._is_root("gather_single", opts)
        batch = self._batch("gather_single", opts, None)
        into = output if is_root else everyones(input, self.member.communicator.size)
        self._gather("gather_single", batch, into, input)
        return batch.work([output] if is_root else [])

    gather_into_tensor = gather_single

    def scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Give rank ``i`` the ``i``-th tensor of the root's list.

        A broadcast of all of them, of which every rank takes its part: every rank receives and holds all meanwhile.
        """
        output = one("scatter", output_tensors)
        size, rank = self.member.communicator.size, self.member.communicator.rank
        dtype, scale = move_type(output)
        batch = self._batch("scatter", opts, timeout)
        if self._is_root("scatter", opts):
            flat = all(isinstance(tensor, torch.Tensor) for tensor in input_tensors)
            inputs = input_tensors if flat else one("scatter", input_tensors)
            self._check_parts("scatter", "inputs", inputs, output)
            for tensor in inputs:
                check_cpu(tensor)
            parts = adjacent(inputs)
            if parts is None:
                parts = torch.cat([tensor.detach().reshape(-1) for tensor in inputs])
        else:
            parts = everyones(output, size)
        target(output, parts.view(size, -1)[rank].view(output.shape), batch.finish)
        batch.add("broadcast", dtype, parts.numel() * scale, parts, parts, root=self._root("scatter", opts))
        return batch.work([output])

    # Every rank has something for every other.

    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        """Send the ``i``-th input to rank ``i`` and receive the ``i``-th output from it; lengths may differ."""
        self._check_number("all_to_all", "outputs", output_tensors)
        self._check_number("all_to_all", "inputs", input_tensors)
        batch = self._batch("all_to_all", opts, timeout)
        outputs = [staged(output) for output in output_tensors]
        for output, written in zip(output_tensors, outputs):
            target(output, written, batch.finish)
        self._exchange(batch, outputs, apart([staged(tensor) for tensor in input_tensors], outputs))
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
        batch = self._batch("all_to_all_single", opts, timeout)
        written = staged(output)
        target(output, written, batch.finish)
        size = self.member.communicator.size
        outputs = rows("output", written, output_split_sizes, size)
        inputs = rows("input", staged(input), input_split_sizes, size)
        self._exchange(batch, outputs, apart(inputs, outputs))
        return batch.work([output])

    alltoall_base = all_to_all_single

    def _exchange(self, batch: Batch, outputs: Tensors, inputs: Tensors) -> None:
        """Move ``inputs[i]`` to rank ``i`` and what it has for this rank to ``outputs[i]``."""
        me, size = self.member.communicator.rank, self.member.communicator.size
        for tensor in (*outputs, *inputs):
            if tensor.dtype != inputs[0].dtype:
                raise ValueError(f"all_to_all: tensors of {tensor.dtype} and of {inputs[0].dtype}; pass one type")
        if outputs[me].numel() != inputs[me].numel():
            raise ValueError(
                f"all_to_all on rank {me}: its part for itself has {inputs[me].numel()} elements, and the output for "
                f"it {outputs[me].numel()}; they have to be equal"
            )
        dtype, scale = move_type(inputs[me])
        outputs[me].detach().view(-1).copy_(inputs[me].detach().view(-1))
        for step in range(1, size):
            peer = (me + step) % size
            low, high = sorted((me, peer))
            pair = self.member.pair(low, high, f"{low} and {high}")
            # In one order on both sides: first what the lower rank sends.
            for root, sender in enumerate((low, high)):
                part = (inputs if sender == me else outputs)[peer]
                count, name = part.numel() * scale, f"all_to_all, {in_pair(low, high)}"
                batch.add("broadcast", dtype, count, part, part, root=root, among=pair, name=name)

    # One rank has something for one other.

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Work:
        """Send a tensor to one rank, which receives it by :meth:`recv`."""
        tensor = one("send", tensors)
        batch = self._batch("send", None, None)
        self._add_message(batch, "send", staged(tensor), self.member.communicator.rank, dst, tag)
        return batch.work([tensor])

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Work:
        """Receive a tensor of the same type and length from one rank, which sends it by :meth:`send`."""
        tensor = one("recv", tensors)
        batch = self._batch("recv", None, None)
        written = staged(tensor)
        target(tensor, written, batch.finish)
        self._add_message(batch, "recv", written, src, self.member.communicator.rank, tag)
        return batch.work([tensor])

    def recv_anysource(self, *_: Any, **__: Any) -> NoReturn:
        """A receiver says from whom: there is no group of two otherwise."""
        raise UnsupportedError(
            "herringbone does not receive from any source; pass src=, or use a group of another backend: "
            'dist.new_group(backend="gloo")'
        )

    def _add_message(self, batch: Batch, name: str, tensor: torch.Tensor, src: int, dst: int, tag: int) -> None:
        dtype, scale = move_type(tensor)
        src, dst = self._rank(name, "src", src), self._rank(name, "dst", dst)
        if src == dst:
            raise ValueError(f"{name}: rank {src} is this rank itself, which needs no message; copy the tensor")
        tag = whole(name, "tag", tag, "a whole number")
        low, high = sorted((src, dst))
        pair = self.member.pair(low, high, f"{src} to {dst} #{tag}")
        count, root, place = tensor.numel() * scale, int(src == high), f"{name}, {in_pair(low, high)}"
        batch.add("broadcast", dtype, count, tensor, tensor, root=root, among=pair, name=place)


def in_pair(low: int, high: int) -> str:
    """Of which group an error speaks."""
    return f"in the group of ranks {low} and {high}"


def staged(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor``, or a copy of it whose values are in order; refuses what cannot be moved."""
    check_cpu(tensor)
    return source(tensor)


def everyones(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Room for as many elements from each rank as ``tensor`` has."""
    return torch.empty(tensor.numel() * size, dtype=tensor.dtype)


def rows(role: str, tensor: torch.Tensor, sizes: Sequence[int], ranks: int) -> Tensors:
    """The parts of ``tensor`` for each rank, cut between its rows."""
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
    return list(torch.split(tensor.detach(), list(sizes)))


def apart(inputs: Tensors, outputs: Tensors) -> Tensors:
    """``inputs``, or copies where an output shares their memory: it may arrive before the input has left."""
    written = {output.untyped_storage().data_ptr() for output in outputs if output.numel()}
    return [tensor.clone() if tensor.untyped_storage().data_ptr() in written else tensor for tensor in inputs]
