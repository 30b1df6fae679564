"""A rank that times all-reduces with and without a timeline, in turns. The last argument is a folder for the files.

Usage: timeline_worker.py ROUNDS FOLDER. Rank 0 prints its figures as JSON: for each size, each round's median seconds.
"""

import json
import pathlib
import statistics
import sys
import time

import numpy as np

import herringbone

CALLS = {8: 2000, 64 << 10: 500, 1 << 20: 200, 16 << 20: 15}
"""How many in a block, by bytes."""


def block(group, array, count):
    """The median seconds of calls that follow each other."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        group.all_reduce(array, op="max")
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main():
    """Takes the turns."""
    rounds, folder = int(sys.argv[1]), sys.argv[2]
    group = herringbone.init(timeout=120)
    figures = {}
    for size, count in CALLS.items():
        array = np.ones(size // 4, np.float32)
        block(group, array, count)
        figures[size] = {"off": [], "on": []}
        for number in range(rounds):
            for name in ("off", "on") if number % 2 else ("on", "off"):
                if name == "on":
                    group.start_timeline(folder)
                group.barrier()
                figures[size][name].append(block(group, array, count))
                group.barrier()
                group.stop_timeline()
    files = [path for path in pathlib.Path(folder).iterdir() if "rank0" in path.name]
    if group.rank == 0:
        figures["bytes"] = sum(path.stat().st_size for path in files)
        figures["left out"] = sum(path.read_text().count("events left out") for path in files)
        print(json.dumps(figures), flush=True)
    group.close()


if __name__ == "__main__":
    main()
