"""The frame of a worker script: named cases that every rank runs in the same order."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Case = Callable[[], None]
E = TypeVar("E", bound=BaseException)


def registry() -> tuple[dict[str, Case], Callable[[Case], Case]]:
    """The cases of a script, and the decorator that adds one."""
    cases: dict[str, Case] = {}

    def case(function: Case) -> Case:
        cases[function.__name__] = function
        return function

    return cases, case


def run(cases: dict[str, Case], rank: int) -> None:
    """Run the cases and write their outcomes; the first failure ends this rank, and so the job."""
    outcomes: dict[str, str] = {}
    file = Path(os.environ["RESULTS"]) / f"{rank}.json"
    for name, function in cases.items():
        try:
            function()
            outcomes[name] = "passed"
        except BaseException:
            outcomes[name] = traceback.format_exc()
        file.write_text(json.dumps(outcomes))
        if outcomes[name] != "passed":
            raise SystemExit(f"rank {rank}: {name} failed")


def error_of(kind: type[E], function: Callable[[], Any], *texts: str) -> E:
    """The error that ``function`` raises: of this kind, with all these texts."""
    try:
        function()
    except kind as error:
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return error
    raise AssertionError(f"no {kind.__name__}")


MUCH = 80 << 20
"""More bytes than the 64 MiB of addresses that a thread may have in reserve."""


def check_out_of_memory(rank: int, call: Callable[[], Any], elsewhere: type[BaseException]) -> None:
    """All ranks are told that rank 1 has no memory for its part of ``call``, which needs :data:`MUCH`: there by a MemoryError."""
    if rank == 1:
        with limited_memory(8 << 20):
            error_of(MemoryError, call, "rank 1 lacks", "bytes of memory")
    else:
        assert not isinstance(error_of(elsewhere, call, "rank 1"), MemoryError)


@contextlib.contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let this process take no more bytes of address space than so many, in the body."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
