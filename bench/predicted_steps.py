"""Predicted and measured steps of models of our own under DistributedDataParallel: four ranks on this host, and on four hosts of 500 Mbit/s.

A model is profiled once, by four ranks of this host without sums. Constants come from `herringbone bench --calibrate` on each of the two layouts.
`herringbone simulate-training` then says what a step takes; no training has been timed by then. Last the trainings run in turns, without the profiler.
Hosts are network namespaces, which need root. Exit code 0: all predictions lie within 15 % of the median of the jobs.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from figures import duration
from machine import machine
from predicted_ports import run
from predicted_steps_worker import MODELS
from predictions import constants_lines, inside, is_within, note
from processes import Here, JobFailed, Namespaces, NoNamespaces, Processes
from regret import LAYOUTS, Machine, constants
from rigs import LOCK, ROOT, TOKEN
from simulator import say
from text_tables import printed, table

WORKER = ROOT / "bench" / "predicted_steps_worker.py"
PLACES = {"this host": ("1 host of 4", Machine(None)), "4 hosts": ("4 hosts", Machine(500))}
"""A layout of four ranks, and the links of its hosts."""
RANKS = 4
BAND = (0.85, 1.15)


class Trainings:
    """The jobs of both places."""

    def __init__(self, options, folder):
        self.options, self.folder = options, pathlib.Path(folder)
        self.spaces = {"this host": Here(), "4 hosts": Namespaces(RANKS, PLACES["4 hosts"][1].rate)}
        self.constants, self.profiles = {}, {}

    @contextlib.contextmanager
    def alive(self):
        """The hosts, as long as this lasts."""
        with contextlib.ExitStack() as stack:
            for spaces in self.spaces.values():
                stack.enter_context(spaces)
            yield self

    def calibrate(self, place):
        """Fit constants to sums of a place."""
        say(f"fitting constants on {place}")
        layout, machine = PLACES[place]
        folder = self.folder / place.replace(" ", "-")
        folder.mkdir()
        self.constants[place] = constants(self.options, layout, machine, self.spaces[place], folder)

    def profile(self, model):
        """Profile a model by ranks of this host."""
        say(f"profiling {model}")
        path = self.folder / f"{model}.json"
        words = ["-m", "herringbone.profile", "--without-sums", "--steps", self.options.profiled, "--output", path]
        self.job("this host", [*words, WORKER, model, 10 * self.options.profiled])
        self.profiles[model] = path

    def job(self, place, words):
        """Run Python with these words as every rank; what rank 0 prints."""
        workers, per_host, _ = LAYOUTS[PLACES[place][0]]
        with Processes(self.spaces[place]) as processes:
            local = {"HERRINGBONE_TOKEN": TOKEN, "LOCAL_WORLD_SIZE": str(per_host)}
            environment = os.environ | processes.place(workers) | local
            ranks = [
                processes.start(
                    [sys.executable, *words],
                    rank // per_host,
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank % per_host)},
                    stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                    text=True,
                )
                for rank in range(workers)
            ]
            processes.finish(ranks)
            return ranks[0].stdout.read()

    def predicted(self, place, model):
        """What the command says of a step; the algorithms are those that the job chooses."""
        workers, per_host, _ = LAYOUTS[PLACES[place][0]]
        words = [
            self.options.binary,
            "simulate-training",
            "--model",
            self.profiles[model],
            "--workers",
            workers,
            "--per-host",
            per_host,
        ]
        words += ["--calibration", self.constants[place], "--json"]
        sizes = [str(each["bytes"]) for each in run([*words, "--algorithm", "ring"], os.environ)["buckets"]]
        found = set()
        for size in sizes:
            asked = [self.options.binary, "explain", "--ranks", workers, "--per-host", per_host, "--sizes", size, "--json"]
            found.add(run(asked, os.environ)["algorithm"])
        if len(found) > 1:
            raise JobFailed(
                f"{model} on {place}: its buckets are summed by {', '.join(sorted(found))}, and a prediction is for one: change the model"
            )
        found = run([*words, "--algorithm", *found], os.environ)
        return found | {"step": found["steps"][0]}

    def measured(self, place, model):
        """The median step of one job."""
        output = self.job(place, [WORKER, model, self.options.steps])
        return statistics.median(json.loads(output.splitlines()[-1]))


def compared(options):
    """A row for each place and model."""
    with tempfile.TemporaryDirectory() as folder, Trainings(options, folder).alive() as trainings:
        for model in MODELS:
            trainings.profile(model)
        for place in PLACES:
            trainings.calibrate(place)
        options.texts = {place: path.read_text() for place, path in trainings.constants.items()}
        cells = [(place, model) for place in PLACES for model in MODELS]
        said = {cell: trainings.predicted(*cell) for cell in cells}
        rounds = {cell: [] for cell in cells}
        for number in range(options.rounds):
            for cell in cells:
                rounds[cell].append(trainings.measured(*cell))
                say(f"round {number + 1} of {options.rounds}: {cell[1]} on {cell[0]}: {duration(rounds[cell][-1])}")
        for place, model in cells:
            yield row(place, model, said[place, model], rounds[place, model])


def row(place, model, said, rounds):
    """What is shown of a place and model."""
    step, median = said["step"], statistics.median(rounds)
    return {
        "place": place,
        "model": model,
        "algorithm": step["algorithm"],
        "computing_s": said["forward_s"] + said["backward_s"] + said["after_s"],
        "sums_s": step["communication_s"],
        "exposed_s": step["exposed_s"],
        "predicted_s": step["step_s"],
        "measured_s": median,
        "rounds_s": rounds,
        "ratio": step["step_s"] / median,
    }


HEAD = [
    "ranks",
    "model",
    "computing",
    "sums",
    "exposed",
    "predicted step",
    "measured step",
    "least to most",
    "ratio",
    "",
]


def cells_of(row):
    """A row as the table shows it."""
    parts = [duration(row[f"{name}_s"]) for name in ("computing", "sums", "exposed", "predicted", "measured")]
    spread = f"{duration(min(row['rounds_s']))} to {duration(max(row['rounds_s']))}"
    return [row["place"], row["model"], *parts, spread, f"{row['ratio']:.3f}", note(row, BAND)]


def arguments():
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    option = parser.add_argument
    option("--rounds", type=int, default=5, help="jobs of each place and model; the result is their median")
    option("--steps", type=int, default=12, help="steps of a job that are timed")
    option("--profiled", type=int, default=20, help="steps of a profile")
    option("--seconds", type=float, default=2.0, help="seconds for each size that constants are fitted to")
    option("--binary", type=pathlib.Path, default=ROOT / "target" / "release" / "herringbone", help="ours")
    option("--json", action="store_true", help="an object for each row, not a table")
    option("--record", type=pathlib.Path, help="write the table to this file, too")
    return parser.parse_args()


def page(options, rows):
    """The record's page."""
    lines = [
        "# Predicted steps of trainings",
        "",
        f"`make predicted-steps` wrote this page. {inside(rows, BAND)} of the median of {options.rounds} jobs, which",
        "ran in turns, each with the median of its steps on rank 0. Four ranks of one host profiled each model without sums, with one thread",
        f"each on {os.cpu_count()} cores. `herringbone bench --calibrate` fitted constants to sums of each layout. Hosts are network namespaces with 500 Mbit/s",
        "each, so all ranks share these cores.",
        "",
        *(f"* {name}: {value}" for name, value in machine().items()),
        "",
        table(HEAD, map(cells_of, rows)),
        "",
        "`computing` is the step without sums, `sums` the sums one after the other, and `exposed` their part after the backward pass.",
        "",
    ]
    for place, text in options.texts.items():
        lines += constants_lines(f"The constants of {place}", text)
    return "\n".join(lines)


def main():
    options = arguments()
    options.binary = options.binary.resolve()
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = list(printed(HEAD, compared(options), cells_of, options.json))
    if options.record:
        options.record.write_text(page(options, rows))
    return 0 if all(is_within(row, BAND) for row in rows) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (JobFailed, NoNamespaces) as problem:
        sys.exit(f"{problem}")
