"""The faults: a function injects each once, on a system, by a seed. `run.py` runs this table, and the page shows it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cables import PROXY_PORT, Hosts
from injection import HUNG, NOT_TRIED, SILENT, REPORTED, WENT_ON, Injection, ending_of, judged, named_in
from integrity import REFUSED, WORKERS, Outcome, Reducers, lose_fifty
from jobs import doing
from scene import EACH, FIRST_PORT, HOSTS, PORTS, REDUCERS, Lab, Serving, by, listening

from lab.events import Silence

GLOO, OWN = "gloo", "herringbone"
LIMIT_SECONDS = 25
"""A survivor that has heard nothing by then hangs: both timeouts that count here are shorter."""
PAUSE_SECONDS = 2.0
MOST_GROWTH = 1.1
"""Of a process's memory over seven jobs: heaps fill up before they stay level."""
MEETING_SECONDS = 12
ONCE, FEW, MANY, FLIPS = "once", "few", "many", "flips"
"""How often a fault is injected."""
HOSTS_PLACE, PROXIES_PLACE = "hosts", "proxies"
"""Where: among hosts with ranks of torch, or in jobs of arrays whose reducers are behind proxies."""


NEXT_RIGHT = " The next call was right."
"""Ends the note of a mistake after which the group was of use."""


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    title: str
    right: tuple[str, ...]
    """What may become of it on Herringbone."""
    inject: Callable[[Any, str, str, int], Injection]
    """Takes the place of its kind, the fault's name, the system's and a seed."""
    often: str = MANY
    systems: tuple[str, ...] = (GLOO, OWN)
    place: str = HOSTS_PLACE


def layout(seed: int) -> tuple[int, ...]:
    """Three hosts of two ranks or of one in turns."""
    return EACH[seed % 2]


def signalled(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """A rank is killed, or stopped for good, in the middle of a loop of all-reduces."""
    rng, each = random.Random(seed), layout(seed)
    what = signal.SIGKILL if fault == "kill a worker" else signal.SIGSTOP
    with lab.summing(system, each) as job:
        job.wait("going")
        time.sleep(rng.random() / 10)
        victim = rng.randrange(sum(each))
        when = job.ranks[victim].send(what)
        survivors = [rank for rank in job.ranks if rank is not job.ranks[victim]]
        lab.ranks.finish(survivors, LIMIT_SECONDS)
        statuses = [rank.status for rank in job.ranks]
        return judged(fault, system, seed, job.ranks, statuses, [victim], when)


def paused(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """A rank is stopped for two seconds and goes on."""
    rng, each = random.Random(seed), layout(seed)
    with lab.summing(system, each) as job:
        job.wait("going")
        victim = job.ranks[rng.randrange(sum(each))]
        when = victim.send(signal.SIGSTOP)
        time.sleep(PAUSE_SECONDS)
        victim.send(signal.SIGCONT)
        job.stop()
        return judged(fault, system, seed, job.ranks, lab.ranks.finish(job.ranks, LIMIT_SECONDS), [], when)


CUTS = {
    "pull": (Hosts.pull, Hosts.plug),
    "silence": (Hosts.silence, Hosts.unsilence),
    "deafen": (Hosts.deafen, Hosts.undeafen),
}
"""How links break, and how they are mended."""


def cut(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """The link of a host with workers breaks, in both directions or in one."""
    rng, each = random.Random(seed), layout(seed)
    host = rng.randrange(HOSTS)
    harm, repair = CUTS[fault.split()[0]]
    with lab.summing(system, each) as job:
        job.wait("going")
        lost, when = job.on(host), time.monotonic()
        harm(lab.hosts, host)
        try:
            statuses = lab.ranks.finish(job.ranks, LIMIT_SECONDS)
        finally:
            repair(lab.hosts, host)
        return judged(fault, system, seed, job.ranks, statuses, lost, when)


def parted(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """Two hosts are cut from each other, and both reach rank 0's."""
    pair = [1, 2]
    with lab.summing(system, (1, 1, 1)) as job:
        job.wait("going")
        when = time.monotonic()
        lab.hosts.part(*pair)
        try:
            statuses = lab.ranks.finish(job.ranks, LIMIT_SECONDS)
        finally:
            lab.hosts.unpart(*pair)
        return judged(fault, system, seed, job.ranks, statuses, pair, when)


def mistaken(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """One rank calls another operation than the others."""
    each = layout(seed)
    last = sum(each) - 1
    with lab.job(doing("mistaken", **by(system), mistake=fault.split()[-1]), system, each) as job:
        statuses = lab.ranks.finish(job.ranks, LIMIT_SECONDS)
        begun = max((event["time"] for rank in job.ranks if (event := rank.first("going"))), default=0.0)
        found = judged(fault, system, seed, job.ranks, statuses, [], begun)
        errors = [event for rank in job.ranks if (event := rank.first("error"))]
        found.named = sum(last in named_in(event["text"]) for event in errors)
        found.ending = ending_of(statuses, silent=True)
        # What a call of different operations returns without an error is right for nobody.
        found.wrong = sum(bool(rank.first("returned")) for rank in job.ranks)
        again = [rank.first("again") for rank in job.ranks]
        if all(event and event["right"] for event in again):
            found.note += NEXT_RIGHT
        return found


def nonsense(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """A stranger calls every port of the job and says nonsense."""
    each = layout(seed)
    with lab.summing(system, each) as job:
        job.wait("going")
        when = time.monotonic()
        ports = [
            (lab.hosts.address(job.host_of(at)), port)
            for at, rank in enumerate(job.ranks)
            for port in listening(rank.process.pid)
        ]
        stranger = lab.ranks.start(*doing("garbage", addresses=ports, seed=seed), host=lab.hosts.network(None))
        stranger.wait("harmed", seconds=30)
        time.sleep(0.3)
        job.stop()
        statuses = lab.ranks.finish(job.ranks, LIMIT_SECONDS)
        lab.ranks.end([stranger])
        return judged(fault, system, seed, job.ranks, statuses, [], when)


def flipped(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """One bit flips in the network: of what two workers send each other, or of what a rank and rank 0 say of the job."""
    of_data = fault == "flip between workers"
    port = FIRST_PORT + (lab.jobs + 1) % PORTS
    lab.hosts.redirect()
    arguments: dict[str, Any] = {"seed": seed, "apart": [port], "speaks": system == OWN}
    arguments |= {"purpose": "data", "limits": [200, 1_500, 150_000]} if of_data else {"purpose": "join", "limits": [60, 300]}
    # A rank that is not let in is missed by the others until then.
    changed: dict[str, Any] = {} if of_data else {"timeout": MEETING_SECONDS}
    proxy = lab.ranks.start(*doing("proxied", address=f"0.0.0.0:{PROXY_PORT}", **arguments), host=lab.hosts.network(None))
    try:
        proxy.wait("listening")
        with lab.summing(system, (1, 1, 1), **changed) as job:
            harmed = proxy.wait("harmed", seconds=15)
            time.sleep(0.7)
            job.stop()
            statuses = lab.ranks.finish(job.ranks, LIMIT_SECONDS)
            found = judged(fault, system, seed, job.ranks, statuses, [], harmed["time"])
            errors = [event["text"] for rank in job.ranks if (event := rank.first("error"))]
            found.named = sum("between rank" in text if of_data else bool(named_in(text)) for text in errors)
            found.note = f"{harmed['what']}. {found.note}"
            return found
    finally:
        lab.ranks.end([proxy])
        lab.hosts.direct()


def reducer(lab: Lab, fault: str, system: str, seed: int) -> Injection:
    """A reducer comes to harm while workers add up through it; the same is then whole again for the next job."""
    rng, each = random.Random(seed), EACH[seed % 3]
    number, action = rng.randrange(REDUCERS), fault.split()[0]
    with lab.serving() as reducers, lab.summing(system, each, reducers) as job:
        job.wait("going")
        time.sleep(rng.random() / 10)
        when = time.monotonic()
        try:
            harm_reducer(lab, reducers, number, action)
            time.sleep(0.3)
            job.stop()
            statuses = lab.ranks.finish(job.ranks, LIMIT_SECONDS)
        finally:
            if action in CUTS:
                CUTS[action][1](lab.hosts, HOSTS + number)
        if not sum(event["reducers"] for rank in job.ranks if (event := rank.first("done"))) and statuses == [0] * len(statuses):
            raise Silence(f"{fault}: the job did not use its reducers")
        return judged(fault, system, seed, job.ranks, statuses, [], when)


def harm_reducer(lab: Lab, reducers: Serving, number: int, action: str) -> None:
    """What happens to it."""
    if action in CUTS:
        CUTS[action][0](lab.hosts, HOSTS + number)
        return
    reducers.send(number, signal.SIGSTOP if action == "stop" else signal.SIGKILL)
    if action == "restart":
        reducers.restart(number)


def of_workers() -> list[Fault]:
    """Those that both systems can have."""
    errors, on = (REPORTED,), (WENT_ON,)
    return [
        Fault("kill a worker", "SIGKILL of a worker", errors, signalled),
        Fault("stop a worker", "SIGSTOP of a worker", errors, signalled, FEW),
        Fault("pause a worker", f"SIGSTOP of a worker, SIGCONT after {PAUSE_SECONDS:.0f} s", on, paused, FEW),
        Fault("pull a host", "the cable of a worker's host is pulled", errors, cut, FEW),
        Fault("silence a host", "a worker's host can only receive", errors, cut, FEW),
        Fault("deafen a host", "a worker's host can only send", errors, cut, FEW),
        Fault("part two hosts", "two hosts cannot reach each other, but both reach rank 0's", errors, parted, FEW),
        Fault("mistake of dtype", "one rank has int32, the others float32", errors, mistaken, FEW),
        Fault("mistake of size", "one rank has 1,001 elements, the others 1,000", errors, mistaken, FEW),
        Fault("mistake of op", "one rank calls MAX, the others SUM", errors, mistaken, FEW),
        Fault("garbage", "random bytes at every port of the job", on, nonsense, FEW),
        Fault("flip between workers", "a bit flips between two workers", errors, flipped, MANY),
        Fault(
            "flip to rank 0",
            "a bit flips in a connection to rank 0, which drops that rank",
            errors,
            flipped,
            FEW,
            (OWN,),
        ),
    ]


def of_reducers() -> list[Fault]:
    """Those that only Herringbone can have."""
    rows = [
        ("kill a reducer", "SIGKILL of a reducer", MANY),
        ("restart a reducer", "SIGKILL and restart of a reducer", FEW),
        ("stop a reducer", "SIGSTOP of a reducer", FEW),
        ("pull a reducer", "the cable of a reducer's host is pulled", FEW),
        ("silence a reducer", "a reducer's host can only receive", FEW),
        ("deafen a reducer", "a reducer's host can only send", FEW),
    ]
    return [Fault(name, title, (WENT_ON,), reducer, often, (OWN,)) for name, title, often in rows]


def through_reducers(place: Reducers, fault: str, system: str, seed: int) -> Injection:
    """Something happens to bytes on their way to a reducer, or back."""
    outcome = BY_PROXY[fault](place, seed)
    ending = WENT_ON if outcome.is_right else HUNG if outcome.hangs else REPORTED if outcome.is_refused else SILENT
    errors = [event["text"][:300] for event in outcome.events if event["event"] in ("error", "failed")]
    wrong = sum(event["event"] == "wrong" for event in outcome.events)
    note = ". ".join([*outcome.done, *errors[:1]])
    return Injection(fault, system, seed, ending, [], WORKERS, len(outcome.reported), 0, wrong, note, times=len(outcome.done))


def played_again(place: Reducers, fault: str, system: str, seed: int) -> Injection:
    """A recorded connection is played again to the reducer that it was with."""
    answer = place.played_again(seed)
    ending = REPORTED if answer.endswith(REFUSED) else SILENT
    return Injection(fault, system, seed, ending, [], 1, 0, 0, 0, f"the answer: {answer[-9:].hex()}")


def bereaved(place: Reducers, fault: str, system: str, seed: int) -> Injection:
    """Fifty reducers are killed, in ten jobs of the same processes; descriptors and memory before and after."""
    outcome, first, last = lose_fifty(place)
    grown = [b["memory"] / a["memory"] for a, b in zip(first, last, strict=True)]
    # One connection may be closed a little later. A leak would be one of each job at the least.
    level = [a["descriptors"] + 1 >= b["descriptors"] for a, b in zip(first, last, strict=True)]
    ending = WENT_ON if outcome.is_right and all(level) and max(grown) < MOST_GROWTH else SILENT
    words = [
        f"{a['descriptors']} descriptors and {a['memory']:.1f} MiB after the jobs 2 to 4, "
        f"{b['descriptors']} and {b['memory']:.1f} MiB after the last three"
        for a, b in zip(first, last, strict=True)
    ]
    return Injection(fault, system, seed, ending, [], WORKERS, note="; ".join(words))


BY_PROXY: dict[str, Callable[[Reducers, int], Outcome]] = {
    "flip to reducers": Reducers.flipped,
    "flip in a handshake": Reducers.flipped_in_greetings,
    "frame twice": Reducers.doubled,
    "frames swapped": Reducers.swapped,
    "frames of another job": Reducers.foreign,
}


def of_bytes() -> list[Fault]:
    """Those of links to reducers, by proxies."""
    on, either = (WENT_ON,), (WENT_ON, REPORTED)
    rows = [
        ("flip to reducers", "a bit flips between a worker and a reducer", on, FLIPS),
        ("flip in a handshake", "a bit flips in the handshake with a reducer", either, MANY),
        ("frame twice", "a message to or from a reducer is duplicated", on, MANY),
        ("frames swapped", "two messages to or from a reducer are swapped", on, MANY),
        ("frames of another job", "a reducer gets messages of another job with the same calls", on, MANY),
    ]
    found = [Fault(name, title, right, through_reducers, often, (OWN,), PROXIES_PLACE) for name, title, right, often in rows]
    again = "a recorded connection is replayed to its reducer"
    fifty = "50 reducers are killed in ten jobs"
    return [
        *found,
        Fault("connection again", again, (REPORTED,), played_again, FEW, (OWN,), PROXIES_PLACE),
        Fault("50 reducers", fifty, on, bereaved, ONCE, (OWN,), PROXIES_PLACE),
    ]


FAULTS = [*of_workers(), *of_reducers(), *of_bytes()]


def is_wrong(fault: Fault, found: dict[str, Any]) -> bool:
    """Whether Herringbone did not do what is promised."""
    return (
        found["ending"] != NOT_TRIED
        and found["system"] == OWN
        and (found["ending"] not in fault.right or found["wrong"] > 0 or found["aborted"] > 0)
    )
