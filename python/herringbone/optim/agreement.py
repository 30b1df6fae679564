"""Checks that ranks which average have the same arguments and models: plain Python and numpy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from ..communicator import Communicator
from ..errors import ArgumentError
from ..state import broadcast_state

__all__ = ["agree", "differences"]

_SHOWN = 3
"""The most differences that an error names."""


def differences(own: Mapping[str, str], where: str, other: Mapping[str, str], elsewhere: str) -> str:
    """The differences between the settings of two ranks, as a text; ``where`` and ``elsewhere`` name the ranks."""
    names = [name for name in dict.fromkeys([*other, *own]) if own.get(name) != other.get(name)]
    texts = [f"{name} is {own.get(name, 'none')} on {where} and {other.get(name, 'none')} on {elsewhere}" for name in names]
    more = f", and {len(texts) - _SHOWN} more differ" if len(texts) > _SHOWN else ""
    return "; ".join(texts[:_SHOWN]) + more


def agree(call: str, communicator: Communicator, settings: Mapping[str, str], rounds: int = 0) -> str:
    """Let all ranks of a group compare their settings; all of them call this. It sends 40 bytes if they are the same.

    The settings of the rank that has made the most ``rounds`` are valid. If any rounds were made, ranks with these settings
    continue, and get the differences on another rank as a text, which is empty if there are none.

    Raises:
        ArgumentError: this rank's settings differ from the valid ones. Before the first round: any rank's differ; on all ranks.
        HerringboneError: the group failed.
    """
    import numpy as np

    digest = hashlib.sha256(json.dumps(dict(settings)).encode()).digest()
    mine = np.frombuffer(digest + rounds.to_bytes(8, "little"), np.uint8).copy()
    given = [each.tobytes() for each in communicator.all_gather(mine).reshape(-1, len(mine))]
    digests, made = [each[:-8] for each in given], [int.from_bytes(each[-8:], "little") for each in given]
    furthest = made.index(max(made))
    others = [rank for rank, each in enumerate(digests) if each != digests[furthest]]
    if not others:
        return ""
    right, wrong = (broadcast_state(communicator, dict(settings), root=rank) for rank in (furthest, others[0]))
    is_other = communicator.rank in others
    named, shown = (communicator.rank, settings) if is_other else (others[0], wrong)
    text = differences(shown, f"rank {named}", right, f"rank {furthest}")
    if is_other or max(made) == 0:
        raise ArgumentError(f"{call}: {text}; all ranks have to make the same one, of the same model")
    return text
