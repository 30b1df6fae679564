"""DDP on hosts of one and of several ranks goes on, bit for bit, when somebody pulls the cable of a reducer's host."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import WORKERS

pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "faults"))

from cables import NoNamespaces
from scene import HOSTS, Job, Lab

EACH = (2, 2, 1)
"""Ranks on each of the three hosts."""
PULLED, AFTER_STEP = 1, 8
"""Which reducer, and when."""
SECONDS = 60


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    try:
        with Lab(tmp_path_factory.mktemp("cables") / "log") as lab:
            yield lab
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")


def lines(job: Job, rank: int) -> list[str]:
    return job.ranks[rank].lines


def digest(lab: Lab, job: Job) -> str:
    """Waits for the end; the digest of losses and parameters that all ranks agree on."""
    statuses = lab.ranks.finish(job.ranks, SECONDS)
    assert statuses == [0] * sum(EACH), (statuses, lab.log.read_text()[-3000:])
    digests = {lines(job, rank)[-1] for rank in range(sum(EACH))}
    assert len(digests) == 1, digests
    return digests.pop()


def test_training_goes_on_with_the_same_bits_when_a_reducers_cable_is_pulled(lab: Lab) -> None:
    script = [str(WORKERS / "outliving.py")]
    with lab.job(script, "herringbone", EACH) as job:
        unharmed = digest(lab, job)
    with lab.serving() as reducers, lab.job(script, "herringbone", EACH, reducers) as job:
        until = time.monotonic() + SECONDS
        while f"step {AFTER_STEP}" not in lines(job, 0):
            assert time.monotonic() < until and job.ranks[0].status is None, job.ranks[0].events[-3:]
            time.sleep(0.01)
        lab.hosts.pull(HOSTS + PULLED)
        try:
            assert digest(lab, job) == unharmed
        finally:
            lab.hosts.plug(HOSTS + PULLED)
    message = f"the reducer at {reducers.addresses[PULLED]} is lost"
    assert message in lab.log.read_text(), "the reducer was not used"
    assert f"the reducer at {reducers.addresses[1 - PULLED]} is lost" not in lab.log.read_text()
