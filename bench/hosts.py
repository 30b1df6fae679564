"""Times all-reduce on hosts of several ranks, which the rigs have one of each: Herringbone in either fold order, and Gloo.

Network namespaces of the rigs (--rigs) are the hosts, and links limited as there; the programs take turns. Prints medians of
the rounds. Exit code 0: every result of ours was right.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import statistics
import sys
import tempfile

from figures import duration, human, three_digits
from processes import Cluster, JobFailed, Processes
from rigs import LOCK, ROOT, TOKEN
from run import numbers, size
from text_tables import printed

BY_HOSTS = {"HERRINGBONE_FOLD_ORDER": "hosts"}


def programs(options):
    """What takes turns: a name, the command of a rank, what is in its environment."""
    ours = [str(options.binary), "bench", "--rig"]
    gloo = [sys.executable, str(options.rigs / "peers" / "bench_torch.py")]
    return {"herringbone": (ours, {}), "by hosts": (ours, BY_HOSTS), "gloo": (gloo, {})}


def layout(text):
    """`3x6` as the host of each rank: three hosts of six."""
    hosts, each = numbers(text.replace("x", ","))
    return [rank // each for rank in range(hosts * each)]


def run(options, hosts, cluster, command, environment):
    """One program once: for each size the seconds of an all-reduce, and of all cores together."""
    with tempfile.TemporaryDirectory(prefix="herringbone-hosts-") as folder, Processes(cluster) as processes:
        asked = {"BENCH_SIZES": ",".join(map(str, options.sizes)), "BENCH_BUDGET_S": str(options.budget), "BENCH_OUT": folder}
        environment = os.environ | environment | asked | {"HERRINGBONE_TOKEN": TOKEN} | processes.place(len(hosts))
        processes.run(command, environment, hosts)
        return figures(folder, len(hosts))


def figures(folder, ranks):
    """What the ranks of a run have left: {bytes: (seconds, CPU seconds of all)}."""
    lines = [pathlib.Path(folder, f"r{rank}.jsonl").read_text().splitlines() for rank in range(ranks)]
    found = {}
    for of_ranks in zip(*(map(json.loads, each) for each in lines), strict=True):
        if not all(line["ok"] for line in of_ranks):
            raise JobFailed(f"a result of {of_ranks[0]['bytes']} bytes is wrong")
        cpu = sum(line["cpu_s"] / line["iters"] for line in of_ranks)
        found[of_ranks[0]["bytes"]] = (of_ranks[0]["med_s"], cpu)
    return found


def measure(options):
    """A row for each layout and size, as soon as it is there."""
    for text in options.hosts:
        hosts, runs = layout(text), {name: [] for name in programs(options)}
        with open(LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with Cluster(options.rigs, hosts[-1] + 1, options.rate) as cluster:
                for round_ in range(options.rounds):
                    for name, (command, environment) in programs(options).items():
                        print(f"{text}: round {round_ + 1} of {options.rounds}, {name}", file=sys.stderr)
                        runs[name].append(run(options, hosts, cluster, command, environment))
        for bytes_ in options.sizes:
            yield row(text, bytes_, {name: [each[bytes_] for each in of_name] for name, of_name in runs.items()})


def row(hosts, bytes_, runs):
    """The medians of a size: milliseconds, and CPU seconds for 10^9 bytes of the buffer."""
    median = {name: [statistics.median(column) for column in zip(*each)] for name, each in runs.items()}
    ms = {name: seconds * 1e3 for name, (seconds, _) in median.items()}
    cpu = {name: cpu / bytes_ * 1e9 for name, (_, cpu) in median.items()}
    return {"hosts": hosts, "bytes": bytes_, "ms": ms, "cpu": cpu}


def cells(row):
    """A row as the table shows it."""
    times = [duration(ms / 1e3) for ms in row["ms"].values()]
    ratios = [f"{row['ms'][name] / row['ms']['gloo']:.2f}" for name in ("herringbone", "by hosts")]
    return [row["hosts"], human(row["bytes"]), *times, *ratios, *map(three_digits, row["cpu"].values())]


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--rigs", type=pathlib.Path, required=True, default=argparse.SUPPRESS, help="the folder of the rigs")
    layouts = "hosts x ranks on each"
    option("--hosts", type=lambda text: text.split(","), default="2x3,2x6,3x3,3x6", metavar="LIST", help=layouts)
    sizes = "bytes of the buffer"
    option("--sizes", type=lambda text: list(map(size, text.split(","))), default="64K,1M,8M", metavar="LIST", help=sizes)
    option("--rate", type=int, default=500, help="Mbit/s of each link, both ways")
    option("--rounds", type=int, default=3, help="turns of each program")
    option("--budget", type=float, default=0.3, help="seconds for each size in a round")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone", help="ours")
    option("--json", action="store_true", help="an object for each row, not a table")
    return parser.parse_args()


def main():
    options = arguments()
    options.rigs, options.binary = options.rigs.resolve(), options.binary.resolve()
    names = list(programs(options))
    head = ["hosts", "size", *names, "herringbone / gloo", "by hosts / gloo", *(f"CPU-s/GB, {name}" for name in names)]
    with contextlib.suppress(KeyboardInterrupt):
        list(printed(head, measure(options), cells, options.json))


if __name__ == "__main__":
    try:
        main()
    except JobFailed as problem:
        sys.exit(f"{problem}")
