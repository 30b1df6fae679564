"""What ranks do while they come to harm: each function is the whole life of a rank.

Usage: jobs.py NAME ARGUMENTS, which are JSON. What a rank says by `say` is for the process that watches. An exit status of
TOLD says that the rank was told of the fault by an exception.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy

sys.path.append(str(Path(__file__).resolve().parents[2]))

from lab.events import say

REPORTED, FAILED = 42, 70
"""Exit statuses: of a rank that an exception told, and of one whose job has raised what it does not expect."""
INPUTS = 4
"""How many different inputs take turns."""


def values(rank: int, step: int, count: int, salt: int = 0) -> numpy.ndarray:
    """Small whole numbers, of which any sum is exact; they differ from element to element and from job to job."""
    return ((numpy.arange(count) * (rank + 3) + step * 7 + salt) % 61).astype("float32")


def sums(rank: int, size: int, count: int, steps: int, salt: int = 0) -> Any:
    """The inputs of the steps, and the sums that have to come."""
    parts = [[values(other, step, count, salt) for other in range(size)] for step in range(steps)]
    return [each[rank] for each in parts], [sum(each) for each in parts]


def arrays(
    rank: int,
    size: int,
    store: str,
    count: int,
    seconds: float,
    settings: dict[str, Any],
    least: int = 0,
    salt: int = 0,
) -> int:
    """All-reduces of numpy arrays for some seconds, and at least `least` of them; each has to be right to the bit."""
    import herringbone

    given, expected = sums(rank, size, count, INPUTS, salt)
    try:
        with herringbone.init(rank=rank, size=size, store=store, options=herringbone.Options(**settings), timeout=20) as group:
            say("formed")
            until, going, step = time.monotonic() + seconds, numpy.ones(1, "float32"), 0
            while going[0] or step < least:
                array = given[step % INPUTS].copy()
                group.all_reduce(array)
                if not numpy.array_equal(array, expected[step % INPUTS]):
                    say("wrong", step=step)
                step += 1
                if step % 4 == 0:
                    # Rank 0's clock ends the job for all.
                    going[0] = rank != 0 or time.monotonic() < until
                    group.all_reduce(going, "min")
            say("done", steps=step)
    except herringbone.errors.HerringboneError as error:
        say("error", type=type(error).__name__, text=str(error))
        return REPORTED
    return 0


def proxied(address: str, seed: int, apart: list[int], limits: list[int], speaks: bool = True, purpose: str = "data") -> None:
    """The router's proxy: flips one bit in one connection, by a seed; not in those to a port of `apart`.

    The byte is one below a limit of `limits`. Of programs that speak Herringbone only connections of one purpose count.
    """
    from proxy import Connection, Flip, Proxy

    rng = random.Random(seed)
    number, up = rng.randrange(3 if purpose == "data" else 2), rng.random() < 0.5
    flip = Flip(rng.randrange(rng.choice(limits)), rng.randrange(8))
    counted: list[Connection] = []

    def choose(connection: Connection) -> None:
        if connection.to[1] in apart or (speaks and connection.purpose != purpose):
            return
        counted.append(connection)
        if len(counted) == number + 1:
            (connection.up if up else connection.down).harm = flip

    host, port = address.split(":")
    with Proxy(None, choose, (host, int(port)), speaks):
        say("listening")
        while not flip.done:
            time.sleep(0.001)
        say("harmed", what=flip.done)
        time.sleep(3600)


def bereaved(rank: int, size: int, lives: int, folder: str) -> int:
    """One job after the other, each until all of its reducers are lost; what this process then holds open."""
    import herringbone

    given, expected = sums(rank, size, 20_000, INPUTS)
    for number in range(lives):
        path = Path(folder, f"life{number}")
        while not path.exists():
            time.sleep(0.01)
        life = json.loads(path.read_text())
        algorithm = "reduction_server" if life["reducers"] else None
        options = herringbone.Options(reducers=life["reducers"], algorithm=algorithm)
        with herringbone.init(rank=rank, size=size, store=life["store"], options=options, timeout=20) as group:
            going, step, before = numpy.ones(1, "float32"), 0, 0
            while going[0]:
                array = given[step % INPUTS].copy()
                group.all_reduce(array)
                if not numpy.array_equal(array, expected[step % INPUTS]):
                    say("wrong", step=step)
                step += 1
                if step == 8:
                    say(f"life {number}")
                if step % 8 == 0:
                    # It goes on while anybody has sent anything to a reducer since it last looked.
                    sent = group.stats()["reducers_tcp"]["sent"]
                    going[0] = before != sent
                    group.all_reduce(going)
                    before = sent
        descriptors = len(os.listdir("/proc/self/fd"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        say("held", descriptors=descriptors, memory=pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    return 0


def summing(backend: str, timeout: float, count: int, stop: str) -> int:
    """All-reduces of torch until the file `stop` is there, each checked. A rank that gets an exception says so and ends."""
    import torch
    import torch.distributed as dist

    step, longest, going = 0, 0.0, torch.ones(1)
    try:
        rank, size = join(backend, timeout)
        given, expected = sums(rank, size, count, INPUTS)
        while going.item() or step % 4:
            tensor = torch.from_numpy(given[step % INPUTS].copy())
            began = time.monotonic()
            dist.all_reduce(tensor)
            if step % 4 == 3:
                # Rank 0 ends the job for all.
                going[0] = rank != 0 or not os.path.exists(stop)
                dist.all_reduce(going, dist.ReduceOp.MIN)
            longest = max(longest, time.monotonic() - began) if step else 0.0
            if not numpy.array_equal(tensor.numpy(), expected[step % INPUTS]):
                say("wrong", step=step)
            step += 1
            if step == 8:
                say("going")
    except Exception as error:
        say("error", type=type(error).__name__, text=str(error)[:600])
        return REPORTED
    world: Any = dist.group.WORLD
    moved = world.stats() if backend == "herringbone" else {}
    say("done", steps=step, longest=longest, reducers=moved["reducers_tcp"]["sent"] if moved else 0)
    dist.destroy_process_group()
    return 0


def join(backend: str, timeout: float) -> tuple[int, int]:
    """Become a rank, as the environment says: its number, and how many there are."""
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    return dist.get_rank(), dist.get_world_size()


def mistaken(backend: str, timeout: float, mistake: str) -> int:
    """All ranks add up right; in the next call the last rank makes a mistake; then all add up right again."""
    import torch
    import torch.distributed as dist

    rank, size = join(backend, timeout)
    mistakes = rank == size - 1
    right, status = torch.ones(1000), 0
    dist.all_reduce(right)
    tensor = torch.ones(
        1001 if mistakes and mistake == "size" else 1000,
        dtype=torch.int32 if mistakes and mistake == "dtype" else torch.float32,
    )
    op = dist.ReduceOp.MAX if mistakes and mistake == "op" else dist.ReduceOp.SUM
    say("going")
    try:
        dist.all_reduce(tensor, op)
        say("returned", first=float(tensor[0]))
    except Exception as error:
        say("error", type=type(error).__name__, text=str(error)[:600])
        status = REPORTED
    try:
        again = torch.ones(1000)
        dist.all_reduce(again)
        say("again", right=bool((again == size).all()))
    except Exception as error:
        say("useless", text=str(error)[:200])
    return status


def garbage(addresses: list[list[Any]], seed: int) -> None:
    """A stranger: says nonsense at every address, again and again, and leaves connections open that say nothing."""
    rng = random.Random(seed)
    nonsense = [
        rng.randbytes(64),
        rng.randbytes(100_000),
        b"\0" * 4096,
        b"\xff" * 4096,
        b"GET / HTTP/1.1\r\nHost: herringbone\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(32),
        b"\xa8HRB\x01\x00\xff\xff" + rng.randbytes(2000),
        b"",
    ]
    left_open = []
    for host, port in addresses:
        for each in nonsense:
            with contextlib.suppress(OSError):
                caller = socket.create_connection((host, port), timeout=2)
                caller.settimeout(0.2)
                caller.sendall(each)
                left_open.append(caller)
    say("harmed", connections=len(left_open))
    time.sleep(1)


JOBS: dict[str, Callable[..., int | None]] = {
    job.__name__: job for job in (arrays, bereaved, garbage, mistaken, proxied, summing)
}


def doing(job: str, **arguments: Any) -> list[str]:
    """The words of a rank that runs a job."""
    return [__file__, job, json.dumps(arguments)]


def main() -> None:
    status = FAILED
    try:
        status = JOBS[sys.argv[1]](**json.loads(sys.argv[2])) or 0
    except BaseException:
        traceback.print_exc()
        say("failed", text=traceback.format_exc()[-1500:])
    # It leaves as a program does, and says goodbye. Not all of torch's own threads would end by themselves.
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
