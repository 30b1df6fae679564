"""Training that continues when workers come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from ....listing import listing
from ...common.basics import init, shutdown
from ...common.elastic import ObjectState, State, run_fn
from .sampler import ElasticSampler
from .state import TorchState

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]

__dir__ = listing(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])


def run(func: Function) -> Function:
    """Make ``func(state, ...)`` a loop that continues when workers come and go.

    Before each round all ranks get the same state. If a worker is lost, the round ends on the others, and they continue from
    the last ``state.commit()``. A new worker is taken in at a commit, without losing progress. The launcher has to start new
    processes, as ``herringbone horovodrun --min-np`` does.
    """
    return cast(Function, run_fn(func, _reset))


def _reset() -> None:
    shutdown()
    init()
