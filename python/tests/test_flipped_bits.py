"""Bits that flip on the way, and messages that come twice, late or from elsewhere: found, and no sum is wrong.

The links to reducers pass through proxies; `make faults` does the same a thousand times.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "faults"))

from cables import PROXY_PORT, Hosts, NoNamespaces
from integrity import COUNTS, REDUCERS, REFUSED, SHORTEST, Outcome, Reducers, outcome_of
from jobs import doing

from lab.events import Ranks

SEEDS = range(4)
TOKEN = "flips-of-these-tests"


@pytest.fixture(scope="module")
def reducers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reducers]:
    with Reducers(tmp_path_factory.mktemp("reducers") / "log") as reducers:
        yield reducers


def said(reducers: Reducers) -> str:
    return reducers.log.read_text()[-3000:]


def refusals(reducers: Reducers) -> int:
    """How many links the reducers have closed because of what came on them."""
    return reducers.log.read_text().count("a checksum of its data does not match")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("harm", ["flipped", "doubled", "swapped"])
def test_a_harmed_link_to_a_reducer_costs_no_call(reducers: Reducers, harm: str, seed: int) -> None:
    outcome: Outcome = getattr(reducers, harm)(seed)
    assert outcome.is_right, (outcome, outcome.events, said(reducers))
    assert len(outcome.done) == REDUCERS, "a link was not harmed"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bit_that_flips_in_a_handshake_is_refused_or_costs_nothing(reducers: Reducers, seed: int) -> None:
    outcome = reducers.flipped_in_greetings(seed)
    assert outcome.done, "nothing was flipped"
    assert outcome.is_right or outcome.is_refused, (outcome, outcome.events, said(reducers))
    assert set(outcome.reported) <= {"ReducerLostError"}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("same_calls", [True, False], ids=["same calls", "other calls"])
def test_messages_of_another_job_are_refused_and_cost_no_call(reducers: Reducers, same_calls: bool, seed: int) -> None:
    before = refusals(reducers)
    outcome = reducers.foreign(seed, same_calls)
    assert outcome.done, "no message was put in"
    assert outcome.is_right, (outcome, outcome.events, said(reducers))
    assert refusals(reducers) == before + 1, said(reducers)


def test_a_recorded_connection_is_refused_when_it_is_played_again(reducers: Reducers) -> None:
    assert reducers.played_again(0).endswith(REFUSED)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        with Hosts(3) as hosts:
            hosts.redirect()
            yield hosts
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")


def test_a_bit_that_flips_between_workers_is_an_error_on_all_ranks(hosts: Hosts, tmp_path: Path) -> None:
    with Ranks(tmp_path / "log") as ranks:
        for seed in SEEDS:
            outcome = between_workers(hosts, ranks, seed)
            assert outcome.is_refused, (outcome, outcome.events)
            assert outcome.reported == ["CorruptError"] * 3


def between_workers(hosts: Hosts, ranks: Ranks, seed: int) -> Outcome:
    """A job of three hosts in which a bit flips between two of them."""
    count = random.Random(seed).choice(COUNTS)
    store = f"{hosts.address(0)}:{29501 + seed}"
    arguments: dict[str, Any] = {"seed": seed, "apart": [29501 + seed], "limits": [200, 1_500, SHORTEST[count] // 3]}
    proxy = ranks.start(*doing("proxied", address=f"0.0.0.0:{PROXY_PORT}", **arguments), host=hosts.network(None))
    proxy.wait("listening")
    common: dict[str, Any] = {"size": 3, "store": store, "count": count, "seconds": 2.0, "settings": {"token": TOKEN}}
    job = [ranks.start(*doing("arrays", rank=rank, **common), host=hosts.network(rank)) for rank in range(3)]
    outcome = outcome_of(ranks, seed, job, [])
    assert proxy.first("harmed"), "nothing was flipped"
    ranks.end([proxy])
    return outcome
