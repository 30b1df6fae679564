"""The record of the lab of links: a table, what it says, and a picture."""

import statistics

from figures import duration, human
from plot import Axes, time_label
from svg import BLUE, CYAN, GREEN, GREY, INK, OLIVE, ORANGE, PINK, PURPLE, RED, line, mark, picture, text
from text_tables import table

BLIND = ["ring", "star", "radix", "plan, blind"]
KNOWING = ["trees(best,single)", "trees(best)", "trees(throughput)", "trees", "plan"]
LOOKS = {
    "ring": (RED, "square"),
    "star": (OLIVE, "triangle"),
    "radix": (CYAN, "diamond"),
    "plan, blind": (BLUE, "nabla"),
    "trees(best,single)": (PURPLE, "square"),
    "trees(best)": (ORANGE, "triangle"),
    "trees(throughput)": (PINK, "diamond"),
    "trees": (GREEN, "nabla"),
    "plan": (BLUE, "circle"),
}
"""The colour and the mark of each algorithm; a colour that two share is dashed for the one that is blind."""
PANEL, HEIGHT, LEFT, RIGHT, ACROSS = 500, 270, 72, 190, 2
"""Sizes of a panel, with room for the labels of its axis and the names at its ends, and how many stand side by side."""


def medians(lines):
    """{(bytes, count): {algorithm: seconds of an operation}}, and how many operations were in the rows that were cut."""
    found, cut = {}, {}
    for each in (each for each in lines if "seconds" in each):
        cell = found.setdefault((each["bytes"], each["count"]), {})
        cell.setdefault(each["algorithm"], []).append(each["seconds"])
        if each["done"] < each["count"]:
            cut[each["bytes"], each["count"], each["algorithm"]] = each["done"]
    return {key: {name: statistics.median(all_) for name, all_ in cell.items()} for key, cell in found.items()}, cut


def record_of(found):
    """The page."""
    cells, cut = medians(found["lines"])
    facts, (pcie, one, two) = found["machine"], found["rates"].values()
    rows = []
    for (size, count), cell in cells.items():
        best = min(cell.values())
        shown = [
            f"{'**' if cell[name] == best else ''}{duration(cell[name])}{'**' if cell[name] == best else ''}" for name in LOOKS
        ]
        marks = ["*" if (size, count, name) in cut else "" for name in LOOKS]
        rows.append([human(size), str(count), *(a + b for a, b in zip(shown, marks, strict=True))])
    reasons = [each["why"] for each in found["lines"] if each.get("plan") == "plan"]
    plans = [f"* {why}" for why in dict.fromkeys(reasons)]
    return f"""# Trees over the links of a p3.16xlarge
* CPU: {facts["CPU"]}, {facts["cores"]} cores, {facts["kernel"]}; commit {found["commit"]}
* Eight network namespaces with a cable for each pair. Token buckets limit it to {two} Mbit/s each way for two NVLinks (50 GB/s), {one} for one, and
  {pcie} for PCIe and processors.
* `herringbone topo --measure` finds these rates with errors of {found["off"]:.1f} % at most
* `make lab-links` writes this page: the algorithms take turns; medians of the slowest rank's time of one operation

As in MXNet's proposal, PCIe is a slow link that trees do not use. Ring, star and radix use it, because they do not know the links. The plan
uses it where that costs no time. Operations in a row use eight buffers in turn and do not wait for each other. Rows with * were cut after a few
seconds. "plan" and "trees" have the canonical bits. "plan, blind" has no topology.

{table(["size", "in a row", *LOOKS], rows)}

{chr(10).join(statements(cells))}

The plan, and its reason:

{chr(10).join(plans)}

![time by size](lab-links.svg)
"""


def statements(cells):
    """What the table says."""
    faster = [min(cell["ring"], cell["star"]) / min(cell[name] for name in KNOWING) for cell in cells.values()]
    trees = [min(cell["ring"], cell["star"]) / min(cell["trees(best)"], cell["trees(best,single)"]) for cell in cells.values()]
    won = sum(each > 1 for each in trees)
    yield f"* Topology-aware trees (one or all) beat both ring and star in {won} of {len(cells)} rows, by {min(trees):.2f} to {max(trees):.2f} times."
    yield f"* The fastest algorithm that knows the links is {min(faster):.2f} to {max(faster):.2f} times as fast as the faster of ring and star."
    near = {key: cell["plan"] / min(cell.values()) for key, cell in cells.items()}
    good = [key for key, ratio in near.items() if ratio <= 1.1]
    yield f"* The plan's choice is within 10 % of the best in {len(good)} of {len(cells)} rows."
    for (size, count), ratio in near.items():
        if ratio > 1.1:
            cell = cells[size, count]
            best = min(cell, key=cell.get)
            yield f"  {human(size)}, {count} in a row: {ratio:.2f} times the time of {best}."


def picture_of(cells):
    """A panel for each count: time by size, both logarithmic; `cells` are those of `medians`."""
    sizes, counts = sorted({size for size, _ in cells}), sorted({count for _, count in cells})
    times = [seconds for cell in cells.values() for seconds in cell.values()]
    title = "All-reduce over the links of a p3.16xlarge: time of one operation against the buffer's size"
    about = "thick: knows the links; thin and dashed: blind; at the right the times of the last size"
    parts = [text(20, 34, title, 18, weight=700), text(20, 58, about, 13, GREY)]
    for panel, count in enumerate(counts):
        left, top = panel % ACROSS * PANEL, 112 + panel // ACROSS * (HEIGHT + 70)
        axes = Axes(left + LEFT, top, PANEL - LEFT - RIGHT, HEIGHT, sizes, times)
        alone = "one operation alone" if count == 1 else f"{count} operations in a row"
        parts += [text(axes.x, top - 14, alone, 13, INK, weight=600), *axes.frame(time_label)]
        named = []
        for name, (colour, shape) in LOOKS.items():
            there = [(size, cells[size, count][name]) for size in sizes if (size, count) in cells]
            points = [axes.at(*each) for each in there]
            parts.append(line(points, colour, *((1.4, "5 3") if name in BLIND else (2.6, None))))
            parts += [mark(x, y, colour, shape) for x, y in points]
            named.append((points[-1], colour, f"{name} {duration(there[-1][1])}"))
        parts += axes.ends(named)
    return picture(ACROSS * PANEL, top + HEIGHT + 36, title, parts)
