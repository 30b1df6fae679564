"""The study of compression: how well does training work with each codec, with and without error feedback?

    make compression-study ARGS="--steps 600"

Two workers train the demo's network and a small transformer with every codec, from the same parameters and with the same batches, then
the demo's network with some codecs at several learning rates. The tables go to docs/compression-study.md, the pictures beside it.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from text_tables import table

ROOT = pathlib.Path(__file__).resolve().parent.parent
RATES = "0.003,0.01,0.03,0.1,0.3"
WITHIN = 0.5
"""How many points a codec with error feedback can lose."""


def run(steps, workers, tasks, rates=""):
    """The trainings of a job with this number of workers: with each codec, or at each learning rate."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "results.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(workers)]
        program = [
            str(ROOT / "bench" / "compression_worker.py"),
            "--steps",
            str(steps),
            "--out",
            str(out),
            "--tasks",
            tasks,
            "--rates",
            rates,
        ]
        subprocess.run(launcher + program, check=True)
        return json.loads(out.read_text())


def of_task(results, task):
    """A task's trainings; the first is the one without a codec."""
    return [result for result in results if result["task"] == task]


HEADS = ["codec", "bytes sent", "loss, with feedback", "accuracy, with feedback", "loss, without", "accuracy, without"]


def rows(results):
    """The rows of a task: each codec's bytes, its result, and its loss relative to no codec."""
    plain = results[0]
    total = plain["curve"][-1][1]
    yield ["none", "1", f"{plain['curve'][-1][2]:.3f}", f"{plain['score']:.2f} %", "", ""]
    for with_it, without in zip(results[1::2], results[2::2]):
        cells = [f"`{with_it['codec']}`", f"{with_it['curve'][-1][1] / total:.3f}"]
        for result in (with_it, without):
            cells += [f"{result['curve'][-1][2]:.3f}", f"{result['score']:.2f} % ({result['score'] - plain['score']:+.2f})"]
        yield cells


def way(result):
    """The name of a training at several rates in its table."""
    more = {"momentum": "momentum before the codec", "warmup_steps": "warm-up of the share"}
    extra = [text for option, text in more.items() if result["options"].get(option)]
    name = "none" if result["codec"] == "none" else f"`{result['codec']}`, {'with feedback' if result['feedback'] else 'without'}"
    return ", ".join([name, *extra])


def rate_rows(results):
    """For each way to train, the accuracy at each rate, and in brackets how much the residual holds."""
    for name in dict.fromkeys(map(way, results)):
        of = [result for result in results if way(result) == name]
        cells = [f"{result['score']:.1f}" + (f" ({held(result['held'])})" if result["held"] is not None else "") for result in of]
        best = max(range(len(of)), key=lambda at: of[at]["score"])
        cells[best] = f"**{cells[best]}**"
        yield [name, *cells]


def held(gradients):
    """A length of a residual, in lengths of a gradient."""
    return f"{gradients:.1f}" if gradients < 10 else f"{gradients:.0f}" if gradients < 1e4 else "diverged"


def about_rates(results, steps):
    """The part of the page about learning rates."""
    rates = list(dict.fromkeys(result["rate"] for result in results))
    return [
        "",
        "## At several learning rates",
        f"The table shows the accuracy of the demo's network in percent after {steps} steps with momentum 0.9, the best of a row in bold.",
        "Learning rates fall to 0 along a cosine. In brackets is the norm of the residual in the middle of the training, in multiples of one",
        "step's mean gradient.",
        "",
        "![Accuracy against the learning rate](compression-rates.svg)",
        "",
        table(["codec", *(f"{rate:g}" for rate in rates)], rate_rows(results)),
    ]


def page(results, rates, steps, rate_steps, workers):
    """The page of the study."""
    lines = [
        "# Training with compressed gradients",
        "This study compares loss and accuracy with each codec, with and without error feedback, to training without a codec.",
        f"`make compression-study` trains two networks with {workers} workers, {steps} steps each, from the same parameters and with the same",
        "batches. The loss is the mean of the last ten steps. The accuracy is measured on data that was not trained on; in brackets is the",
        "difference to training without a codec, in points.",
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
        "## Result",
        f"With feedback, codecs that lose more than {WITHIN} points: {', '.join(behind) or 'none'}.",
        "`onebit` sends +1 and -1, so its trainings multiply the loss until gradients are about as large, and divide the learning rate.",
    ]
    lines += about_rates(rates, rate_steps)
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="of each training")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", default="digits,text")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs", help="the folder of the page and its picture")
    parser.add_argument("--rates", default=RATES, help="learning rates of the second part of the study")
    parser.add_argument("--rate-steps", type=int, default=200, help="steps of each of these trainings")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures to this file, or draw the figures of the file")
    arguments = parser.parse_args()
    if arguments.json and arguments.json.exists():
        figures = json.loads(arguments.json.read_text())
    else:
        figures = {
            "codecs": run(arguments.steps, arguments.workers, arguments.tasks),
            "rates": run(arguments.rate_steps, arguments.workers, "digits", arguments.rates),
        }
        if arguments.json:
            arguments.json.write_text(json.dumps(figures))
    from compression_chart import draw_losses, draw_rates  # its library is for pictures alone

    text = page(figures["codecs"], figures["rates"], arguments.steps, arguments.rate_steps, arguments.workers)
    (arguments.out / "compression-study.md").write_text(text)
    draw_losses(figures["codecs"], arguments.out / "compression-study.svg")
    draw_rates(figures["rates"], arguments.out / "compression-rates.svg")


if __name__ == "__main__":
    main()
