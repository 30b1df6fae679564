"""A short soak leaves nothing, what is left is found, and the record is one of a long soak."""

from __future__ import annotations

import pathlib
import re
import socket
import sys
import threading

import pytest

pytest.importorskip("numpy")

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))

from counters import Taken, left_on_the_machine, left_since
from soak import LIMIT_KIB, WAYS, Phase, kills, lasting, work

OTHERS_SECONDS = 120
"""How long a job of another test may have something that is named as what this one may leave."""


@pytest.mark.full
@pytest.mark.parametrize("way", WAYS)
def test_a_short_soak_leaves_nothing(way: str) -> None:
    before = left_on_the_machine()
    phases = [*work(way, 2_000, 100), *kills(way, 5)]
    assert [wrong for phase in phases for wrong in phase.wrong()] == []
    assert [phase.amount for phase in phases] == [2_000, 100, 5]
    assert left_since(before, OTHERS_SECONDS) == []


def test_what_is_left_is_found() -> None:
    before = Taken.of()
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with socket.socket(), open("/dev/null"), socket.socket(socket.AF_UNIX) as named:
        name = f"herringbone of a test {before.kib}"
        named.bind(f"\0{name}")
        assert f"@{name}" in left_on_the_machine()
        assert f"@{name}" not in left_since([f"@{name}"], 0.5)
        assert f"@{name}" in left_since([], 0.5)
        more = Taken.of().more_than(before)
    over.set()
    thread.join()
    assert (more["descriptors"], more["sockets"], more["threads"]) == (3, 2, 1)
    found = Phase("operations", "TCP", 1, 1.0, {"rank 0": {**more, "kib": LIMIT_KIB + 1}}).wrong()
    assert len(found) == 4 and found[0] == "operations over TCP: rank 0 has 3 descriptors more"


def test_a_leak_is_what_grows_again() -> None:
    def phases(*kib: int, sockets: int = 0) -> Phase:
        left = iter(kib)
        return lasting(lambda: Phase("operations", "TCP", 1, 1.0, {"rank 0": {"sockets": sockets, "kib": next(left)}}))

    assert not phases(LIMIT_KIB + 1, 3).wrong(), "an allocator kept some"
    assert phases(LIMIT_KIB + 1, LIMIT_KIB + 1).wrong() == [f"operations over TCP: rank 0 has {LIMIT_KIB + 1} kib more"]
    assert not phases(3).wrong(), "what leaves little is done once"
    assert len(phases(LIMIT_KIB + 1, sockets=1).wrong()) == 2, "a socket is left once and for all"


def test_the_record_is_of_a_long_soak() -> None:
    text = (ROOT / "record" / "leaks.md").read_text()
    rows = re.findall(r"\| ([\d,]+) ([a-z ]+) \| .* \| \+?(-?\d+) \| \+?(-?\d+) \| \+?(-?\d+) \| \+?(-?[\d,]+) \|", text)
    totals: dict[str, int] = {}
    for amount, what, *more in rows:
        totals[what] = totals.get(what, 0) + int(amount.replace(",", ""))
        assert [int(number.replace(",", "")) <= limit for number, limit in zip(more, [0, 0, 0, LIMIT_KIB])] == [True] * 4
    assert totals == {"operations": 100_000, "groups": 1_000, "workers killed": 200}
