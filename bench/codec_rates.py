"""How many bytes of f32 one core encodes and decodes in a second, with each codec: a table, and record/codec-rates.md.

    make codec-rates ARGS=topk                      # only codecs whose name contains this, without a record

The figures are of `cargo bench -p herringbone-sys --bench codecs`, which is built first. Rates count plain bytes, 4 for each
element. The exit code is 1 if an encoding or a decoding is slower than its goal.
"""

import argparse
import datetime
import json
import pathlib
import subprocess
import sys

from machine import ROOT, bullets, machine
from text_tables import table

HEADS = ["codec", "goal", "encode", "with feedback", "decode"]


def measured(select):
    """The rows that the bench prints."""
    words = ["cargo", "bench", "--quiet", "--package", "herringbone-sys", "--bench", "codecs", "--", "--json", select]
    with subprocess.Popen([word for word in words if word], cwd=ROOT, stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if bench.returncode:
        sys.exit(f"{' '.join(words)} failed")


def cells(row):
    """A row as the tables show it."""
    goal = "-" if row["goal"] is None else f"{row['goal']:g}"
    return [row["codec"], goal, *(f"{row[name]:.1f}" for name in ("encode", "encode_with_feedback", "decode"))]


def aligned(row):
    """A line of the table in the terminal."""
    return f"{row[0]:<18}" + "".join(f"{cell:>15}" for cell in row[1:])


def is_met(row):
    """Whether encoding and decoding are as fast as their goal, if they have one."""
    return row["goal"] is None or min(row["encode"], row["decode"]) >= row["goal"]


def page(rows, notes):
    """The record."""
    missed = [row["codec"] for row in rows if not is_met(row)]
    lines = [
        "# Rates of codecs",
        bullets(machine() | {"date": str(datetime.date.today())}),
        "* GB/s of plain f32 on one core: a tensor of 25 MiB, normal numbers with the deviation 0.4, block by block; the fastest of 15",
        "  passes over each MiB. The goals hold for encoding and for decoding.",
        f"* Goals missed: {', '.join(missed) or 'none'}.",
        "* `make codec-rates` writes this page.",
        *([f"* {notes}"] if notes else []),
        "",
        table(HEADS, ([f"`{codec}`", *figures] for codec, *figures in map(cells, rows))),
    ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("select", nargs="?", default="", help="only codecs whose name contains this")
    parser.add_argument("--notes", default="", help="more notes about the run for the record")
    parser.add_argument("--record", type=pathlib.Path, default=ROOT / "record" / "codec-rates.md")
    options = parser.parse_args()
    rows = []
    print("GB/s of plain f32, on one core", flush=True)
    print(aligned(HEADS), flush=True)
    for row in measured(options.select):
        rows.append(row)
        print(aligned(cells(row)), flush=True)
    if not options.select:
        options.record.write_text(page(rows, options.notes))
    return 0 if all(map(is_met, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
