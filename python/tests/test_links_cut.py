"""Two ranks are cut from each other, and both live."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "faults"))

from cables import NoNamespaces
from scene import Lab

SECONDS = 30
ERROR_SECONDS, MARGIN_SECONDS = 6, 10
"""Until all are told, and what a busy machine adds; operations have a minute."""


def test_every_rank_is_told_which_two_are_cut_from_each_other(tmp_path: Path) -> None:
    try:
        lab = Lab(tmp_path / "log").__enter__()
    except NoNamespaces as reason:
        pytest.skip(f"hosts are network namespaces: {reason}")
    with lab, lab.summing("herringbone", (1, 1, 1)) as job:
        job.wait("going")
        began = time.monotonic()
        lab.hosts.part(1, 2)
        try:
            statuses = lab.ranks.finish(job.ranks, SECONDS)
        finally:
            lab.hosts.unpart(1, 2)
        errors = [rank.first("error") for rank in job.ranks]
        assert None not in errors, (statuses, lab.log.read_text()[-3000:])
        for error in errors:
            assert error is not None and error["type"] == "LinkLostError", error
            assert re.search(r"the link between rank 1 and rank 2 is lost, and both live", error["text"]), error
            assert error["time"] - began < ERROR_SECONDS + MARGIN_SECONDS, error
