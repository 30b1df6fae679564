"""Jobs that take turns in the same processes, one on each host of a lab, and the table of their times."""

import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def turns(spaces, processes, options, jobs, topology):
    """The lines of rank 0.

    `jobs` has for each job its name, what is forced, whether it knows the topology, and the fold order, if that is another than ranks'.
    """
    setup = {
        "address": spaces.address(0),
        "algorithms": jobs,
        "counts": [1],
        "most": 10.0,
        "port": 29500,
        "ranks": options.hosts,
        "rounds": options.rounds,
        "single": options.rounds,
        "sizes": options.sizes,
        "token": "turns of the bench",
        "topology": topology,
    }
    environment = os.environ | {"HERRINGBONE_TOKEN": setup["token"], "HERRINGBONE_LOG": "off", "OMP_NUM_THREADS": "1"}
    environment.pop("HERRINGBONE_TOPOLOGY", None)
    command = [sys.executable, str(ROOT / "bench" / "lab_links_worker.py")]
    ranks = [
        processes.start(
            [*command, json.dumps(setup | {"rank": rank})],
            rank,
            env=environment,
            stdout=subprocess.PIPE if rank == 0 else None,
        )
        for rank in range(options.hosts)
    ]
    lines = [json.loads(text) for text in ranks[0].stdout]
    processes.finish(ranks)
    return lines


def table(lines, options, jobs, what):
    """The page's table: medians, and each one relative to K/B of `what`, which is as fast as `options.slow` says."""
    names = [job[0] for job in jobs]
    head = ["bytes", f"K/B of {what}", *names]
    rows = [head, ["---:"] * len(head)]
    for size in options.sizes:
        bound = size * 8 / (options.slow * 1e6)
        cells = []
        for name in names:
            taken = [line["seconds"] for line in lines if line.get("algorithm") == name and line["bytes"] == size]
            median = statistics.median(taken)
            cells.append(f"{1e3 * median:.0f} ms ({median / bound:.2f})")
        rows.append([str(size), f"{1e3 * bound:.0f} ms", *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
