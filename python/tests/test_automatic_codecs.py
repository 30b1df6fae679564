"""Codecs that the plan chooses, by what a calibration says of the links between hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import WORKERS
from test_hosts import on_hosts

SLOW, FAST = "port_gbit_per_s = 0.1\nreducer_port_gbit_per_s = 0.1\n", "port_gbit_per_s = 400\nreducer_port_gbit_per_s = 400\n"


def run(hosts: int, each: int, constants: str | None, folder: Path, reducers: int = 0) -> tuple[dict[str, Any], str]:
    """What rank 0 says, and all that the job prints."""
    environment = {}
    if constants is not None:
        file = folder / "constants"
        file.write_text(constants)
        environment["HERRINGBONE_CALIBRATION"] = str(file)
    output = on_hosts(hosts, each, str(WORKERS / "automatic_codecs.py"), reducers=reducers, **environment)
    [said] = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(said), output


@pytest.mark.parametrize(("hosts", "each", "reducers"), [(3, 1, 0), (3, 1, 3)])
def test_slow_links_take_int8_for_what_is_large(hosts: int, each: int, reducers: int, tmp_path: Path) -> None:
    said, output = run(hosts, each, SLOW, tmp_path, reducers)
    assert (said["large"], said["small"]) == (["int8"], ["none"]), output
    assert said["explained"].startswith("int8: predicted: none "), said["explained"]
    form = "coded(reduction_server)" if reducers else "coded(radix)"
    assert f"; {form}: " in said["explained"], said["explained"]
    assert said["named"].startswith(f"bf16; {form}: "), said["named"]
    assert said["integers"] and said["largest"] and said["doubles"], said
    assert said["fed back"] == ["large"], "what goes as it is loses nothing"
    assert "codecs are for f32" in said["refused"], said


@pytest.mark.parametrize(("hosts", "each", "constants"), [(3, 1, FAST), (1, 3, SLOW)])
def test_fast_links_and_memory_take_none(hosts: int, each: int, constants: str, tmp_path: Path) -> None:
    said, output = run(hosts, each, constants, tmp_path)
    assert (said["large"], said["small"], said["fed back"]) == (["none"], ["none"], []), output
    assert said["explained"].startswith("none: predicted: none "), said["explained"]


def test_without_a_calibration_nothing_is_compressed_and_that_is_said_once(tmp_path: Path) -> None:
    said, output = run(2, 1, None, tmp_path)
    assert (said["large"], said["small"]) == (["none"], ["none"]), output
    assert output.count("compression=auto compresses nothing") == 1, output
    assert "HERRINGBONE_CALIBRATION" in output, output
