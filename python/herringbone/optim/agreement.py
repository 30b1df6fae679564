"""Whether ranks that are to average have the same arguments and models: plain Python and numpy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ..communicator import Communicator
from ..errors import ArgumentError
from ..state import broadcast_state

__all__ = ["agree", "check"]

_SHOWN = 3
"""So many differences are in an error."""


def check(call: str, own: Mapping[str, str], where: str, other: Mapping[str, str], elsewhere: str) -> None:
    """Compare the settings of two ranks, as texts by name; ``where`` and ``elsewhere`` name the ranks.

    Raises:
        ArgumentError: they differ; it names the first differences.
    """
    names = [name for name in dict.fromkeys([*other, *own]) if own.get(name) != other.get(name)]
    if not names:
        return
    differences = [f"{name} is {own.get(name, 'none')} on {where} and {other.get(name, 'none')} on {elsewhere}" for name in names]
    more = f", and {len(differences) - _SHOWN} more differ" if len(differences) > _SHOWN else ""
    raise ArgumentError(
        f"{call}: {'; '.join(differences[:_SHOWN])}{more}; all ranks have to make the same one, of the same model"
    )


def agree(call: str, communicator: Communicator, settings: Mapping[str, str]) -> None:
    """Have all ranks of a group compare their settings; all of them call this. It sends 32 bytes if they are the same.

    Raises:
        ArgumentError: on all ranks: one has other settings than rank 0.
        HerringboneError: the group failed.
    """
    import numpy as np

    digest = hashlib.sha256(json.dumps(dict(settings)).encode()).digest()
    digests = communicator.all_gather(np.frombuffer(digest, np.uint8).copy()).reshape(-1, len(digest))
    others = [rank for rank, each in enumerate(digests) if not np.array_equal(each, digests[0])]
    if not others:
        return
    first, other = (broadcast_state(communicator, dict(settings), root=rank) for rank in (0, others[0]))
    check(call, other, f"rank {others[0]}", first, "rank 0")
