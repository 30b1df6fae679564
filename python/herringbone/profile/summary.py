"""The printed summary of a profile."""

from __future__ import annotations

from .document import Profile

__all__ = ["summary"]

PARTS = ("accumulation", "forward", "backward", "tail", "optimizer", "other")
ABOUT = {
    "accumulation": "earlier passes of a step",
    "forward": "the model's forward",
    "backward": "until the last gradient",
    "tail": "after the last gradient",
    "optimizer": "its step",
    "other": "data, loss and the rest",
}


def summary(profile: Profile) -> str:
    """A measured profile as a few lines."""
    run, measured = profile.run, profile.measured
    assert run is not None and measured is not None
    count = sum(1 for _ in profile.parameters())
    lines = [
        f"{profile.name}: {profile.elements:,} elements in {count} parameters of {len(profile.layers)} layers",
        f"rank {run.rank} of {run.ranks}, {run.threads} threads, {run.cores} cores; medians over {measured.steps} steps, in ms:",
        f"  {'step':<14}{measured.step_seconds * 1e3:>10.3f}",
    ]
    for part in PARTS:
        seconds = getattr(measured, f"{part}_seconds")
        if seconds or part != "accumulation":
            lines.append(f"  {part:<14}{seconds * 1e3:>10.3f}  {ABOUT[part]}")
    if profile.buckets is not None:
        sizes = [sum(list(profile.parameters())[index].bytes for index in bucket) for bucket in profile.buckets.rebuilt]
        lines.append("buckets in MiB: " + ", ".join(f"{size / 2**20:.2f}" for size in sizes))
    return "\n".join(lines)
