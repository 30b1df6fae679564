"""The program that stands for torch in the rigs, with two ranks and small sizes."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch")

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from ports import free_port

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "bench" / "torch_rig.py"
RANKS = 2
SIZES = [4, 1020, 65536]


@pytest.mark.full
def test_it_fulfils_the_contract_of_the_rigs(tmp_path):
    foreign = ("HERRINGBONE_", "MASTER_", "TORCHELASTIC_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "BENCH_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "BENCH_SIZES": ",".join(map(str, SIZES)),
        "BENCH_BUDGET_S": "0.001",
        "BENCH_OUT": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, PROGRAM],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        outputs = [rank.communicate(timeout=240)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * RANKS, "\n".join(outputs)
    lines = [[json.loads(line) for line in (tmp_path / f"r{rank}.jsonl").read_text().splitlines()] for rank in range(RANKS)]
    for each in lines:
        assert [line["bytes"] for line in each] == SIZES
        for line in each:
            assert line["ok"] is True and 3 <= line["iters"] <= 20000
            assert 0 < line["p10_s"] <= line["med_s"] <= line["p90_s"] <= line["wall_s"]
            assert set(line) == {"bytes", "iters", "wall_s", "cpu_s", "med_s", "p10_s", "p90_s", "ok"}
    assert [line["iters"] for line in lines[0]] == [line["iters"] for line in lines[1]], "rank 0 decides"


@pytest.mark.full
def test_what_a_call_costs_alone():
    """Two processes, no messages."""
    command = [sys.executable, PROGRAM.with_name("torch_alone.py"), "--processes", "1,2", "--seconds", "0.2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["processes"] for row in rows] == [1, 2]
    assert all(row["cpu_us"] > 0 and row["wall_us"] > 0 for row in rows)
