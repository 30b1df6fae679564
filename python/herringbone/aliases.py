"""With ``HERRINGBONE_REPLACE=horovod``, programs that import Horovod get Herringbone.

Nothing is imported before the program asks for it.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["REPLACED", "VARIABLE", "asked_for", "replace_horovod_if_asked"]

VARIABLE = "HERRINGBONE_REPLACE"
REPLACED = "horovod"

ABSENT = {
    "data": "Spark's and TensorFlow's data loaders; use torch.utils.data",
    "keras": "TensorFlow's tensors",
    "metadata": "Horovod's build options; use hvd.mpi_built() and the like",
    "mxnet": "MXNet's arrays; horovod.numpy has the same functions for numpy's",
    "ray": "Ray's actors; Ray Train starts programs for Herringbone",
    "runner.elastic": "Horovod's own launcher; use herringbone horovodrun",
    "spark": "Spark's jobs",
    "tensorflow": "TensorFlow's tensors",
}
"""Horovod's modules that have no counterpart, and what they are for."""


def asked_for() -> set[str]:
    """The packages that Herringbone is to replace."""
    return {name for name in map(str.strip, os.environ.get(VARIABLE, "").split(",")) if name}


def replace_horovod_if_asked() -> None:
    """Let imports of ``horovod`` and its modules find :mod:`herringbone.horovod` and its modules; later calls change
    nothing."""
    if REPLACED in asked_for() and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds ``horovod`` and its modules before an installed Horovod is found."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Where the module that replaces Horovod's is; ``None`` for all other modules.

        Raises:
            ImportError: it is a part of Horovod that Herringbone does not have.
        """
        first, _, rest = name.partition(".")
        if first != REPLACED:
            return None
        parts = rest.split(".")
        absent = [part for part in (parts[0], ".".join(parts[:2])) if part in ABSENT]
        if absent:
            part = absent[0]
            raise ImportError(f"{VARIABLE}={REPLACED}: Herringbone has no horovod.{part}, which is for {ABSENT[part]}", name=name)
        own = f"{__package__}.{name}"
        found = importlib.util.find_spec(own)
        if found is None:
            return None
        if not rest and os.environ.get("HERRINGBONE_LOG") != "off":
            text = "herringbone: %s=%s, so the module horovod of this program is Herringbone's"
            logging.getLogger("herringbone").info(text, VARIABLE, REPLACED)
        is_package = found.submodule_search_locations is not None or any(part.startswith(f"{rest}.") for part in ABSENT)
        return ModuleSpec(name, _Loader(own), is_package=is_package)


class _Loader(Loader):
    """Gives the program the same module object that other imports get, under another name."""

    def __init__(self, own: str) -> None:
        self._own = own
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module, imported under its own name."""
        module = importlib.import_module(self._own)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run again; the module keeps its own attributes."""
        module.__spec__ = self._spec
