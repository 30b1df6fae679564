"""Times a training step by shards beside DDP with gradient accumulation of the same samples, in turns, on this host.

Prints a table, and whether the goal is met. Exit code 0: all ran.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

from machine import bullets, machine
from text_tables import table as markdown

WORKER = pathlib.Path(__file__).resolve().parent / "shards_worker.py"
GOAL = 1.05


def measured(ranks, rounds):
    """The figures of a job."""
    command = [sys.executable, "-m", "herringbone", "launch", "-n", str(ranks), "--", sys.executable, str(WORKER), str(rounds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(next(line[line.index("{") :] for line in done.stdout.splitlines() if "{" in line))


def main():
    """Measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="steps of each, in turns")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="with runs of even length: 1, 2, 4 or 8")
    parser.add_argument("--record", type=pathlib.Path, help="where the table is written to, too")
    parser.add_argument("--json", action="store_true", help="all figures, as JSON")
    options = parser.parse_args()
    figures = {ranks: measured(ranks, options.rounds) for ranks in options.ranks}
    rows = []
    for ranks, at in figures.items():
        ratio = statistics.median(shards / ddp for shards, ddp in zip(at["shards"], at["ddp"]))
        ms = [f"{statistics.median(at[name]) * 1e3:.1f} ({min(at[name]) * 1e3:.1f})" for name in ("ddp", "shards")]
        rows.append([str(ranks), str(at["carried"]), *ms, f"{ratio:.3f}", f"{GOAL:.2f}", "yes" if ratio <= GOAL else "no"])
    columns = ["ranks", "shards of rank 0", "DDP, ms (least)", "shards, ms (least)", "ratio, median of pairs", "goal", "met"]
    text = markdown(columns, rows)
    print(json.dumps({"machine": machine(), "figures": figures}) if options.json else text)
    if options.record is not None:
        how = (
            f"The transformer of examples/model.py, 8 shards of 8 samples of 64 bytes, AdamW, one thread; {options.rounds} steps of each, in "
            "turns, on one host. DDP accumulates gradients in no_sync() over the same samples"
        )
        options.record.write_text(
            f"# A step by shards\n{bullets(machine())}\n* {how}. `make shards-figures` writes this page.\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
