"""The demo: the same training twice, through Herringbone with reducers and through Gloo, and what it showed.

Starts the reducers and, under torchrun, the workers of demo/train.py; compares the ranks with each other
and the two runs as a whole; prints what moved where and draws it. Whatever happens, no process stays
behind. Exit code 0: all ranks hold the same bits and both runs agree; 1: they do not, or a process failed.
"""

import argparse
import json
import os
import pathlib
import secrets
import signal
import sys
import tempfile

import numpy

from picture import human, picture

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "bench"))

from processes import JobFailed, Processes

RTOL, ATOL = 1e-3, 1e-6


def train(processes, backend, workers, epochs, out, environment):
    """Trains through `backend`; returns what every rank left behind, and rank 0's parameters."""
    out.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    script = [HERE / "train.py", "--backend", backend, "--epochs", epochs, "--out", out]
    code = processes.start(torchrun + script, env=environment | {"OMP_NUM_THREADS": "1"}).wait()
    if code != 0:
        raise JobFailed(f"the training through {backend} ended with exit code {code}")
    ranks = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(workers)]
    with numpy.load(out / "parameters.npz") as parameters:
        return ranks, dict(parameters)


def both_runs(options, folder):
    """Trains through Herringbone and then through Gloo; returns both results and the reducers' accounts."""
    with Processes() as processes:
        token = {"HERRINGBONE_TOKEN": secrets.token_hex(16)}
        reducers = [processes.reducer(os.environ | token) for _ in range(options.reducers)]
        addresses = ",".join(reducer.address for reducer in reducers)
        print(f"{options.workers} workers, {options.reducers} reducers at {addresses}", flush=True)
        settings = token | {"HERRINGBONE_REDUCERS": addresses, "HERRINGBONE_ALGORITHM": "reduction_server"}
        size = options.workers, options.epochs
        ours = train(processes, "herringbone", *size, folder / "herringbone", os.environ | settings)
        accounts = [reducer.stop() for reducer in reducers]
        theirs = train(processes, "gloo", *size, folder / "gloo", os.environ)
        return ours, theirs, accounts


def difference(ours, theirs):
    """The greatest |a - b| over all parameters, and whether all are equal within the tolerance."""
    greatest = max(float(numpy.max(numpy.abs(ours[name] - theirs[name]))) for name in theirs)
    equal = all(numpy.allclose(ours[name], theirs[name], rtol=RTOL, atol=ATOL) for name in theirs)
    return greatest, equal


def summary(ranks):
    """What table and picture say about either run."""
    first = ranks[0]
    return {
        "accuracy": [epoch["accuracy"] for epoch in first["history"]],
        "step_seconds": first["seconds"] / first["steps"],
        "wait_seconds": sum(rank["waiting"] for rank in ranks) / len(ranks) / first["steps"],
        "steps": first["steps"],
        "parameters": first["parameters"],
    }


def account(ranks, reducers):
    """What the engine counted on each worker and each reducer."""
    stats = [rank["stats"] for rank in ranks]
    all_reduces = stats[0]["operations"]["all_reduce"]
    between = [[each["workers_shm"], each["workers_tcp"]] for each in stats]
    return {
        "reducers": len(reducers),
        "reducers_sent": [each["sent"] for each in reducers],
        "reducers_received": [each["received"] for each in reducers],
        "to_reducers": [each["reducers_tcp"]["sent"] for each in stats],
        "from_reducers": [each["reducers_tcp"]["received"] for each in stats],
        "to_workers": [sum(way["sent"] for way in ways) for ways in between],
        "operations": sum(sum(algorithms.values()) for algorithms in stats[0]["operations"].values()),
        "all_reduces": sum(all_reduces.values()),
        "algorithm": max(all_reduces, key=all_reduces.get),
    }


def table(run, gloo):
    """Prints accuracy by epoch, then what moved where."""
    print(f"\n{'epoch':>7}{'Herringbone':>14}{'Gloo':>10}")
    for epoch, (ours, theirs) in enumerate(zip(run["accuracy"], gloo["accuracy"]), 1):
        print(f"{epoch:>7}{ours:>14.2%}{theirs:>10.2%}")
    steps = run["steps"]
    print(f"\n{'what moved where':<32}{'bytes':>12}{'per step':>12}{'per process':>13}")
    for way, counts in (
        ("sent by workers to reducers", run["to_reducers"]),
        ("received by reducers", run["reducers_received"]),
        ("sent by reducers", run["reducers_sent"]),
        ("received by workers of reducers", run["from_reducers"]),
        ("sent by workers to workers", run["to_workers"]),
    ):
        total = sum(counts)
        print(f"{way:<32}{human(total):>12}{human(total / steps):>12}{human(total / len(counts)):>13}")
    print(f"\n{'operations per worker':<32}{run['operations']:>12}")
    print(f"{'of them, all-reduces':<32}{run['all_reduces']:>12}  {run['algorithm']}")
    print(f"\n{'seconds per step':<32}{'Herringbone':>12}{'Gloo':>12}")
    print(f"{'all':<32}{run['step_seconds']:>12.3f}{gloo['step_seconds']:>12.3f}")
    print(f"{'of them, waiting for sums':<32}{run['wait_seconds']:>12.3f}{gloo['wait_seconds']:>12.3f}")
    print("(reducers spare links between hosts; on one host, as here, they are a detour that was asked for)\n")


def report(results, options):
    """Compares, prints and draws; returns whether everything agreed."""
    (ours, our_parameters), (theirs, gloo_parameters), reducers = results
    run, gloo = summary(ours) | account(ours, reducers), summary(theirs)
    digests = {rank["digest"] for rank in ours}
    greatest, equal = difference(our_parameters, gloo_parameters)
    table(run, gloo)
    run["facts"] = [
        f"{'The same bits' if len(digests) == 1 else 'DIFFERENT BITS'} on all {len(ours)} ranks: "
        f"{run['parameters']:,} parameters, sha256 {', '.join(sorted(digests))}",
        f"{'Equal to' if equal else 'DIFFERENT FROM'} the same training through Gloo within rtol {RTOL:g} "
        f"(atol {ATOL:g}): the greatest difference of a parameter is {greatest:.1e}",
    ]
    print("\n".join(run["facts"]))
    options.report.write_text(picture(run, gloo))
    print(options.report)
    return len(digests) == 1 and equal


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--workers", type=int, default=4, help="processes that train (4)")
    arguments.add_argument("--reducers", type=int, default=2, help="processes that add up for them (2)")
    arguments.add_argument("--epochs", type=int, default=6, help="how often all digits are seen (6)")
    drawn = pathlib.Path("demo-report.svg")
    arguments.add_argument("--report", type=pathlib.Path, default=drawn, help=f"the picture to write ({drawn})")
    options = arguments.parse_args()
    if min(options.workers, options.reducers, options.epochs) < 1:
        arguments.error("at least one worker, one reducer and one epoch")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="herringbone-demo-") as folder:
            results = both_runs(options, pathlib.Path(folder))
    except JobFailed as failure:
        sys.exit(f"demo: {failure}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
    if not report(results, options):
        sys.exit("demo: the runs do not agree")


if __name__ == "__main__":
    main()
