"""The handle of a running operation on arrays."""

from __future__ import annotations

from typing import Generic, TypeVar

from . import _herringbone
from .arguments import check_seconds
from .errors import OperationTimeoutError

__all__ = ["Work"]

Result = TypeVar("Result", covariant=True)


class Work(Generic[Result]):
    """A running collective or message, which ``async_op=True`` returns; :meth:`wait` gives the result::

        work = group.all_reduce(array, async_op=True)
        ...  # compute something else
        array = work.wait()

    It owns its buffers until it has finished.
    """

    def __init__(self, name: str, handle: _herringbone.Pending, result: Result) -> None:
        self._name = name
        self._handle = handle
        self._result = result

    def wait(self, timeout: float | None = None) -> Result:
        """Block until it has finished, without the GIL, and return the result array (``None`` for a barrier).

        Args:
            timeout: seconds to wait; after it the collective continues, and you can wait for it again.

        Raises:
            HerringboneError: the collective failed, or the wait took longer than ``timeout``.
        """
        check_seconds("wait", timeout)
        if not self._handle.wait(timeout):
            raise OperationTimeoutError(
                f"{self._name} is still running after the wait's timeout of {timeout:g} s; it can be waited for again"
            )
        return self._result

    def done(self) -> bool:
        """Whether it has finished, successfully or not."""
        return self._handle.done()

    @property
    def source(self) -> int | None:
        """The rank whose message a receive has got; ``None`` before, and for other operations."""
        return self._handle.source()
