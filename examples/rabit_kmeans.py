"""Finds groups of handwritten digits (k-means), and continues where it was if processes are lost.

    herringbone launch -n 4 --max-attempts 9 -- python examples/rabit_kmeans.py

Kill any of its processes, even rank 0's, even several: the program ends with the same groups. It is written with the calls of
RABIT, and its data are 1,000 digits in testdata/digits.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import numpy as np

from herringbone import rabit

DIGITS = Path(__file__).parents[1] / "testdata" / "digits" / "digits.txt"
Array = np.ndarray[Any, np.dtype[Any]]


def digits() -> tuple[Array, Array]:
    """The pixels of each digit, and which digit it is."""
    words = [line.split() for line in DIGITS.read_text().splitlines()]
    pixels = np.array([[int(ink, 17) for ink in image] for image, _ in words], np.float64)
    return pixels, np.array([int(digit) for _, digit in words])


def nearest(points: Array, centres: Array) -> Array:
    """The number of each point's nearest centre."""
    distances = np.square(points[:, None, :] - centres[None, :, :]).sum(2)
    return np.asarray(distances.argmin(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each round, in which you can kill processes")
    options = parser.parse_args()

    rabit.init()
    pixels, answers = digits()
    # Each rank has its own digits.
    mine = slice(rabit.get_rank(), None, rabit.get_world_size())
    points, width = pixels[mine], pixels.shape[1]

    version, centres = rabit.load_checkpoint()
    if version == 0:
        # Rank 0 chooses. Its process can be lost here, too: the new one gets the values that the others have received.
        chosen = np.random.default_rng(1).choice(len(points), options.groups, replace=False)
        centres = rabit.broadcast(points[chosen], 0)

    while rabit.version_number() < options.rounds:

        def prepare(out: Array) -> None:
            """The sum and the number of this rank's points of each group."""
            out[:] = 0
            np.add.at(out, nearest(points, centres), np.column_stack([points, np.ones(len(points))]))

        sums = rabit.allreduce(np.empty((options.groups, width + 1)), rabit.SUM, prepare)
        centres = np.where(sums[:, -1:] > 0, sums[:, :-1] / np.maximum(sums[:, -1:], 1), centres)
        rabit.checkpoint(centres)
        if rabit.get_rank() == 0:
            print(f"round {rabit.version_number()} of {options.rounds}", flush=True)
        time.sleep(options.pause)

    # How often each digit is in each group, and so how many are in a group of mostly the same digit.
    found = np.zeros((options.groups, 10), np.int64)
    np.add.at(found, (nearest(points, centres), answers[mine]), 1)
    found = rabit.allreduce(found, rabit.SUM)
    share = found.max(1).sum() / found.sum()
    digest = hashlib.sha256(centres.tobytes()).hexdigest()[:16]
    print(f"{100 * share:.1f} % are in a group of mostly the same digit; digest {digest}", flush=True)
    rabit.finalize()


if __name__ == "__main__":
    main()
