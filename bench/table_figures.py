"""Times tables on a parameter server: sparse rows beside torch's RPC, dense ones beside reducers, bounded steps beside sync ones.

Four workers and two servers on this host; the contenders take turns, and torch's RPC is stopped where it is another's turn. Prints a
table of ratios, and whether the goals are met. Exit code 0: all ran.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import signal
import statistics
import subprocess
import sys

from machine import bullets, machine
from ports import free_port
from text_tables import table as markdown

HERE = pathlib.Path(__file__).resolve().parent
WORKERS, SERVERS = 4, 2
GOALS = {"sparse": 3.0, "dense": 1 / 1.2, "bounded": 1.3}
"""Of the other contender's seconds by the tables': torch's RPC, an all-reduce, and sync."""
NAMES = {
    "sparse": "10,000 rows of 64 f32 of 1,000,000, pushed and pulled, by a server written with torch's RPC",
    "dense": "25 MiB pushed and pulled in sync: an all-reduce's time with 2 reducers by its time",
    "bounded": "bounded(4) by sync, where in each step one worker at random sleeps twice its own step",
}


def served(stack, token, more):
    """Starts a server, and returns its address."""
    command = [sys.executable, "-m", "herringbone", "serve", "--listen", "127.0.0.1:0", *more]
    environment = os.environ | {"HERRINGBONE_TOKEN": token}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack.callback(server.wait)
    stack.callback(server.terminate)
    return server.stdout.readline().split()[-1]


class Job:
    """Processes of one contender."""

    def __init__(self, stack, role, ranks, settings):
        environment = os.environ | {"WORKERS": str(WORKERS), "SERVERS": str(SERVERS)} | settings
        self.processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, HERE / "table_worker.py", role],
                    env=environment | {"RANK": str(rank), "HERRINGBONE_RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(ranks)
        ]
        self.workers = self.processes[:WORKERS]
        self.read("ready")

    def read(self, wanted=None):
        """A line of each worker."""
        lines = [worker.stdout.readline().strip() for worker in self.workers]
        if not all(lines) or (wanted and {*lines} != {wanted}):
            sys.exit("a process failed; its error is above")
        return lines

    def seconds(self, work, calls):
        """The slowest worker's seconds for this number of calls."""
        for worker in self.workers:
            worker.stdin.write(f"{work} {calls}\n")
            worker.stdin.flush()
        return max(map(float, self.read()))

    def signal(self, number):
        """Stops all processes, or lets them continue."""
        for process in self.processes:
            process.send_signal(number)

    def end(self):
        """Lets them end by themselves."""
        for process in self.processes:
            process.stdin.close()
        if {process.wait() for process in self.processes} != {0}:
            sys.exit("a process failed; its error is above")


def measured(options):
    """The rounds' seconds of each contender, two in turn."""
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        settings = {
            "HERRINGBONE_TOKEN": token,
            "HERRINGBONE_TABLES": ",".join(served(stack, token, ["--tables"]) for _ in range(SERVERS)),
            "HERRINGBONE_REDUCERS": ",".join(served(stack, token, []) for _ in range(SERVERS)),
            "HERRINGBONE_ALGORITHM": "reduction_server",
            "HERRINGBONE_STORE": f"127.0.0.1:{free_port()}",
            "HERRINGBONE_WORLD_SIZE": str(WORKERS),
        }
        tables = Job(stack, "tables", WORKERS, settings)
        rpc = Job(stack, "rpc", WORKERS + SERVERS, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())})

        def by_rpc(calls):
            # Its threads spin when they are idle, and take cores from the measured contender.
            rpc.signal(signal.SIGCONT)
            spent = rpc.seconds("sparse", calls)
            rpc.signal(signal.SIGSTOP)
            return spent

        rpc.signal(signal.SIGSTOP)
        pairs = {
            "sparse": (options.calls, lambda calls: (tables.seconds("sparse", calls), by_rpc(calls))),
            "dense": (options.calls, lambda calls: (tables.seconds("dense", calls), tables.seconds("all-reduce", calls))),
            "bounded": (options.steps, lambda calls: (tables.seconds("bounded", calls), tables.seconds("sync", calls))),
        }
        rounds = range(options.rounds + 1)
        figures = {name: [pair(calls) for _ in rounds][1:] for name, (calls, pair) in pairs.items()}
        rpc.signal(signal.SIGCONT)
        for job in (tables, rpc):
            job.end()
        return figures


def main():
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="of all contenders, in turns")
    parser.add_argument("--calls", type=int, default=10, help="in each round")
    parser.add_argument("--steps", type=int, default=50, help="of bounded and sync tables, in each round")
    parser.add_argument("--record", type=pathlib.Path, help="where the table is written to, too")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    options = parser.parse_args()
    figures = measured(options)
    rows = []
    for name, rounds in figures.items():
        ratios = [them / us for us, them in rounds]
        ratio = statistics.median(ratios)
        met = "yes" if ratio >= GOALS[name] else "no"
        rows.append([NAMES[name], f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f"{GOALS[name]:.2f}", met])
    text = markdown(["what", "ratio (least to most)", "goal", "met"], rows)
    if options.json:
        print(json.dumps({"machine": machine(), "figures": figures}))
    else:
        print(text)
    if options.record is not None:
        how = f"{WORKERS} workers and {SERVERS} servers without copies, on one host; {options.rounds} rounds in which the contenders take turns"
        options.record.write_text(
            f"# Tables on a parameter server\n{bullets(machine())}\n* {how}; medians, least and most. `make table-figures` writes this page.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
