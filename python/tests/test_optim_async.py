"""AsyncSGD on real servers: it trains as torch does, old gradients count less, and workers come, go and die."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKERS, Group, Run, collect
from lab.job import python
from test_table_servers import Servers

import async_trainings
from async_trainings import MOMENTUM, backward, network, same, together
from herringbone.errors import ArgumentError
from herringbone.optim import AsyncSGD
from herringbone.optim.async_rows import WIDTH, places_of, runs_of
from herringbone.optim.async_rules import consistency_of, factor_of, gradient_share, rule_of


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    group = Servers(2, 0)
    yield group
    group.close()


def run(servers: Servers, folder: Path, *words: str) -> Run:
    """What the cases of a process give whose threads are workers."""
    with Group() as group:
        addresses = ",".join(servers.addresses)
        group.start_ranks("async_trainings.py", 1, *words, HERRINGBONE_TABLES=addresses, RESULTS=str(folder))
        group.finish()
    return collect(1, folder, "".join(group.lines))


@pytest.fixture(scope="module")
def trained(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(servers, tmp_path_factory.mktemp("async"))


@pytest.fixture(scope="module")
def trained_more(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(servers, tmp_path_factory.mktemp("async"), "more")


@pytest.mark.parametrize("case", async_trainings.CASES)
def test_trainings(trained: Run, case: str) -> None:
    trained.check(case)


@pytest.mark.full
@pytest.mark.parametrize("case", async_trainings.MORE)
def test_more_trainings(trained_more: Run, case: str) -> None:
    trained_more.check(case)


def pair(servers: Servers, **options: Any) -> Any:
    """Models and optimizers of two workers."""
    models = [network(rank) for rank in range(2)]

    def make(rank: int) -> AsyncSGD:
        return AsyncSGD(MOMENTUM(models[rank].parameters()), servers.connect(rank, 2), name="kept", **options)

    return models, together([lambda rank=rank: make(rank) for rank in range(2)])


@pytest.mark.full
@pytest.mark.parametrize("options", [{}, {"max_staleness": 2}, {"first_k": 2}], ids=["async", "bounded", "first"])
def test_a_training_goes_on_from_a_snapshot_on_new_servers(tmp_path: Any, options: Any) -> None:
    """Its first values are the snapshot's, and not rank 0's; one worker had made a step more."""
    with contextlib.closing(Servers(2, 0, "--data", str(tmp_path))) as first:
        models, optimizers = pair(first, restore=True, staleness="none", **options)
        for step, worker in enumerate([0, 1, 0]):
            backward(models[worker], step)
            optimizers[worker].step()
        optimizers[1]._pull()
        optimizers[1].snapshot()
    with contextlib.closing(Servers(2, 0, "--data", str(tmp_path))) as second:
        others, _ = pair(second, restore=True, staleness="none", **options)
        assert same(others[0], models[1]) and same(others[1], models[1])


@pytest.mark.parametrize(
    "work, statuses",
    [("sync", [0, 0, 0]), pytest.param("killed", [0, -signal.SIGKILL, 0], marks=pytest.mark.full)],
)
def test_jobs(group: Group, servers: Servers, work: str, statuses: list[int]) -> None:
    if work == "sync":
        group.start(
            "-m", "herringbone", "launch", "-n", "3", "--tables", "2", "--", python(), str(WORKERS / "optim_async.py"), work
        )
        [(status, output)] = group.finish()
        assert status == 0, output
        return
    group.start_ranks("optim_async.py", 3, work, HERRINGBONE_TABLES=",".join(servers.addresses))
    assert [status for status, _ in group.finish()] == statuses, "".join(group.lines)


def test_rules_and_rows() -> None:
    settings = {"lr": 0.1, "weight_decay": 0, "momentum": 0.5, "nesterov": True}
    assert rule_of("SGD", settings) == ("nag", {"learning_rate": 0.1, "wd": 0.0, "momentum": 0.5})
    adam = {"lr": 0.1, "weight_decay": 0, "eps": 1e-8, "betas": (0.9, 0.99), "decoupled_weight_decay": True}
    assert rule_of("Adam", adam)[0] == "adamw"
    del settings["nesterov"]
    assert rule_of("SGD", settings)[0] == "sgd", "flags come and go with torch's versions"
    for betas in ((0.9, 0.99, 0.999), 0.9, (0.9,), None):
        with pytest.raises(ArgumentError, match=r"AsyncSGD: betas is .*; pass two numbers"):
            rule_of("Adam", {**adam, "betas": betas})
    with pytest.raises(ArgumentError, match="betas is 'x'; pass a number"):
        rule_of("AdamW", {**adam, "betas": ["x", 0.9]})
    assert [factor_of(staleness) for staleness in (0, 1, 2, 4)] == [1, 1, 0.5, 0.25]
    assert [gradient_share(4, None, bound) for bound in (None, 0, 3)] == [1, 0.25, 1]
    assert gradient_share(4, 2, None) == 0.5
    assert [consistency_of(2, None), consistency_of(None, None), consistency_of(None, 0)] == ["first:2", "async", 0]
    places = places_of([1, 0, WIDTH, WIDTH + 1])
    assert [(place.row, place.rows) for place in places] == [(0, 1), (1, 0), (1, 1), (2, 2)]
    assert runs_of(places, [True] * 4) == [(0, 4)]
    assert runs_of(places, [True, True, False, True]) == [(0, 1), (2, 2)]
    assert runs_of(places, [False] * 4) == []
