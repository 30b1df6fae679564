"""Times DistributedDataParallel training through Herringbone and Gloo, in turns, and draws what hides under what.

Starts its own workers, on this host or (--rigs) one per host of the rigs' cluster with limited links. Prints the steps
per second of each backend, of the same training without communication ("alone"), and their ratio. Exit code 0: all
ranks hold the same parameters, and the backends come to the same ones within 1e-5.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import secrets
import signal
import statistics
import sys
import tempfile

import machine
import timeline
from processes import Cluster, Here, JobFailed, Processes
from rigs import LOCK

HERE = pathlib.Path(__file__).resolve().parent
TOLERANCE = 1e-5
TRACED_STEPS = 5


def backends(options):
    """The backends that take turns, ours first."""
    return ["herringbone", "gloo"] if options.backend == "both" else [options.backend]


def train(options, folder):
    """Runs the workers, and reducers beside them; returns what each rank has left."""
    count = options.workers + options.reducers
    with contextlib.ExitStack() as stack:
        fcntl.flock(stack.enter_context(open(LOCK, "w")), fcntl.LOCK_EX)
        hosts = stack.enter_context(Cluster(options.rigs, count, options.rate) if options.rigs else Here())
        processes = stack.enter_context(Processes(hosts))
        environment = os.environ | {"HERRINGBONE_TOKEN": secrets.token_hex(16)} | processes.place(options.workers)
        reducers = [processes.reducer(environment, options.workers + index) for index in range(options.reducers)]
        if reducers:
            environment["HERRINGBONE_REDUCERS"] = ",".join(reducer.address for reducer in reducers)
        processes.run(worker(options, folder), environment, range(options.workers))
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(options.workers)]


def worker(options, folder):
    """The command of a worker."""
    words = [sys.executable, HERE / "ddp_worker.py", "--backends", ",".join(backends(options)), "--out", folder]
    for name in ("megabytes", "compute", "rounds", "steps"):
        words += [f"--{name}", getattr(options, name)]
    return [*words, "--traced", TRACED_STEPS if options.trace else 0]


def summary(ranks, options):
    """The figures; the seconds of a step are the slowest rank's in each round."""
    names = ranks[0]["seconds"]
    seconds = {name: [max(each) for each in zip(*(rank["seconds"][name] for rank in ranks))] for name in names}
    digests = {name: {rank["digests"][name] for rank in ranks} for name in ranks[0]["digests"]}
    result = {
        "machine": machine.machine(),
        "workers": options.workers,
        "reducers": options.reducers,
        "rate": options.rate if options.rigs else None,
        "parameters": ranks[0]["parameters"],
        "layers": ranks[0]["layers"],
        "compute": options.compute,
        "seconds": seconds,
        "steps_per_second": {name: 1 / statistics.median(rounds) for name, rounds in seconds.items()},
        "same_on_all_ranks": {name: len(found) == 1 for name, found in digests.items()},
        "difference": max(rank["difference"] for rank in ranks),
    }
    result["agree"] = (
        all(result["same_on_all_ranks"].values()) and all(rank["finite"] for rank in ranks) and result["difference"] <= TOLERANCE
    )
    if {"herringbone", "gloo"} <= seconds.keys():
        result["ratios"] = [theirs / ours for ours, theirs in zip(seconds["herringbone"], seconds["gloo"])]
        result["ratio"] = statistics.median(result["ratios"])
    if options.trace:
        result["hidden"] = {name: timeline.hidden(steps) for name, steps in ranks[0]["trace"].items()}
    return result


def about(result):
    """The job in words."""
    reducers = f", {result['reducers']} reducers" if result["reducers"] else ""
    links = f", {result['rate']} Mbit/s links" if result["rate"] else ", one host"
    size = f"{result['parameters'] * 4 / 1e6:.0f} MB of gradients"
    rows = "1 row" if result["compute"] == 1 else f"{result['compute']} rows"
    return f"{result['workers']} workers{reducers}{links}, {size}, {rows} a batch"


def table(result):
    """What is printed."""
    yield about(result)
    yield f"{'':<14}{'steps/s':>9}{'s a step':>10}   least..most"
    for name, rounds in result["seconds"].items():
        speed, median = result["steps_per_second"][name], statistics.median(rounds)
        yield f"{name:<14}{speed:>9.2f}{median:>10.4f}   {min(rounds):.4f}..{max(rounds):.4f}"
    if "ratio" in result:
        ratios = result["ratios"]
        yield f"herringbone / gloo: {result['ratio']:.2f} ({min(ratios):.2f}..{max(ratios):.2f} over the rounds)"
    for name, share in result.get("hidden", {}).items():
        yield f"{name}: {share:.0%} of the communication is hidden under the backward pass (median step)"
    for name, same in result["same_on_all_ranks"].items():
        yield f"{name}: {'the same bits' if same else 'DIFFERENT BITS'} on all ranks"
    if len(result["same_on_all_ranks"]) > 1:
        verdict = "equal" if result["difference"] <= TOLERANCE else "DIFFERENT"
        yield f"backends: {verdict}, the greatest difference of a parameter is {result['difference']:.1e}"


def draw(ranks, result, path):
    """Writes the Chrome trace of all ranks, and beside it the picture of rank 0."""
    traces = [rank["trace"] for rank in ranks]
    path.write_text(json.dumps(timeline.chrome(traces)))
    picture = path.with_suffix(".svg")
    picture.write_text(timeline.timeline(traces[0], about(result)))
    return picture


def arguments():
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--backend", choices=["both", "herringbone", "gloo"], default="both", help="what takes turns (both)")
    option("--workers", type=int, default=4, help="processes that train (4)")
    option("--reducers", type=int, default=0, help="herringbone serve processes for herringbone (0)")
    option("--megabytes", type=float, default=100, help="of parameters, 10^6 bytes each (100)")
    compute = "rows of a batch: with 1 communication dominates, with some hundreds it can hide under backward (1)"
    option("--compute", type=int, default=1, metavar="ROWS", help=compute)
    option("--rounds", type=int, default=5, help="turns of each backend (5)")
    option("--steps", type=int, default=5, help="steps of a turn (5)")
    option("--trace", type=pathlib.Path, metavar="FILE", help="a Chrome trace, and a picture of it beside: FILE with .svg")
    option("--json", type=pathlib.Path, metavar="FILE", help="the figures")
    option("--rigs", type=pathlib.Path, metavar="FOLDER", help="one host per process, in the rigs' cluster (as root)")
    option("--rate", type=int, default=500, help="Mbit/s of each link of the cluster, both ways (500)")
    options = parser.parse_args()
    if min(options.workers, options.compute, options.rounds, options.steps) < 1 or options.reducers < 0:
        parser.error("at least one worker, one row, one round and one step")
    if options.trace and options.trace.suffix == ".svg":
        parser.error("--trace names the Chrome trace, such as ddp.json; the picture is written beside it")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="herringbone-ddp-") as folder:
            ranks = train(options, pathlib.Path(folder))
    except JobFailed as failure:
        sys.exit(f"ddp: {failure}")
    except KeyboardInterrupt:
        sys.exit("ddp: interrupted")
    result = summary(ranks, options)
    print("\n".join(table(result)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    if options.trace:
        print(draw(ranks, result, options.trace))
    sys.exit(0 if result["agree"] else 1)


if __name__ == "__main__":
    main()
