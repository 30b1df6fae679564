"""Combines the workers' figures into one row for each architecture, and its curves. Pure: no clock, no files, no torch."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AXES", "Budgets", "Curve", "Row", "Staleness", "budgets_of", "failed", "missing", "row_of", "staleness_of"]

AXES = ("steps", "seconds", "sent")
"""The axes for losses: a worker's steps, seconds, and sent bytes."""
SMOOTHED = 0.05
"""A curve's point is the mean of the losses in this fraction of the training before it."""


@dataclass(frozen=True)
class Curve:
    """How the loss falls: each list has one number for each point, a mean of all workers."""

    steps: list[float]
    seconds: list[float]
    sent: list[float]
    losses: list[float]

    def at(self, axis: str, budget: float) -> float | None:
        """The loss at the last point within a budget of an axis; None if there is no such point."""
        place = bisect.bisect_right(getattr(self, axis), budget)
        return self.losses[place - 1] if place else None


@dataclass(frozen=True)
class Row:
    """The cost and result of an architecture. Figures of steps are means over all workers and steps."""

    label: str
    curve: Curve
    error: str = ""
    """Why there are no figures: it failed, or it is missing; all other fields are empty then."""
    missing: bool = False
    """Whether the comparison ended before this architecture was finished."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """The figures, by the names of :data:`herringbone.compare.report.COLUMNS`. None: it does not apply."""
    about: str = ""
    """A description of the trained network and samples."""

    @property
    def remark(self) -> str:
        """The text shown instead of figures."""
        return f"missing: {self.error}" if self.missing else self.error


@dataclass(frozen=True)
class Staleness:
    """Updates of other workers that a worker's gradient does not include."""

    mean: float
    most: int


@dataclass(frozen=True)
class Budgets:
    """The budgets at which losses are compared: what all architectures have spent; for bytes, what half of them have spent."""

    steps: float
    seconds: float
    sent: float


def failed(label: str, error: str) -> Row:
    """The row of a failed architecture."""
    return Row(label, Curve([], [], [], []), error)


def missing(label: str, reason: str) -> Row:
    """The row of an architecture that was not finished, because the comparison ended."""
    return Row(label, Curve([], [], [], []), reason, missing=True)


def row_of(label: str, measured: Mapping[str, Any], predicted: float | None, in_step: bool) -> Row:
    """An architecture's row.

    ``measured`` is the result of :meth:`herringbone.compare.job.Job.run`, ``predicted`` the seconds of communication in a step,
    ``in_step`` whether workers wait for each other in each step.
    """
    workers = measured["workers"]
    per_step = statistics.fmean(_step_seconds(worker["seconds"]) for worker in workers)
    computing = statistics.fmean(worker["computing"] for worker in workers)
    slept = _slept([worker["slept"] for worker in workers], in_step)
    stale = staleness_of([worker["spans"] for worker in workers])
    figures: dict[str, float | None] = {
        "steps": statistics.fmean(len(worker["losses"]) for worker in workers),
        "seconds": max(worker["seconds"][-1] for worker in workers),
        "step_s": per_step,
        "computing_s": computing,
        "slept_s": slept,
        "rest_s": per_step - computing - slept,
        "predicted_s": predicted,
        "cpu_s": sum(worker["cpu"] for worker in workers) + measured["servers_cpu"],
        "servers_cpu_s": measured["servers_cpu"],
        "sent_per_step": statistics.fmean(worker["sent"][-1] / len(worker["sent"]) for worker in workers),
        "received_per_step": statistics.fmean(worker["received"][-1] / len(worker["received"]) for worker in workers),
        "staleness": stale.mean if stale else None,
        "most_staleness": stale.most if stale else None,
        "accuracy": statistics.fmean(worker["accuracy"] for worker in workers),
    }
    return Row(label, _curve(workers, in_step), figures=figures, about=workers[0]["about"])


def _step_seconds(ended: Sequence[float]) -> float:
    """The mean seconds of a step, from the times of their ends; without the first one, which makes connections and buckets."""
    return (ended[-1] - ended[0]) / (len(ended) - 1) if len(ended) > 1 else ended[0]


def _slept(slept: Sequence[Sequence[float]], in_step: bool) -> float:
    """The mean sleep in a step, in seconds; if all workers wait for each other, the longest worker's sleep."""
    if in_step:
        return statistics.fmean(max(step) for step in zip(*slept))
    return statistics.fmean(statistics.fmean(worker) for worker in slept)


def _curve(workers: Sequence[Mapping[str, Any]], in_step: bool) -> Curve:
    """Means over all workers after each step or, if they do not make their steps together, at the same number of moments.

    At a moment a worker's loss is its last step's; after its end it keeps its last value.
    """
    losses = [_smooth(worker["losses"]) for worker in workers]
    counts = [len(worker["losses"]) for worker in workers]
    if in_step:
        reached = [[step] * len(workers) for step in range(min(counts))]
    else:
        # Before the first of these moments not all workers have a loss.
        first, last = (pick(worker["seconds"][place] for worker in workers) for pick, place in ((max, 0), (max, -1)))
        moments = [first + (last - first) * part / max(1, max(counts) - 1) for part in range(max(counts))]
        reached = [[bisect.bisect_right(worker["seconds"], moment) - 1 for worker in workers] for moment in moments]
    means = {
        name: [statistics.fmean(worker[name][step] for worker, step in zip(workers, steps)) for steps in reached]
        for name in ("seconds", "sent")
    }
    return Curve(
        steps=[statistics.fmean(steps) + 1 for steps in reached],
        seconds=means["seconds"] if in_step else moments,
        sent=means["sent"],
        losses=[_mean(own[step] for own, step in zip(losses, steps)) for steps in reached],
    )


def _smooth(losses: Sequence[float]) -> list[float]:
    """Each loss as the mean of some before it and itself."""
    window = max(1, round(SMOOTHED * len(losses)))
    return [_mean(losses[max(0, end - window) : end]) for end in range(1, len(losses) + 1)]


def _mean(losses: Iterable[float]) -> float:
    """The losses that are numbers: a worker without samples has none."""
    finite = [loss for loss in losses if not math.isnan(loss)]
    return statistics.fmean(finite) if finite else math.nan


def staleness_of(spans: Sequence[Sequence[Sequence[float]]]) -> Staleness | None:
    """How many updates of other workers the servers accept between a worker's pull and its own push; None without pushes.

    ``spans`` has, for each worker and step, the times of the pull's end and of the push's acceptance, by one clock. This is
    staleness as in Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS 2013), in
    updates.
    """
    pushes = [sorted(span[1] for span in worker) for worker in spans]
    between = [
        sum(
            bisect.bisect_right(other, pushed) - bisect.bisect_right(other, pulled)
            for other in pushes[:rank] + pushes[rank + 1 :]
        )
        for rank, worker in enumerate(spans)
        for pulled, pushed in worker
    ]
    return Staleness(statistics.fmean(between), max(between)) if between else None


def budgets_of(rows: Sequence[Row]) -> Budgets | None:
    """The fewest steps and seconds of any architecture, and the median of the bytes, which differ most; None if all failed."""
    curves = [row.curve for row in rows if row.curve.losses]
    if not curves:
        return None
    return Budgets(
        steps=min(curve.steps[-1] for curve in curves),
        seconds=min(curve.seconds[-1] for curve in curves),
        sent=statistics.median_low(curve.sent[-1] for curve in curves),
    )
