"""Asynchronous SGD: the parameters are on servers, and each worker pushes its gradients as soon as it has them.

::

    with herringbone.ParameterServer() as servers:
        optimizer = AsyncSGD(torch.optim.SGD(model.parameters(), lr=0.05), servers, staleness="scale", max_staleness=8)
        for batch, targets in data:
            optimizer.zero_grad()
            loss(model(batch), targets).backward()
            optimizer.step()                                # pushes the gradients, and pulls the parameters
        optimizer.finish()

This module imports torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from ..arguments import text
from ..errors import ArgumentError, HerringboneError, TableError
from ..kvstore.meeting import Meeting
from ..tables import TYPES, ParameterServer, Table
from .async_rows import WIDTH, places_of, rows_of, runs_of
from .async_rules import check_change, check_scaled, checked_bounds, consistency_of, factor_of, gradient_share, rule_of
from .saved import check_groups, count_of, needed_of

__all__ = ["AsyncSGD"]

WHOLE, FINISHED = np.full(1, 1, np.uint8), np.full(1, 2, np.uint8)
"""Rank 0's marks: its first values are complete; all workers have reached :meth:`AsyncSGD.finish`, and rank 0 makes no
steps."""

_names: weakref.WeakKeyDictionary[ParameterServer, set[str]] = weakref.WeakKeyDictionary()
"""The names of trainings on each connection of this process."""


class AsyncSGD(torch.optim.Optimizer):
    """Trains a model whose parameters are on a parameter server; workers do not wait for each other::

        optimizer = AsyncSGD(torch.optim.SGD(model.parameters(), lr=0.05), herringbone.ParameterServer())
        loss.backward()
        optimizer.step()

    Each worker has a model of the same shape, and makes an AsyncSGD after its model. The servers begin with rank 0's
    parameters. ``step()`` pushes this worker's gradients, which the servers apply with their own optimizer, and pulls the
    parameters.

    The servers use the optimizer that is passed, with its settings: SGD, Adagrad, RMSprop, Adam or AdamW (see docs/tables.md).
    Rank 0 passes on changes of numbers in ``param_groups``, such as an ``lr`` from a scheduler that was made for this object.

    Sources: Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012). Zhang et al., "Staleness-aware Async-SGD" (IJCAI
    2016). Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS 2013).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        server: ParameterServer,
        *,
        staleness: Literal["scale", "none"] = "scale",
        first_k: int | None = None,
        max_staleness: int | None = None,
        name: str = "async",
        restore: bool = False,
    ) -> None:
        """All workers make it, with the same arguments, and return once all have; a replacement of a lost worker does not wait.

        Args:
            optimizer: torch's, over the model's parameters of float32, float64 or bfloat16. It makes no steps itself.
            server: this worker's connection. The caller closes it.
            staleness: ``"scale"`` multiplies a gradient by 1/tau, if tau updates (2 or more) have changed the parameters since
                this worker pulled them. ``"none"`` gives every gradient its full weight.
            first_k: the servers change the parameters by the mean of the first ``first_k`` gradients that arrive. Staleness
                is measured in them. A change that never becomes complete has no effect. Not with ``max_staleness``.
            max_staleness: a worker waits in its pull for workers that are more steps than this behind it. 0 is synchronous: a
                step's gradients are averaged with the bits of an all-reduce. With ``None`` a worker never waits.
            name: the prefix of the tables' names. Each training on the same servers, even a later one, needs its own name: a
                process with a name that a worker of its rank has used replaces that worker.
            restore: begin with the servers' newest snapshot, if there is one (see :meth:`snapshot`). It also continues a
                training that has ended with :meth:`finish`, on servers that still run.

        Raises:
            TypeError: the optimizer or the server has the wrong type.
            ArgumentError: an argument makes no sense, or servers lack the optimizer or the type of elements. Or the name
                belongs to a training that has ended, or to another one on this connection.
            TableError: rank 0 was lost before its parameters were on the servers.
        """
        if not isinstance(optimizer, torch.optim.Optimizer):
            what = "an optimizer of torch over the model's parameters, such as torch.optim.SGD(model.parameters(), lr=0.1)"
            raise TypeError(f"AsyncSGD: optimizer is a {type(optimizer).__name__}; pass {what}")
        if not isinstance(server, ParameterServer):
            raise TypeError(f"AsyncSGD: server is a {type(server).__name__}; pass a herringbone.ParameterServer")
        first_k, max_staleness = checked_bounds(staleness, first_k, max_staleness)
        name = text("AsyncSGD", "name", name, "a name")
        self._kind = type(optimizer).__name__
        self._rules = [rule_of(self._kind, group) for group in optimizer.param_groups]
        groups = [_by_type(group["params"]) for group in optimizer.param_groups]
        scales = staleness == "scale" and max_staleness != 0
        if scales:
            check_scaled(rule for rule, _ in self._rules)
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.last_staleness: int | None = None
        """How many updates by others came between this worker's last pull and its last push; ``None`` if that was not
        counted."""
        self._rank, self._version, self._first_k = server.rank, 0, first_k or 1
        self._tells_all = False
        self._meeting = _met(server, name, restore)
        self._clock: Table | None = None
        self._stretches: list[_Stretch] = []
        try:
            self._has_finished = self._meeting.message().tolist() == FINISHED.tolist()
            if scales:
                self._clock = server.table(f"{name} clock", rows=1, dtype="float64", restore=restore)
            share = gradient_share(server.workers, first_k, max_staleness)
            consistency = consistency_of(first_k, max_staleness)
            self._open_stretches(server, name, groups, share, consistency, restore)
            self._begin()
        except BaseException:
            # Otherwise the others wait for this worker in barriers and steps, and the program has no object to close.
            with suppress(HerringboneError):
                self.close()
            raise
        _names.setdefault(server, set()).add(name)

    def _open_stretches(
        self,
        server: ParameterServer,
        name: str,
        groups: list[dict[str, dict[int, torch.Tensor]]],
        share: float,
        consistency: str | int,
        restore: bool,
    ) -> None:
        """Open a table for the parameters of each type in each group."""
        for number, (rule, numbers) in enumerate(self._rules):
            for dtype, numbered in groups[number].items():
                settings: dict[str, Any] = {
                    "name": f"{name} {number} {dtype}",
                    "rows": rows_of([parameter.numel() for parameter in numbered.values()]),
                    "width": WIDTH,
                    "dtype": dtype,
                    "optimizer": rule,
                    "numbers": {**numbers, "rescale_grad": share},
                    "consistency": consistency,
                    "restore": restore,
                }
                self._stretches.append(_Stretch(number, partial(server.table, **settings), numbered))

    def _begin(self) -> None:
        """Give the servers rank 0's parameters, if they have none yet, and load the servers'.

        Rank 0 sets a mark once its parameters are in effect on all servers. A process that replaces a lost one continues where
        that one was: it sends the missing values, and waits if not all workers have begun.

        Raises:
            TableError: rank 0 was lost before its mark.
        """
        if self._rank == 0 and not self._meeting.message().size:
            for stretch in self._stretches:
                stretch.assign(self._first_k)
            self._meeting.tell(WHOLE)
        elif not self._meeting.comes_back:
            for stretch in self._stretches:
                if stretch.table.step == 0:
                    stretch.table.end_step()
        if self._meeting.comes_back:
            self._meeting.wait()
        else:
            self._meeting.meet("AsyncSGD")
        if not self._meeting.message().size:
            raise TableError(
                "AsyncSGD: rank 0 was lost before it had given its first values to all servers; restart all workers, with new servers or "
                "another name",
                self._stretches[0].table.name,
            )
        self._pull()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Push this worker's gradients, and pull the parameters that result from all workers' pushes; returns the result of
        ``closure``.

        A parameter without a gradient stays as it is. Each worker can make any number of steps. With ``max_staleness`` a step
        waits until the others have caught up; it waits for a lost worker for the servers' ``--patience``.

        Raises:
            TableError: a gradient has a NaN or an infinity. This step has pushed nothing, and has not ended.
            ArgumentError: ``param_groups`` were changed in a way that servers do not support. This step has pushed nothing.
            TableServerLostError: a server is lost, and its data has no copy.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._refuse_nan()
        self._tune()
        if self._has_finished and self._rank == 0:
            self._meeting.tell(WHOLE)
        self._has_finished = False
        factor = 1.0
        if self._clock is not None:
            self.last_staleness = self._updates() - self._version
            factor = factor_of(self.last_staleness)
        for stretch in self._stretches:
            stretch.push(factor)
        if self._clock is not None:
            self._clock.push_range(0, [[1.0]])
        self._pull()
        return loss

    def _refuse_nan(self) -> None:
        """Raise the error for a NaN before anything is pushed: otherwise servers would refuse one table after accepting
        others."""
        for stretch in self._stretches:
            for number, parameter in zip(stretch.numbers, stretch.parameters):
                if parameter.grad is not None and not _dense(parameter.grad).isfinite().all():
                    raise TableError(
                        f"AsyncSGD: the gradient of parameter {number} of group {stretch.group}, of shape {tuple(parameter.shape)}, has a "
                        'NaN or an infinity. If training diverges, use a smaller lr, staleness="scale" or a smaller max_staleness. This '
                        "step has pushed nothing; to leave it out, call step() again with gradients of None",
                        stretch.table.name,
                    )

    def _pull(self) -> None:
        """Load the servers' parameters. The version is read first: pushes in between make a gradient look older, never
        newer."""
        if self._clock is not None:
            self._version = self._updates()
        for stretch in self._stretches:
            stretch.pull()

    def _updates(self) -> int:
        """How often the servers have changed the parameters."""
        assert self._clock is not None
        return int(self._clock.pull_range(0, 1)[0, 0]) // self._first_k

    def _tune(self) -> None:
        """Pass on changed numbers. Only rank 0 does this, because a slower worker would return the servers to older numbers."""
        rules = self._rules_of("AsyncSGD.step", self.param_groups)
        for number, ((_, told), (_, numbers)) in enumerate(zip(self._rules, rules)):
            changed = {name: value for name, value in numbers.items() if self._tells_all or value != told[name]}
            if self._rank == 0 and changed:
                for stretch in self._stretches:
                    if stretch.group == number:
                        stretch.table.tune(**changed)
        self._rules, self._tells_all = rules, False

    def _rules_of(self, call: str, groups: list[dict[str, Any]]) -> list[Any]:
        """The description of groups of parameters for servers; it can differ from the known one only in numbers."""
        rules = [rule_of(self._kind, group) for group in groups]
        for number, (before, after) in enumerate(zip(self._rules, rules)):
            check_change(call, number, before, after)
        return rules

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse more parameters: each group has its tables from the beginning.

        Raises:
            ArgumentError: this object is made already.
        """
        if hasattr(self, "_stretches"):
            raise ArgumentError(
                "AsyncSGD.add_param_group: all parameters have to be given at the beginning; make the optimizer with all groups, and an "
                "AsyncSGD of it with another name"
            )
        super().add_param_group(param_group)

    def finish(self) -> None:
        """Load the final parameters, after all workers' steps. All workers call this after their last step.

        Without it each worker has the parameters of its last pull, which others have changed since. Workers can have made
        different numbers of steps: no worker waits for one that has called this, whatever ``max_staleness`` is. More steps can
        follow.
        """
        for stretch in self._stretches:
            stretch.table.close()
        self._meeting.meet("AsyncSGD.finish")
        for stretch in self._stretches:
            stretch.table = stretch.open_table()
        self._pull()
        self._meeting.meet("AsyncSGD.finish")
        if self._rank == 0:
            self._meeting.tell(FINISHED)
        self._has_finished = True

    def snapshot(self) -> None:
        """Let the servers write parameters and the optimizer's state to their ``--data``, while training continues. One worker
        calls it.

        A training that is made with ``restore=True`` on new servers continues from there.
        """
        for table in [stretch.table for stretch in self._stretches] + ([] if self._clock is None else [self._clock]):
            table.snapshot()

    def state_dict(self) -> dict[str, Any]:
        """The settings of ``param_groups``, as in any optimizer of torch, and the number of ``steps`` that this worker has
        ended.

        The optimizer's state for each element is on the servers: :meth:`snapshot` writes it.
        """
        return {**super().state_dict(), "steps": self._stretches[0].table.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load the settings of :meth:`state_dict`; rank 0's next step passes their numbers on.

        The parameters are on the servers: load the model before this object is made.

        Raises:
            TypeError, ArgumentError: it is not a state of the same groups of parameters, or servers cannot change to its
                settings. Nothing is loaded then.
        """
        call = "AsyncSGD.load_state_dict"
        check_groups(call, state_dict, self.param_groups, needed_of(self.defaults))
        count_of(call, state_dict, "steps")
        self._rules_of(call, state_dict["param_groups"])
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "steps"})
        self._tells_all = True

    def close(self) -> None:
        """Leave the training: other workers do not wait for this one."""
        for stretch in self._stretches:
            stretch.table.close()
        if self._clock is not None:
            self._clock.close()
        self._meeting.close()


def _met(server: ParameterServer, name: str, restore: bool) -> Meeting:
    """The meeting of the workers of a training with this name.

    Raises:
        ArgumentError: another training on this connection has the name, or one that has ended and is not to be continued.
    """
    if name in _names.get(server, ()):
        raise ArgumentError(
            f"AsyncSGD: this ParameterServer has an AsyncSGD named {name!r} already; pass another name, or make a new ParameterServer "
            "to replace that one"
        )
    meeting = Meeting(server, name)
    if meeting.comes_back and not restore and meeting.message().tolist() == FINISHED.tolist():
        meeting.close()
        raise ArgumentError(
            f"AsyncSGD: the training named {name!r} on these servers has ended with finish(); pass another name to begin a new one, or "
            "restore=True to continue it"
        )
    return meeting


class _Stretch:
    """The parameters of one group and type, and their table."""

    def __init__(self, group: int, open_table: Callable[[], Table], numbered: dict[int, torch.Tensor]) -> None:
        """``numbered`` has the parameters by their places in the group."""
        parameters = list(numbered.values())
        self.group, self.numbers, self.parameters = group, list(numbered), parameters
        self.open_table, self.table = open_table, open_table()
        self._places = places_of([parameter.numel() for parameter in parameters])
        self._rows = torch.zeros((self.table.rows, WIDTH), dtype=parameters[0].dtype)

    def assign(self, steps: int) -> None:
        """Make the parameters the table's values, in ``steps`` steps; all but the first add zeros.

        Steps that a lost process of this rank has ended are not repeated. No worker pushes gradients before this is done, so a
        table with more steps of this rank comes from a snapshot, and is complete.
        """
        if self.table.step > steps:
            return
        self._rows.zero_()
        self.table.tune(assigns=1)
        if self.table.step == 0:
            for parameter, place in zip(self.parameters, self._places):
                self._rows.view(-1)[place.first : place.last].copy_(parameter.detach().reshape(-1))
            self.table.push_range(0, self._rows)
        for _ in range(self.table.step, steps):
            self.table.push_range(0, torch.zeros_like(self._rows))
        # If a step takes effect only once all workers have ended it, this waits for it, on all servers.
        self.table.pull_range(0, self.table.rows, self._rows)
        self.table.tune(assigns=0)

    def push(self, factor: float) -> None:
        """Push the gradients of the parameters that have one, times ``factor``, and end the step."""
        gradients = [parameter.grad for parameter in self.parameters]
        for gradient, place in zip(gradients, self._places):
            if gradient is not None:
                self._rows.view(-1)[place.first : place.last].copy_(_dense(gradient).reshape(-1))
                self._rows.view(-1)[place.last : (place.row + place.rows) * WIDTH].zero_()
        runs = runs_of(self._places, [gradient is not None for gradient in gradients])
        if factor != 1.0:
            self._rows.mul_(factor)
        for first, count in runs[:-1]:
            self.table.push_range(first, self._rows[first : first + count], more=True)
        for first, count in runs[-1:]:
            self.table.push_range(first, self._rows[first : first + count])
        if not runs:
            self.table.end_step()

    def pull(self) -> None:
        """Load the table's values."""
        self.table.pull_range(0, self.table.rows, self._rows)
        for parameter, place in zip(self.parameters, self._places):
            parameter.detach().copy_(self._rows.view(-1)[place.first : place.last].view(parameter.shape))


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient with all its elements, even if it is sparse."""
    return gradient.to_dense() if gradient.is_sparse else gradient


def _by_type(parameters: list[torch.Tensor]) -> dict[str, dict[int, torch.Tensor]]:
    """Parameters by the names of their types, with their places in the list, in the list's order."""
    by_type: dict[str, dict[int, torch.Tensor]] = {}
    for number, parameter in enumerate(parameters):
        dtype = str(parameter.dtype).removeprefix("torch.")
        if dtype not in TYPES:
            raise ArgumentError(f"AsyncSGD: parameter {number} is {dtype}, but tables have {', '.join(TYPES)}; convert the model")
        by_type.setdefault(dtype, {})[number] = parameter
    return by_type
