"""The figures of a record, and what follows from them: medians, the best peer, the limits.

A record is a dict that goes to JSON and back: `date`, `machine`, `releases`, `notes`, `floor` ({N: {bytes: seconds}},
keys are text) and `panels`. A panel is one interleaved run: `rig` (local, cluster), `n`, `rate` (Mbit/s; 0: no limit),
`reducers`, `sizes`, `rounds`, `budget`, `command`, and `programs`: {name: {bytes: {seconds, cpu, ok}}}, where `seconds`
and `cpu` hold one figure per round (of one all-reduce; CPU seconds of all ranks together).
"""

import statistics

OURS = ("herringbone", "herringbone-reducers", "herringbone-torch")


def gathered(raw, programs):
    """bench.py's list of figures as the `programs` of a panel; one that never answered has no sizes."""
    found = {program: {} for program in programs}
    for one in raw:
        sizes = found.setdefault(one["peer"], {})
        at = sizes.setdefault(str(one["bytes"]), {"seconds": [], "cpu": [], "ok": True})
        at["seconds"].append(one["mean"])
        at["cpu"].append(one["cpu"])
        at["ok"] &= one["ok"]
    return found


def seconds(panel, program, size):
    """The median over the rounds, or None where the program failed."""
    at = panel["programs"].get(program, {}).get(str(size))
    return statistics.median(at["seconds"]) if at else None


def peers(panel):
    """The programs that are not ours."""
    return [program for program in panel["programs"] if program not in OURS]


def ours(panel):
    """Our programs, in the order in which they are shown."""
    return [program for program in OURS if program in panel["programs"]]


def best_peer(panel, size):
    """Name and seconds of the fastest peer that was right in every round; (None, None) without one."""
    found = []
    for program in peers(panel):
        at = panel["programs"][program].get(str(size))
        if at and at["ok"] and len(at["seconds"]) == panel["rounds"]:
            found.append((statistics.median(at["seconds"]), program))
    return min(found)[::-1] if found else (None, None)


def link_seconds(panel, size):
    """How long one link takes for the whole buffer, at its raw rate."""
    return size / (panel["rate"] * 1e6 / 8)


def limits(panel, size, floor):
    """What bounds an all-reduce of `size` bytes: name -> seconds.

    Inside a host the measured floor (all processes map all buffers). On the cluster the ring bound, 2 (N-1)/N of the
    buffer through each link, and with reducers the server bound: the buffer through each worker's link, or N times its
    part through each reducer's where those are fewer.
    """
    if panel["rig"] == "local":
        measured = floor.get(str(panel["n"]), {}).get(str(size))
        return {"floor": measured} if measured else {}
    link, n, reducers = link_seconds(panel, size), panel["n"], panel["reducers"]
    bounds = {"ring bound": 2 * (n - 1) / n * link}
    if reducers:
        bounds["server bound"] = max(1.0, n / reducers) * link
    return bounds


def complaints(record):
    """A sentence for each thing that went wrong: a program without figures, a wrong result."""
    found = []
    for panel in record["panels"]:
        for program, sizes in panel["programs"].items():
            place = f"{program}, {title(panel)}"
            for size in panel["sizes"]:
                at = sizes.get(str(size))
                if not at:
                    found.append(f"{place}, {human(size)}: failed in every round")
                elif not at["ok"]:
                    found.append(f"{place}, {human(size)}: WRONG RESULT")
                elif len(at["seconds"]) < panel["rounds"]:
                    lost = panel["rounds"] - len(at["seconds"])
                    found.append(f"{place}, {human(size)}: failed in {lost} of {panel['rounds']} rounds")
    return found


def ours_failed(record):
    """Whether any of our programs went wrong."""
    return any(complaint.startswith("herringbone") for complaint in complaints(record))


def title(panel):
    """What a panel is, in words."""
    if panel["rig"] == "local":
        return f"inside a host, N={panel['n']}"
    rate, reducers = f"{panel['rate']} Mbit/s links", panel["reducers"]
    with_reducers = f", {reducers} reducer{'s' if reducers > 1 else ''}" if reducers else ""
    return f"cluster, {rate}, N={panel['n']}{with_reducers}"


def human(size):
    """Bytes with a binary unit: 25 MiB."""
    for unit, bytes_of in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_of:
            return f"{size / bytes_of:.4g} {unit}"
    return f"{size} B"


def duration(value):
    """Seconds with three significant digits and a unit: 18.8 us, 3.76 ms, 637 ms."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if value * factor < 999.5:
            return f"{three_digits(value * factor)} {unit}"
    return f"{three_digits(value)} s"


def three_digits(value):
    """Three significant digits without an exponent."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
