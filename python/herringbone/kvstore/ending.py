"""The end of a program that has stores: it waits for pushes, except when an exception ends the program."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import weakref
from typing import Any

from ..closing import ends_by_exception
from ..dependency import Engine

__all__ = ["wait_at_exit"]

_open: weakref.WeakSet[Any] = weakref.WeakSet()
"""The stores of several workers that have their own engine."""
_left: list[Engine] = []
"""The engines of stores that are gone. Their pushes might still be running."""


def wait_at_exit(store: Any) -> None:
    """Let the end of the program wait for pushes to a store's engine."""
    _left[:] = [known for known in _left if known.pending]
    _open.add(store)
    weakref.finalize(store, _left.append, store.engine).atexit = False


def _end_pushes() -> None:
    """Wait for pushes before the program ends, because other workers rely on them.

    If an exception ends the program, it does not wait, because other workers might never make the matching calls.
    """
    if ends_by_exception():
        return
    for engine in [*(store.engine for store in _open), *_left]:
        try:
            engine.wait_all()
        except BaseException:
            print(
                "herringbone.kvstore: a call of a store failed, and the program did not wait for it; kv.wait_all() raises:",
                file=sys.stderr,
            )
            traceback.print_exc()


def _in_child() -> None:
    _open.clear()
    _left.clear()


atexit.register(_end_pushes)
os.register_at_fork(after_in_child=_in_child)
