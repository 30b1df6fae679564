"""Messages of numpy arrays between two ranks."""

from __future__ import annotations

import cases
import numpy as np
from cases import error_of

import herringbone

CASES, case = cases.registry()


@case
def messages_in_a_ring() -> None:
    n, rank = group.size, group.rank
    after, before = (rank + 1) % n, (rank - 1) % n
    for dtype in (np.float32, np.int8, np.complex128, np.bool_, "datetime64[s]"):
        for shape in ((), (0,), (7,), (300, 400)):
            mine, received = np.full(shape, rank % 2).astype(dtype), np.empty(shape, dtype)
            sent = group.send(mine, after, tag=-3, async_op=True)
            assert group.recv(received, before, tag=-3) == before
            assert np.array_equal(received, np.full(shape, before % 2).astype(dtype))
            assert sent.wait() is mine and sent.done() and sent.source is None


@case
def the_receiver_picks() -> None:
    n, rank = group.size, group.rank
    if rank:
        group.send(np.array([rank, 1]), 0, tag=1)
        group.send(np.full(5_000, rank), 0)
        return
    sources = set()
    for _ in range(1, n):
        place = np.zeros(5_000, int)
        work = group.recv(place, async_op=True)
        pair = np.zeros(2, int)
        source = group.recv(pair, tag=1)
        assert pair.tolist() == [source, 1]
        work.wait()
        assert (place == work.source).all()
        sources.add(work.source)
    assert sources == set(range(1, n))


@case
def messages_that_do_not_meet() -> None:
    n, rank = group.size, group.rank
    error_of(ValueError, lambda: group.send(np.ones(1), n), f"to {n} is not a rank")
    error_of(ValueError, lambda: group.recv(np.ones(1), -1), "source -1 is not a rank")
    error_of(TypeError, lambda: group.send([1.0], 0), "send")
    error_of(TypeError, lambda: group.send(np.ones(1), 0, tag="a"), "tag")
    error_of(ValueError, lambda: group.recv(np.ones(1), 0, tag=1 << 63), "recv: tag is 9223372036854775808; pass")
    error_of(ValueError, lambda: group.recv(np.broadcast_to(np.ones(1), 3), 0), "recv")
    calls = "send of 3 f64 to rank 1", "recv of 3 f32 from rank 0"
    if rank == 0:
        error_of(herringbone.MismatchError, lambda: group.send(np.ones(3), 1), *calls)
    if rank == 1:
        error_of(herringbone.MismatchError, lambda: group.recv(np.ones(3, np.float32), 0), *calls)
    if rank == 0:
        late = herringbone.OperationTimeoutError
        error_of(late, lambda: group.recv(np.ones(1), 1, tag=8, timeout=0.3), "recv of 1 f64 with tag 8 from rank 1")
    group.barrier()


@case
def a_rank_sends_to_itself() -> None:
    sent = group.send(np.arange(9), group.rank, async_op=True)
    received = np.zeros(9, int)
    assert group.recv(received) == group.rank
    sent.wait()
    assert (received == np.arange(9)).all()


if __name__ == "__main__":
    group = herringbone.init(timeout=30)
    cases.run(CASES, group.rank)
