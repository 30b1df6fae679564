"""The cost of a call of torch in processes that share cores, without any message: the part of the time that Python takes.

The numbers of processes run one after the other. Each process is a job of its own, so that there are no messages. All call
`dist.all_reduce` on four bytes and then yield their core, as ranks that wait for each other do. Printed per call, in
microseconds: the time it takes, and the CPU time of a process; medians over the processes. With `--json`, as JSON.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

CALLS = 100


def alone(seconds):
    """One process: says that it is ready, waits for a line, calls for some seconds; then calls, wall and CPU seconds."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("herringbone", store=dist.HashStore(), rank=0, world_size=1)
    value, calls = torch.zeros(1), 0
    dist.all_reduce(value)
    print("ready", flush=True)
    sys.stdin.readline()
    began, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        for _ in range(CALLS):
            dist.all_reduce(value)
            os.sched_yield()
        calls += CALLS
    print(json.dumps([calls, time.perf_counter() - began, time.process_time() - used]))
    dist.destroy_process_group()


def together(processes, seconds):
    """This number of processes at once: microseconds per call, wall and CPU."""
    command = [sys.executable, __file__, "--alone", "--seconds", str(seconds)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(processes)]
    for child in children:
        child.stdout.readline()
    for child in children:
        with contextlib.suppress(BrokenPipeError):  # it has failed, and is asked below
            print("go", file=child.stdin, flush=True)
    said = [child.communicate()[0] for child in children]
    if any(child.returncode != 0 for child in children):
        sys.exit("torch_alone: a process failed; its error is above")
    figures = [json.loads(line) for line in said]
    per_call = [(wall / calls * 1e6, cpu / calls * 1e6) for calls, wall, cpu in figures]
    wall, cpu = (statistics.median(column) for column in zip(*per_call))
    return {"processes": processes, "wall_us": wall, "cpu_us": cpu}


def counts(text):
    """Numbers of processes from a list with commas."""
    numbers = [int(part) for part in text.split(",")]
    if min(numbers) < 1:
        raise ValueError
    return numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=counts, default=[1, 2, 4, 8], help="numbers of processes, comma-separated (1,2,4,8)")
    parser.add_argument("--seconds", type=float, default=2, help="seconds per number")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        alone(arguments.seconds)
        return
    rows = [together(count, arguments.seconds) for count in arguments.processes]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'processes':>9}  {'us per call':>11}  {'us of CPU':>9}")
    for row in rows:
        print(f"{row['processes']:>9}  {row['wall_us']:>11.1f}  {row['cpu_us']:>9.1f}")


if __name__ == "__main__":
    main()
