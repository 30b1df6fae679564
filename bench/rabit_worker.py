"""One rank of bench/rabit_figures.py."""

import json
import os
import signal
import statistics
import sys
import time

import numpy as np

import herringbone
from herringbone import rabit

SIZES = (8, 4 << 10, 1 << 20, 16 << 20)
"""Bytes of an all-reduce."""
MODEL = 100 << 20
"""Bytes of the model of a checkpoint."""
SMALL_MODEL = 10 << 20
"""Bytes of the model that a new process gets."""
CALLS = {8: 400, 4 << 10: 400, 1 << 20: 40, 16 << 20: 6}
"""In each round."""


def seconds(function, calls):
    """Of one of so many calls."""
    began = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - began) / calls


def resident():
    """How many bytes of memory this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def calls(rounds):
    """Seconds of calls with recovery and plain ones, in turns, and of a copy of as many bytes; and of checkpoints."""
    plain = herringbone.init()
    os.environ["HERRINGBONE_STORE"] = os.environ["OTHER_STORE"]
    rabit.init([])
    rabit.load_checkpoint()
    figures = {}
    for size in SIZES:
        # Results that are kept go to another place in each call, and so do the copies.
        values, targets = np.ones(size // 8), [np.ones(size // 8) for _ in range(CALLS[size])]
        taken = {"rabit": [], "plain": [], "copy": []}
        for _ in range(rounds + 1):
            taken["rabit"].append(seconds(lambda: rabit.allreduce(values, rabit.MAX), CALLS[size]))
            rabit.checkpoint(b"")
            taken["plain"].append(seconds(lambda: plain.all_reduce(values, "max"), CALLS[size]))
            places = iter(targets)
            taken["copy"].append(seconds(lambda places=places: np.copyto(next(places), values), CALLS[size]))
        figures[size] = {name: statistics.median(rest[1:]) for name, rest in taken.items()}
    model = np.ones(MODEL // 8)
    copied = seconds(lambda: model.copy(), 3)
    for name, checkpoint in (("lazy", rabit.lazy_checkpoint), ("copied", rabit.checkpoint)):
        rabit.checkpoint(b"")
        before = resident()
        spent = seconds(lambda: checkpoint(model), 1)
        figures[name] = {"seconds": spent, "bytes": resident() - before, "copy": copied}
    rabit.finalize()
    plain.close()
    return figures


def recovery():
    """Seconds from the start of a new process's program, and from its call of init, until all go on together."""
    began = time.time()
    rabit.init([])
    version, model = rabit.load_checkpoint()
    if version == 0:
        model = np.zeros(SMALL_MODEL // 8)
        rabit.checkpoint(model)
    is_new = os.environ["DMLC_NUM_ATTEMPT"] != "0"
    for call in range(20):
        if call == 10 and rabit.get_rank() == 5 and not is_new:
            os.kill(os.getpid(), signal.SIGKILL)
        rabit.allreduce(np.ones(1000), rabit.SUM, prepare_fun=lambda _: prepared.append(time.time()))
        if is_new and prepared:
            break
    done = time.time()
    for _ in range(call + 1, 20):
        rabit.allreduce(np.ones(1000), rabit.SUM)
    rabit.finalize()
    with open("/proc/self/stat") as file:
        ticks = int(file.read().rsplit(")", 1)[1].split()[19])
    with open("/proc/stat") as file:
        boot = next(int(line.split()[1]) for line in file if line.startswith("btime"))
    return {"from init": done - began, "from start": done - boot - ticks / os.sysconf("SC_CLK_TCK")} if is_new else None


prepared = []


def main():
    """Does what it is started for; one rank prints the figures."""
    figures = calls(int(sys.argv[2])) if sys.argv[1] == "calls" else recovery()
    rank = os.environ.get("HERRINGBONE_RANK") or os.environ["RANK"]
    if figures is not None and (sys.argv[1] == "recovery" or rank == "0"):
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
