"""Collectives on numpy arrays that move parts."""

from __future__ import annotations

import cases
import numpy as np
from cases import error_of

import herringbone

CASES, case = cases.registry()


def moved() -> tuple[int, int]:
    """Bytes that this rank has sent to other workers and received from them."""
    stats = group.stats()
    ways = [stats["workers_shm"], stats["workers_tcp"]]
    return sum(way["sent"] for way in ways), sum(way["received"] for way in ways)


@case
def parts_go_to_one_rank_and_come_from_one() -> None:
    n, rank = group.size, group.rank
    for root in range(n):
        before = moved()
        whole = group.gather(np.full((2, 3), rank, np.int16), root)
        sent, received = moved()
        if rank == root:
            assert np.array_equal(whole, np.repeat(np.arange(n, dtype=np.int16), 6).reshape(-1, 3))
            assert (sent, received) == (before[0], before[1] + 12 * (n - 1))
        else:
            assert whole is None and (sent, received) == (before[0] + 12, before[1])
        parts = np.arange(2 * n).reshape(n, 2) if rank == root else None
        out = np.zeros((1, 2), int)
        assert group.scatter(parts, root, out=out) is out
        assert out.tolist() == [[2 * rank, 2 * rank + 1]]
        counts = [i + 1 for i in range(n)]
        mine = np.full((rank + 1, 2), rank, np.complex64)
        whole = group.gather(mine, root, counts=counts if rank == root else [])
        expected = np.repeat(np.arange(n), counts)
        assert whole is None if rank != root else np.array_equal(whole[:, 1], expected)
        back = np.zeros_like(mine)
        group.scatter(whole, root, out=back, counts=counts if rank == root else [])
        assert np.array_equal(back, mine)
        assert np.array_equal(group.all_gather(mine, counts=counts)[:, 0], expected)
    error_of(ValueError, lambda: group.gather(np.ones(2), n), f"of this group of {n}")
    error_of(ValueError, lambda: group.gather(np.ones(2), rank, counts=[1] * (n + 1)), f"pass {n} lengths")
    error_of(ValueError, lambda: group.scatter(None, rank), "the root has to pass an array")
    error_of(ValueError, lambda: group.scatter(np.ones(n), (rank + 1) % n), "only rank")


@case
def every_rank_has_a_part_for_every_other() -> None:
    n, rank = group.size, group.rank
    array = np.array([[10 * rank + to] * 2 for to in range(n)])
    expected = np.array([[10 * source + rank] * 2 for source in range(n)])
    assert np.array_equal(group.all_to_all(array), expected)
    assert np.array_equal(group.all_to_all(array, async_op=True).wait(), expected)
    assert np.array_equal(group.all_to_all(array, out=array), expected)
    sends, receives = [(rank + to) % 3 for to in range(n)], [(source + rank) % 3 for source in range(n)]
    array = np.full((sum(sends), 5), rank, np.uint16)
    out = group.all_to_all(array, sends=sends, receives=receives)
    assert out.shape == (sum(receives), 5)
    assert np.array_equal(out[:, 3], np.repeat(np.arange(n), receives))
    error_of(ValueError, lambda: group.all_to_all(np.ones(n), sends=[1] * n), "pass both")
    error_of(ValueError, lambda: group.all_to_all(np.ones(n + 1), sends=[1] * n, receives=[1] * n), "do not make up")
    error_of(ValueError, lambda: group.all_to_all(np.ones(n + 1)), "a multiple of")


@case
def ranks_that_do_not_agree_about_a_part_are_told_both_lengths() -> None:
    n, rank = group.size, group.rank
    length = 4 if rank == 1 else 2
    sends = [length if to == 0 else 1 for to in range(n)]
    receives = [3 if rank == 0 and source == 1 else 2 if rank == 0 else 1 for source in range(n)]

    def exchange() -> None:
        group.all_to_all(np.ones(sum(sends), np.int32), sends=sends, receives=receives)

    # A rank that has all that it needs is told by its next call; all ranks make as many calls.
    reported = []
    for call in (exchange, group.barrier):
        try:
            call()
        except herringbone.MismatchError as error:
            reported.append(str(error))
    assert reported and all(text in reported[0] for text in ("with 4 elements for rank 0", "with 3 elements from rank 1"))
    assert group.all_reduce(np.ones(1)).tolist() == [n]


if __name__ == "__main__":
    group = herringbone.init(timeout=60)
    cases.run(CASES, group.rank)
