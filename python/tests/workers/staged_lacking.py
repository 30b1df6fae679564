"""Rank 1 has no memory of its device for the copies that calls need: every call fails on all ranks, and the next one works.

``staged.py`` runs these cases over CUDA's interface.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import cases
import torch
import torch.distributed as dist
from simulated import synchronized_waits
from values import rank, size

import herringbone

CASES, case = cases.registry()

LENGTHS = (40, 3_000_000)
"""Of the columns; the last ones are in several slices."""


@contextlib.contextmanager
def lacking() -> Iterator[None]:
    """Let torch find no memory of the device, on rank 1."""
    empty = torch.empty

    def lacks(*shape: Any, **options: Any) -> torch.Tensor:
        if options.get("device") == torch.device("cpu") and shape != (0,):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return empty(*shape, **options)

    if rank() == 1:
        torch.empty = lacks
    try:
        yield
    finally:
        torch.empty = empty


def check_known(call: Callable[[], object], is_silent: bool = False, may_be_late: bool = False) -> None:
    """All ranks get an error of the call; it may be ``is_silent`` on one that needs nothing of rank 1.

    ``may_be_late``: such a rank exists, and can make its next call before it hears of the failure, which ends that call, too, on
    all ranks.
    """
    with synchronized_waits():
        with lacking():
            try:
                call()
            except herringbone.HerringboneError as error:
                # On rank 1 the copy is what has failed.
                assert rank() == 1 or "rank 1 lacks" in str(error), error
            else:
                assert is_silent
        try:
            check_sum()
        except herringbone.OutOfMemoryError as error:
            assert may_be_late and "whose failure has ended this one" in str(error), error
            check_sum()


def check_sum() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size()] * 3


def columns(length: int) -> torch.Tensor:
    """A tensor that is not in order, so that calls need a copy of it."""
    return torch.ones(2, length).t()


@case
def sums() -> None:
    for length in LENGTHS:
        check_known(lambda length=length: dist.all_reduce(columns(length)))
        check_known(lambda length=length: dist.reduce(columns(length), 0))


@case
def broadcasts() -> None:
    check_known(lambda: dist.broadcast(columns(40), 0), is_silent=rank() == 0, may_be_late=True)
    check_known(lambda: dist.broadcast(columns(40), 1))


@case
def parts() -> None:
    whole = torch.zeros(2 * size(), 40)
    check_known(lambda: dist.all_gather_into_tensor(whole, columns(40)))
    check_known(lambda: dist.send(columns(40), 0) if rank() == 1 else dist.recv(torch.zeros(80), 1))
