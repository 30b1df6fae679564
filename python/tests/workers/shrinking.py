"""Ranks that sum until they are killed; those that are left go on, and say so, until nobody is lost for a while."""

from __future__ import annotations

import os
import sys
import time

import herringbone
import numpy as np

COUNT = 50_000
QUIET_SECONDS = 1.5
"""After so long without a loss the job ends."""


calls: list[str] = []
"""Those of the present group that this rank has completed."""


def checked(comm: herringbone.Communicator, members: list[int], own: int) -> None:
    """Sum what each rank has, which is its first rank, and average it; both are exact."""
    array = np.full(COUNT, float(own), dtype=np.float32)
    total = comm.all_reduce(array.copy())
    calls.append("sum")
    assert (total == sum(members)).all(), (total[0], members)
    mean = comm.all_reduce(array, "average")
    calls.append("average")
    assert np.allclose(mean, sum(members) / len(members)), (mean[0], members)


def go_on(comm: herringbone.Communicator, own: int, least: int) -> tuple[herringbone.Communicator, list[int]]:
    """The group of the ranks that are left, and who they are; again, if one is lost just then."""
    while True:
        comm = comm.shrink(least, timeout=float(os.environ.get("PATIENCE", "20")))
        # Calls wait for each other, so no rank is further than one call ahead.
        done = comm.completed_before
        assert done is not None and len(calls) - 1 <= done <= len(calls), (done, len(calls))
        calls.clear()
        try:
            sizes = np.zeros(comm.size, dtype=np.int64)
            comm.all_gather(np.array([own]), out=sizes)
            calls.append("gather")
            checked(comm, sizes.tolist(), own)
            return comm, sizes.tolist()
        except herringbone.PeerLostError as error:
            print(f"lost {sorted(error.ranks)}", flush=True)


def main() -> None:
    least = int(sys.argv[1])
    comm = herringbone.init()
    own, members = comm.rank, list(range(comm.size))
    print(f"began {own}", flush=True)
    last = time.monotonic()
    while True:
        try:
            checked(comm, members, own)
            over = np.array([time.monotonic() - last > QUIET_SECONDS], dtype=np.int32)
            comm.all_reduce(over, "min")
            calls.append("min")
            if over[0] and len(sys.argv) == 2:
                break
        except herringbone.PeerLostError as error:
            print(f"lost {sorted(error.ranks)}", flush=True)
            began = time.monotonic()
            if os.environ.get("SULKS") == str(own):
                time.sleep(60)
            try:
                comm, members = go_on(comm, own, least)
            except (herringbone.PeerLostError, herringbone.OperationTimeoutError) as reason:
                print(f"ends: {reason}", flush=True)
                return
            print(f"goes on as rank {comm.rank} of {members} after {time.monotonic() - began:.3f} s", flush=True)
            last = time.monotonic()
    print("done", flush=True)
    comm.close()


if __name__ == "__main__":
    main()
