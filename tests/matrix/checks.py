"""What the features of the matrix share: how one is listed, and how its values are checked."""

import os
import pathlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from worker import SIZE

FOLDER = "MATRIX_FOLDER"
"""The variable with the folder of a feature's job, which a rank and what it starts see."""


class NotInTorch(Exception):
    """This torch does not have what the feature needs; the text names it."""


class NotHere(Exception):
    """This machine does not have what the feature needs; the text names it."""


@dataclass(frozen=True)
class Feature:
    """One row of the table: a function that every rank runs, and that raises if a value is wrong."""

    title: str
    run: Callable[[], None]
    backend: str | None = "herringbone"
    """The default group that the ranks have made before; None: the function makes it."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables that have to be there when torch is imported."""


FEATURES: dict[str, Feature] = {}
"""In the order of the table."""


def feature(title: str, backend: str | None = "herringbone", **environment: str):
    """Decorator: list a function as a feature."""

    def add(function):
        assert title not in FEATURES, title
        FEATURES[title] = Feature(title, function, backend, environment)
        return function

    return add


def needed(owner: object, name: str):
    """A part of torch, or the outcome that this torch does not have it."""
    if not hasattr(owner, name):
        raise NotInTorch(f"no {getattr(owner, '__name__', type(owner).__name__)}.{name}")
    return getattr(owner, name)


def folder() -> pathlib.Path:
    """The job's own folder."""
    return pathlib.Path(os.environ[FOLDER])


def meeting(name: str) -> str:
    """Where the ranks of a group meet: a file of this name, which is not there yet."""
    return f"file://{folder() / name}"


def rank() -> int:
    return dist.get_rank()


def mine(length: int = 3, dtype: torch.dtype = torch.float32, of: int | None = None) -> torch.Tensor:
    """A rank's input: other values at each place and on each rank."""
    owner = rank() if of is None else of
    return (torch.arange(length) + 1 + 10 * owner).to(dtype)


def everyones(length: int = 3, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """The inputs of all ranks."""
    return [mine(length, dtype, owner) for owner in range(SIZE)]


def total(length: int = 3, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The sum of all ranks' inputs."""
    return sum(everyones(length, dtype), torch.zeros(length, dtype=dtype))


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Fail unless both have the same type, shape and bits."""
    assert found.dtype == expected.dtype and found.shape == expected.shape, (found, expected)
    assert torch.equal(found, expected), f"{found} is not {expected}"


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Fail unless all values are near."""
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def same_on_all(tensor: torch.Tensor) -> None:
    """Fail unless all ranks have the same bits."""
    tensor = tensor.detach().contiguous()
    parts = [torch.empty_like(tensor) for _ in range(SIZE)]
    dist.all_gather(parts, tensor)
    for part in parts:
        same(part, tensor)


def raises(kind: type[BaseException], call: Callable[[], object], *texts: str) -> None:
    """Fail unless the call raises such an error with these texts in it."""
    try:
        call()
    except kind as error:
        missing = [text for text in texts if text not in str(error)]
        assert not missing, f"{missing} not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}")


def own_folder() -> str:
    """A folder of this rank alone."""
    return tempfile.mkdtemp(dir=folder())
