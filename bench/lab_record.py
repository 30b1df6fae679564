"""The record of the lab of links: a table, what it says, and a picture."""

import statistics

from figures import duration, human
from plot import Axes
from svg import BLUE, INK, ORANGE, dot, line, picture, text
from tables import table

BLIND = ["ring", "star", "radix", "plan, blind"]
KNOWING = ["trees(best,single)", "trees(best)", "trees(throughput)", "trees", "plan"]
COLOURS = {
    "ring": "#a9746e",
    "star": "#7d93a8",
    "radix": "#8fa06a",
    "plan, blind": "#8c8c8c",
    "trees(best,single)": "#b39a5f",
    "trees(best)": ORANGE,
    "trees(throughput)": "#a187b0",
    "trees": "#1b7837",
    "plan": BLUE,
}
WIDTH, PANEL, HEIGHT, LEFT = 1160, 370, 300, 60


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
            f"{'**' if cell[name] == best else ''}{duration(cell[name])}{'**' if cell[name] == best else ''}" for name in COLOURS
        ]
        marks = ["*" if (size, count, name) in cut else "" for name in COLOURS]
        rows.append([human(size), str(count), *(a + b for a, b in zip(shown, marks, strict=True))])
    plans = [
        f"* {human(each['bytes'])}, {each['plan']}: {each['why']}"
        for each in found["lines"]
        if each.get("plan", "").startswith("plan")
    ]
    return f"""# Trees over the links of a p3.16xlarge
* CPU: {facts["CPU"]}, {facts["cores"]} cores, {facts["kernel"]}; commit {found["commit"]}
* eight network namespaces with a cable for each pair: {two} Mbit/s for two NVLinks (50 GB/s), {one} for one (25 GB/s), {pcie} for PCIe
  and processors (10 GB/s); each way, by token buckets
* `herringbone topo --measure` finds these rates with errors of {found["off"]:.1f} % at most
* `make lab-links`: the algorithms take turns; medians of the time of one operation, the slowest rank's

In MXNet's proposal PCIe is a slow link that trees do not use. So it is here. Ring, star
and radix go over it, because they know nothing of links; the plan goes over it as far as that costs no time. Operations in a row take turns with
eight buffers, and nobody waits before the last one. Rows with * were cut after a few seconds: they have fewer operations than the second column
says. "plan" and "trees" give the bits of every canonical algorithm, ring and the other trees their own. "plan, blind" has no topology.

{table(["size", "in a row", *COLOURS], rows)}

{chr(10).join(statements(cells))}

The plans, and their reasons:

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


def picture_of(found):
    """A panel for each count: time by size, both logarithmic."""
    cells, _ = medians(found["lines"])
    sizes, counts = sorted({size for size, _ in cells}), sorted({count for _, count in cells})
    times = [seconds for cell in cells.values() for seconds in cell.values()]
    title = "All-reduce over the links of a p3.16xlarge"
    parts = [text(20, 34, title, 20, weight=700)]
    for at, name in enumerate(COLOURS):
        x, y = 20 + (at % 5) * 190, 62 + (at // 5) * 20
        parts += [line([(x, y - 4), (x + 26, y - 4)], COLOURS[name], width(name)), text(x + 32, y, name, 13)]
    for panel, count in enumerate(counts):
        axes = Axes(LEFT + panel * PANEL, 120, PANEL - 80, HEIGHT, sizes, times)
        parts += [text(axes.x, 112, f"{count} in a row: time of one", 13, INK, weight=600), *axes.frame(duration)]
        for name, colour in COLOURS.items():
            points = [axes.at(size, cells[size, count][name]) for size in sizes if (size, count) in cells]
            parts += [line(points, colour, width(name)), *(dot(x, y, colour) for x, y in points)]
    return picture(WIDTH, 120 + HEIGHT + 40, title, parts)


def width(name):
    """Those that know the links are thick."""
    return 1.4 if name in BLIND else 2.6
