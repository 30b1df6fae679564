"""The placement of keys' values on parameter servers, by MXNet's rule."""

from __future__ import annotations

import math

from ..errors import ArgumentError

__all__ = ["BIG", "placement"]

BIG = 1_000_000
"""Arrays with at least this many elements are spread over all servers (MXNet's ``MXNET_KVSTORE_BIGARRAY_BOUND``)."""

SPREAD = 9973
"""The prime that spreads keys over servers."""


def placement(key: int, elements: int, servers: int, bound: int = BIG) -> list[tuple[int, int, int]]:
    """The servers of a key's elements: a list of (server, first, end).

    An array of fewer than ``bound`` elements is on one server, a larger one in nearly equal parts on all. Texts as keys are
    numbered in the order of the calls of ``init``.
    """
    if servers < 1 or elements < 0 or bound < 0:
        raise ArgumentError(f"placement: {elements} elements on {servers} servers with a bound of {bound}")
    if elements < bound:
        return [((key * SPREAD) % servers, 0, elements)]
    # Like C's round: halves are rounded up.
    ends = [math.floor(elements / servers * (part + 1) + 0.5) for part in range(servers)]
    return [(server, first, end) for server, (first, end) in enumerate(zip([0, *ends], ends))]
