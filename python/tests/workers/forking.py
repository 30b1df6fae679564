"""torchrun, but its ranks are forks of it: what the script imports of torch is imported once, and not again by each rank.

Usage: forking.py RANKS SCRIPT. The ranks are forked before there is any thread, so that none of them inherits a lock that
nobody opens.
"""

from __future__ import annotations

import importlib
import os
import re
import runpy
import signal
import socket
import sys
from pathlib import Path
from uuid import uuid4

import torch.distributed as dist

HOST = "127.0.0.1"


def variables(rank: int, ranks: int, port: int, job: str) -> dict[str, str]:
    """What torchrun tells a rank on one host; the store is the launcher's."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    numbers |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": ranks}
    numbers |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    words = {"MASTER_ADDR": HOST, "TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    return {name: str(number) for name, number in numbers.items()} | words | {"ROLE_NAME": "default"}


def fork(rank: int, ranks: int, listener: socket.socket, job: str) -> int:
    """Start a rank; 0 in the rank itself."""
    process = os.fork()
    if process == 0:
        os.environ.update(variables(rank, ranks, listener.getsockname()[1], job))
        listener.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return process


def end(processes: set[int]) -> None:
    """Tell ranks to end."""
    for process in processes:
        os.kill(process, signal.SIGTERM)


def outcome(processes: set[int]) -> int:
    """Wait for all ranks; the first one that fails ends the others."""
    failed = 0
    while processes:
        process, status = os.wait()
        processes.remove(process)
        if status != 0 and not failed:
            failed = 1
            print(f"process {process} ended with {os.waitstatus_to_exitcode(status)}", flush=True)
            end(processes)
    return failed


def main(ranks: int, script: str) -> int:
    """The exit status; in a rank it is that of the script."""
    text = Path(script).read_text()
    for module in re.findall(r"^ *(?:from|import) (torch[\w.]*)", text, re.MULTILINE):
        importlib.import_module(module)
    if "DistributedDataParallel" in text:
        importlib.import_module("torch._dynamo")  # DDP imports it, which takes as long as all of torch.
    listener, job = socket.create_server((HOST, 0)), uuid4().hex
    processes: set[int] = set()
    port = listener.getsockname()[1]
    for rank in range(ranks):
        process = fork(rank, ranks, listener, job)
        if process == 0:
            sys.argv = [script]
            runpy.run_path(script, run_name="__main__")
            return 0
        processes.add(process)
    signal.signal(signal.SIGTERM, lambda *_: end(processes))
    store = dist.TCPStore(HOST, port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    status = outcome(processes)
    del store
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
