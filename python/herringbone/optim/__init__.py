"""Ways to train that do not sum every gradient at every step: periodic averaging, and asynchronous updates.

Each name is imported at its first access, because all of them need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..listing import listing
from ..needs import needs as _needs

if TYPE_CHECKING:
    from .async_sgd import AsyncSGD as AsyncSGD
    from .diloco import DiLoCo as DiLoCo
    from .factors import factor_broadcast as factor_broadcast
    from .local_sgd import LocalSGD as LocalSGD
    from .local_sgd import PostLocalSGD as PostLocalSGD
    from .threshold_sgd import ThresholdSGD as ThresholdSGD

_PLACES: dict[str, str] = {
    "AsyncSGD": "async_sgd",
    "DiLoCo": "diloco",
    "LocalSGD": "local_sgd",
    "PostLocalSGD": "local_sgd",
    "ThresholdSGD": "threshold_sgd",
    "factor_broadcast": "factors",
}
"""The module of each name."""

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    """A name of this package, from its module."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in ("torch", "numpy"):
        _needs(f"{__name__}.{name}", module)
    return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)


__dir__ = listing(__name__)
