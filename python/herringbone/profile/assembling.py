"""Makes the profile from the recorded steps, or explains why that is impossible."""

from __future__ import annotations

import dataclasses
import datetime
import os
import platform
import shlex

import torch
import torch.distributed as dist

from .._herringbone import __version__
from . import finding
from .document import Profile, Run
from .options import Options
from .problems import ProfileError
from .steps import measured, ready
from .watch import Watch
from .writing import is_control

__all__ = ["Place", "place", "profile_of"]


@dataclasses.dataclass(frozen=True)
class Place:
    """This process's place in its job."""

    rank: int
    ranks: int
    ranks_on_host: int
    backend: str


def place() -> Place:
    """The place of this process, from its process group, or else from its launcher's variables."""
    if dist.is_available() and dist.is_initialized():
        rank, ranks, backend = dist.get_rank(), dist.get_world_size(), str(dist.get_backend())
    else:
        rank, ranks, backend = _number("RANK", 0), _number("WORLD_SIZE", 1), "none"
    return Place(rank, ranks, min(ranks, _number("LOCAL_WORLD_SIZE", ranks)), backend)


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else default


def profile_of(watch: Watch, options: Options, where: Place) -> Profile:
    """The profile of the model that a script has trained.

    Raises:
        ProfileError: it has trained no model, or too few steps.
    """
    steps = watch.measured
    if not steps:
        raise ProfileError(_nothing(watch, options))
    moments = ready(steps)
    profile = Profile(
        "".join(letter for letter in type(watch.model).__name__[:1000] if not is_control(letter)),
        shlex.join(["python", "-m", "herringbone.profile", options.script.name, *options.arguments])[:1000],
        finding.layers_of(watch.model, moments),
        run=Run(
            date=datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            python=platform.python_version(),
            torch=torch.__version__,
            herringbone=__version__,
            cores=len(os.sched_getaffinity(0)),
            threads=torch.get_num_threads(),
            ranks=where.ranks,
            ranks_on_host=where.ranks_on_host,
            rank=where.rank,
            backend=where.backend,
            wrapper="none" if watch.wrapper is None else "DistributedDataParallel",
            compiled=finding.is_compiled(watch.outermost) if watch.outermost is not None else False,
        ),
        measured=measured(steps, watch.warm_up, watch.wrapper is not None and options.sums),
    )
    if watch.wrapper is None:
        return profile
    return dataclasses.replace(profile, buckets=finding.buckets_of(watch.wrapper, list(profile.parameters()), watch.reported))


def _nothing(watch: Watch, options: Options) -> str:
    """Why no step can be profiled."""
    script = options.script.name
    if watch.seen and not watch.backwards:
        return (
            f"{script} has stepped an optimizer {watch.seen} times or more and never called backward(): gradients from torch.autograd.grad have no "
            "times, so compute them with backward() of the loss"
        )
    if watch.seen:
        advice = f"pass a --warm-up below {watch.seen}" if watch.seen > 2 else "let it train at least 3 steps"
        return f"{script} has trained {watch.seen} steps, but {watch.warm_up} are for the warm-up: {advice}"
    if watch.backwards:
        return (
            f"{script} has called backward() {watch.backwards} times but no optimizer of torch.optim: a step ends with the "
            "optimizer's step, so let one update the parameters"
        )
    return (
        f"no training step was seen in {script}: neither backward() nor an optimizer of torch.optim was called in this process. If the "
        "script starts other processes that train, start its ranks with herringbone launch or torchrun instead"
    )
