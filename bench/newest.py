"""What pages show of the newest record of the rigs: README a table of ratios, docs/benchmarks.md the plot.

Both stand between two markers, so that `make bench` can renew them. The ratios come from the record's own tables.
"""

import re

from report import NAME
from text_tables import table

BEGIN, END = "<!-- rigs: `make bench` keeps these lines -->", "<!-- /rigs -->"
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
MPIS = ("openmpi", "impi")
HEADS = ["where", "buffer", "of Gloo's time", "of the faster MPI's time"]
INSIDE_SIZES, CLUSTER_SIZES = ("1 KiB", "25 MiB"), ("1 MiB", "25 MiB")
"""Which rows README shows: the record has them all."""
HOSTS = "Hosts are network namespaces of this machine. Figures of MPI and of reducers are without torch."


def newest(folder):
    """The name, without its ending, of the newest record of the rigs in `folder`, or None."""
    names = sorted(path.stem for path in folder.glob("*.md") if NAME.fullmatch(path.name))
    return names[-1] if names else None


def between_markers(page, shown):
    """A page's text with other lines between its markers."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{shown}\n{END}{after}"


def with_plot(page, name, place):
    """A page that shows the plot of the record `name`, which lies at `place` from there."""
    shown = f"[![all-reduce: time and bandwidth against size]({place}/{name}.svg)]({place}/{name}.md)"
    return between_markers(page, shown)


def with_ratios(page, name, record):
    """A page that shows the ratios of the record `name`, whose text is `record`; it lies in the folder record."""
    known = dict(re.findall(r"^\* (\w+): (.*)$", record, re.MULTILINE))
    machine = f"{known['CPU']}; {known['cores']} cores. [The record of {name[:10]}](record/{name}.md) has all sizes."
    return between_markers(page, f"{ratios(record)}\n\n{machine}\n{HOSTS}")


def ratios(record):
    """The table: inside a host one row per size with a figure for each number of ranks, then the cluster."""
    panels = [(heading, rows_of(text)) for heading, text in sections(record)]
    inside = {heading.split("N=")[1]: rows for heading, rows in panels if heading.startswith("Inside a host")}
    numbers = ", ".join(inside)
    lines = []
    for size in (size for size in INSIDE_SIZES if any(size in rows for rows in inside.values())):
        each = [rows.get(size, {}) for rows in inside.values()]
        gloo = ", ".join(ratio(row, "herringbone-torch", ["gloo"]) for row in each)
        mpi = ", ".join(ratio(row, "herringbone", MPIS) for row in each)
        lines.append([f"one host, {numbers} ranks", size, gloo, mpi])
    for heading, rows in panels:
        if match := re.match(r"Cluster, (.*) links, N=(\d+), (\d+) reducers", heading):
            rate, workers, reducers = match.groups()
            for size in (size for size in CLUSTER_SIZES if size in rows):
                without = ratio(rows[size], "herringbone-torch", ["gloo"])
                through = ratio(rows[size], "herringbone-reducers", ["gloo"])
                where = f"{workers} hosts, {rate} links"
                lines.append([where, size, f"{without}, with {reducers} reducers {through}", "-"])
    return table(HEADS, lines)


def sections(record):
    """(heading, text) of every interleaved run of a record."""
    return re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", record, re.MULTILINE | re.DOTALL)


def rows_of(text):
    """The table of a section: for each size its cells by column."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


def seconds(cell):
    """The time that a cell says; None where a program failed, was wrong, or missed a round."""
    match = re.fullmatch(r"([\d.]+) (us|ms|s)", cell)
    return float(match[1]) * UNITS[match[2]] if match else None


def ratio(row, own, others):
    """How many times the fastest of `others` it takes, as the record judges it if it does; a dash where either is missing."""
    judged = re.fullmatch(r"([\d.]+) \((\w+)\)", row.get(f"{own} / best peer", ""))
    if judged and judged[2] in others:
        return judged[1]
    mine = seconds(row.get(own, ""))
    theirs = [time for time in (seconds(row.get(other, "")) for other in others) if time]
    return f"{mine / min(theirs):.2f}" if mine and theirs else "-"
