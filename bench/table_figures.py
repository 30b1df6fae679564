"""Times tables on a parameter server: sparse rows beside torch's RPC, dense ones beside reducers, bounded steps beside sync ones.

Four workers and two servers on this host; the contenders take turns in the same processes. Prints a table of ratios, and whether the
goals are met. Exit code 0: all ran.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import statistics
import subprocess
import sys

from machine import machine
from ports import free_port
from tables import table as markdown

HERE = pathlib.Path(__file__).resolve().parent
WORKERS, SERVERS = 4, 2
GOALS = {"sparse": 3.0, "dense": 1 / 1.2, "bounded": 1.3}
"""Rows per second by torch's RPC's; an all-reduce's time by a push's and pull's; steps per second by those in sync."""
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


def measured(options):
    """What rank 0 has measured."""
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        tables = ",".join(served(stack, token, ["--tables"]) for _ in range(SERVERS))
        reducers = ",".join(served(stack, token, []) for _ in range(SERVERS))
        environment = os.environ | {
            "HERRINGBONE_TOKEN": token,
            "HERRINGBONE_TABLES": tables,
            "HERRINGBONE_REDUCERS": reducers,
            "HERRINGBONE_ALGORITHM": "reduction_server",
            "HERRINGBONE_STORE": f"127.0.0.1:{free_port()}",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORKERS": str(WORKERS),
            "HERRINGBONE_WORLD_SIZE": str(WORKERS),
        }
        setup = json.dumps({"rounds": options.rounds, "calls": options.calls, "steps": options.steps})
        command = [sys.executable, HERE / "table_worker.py", setup]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    command,
                    env=environment | {"RANK": str(rank), "HERRINGBONE_RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for rank in range(WORKERS + SERVERS)
        ]
        output, _ = processes[0].communicate()
        if any(process.wait() for process in processes):
            sys.exit("a process failed; its error is above")
        return json.loads(output)


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
        ratios = [them / us if name == "dense" else us / them for us, them in rounds]
        ratio = statistics.median(ratios)
        met = "yes" if ratio >= GOALS[name] else "no"
        rows.append([NAMES[name], f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})", f"{GOALS[name]:.2f}", met])
    text = markdown(["what", "ratio (least to most)", "goal", "met"], rows)
    if options.json:
        print(json.dumps({"machine": machine(), "figures": figures}))
    else:
        print(text)
    if options.record is not None:
        head = f"# Tables on a parameter server\n`make table-figures`. {machine()}; {WORKERS} workers and {SERVERS} servers, k = 0.\n\n"
        options.record.write_text(f"{head}{text}\n")


if __name__ == "__main__":
    main()
