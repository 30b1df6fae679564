"""The simulator's prediction of an architecture's communication time in a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from .architectures import Choice
from .options import Options

__all__ = ["predicted", "simulation_of"]


def simulation_of(options: Options, choice: Choice, size: int) -> list[str] | None:
    """The command line of ``herringbone simulate`` for an all-reduce of ``size`` bytes over links of ``options.rate``, or None
    if the architecture has no all-reduce."""
    if choice.architecture.exchange not in ("sum", "average") or options.rate is None or options.workers == 1:
        return None
    words = ["simulate", "--json", "--bytes", str(size), "--ranks", str(options.workers), "--per-host", "1"]
    words += ["--shared-cores", str(len(os.sched_getaffinity(0))), "--gbps", f"{options.rate / 1000:g}"]
    if choice.architecture.helpers == "reducers":
        words += ["--reducers", str(options.servers), "--algorithm", "reduction_server"]
    return words


def predicted(options: Options, choice: Choice, size: int) -> float | None:
    """Seconds of a step with limited links, or None without a prediction. For an average every H steps it is 1/H of the
    average's."""
    words = simulation_of(options, choice, size)
    if words is None:
        return None
    done = subprocess.run([sys.executable, "-m", "herringbone", *words], capture_output=True, text=True)
    if done.returncode != 0:
        return None
    seconds = float(json.loads(done.stdout)["seconds"])
    return seconds / choice.argument if choice.architecture.exchange == "average" else seconds
