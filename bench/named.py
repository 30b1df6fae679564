"""Times operations with names: many tensors in a step beside all-reduces one by one, the controller's own time, and training.

Four ranks on this host; the contenders take turns in the same processes. Prints a table, and whether the goals are met. Exit
code 0: all contenders have the same bits, and both trainings come to the same parameters within 1e-5.
"""

import argparse
import json
import os
import pathlib
import secrets
import signal
import statistics
import sys
import tempfile

from machine import bullets, machine
from ports import free_port
from processes import JobFailed, Processes
from text_tables import table as markdown

HERE = pathlib.Path(__file__).resolve().parent
TOLERANCE = 1e-5
FASTER, CYCLE_MICROSECONDS, SLOWER = 2.0, 100.0, 1.1
"""The goals: steps per second beside one by one, the controller's time in a cycle, and a training step beside DDP's."""


def ranks_of(options, folder):
    """Runs the ranks, and returns what each has left."""
    setup = {name: getattr(options, name) for name in ("tensors", "rounds", "steps", "calls", "megabytes", "rows")}
    setup |= {"training_steps": options.training_steps, "folder": str(folder)}
    command = [sys.executable, HERE / "named_worker.py", json.dumps(setup)]
    with Processes() as processes:
        environment = os.environ | processes.place(options.ranks) | {"HERRINGBONE_TOKEN": secrets.token_hex(16)}
        environment |= {"HERRINGBONE_STORE": f"127.0.0.1:{free_port()}", "HERRINGBONE_WORLD_SIZE": str(options.ranks)}
        ranks = [
            processes.start(command, env=environment | {"RANK": str(rank), "HERRINGBONE_RANK": str(rank)})
            for rank in range(options.ranks)
        ]
        processes.finish(ranks)
    return [json.loads(pathlib.Path(folder, f"rank{rank}.json").read_text()) for rank in range(options.ranks)]


def slowest(ranks):
    """The slowest rank's seconds, for each contender in each round."""
    return {name: [max(each) for each in zip(*(rank[name] for rank in ranks), strict=True)] for name in ranks[0]}


def ratios(seconds, ours, theirs):
    """Their time by ours, round by round."""
    return [them / us for us, them in zip(seconds[ours], seconds[theirs], strict=True)]


def summary(ranks, options):
    """The figures."""
    many, one = (slowest([rank[what] for rank in ranks]) for what in ("many", "one"))
    calls = ranks[0]["counted"]["responses"]
    result = {
        "machine": machine(),
        "ranks": options.ranks,
        "tensors": options.tensors,
        "many": many,
        "one": one,
        "faster": {name: ratios(many, name, "one by one") for name in ("named", "horovod.torch")},
        "overhead": [1e6 * (ours - alone) for ours, alone in zip(one["named"], one["one by one"], strict=True)],
        "cycles_per_call": ranks[0]["counted"]["cycles"] / calls,
        "bytes_to_coordinator": ranks[0]["counted"]["bytes_to_coordinator"],
        "same_bits": all(rank["same_bits"] for rank in ranks),
    }
    if options.megabytes:
        seconds = slowest([rank["training"]["seconds"] for rank in ranks])
        result["training"] = {
            "seconds": seconds,
            "parameters": ranks[0]["training"]["parameters"],
            "slower": ratios(seconds, "torch backend, DDP", "DistributedOptimizer"),
            "difference": max(rank["training"]["difference"] for rank in ranks),
        }
    return result


def spread(numbers, form):
    """The median, and the least and the most."""
    return f"{form(statistics.median(numbers))} ({form(min(numbers))}..{form(max(numbers))})"


def rows(result):
    """Name, measured value, goal, and whether it is met, of each figure."""
    times = "{:.2f} x".format
    for name, found in result["faster"].items():
        is_met = statistics.median(found) >= FASTER
        yield f"{name}: steps/s, relative to one by one", spread(found, times), f"at least {FASTER:.0f} x", is_met
    micros = "{:.0f} us".format
    found = result["overhead"]
    is_met = statistics.median(found) <= CYCLE_MICROSECONDS
    yield "the controller's time in a cycle", spread(found, micros), f"at most {CYCLE_MICROSECONDS:.0f} us", is_met
    if "training" in result:
        found = result["training"]["slower"]
        goal = f"at most {SLOWER:.2f} x"
        is_met = statistics.median(found) <= SLOWER
        yield "DistributedOptimizer: a step, relative to DDP's", spread(found, times), goal, is_met


def seconds_of(result):
    """Name and milliseconds of each contender in each part, in their order."""
    parts = {f"{result['tensors']} tensors": result["many"], "one tensor of 4 B": result["one"]}
    if "training" in result:
        parts["a training step"] = result["training"]["seconds"]
    for part, seconds in parts.items():
        for name, found in seconds.items():
            yield part, name, spread([1e3 * each for each in found], "{:.3f}".format)


def table(result):
    """What is printed."""
    for part, name, found in seconds_of(result):
        yield f"{part:<18}{name:<24}{found} ms"
    for name, found, goal, is_met in rows(result):
        yield f"{name:<44}{found:<28}{goal:<18}{'met' if is_met else 'NOT MET'}"
    yield f"all contenders have {'the same bits' if result['same_bits'] else 'DIFFERENT BITS'}"
    if "training" in result:
        yield f"the trainings differ by {result['training']['difference']:.1e} at most"


def page(result, options):
    """The record."""
    lines = [
        "# Operations with names",
        bullets(result["machine"]),
        f"* {result['ranks']} ranks on this host; {options.rounds} rounds in which the contenders take turns; median, least and most of the slowest",
        "  rank's time. `make named-figures` writes this page.",
        f"* {result['tensors']} float32 tensors of 4 B to 1 MiB in a step, their sizes in equal ratios, submitted in one order",
        "",
        markdown(["figure", "measured", "goal", ""], ([*row, "met" if met else "not met"] for *row, met in rows(result))),
        "",
        markdown(["what", "by", "milliseconds"], seconds_of(result)),
    ]
    summary = (
        f"A call of one tensor takes {result['cycles_per_call']:.2f} cycles and {result['bytes_to_coordinator']} bytes to rank 0."
    )
    bits = "the same" if result["same_bits"] else "DIFFERENT"
    lines += ["", f"All contenders have {bits} bits in every tensor. {summary}"]
    return "\n".join(lines) + "\n"


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--ranks", type=int, default=4, help="processes (4)")
    option("--tensors", type=int, default=200, help="tensors of a step (200)")
    option("--rounds", type=int, default=9, help="turns of each contender (9)")
    option("--steps", type=int, default=5, help="steps of a turn with many tensors (5)")
    option("--calls", type=int, default=100, help="calls of a turn with one tensor (100)")
    option("--megabytes", type=float, default=100, help="parameters of the training, 10^6 bytes each; 0: none (100)")
    option("--rows", type=int, default=1, help="rows of a batch (1)")
    option("--training-steps", type=int, default=3, help="steps of a turn of the training (3)")
    option("--json", type=pathlib.Path, metavar="FILE", help="the figures")
    option("--record", type=pathlib.Path, metavar="FILE", help="the page of the record")
    options = parser.parse_args()
    if min(options.ranks, options.tensors, options.rounds, options.steps, options.calls, options.rows) < 1:
        parser.error("at least one rank, tensor, round, step, call and row")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="herringbone-named-") as folder:
            ranks = ranks_of(options, folder)
    except JobFailed as failure:
        sys.exit(f"named: {failure}")
    result = summary(ranks, options)
    print("\n".join(table(result)))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    if options.record:
        options.record.write_text(page(result, options))
    differs = "training" in result and result["training"]["difference"] > TOLERANCE
    sys.exit(0 if result["same_bits"] and not differs else 1)


if __name__ == "__main__":
    main()
