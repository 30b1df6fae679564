"""Registering the backend with torch, whichever of the two packages is imported first.

torch 2.14 and later find the backend through the wheel's entry point. Earlier versions read no entry points for backends, so
the backend is registered as soon as both packages are imported. At the end of its import every torch calls :func:`autoload`,
through another entry point. Nothing here imports torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["autoload", "register_once_torch_is_there"]


def register_once_torch_is_there() -> None:
    """Register the backend now if torch has been imported, else at the end of torch's import."""
    torch = sys.modules.get("torch")
    if torch is not None and _is_being_imported(torch):
        pass  # it calls `autoload`
    elif torch is not None:
        _register_or_warn()
    elif not any(isinstance(finder, _TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _TorchFinder())


def autoload() -> None:
    """Register the backend at the end of torch's import, so that the program does not have to import this package.

    From torch 2.14 on the first use of the backend's name does this, at no cost to other programs.
    """
    if os.environ.get("HERRINGBONE_REPLACE"):
        _register()
    elif not hasattr(importlib.import_module("torch.distributed"), "Backend"):
        return
    elif not hasattr(sys.modules["torch.distributed"].Backend, "_ensure_backend_registered"):
        _register_or_warn()


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(module.__spec__, "_initializing", False))


def _register() -> None:
    own = sys.modules.get(f"{__package__}.torch")
    if own is not None and _is_being_imported(own):
        return  # it registers at its end
    if importlib.import_module("torch.distributed").is_available():
        importlib.import_module(".torch", __package__).register()


def _register_or_warn() -> None:
    """Register the backend while the program imports torch or this package.

    A version of torch that the backend cannot use causes only a warning, as long as the program does not ask for the backend.
    """
    try:
        _register()
    except Exception as error:
        version = sys.modules["torch"].__version__
        warnings.warn(f"torch {version} cannot use the backend 'herringbone': {error!r}", stacklevel=3)


class _TorchFinder:
    """Finds torch where the other finders do, and notices the end of its import."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The other finders' answer for torch; ``None`` for all other modules."""
        if name != "torch":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            # The loader stays the same object: other code checks its type, and reads the package's files through it.
            loader.exec_module = execute
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _register_or_warn()

        loader.exec_module = execute_and_register
