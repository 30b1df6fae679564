"""What torch asks of every backend: its own suite, in part, and what its C++ code calls."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import Group, Run, cases_of, clean_environment, free_port, torchrun

ROOT = Path(__file__).resolve().parents[2]
METHODS = [
    "test_DistributedDataParallelCPU",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_all_gather_coalesced_simple",
    "test_all_gather_object_default_pg",
    "test_all_reduce_coalesced_sum",
    "test_all_reduce_max",
    "test_all_reduce_sum_async",
    "test_barrier_timeout_full_group",
    "test_batch_isend_irecv_gloo_tags",
    "test_broadcast_full_group",
    "test_ddp_join_model_equivalence",
    "test_destroy_full_group",
    "test_gather_object",
    "test_gather_full_group",
    "test_get_future",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo",
    "test_reduce_sum_twice",
    "test_scatter_object_list",
    "test_send_recv_with_tag_autograd_profiler",
    "test_sparse_all_reduce_sum",
]
"""Of torch's suite; `make conformance` runs all."""


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return torchrun("calls.py", 2, tmp_path_factory.mktemp("calls"))


@pytest.mark.parametrize("case", cases_of("calls.py"))
def test_calls(calls: Run, case: str) -> None:
    calls.check(case)


def test_methods_of_torchs_suite_that_gloo_passes(tmp_path: Path) -> None:
    pytest.importorskip("expecttest")
    outcomes = tmp_path / "outcomes.json"
    selected = [f"--select={name}" for name in METHODS]
    command = ["tests/conformance/run.py", "--world-size=2", "--checks=on", "--backend=replaced", f"--json={outcomes}"]
    done = subprocess.run(
        [sys.executable, *command, *selected],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    [run] = json.loads(outcomes.read_text())
    passed = sum(row["outcome"] == "passed" for row in run["rows"])
    assert passed >= len(METHODS) - 3, done.stdout


def test_an_unchanged_script_runs_in_gloos_place(group: Group) -> None:
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "HERRINGBONE_REPLACE": "gloo"}
    group.start_ranks("unchanged.py", 2, **environment)
    ended = group.finish()
    for status, output in ended:
        assert status == 0, output
        assert "gloo ProcessGroupHerringbone ProcessGroupHerringbone ProcessGroupGloo 1.5 2.0 2.0" in output
        assert "not a setting" not in output
    said = 'HERRINGBONE_REPLACE=gloo, so the backend "gloo" of this program is Herringbone'
    assert sum(output.count(said) for _, output in ended) == 1


def test_a_replacement_that_cannot_be_is_told() -> None:
    store = "init_method='tcp://127.0.0.1:0', rank=0, world_size=1"
    command = [sys.executable, "-c", f"import torch.distributed as dist; dist.init_process_group('gloo', {store})"]
    environment = clean_environment({"HERRINGBONE_REPLACE": "nccl"})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    message = "HERRINGBONE_REPLACE: 'nccl' cannot be used"
    assert done.returncode != 0 and f"ConfigError: {message}" in done.stderr
    assert done.stderr.count(message) >= 2, "it warns at the import, too"


@pytest.mark.parametrize("version", ["2.9.1", "1.13.1", "nightly"])
def test_another_torch_is_told_at_import(version: str) -> None:
    from herringbone.torch import check_version

    with pytest.raises(ImportError, match=f"needs torch 2.10 or later, and this is torch {version}"):
        check_version(version)


@pytest.mark.parametrize("version", ["2.10.0", "2.15.0+cu132", "3.0.0"])
def test_torch_from_the_oldest_on_is_taken(version: str) -> None:
    from herringbone.torch import check_version

    check_version(version)
