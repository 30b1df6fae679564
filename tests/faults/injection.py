"""What became of one injection, as it stands in the record."""

from __future__ import annotations

import re
import signal
from dataclasses import asdict, dataclass, field
from typing import Any

from lab.events import Rank

WENT_ON = "went on"
REPORTED = "told"
SILENT = "no error"
ABORTED = "aborted"
HUNG = "hung"
NOT_TRIED = "not tried"
ENDINGS = (WENT_ON, REPORTED, SILENT, ABORTED, HUNG, NOT_TRIED)
"""All ranks went on without an error; every survivor got an exception; some got none; a signal such as SIGABRT ended a
survivor; a survivor had to be ended; this machine lacks what the injection needs."""
CRASHES = (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS)
TYPED = 42
"""The exit status of a rank that got an exception."""


@dataclass
class Injection:
    """One fault, once, on one system."""

    fault: str
    system: str
    seed: int
    ending: str
    seconds: list[float] = field(default_factory=list)
    """For each survivor: until it was told, or its longest step where it goes on."""
    survivors: int = 0
    named: int = 0
    """How many survivors were told the right rank, and no other."""
    aborted: int = 0
    wrong: int = 0
    """How many ranks got a wrong result."""
    note: str = ""
    """What an error said, or what was done."""
    times: int = 1
    """How often it was injected in this job."""

    def raw(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"seconds": [round(each, 4) for each in self.seconds]}


def ending_of(statuses: list[int | None], silent: bool = False) -> str:
    """What became of the survivors in a word, by their exit statuses."""
    if None in statuses:
        return HUNG
    if any(status in CRASHES for status in statuses):
        return ABORTED
    if all(status == 0 for status in statuses):
        return SILENT if silent else WENT_ON
    return REPORTED if all(status == TYPED for status in statuses) else SILENT


def named_in(text: str) -> set[int]:
    """The ranks that an error speaks of, without the one that reports it."""
    text = re.sub(r"^herringbone, on rank \d+: ", "", text)
    found: set[int] = set()
    for several in re.findall(r"\branks? (\d[\d, and-]*)", text):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", several):
            found.update(range(int(first), int(last or first) + 1))
    return found


def blames(text: str, lost: list[int]) -> bool:
    """Whether an error names some of these ranks, and nobody else."""
    named = named_in(text)
    return bool(named) and named <= set(lost)


def judged(
    fault: str, system: str, seed: int, ranks: list[Rank], statuses: list[int | None], lost: list[int], when: float
) -> Injection:
    """What the ranks of a job that were not harmed say of it: `lost` are those that were."""
    survivors = [number for number in range(len(ranks)) if number not in lost]
    errors = {number: ranks[number].first("error") for number in survivors}
    raised = [error for error in errors.values() if error]
    done = [event for number in survivors if (event := ranks[number].first("done"))]
    wrong = sum(bool(rank.first("wrong")) for rank in ranks)
    ending = ending_of([statuses[number] for number in survivors])
    seconds = [max(0.0, error["time"] - when) for error in raised] or [event["longest"] for event in done]
    return Injection(
        fault,
        system,
        seed,
        SILENT if wrong and ending == WENT_ON else ending,
        seconds,
        len(survivors),
        sum(blames(error["text"], lost) for error in raised),
        sum(statuses[number] in CRASHES for number in survivors),
        wrong,
        noted(raised),
    )


def noted(errors: list[dict[str, Any]]) -> str:
    """What the first survivor was told, and each that was told something of another type."""
    first: dict[str, str] = {}
    for error in errors:
        first.setdefault(error["type"], error["text"][:300])
    return ". ".join(f"{kind}: {text}" for kind, text in first.items())
