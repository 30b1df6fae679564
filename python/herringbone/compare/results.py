"""What the workers' figures come to: one row for each architecture, and its curves. Pure: no clock, no files, no torch."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["AXES", "Budgets", "Curve", "Row", "budgets_of", "failed", "row_of", "staleness_of"]

AXES = ("steps", "seconds", "sent")
"""What a loss is shown against: a worker's steps, seconds, and bytes that it has sent."""
SMOOTHED = 0.05
"""A curve's point is the mean of the losses of so much of the training before it."""


@dataclass(frozen=True)
class Curve:
    """The loss after each step: means of all workers, of which one may be further than another."""

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
    """What an architecture took, and what it came to. Figures of steps are means of workers of each worker's median."""

    label: str
    curve: Curve
    error: str = ""
    """Why it failed; then nothing else is known."""
    figures: Mapping[str, float | None] = field(default_factory=dict)
    """By the names of :data:`herringbone.compare.report.COLUMNS`. None: it does not apply."""
    about: str = ""
    """What was trained."""


@dataclass(frozen=True)
class Budgets:
    """Where losses are compared: what all architectures have spent at least, of bytes what half of them have."""

    steps: float
    seconds: float
    sent: float


def failed(label: str, error: str) -> Row:
    """The row of an architecture that came to nothing."""
    return Row(label, Curve([], [], [], []), error)


def row_of(label: str, measured: Mapping[str, Any], predicted: float | None) -> Row:
    """An architecture's row.

    ``measured`` is what :meth:`herringbone.compare.job.Job.run` returns, ``predicted`` the seconds of communication in a step.
    """
    workers = measured["workers"]
    curve = _curve(workers)
    steps = [len(worker["losses"]) for worker in workers]
    per_step = statistics.fmean(_median_step(worker["seconds"]) for worker in workers)
    computing = statistics.fmean(worker["computing"] for worker in workers)
    # In lockstep all wait for the sleep of one; that is no communication.
    slept = max(statistics.fmean(worker["slept"]) for worker in workers)
    spans = [worker["spans"] for worker in workers]
    figures: dict[str, float | None] = {
        "steps": statistics.fmean(steps),
        "seconds": max(worker["seconds"][-1] for worker in workers),
        "step_s": per_step,
        "computing_s": computing,
        "other_s": max(0.0, per_step - computing - slept),
        "predicted_s": predicted,
        "cpu_s": sum(worker["cpu"] for worker in workers) + measured["servers_cpu"],
        "servers_cpu_s": measured["servers_cpu"],
        "sent_per_step": statistics.fmean(worker["sent"][-1] / len(worker["sent"]) for worker in workers),
        "received_per_step": statistics.fmean(worker["received"][-1] / len(worker["received"]) for worker in workers),
        "staleness": staleness_of(spans) if any(spans) else None,
        "accuracy": statistics.fmean(worker["accuracy"] for worker in workers),
    }
    return Row(label, curve, figures=figures, about=workers[0]["about"])


def _median_step(ended: Sequence[float]) -> float:
    """Seconds of a step, by when each ended."""
    return statistics.median(end - start for start, end in zip([0.0, *ended], ended))


def _curve(workers: Sequence[Mapping[str, Any]]) -> Curve:
    """Point k is step k of all workers that made it, as means; a worker without a loss in a step is left out of that loss."""
    count = min(len(worker["losses"]) for worker in workers)

    def mean(name: str, step: int) -> float:
        values = [worker[name][step] for worker in workers if not math.isnan(worker[name][step])]
        return statistics.fmean(values) if values else math.nan

    losses = [mean("losses", step) for step in range(count)]
    window = max(1, round(SMOOTHED * count))
    smooth = [statistics.fmean(losses[max(0, end - window) : end]) for end in range(1, count + 1)]
    return Curve(
        steps=[float(step) for step in range(1, count + 1)],
        seconds=[mean("seconds", step) for step in range(count)],
        sent=[mean("sent", step) for step in range(count)],
        losses=smooth,
    )


def staleness_of(spans: Sequence[Sequence[Sequence[float]]]) -> float:
    """How many updates of other workers a server takes, on average, between a worker's pull and its own push.

    ``spans`` has for each worker and step when it had pulled and when its push was taken, by one clock. This is the staleness of
    Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server" (NIPS 2013), counted in updates.
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
    return statistics.fmean(between) if between else 0.0


def budgets_of(rows: Sequence[Row]) -> Budgets | None:
    """The least steps and seconds of an architecture, and the median of the bytes, which differ most; None if all failed."""
    curves = [row.curve for row in rows if row.curve.losses]
    if not curves:
        return None
    return Budgets(
        steps=min(curve.steps[-1] for curve in curves),
        seconds=min(curve.seconds[-1] for curve in curves),
        sent=statistics.median_low(curve.sent[-1] for curve in curves),
    )
