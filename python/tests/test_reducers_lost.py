"""Reducers of a training job come to harm: it goes on, with the same bits, and no user's code notices."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from conftest import Group, free_port, outlived

from lab.process import Process

RANKS = 3
REDUCERS = 3

HARMS = {
    "one is killed and then another": [(6, 2, signal.SIGKILL), (14, 0, signal.SIGKILL)],
    "all are killed at once": [(10, 0, signal.SIGKILL), (10, 1, signal.SIGKILL), (10, 2, signal.SIGKILL)],
    "one hangs": [(8, 1, signal.SIGSTOP)],
}
"""After which step what happens to which reducer."""


@pytest.fixture(scope="module")
def unharmed() -> str:
    """The digest of a job without reducers."""
    return trained({}, [], [])[0]


@pytest.fixture
def reducers() -> Iterator[list[Process]]:
    """Reducers, each with its address as its last argument."""
    with Group() as group:
        for _ in range(REDUCERS):
            group.start("-m", "herringbone", "serve", "--listen", f"127.0.0.1:{free_port()}")
        yield group.processes
        # One that is stopped would not hear that it is asked to end.
        group.end()


def trained(settings: dict[str, str], harms: list[tuple[int, int, signal.Signals]], reducers: list[Process]) -> tuple[str, str]:
    """Train with reducers that come to harm; as of :func:`outlived`."""

    def act(step: int) -> None:
        for at, reducer, harm in harms:
            if at == step:
                reducers[reducer].send_signal(harm)

    return outlived(RANKS, act, **settings)


@pytest.mark.parametrize("harm", HARMS)
def test_a_job_outlives_its_reducers(harm: str, unharmed: str, reducers: list[Process]) -> None:
    addresses = ",".join(process.args[-1] for process in reducers)
    settings = {"HERRINGBONE_REDUCERS": addresses, "HERRINGBONE_ALGORITHM": "reduction_server"}
    digest, output = trained(settings, HARMS[harm], reducers)
    assert digest == unharmed
    lost = {reducer for _, reducer, _ in HARMS[harm]}
    for number, process in enumerate(reducers):
        named = f"the reducer at {process.args[-1]} is lost" in output
        assert named == (number in lost), output


def test_what_compression_leaves_outlives_reducers(reducers: list[Process], unharmed: str) -> None:
    codec = {"HERRINGBONE_COMPRESSION": "topk:0.05"}
    compressed, output = trained(codec, [], [])
    assert "HERRINGBONE_COMPRESSION=topk:0.05" in output and compressed != unharmed
    addresses = ",".join(process.args[-1] for process in reducers)
    settings = {"HERRINGBONE_REDUCERS": addresses, **codec}
    digest, output = trained(settings, HARMS["one is killed and then another"], reducers)
    assert digest == compressed
    assert output.count(" is lost") == 2, output
