"""The study of compression: does training come as far with each codec, with feedback and without?

    make compression-study ARGS="--steps 600"

Two workers train the demo's network and a small transformer with every codec, from the same parameters and with the same batches.
The table goes to docs/compression-study.md, its picture to docs/compression-study.svg.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from svg import BLUE, FAINT, GREY, INK, ORANGE, line, picture, text
from tables import table

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, HEIGHT, MARGIN = 560, 300, 60
WITHIN = 0.5
"""So many points a codec with feedback may stay behind."""


def run(steps, workers, tasks):
    """The trainings of a job of so many workers."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "results.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        program = [str(ROOT / "bench" / "compression_worker.py"), "--steps", str(steps), "--out", str(out), "--tasks", tasks]
        subprocess.run(launcher + program, check=True)
        return json.loads(out.read_text())


def of_task(results, task):
    """A task's trainings; the first is the one without a codec."""
    return [result for result in results if result["task"] == task]


HEADS = ["codec", "bytes sent", "loss, with feedback", "accuracy, with feedback", "loss, without", "accuracy, without"]


def rows(results):
    """The rows of a task: what each codec sends, how far it comes, and how far it stays behind."""
    plain = results[0]
    total = plain["curve"][-1][1]
    yield ["none", "1", f"{plain['curve'][-1][2]:.3f}", f"{plain['score']:.2f} %", "", ""]
    for with_it, without in zip(results[1::2], results[2::2]):
        cells = [f"`{with_it['codec']}`", f"{with_it['curve'][-1][1] / total:.3f}"]
        for result in (with_it, without):
            cells += [f"{result['curve'][-1][2]:.3f}", f"{result['score']:.2f} % ({result['score'] - plain['score']:+.2f})"]
        yield cells


def chart(results, left, top, by_bytes):
    """Curves of the loss of one task, against steps or against bytes."""
    fed = [result for result in results if result["feedback"] or result["codec"] == "none"]
    at = 1 if by_bytes else 0
    most = max(point[at] for result in fed for point in result["curve"])
    least = min(point[at] for result in fed for point in result["curve"]) if by_bytes else 0
    highest = max(point[2] for result in fed for point in result["curve"])
    yield text(left, top - 14, results[0]["title"], 14, INK, weight=600)
    yield text(
        left, top + HEIGHT + 22, "bytes sent by a worker, 1 to the next mark is ten times" if by_bytes else "steps", 12, GREY
    )
    yield line([(left, top), (left, top + HEIGHT), (left + WIDTH, top + HEIGHT)], FAINT, 1.5)

    def place(point):
        from math import log

        share = log(point[at] / least) / log(most / least) if by_bytes else point[at] / most
        return left + WIDTH * share, top + HEIGHT * (1 - point[2] / highest)

    colours = [INK, BLUE, ORANGE, "#1b998b", "#c0392b", "#7d5ba6", "#b8860b", "#5f6c7b", "#e377c2"]
    for number, (result, colour) in enumerate(zip(fed, colours)):
        points = [place(point) for point in result["curve"]]
        yield line(points, colour, 2.5 if result["codec"] == "none" else 1.5)
        x, y = left + WIDTH - 120, top + 14 + 16 * number
        yield line([(x, y - 4), (x + 18, y - 4)], colour, 2)
        yield text(x + 24, y, result["codec"], 12, INK)


def drawn(results):
    """Both tasks, each against steps and against bytes."""
    tasks = list(dict.fromkeys(result["task"] for result in results))
    parts = [text(MARGIN, 40, "Loss of training with feedback, against steps and against bytes", 18, INK, weight=700)]
    for row, task in enumerate(tasks):
        top = 100 + row * (HEIGHT + 90)
        parts.extend(chart(of_task(results, task), MARGIN, top, by_bytes=False))
        parts.extend(chart(of_task(results, task), 2 * MARGIN + WIDTH, top, by_bytes=True))
    return picture(3 * MARGIN + 2 * WIDTH, 100 + len(tasks) * (HEIGHT + 90), "Loss of training with each codec", parts)


def page(results, steps, workers):
    """The page of the study."""
    lines = [
        "# How training fares with compression",
        f"`make compression-study` trains two networks with {workers} workers, {steps} steps each, from the same parameters and with the same",
        "batches. Only gradients are compressed. The loss is the mean of the last ten steps; the accuracy is that of what was never trained on.",
        "In brackets is the difference to training without a codec, in points.",
        "",
        "![Loss against steps and against bytes](compression-study.svg)",
    ]
    for task in dict.fromkeys(result["task"] for result in results):
        of = of_task(results, task)
        lines += ["", f"## {of[0]['title']}", table(HEADS, rows(of))]
    behind = [
        f"`{result['codec']}` in {result['title'].split(':')[0].lower()} by {plain['score'] - result['score']:.2f} points"
        for task in dict.fromkeys(result["task"] for result in results)
        for plain in of_task(results, task)[:1]
        for result in of_task(results, task)
        if result["feedback"] and result["score"] < plain["score"] - WITHIN
    ]
    lines += [
        "",
        "## What it says",
        f"With feedback these stay behind by more than {WITHIN} points: {', '.join(behind) or 'none'}.",
    ]
    lines += [
        "`onebit` sends +1 and -1, so the loss is multiplied until gradients are about as large, and the learning rate divided."
    ]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", default="digits,text")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs", help="the folder of the page and its picture")
    parser.add_argument("--json", type=pathlib.Path, help="keep the figures")
    arguments = parser.parse_args()
    results = run(arguments.steps, arguments.workers, arguments.tasks)
    if arguments.json:
        arguments.json.write_text(json.dumps(results))
    (arguments.out / "compression-study.md").write_text(page(results, arguments.steps, arguments.workers))
    (arguments.out / "compression-study.svg").write_text(drawn(results))


if __name__ == "__main__":
    main()
