"""The benefit of codecs on slow links: all-reduces between hosts that are network namespaces, with each codec and with none.

    make compression-links ARGS="--rounds 3"

Every host is a worker, and its link has a limited rate each way. Times are the slowest rank's; bytes are counted on rank 0's
interface, with headers. The table goes to record/compression.md.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import sys
import tempfile

from figures import human
from machine import bullets, machine
from processes import JobFailed, Namespaces, NoNamespaces, Processes
from rigs import TOKEN
from text_tables import table

ROOT = pathlib.Path(__file__).resolve().parent.parent


def measured(options, reducers):
    """All ranks' reports of every call, rank by rank."""
    with (
        Namespaces(options.workers + reducers, options.rate) as hosts,
        Processes(hosts) as processes,
        tempfile.TemporaryDirectory() as out,
    ):
        environment = os.environ | {"HERRINGBONE_TOKEN": TOKEN} | processes.place(options.workers)
        addresses = [processes.reducer(environment, options.workers + number).address for number in range(reducers)]
        if addresses:
            environment["HERRINGBONE_REDUCERS"] = ",".join(addresses)
        words = [sys.executable, ROOT / "bench" / "compression_links_worker.py", "--out", out]
        words += ["--bytes", options.mebibytes << 20, "--rounds", options.rounds]
        processes.run(words, environment, range(options.workers))
        return [json.loads(pathlib.Path(out, f"{rank}.json").read_text())["rows"] for rank in range(options.workers)]


HEADS = ["codec", "seconds", "of none", "sent", "of none", "received", "of none"]


def rows(ranks):
    """The rows: medians of the times, and of the bytes that rank 0's interface sent and received."""
    plain = None
    for codec in dict.fromkeys(row["codec"] for row in ranks[0]):
        calls = [[row for row in rows if row["codec"] == codec] for rows in ranks]
        seconds = statistics.median(max(call["seconds"] for call in round_) for round_ in zip(*calls))
        sent, received = (statistics.median(call[way] for call in calls[0]) for way in ("sent", "received"))
        plain = plain or (seconds, sent, received)
        ratios = [value / of for value, of in zip((seconds, sent, received), plain)]
        times, bytes_ = [f"{seconds:.3f}", f"{ratios[0]:.3f}"], [human(int(sent)), f"{ratios[1]:.4f}"]
        yield [f"`{codec}`", *times, *bytes_, human(int(received)), f"{ratios[2]:.4f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rate", type=int, default=100, help="Mbit/s of each link, each way")
    parser.add_argument("--mebibytes", type=int, default=25)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reducers", default="0,4", help="numbers of hosts that are reducers")
    parser.add_argument("--notes", default="", help="more notes about the run for the record")
    parser.add_argument("--record", type=pathlib.Path, default=ROOT / "record" / "compression.md")
    arguments = parser.parse_args()
    lines = [
        "# Codecs over slow links",
        bullets(machine() | {"date": str(datetime.date.today())}),
        f"* {arguments.workers} hosts (network namespaces), links of {arguments.rate} Mbit/s each way. An average of {arguments.mebibytes} MiB of float32, normal numbers with",
        f"  the deviation 0.4, with feedback. Times are medians of {arguments.rounds} rounds of the slowest rank. Bytes are all bytes at rank 0's interface.",
        "* `make compression-links` writes this page.",
    ]
    lines += [f"* {arguments.notes}"] if arguments.notes else []
    try:
        for reducers in map(int, arguments.reducers.split(",")):
            title = f"{reducers} reducers" if reducers else "Without reducers"
            lines += ["", f"## {title}", table(HEADS, rows(measured(arguments, reducers)))]
    except (JobFailed, NoNamespaces) as error:
        raise SystemExit(f"compression_links.py: {error}") from None
    arguments.record.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
