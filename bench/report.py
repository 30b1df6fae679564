"""A record of the rigs as Markdown, and which records a newer one replaces."""

import re
import shlex

from figures import (
    best_peer,
    complaints,
    duration,
    human,
    limits,
    ours,
    peers,
    seconds,
    three_digits,
    title,
)
from text_tables import table

BOUNDS = {"herringbone": ("floor", "ring bound"), "herringbone-reducers": ("server bound",)}
NAME = re.compile(r"\d{4}-\d{2}-\d{2}-rigs\.md")
KIND = ("* CPU:", "* cores:", "* caches:")
EXPLANATION = """\
Times are medians of the rounds of one run, in which the programs take turns. Compare two programs only within one table. "best peer" is
the fastest correct program of another project, "spread" the range of herringbone's rounds, and "torch adds" the extra time of
herringbone-torch. $RIGS is the folder that `bench/run.py` got as --rigs."""
BOUND_MEANINGS = {
    "floor": """\
"floor" is the least measured time to read the buffers of all ranks once and to write the sums to each, in shared memory.""",
    "ring bound": """\
"ring bound" is the time of a link, at its raw rate, for the 2 (N-1)/N of the buffer that each worker moves without reducers.""",
    "server bound": """\
"server bound" is the same with reducers: the buffer over a worker's link, or N parts over a reducer's, whichever takes longer.""",
}


def markdown(record, picture):
    """The whole record; `picture` is the name of the plot's file next to it."""
    parts = [
        f"# The rigs, {record['date']}",
        "\n".join(f"* {name}: {value}" for name, value in record["machine"].items())
        + f"\n* peers: {', '.join(f'{name} {release}' for name, release in record['releases'].items()) or 'none'}",
        "\n".join([EXPLANATION, *meanings(record)]),
        f"![time and bandwidth of an all-reduce against its size]({picture})",
    ]
    notes = record["notes"] + complaints(record)
    if notes:
        parts.append("What is missing or went wrong:\n\n" + "\n".join(f"* {note}" for note in notes))
    for panel in record["panels"]:
        parts += panel_markdown(panel, record["floor"])
    return "\n\n".join(parts) + "\n"


def meanings(record):
    """A sentence about each limit that a table of the record compares with."""
    known = {name for panel in record["panels"] for size in panel["sizes"] for name in limits(panel, size, record["floor"])}
    return [meaning for name, meaning in BOUND_MEANINGS.items() if name in known]


def panel_markdown(panel, floor):
    """The heading, the command and the table of one run."""
    heading = title(panel)
    yield f"## {heading[0].upper()}{heading[1:]}"
    yield f"```text\n{folded(panel['command'])}\n```"
    yield times(panel, floor)


def times(panel, floor):
    """Seconds per all-reduce of every program, and ours as multiples."""
    programs = [*peers(panel), *ours(panel)]
    known = {name for size in panel["sizes"] for name in limits(panel, size, floor)}
    judged = {name: [each for each in BOUNDS[name] if each in known] for name in programs if name in BOUNDS}
    heads, rows = ["size", *programs, "spread"], []
    for program, bounds in judged.items():
        heads += [f"{program} / {what}" for what in ("best peer", *bounds)]
    for size in panel["sizes"]:
        name, best = best_peer(panel, size)
        limit = limits(panel, size, floor)
        row = [human(size), *(cell(panel, program, size) for program in programs), spread(panel, size)]
        for program, bounds in judged.items():
            own = seconds(panel, program, size)
            row.append(f"{multiple(own, best)} ({name})" if best and own else "-")
            row += [multiple(own, limit.get(bound)) for bound in bounds]
        rows.append([*row, torch_adds(panel, size)])
    return table([*heads, "torch adds"], rows)


def cell(panel, program, size):
    """A program's time at a size, with what makes it doubtful."""
    own = seconds(panel, program, size)
    if own is None:
        return "failed"
    at = panel["programs"][program][str(size)]
    alive = "" if len(at["seconds"]) == panel["rounds"] else f" ({len(at['seconds'])}/{panel['rounds']} rounds)"
    return f"{duration(own)}{alive}{'' if at['ok'] else ' WRONG'}"


def spread(panel, size):
    """Least..most of herringbone's rounds."""
    at = panel["programs"].get("herringbone", {}).get(str(size))
    return f"{duration(min(at['seconds']))}..{duration(max(at['seconds']))}" if at else "-"


def torch_adds(panel, size):
    """What an operation through torch takes longer than one of the engine alone."""
    through, alone = (seconds(panel, program, size) for program in ("herringbone-torch", "herringbone"))
    if not (through and alone):
        return "-"
    return f"{'-' if through < alone else ''}{duration(abs(through - alone))}"


def multiple(own, other):
    """own / other with three digits; a dash if either is missing."""
    return f"{three_digits(own / other)}" if own and other else "-"


def folded(command):
    """A command over several lines: one for each --add and --server."""
    lines = [[]]
    for word in shlex.split(command):
        if word in ("--add", "--server"):
            lines.append([])
        lines[-1].append(word if word.startswith("$") else shlex.quote(word))
    return " \\\n    ".join(" ".join(line) for line in lines)


def outdated(folder):
    """The records that a newer one of the same kind of machine replaces, and that no other page links to."""
    pages = {path.name: path.read_text() for path in sorted(folder.glob("*.md")) if path.name != "README.md"}
    kinds = {}
    for name in (name for name in pages if re.match(r"\d{4}-\d{2}-\d{2}-rigs", name)):
        kind = tuple(line for line in pages[name].splitlines() if line.startswith(KIND))
        kinds.setdefault(kind, []).append(name)
    older = [name for names in kinds.values() for name in sorted(names, key=date_then_plain)[:-1]]
    return [name for name in older if not any(f"]({name})" in text for text in pages.values())]


def date_then_plain(name):
    """Sorts records by date; of one day, the one without an addition to its name is the last."""
    return name[:10], NAME.fullmatch(name) is not None
