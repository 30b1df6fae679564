"""Runs functions in parallel where that changes no result: each declares the variables that it reads and mutates."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _herringbone
from ._herringbone import OnComplete, Turn, Variable
from .arguments import level, text, whole
from .closing import ends_by_exception
from .communicator import Communicator
from .extents import MemoryVariables
from .work import Work

if TYPE_CHECKING:
    from types import TracebackType

    from .names import Operation

__all__ = ["Engine", "OnComplete", "Variable"]

MOST_THREADS = 256

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Engines that have to end before the interpreter does."""


class Engine:
    """A dependency engine like MXNet's: it runs functions on its own threads, in an order that respects what they use::

        with herringbone.Engine() as engine:
            engine.push(load, mutates=[batch])
            engine.push(train, reads=[batch], mutates=[weights])

    A program pushes functions in the order in which it would call them, and gets the results of these calls. Reads at the head
    of a variable's queue run together; a write runs alone.

    Each function declares the variables (:meth:`var`), arrays or tensors that it uses. All arrays and tensors that share memory
    have one variable. Functions of numpy run in parallel while numpy releases the interpreter's lock.

    A function that raises spoils what it mutates. Functions that use something spoiled are skipped, and spoil what they mutate.
    :meth:`wait` raises the function's exception and clears the variable. :meth:`wait_all` raises the exception of the first
    pushed function that has not been reported yet, and clears all variables. Exceptions not reported by the end of the program
    are printed.

    An engine is a context manager, whose end waits for all operations and closes it.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Make one.

        Args:
            threads: how many; by default as many as the process has cores, at least 2.
        """
        count = whole("Engine", "threads", threads, "a number of threads") if threads is not None else None
        if count is not None and not 1 <= count <= MOST_THREADS:
            raise ValueError(f"Engine: threads is {count}; pass 1 to {MOST_THREADS}")
        self._native = _herringbone.DependencyEngine(count or max(2, len(os.sched_getaffinity(0))))
        self._of_memory = MemoryVariables(self._native.var, functools.partial(_join, self._native))
        self._lines: weakref.WeakKeyDictionary[Communicator, Turn] = weakref.WeakKeyDictionary()
        """This engine's own order of calls for each communicator, apart from the program's and other engines'."""
        _engines.add(self)

    def var(self, name: str | None = None) -> Variable:
        """A new variable, which stands for anything the program chooses. Pictures call it ``name``."""
        return self._native.var(_label("var", name))

    def variable_of(self, thing: Any, name: str | None = None) -> Variable:
        """The variable of an array, a tensor or a communicator, or ``thing`` itself if it is a variable.

        Everything that shares memory has one variable: views of an array, and ``data``, ``detach()`` and ``numpy()`` of a
        tensor. So the engine notices whenever two functions use the same memory. If parts of one array are independent, make a
        variable with :meth:`var` for each.

        Args:
            name: its name in pictures, if this call makes it.
        """
        if isinstance(thing, Variable):
            return thing
        if isinstance(thing, Communicator):
            return self._native.order_of(thing._native)
        return self._of_memory.variable(thing, _label("variable_of", name))

    def push(
        self,
        function: Callable[[], object],
        reads: Sequence[Any] = (),
        mutates: Sequence[Any] = (),
        priority: int = 0,
        *,
        name: str | None = None,
    ) -> None:
        """Push ``function()``, which is called when everything that it uses is free.

        Args:
            function: takes no arguments; its result is dropped. It can push functions, but must not wait for the engine.
            reads: variables, arrays or tensors that it reads.
            mutates: variables, arrays or tensors that it mutates, and can read.
            priority: the ready function with the highest priority begins first; among equals the one that was pushed first.
            name: its name in errors, pictures and traces.
        """
        self._native.push(*self._said("push", function, reads, mutates, priority, name))

    def push_async(
        self,
        function: Callable[[OnComplete], object],
        reads: Sequence[Any] = (),
        mutates: Sequence[Any] = (),
        priority: int = 0,
        *,
        name: str | None = None,
    ) -> None:
        """Push ``function(done)``, whose operation ends when ``done`` is used: on any thread, and even after the function has
        returned.

        ``done.complete()`` ends it successfully, ``done.fail(error)`` ends it as failed, and ``done.release(variable)`` frees a
        variable for later operations before the end. If ``done`` is dropped unused, the operation fails. Two mistakes raise an
        error and change nothing: :class:`HerringboneError` for ending it twice, :class:`ValueError` for releasing a variable
        that it does not use.
        """
        self._native.push_async(*self._said("push_async", function, reads, mutates, priority, name))

    def all_reduce(
        self,
        communicator: Communicator,
        array: Any,
        op: Operation = "sum",
        *,
        var: Variable | None = None,
        priority: int = 0,
        name: str | None = None,
    ) -> None:
        """Push an in-place all-reduce of ``array``, like :meth:`Communicator.all_reduce`.

        It mutates the communicator until it is issued, and the array until it is over. So ranks that push the same collectives
        in the same order issue them in this order, whichever is ready first, and the collectives overlap. Calls that the
        program makes itself are matched separately from calls of its engines.

        A collective that is skipped because something failed on this rank spoils the communicator, since the ranks disagree
        about their calls then. The program has to end, or to clear the failure on all ranks in the same way.

        Args:
            array: a numpy array.
            var: the variable that stands for it; by default the array's own.
        """
        target = self.variable_of(array if var is None else var)
        run = functools.partial(communicator.all_reduce, array, op, priority=priority)
        self.collective(communicator, run, (target,), priority, name=name or "all_reduce")

    def collective(
        self,
        communicator: Communicator,
        run: Callable[..., Any],
        mutates: Sequence[Any] = (),
        priority: int = 0,
        *,
        name: str | None = None,
    ) -> None:
        """Push any collective of ``communicator``, in order with the others.

        Args:
            run: a method of the communicator with its arguments, such as ``functools.partial(communicator.broadcast, array)``;
                it is called with ``async_op=True``.
            mutates: everything that it reads or mutates until it is over.
        """
        order = self.variable_of(communicator)

        def issue(done: OnComplete) -> None:
            work: Work[Any] = run(async_op=True)
            done.release(order)
            done.follow(work._handle)

        self.push_async(issue, (), (communicator, *mutates), priority, name=name or "collective")

    def _line_of(self, communicator: Communicator) -> Turn:
        """This engine's line of calls of ``communicator``.

        The engine issues them in its own order. So ranks match them by this order alone, apart from the program's own calls and
        from other engines' calls. All ranks use their engines with a communicator for the first time in the same order.
        """
        line = self._lines.get(communicator)
        if line is None:
            line = self._lines[communicator] = communicator._native.line()
        return line

    def wait(self, thing: Any) -> None:
        """Wait until all functions pushed so far that mutate ``thing``, a variable or an array, are over.

        Raises:
            Exception: a function's exception, if that spoiled ``thing``. Then ``thing`` is clear for later functions.
        """
        self._native.wait(self.variable_of(thing))

    def wait_all(self) -> None:
        """Wait until nothing is pending.

        Raises:
            Exception: the exception of the first pushed function that has not been reported yet. Then nothing is spoiled.
        """
        self._native.wait_all()

    @property
    def pending(self) -> int:
        """How many operations are not over."""
        return self._native.pending()

    def picture(self) -> str:
        """The present queues as an SVG: a row for each variable, reads in green, mutations in red."""
        return self._native.picture()

    def record(self) -> None:
        """Record the operations that run from now on, for :meth:`trace`."""
        self._native.record()

    def trace(self) -> str:
        """A trace of the operations since :meth:`record`, at most the last 131,072, for Perfetto or chrome://tracing."""
        return self._native.trace()

    def close(self) -> None:
        """Run all functions that can run, and end the threads. A function that waits for an operation without an end never
        runs.

        A function of the engine can call this; then the threads end after that function. After Ctrl-C it does not wait for
        running functions.
        """
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self.wait_all()
        finally:
            self.close()

    def _said(
        self, call: str, function: Any, reads: Sequence[Any], mutates: Sequence[Any], priority: Any, name: str | None
    ) -> tuple[Any, list[Variable], list[Variable], int, str | None]:
        if not callable(function):
            raise TypeError(f"{call}: function is a {type(function).__name__}, which cannot be called")
        for argument, things in (("reads", reads), ("mutates", mutates)):
            if not isinstance(things, (list, tuple)):
                raise TypeError(f"{call}: {argument} is a {type(things).__name__}; pass a list of variables or arrays")
        for thing in mutates:
            if getattr(getattr(thing, "flags", None), "writeable", True) is False:
                whose = "" if name is None else f" of operation {name!r}"
                raise ValueError(
                    f"{call}: an array of shape {thing.shape} in mutates{whose} is read-only; pass a writable one, or name it in reads"
                )
        variables = [[self.variable_of(thing) for thing in things] for things in (reads, mutates)]
        called = [thing for thing in (*reads, *mutates) if isinstance(thing, Communicator)]
        if called:
            function = functools.partial(self._line_of(called[0]).run, function)
        return function, variables[0], variables[1], level(call, "priority", priority), _label(call, name)


def _label(call: str, name: str | None) -> str | None:
    return None if name is None else text(call, "name", name)


def _join(native: _herringbone.DependencyEngine, first: Variable, second: Variable) -> None:
    """Run everything pushed on the first variable so far before anything that is pushed on the second from now on."""
    native.push(lambda: None, [], [first, second], 0, "memory in common")


def _close_all() -> None:
    fails = ends_by_exception()
    for engine in list(_engines):
        engine.close()
        if fails:  # its traceback is the last that is written: what has failed since may follow from it
            engine._native.be_quiet()
            continue
        unreported = engine._native.unreported()
        if unreported is not None:
            print(f"herringbone.Engine: nobody waited for operation {unreported[0]}, which failed:", file=sys.stderr)
            traceback.print_exception(unreported[1])


def _in_child() -> None:
    for engine in list(_engines):
        engine._of_memory.renew()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_in_child)
