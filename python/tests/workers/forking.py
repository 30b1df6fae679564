"""torchrun, but its ranks are forks of it: what the script imports of torch is imported once, and not again by each rank.

Usage: forking.py RANKS SCRIPT.
"""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path
from uuid import uuid4

from torch.distributed.launcher.api import LaunchConfig, elastic_launch


def rank(script: str) -> None:
    """Be one rank."""
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    ranks, script = int(sys.argv[1]), sys.argv[2]
    for module in re.findall(r"^ *(?:from|import) (torch[\w.]*)", Path(script).read_text(), re.MULTILINE):
        importlib.import_module(module)
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
