"""The end of a program that has stores: what was pushed is waited for, unless an exception ends the program."""

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
"""The stores of several workers that have an engine of their own."""
_left: list[Engine] = []
"""The engines of those that are gone. What was pushed there may still go on."""


def wait_at_exit(store: Any) -> None:
    """Have the end of the program wait for what is pushed to a store's engine."""
    _left[:] = [known for known in _left if known.pending]
    _open.add(store)
    weakref.finalize(store, _left.append, store.engine).atexit = False


def _end_pushes() -> None:
    """Before the program ends, wait for what was pushed: other workers count on it.

    A program that an exception ends waits for nothing, as other workers may never call what it waits for.
    """
    if ends_by_exception():
        return
    for engine in [*(store.engine for store in _open), *_left]:
        try:
            engine.wait_all()
        except BaseException:
            print(
                "herringbone.kvstore: a call of a store failed, and nobody waited for it; kv.wait_all() raises:", file=sys.stderr
            )
            traceback.print_exc()


def _in_child() -> None:
    _open.clear()
    _left.clear()


atexit.register(_end_pushes)
os.register_at_fork(after_in_child=_in_child)
