"""Horovod's interface for torch, in cases that every rank runs in the same order."""

from __future__ import annotations

import torch
from cases import run
from horovod_operations import OPERATIONS
from horovod_training import TRAINING

import herringbone.horovod.torch as hvd

CASES = OPERATIONS | TRAINING

if __name__ == "__main__":
    torch.set_num_threads(1)
    hvd.init()
    run(CASES, hvd.rank())
