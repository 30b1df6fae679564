"""Jobs whose links to reducers pass through proxies that harm them, by seed: for `make faults` and python/tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import pathlib
import random
import socket
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "bench"), str(ROOT)]

from jobs import doing
from ports import free_port
from proxy import Connection, Doubled, Flip, Foreign, Harm, Proxy, Recorded, Swapped

from lab.events import Rank, Ranks
from lab.job import Process, environment, start

WORKERS = 3
REDUCERS = 3
HANG_SECONDS = 40
"""A job takes half a second; its operations time out after 20 s."""
SECONDS, LEAST = 0.25, 16
"""How long a job adds up, and how often at the least."""
COUNTS = (300, 5_000, 30_000, 200_000)
SHORTEST = {300: 1_600, 5_000: 20_000, 30_000: 100_000, 200_000: 600_000}
"""Bytes that pass every link in every direction in a job of so many elements, and are behind the handshake."""
REFUSED = b"\xa8HRB\x05\x00\x01\x00\x01"
"""How a reducer refuses a proof that is not of its token and its nonce."""
LIVES, DEATHS = 10, 5
"""Jobs of the same processes, and how many reducers are killed in each."""
GREETING_BYTES = 60
"""Each side of a handshake has at least so many."""


@dataclass
class Outcome:
    """What became of a job whose connections were harmed."""

    seed: int
    done: list[str]
    statuses: list[int | None]
    events: list[dict[str, Any]] = field(repr=False)

    @property
    def hangs(self) -> bool:
        """Whether a rank had to be ended, or was told by a timeout."""
        return None in self.statuses or any(event.get("type") == "OperationTimeoutError" for event in self.events)

    @property
    def is_wrong(self) -> bool:
        """Whether a rank got a sum that is not right."""
        return any(event["event"] == "wrong" for event in self.events)

    @property
    def is_right(self) -> bool:
        """Whether all ranks have all their sums, and none got an exception."""
        return all(status == 0 for status in self.statuses) and not self.is_wrong

    @property
    def reported(self) -> list[str]:
        """The types of the errors that ranks got."""
        return [event["type"] for event in self.events if event["event"] == "error"]

    @property
    def is_refused(self) -> bool:
        """Whether every rank got a typed error, and nobody a wrong sum."""
        return len(self.reported) == len(self.statuses) and not self.is_wrong and not self.hangs


def outcome_of(ranks: Ranks, seed: int, of_job: list[Rank], harms: list[Harm]) -> Outcome:
    """Waits for a job."""
    statuses = ranks.finish(of_job, HANG_SECONDS)
    events = [event for rank in of_job for event in rank.events]
    return Outcome(seed, [harm.done for harm in harms if harm.done], statuses, events)


class Reducers:
    """Some reducers, a proxy in front of each, and ranks that use them through these."""

    def __init__(self, log: pathlib.Path) -> None:
        self.log, self.stack = log, contextlib.ExitStack()
        self.proxies: list[Proxy] = []
        self.harms: dict[tuple[int, int], tuple[str, Harm]] = {}

    def __enter__(self) -> Reducers:
        with self.stack:
            self.ranks = self.stack.enter_context(Ranks(self.log))
            output = self.stack.enter_context(self.log.open("ab"))
            for number in range(REDUCERS):
                reducer, address = start_reducer(output)
                self.stack.callback(reducer.close)
                host, port = address.split(":")
                self.proxies.append(self.stack.enter_context(Proxy((host, int(port)), self._chooser(number))))
            self.stack = self.stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def _chooser(self, reducer: int) -> Any:
        def choose(connection: Connection) -> None:
            # Rank 0 calls a reducer to see whether it is there before any rank makes its link.
            if connection.purpose != "data":
                return
            way, harm = self.harms.get((reducer, next(self.links[reducer])), ("up", Harm()))
            (connection.up if way == "up" else connection.down).harm = harm

        return choose

    def run(self, seed: int, count: int, harms: dict[tuple[int, int], tuple[str, Harm]]) -> Outcome:
        """One job. `harms` says what happens to which reducer's which link, and on which way."""
        self.harms, self.links = harms, [itertools.count() for _ in self.proxies]
        settings = {"reducers": [proxy.address for proxy in self.proxies], "algorithm": "reduction_server"}
        common: dict[str, Any] = {
            "size": WORKERS,
            "store": f"127.0.0.1:{free_port()}",
            "settings": settings,
            "salt": seed,
        }
        job = [
            self.ranks.start(*doing("arrays", rank=rank, count=count, seconds=SECONDS, least=LEAST, **common))
            for rank in range(WORKERS)
        ]
        return outcome_of(self.ranks, seed, job, [harm for _, harm in harms.values()])

    def flipped(self, seed: int) -> Outcome:
        """A bit for each reducer, of any byte that passes behind the handshake of one of its connections."""
        rng = random.Random(seed)
        count = rng.choice(COUNTS)
        # Most bytes are payload, and most kinds of fields are at the beginning.
        limits = (200, 1_500, SHORTEST[count])
        return self._harmed(rng, seed, count, lambda: Flip(rng.randrange(rng.choice(limits)), rng.randrange(8)))

    def flipped_in_greetings(self, seed: int) -> Outcome:
        """A bit of the handshake with one reducer."""
        rng = random.Random(seed)
        flip = Flip(rng.randrange(GREETING_BYTES), rng.randrange(8), in_greeting=True)
        place = (rng.randrange(REDUCERS), rng.randrange(WORKERS))
        return self.run(seed, rng.choice(COUNTS), {place: (rng.choice(["up", "down"]), flip)})

    def doubled(self, seed: int) -> Outcome:
        """A message for each reducer comes twice, at once or later."""
        rng = random.Random(seed)
        count = rng.choice(COUNTS)
        return self._harmed(rng, seed, count, lambda: Doubled(rng.randrange(12), rng.choice([0, 0, 1, 2, 4])))

    def swapped(self, seed: int) -> Outcome:
        """Two messages come in the wrong order."""
        rng = random.Random(seed)
        return self._harmed(rng, seed, COUNTS[-1], lambda: Swapped(rng.randrange(30)))

    def recorded(self, seed: int, count: int) -> list[Recorded]:
        """What the ranks of a job say to the first reducer."""
        records = [Recorded() for _ in range(WORKERS)]
        self.run(seed, count, {(0, number): ("up", record) for number, record in enumerate(records)})
        return records

    def foreign(self, seed: int, same_calls: bool = True) -> Outcome:
        """Messages of another job, which makes the same calls or others, come in the middle of a connection."""
        rng = random.Random(seed)
        count = rng.choice(COUNTS[:2])
        other = COUNTS[1 - COUNTS.index(count)]
        record = self.recorded(seed + 1_000_000, count if same_calls else other)[0].messages[:LEAST]
        number = rng.randrange(1, 12)
        chosen = rng.sample(record, 3)
        place = (0, rng.randrange(WORKERS))
        return self.run(seed, count, {place: ("up", Foreign(number, chosen))})

    def played_again(self, seed: int) -> bytes:
        """What the first reducer answers if somebody plays a recorded connection again, its handshake included."""
        record = self.recorded(seed, COUNTS[0])[0]
        target = self.proxies[0].target
        assert target is not None and record.greeted
        with socket.create_connection(target, timeout=10) as caller:
            caller.sendall(record.greeted + b"".join(record.messages))
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while data := caller.recv(4096):
                    answer += data
        return answer

    def _harmed(self, rng: random.Random, seed: int, count: int, harm: Any) -> Outcome:
        """A harm for each reducer, on one of its connections."""
        places = [(reducer, rng.randrange(WORKERS)) for reducer in range(REDUCERS)]
        return self.run(seed, count, {place: (rng.choice(["up", "down"]), harm()) for place in places})


Standing = list[dict[str, Any]]


def lose_fifty(place: Reducers) -> tuple[Outcome, Standing, Standing]:
    """Kills all reducers of ten jobs; what each rank held open at most after the jobs 2 to 4, and after the last three.

    Connections of a job that is over are closed a little later, so the number of descriptors goes up and down.
    """
    with tempfile.TemporaryDirectory(prefix="herringbone-lives-") as folder, place.log.open("ab") as output:
        common: dict[str, Any] = {"size": WORKERS, "lives": LIVES, "folder": folder}
        job = [place.ranks.start(*doing("bereaved", rank=rank, **common)) for rank in range(WORKERS)]
        for number in range(LIVES):
            running = [start_reducer(output) for _ in range(DEATHS)]
            reported = pathlib.Path(folder, f"life{number}")
            life = {"store": f"127.0.0.1:{free_port()}", "reducers": [address for _, address in running]}
            reported.with_suffix(".new").write_text(json.dumps(life))
            reported.with_suffix(".new").rename(reported)
            try:
                for rank in job:
                    rank.wait(f"life {number}")
            finally:
                for reducer, _ in running:
                    time.sleep(0.1)
                    reducer.close()
        outcome = outcome_of(place.ranks, 0, job, [])
    held = [[event for event in rank.events if event["event"] == "held"] for rank in job]
    return outcome, [most(each[1:4]) for each in held], [most(each[-3:]) for each in held]


def most(held: Standing) -> dict[str, Any]:
    """The largest of each figure."""
    return {name: max(each[name] for each in held) for name in ("descriptors", "memory")}


def start_reducer(output: Any) -> tuple[Process, str]:
    """A reducer, and where it listens."""
    words = ["-m", "herringbone", "serve", "--listen", "127.0.0.1:0", "--json"]
    reducer = start(words, environment(), errors=output.fileno())
    return reducer, json.loads(reducer.stdout.readline())["listening"]
