"""torchrun, but its ranks are forks of it: what the script imports of torch is imported once, and not again by each rank.

Usage: forking.py RANKS SCRIPT.
"""

from __future__ import annotations

import importlib
import re
import runpy
import signal
import sys
from pathlib import Path
from uuid import uuid4

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def rank(script: str) -> None:
    """Be one rank, which ends by a signal as others do, and not as the launcher does."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    ranks, script = int(sys.argv[1]), sys.argv[2]
    text = Path(script).read_text()
    for module in re.findall(r"^ *(?:from|import) (torch[\w.]*)", text, re.MULTILINE):
        importlib.import_module(module)
    if "DistributedDataParallel" in text:
        importlib.import_module("torch._dynamo")  # DDP imports it, which takes as long as all of torch.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        start_method="fork",
    )
    elastic_launch(config, rank)(script)
