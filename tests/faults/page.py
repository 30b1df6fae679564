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
What happens when processes, links or calls go wrong. In plain words:

* **No sum is ever wrong in silence.** Either all ranks get the right sum, to the bit, or all ranks get an exception.
* **A worker that dies is named on every rank in under a second.** One that hangs, or whose host is cut off, is named after
  about six. Nobody waits for the timeout of the operation. The job goes on [without it or with a new
  process](tutorials/when-a-machine-dies.md), or starts again from its checkpoint.
* **A worker that aborts a group is named on every rank at once.** Its call, and all after it, fail on every rank on which they
  have not ended when that hears of it. A rank on which the call has ended before has the right result, and is told in its next
  call. Calls before it, which have ended well on the worker that aborts, have one second to end on the others.
* **Two workers that are cut from each other**, while both live, are named on every rank after about six seconds.
* **A reducer that dies costs no step.** Nor does one that hangs, is cut off or is started again. The workers finish its
  operations themselves, with the same bits. One that hangs or is cut off holds them up for about three seconds.
* **Calls that do not fit together** (type, size, operation) are an exception on all ranks, which says who called what. The
  group stays usable, and no process is aborted. This holds while a reducer is lost, too.
* **A flipped bit is found** by a checksum (CRC32C). On a link to a reducer it costs no call. Between two workers all ranks
  get an exception that names the link.
* **A message that comes twice, out of order or from another connection is refused**, also if both jobs have the same token
  and make the same calls. So is a connection that somebody recorded and plays again.
* **Strangers disturb nobody**, whatever they say at a job's ports.

Herringbone does not promise to find forged messages: after the handshake nothing is signed. Who can read and alter packets on
their way can alter a sum ([SECURITY.md](../SECURITY.md)). A network does not do that by itself.

This page is written by

```sh
make faults
```

It injects every fault again and again, on Gloo and on Herringbone in the same run. `ARGS="--select reducer"` runs a part,
`ARGS="--injections 5"` runs fewer of each, `ARGS=--json` shows each injection.
"""

COLUMNS = (
    "fault",
    "on",
    "times",
    "what happened",
    "until all knew or went on, p50 / max",
    "rank named",
    "aborted",
    "wrong results",
)


def rendered(record: Record) -> str:
    """The page."""
    parts = [PROMISES, how(record), table(FAULTS, record["injections"]), WORDS, leaks(record["injections"])]
    return "\n".join(part.strip("\n") + "\n" for part in parts)


def how(record: Record) -> str:
    """Where and how it was measured."""
    facts = record["machine"]
    layouts = " or ".join(" + ".join(map(str, each)) for each in EACH)
    return f"""
## What was seen
{record["date"]}, commit {facts["commit"]}, torch {record["torch"]}, {record["seconds"] / 60:.0f} minutes in all, on
{facts["CPU"]}, {facts["cores"]} cores, {facts["kernel"]}, with a load of {facts["load before"]} before the run.

Hosts are network namespaces with a router between them. A job is ranks of torch in a loop of all-reduces of 1 MB. It has
three hosts with {layouts} ranks. Reducers have hosts of their own. The timeout of operations is
{OWN_SECONDS} s for Herringbone and {GLOO_SECONDS} s for Gloo: where its row says {GLOO_SECONDS} s, it would be 30 minutes by default.

The rows about bytes on links to reducers are jobs of three ranks and three reducers on one host. A proxy stands in front of
each reducer and does the harm.
Raw figures: [record/faults.json](../record/faults.json).
"""


WORDS = """
* *All were told*: every survivor got an exception.
* *Went on*: every rank has all its sums and no exception. The time is that of the longest step.
* *No error*: a rank went on as if all were well, though its sum was wrong or the ranks had called different operations.
* A bit that flips in a connection to rank 0 costs a rank its place in the job: the others are told that it is lost.
* *Aborted* counts processes that ended by SIGABRT or the like, and not by an exception that a program could catch.
* *Rank named* says how many of the survivors' exceptions name the rank (for flipped bits: the link) that is to blame,
  and nobody else.
"""


def table(faults: list[Fault], injections: list[Row]) -> str:
    """A line for each fault and system."""
    lines = [cells(COLUMNS), cells(["---"] * len(COLUMNS))]
    for fault in faults:
        for system in (GLOO, OWN):
            found = [each for each in injections if each["fault"] == fault.name and each["system"] == system]
            title = fault.title if system == GLOO else ""
            if system not in fault.systems:
                lines.append(cells([title, "Gloo", "", without(fault), "", "", "", ""]))
            elif found:
                lines.append(cells([title, "Gloo" if system == GLOO else "Herringbone", *seen(found)]))
    return "\n".join(lines) + "\n"


def without(fault: Fault) -> str:
    """Why Gloo cannot have a fault."""
    return "not tried" if fault.name == "flip to rank 0" else "has no reducers"


def cells(texts: Any) -> str:
    """A line of a table."""
    return f"| {' | '.join(texts)} |"


SAID = {
    WENT_ON: "went on",
    REPORTED: "all were told",
    SILENT: "no error",
    ABORTED: "some were aborted",
    HUNG: "hung",
    NOT_TRIED: "could not be tried on this machine",
}


def seen(found: list[Row]) -> list[str]:
    """What became of the injections of one fault on one system."""
    endings = Counter(each["ending"] for each in found)
    jobs = len(found)
    words = ", ".join(
        SAID[ending] + ("" if endings[ending] == jobs else f" ({endings[ending]} of {jobs} jobs)")
        for ending in ENDINGS
        if endings[ending]
    )
    if all(each["note"].endswith(NEXT_RIGHT) for each in found):
        words += "; the next call was right"
    slowest = [max(each["seconds"]) for each in found if each["seconds"]]
    times = f"{shown(statistics.median(slowest))} / {shown(max(slowest))}" if slowest else ""
    reported, survivors = sum(each["named"] for each in found), sum(each["survivors"] for each in found)
    blames = any(each["ending"] in (REPORTED, ABORTED) and each["seconds"] for each in found)
    named = f"{100 * reported / survivors:.0f} %" if blames else ""
    aborted, wrong = sum(each["aborted"] for each in found), sum(each["wrong"] > 0 for each in found)
    return [
        str(sum(each["times"] for each in found)),
        words,
        times,
        named,
        str(aborted),
        f"in {wrong} jobs" if wrong else "0",
    ]


def shown(seconds: float) -> str:
    """A time with two digits."""
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def leaks(injections: list[Row]) -> str:
    """What the processes held open that have lost fifty reducers."""
    found = [each["note"] for each in injections if each["fault"] == "50 reducers"]
    if not found:
        return ""
    lines = "\n".join(f"* rank {rank}: {words}" for rank, words in enumerate(found[-1].split("; ")))
    return f"Processes that have lost 50 reducers, five in each of ten jobs, hold no more than before:\n\n{lines}\n"
