"""Training that continues when workers die and come back: linear regression with numpy.

Start it with ``herringbone launch -n 3 -- python examples/elastic.py``, kill one of its processes (``kill -9``), and restart
that rank by hand, with the variables that the program prints.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import herringbone
import numpy as np

FEATURES, SAMPLES = 20, 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--least", type=int, default=1, help="the job ends if fewer ranks remain")
    parser.add_argument(
        "--wait", type=float, default=0, help="seconds to wait for a new process before the job continues without it"
    )
    parser.add_argument("--pause", type=float, default=0.02, help="seconds of work that each step simulates")
    parser.add_argument("--events", help="a file for events, as lines of JSON")
    options = parser.parse_args()

    rng = np.random.default_rng(0)
    truth = rng.normal(size=FEATURES)
    inputs = rng.normal(size=(SAMPLES, FEATURES))
    targets = inputs @ truth
    model = {"weights": np.zeros(FEATURES)}
    share: dict[str, Any] = {}

    def divide_the_data(group: herringbone.Communicator) -> None:
        """Each rank has its part of the samples; after a change of members the parts change."""
        share["mine"] = slice(group.rank, None, group.size)
        print(f"process {os.getpid()} is rank {group.rank} of {group.size}", flush=True)

    def load(state: Any) -> None:
        model.update(state)

    with herringbone.Elastic(
        lambda: model, load, least=options.least, wait=options.wait, on_change=divide_the_data, events=options.events
    ) as job:
        while job.steps < options.steps and not job.leaving:
            with job.step() as group:
                x, y = inputs[share["mine"]], targets[share["mine"]]
                error = x @ model["weights"] - y
                sums = np.concatenate([x.T @ error, [error @ error]])
                group.all_reduce(sums)
                # The state changes after the block's last collective, so that an interrupted step has changed nothing.
                model["weights"] = model["weights"] - 0.5 / SAMPLES * sums[:-1]
                loss = sums[-1] / SAMPLES
            time.sleep(options.pause)
            if job.steps % 50 == 0:
                print(f"step {job.steps}: loss {loss:.3e}", flush=True)
    print(f"done after {job.steps} steps: loss {loss:.9f}", flush=True)


if __name__ == "__main__":
    main()
