"""Lets ``dir()``, and so an interactive prompt, show the public names of a module, without the names that it only uses."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

__all__ = ["listing"]


def listing(name: str, *modules: str) -> Callable[[], list[str]]:
    """A module's ``__dir__``: the names of its ``__all__``, and the names that every module has.

    A module without ``__all__`` passes names on: then all are public but its own modules. ``modules`` are the public ones of
    these.
    """

    def __dir__() -> list[str]:
        here = vars(sys.modules[name])
        public = here.get("__all__")
        if public is None:
            passed_on = {each for each, value in here.items() if not each.startswith("_") and not isinstance(value, ModuleType)}
            public = passed_on | set(modules)
        return sorted({*public, *(each for each in here if each.startswith("__"))})

    return __dir__
