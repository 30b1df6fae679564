"""The pictures of the study of compression: curves of the loss, and accuracy against the learning rate.

Backgrounds are transparent, and text and lines are grey enough to be read on white and on black.
"""

import math

import matplotlib

matplotlib.use("svg")

from labels import spread
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

# Texts stay texts, and a picture of the same figures has the same bytes.
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "herringbone", "font.size": 10})
matplotlib.rcParams.update({"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"]})

GREY = "#727c8a"
COLOURS = ["#727c8a", "#2f81f7", "#d97706", "#0f9d76", "#dc4a4a", "#9b6bdf", "#a07a1f", "#d64f9f", "#1296b0"]
"""For `none` first. Each has a contrast of at least 3 with white and with GitHub's dark page."""
DASHES = ["-", "-", "--", "-", "--", "-", "--", "-", "--"]
APART = 0.052
"""The least distance of two labels, in heights of a panel."""


def saved(figure, path):
    """Write a figure."""
    figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def plain(axes, title, across, up):
    """What all panels share: two axes, a faint grid, titles."""
    axes.set_title(title, loc="left", color=GREY, fontsize=11, fontweight="bold")
    axes.set_xlabel(across, color=GREY)
    axes.set_ylabel(up, color=GREY)
    axes.tick_params(colors=GREY, which="both")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)


def labelled(axes, ends):
    """Names at the right end of curves: `ends` has for each its name, its colour, and where it ends, in heights of the panel."""
    places = spread([end for _, _, end in ends], APART, 0.0, 0.95)
    for (name, colour, end), place in zip(ends, places):
        axes.annotate(
            name,
            (1.0, min(max(end, 0.0), 1.0)),
            xytext=(1.06, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=colour,
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (0, 0.5)},
        )


def number(value, _=None):
    """A tick's label."""
    return f"{value:g}"


def short(loss):
    """A loss, with two digits at least that are not 0."""
    return f"{loss:.3f}" if loss >= 0.01 else f"{loss:.2g}" if loss >= 1e-4 else f"{loss:.0e}"


def size(value, _=None):
    """A tick's label, of bytes."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:g} {name}"
    return f"{value:g} B"


def losses(axes, results, by_bytes):
    """The loss of one task with each codec and feedback, against steps or bytes."""
    fed = [result for result in results if result["feedback"] or result["codec"] == "none"]
    first = max(point[2] for point in fed[0]["curve"])
    shown = [[point for point in result["curve"] if math.isfinite(point[2]) and point[2] <= 1.3 * first] for result in fed]
    low = max(min(point[2] for curve in shown for point in curve), 1e-4) / 1.2
    high = 1.3 * first
    is_wide = high / low > 30
    up = "loss, mean of ten steps" + (", logarithmic" if is_wide else "")
    plain(axes, results[0]["title"], "bytes sent by a worker, logarithmic" if by_bytes else "steps", up)
    scale = (lambda value: math.log(value)) if is_wide else (lambda value: value)
    if is_wide:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(number))
        axes.yaxis.set_minor_locator(NullLocator())
    if by_bytes:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(10))
        axes.xaxis.set_major_formatter(FuncFormatter(size))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(low, high)
    ends = []
    for result, curve, colour, dash in zip(fed, shown, COLOURS, DASHES):
        is_plain = result["codec"] == "none"
        axes.plot(
            [point[1 if by_bytes else 0] for point in curve],
            [max(point[2], low) for point in curve],
            color=colour,
            linestyle=dash,
            linewidth=2.6 if is_plain else 1.5,
        )
        last = result["curve"][-1][2]
        has_diverged = not math.isfinite(last) or last > high
        end = 0.95 if has_diverged else (scale(max(last, low)) - scale(low)) / (scale(high) - scale(low))
        ends.append((f"{result['codec']}  {'diverged' if has_diverged else short(last)}", colour, end))
    if by_bytes:
        for curve, colour in zip(shown, COLOURS):
            if curve:
                axes.plot(curve[-1][1], max(curve[-1][2], low), "o", color=colour, markersize=4)
    labelled(axes, ends)


def draw_losses(results, path):
    """All tasks, each against steps and against bytes, with a scale of its own."""
    tasks = list(dict.fromkeys(result["task"] for result in results))
    figure, panels = pyplot.subplots(len(tasks), 2, figsize=(13, 4.6 * len(tasks)), squeeze=False)
    figure.suptitle(
        "Loss of training with feedback, with each codec: at the right, the last ten steps' mean", color=GREY, fontsize=13
    )
    for row, task in zip(panels, tasks):
        of = [result for result in results if result["task"] == task]
        losses(row[0], of, by_bytes=False)
        losses(row[1], of, by_bytes=True)
    figure.tight_layout(rect=(0, 0, 0.97, 0.98), w_pad=3, h_pad=2.5)
    saved(figure, path)


def draw_rates(results, path):
    """For each codec a panel: the accuracy against the learning rate, with feedback, without it, and without a codec."""
    of_none = [result for result in results if result["codec"] == "none"]
    codecs = [codec for codec in dict.fromkeys(result["codec"] for result in results) if codec != "none"]
    figure, panels = pyplot.subplots(1, len(codecs), figsize=(13, 4.2), sharey=True, squeeze=False)
    figure.suptitle("Accuracy of the demo's network after training at a learning rate, momentum 0.9", color=GREY, fontsize=13)
    for axes, codec in zip(panels[0], codecs):
        of_codec = [result for result in results if result["codec"] == codec]
        of = [result for result in of_codec if not result["options"]]
        before = [
            result for result in of_codec if result["options"].get("momentum") and not result["options"].get("warmup_steps")
        ]
        plain(axes, codec, "learning rate", "accuracy, %" if axes is panels[0][0] else "")
        axes.set_xscale("log")
        axes.set_ylim(0, 102)
        rates = [result["rate"] for result in of_none]
        axes.set_xticks(rates, [number(rate) for rate in rates], fontsize=8)
        axes.xaxis.set_minor_locator(NullLocator())
        for name, some, colour, style in (
            ("no codec", of_none, GREY, ":s"),
            ("with feedback", [result for result in of if result["feedback"]], COLOURS[1], "-o"),
            ("without", [result for result in of if not result["feedback"]], COLOURS[2], "--^"),
            ("with feedback,\nmomentum before", before, COLOURS[3], "-.D"),
        ):
            if not some:
                continue
            axes.plot([result["rate"] for result in some], [result["score"] for result in some], style, color=colour, label=name)
        if axes is panels[0][0] or before:
            for text in axes.legend(frameon=False, fontsize=8, loc="lower left").get_texts():
                text.set_color(GREY)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    saved(figure, path)
