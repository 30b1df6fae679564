"""Sums over the shards of a training: the same bits on any number of ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from . import _herringbone
from ._herringbone import accumulator, aligned_shards, even_shards, round_shard_sum
from .arguments import whole
from .arrays import FOLDED, fold_type, readable, wrong_op, writable
from .communicator import Communicator
from .errors import ArgumentError, UnsupportedError
from .kinds import kind_of
from .names import Operation

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = ["MOST_SHARDS", "WHY", "ShardGroup", "check_shards", "explained", "lengths_of"]

MOST_SHARDS = 1 << 20
"""The most shards of a training."""

NUMPY_TYPES = {kind: name for name, kind in FOLDED.items()}
KINDS = sorted(NUMPY_TYPES)
MOST_DIMENSIONS = 32


def check_shards(call: str, shards: Any) -> int:
    """``shards`` as a number of shards.

    Raises:
        TypeError, ArgumentError: it is none.
    """
    number = whole(call, "shards", shards, "a number of shards")
    if not 1 <= number <= MOST_SHARDS:
        raise ArgumentError(f"{call}: shards is {number}; a training has from 1 to {MOST_SHARDS} shards")
    return number


WHY = {
    "aligned": "each rank carries the shards below one node of the tree over the shards, so it sends one partial sum",
    "even": "the longest run is as short as possible, and a rank sends a partial sum for each of its nodes",
}
"""The reasons for runs, by their names."""


def lengths_of(shards: int, ranks: int, runs: str | Sequence[int]) -> list[int]:
    """How many shards each rank carries; ``runs`` is a name or a list of lengths."""
    if runs == "aligned":
        return aligned_shards(shards, ranks)
    if runs == "even":
        return even_shards(shards, ranks)
    if isinstance(runs, str) or not isinstance(runs, Sequence):
        raise ArgumentError(f"ShardGroup: runs is {runs!r}; pass 'aligned', 'even', or how many shards each rank carries")
    lengths = [whole("ShardGroup", "one of runs", length, "a number of shards") for length in runs]
    if sum(lengths) != shards or min(lengths, default=0) < 0:
        raise ArgumentError(f"ShardGroup: runs are {lengths}, {sum(lengths)} shards; pass lengths that make up {shards}")
    return lengths


def explained(shards: int, lengths: list[int], why: str) -> str:
    """The shards that each rank carries, and why."""
    runs, first = [], 0
    for rank, length in enumerate(lengths):
        carried = "none" if length == 0 else f"{first}" if length == 1 else f"{first} to {first + length - 1}"
        runs.append(f"rank {rank}: {carried}")
        first += length
    return f"{shards} shards on {len(lengths)} ranks ({'; '.join(runs)}): {why}"


class ShardGroup:
    """The ranks of a communicator, which carry the shards of a training::

        group = herringbone.ShardGroup(communicator, shards=8)
        mean = group.all_reduce({shard: gradient_of(shard) for shard in group.mine}, "average")

    A training has a fixed number of **shards**, each with its own samples and its own gradient. Each rank carries a run of
    consecutive shards. The shards' gradients are folded in the canonical tree over the shards' numbers, wherever the shards
    are. So results are the same bits on 1, 2, 3 or more ranks. Ranks beyond the number of shards carry none, but take part.

    All ranks make the group with the same number of shards, and make the same number of such groups.
    """

    def __init__(
        self, communicator: Communicator, shards: int, *, runs: Literal["aligned", "even"] | Sequence[int] = "aligned"
    ) -> None:
        """Make the group, without waiting for other ranks: if their number of shards differs, the first call fails.

        Args:
            communicator: the ranks.
            shards: how many shards the training has; results depend on it.
            runs: the shards of each rank. Results do not depend on it, but all ranks pass the same. ``"aligned"``: each rank
                carries the shards below one node of the tree over the shards, so it sends one partial sum. ``"even"``: the
                longest run is as short as possible, and some ranks send several. Or a list with each rank's number of shards;
                zeros come last.

        Raises:
            TypeError, ArgumentError: an argument makes no sense.
            ConfigError: the runs do not fit the number of ranks.
        """
        if not isinstance(communicator, Communicator):
            raise TypeError(f"ShardGroup: communicator is a {type(communicator).__name__}; pass what herringbone.init() gives")
        self.shards = check_shards("ShardGroup", shards)
        """How many shards the training has."""
        self.lengths = lengths_of(self.shards, communicator.size, runs)
        """How many shards each rank carries, in the order of ranks."""
        self.communicator = communicator
        self._runs = runs if isinstance(runs, str) else ""
        self._native = _herringbone.ShardGroup(communicator._native, self.lengths)
        self.mine = range(*self._native.mine)
        """The shards that this rank carries."""

    def all_reduce(self, gradients: Mapping[int, Array | None], op: Operation = "sum") -> Array | None:
        """Fold the arrays of all shards, element by element, in an order that depends only on the shards' numbers.

        Args:
            gradients: for each of this rank's shards (:attr:`mine`) an array, or ``None`` if the shard gives nothing. All
                arrays of all ranks have the same shape and type.
            op: ``"sum"``, or ``"average"``, which divides by the number of all shards, with or without an array.

        Returns:
            A new array, on every rank; ``None`` if no shard gives an array.

        Raises:
            ArgumentError: the shards are not this rank's, or the arrays of this or another rank differ in shape or type.
            UnsupportedError: the engine does not fold this type.
            HerringboneError: the collective failed.
        """
        import numpy as np

        given = self._checked(gradients)
        first = next((array for array in given if array is not None), None)
        shape, kind = self._agreed(first, self._differing(given), op)
        if kind is None:
            return None
        count, partials = math.prod(shape), self._native.partials
        wide = np.dtype(NUMPY_TYPES[accumulator(kind, op)])
        folded, total = np.empty((partials, count), wide), np.empty(count, wide)
        places = [writable("all_reduce", row) for row in folded]
        sums = self._native.partial_sums([(kind, op, places)], folded)
        for array in given:
            sums.push(0, [None if array is None else (readable("all_reduce", array), array)])
        spans = (readable("all_reduce", folded), writable("all_reduce", total))
        self._native.sums.run(
            (kind_of("all_reduce", accumulator(kind, op), op), count, 0, *spans, (folded, total), None, 0, None)
        )
        if kind == "bf16":
            # It registers its types with numpy; a rank without shards might not have imported it.
            import ml_dtypes  # noqa: F401  # its import is what counts
        result = np.empty(shape, np.dtype(NUMPY_TYPES[kind]))
        keep = (total, result)
        round_shard_sum(kind, op, readable("all_reduce", total), writable("all_reduce", result.reshape(-1)), keep)
        return result

    def mean(self, numbers: Mapping[int, float | None]) -> float | None:
        """The mean of one number per shard, such as its loss, added in the same tree; ``None`` counts as 0.

        Returns:
            The mean over all shards, on every rank; ``None`` if no shard has a number.
        """
        import numpy as np

        if not isinstance(numbers, Mapping):
            raise TypeError(f"mean: numbers is a {type(numbers).__name__}, not a dictionary of a number for each shard")
        arrays = {shard: None if number is None else np.array([float(number)]) for shard, number in numbers.items()}
        mean = self.all_reduce(arrays, "average")
        return None if mean is None else float(mean[0])

    def explain(self) -> str:
        """The shards that each rank carries, and why."""
        return explained(self.shards, self.lengths, WHY.get(self._runs, "the program has chosen these runs"))

    def __repr__(self) -> str:
        return f"<herringbone.ShardGroup of {self.shards} shards, {len(self.mine)} of them on rank {self.communicator.rank}>"

    def _checked(self, gradients: Mapping[int, Array | None]) -> list[Array | None]:
        """The arrays of this rank's shards, in their order."""
        import numpy as np

        if not isinstance(gradients, Mapping):
            raise TypeError(f"all_reduce: gradients is a {type(gradients).__name__}, not a dictionary of an array for each shard")
        missing = [shard for shard in self.mine if shard not in gradients]
        extra = [shard for shard in gradients if shard not in self.mine]
        if missing or extra:
            what = [f"lacks {missing}"] * bool(missing) + [f"has {extra}"] * bool(extra)
            text = f"all_reduce on rank {self.communicator.rank}: gradients {' and '.join(what)}"
            raise ArgumentError(f"{text}; pass an array or None for each shard of group.mine, {list(self.mine)}")
        given = [gradients[shard] for shard in self.mine]
        return [None if array is None else np.require(array, requirements="C") for array in given]

    def _differing(self, given: list[Array | None]) -> str | None:
        """How this rank's arrays differ from each other, if they do."""
        described = [f"{array.dtype}{list(array.shape)}" for array in given if array is not None]
        return next((f"{described[0]} and {other}" for other in described if other != described[0]), None)

    def _agreed(self, first: Array | None, differing: str | None, op: str) -> tuple[tuple[int, ...], str | None]:
        """The shape and type of all shards' arrays, also for ranks without one. No type: no shard gives an array."""
        import numpy as np

        problem: Exception | None = None if differing is None else ArgumentError(f"all_reduce: the shards give {differing}")
        said = np.zeros((2, MOST_DIMENSIONS + 3), np.int64)
        said[:, :] = np.iinfo(np.int64).min + 1
        said[:, 0] = 0
        if op not in ("sum", "average"):
            problem = (
                UnsupportedError(f"all_reduce: {op} of shards; pass sum or average") if _is_op(op) else wrong_op("all_reduce", op)
            )
        if first is not None and problem is None:
            try:
                kind = fold_type("all_reduce", first, op)
                if first.ndim > MOST_DIMENSIONS:
                    raise UnsupportedError(f"all_reduce: {first.ndim} dimensions; pass array.reshape(-1)")
                line = [KINDS.index(kind), first.ndim, *first.shape]
                said[0, 1 : 1 + len(line)], said[1, 1 : 1 + len(line)] = line, [-number for number in line]
            except (UnsupportedError, TypeError) as error:
                problem = error
        if problem is not None:
            said[0, 0] = 1
        self.communicator.all_reduce(said, "max")
        if problem is not None:
            raise problem
        if said[0, 0]:
            raise ArgumentError("all_reduce: another rank could not take part; its own error says why. Nothing was summed")
        if said[0, 1] < 0:
            return (), None
        least, most = -said[1, 1:], said[0, 1:]
        dimensions = int(most[1])
        used = slice(0, 2 + dimensions)
        if (least[used] != most[used]).any():
            _refuse_differing(least, most)
        return tuple(int(length) for length in most[2 : 2 + dimensions]), KINDS[int(most[0])]


def _is_op(op: Any) -> bool:
    try:
        kind_of("all_reduce", "i32", op)
    except (TypeError, ValueError):
        return False
    return True


def _refuse_differing(least: Any, most: Any) -> NoReturn:
    if least[0] != most[0]:
        what = f"types, {KINDS[int(least[0])]} and {KINDS[int(most[0])]}"
    elif least[1] != most[1]:
        what = f"numbers of dimensions, {least[1]} and {most[1]}"
    else:
        of = slice(2, 2 + int(most[1]))
        what = f"lengths, from {least[of].tolist()} to {most[of].tolist()}"
    raise ArgumentError(f"all_reduce: the shards of all ranks give arrays of different {what}; nothing was summed")
