"""Elastic training through Horovod's interface, with workers that are killed, and its parts in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import START_SECONDS, clean_environment

torch = pytest.importorskip("torch")

import herringbone.horovod.torch as hvd
from herringbone.correction import Correction
from herringbone.horovod.common.elastic import run_fn
from herringbone.horovod.common.exceptions import HostsUpdatedInterrupt
from herringbone.horovod.common.world import Place
from lab.job import python

WORKER = Path(__file__).parent / "workers" / "horovod_elastic.py"


@pytest.mark.parametrize("victim, more", [(0, []), (1, []), (0, ["corrected"])])
def test_a_killed_worker_is_replaced_and_no_committed_step_is_lost(victim: int, more: list[str], tmp_path: Path) -> None:
    command = ["-m", "herringbone", "horovodrun", "-np", "2", "--min-np", "1", python(), str(WORKER)]
    words = [sys.executable, *command, str(victim), str(tmp_path), *more]
    outcome = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, timeout=START_SECONDS)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    reported = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert [each["rank"] for each in reported] == [0, 1] and {each["size"] for each in reported} == {2}
    assert len({each["batch"] for each in reported}) == 1 and {each["processed"] for each in reported} == {20}
    for rank, each in enumerate(reported):
        changes = [size for size, _ in each["sizes"]]
        assert changes == ([] if rank == victim else [1, 2])
        assert rank == victim or each["sizes"][0][1] == 10  # nothing that was committed is lost


@pytest.mark.parametrize("where", ["localhost:{0}\n", "localhost:1\n127.0.0.2:{1}\n"])
def test_a_job_grows_where_there_is_room_and_shrinks_where_there_is_none(where: str, tmp_path: Path, far: str) -> None:
    hosts, script = tmp_path / "hosts", tmp_path / "discover"
    hosts.write_text(where.format(2, 1))
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    flags = ["--min-np", "2", "--max-np", "4", "--host-discovery-script", str(script)]
    command = [sys.executable, "-m", "herringbone", "horovodrun", *flags, python(), str(WORKER.parent / "horovod_grows.py")]
    outcome = subprocess.run(
        [*command, str(tmp_path), where],
        env=clean_environment({"PATH": far}),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    reported = [json.loads((tmp_path / f"{worker}.json").read_text()) for worker in range(3)]
    assert [each["sizes"] for each in reported] == [[2, 3, 2], [2, 3, 2], [2, 3]]
    # The new process began with the others' state, made the same steps as they, and left.
    shared = [batch for size, batch in reported[0]["own"] if size == 3]
    assert [batch for _, batch in reported[2]["own"]] == shared and len(shared) >= 5 <= shared[0]
    assert reported[2]["seen"] == list(range(1, shared[-1] + 2))
    assert "rank 2 has left" in outcome.stderr and "failed" not in outcome.stderr


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job of this process alone."""
    for name, value in (("HERRINGBONE_RANK", "0"), ("HERRINGBONE_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    hvd.init()
    yield
    hvd.shutdown()


def test_a_state_goes_back_to_its_last_commit(alone: None) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = hvd.elastic.TorchState(model, optimizer, batch=3, other=torch.nn.Linear(1, 1))
    state.sync()
    first = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.fill_(9)
    state.batch = 4
    state.restore()
    assert torch.equal(model.weight, first) and state.batch == 3
    with torch.no_grad():
        model.weight.fill_(9)
    state.batch = 5
    state.commit()
    state.batch = 6
    state.restore()
    assert (model.weight == 9).all() and state.batch == 5
    another = torch.nn.Linear(2, 1)
    state.model = another
    state.sync()
    assert state.model is another


def test_the_corrections_of_an_optimizer_go_back_with_it(alone: None) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    how = hvd.Compression.corrected(hvd.Compression.topk(0.01), momentum=0.5, warmup_steps=4, follows_rate=True)
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer: Any = hvd.DistributedOptimizer(plain, model.named_parameters(), compression=how)

    def backward() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()

    def kept() -> tuple[int, list[float], list[float]]:
        state = optimizer.compression_state_dict()
        return state["steps"], state["rates"], state["velocities"]["weight"].flatten().tolist()

    backward()
    optimizer.step()
    state = hvd.elastic.TorchState(model, optimizer)
    assert kept() == (1, [0.1], [1.0, 1.0])
    optimizer.param_groups[0]["lr"] = 0.05
    backward()
    optimizer.step()
    backward()
    assert kept() == (2, [0.05], [1.75, 1.75])
    for handle, _ in optimizer._handles.values():
        hvd.synchronize(handle)  # A job that forms again ends what runs.
    state.restore()
    assert kept() == (1, [0.1], [1.0, 1.0]), "also of a step that was begun"
    backward()
    assert optimizer._step_compression.codec == Correction(warmup_steps=4).codec_at("topk:0.01", 1), "of the restored step"
    optimizer.step()
    assert kept() == (2, [0.1], [1.5, 1.5]), "the gradient of the step that is done again counts once"
    optimizer.load_state_dict(optimizer.state_dict())
    assert kept()[0] == 2, "a program that is not elastic keeps its steps"
    state.sync()
    state.optimizer.step()
    state.restore()
    assert kept() == (2, [0.1], [1.5, 1.5]), "what all ranks have is saved"


def test_a_sampler_gives_out_what_is_left(alone: None) -> None:
    sampler = hvd.elastic.ElasticSampler(list(range(10)), shuffle=True, seed=4)
    everything = list(sampler)
    assert sorted(everything) == list(range(10)) and len(sampler) == 10
    sampler.record_batch(0, 4)
    sampler.load_state_dict(sampler.state_dict())
    assert list(sampler) == everything[4:] and len(sampler) == 6
    sampler.set_epoch(1)
    assert sorted(sampler) == list(range(10)) and list(sampler) != everything
    ordered = hvd.elastic.ElasticSampler(list(range(3)), shuffle=False)
    assert list(ordered) == [0, 1, 2]


def test_an_interrupt_of_the_hosts_goes_on_without_a_restore(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from herringbone.horovod.common import membership

    happened: list[str] = []
    monkeypatch.setattr(membership, "take_in", lambda: happened.append("taken in"))
    monkeypatch.setattr(membership, "recover", lambda: happened.append("recovered"))
    state = hvd.elastic.ObjectState(lambda value: value, hvd.rank, batch=0)

    def train(state: Any) -> str:
        happened.append(f"round with {state.batch}")
        if len(happened) == 1:
            state.batch = 1
            state.on_hosts_updated(1.0, 1)
            state.commit()
        if len(happened) == 4:
            state.batch = 7
            raise hvd.HorovodInternalError("a rank is lost")
        return "done"

    assert run_fn(train, lambda: happened.append("reset"))(state) == "done"
    assert happened == [
        "round with 0",
        "taken in",
        "reset",
        "round with 1",
        "recovered",
        "reset",
        "round with 1",
    ]
    assert isinstance(HostsUpdatedInterrupt(True), RuntimeError) and HostsUpdatedInterrupt(True).skip_sync


def test_places_of_ranks_on_several_hosts() -> None:
    hosts = [b"a", b"a", b"b", b"a", b"b"]
    assert Place.among(hosts, 0) == Place(0, 3, 0, 2, False)
    assert Place.among(hosts, 4) == Place(1, 2, 1, 2, False)
    assert Place.among(hosts, 3) == Place(2, 3, 0, 1, False)
    assert Place.among([b"a", b"b"], 1) == Place(0, 1, 1, 2, True)
