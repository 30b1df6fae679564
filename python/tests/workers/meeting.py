"""Ranks that are forked and meet in one of several ways, then add; what each says is a line.

Usage: meeting.py RANKS PATH WAY... One job after the other. The ways: file: a FileStore at PATH, as `file://` makes it; crash:
the same, and all ranks end without a goodbye; alone: rank 0 alone comes to it and is killed; late: rank 0 comes to it last; ipv6: `tcp://[::1]`; stores:
TCPStore, PrefixStore and FileStore that the program makes by itself; port: the environment's MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

LIMIT = timedelta(seconds=float(os.environ.get("JOIN_SECONDS", "60")))


def add(size: int) -> None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert (tensor == size).all(), tensor
    parts = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(parts, torch.tensor([float(dist.get_rank())]))
    assert [int(part) for part in parts] == list(range(size)), parts


def join(rank: int, size: int, **where: object) -> None:
    dist.init_process_group("herringbone", rank=rank, world_size=size, timeout=LIMIT, **where)
    add(size)


def by_hand(rank: int, size: int, path: str, port: int) -> None:
    """Several lives over stores of one's own, of which the second has keys of the first."""
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    for own in (store, store, dist.PrefixStore("mine", dist.PrefixStore("ours", store)), dist.FileStore(path, size)):
        join(rank, size, store=own)
        dist.barrier()
        dist.destroy_process_group()
    store.add("done", 1)
    while rank == 0 and store.add("done", 0) < size:
        time.sleep(0.01)


def say(text: str) -> None:
    """A line that no other rank's can come into."""
    os.write(1, f"{os.environ['WAY']} {text}\n".encode())


def live(rank: int, way: str, size: int, path: str, port: int) -> None:
    torch.set_num_threads(1)
    if way == "late" and rank == 0:
        time.sleep(1)
    try:
        if way == "stores":
            by_hand(rank, size, path, port)
        elif way == "ipv6":
            join(rank, size, init_method=f"tcp://[::1]:{port}")
        elif way == "port":
            os.environ.update(MASTER_ADDR="::1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
            dist.init_process_group("herringbone", timeout=LIMIT)
            add(size)
        else:
            join(rank, size, init_method=f"file://{path}")
    except RuntimeError as error:
        say(f"rank {rank} {type(error).__name__} {' '.join(str(error).split())}")
        os._exit(1)
    say(f"rank {rank} added")
    if way == "crash":
        os._exit(0)
    if dist.is_initialized():
        dist.destroy_process_group()


def start(way: str, size: int, path: str) -> None:
    """One job, to its end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    ranks = range(1) if way == "alone" else range(size)
    processes = [context.Process(target=live, args=(rank, way, size, path, port)) for rank in ranks]
    for process in processes:
        process.start()
    if way == "alone":
        while not Path(path).exists() or not Path(path).stat().st_size:
            time.sleep(0.01)
        time.sleep(0.5)
        os.kill(processes[0].pid, signal.SIGKILL)
    for process in processes:
        process.join()


if __name__ == "__main__":
    for number, name in enumerate(sys.argv[3:]):
        os.environ["WAY"] = f"{number} {name}"
        start(name, int(sys.argv[1]), sys.argv[2])
        say(f"file {Path(sys.argv[2]).exists()}")
