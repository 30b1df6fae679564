"""Functions that say what they read and what they mutate, and run side by side where that changes nothing."""

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
"""Those that are to end before the interpreter does."""


class Engine:
    """A dependency engine, as MXNet has one: it runs functions on threads of its own, in the order of what they use::

        with herringbone.Engine() as engine:
            engine.push(load, mutates=[batch])
            engine.push(train, reads=[batch], mutates=[weights])

    A program pushes its functions in the order in which it would call them. What it computes is what the calls would compute,
    one after the other: reads at the head of a variable's queue run together, a write runs alone.

    What a function uses it declares, as variables (:meth:`var`) or simply as arrays and tensors: memory has a variable, and all
    arrays and tensors that show some of it have this one. Functions of numpy run beside each other as far as numpy
    lets go of the interpreter's lock.

    A function that raises spoils what it mutates. Functions that use something spoiled are skipped, and spoil what they mutate.
    :meth:`wait` raises the function's exception and clears the variable; :meth:`wait_all` raises that of the function that was
    pushed first, of those that nobody was told of, and clears all. What nobody was told of when the program ends is printed.

    An engine is a context manager: its end waits for all operations and closes it.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Make one.

        Args:
            threads: how many; as many as the process has cores, at least 2, if it is not given.
        """
        count = whole("Engine", "threads", threads, "a number of threads") if threads is not None else None
        if count is not None and not 1 <= count <= MOST_THREADS:
            raise ValueError(f"Engine: threads is {count}; pass 1 to {MOST_THREADS}")
        self._native = _herringbone.DependencyEngine(count or max(2, len(os.sched_getaffinity(0))))
        self._of_memory = MemoryVariables(self._native.var, functools.partial(_join, self._native))
        self._lines: weakref.WeakKeyDictionary[Communicator, Turn] = weakref.WeakKeyDictionary()
        """Where this engine's calls of communicators are in order: apart from the program's, and from other engines'."""
        _engines.add(self)

    def var(self, name: str | None = None) -> Variable:
        """A new variable, which stands for whatever the program likes. Pictures call it ``name``."""
        return self._native.var(_label("var", name))

    def variable_of(self, thing: Any, name: str | None = None) -> Variable:
        """The variable of an array or tensor, that of a communicator, or ``thing`` if it is a variable.

        All that shows the same memory has one variable: views of an array, and of a tensor its ``data``, ``detach()`` and
        ``numpy()``, too. So no two functions use the same memory unseen. Where parts of one array are independent, declare a
        variable of your own for each.

        Args:
            name: what pictures call it, if this call makes it.
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
        """Push ``function()``, which is called when what it uses is free.

        Args:
            function: takes no arguments; what it returns is dropped. It may push, and may not wait for the engine.
            reads: variables, arrays or tensors that it reads.
            mutates: those that it mutates, and may read.
            priority: of what is ready the highest begins first, of equals what was pushed first.
            name: what errors, pictures and traces call it.
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
        """Push ``function(done)``, whose operation ends when ``done`` is used, which may be later and on any thread.

        ``done.complete()`` ends it well, ``done.fail(error)`` ends it as failed, and ``done.release(variable)`` lets later
        operations have a variable before the end. If ``done`` is dropped unused, the operation fails. To end it a second time is a
        :class:`HerringboneError`, and to release a variable that it does not use a :class:`ValueError`, which change nothing.
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
        """Push an all-reduce of ``array`` in place, as of :meth:`Communicator.all_reduce`.

        It mutates the communicator until it is issued, and the array until it is over. So all ranks that push the same
        collectives in the same order issue them in this order, whatever is ready first, and they overlap. The program's own calls of
        the communicator are matched separately from those of its engines.

        A collective that is skipped, as something failed on this rank, spoils the communicator: the ranks no longer agree about
        their calls then, and the program has to end, or to clear the failure on all ranks alike.

        Args:
            array: a numpy array.
            var: the variable that stands for it, if that is not the array's own.
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
        """Push any collective of ``communicator``, in turn with its other ones.

        Args:
            run: a method of the communicator with its arguments, as ``functools.partial(communicator.broadcast, array)``; it is
                called with ``async_op=True``.
            mutates: what it reads or mutates until it is over.
        """
        order = self.variable_of(communicator)

        def issue(done: OnComplete) -> None:
            work: Work[Any] = run(async_op=True)
            done.release(order)
            done.follow(work._handle)

        self.push_async(issue, (), (communicator, *mutates), priority, name=name or "collective")

    def _line_of(self, communicator: Communicator) -> Turn:
        """Where this engine's calls of ``communicator`` have their place.

        They are issued when their turn in the engine comes, so ranks match them by the engine's order alone: beside the
        program's own calls, and those of other engines. All ranks use their engines with a communicator for the first time in
        the same order.
        """
        line = self._lines.get(communicator)
        if line is None:
            line = self._lines[communicator] = communicator._native.line()
        return line

    def wait(self, thing: Any) -> None:
        """Wait until what was pushed before and mutates ``thing``, a variable or an array, is over.

        Raises:
            Exception: what a function raised, if that spoiled it. It is clear for what is pushed later.
        """
        self._native.wait(self.variable_of(thing))

    def wait_all(self) -> None:
        """Wait until nothing is pending.

        Raises:
            Exception: of what functions raised, and nobody was told of, that of the function that was pushed first. Nothing is
                spoiled any more.
        """
        self._native.wait_all()

    @property
    def pending(self) -> int:
        """How many operations are not over."""
        return self._native.pending()

    def picture(self) -> str:
        """The queues as they are now, as an SVG: a row for each variable, reads in green, mutations in red."""
        return self._native.picture()

    def record(self) -> None:
        """Keep what runs from now on, for :meth:`trace`."""
        self._native.record()

    def trace(self) -> str:
        """What has run since :meth:`record`, as a trace for Perfetto or chrome://tracing; the last 131,072 operations."""
        return self._native.trace()

    def close(self) -> None:
        """Run what can run, and end the threads. What waits for an operation that has not ended never runs.

        A function of the engine may call it; then the threads end after that function. After Ctrl-C it leaves functions that
        run to themselves.
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
                    f"{call}: an array of shape {thing.shape} in mutates{whose} is read-only; pass one that can be written, or name it "
                    "in reads"
                )
        variables = [[self.variable_of(thing) for thing in things] for things in (reads, mutates)]
        called = [thing for thing in (*reads, *mutates) if isinstance(thing, Communicator)]
        if called:
            function = functools.partial(self._line_of(called[0]).run, function)
        return function, variables[0], variables[1], level(call, "priority", priority), _label(call, name)


def _label(call: str, name: str | None) -> str | None:
    return None if name is None else text(call, "name", name)


def _join(native: _herringbone.DependencyEngine, first: Variable, second: Variable) -> None:
    """What is pushed on the first so far comes before all that is pushed on the second from now on."""
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
