"""docs/faults.md, made from a record: what is promised, and what was seen, ours beside Gloo."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from faults import FAULTS, GLOO, NEXT_RIGHT, OWN, Fault
from injection import ABORTED, ENDINGS, HUNG, NOT_TRIED, SILENT, REPORTED, WENT_ON
from scene import EACH, GLOO_SECONDS, OWN_SECONDS

Record = dict[str, Any]
Row = dict[str, Any]

PROMISES = """# Faults
This page lists the outcome for a job when processes, links or calls fail, with measurements.

* **No sum is wrong without an error.** Either all ranks get the right sum, to the bit, or all ranks get an exception.
* **A worker that dies** is named on every rank in under a second. One that hangs, or whose host is cut off, is named after
  about six. No rank waits for the operation's timeout. The job continues [without it or with a new
  process](tutorials/when-a-machine-dies.md), or restarts from its checkpoint.
* **A worker that aborts a group** is named on every rank at once. Its unfinished calls fail on every rank. A rank that has
  finished the call keeps the right result and gets the error in its next call. Calls before the abort have one second to
  finish.
* **Two workers that cannot reach each other**, while both live, are named on every rank after about six seconds.
* **A reducer that dies, hangs, is cut off or restarts** fails no step. The workers finish its operations themselves, with
  the same bits. One that hangs or is cut off delays them by about three seconds.
* **Calls that do not match** (type, size, operation) raise an exception on all ranks, with each rank's call. The group stays
  usable, even while a reducer is lost.
* **A flipped bit** is found by a checksum (CRC32C). On a link to a reducer no call fails. Between two workers all ranks get
  an exception that names the link.
* **A message that is duplicated, out of order or from another connection** is refused, even if both jobs have one token and
  make the same calls. So is a recorded connection that is replayed.
* **Data from strangers** at a job's ports has no effect.

Herringbone does not detect forged messages, because nothing is signed after the handshake: an attacker who can read and change
packets can change a sum ([SECURITY.md](../SECURITY.md)).

This page is written by

```sh
make faults
```

It injects every fault many times, into Gloo and Herringbone in the same run. `ARGS="--select reducer"` selects faults,
`ARGS="--injections 5"` limits the repetitions, and `ARGS=--json` prints each injection.
"""

BETWEEN_WORKERS = ("fault", "backend", "times", "outcome", "p50, ms", "max, ms", "rank named", "wrong results")
OF_REDUCERS = ("fault", "times", "outcome", "p50, ms", "max, ms", "wrong results")


def rendered(record: Record) -> str:
    """The page."""
    parts = [PROMISES, how(record), WORDS, tables(FAULTS, record["injections"]), leaks(record["injections"])]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def how(record: Record) -> str:
    """Where and how it was measured."""
    facts = record["machine"]
    layouts = " or ".join(" + ".join(map(str, each)) for each in EACH)
    return f"""
## Measurements
{record["date"]}, commit {facts["commit"]}, torch {record["torch"]}, {record["seconds"] / 60:.0f} minutes, on {facts["CPU"]}, {facts["cores"]} cores,
{facts["kernel"]}, with a load of {facts["load before"]} before the run. Raw figures: [record/faults.json](../record/faults.json).

The ranks run all-reduces of 1 MB in a loop, on three hosts with {layouts} ranks. Reducers have their own
hosts. Hosts are network namespaces with a router between them. The timeout is {OWN_SECONDS} s for Herringbone, and {GLOO_SECONDS} s for Gloo, whose
default is 30 minutes. For faults in the bytes to a reducer, three ranks and three reducers run on one host behind proxies.
"""


WORDS = """
* *Error on all*: every survivor got an exception; the times are until the last one.
* *Continued*: every rank has all its sums and no exception; the times are of the longest step.
* *No error*: a rank continued although its sum was wrong or the calls did not match. *Then right*: the next call was right.
* *Aborted*: a signal such as SIGABRT ended a process, which a program cannot catch.
* *Rank named*: exceptions that name the rank at fault (for flipped bits: the link) and no other.
"""


def tables(faults: list[Fault], injections: list[Row]) -> str:
    """A line for each fault and system: those that both systems can have, then those of Herringbone's reducers."""
    shared = [fault for fault in faults if GLOO in fault.systems or fault.name == TO_RANK_0]
    lines = [cells(BETWEEN_WORKERS), cells(["---"] * len(BETWEEN_WORKERS))]
    for fault in shared:
        for system in fault.systems:
            if found := of(injections, fault, system):
                title = fault.title if system == fault.systems[0] else ""
                lines.append(cells([title, "Gloo" if system == GLOO else "Herringbone", *seen(found)]))
    lines += [
        "",
        "Gloo has no reducers, so these rows are Herringbone's:",
        "",
        cells(OF_REDUCERS),
        cells(["---"] * len(OF_REDUCERS)),
    ]
    for fault in faults:
        if fault not in shared and (found := of(injections, fault, OWN)):
            *outcome, _, wrong = seen(found)
            lines.append(cells([fault.title, *outcome, wrong]))
    return "\n".join(lines) + "\n"


TO_RANK_0 = "flip to rank 0"
"""The fault of workers that nobody injects into Gloo."""


def of(injections: list[Row], fault: Fault, system: str) -> list[Row]:
    """The injections of a fault into a system."""
    return [each for each in injections if each["fault"] == fault.name and each["system"] == system]


def cells(texts: Any) -> str:
    """A line of a table."""
    return f"| {' | '.join(texts)} |"


SAID = {
    WENT_ON: "continued",
    REPORTED: "error on all",
    SILENT: "no error",
    ABORTED: "aborted",
    HUNG: "hung",
    NOT_TRIED: "could not be tried on this machine",
}


def seen(found: list[Row]) -> list[str]:
    """What became of the injections of one fault on one system."""
    endings = Counter(each["ending"] for each in found)
    jobs = len(found)
    words = ", ".join(
        SAID[ending] + ("" if endings[ending] == jobs else f" ({endings[ending]} of {jobs})")
        for ending in ENDINGS
        if endings[ending]
    )
    if all(each["note"].endswith(NEXT_RIGHT) for each in found):
        words += ", then right"
    slowest = [max(each["seconds"]) for each in found if each["seconds"]]
    times = [f"{1e3 * each:,.0f}" for each in (statistics.median(slowest), max(slowest))] if slowest else ["", ""]
    reported, survivors = sum(each["named"] for each in found), sum(each["survivors"] for each in found)
    blames = any(each["ending"] in (REPORTED, ABORTED) and each["seconds"] for each in found)
    named = f"{100 * reported / survivors:.0f} %" if blames else ""
    wrong = sum(each["wrong"] > 0 for each in found)
    return [
        str(sum(each["times"] for each in found)),
        words,
        *times,
        named,
        f"in {wrong} jobs" if wrong else "0",
    ]


def leaks(injections: list[Row]) -> str:
    """What the processes held open that have lost fifty reducers."""
    found = [each["note"] for each in injections if each["fault"] == "50 reducers"]
    if not found:
        return ""
    lines = "\n".join(f"* rank {rank}: {words}" for rank, words in enumerate(found[-1].split("; ")))
    return f"After 50 lost reducers the processes hold no more descriptors, and about as much memory:\n\n{lines}\n"
