"""What each worker of a job does with tables; started by test_tables.py."""

import os
import signal
import sys

import herringbone
import numpy as np

RANK, WORKERS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def sums() -> None:
    """A sync table has the bits of an all-reduce, whatever its servers."""
    random = np.random.default_rng(RANK)
    with herringbone.init() as group, herringbone.ParameterServer() as servers:
        table = servers.table("sums", rows=5000, width=7, optimizer="assign", consistency="sync")
        for _ in range(3):
            gradients = random.standard_normal((5000, 7)).astype(np.float32)
            reduced = gradients.copy()
            group.all_reduce(reduced)
            table.push_range(0, gradients)
            assert np.array_equal(table.pull_range(0, 5000), reduced)
        group.barrier()


def sparse() -> None:
    """Rows of keys in any order, some twice, from all workers."""
    random = np.random.default_rng(1)
    with herringbone.ParameterServer() as servers:
        table = servers.table("sparse", rows=1 << 40, width=4, dtype=np.float64, sparse=True, consistency="sync")
        expected: dict[int, int] = {}
        for _ in range(10):
            drawn = random.integers(0, 1 << 40, (WORKERS, 50)) // (1 << 35)
            for key in drawn.ravel():
                expected[int(key)] = expected.get(int(key), 0) + 1
            table.push(drawn[RANK], np.ones((50, 4)))
            keys = np.array(sorted(expected, key=hash))
            rows = table.pull(keys)
            assert rows.tolist() == [[expected[int(key)]] * 4 for key in keys]


def killed() -> None:
    """One worker is killed in the middle of a step; the others go on without it, and its ended steps count."""
    servers = herringbone.ParameterServer(timeout=60)
    table = servers.table("killed", rows=3, consistency="sync")
    for step in range(6):
        if RANK == 1 and step == 3:
            table.push([1], np.array([[100.0]], np.float32), more=True)
            os.kill(os.getpid(), signal.SIGKILL)
        table.push([RANK], np.array([[1.0]], np.float32))
        rows = table.pull_range(0, 3).ravel().tolist()
        assert rows == [step + 1, min(step + 1, 3), step + 1], (step, rows)
    table.close()
    servers.close()


def bounded() -> None:
    """No pull is staler than the bound."""
    with herringbone.ParameterServer() as servers:
        table = servers.table("bounded", rows=WORKERS, consistency=2, numbers={"rescale_grad": 2.0})
        for step in range(1, 60):
            table.push([RANK], np.array([0.5], np.float32))
            assert table.pull_range(0, WORKERS).min() >= step - 2
        table.close()


def interrupted() -> None:
    """Ctrl-C ends a pull that waits for a worker that does not come."""
    # A job of a shell's background begins with this signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    servers = herringbone.ParameterServer(rank=0, workers=2)
    table = servers.table("interrupted", rows=3, consistency="sync")
    table.push([0], np.ones((1, 1), np.float32))
    print("waits", flush=True)
    try:
        table.pull([0])
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        os._exit(0)


globals()[sys.argv[1]]()
