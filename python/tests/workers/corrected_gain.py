"""A training whose rate is too large for a coded gradient with momentum behind the codec, and not for momentum before it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[3] / "bench"))

import cases
import torch
import torch.distributed as dist
from compression_worker import DigitsTask, Way, results_of

CASES, case = cases.registry()


@case
def momentum_before_the_codec_trains_where_momentum_behind_it_does_not() -> None:
    task = DigitsTask()
    behind = Way("topk:0.01", "topk:0.01", True, momentum=0.9)
    before = Way("topk:0.01", "topk:0.01", True, options={"momentum": 0.9})
    late, early = (results_of(task, way, 0.1, 200, f"gain{number}")["score"] for number, way in enumerate((behind, before)))
    assert early > 90 and early > late + 5, f"{late} per cent with momentum behind the codec, {early} with momentum before it"


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("herringbone")
    cases.run(CASES, dist.get_rank())
    dist.destroy_process_group()
